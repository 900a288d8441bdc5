"""Show what a program prints on the hosts: live with the host in front of each line, folded if it is identical, or as
JSON.

Lines of different hosts never mix, and stdout and stderr stay apart. Failures are collected for a second, so that a
hundred hosts with the same failure are one line.
"""

from __future__ import annotations

import codecs
import json
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TextIO

from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.frames import StreamName
from ipexctl.option_declaration import NO_OPTIONS, CallOptions
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import ExecResult
from ipexctl.remote.outcome import Report
from ipexctl.text import format_count, printable
from ipexctl.ui.results import host_json, json_text, show_failures, summary_json
from ipexctl.ui.safe_output import OutputPipes, PrefixedLines, for_terminal


class LiveOutput(OutputPipes):
    """Prints each line as it comes, with its host in front."""

    def __init__(self, cancel: Cancel) -> None:
        super().__init__(cancel)
        self._terminal: dict[StreamName, bool] = {"stdout": sys.stdout.isatty(), "stderr": sys.stderr.isatty()}
        self._prefixers: dict[Host, dict[StreamName, PrefixedLines]] = {}

    def sink_for(self, host: Host) -> Callable[[StreamName, bytes], None]:
        """Return the function that takes the output of a host."""
        prefixers = self._prefixers[host] = {
            stream: PrefixedLines(self.prefix(stream, f"{host.name}:"), keep_states=not is_terminal)
            for stream, is_terminal in self._terminal.items()
        }

        def sink(stream: StreamName, data: bytes) -> None:
            """Print the complete lines in the data."""
            self.write(stream, prefixers[stream].feed(data))

        return sink

    def finish(self, host: Host) -> None:
        """Print what is left of the last line of a host."""
        for stream, prefixer in self._prefixers.pop(host, {}).items():
            self.write(stream, prefixer.flush())


class _StoredOutput:
    """Where the output of one host's stream is in the file, and its digest."""

    def __init__(self) -> None:
        from hashlib import blake2b  # 2 ms, for --gather and --json alone

        self.segments: list[tuple[int, int]] = []
        self.digest = blake2b()


class CollectedOutput:
    """Keeps all output in a temporary file until the end; the first megabytes stay in memory."""

    _IN_MEMORY = 8 << 20
    """Bytes that stay in memory."""
    _PIECE = 1 << 18
    """Bytes that are read at once."""

    def __init__(self) -> None:
        self._outputs: dict[tuple[Host, StreamName], _StoredOutput] = defaultdict(_StoredOutput)
        self._file = tempfile.SpooledTemporaryFile(max_size=self._IN_MEMORY)  # noqa: SIM115  # lives as long as this
        self._size = 0
        self._lock = threading.Lock()

    def sink_for(self, host: Host) -> Callable[[StreamName, bytes], None]:
        """Return the function that takes the output of a host."""

        def sink(stream: StreamName, data: bytes) -> None:
            """Store the data."""
            with self._lock:
                output = self._outputs[host, stream]
                output.digest.update(data)
                output.segments.append((self._size, len(data)))
                self._file.write(data)
                self._size += len(data)

        return sink

    def finish(self, host: Host) -> None:
        """Do nothing: output is shown at the end."""

    def digest(self, host: Host, stream: StreamName) -> bytes | None:
        """Return the digest of a host's stream; None if the host printed nothing there."""
        output = self._outputs.get((host, stream))
        return output.digest.digest() if output else None

    def pieces(self, host: Host, stream: StreamName) -> Iterator[bytes]:
        """Yield the output of a host's stream."""
        output = self._outputs.get((host, stream))
        for start, size in output.segments if output else ():
            self._file.seek(start)
            for rest in range(size, 0, -self._PIECE):
                yield self._file.read(min(rest, self._PIECE))

    def text(self, host: Host, stream: StreamName) -> Iterator[str]:
        """Yield the output as text; invalid UTF-8 is replaced."""
        return codecs.iterdecode(self.pieces(host, stream), "utf-8", "replace")


def show_gathered(report: Report[ExecResult], output: CollectedOutput) -> None:
    """Print identical output once, under the names of its hosts."""
    streams: tuple[tuple[StreamName, TextIO], ...] = (("stdout", sys.stdout), ("stderr", sys.stderr))
    for stream, target in streams:
        groups: dict[bytes, list[Host]] = {}
        for result in report.hosts:
            if digest := output.digest(result.host, stream):
                groups.setdefault(digest, []).append(result.host)
        for hosts in groups.values():
            names = printable(fold(host.name for host in hosts))
            target.buffer.write(f"{names} ({format_count(len(hosts), 'host')}):\n".encode())
            if target.isatty():
                lines = PrefixedLines(b"")
                for piece in output.pieces(hosts[0], stream):
                    target.buffer.write(for_terminal(lines.feed(piece), target))
                target.buffer.write(for_terminal(lines.flush(), target))
                continue
            last = b""
            for piece in output.pieces(hosts[0], stream):
                target.buffer.write(piece)
                last = piece
            target.buffer.write(b"" if last.endswith(b"\n") else b"\n")
        target.buffer.flush()


def show_json(report: Report[ExecResult], output: CollectedOutput) -> None:
    """Print JSON in UTF-8 whatever the locale, piece by piece, so that it is never all in memory."""

    def write(text: str) -> None:
        """Print a part of the document."""
        sys.stdout.buffer.write(for_terminal(text.encode("utf-8", "backslashreplace"), sys.stdout))

    write('{\n  "schema": "ipexctl.exec/1",\n  "hosts": [')
    for index, result in enumerate(report.hosts):
        fields = json_text(host_json(result))
        write(("," if index else "") + "\n    " + fields.removesuffix("}"))
        streams: tuple[StreamName, ...] = ("stdout", "stderr")
        for stream in streams:
            write(f', "{stream}": "')
            for text in output.text(result.host, stream):
                write(json.dumps(text, ensure_ascii=False)[1:-1])
            write('"')
        write("}")
    summary = summary_json(report.hosts, ("ok", "failed", "unreachable"))
    write(f'\n  ],\n  "summary": {json.dumps(summary)},\n  "seconds": {round(report.seconds, 3)}\n}}\n')
    sys.stdout.buffer.flush()


class FailureReport:
    """Prints failed hosts by reason, collected for `delay` seconds. `options`: of the call, for commands to type."""

    def __init__(self, options: CallOptions = NO_OPTIONS, delay: float = 1.0) -> None:
        self._options = options
        self._delay = delay
        self._lock = threading.Lock()
        self._waiting: list[ExecResult] = []
        self._timer: threading.Timer | None = None

    def add(self, done: ExecResult) -> None:
        """Collect a failed host; the others are ignored."""
        if done.status == "ok":
            return
        with self._lock:
            self._waiting.append(done)
            if self._timer is None:
                self._timer = threading.Timer(self._delay, self.print)
                self._timer.daemon = True
                self._timer.start()

    def print(self) -> None:
        """Print what is collected. Called by the timer, and at the end."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        show_failures(map(self._options.in_report, waiting))

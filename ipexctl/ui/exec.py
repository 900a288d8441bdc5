"""What `ipexctl exec` shows: live lines behind the host's name, identical output folded, or JSON."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, TextIO

from ipexctl.text import printable
from ipexctl.ui.messages import print_message, wants_color
from ipexctl.ui.safe_output import Pipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ipexctl.hosts.host import Host
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.execute import ExecReport, HostExec
    from ipexctl.remote.session import Stream

LONGEST_LINE = 1 << 20
"""A line longer than this is handed on in pieces: memory has an end, even if the line doesn't."""


class Prefixer:
    """Turns chunks of one stream into whole lines behind a prefix, in pieces as large as they come."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._tail: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> bytes:
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._tail.append(data)
            self._held += len(data)
            return self.flush() if self._held > LONGEST_LINE else b""
        whole = b"".join([*self._tail, data[: cut - 1]])
        rest = data[cut:]
        self._tail, self._held = ([rest], len(rest)) if rest else ([], 0)
        return self._prefix + whole.replace(b"\n", b"\n" + self._prefix) + b"\n"

    def flush(self) -> bytes:
        """What is held of a line that never ended."""
        if not self._held:
            return b""
        whole = b"".join(self._tail)
        self._tail, self._held = [], 0
        return self._prefix + whole + b"\n"


class LiveOutput:
    """Lines as they come: a host's stdout on ours, its stderr on ours, whole lines, never mixed.

    Where our own output can't be written any more, the switch is thrown, `broken` says why, and the rest is dropped.
    """

    def __init__(self, cancel: Cancel, *, no_color: bool = False) -> None:
        self._cancel = cancel
        self._pipes = {
            "stdout": Pipe(sys.stdout.fileno(), cancel, cancel.throw),
            "stderr": Pipe(sys.stderr.fileno(), cancel, cancel.throw),
        }
        self._terminal = {"stdout": sys.stdout.isatty(), "stderr": sys.stderr.isatty()}
        self._tinted = {
            "stdout": wants_color(sys.stdout, os.environ, no_color=no_color),
            "stderr": wants_color(sys.stderr, os.environ, no_color=no_color),
        }
        self._prefixers: dict[tuple[Host, Stream], Prefixer] = {}

    @property
    def broken(self) -> OSError | None:
        return self._pipes["stdout"].broken or self._pipes["stderr"].broken

    def sink_for(self, host: Host) -> Callable[[Stream, bytes], None]:
        made: dict[Stream, Prefixer] = {
            "stdout": self._prefixer(host, "stdout"),
            "stderr": self._prefixer(host, "stderr"),
        }

        def sink(stream: Stream, data: bytes) -> None:
            if lines := made[stream].feed(data):
                self._write(stream, lines)

        return sink

    def finish(self, host: Host) -> None:
        """Show what a host has left of a line without an end."""
        for stream in ("stdout", "stderr"):
            prefixer = self._prefixers.pop((host, stream), None)
            if prefixer and (rest := prefixer.flush()):
                self._write(stream, rest)

    def close(self) -> None:
        """Wait until all is written; where we were stopped, not longer than a moment."""
        for pipe in self._pipes.values():
            pipe.finish(1.0 if self._cancel.thrown else None)

    def _prefixer(self, host: Host, stream: Stream) -> Prefixer:
        name = printable(host.name)
        color = "36" if stream == "stdout" else "33"
        text = f"\x1b[{color}m{name}:\x1b[0m " if self._tinted[stream] else f"{name}: "
        self._prefixers[host, stream] = Prefixer(text.encode())
        return self._prefixers[host, stream]

    def _write(self, stream: Stream, lines: bytes) -> None:
        self._pipes[stream].write(neutralise(lines) if self._terminal[stream] else lines)


def neutralise(lines: bytes) -> bytes:
    """A host's output for a terminal: colours pass, what would move the cursor or clear the screen is shown as `?`."""
    return _UNRULY.sub(b"?", lines)


_UNRULY = re.compile(rb"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")


class HeldOutput:
    """All output until the end, for folding and for JSON: in memory while it is small, on disk when it isn't."""

    _IN_MEMORY = 1 << 20

    def __init__(self) -> None:
        self._held: dict[tuple[Host, Stream], _Held] = {}

    def sink_for(self, host: Host) -> Callable[[Stream, bytes], None]:
        mine: dict[Stream, _Held] = {"stdout": _Held(self._IN_MEMORY), "stderr": _Held(self._IN_MEMORY)}
        self._held[host, "stdout"], self._held[host, "stderr"] = mine["stdout"], mine["stderr"]
        return lambda stream, data: mine[stream].add(data)

    def finish(self, host: Host) -> None:
        """Nothing to show before the end."""

    def digest(self, host: Host, stream: Stream) -> bytes | None:
        """Equal for equal output; None where there was none."""
        held = self._held.get((host, stream))
        return held.digest if held else None

    def pieces(self, host: Host, stream: Stream) -> Iterator[bytes]:
        held = self._held.get((host, stream))
        return held.pieces() if held else iter(())

    def text(self, host: Host, stream: Stream) -> str:
        return b"".join(self.pieces(host, stream)).decode(errors="replace")


class _Held:
    def __init__(self, in_memory: int) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115  # lives as long as the report
        self._hash = hashlib.blake2b()
        self._empty = True

    def add(self, data: bytes) -> None:
        self._empty = False
        self._file.write(data)
        self._hash.update(data)

    @property
    def digest(self) -> bytes | None:
        return None if self._empty else self._hash.digest()

    def pieces(self) -> Iterator[bytes]:
        self._file.seek(0)
        while piece := self._file.read(1 << 18):
            yield piece


def show_gathered(report: ExecReport, held: HeldOutput) -> None:
    """One heading for all hosts that printed the same."""
    streams: tuple[tuple[Stream, TextIO], ...] = (("stdout", sys.stdout), ("stderr", sys.stderr))
    for stream, target in streams:
        groups: dict[bytes, list[Host]] = {}
        for done in report.hosts:
            if digest := held.digest(done.host, stream):
                groups.setdefault(digest, []).append(done.host)
        for hosts in groups.values():
            count = f"{len(hosts)} {'host' if len(hosts) == 1 else 'hosts'}"
            target.buffer.write(f"{fold_names([host.name for host in hosts])} ({count}):\n".encode())
            last = b""
            for piece in held.pieces(hosts[0], stream):
                target.buffer.write(neutralise(piece) if target.isatty() else piece)
                last = piece
            target.buffer.write(b"" if last.endswith(b"\n") else b"\n")
        target.buffer.flush()


def show_json(report: ExecReport, held: HeldOutput) -> None:
    """One document, in UTF-8 whatever the locale, written host by host: it is never in memory as a whole."""

    def write(text: str) -> None:
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))

    write('{\n  "schema": "ipexctl.exec/1",\n  "hosts": [')
    for index, done in enumerate(report.hosts):
        host = {
            "name": done.host.name,
            "address": done.host.address,
            "status": done.status,
            "rc": done.rc,
            "stdout": held.text(done.host, "stdout"),
            "stderr": held.text(done.host, "stderr"),
            "seconds": round(done.seconds, 3),
            "reason": done.reason,
            "fix": done.fix,
        }
        write(("," if index else "") + "\n    " + json.dumps(host, ensure_ascii=False))
    counts = {status: sum(done.status == status for done in report.hosts) for status in ("ok", "failed", "unreachable")}
    write(f'\n  ],\n  "summary": {json.dumps(counts)},\n  "seconds": {round(report.seconds, 3)}\n}}\n')
    sys.stdout.buffer.flush()


class Problems:
    """Says who didn't do it and why: within a second of knowing, and together what is known together.

    Each reason is a paragraph with its hosts as a node set and what to type next.
    """

    def __init__(self, delay: float = 1.0) -> None:
        self._delay = delay
        self._lock = threading.Lock()
        self._waiting: list[HostExec] = []
        self._timer: threading.Timer | None = None

    def add(self, done: HostExec) -> None:
        if done.status == "ok":
            return
        with self._lock:
            self._waiting.append(done)
            if self._timer is None:
                self._timer = threading.Timer(self._delay, self.say)
                self._timer.daemon = True
                self._timer.start()

    def say(self, patience: float | None = None) -> None:
        """Say what is waiting to be said; with `patience`, not longer than that to somebody who doesn't read."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        reasons: dict[tuple[str, str, str], list[str]] = {}
        for done in waiting:
            reasons.setdefault((done.status, done.reason, done.fix), []).append(done.host.name)
        for (status, reason, fix), names in reasons.items():
            print_message(
                f"{fold_names(names)}: {status}: {printable(reason)}" + (f"\n  {printable(fix)}" if fix else ""),
                patience,
            )


def fold_names(names: list[str]) -> str:
    if len(names) == 1:
        return printable(names[0])
    from ipexctl.hosts.nodeset import fold

    return printable(fold(names))

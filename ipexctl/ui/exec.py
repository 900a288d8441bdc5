"""What `ipexctl exec` shows: live lines behind the host's name, identical output folded, or JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import TYPE_CHECKING

from ipexctl.text import printable
from ipexctl.ui.say import say, wants_color

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ipexctl.hosts.host import Host
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

    Where whoever reads us has left (`| head`), `on_reader_gone` is called, and what else comes is dropped.
    """

    def __init__(self, *, on_reader_gone: Callable[[], None], no_color: bool = False) -> None:
        self.reader_gone = False
        self._on_reader_gone = on_reader_gone
        self._locks = {"stdout": threading.Lock(), "stderr": threading.Lock()}
        self._targets = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
        self._tinted = {
            "stdout": wants_color(sys.stdout, os.environ, no_color=no_color),
            "stderr": wants_color(sys.stderr, os.environ, no_color=no_color),
        }
        self._prefixers: dict[tuple[Host, Stream], Prefixer] = {}

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

    def _prefixer(self, host: Host, stream: Stream) -> Prefixer:
        name = printable(host.name)
        color = "36" if stream == "stdout" else "33"
        text = f"\x1b[{color}m{name}:\x1b[0m " if self._tinted[stream] else f"{name}: "
        self._prefixers[host, stream] = Prefixer(text.encode())
        return self._prefixers[host, stream]

    def _write(self, stream: Stream, lines: bytes) -> None:
        if self.reader_gone:
            return
        try:
            with self._locks[stream]:
                self._targets[stream].write(lines)
                self._targets[stream].flush()
        except BrokenPipeError:
            self.reader_gone = True
            self._on_reader_gone()


class HeldOutput:
    """All output, kept until the end: for folding, and for JSON."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[Host, Stream], list[bytes]] = {}

    def sink_for(self, host: Host) -> Callable[[Stream, bytes], None]:
        mine: dict[Stream, list[bytes]] = {"stdout": [], "stderr": []}
        self._pieces[host, "stdout"], self._pieces[host, "stderr"] = mine["stdout"], mine["stderr"]
        return lambda stream, data: mine[stream].append(data)

    def finish(self, host: Host) -> None:
        """Nothing to show before the end."""

    def of(self, host: Host, stream: Stream) -> bytes:
        return b"".join(self._pieces.get((host, stream), ()))


def show_gathered(report: ExecReport, held: HeldOutput) -> None:
    """One heading for all hosts that printed the same."""
    for stream, target in (("stdout", sys.stdout.buffer), ("stderr", sys.stderr.buffer)):
        groups: dict[bytes, list[str]] = {}
        for done in report.hosts:
            if text := held.of(done.host, stream):  # type: ignore[arg-type]
                groups.setdefault(text, []).append(done.host.name)
        for text, names in groups.items():
            heading = f"{_fold(names)} ({len(names)} {'host' if len(names) == 1 else 'hosts'}):\n"
            target.write(heading.encode() + text + (b"" if text.endswith(b"\n") else b"\n"))
        target.flush()


def show_json(report: ExecReport, held: HeldOutput) -> None:
    document = {
        "schema": "ipexctl.exec/1",
        "hosts": [
            {
                "name": done.host.name,
                "address": done.host.address,
                "status": done.status,
                "rc": done.rc,
                "stdout": held.of(done.host, "stdout").decode(errors="replace"),
                "stderr": held.of(done.host, "stderr").decode(errors="replace"),
                "seconds": round(done.seconds, 3),
                "reason": done.reason,
                "fix": done.fix,
            }
            for done in report.hosts
        ],
        "summary": {
            status: sum(done.status == status for done in report.hosts) for status in ("ok", "failed", "unreachable")
        },
        "seconds": round(report.seconds, 3),
    }
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def say_problems(hosts: Iterable[HostExec]) -> None:
    """Who didn't do it and why: one paragraph a reason, its hosts as a node set, what to type next."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for done in hosts:
        if done.status != "ok":
            reasons.setdefault((done.status, done.reason, done.fix), []).append(done.host.name)
    for (status, reason, fix), names in reasons.items():
        say(f"{_fold(names)}: {status}: {printable(reason)}" + (f"\n  {printable(fix)}" if fix else ""))


def _fold(names: list[str]) -> str:
    if len(names) == 1:
        return printable(names[0])
    from ipexctl.hosts.nodeset import fold

    return printable(fold(names))

"""Running a script of `node/` on a host: what it is asked goes in as JSON, what it says comes back as JSON lines.

A script reads one line of JSON from stdin, prints lines of JSON while it works, and ends with one whose `event` is
`done`, or `failed` with `reason` and `fix`. Whatever else it prints is for a person who looks into a failure.
"""

from __future__ import annotations

import functools
import io
import json
from importlib import resources
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from ipexctl.remote.command import Command
from ipexctl.remote.outcome import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session, Stream

_STDERR_KEPT = 8192


def _ignore(event: dict[str, Any]) -> None:
    """Nobody follows."""


@functools.cache
def text_of(script: str) -> str:
    """A script as it is shipped."""
    return (resources.files("ipexctl.node") / f"{script}.py").read_text(encoding="utf-8")


def node_command(python: str, script: str, action: str = "", *, label: str = "") -> Command:
    """The script under that interpreter, isolated from the account's own Python settings."""
    words = (python, "-I", "-c", text_of(script), *([action] if action else []))
    return Command(Command.argv(*words).script, label or f"{script} {action}".strip())


def run_script(
    session: Session,
    python: str,
    script: str,
    action: str,
    request: Mapping[str, Any],
    *,
    stdin: BinaryIO | None = None,
    on_event: Callable[[dict[str, Any]], None] = _ignore,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> dict[str, Any]:
    """Run it to its end and return what its last word says; raises a HostError where that is no `done`.

    `stdin` follows behind the request, for scripts that take bytes.
    """
    command = node_command(python, script, action)
    return run_asked(session, command, request, stdin=stdin, on_event=on_event, timeout=timeout, cancel=cancel)


def run_asked(
    session: Session,
    command: Command,
    request: Mapping[str, Any],
    *,
    stdin: BinaryIO | None = None,
    on_event: Callable[[dict[str, Any]], None] = _ignore,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> dict[str, Any]:
    """As `run_script`, for a command that has such a script somewhere in it."""
    answer = _Answer(on_event)
    line = json.dumps(request).encode() + b"\n"
    fed = io.BytesIO(line) if stdin is None else cast("BinaryIO", _Behind(line, stdin))
    ended = session.run(command, answer.sink, stdin=fed, timeout=timeout, cancel=cancel)
    last = answer.last
    if last is not None and last.get("event") == "done" and ended.ok:
        return last
    if last is not None and last.get("event") == "failed":
        raise HostError(str(last.get("reason") or "it failed without saying why"), str(last.get("fix") or ""))
    said = answer.complaint
    raise HostError(f"{command.label} broke off ({ended})" + (f": {said}" if said else ""))


class _Answer:
    """Collects the lines, and hands on each event that isn't the last word."""

    def __init__(self, on_event: Callable[[dict[str, Any]], None]) -> None:
        self.last: dict[str, Any] | None = None
        self._on_event = on_event
        self._rest = b""
        self._stderr = b""

    def sink(self, stream: Stream, data: bytes) -> None:
        if stream == "stderr":
            self._stderr = (self._stderr + data)[-_STDERR_KEPT:]
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._hear(line)

    def _hear(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            return
        if not isinstance(event, dict):
            return
        if event.get("event") in ("done", "failed"):
            self.last = event
        else:
            self._on_event(event)

    @property
    def complaint(self) -> str:
        """The last line it wrote to stderr: of a traceback, the exception."""
        lines = [line for line in self._stderr.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""


class _Behind(io.RawIOBase):
    """A line, and a stream behind it."""

    def __init__(self, first: bytes, rest: BinaryIO) -> None:
        self._first = first
        self._rest = rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        return self._rest.read(size)

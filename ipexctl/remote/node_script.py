"""Running a script of `node/` on a host: what it is asked goes in as JSON, what it says comes back as JSON lines.

A script reads one line of JSON from stdin, prints lines of JSON while it works, and ends with one whose `event` is
`done`, or `failed` with `reason` and `fix`. Whatever else it prints is for a person who looks into a failure.
"""

from __future__ import annotations

import functools
import io
import json
import shlex
from importlib import resources
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from ipexctl.remote.command import Command
from ipexctl.remote.outcome import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session, Stream

_STDERR_KEPT = 8192
_PYTHONS: Final = "python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8"
_TOO_OLD: Final = 97

_BEGIN: Final = (
    f"import sys\nif sys.version_info < (3, 8): sys.exit({_TOO_OLD})\nexec(compile(sys.argv[1], 'script', 'exec'))"
)

_FIND: Final = """\
for python in {first} {pythons} {envs}; do
  command -v "$python" >/dev/null 2>&1 || continue
  "$python" -I -c {begin} {script}
  code=$?
  [ $code -eq {too_old} ] || exit $code
done
printf '%s\\n' '{{"event": "failed", "reason": "there is no Python 3.8 or newer", "fix": "ipexctl doctor says more"}}'
"""
"""Python is looked for in the same breath: to ask which there are would be a round trip of its own."""


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


@functools.lru_cache(maxsize=64)
def found_command(script: str, python: str, home: str, label: str) -> Command:
    """The script under that interpreter, else under the first that is found and new enough."""
    quoted = shlex.quote(home)
    envs = (
        f'"$HOME"{shlex.quote(home[1:])}/envs/*/bin/python' if home.startswith("~/") else f"{quoted}/envs/*/bin/python"
    )
    text = _FIND.format(
        first=shlex.quote(python) if python else "",
        pythons=_PYTHONS,
        envs=envs,
        begin=shlex.quote(_BEGIN),
        script=shlex.quote(text_of(script)),
        too_old=_TOO_OLD,
    )
    return Command(text, label)


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
    before: bytes = b"",
    stdin: BinaryIO | None = None,
    on_event: Callable[[dict[str, Any]], None] = _ignore,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> dict[str, Any]:
    """As `run_script`, for a command that has such a script somewhere in it, and reads what is `before` the request."""
    answer = _Answer(on_event)
    line = before + json.dumps(request).encode() + b"\n"
    fed = io.BytesIO(line) if stdin is None else cast("BinaryIO", FeedBehind(line, stdin))
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


class FeedBehind(io.RawIOBase):
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

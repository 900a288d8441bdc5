"""A fake session with fixed answers, for unit tests. It proves nothing about ssh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ipexctl.hosts.host import Host
from ipexctl.node.common.frames import StreamName
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.command import Command
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import CommandEnd, Readable, Session

Sink = Callable[[StreamName, bytes], None]


@dataclass
class FakeSession(Session):
    """Prints `stdout` and `stderr` for any command, then ends as told."""

    host: Host
    stdout: bytes = b""
    stderr: bytes = b""
    ended: CommandEnd = field(default_factory=lambda: CommandEnd(0))
    error: HostError | None = None
    commands: list[str] = field(default_factory=list)
    closed: bool = False

    is_login = False

    def _run(self, command: Command, sink: Sink, stdin: Readable | None, deadline: Deadline) -> CommandEnd:
        self.commands.append(command.script)
        if self.error:
            raise self.error
        return self.answer(command, sink, stdin)

    def answer(self, command: Command, sink: Sink, stdin: Readable | None) -> CommandEnd:
        """A subclass answers otherwise."""
        if self.stdout:
            sink("stdout", self.stdout)
        if self.stderr:
            sink("stderr", self.stderr)
        return self.ended

    def close(self) -> None:
        self.closed = True

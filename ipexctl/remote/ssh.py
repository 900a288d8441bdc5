"""A session over ssh: one connection, a channel for each command, tuned for short commands and long output."""

from __future__ import annotations

import contextlib
import secrets
import signal
import threading
import time
from typing import TYPE_CHECKING, BinaryIO

import paramiko

from ipexctl.remote.command import MAX_LINE, Command, FenceFilter, end_session_script, login_line
from ipexctl.remote.dial import DEAD_AFTER
from ipexctl.remote.jump import ProxySocket
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.session import Ended

if TYPE_CHECKING:
    from collections.abc import Callable

    import fabric

    from ipexctl.hosts.host import Host
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Stream

GRACE = 2.0
"""Seconds between TERM and KILL for what a cancelled command has left."""

_READ = 1 << 20
_SEND = 1 << 18
_PATIENCE = 6.0


class SshSession:
    """One connection to one host; each command is a channel of it."""

    def __init__(self, host: Host, connection: fabric.Connection) -> None:
        self.host = host
        self._connection = connection
        self._transport: paramiko.Transport = connection.client.get_transport()

    @property
    def server_key(self) -> tuple[str, bytes]:
        key = self._transport.get_remote_server_key()
        return key.get_name(), key.asbytes()

    def run(
        self,
        command: Command,
        sink: Callable[[Stream, bytes], None],
        *,
        stdin: BinaryIO | None = None,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> Ended:
        if cancel is not None and cancel.thrown:
            raise Cancelled("stopped before it began")
        nonce = secrets.token_hex(8)
        line = login_line(command, nonce)
        if len(line) > MAX_LINE:
            raise HostError(
                f"the command is {len(line) // 1024} KiB long; a host takes 128",
                "put it into a file and push that",
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        channel = self._open_channel(line, timeout)
        try:
            if stdin is None:
                channel.shutdown_write()
            else:
                threading.Thread(target=_pump, args=(stdin, channel), daemon=True).start()
            return self._follow(_Reader(channel, sink, nonce), deadline, timeout, cancel)
        finally:
            channel.close()

    def _open_channel(self, line: str, timeout: float | None) -> paramiko.Channel:
        try:
            channel = self._transport.open_session(timeout=min(timeout or DEAD_AFTER, DEAD_AFTER))
            channel.exec_command(line.encode())
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise _lost(error) from None
        return channel

    def _follow(self, reader: _Reader, deadline: float | None, timeout: float | None, cancel: Cancel | None) -> Ended:
        if cancel is None:
            return self._until_end(reader, deadline, timeout, None)
        with cancel.waking(reader.wake.set):
            return self._until_end(reader, deadline, timeout, cancel)

    def _until_end(
        self, reader: _Reader, deadline: float | None, timeout: float | None, cancel: Cancel | None
    ) -> Ended:
        while True:
            if cancel is not None and cancel.thrown:
                raise Cancelled(f"stopped{self._end_processes(reader)}")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimedOut(
                    f"not finished within {timeout:g} s{self._end_processes(reader)}",
                    "--timeout S gives it longer",
                )
            if reader.read():
                continue
            if reader.at_end:
                return self._ended(reader, left)
            reader.wake.wait(left)

    def _ended(self, reader: _Reader, left: float | None) -> Ended:
        channel = reader.channel
        channel.status_event.wait(left if left is not None else DEAD_AFTER)
        if channel.exit_status >= 0 and reader.fenced:
            return Ended(channel.exit_status)
        by: str | None = getattr(channel, "ended_by", None)
        if by and reader.fenced:
            return Ended(128 + getattr(signal, f"SIG{by}", 0), by)
        if not self._transport.is_active() or channel.exit_status < 0:
            raise _lost(self._transport.get_exception())
        said = reader.noise.decode(errors="replace").strip().splitlines()
        raise HostError(
            f"the login shell never ran our command (exit code {channel.exit_status}"
            + (f"; it said: {said[-1].strip()})" if said else ")"),
            "is a shell set for this account? does it end early for commands without a terminal?",
        )

    def _end_processes(self, reader: _Reader) -> str:
        """End what the command has started there; returns what to add to the sentence, if some of it stays."""
        script = end_session_script(reader.session_id, GRACE)
        answer = b""
        try:
            nonce = secrets.token_hex(8)
            channel = self._transport.open_session(timeout=_PATIENCE)
            with channel:
                channel.settimeout(GRACE + _PATIENCE)
                channel.exec_command(login_line(Command(script, "end"), nonce).encode())
                fence = FenceFilter(nonce)
                while data := channel.recv(4096):
                    answer += fence.feed(data)
        except (paramiko.SSHException, EOFError, OSError):
            return "; the connection was lost before its processes could be ended"
        left = answer.strip()
        return (
            "" if left == b"0" else f"; {left.decode(errors='replace') or 'some'} of its processes could not be ended"
        )

    def close(self) -> None:
        self._connection.close()
        sock = self._transport.sock
        if isinstance(sock, ProxySocket):
            sock.close()


class _Reader:
    """One channel's two streams, behind their fences, with one event for everything that can happen to it."""

    def __init__(self, channel: paramiko.Channel, sink: Callable[[Stream, bytes], None], nonce: str) -> None:
        self.channel = channel
        self.wake = threading.Event()
        self._sink = sink
        self._out = FenceFilter(nonce)
        self._err = FenceFilter(nonce)
        channel.in_buffer.set_event(self.wake)
        channel.in_stderr_buffer.set_event(self.wake)

    @property
    def fenced(self) -> bool:
        return self._out.passed

    @property
    def noise(self) -> bytes:
        return self._err.noise or self._out.noise

    @property
    def session_id(self) -> int | None:
        return int(self._out.tag) if self._out.tag.isdigit() else None

    @property
    def at_end(self) -> bool:
        channel = self.channel
        over = channel.eof_received or channel.closed
        return bool(over) and not channel.recv_ready() and not channel.recv_stderr_ready()

    def read(self) -> bool:
        """Hand on what has arrived; False where nothing had."""
        channel, moved = self.channel, False
        if channel.recv_ready():
            moved = True
            if data := self._out.feed(channel.recv(_READ)):
                self._sink("stdout", data)
        if channel.recv_stderr_ready():
            moved = True
            if data := self._err.feed(channel.recv_stderr(_READ)):
                self._sink("stderr", data)
        return moved


def _pump(source: BinaryIO, channel: paramiko.Channel) -> None:
    """Feed a command. Where it stops reading early, its exit code tells the rest."""
    with contextlib.suppress(OSError, EOFError, ValueError):
        while data := source.read(_SEND):
            channel.sendall(data)
    with contextlib.suppress(OSError, EOFError):
        channel.shutdown_write()


def _lost(error: Exception | None) -> Unreachable:
    detail = f" ({error})" if error and str(error) else ""
    return Unreachable(f"the connection was lost{detail}", "check the machine and the network, then run it again")

"""A session over ssh: one connection, a channel for each command, tuned for short commands and long output."""

from __future__ import annotations

import contextlib
import secrets
import signal
import threading
import time
from typing import TYPE_CHECKING, BinaryIO

import paramiko

from ipexctl.remote import tcp as dial
from ipexctl.remote.command import MAX_LINE, Command, FenceFilter, end_session_script, login_line
from ipexctl.remote.deadline import Deadline
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.proxy_jump import close_tunnel
from ipexctl.remote.session import CommandTimes, Ended

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
_GLANCE = 0.1
"""Seconds between two tries to open a channel beside others."""
_TRIES = 3
"""More, where no others are seen: they may be about to open theirs."""
_BROKEN = (paramiko.SSHException, EOFError, OSError)


class _NoChannel(HostError):
    """sshd opens no further one on a connection that is well."""


class SshSession(CommandTimes):
    """One connection to one host; each command is a channel of it."""

    def __init__(self, host: Host, connection: fabric.Connection) -> None:
        self.host = host
        self._connection = connection
        self._transport: paramiko.Transport = connection.client.get_transport()
        self._turn = threading.Condition()
        self._at_work = 0
        """Commands under way."""
        self._ended_so_far = 0

    @property
    def server_key(self) -> tuple[str, bytes]:
        try:
            key = self._transport.get_remote_server_key()
        except _BROKEN as error:
            raise _lost(error) from None
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
        with self._telling(command):
            return self._run(command, sink, stdin, timeout, cancel)

    def _run(
        self,
        command: Command,
        sink: Callable[[Stream, bytes], None],
        stdin: BinaryIO | None,
        timeout: float | None,
        cancel: Cancel | None,
    ) -> Ended:
        deadline = Deadline(timeout, cancel)
        if deadline.cancelled:
            raise Cancelled("stopped before it began")
        nonce = secrets.token_hex(8)
        line = login_line(command, nonce)
        if len(line) > MAX_LINE:
            size = len(line) // 1024
            raise HostError(f"the command is {size} KiB long; a host takes 128", "put it into a file and push that")
        channel = self._opened(line, deadline)
        reader = _Reader(channel, sink, nonce)
        try:
            _feed(channel, stdin)
            return self._until_end(reader, deadline)
        except (Cancelled, TimedOut) as early:
            raise type(early)(early.reason + self._end_processes(reader), early.advice, option=early.option) from None
        except HostError:
            raise
        except BaseException:
            self._end_processes(reader)
            raise
        finally:
            with contextlib.suppress(*_BROKEN):
                channel.close()
            with self._turn:
                self._at_work -= 1
                self._ended_so_far += 1
                self._turn.notify_all()

    def _opened(self, line: str, deadline: Deadline) -> paramiko.Channel:
        """A channel that runs it; where sshd allows no more at a time (MaxSessions), once another of ours has ended."""
        alone = 0
        while True:
            ended = self._ended_so_far
            try:
                channel = self._open_channel(line, deadline)
            except _NoChannel:
                with self._turn:
                    alone += not self._at_work and ended == self._ended_so_far
                    if alone > _TRIES:
                        raise
                    self._turn.wait(deadline.left(_GLANCE))
                if deadline.cancelled:
                    raise Cancelled("stopped before it began") from None
                if deadline.over:
                    raise _too_slow(deadline) from None
            else:
                with self._turn:
                    self._at_work += 1
                return channel

    def _open_channel(self, line: str, deadline: Deadline) -> paramiko.Channel:
        """Neither opening nor exec waits with a limit of its own; a sshd that doesn't answer loses the connection."""
        limit = Deadline(deadline.left(dial.DEAD_AFTER), deadline.cancel)
        channel = None
        try:
            with limit.closing(self._transport.close):
                channel = self._transport.open_session(timeout=3600)
                channel.exec_command(line.encode())
        except _BROKEN as error:
            if deadline.cancelled:
                raise Cancelled("stopped before it began") from None
            if deadline.over:
                raise _too_slow(deadline) from None
            if self._transport.is_active() and isinstance(error, paramiko.SSHException):
                raise _refused(opened=channel is not None) from None
            raise _lost(error) from None
        return channel

    def _until_end(self, reader: _Reader, deadline: Deadline) -> Ended:
        pulse = _Pulse(self._transport)
        with deadline.cancel.waking(reader.wake.set):
            while True:
                if deadline.cancelled:
                    raise Cancelled("stopped")
                if deadline.over:
                    raise _too_slow(deadline)
                if reader.read():
                    continue
                if reader.at_end:
                    return self._ended(reader)
                if not reader.wake.wait(deadline.left(dial.DEAD_AFTER / 2)):
                    pulse.feel()

    def _ended(self, reader: _Reader) -> Ended:
        channel = reader.channel
        if channel.exit_status >= 0 and reader.fenced:
            return Ended(channel.exit_status)
        by: str | None = getattr(channel, "ended_by", None)
        if by and reader.fenced:
            return Ended(128 + getattr(signal, f"SIG{by}", 0), by)
        if channel.exit_status < 0:
            raise _lost(self._transport.get_exception())
        said = reader.noise.decode(errors="replace").strip().splitlines()
        raise HostError(
            f"the login shell never ran our command (exit code {channel.exit_status}"
            + (f"; it said: {said[-1].strip()})" if said else ")"),
            "is a shell set for this account? does it end early for commands without a terminal?",
        )

    def _end_processes(self, reader: _Reader) -> str:
        """End what the command has started there; returns what to add to the sentence, if some of it stays."""
        nonce = secrets.token_hex(8)
        fence = FenceFilter(nonce)
        line = login_line(Command(end_session_script(reader.session_id, GRACE), "end"), nonce)
        answer = b""
        try:
            with Deadline(GRACE + _PATIENCE).closing(self._transport.close):
                channel = self._transport.open_session(timeout=3600)
                channel.exec_command(line.encode())
                while data := channel.recv(4096):
                    answer += fence.feed(data)
                channel.close()
        except _BROKEN:
            answer = b""
        left = answer.decode(errors="replace").strip()
        if left == "0":
            return ""
        return f"; {left} of its processes could not be ended" if left else "; its processes may still be running there"

    def close(self) -> None:
        with contextlib.suppress(*_BROKEN):
            self._connection.close()
        close_tunnel(self._transport.sock)


class _Reader:
    """One channel's two streams, behind their fences, with one event for everything that can happen to it."""

    def __init__(self, channel: paramiko.Channel, sink: Callable[[Stream, bytes], None], nonce: str) -> None:
        self.channel = channel
        self.wake = threading.Event()
        self._sink = sink
        self._out = FenceFilter(nonce)
        self._err = FenceFilter(nonce)
        channel.wake = self.wake  # type: ignore[attr-defined]  # for the exit status, see handshake
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
        """The streams may end long before the command does: only with its status, or without a channel, is it over."""
        channel = self.channel
        over = channel.closed or (channel.eof_received and channel.status_event.is_set())
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


class _Pulse:
    """Whether the sshd of a silent host still answers: behind a bastion, or when frozen, TCP can't tell."""

    def __init__(self, transport: paramiko.Transport) -> None:
        self._transport = transport
        self._asked_at: float | None = None

    def feel(self) -> None:
        """Ask, if no answer is out; raise where one is out for too long."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            threading.Thread(target=self._ask, name="pulse", daemon=True).start()
        elif time.monotonic() - self._asked_at > dial.DEAD_AFTER:
            raise _lost(None)

    def _ask(self) -> None:
        with contextlib.suppress(*_BROKEN):
            self._transport.global_request("keepalive@openssh.com", wait=True)
            self._asked_at = None


def _feed(channel: paramiko.Channel, stdin: BinaryIO | None) -> None:
    if stdin is not None:
        threading.Thread(target=_pump, args=(stdin, channel), daemon=True).start()
        return
    with contextlib.suppress(*_BROKEN):
        channel.shutdown_write()


def _pump(source: BinaryIO, channel: paramiko.Channel) -> None:
    """Feed a command. Where it stops reading early, its exit code tells the rest."""
    with contextlib.suppress(ValueError, *_BROKEN):
        while data := source.read(_SEND):
            channel.sendall(data)
    with contextlib.suppress(*_BROKEN):
        channel.shutdown_write()


def _too_slow(deadline: Deadline) -> TimedOut:
    return TimedOut(f"not finished within {deadline.seconds:g} s", option="--timeout S gives it longer")


def _refused(*, opened: bool) -> HostError:
    if opened:
        return HostError("sshd there refuses to run commands", "is this account allowed more than sftp or forwarding?")
    return _NoChannel(
        "sshd there opens no session on our connection", "MaxSessions of its sshd_config, or its process limit"
    )


def _lost(error: Exception | None) -> Unreachable:
    detail = f" ({error})" if error and str(error) else ""
    return Unreachable(f"the connection was lost{detail}", "check the machine and the network, then run it again")

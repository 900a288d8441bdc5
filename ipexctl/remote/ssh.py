"""Open a session over ssh: one connection with one channel per command, tuned for short commands and long output.

If sshd opens no further channel (MaxSessions), the command gets another connection, because two commands may wait for
each other. After a minute of silence, sshd must answer a keepalive within another minute: this detects a host that is
frozen, while TCP detects one that is gone.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from typing import Final

import fabric
import paramiko

from ipexctl import limits
from ipexctl.hosts.host import Host
from ipexctl.limits import CANCEL_CLEANUP, CANCEL_GRACE
from ipexctl.node.common.frames import StreamName
from ipexctl.remote.auth import KeyRing
from ipexctl.remote.cancel import Cancel, Deadline
from ipexctl.remote.command import Command, end_session_script
from ipexctl.remote.handshake import Handshake, connect
from ipexctl.remote.host_keys import HostKeys
from ipexctl.remote.outcome import Cancelled, HostError, Unreachable
from ipexctl.remote.session import (
    MORE_SESSIONS,
    OVERTIME,
    RETRY_INTERVALS,
    CommandEnd,
    LoginCommand,
    OutputCollector,
    Readable,
    Session,
    connection_lost,
    copy_stdin,
    ending,
    timeout_error,
)
from ipexctl.remote.tcp import DialedSocket

_READ_SIZE: Final = 1 << 20
_CONNECTION_ERRORS = (paramiko.SSHException, EOFError, OSError)


class _NoChannel(HostError):
    """sshd opens no further channel on a working connection."""


class SshSession(Session):
    def __init__(
        self, host: Host, connection: fabric.Connection, connect_again: Callable[[Cancel], fabric.Connection]
    ) -> None:
        self.host = host
        self._connect_again = connect_again
        self._transport: paramiko.Transport = connection.client.get_transport()
        self._connections = {self._transport: connection}
        self._open_channels: set[paramiko.Channel] = set()

    def is_limited_to_one(self) -> bool:
        """True if sshd refuses a second session now. Tries one; False if the connection is lost meanwhile."""
        try:
            self._transport.open_session(timeout=limits.PROBE_REST).close()
        except paramiko.ChannelException:
            return True
        except _CONNECTION_ERRORS:
            return False
        return False

    def _run(
        self, command: Command, sink: Callable[[StreamName, bytes], None], stdin: Readable | None, deadline: Deadline
    ) -> CommandEnd:
        """Run the command to its end, and tell a person if the login shell does not start it."""
        call = LoginCommand(command, sink, deadline)
        with self.slow_start(call):
            return self._run_call(call, stdin, deadline)

    def _run_call(self, call: LoginCommand, stdin: Readable | None, deadline: Deadline) -> CommandEnd:
        """Start the command on a channel, feed its stdin, and forward its output to its end. The channel is closed
        afterwards."""
        channel = self._start(call.line, deadline)
        try:
            with ending(lambda: self._end_processes(call, channel)):
                if stdin is not None:
                    copy_stdin(stdin, channel.sendall, channel.shutdown_write, _CONNECTION_ERRORS)
                else:
                    with contextlib.suppress(*_CONNECTION_ERRORS):
                        channel.shutdown_write()
                return self._wait_for_end(_OutputReader(channel, call))
        finally:
            self._close_channel(channel)

    def _start(self, line: str, deadline: Deadline) -> paramiko.Channel:
        """Start the command on the first connection on which sshd opens a channel. If none does, wait and retry; make
        another connection if commands run on the present ones, or when all retries failed."""
        for seconds in (*RETRY_INTERVALS, 0.0):
            for transport in list(self._connections):
                if transport is self._transport or transport.is_active():
                    with contextlib.suppress(_NoChannel):
                        return self._open_channel(transport, line, deadline)
            if self._open_channels:
                break
            deadline.cancel.sleep(seconds)
        try:
            connection = self._connect_again(deadline.cancel)
        except Unreachable as error:
            problem = f"its sshd opens no further session on this connection, and another one fails: {error.reason}"
            raise HostError(problem, MORE_SESSIONS) from None
        further: paramiko.Transport = connection.client.get_transport()
        self._connections[further] = connection
        return self._open_channel(further, line, deadline)

    def _open_channel(self, transport: paramiko.Transport, line: str, deadline: Deadline) -> paramiko.Channel:
        """Open the channel and run the command. If sshd doesn't answer in time, close the connection. The command may
        run before sshd answers, so a cancelled call waits a moment for the answer: only then can its processes be
        ended."""
        limit = Deadline(deadline.left(limits.PATIENCE), deadline.cancel)
        channel = None
        try:
            with limit.closing(transport.close):
                channel = transport.open_session(timeout=3600)
            if deadline.cancelled:
                raise Cancelled("stopped before it began")
            answer = Deadline(limit.left())
            with deadline.cancel.waking(lambda: answer.limit(CANCEL_GRACE)), answer.closing(transport.close):
                channel.exec_command(line.encode())
        except _CONNECTION_ERRORS as error:
            if deadline.cancelled:
                raise Cancelled("stopped before it began") from None
            if deadline.over:
                raise timeout_error(deadline) from None
            if transport.is_active() and isinstance(error, paramiko.SSHException):
                raise _refused(opened=channel is not None) from None
            raise connection_lost("its sshd opens no session" if limit.over else error) from None
        self._open_channels.add(channel)
        return channel

    def _close_channel(self, channel: paramiko.Channel) -> None:
        with contextlib.suppress(*_CONNECTION_ERRORS):
            channel.close()
        self._open_channels.discard(channel)

    def _wait_for_end(self, reader: _OutputReader) -> CommandEnd:
        """Forward output until the command and both streams have ended. Raises a Cancelled, a TimedOut, or an
        Unreachable if the connection is lost."""
        keepalive = _Keepalive(reader.channel.get_transport())
        overtime: Deadline | None = None
        with reader.call.deadline.cancel.waking(reader.wake.set):
            while True:
                deadline = reader.call.deadline
                reader.wake.clear()  # at the end of a stream, before the exit status, paramiko leaves it set
                if deadline.cancelled:
                    raise Cancelled("stopped")
                overtime = (overtime or Deadline(OVERTIME)) if deadline.over else None
                is_over = overtime is not None and overtime.over
                if reader.forward_output() and not is_over:
                    continue
                if reader.at_end:
                    return self._result(reader)
                if is_over:
                    raise reader.call.timeout_error()
                if overtime is not None:
                    reader.wake.wait(overtime.left())
                elif not reader.wake.wait(deadline.left(limits.PATIENCE / 2)):
                    keepalive.check()

    def _result(self, reader: _OutputReader) -> CommandEnd:
        """Return how the command ended. Raises an Unreachable if neither an exit status nor a signal arrived."""
        channel = reader.channel
        signal_name: str | None = getattr(channel, "ended_by", None)
        if channel.exit_status < 0 and not (signal_name and reader.call.has_started):
            raise connection_lost(channel.get_transport().get_exception())
        number = getattr(signal, f"SIG{signal_name}", 0)
        return reader.call.end(128 + number, signal_name) if signal_name else reader.call.end(channel.exit_status)

    def _end_processes(self, of: LoginCommand, its_channel: paramiko.Channel) -> str:
        """End the processes of a command, and return the number of survivors as text, empty if it is unknown."""
        output = OutputCollector()
        deadline = Deadline(CANCEL_GRACE + CANCEL_CLEANUP if of.has_started else CANCEL_GRACE)
        call = LoginCommand(Command(end_session_script(of.session_id), "end"), output.sink, deadline)
        with contextlib.suppress(HostError):
            if of.session_id is None:  # the script then ends the other processes of this connection
                channel = self._open_channel(its_channel.get_transport(), call.line, deadline)
            else:
                channel = self._start(call.line, deadline)
            try:
                self._wait_for_end(_OutputReader(channel, call))
            finally:
                self._close_channel(channel)
        self.is_stuck = not (of.has_started or output.stdout)
        return output.stdout.decode(errors="replace").strip()

    def close(self) -> None:
        """Close all connections of the session."""
        for transport, connection in list(self._connections.items()):
            with contextlib.suppress(*_CONNECTION_ERRORS):
                connection.close()
            transport.sock.close()


class SshSessions:
    """Opens the ssh sessions of one call; keys and known_hosts are read once for all hosts."""

    def __init__(self, host_keys: HostKeys) -> None:
        self._host_keys, self._keys = host_keys, KeyRing()

    def open(self, host: Host, dialed: DialedSocket, dial: Callable[[Cancel], DialedSocket]) -> SshSession:
        """Return a session over the connection that was dialed. `dial` makes further ones."""
        return SshSession(host, self._connect(host, dialed), lambda cancel: self._connect(host, dial(cancel)))

    def _connect(self, host: Host, dialed: DialedSocket) -> fabric.Connection:
        return connect(Handshake(host, dialed.endpoint, dialed.sock, self._host_keys, self._keys, dialed.deadline))


class _OutputReader:
    """Reads a channel's stdout and stderr. Any event of the channel sets `wake`."""

    def __init__(self, channel: paramiko.Channel, call: LoginCommand) -> None:
        self.channel = channel
        self.call = call
        self.wake = threading.Event()
        channel.wake = self.wake  # type: ignore[attr-defined]  # for the exit status, see handshake.py
        channel.in_buffer.set_event(self.wake)
        channel.in_stderr_buffer.set_event(self.wake)

    @property
    def at_end(self) -> bool:
        """True once the exit status has also arrived, because streams may end long before the command."""
        channel = self.channel
        over = channel.closed or (channel.eof_received and channel.status_event.is_set())
        return bool(over) and not channel.recv_ready() and not channel.recv_stderr_ready()

    def forward_output(self) -> bool:
        """Pass on what has arrived; return False if nothing has."""
        channel, has_data = self.channel, False
        if channel.recv_ready():
            has_data = True
            self.call.forward("stdout", _received(channel.recv))
        if channel.recv_stderr_ready():
            has_data = True
            self.call.forward("stderr", _received(channel.recv_stderr))
        return has_data


def _received(receive: Callable[[int], bytes]) -> bytes:
    """Return what `receive` reads. Raises an Unreachable if the connection is gone; reading may be the first to see
    that, because it also sends to open the window again."""
    try:
        return receive(_READ_SIZE)
    except _CONNECTION_ERRORS as error:
        raise connection_lost(error) from None


_MOST_CHECKS: Final = 2
"""Checks for an answer to a keepalive: together PATIENCE seconds."""


class _Keepalive:
    def __init__(self, transport: paramiko.Transport) -> None:
        self._transport = transport
        self._answered = threading.Event()
        self._checks = 0
        """Since the last request was sent."""

    def check(self) -> None:
        """Call it after PATIENCE / 2 of silence. Send a request unless one is pending; raise if it was pending at the
        check before, too. The clock would also count time in which this program got no processor: then all hosts seem
        lost at once, with their answers in the sockets."""
        if not self._checks or self._answered.is_set():
            self._answered, self._checks = threading.Event(), 0
            threading.Thread(target=self._send_request, args=(self._answered,), name="keepalive", daemon=True).start()
        elif self._checks == _MOST_CHECKS:
            raise connection_lost()
        self._checks += 1

    def _send_request(self, answered: threading.Event) -> None:
        with contextlib.suppress(*_CONNECTION_ERRORS):
            self._transport.global_request("keepalive@openssh.com", wait=True)
            answered.set()


def _refused(*, opened: bool) -> HostError:
    """Return the error for a channel that sshd did not open, or on which it does not run a command."""
    if opened:
        return HostError(
            "sshd there refuses to run commands", "check whether this account may do more than sftp or forwarding"
        )
    return _NoChannel("its sshd opens no session on this connection", MORE_SESSIONS)

"""Open TCP connections for ssh: small messages are sent at once, and a dead peer is detected within 30 seconds.

The resolver supports neither time limits nor cancellation, so it runs in a thread that may be left behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from ipexctl import limits
from ipexctl.node.common import macos
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.outcome import Cancelled, Unreachable
from ipexctl.remote.ssh_config import Endpoint

_POLL_INTERVAL = 0.2

_READ_AHEAD = 1 << 17
"""Bytes per read: four of ssh's largest packets."""

_QUICK_ACKS = 96


class DialedSocket(NamedTuple):
    """An open socket, and the rest of what the ssh handshake needs."""

    endpoint: Endpoint
    sock: socket.socket
    deadline: Deadline


def connect_tcp(hostname: str, port: int, deadline: Deadline, family: int = socket.AF_UNSPEC) -> TunedSocket:
    """Return a socket connected to the first address that answers. Raises an Unreachable or a Cancelled."""
    infos = _addresses(hostname, port, family, deadline)
    error: OSError = OSError("no address")
    for index, (address_family, _, _, _, address) in enumerate(infos):
        left = deadline.left()
        share = None if left is None else max(0.1, left / (len(infos) - index))
        try:
            return _connect(address_family, address, Deadline(share, deadline.cancel))
        except OSError as caught:
            error = caught
    raise connection_refusal(error, port, deadline) from None


def _addresses(hostname: str, port: int, family: int, deadline: Deadline) -> list[Any]:
    """Return the addresses of a name, as getaddrinfo does. Raises an Unreachable if there are none in time, and a
    Cancelled."""
    with contextlib.suppress(OSError, UnicodeError):
        # Bytes, because for text Python imports its codec of international names.
        return socket.getaddrinfo(hostname.encode("ascii"), port, family, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    infos: list[Any] = []
    resolved = threading.Event()

    def resolve() -> None:
        with contextlib.suppress(OSError, UnicodeError):
            infos.extend(socket.getaddrinfo(hostname, port, family, socket.SOCK_STREAM))
        resolved.set()

    threading.Thread(target=resolve, name=f"resolve-{hostname}", daemon=True).start()
    with deadline.cancel.waking(resolved.set):
        in_time = resolved.wait(deadline.left())
    if deadline.cancelled:
        raise Cancelled("stopped before it was connected")
    if not infos:
        raise Unreachable(
            f"the name {hostname} doesn't resolve" + ("" if in_time else f" (waited {deadline.seconds:g} s)"),
            "check the spelling, or give the address: address=… in the hostfile, ansible_host in an inventory, "
            "HostName in ~/.ssh/config",
        )
    return infos


def _connect(family: int, address: Any, deadline: Deadline) -> TunedSocket:
    """Return a socket connected to one address. Raises an OSError, a TimeoutError at the deadline, and a Cancelled."""
    sock = TunedSocket(family)
    try:
        sock.setblocking(False)
        status = sock.connect_ex(address)
        if status not in (0, errno.EINPROGRESS):
            raise OSError(status, os.strerror(status))
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        while not poll.poll(1000 * (deadline.left(_POLL_INTERVAL) or 0)):
            if deadline.cancelled:
                raise Cancelled("stopped before it was connected")
            if deadline.over:
                raise TimeoutError
        error_number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error_number:
            raise OSError(error_number, os.strerror(error_number))
        sock.setblocking(True)
        _tune(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in macos.silence_options(limits.DEAD_AFTER // 2, 5, 3, limits.DEAD_AFTER):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def connection_refusal(error: OSError, port: int, deadline: Deadline) -> Unreachable:
    """Return the error for a port that could not be reached."""
    if isinstance(error, ConnectionRefusedError):
        return Unreachable(
            f"port {port} refuses connections",
            "check that sshd is running there, and on this port",
            option="--port, or port= in the hostfile",
        )
    if isinstance(error, TimeoutError):
        return Unreachable(
            f"no answer on port {port} within {deadline.seconds:g} s",
            "check whether the machine is off or a firewall drops the packets",
            option="for a longer wait: --connect-timeout S",
        )
    return Unreachable(
        f"port {port} can't be reached: {(error.strerror or str(error)).lower()}",
        "check the network between this machine and that host",
    )


def silent_login(port: int, deadline: Deadline, try_by_hand: str) -> Unreachable:
    """Return the error for a port that answered and then sent nothing, which only `try_by_hand` can explain."""
    reason = f"port {port} accepts connections, but nothing has come from it for {deadline.seconds:g} s of the login"
    error = Unreachable(reason, try_by_hand)
    error.has_answered = True
    return error


_LONGEST_GREETING = 1 << 16


class TunedSocket(socket.socket):
    """A socket for ssh's small messages. It reads ahead, because Python with a timeout would poll before each piece of
    a message and release the interpreter lock, for which other hosts' threads wait. It acknowledges its first reads at
    once, because Linux delays that by up to 40 ms at every turn of a handshake; the kernel resets the option, so it is
    set again after each of the first reads."""

    _left = _QUICK_ACKS
    on_data: Callable[[], None] | None = None
    """Called for each of the first reads."""

    def __init__(self, family: int = socket.AF_INET) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._buffer = memoryview(bytearray(_READ_AHEAD))
        self._ahead = self._buffer[:0]
        self._before_line = 0
        """Bytes before the first newline; -1 after it."""

    def settimeout(self, seconds: float | None) -> None:
        """Let the kernel enforce the time limit of reads and writes."""
        limit = struct.pack("@ll", *divmod(round((seconds or 0) * 1_000_000), 1_000_000))
        with contextlib.suppress(
            OSError
        ):  # macOS refuses this for a closed connection; the next read reports the closing
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def close(self) -> None:
        """Close; also ends a read in another thread."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)
        super().close()

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return at most `size` bytes, read ahead of time where more had arrived."""
        if not self._ahead:
            self._ahead = self._buffer[: self._receive(flags)]
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return bytes(data)

    def _receive(self, flags: int) -> int:
        """Fill the buffer and return how many bytes arrived. Raises a TimeoutError if none did in time."""
        try:
            count = self.recv_into(self._buffer, 0, flags)
        except BlockingIOError:
            raise TimeoutError from None
        if self._before_line >= 0:
            self._check_greeting(count)
        if count and self._left:
            self._left -= 1
            if self.on_data is not None:
                self.on_data()
            macos.acknowledge_at_once(self)
        return count

    def _check_greeting(self, count: int) -> None:
        """Raise an OSError if the first line is too long: paramiko reads it to its end, and can't be stopped
        meanwhile."""
        self._before_line = -1 if b"\n" in self._buffer[:count].tobytes() else self._before_line + count
        if self._before_line > _LONGEST_GREETING:
            raise OSError(errno.EPROTO, "it sends no line of an sshd")

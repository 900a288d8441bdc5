"""A TCP connection made for ssh: small messages leave at once, and a dead peer is noticed in half a minute."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
from typing import Any

from ipexctl.remote.deadline import Deadline
from ipexctl.remote.outcome import Cancelled, Unreachable

DEAD_AFTER = 30
"""Seconds without a sign of the peer's kernel before the connection counts as lost."""

_GLANCE = 0.2
"""Seconds between two looks at the switch while a connection is being made."""

_PING_PONG = 96
"""How many reads are acknowledged at once: the handshake and the first commands. A stream needs no help."""


def connect_tcp(hostname: str, port: int, deadline: Deadline, family: int = socket.AF_UNSPEC) -> TunedSocket:
    """Connect, trying every address the name has; raises Unreachable with a sentence a user can act on."""
    found = _addresses(hostname, port, family, deadline)
    error: OSError = OSError("no address")
    for index, (kind, _, _, _, address) in enumerate(found):
        left = deadline.left()
        share = None if left is None else max(0.1, left / (len(found) - index))
        try:
            return _connected(kind, address, Deadline(share, deadline.cancel))
        except OSError as caught:
            error = caught
    raise _refusal(error, port, deadline) from None


def _addresses(hostname: str, port: int, family: int, deadline: Deadline) -> list[Any]:
    """What the name stands for. The resolver knows no time limit and no switch, so it is asked in a thread."""
    with contextlib.suppress(OSError, UnicodeError):
        return socket.getaddrinfo(hostname, port, family, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    found: list[Any] = []
    ended = threading.Event()

    def ask() -> None:
        with contextlib.suppress(OSError, UnicodeError):
            found.extend(socket.getaddrinfo(hostname, port, family, socket.SOCK_STREAM))
        ended.set()

    threading.Thread(target=ask, name=f"resolve-{hostname}", daemon=True).start()
    with deadline.cancel.waking(ended.set):
        in_time = ended.wait(deadline.left())
    if deadline.cancelled:
        raise Cancelled("stopped before it was connected")
    if not found:
        raise Unreachable(
            f"the name {hostname} doesn't resolve" + ("" if in_time else f" (waited {deadline.seconds:g} s)"),
            "check the spelling, or say the address: address=… in the hostfile, ansible_host in an inventory, "
            "HostName in ~/.ssh/config",
        )
    return found


def _connected(kind: int, address: Any, deadline: Deadline) -> TunedSocket:
    sock = TunedSocket(kind, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        begun = sock.connect_ex(address)
        if begun not in (0, errno.EINPROGRESS):
            raise OSError(begun, os.strerror(begun))
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        while not poll.poll(1000 * (deadline.left(_GLANCE) or 0)):
            if deadline.cancelled:
                raise Cancelled("stopped before it was connected")
            if deadline.over:
                raise TimeoutError
        ended = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if ended:
            raise OSError(ended, os.strerror(ended))
        sock.setblocking(True)
        _tune(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", DEAD_AFTER // 2),
        ("TCP_KEEPALIVE", DEAD_AFTER // 2),  # macOS's name for the same
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", DEAD_AFTER * 1000),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _refusal(error: OSError, port: int, deadline: Deadline) -> Unreachable:
    if isinstance(error, ConnectionRefusedError):
        return Unreachable(
            f"port {port} refuses connections",
            "is sshd running there, and on this port?",
            option="--port, or port= in the hostfile",
        )
    if isinstance(error, TimeoutError):
        return Unreachable(
            f"no answer on port {port} within {deadline.seconds:g} s",
            "the machine is off, or a firewall drops the packets",
            option="--connect-timeout gives it longer",
        )
    return Unreachable(
        f"port {port} can't be reached: {(error.strerror or str(error)).lower()}",
        "check the network between this machine and that host",
    )


class TunedSocket(socket.socket):
    """A socket that acknowledges what it reads at once while the two sides still talk in turns.

    Linux delays an acknowledgement up to 40 ms in the hope of sending it along with data; a handshake pays
    that at every turn. The kernel forgets the wish, so it is repeated for the first reads.
    """

    _option: int | None = getattr(socket, "TCP_QUICKACK", None)
    _left = _PING_PONG if _option is not None else 0

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        if self._left and self._option is not None:
            self._left -= 1
            self.setsockopt(socket.IPPROTO_TCP, self._option, 1)
        return data

"""From an open socket to a connection that is logged in: algorithms, host key, login, and why it failed."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import fabric
import paramiko
from paramiko.common import MSG_CHANNEL_REQUEST

from ipexctl.remote.auth import Login, auth_refusal
from ipexctl.remote.jump import ProxySocket
from ipexctl.remote.outcome import Cancelled, Unreachable
from ipexctl.remote.ssh_config import by_hand

if TYPE_CHECKING:
    from ipexctl.hosts.host import Host
    from ipexctl.remote.auth import KeyRing
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.host_keys import HostKeys
    from ipexctl.remote.ssh_config import Endpoint

_LATE = 0.3
"""How long before the deadline an error counts as its work: paramiko's own clocks tick in tenths."""

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


@dataclass(frozen=True, slots=True)
class Handshake:
    """One host's socket and what is needed to log in over it, within `timeout` seconds since dialling began."""

    host: Host
    endpoint: Endpoint
    sock: socket.socket
    host_keys: HostKeys
    keys: KeyRing
    timeout: float
    deadline: float


def connect(to: Handshake, cancel: Cancel) -> fabric.Connection:
    """Shake hands, check the host key, log in. Raises a HostError with what to type next; the socket is closed."""

    def hang_up() -> None:
        with contextlib.suppress(OSError):
            to.sock.shutdown(socket.SHUT_RDWR)

    with cancel.waking(hang_up):
        try:
            return _connect(to)
        except Unreachable:
            if cancel.thrown:
                raise Cancelled("stopped before it was connected") from None
            raise


def _connect(to: Handshake) -> fabric.Connection:
    endpoint = to.endpoint
    left = max(0.5, to.deadline - time.monotonic())
    login = Login(endpoint, to.keys, named=to.host.identity)

    def transport(sock: socket.socket, **options: Any) -> paramiko.Transport:
        made = _Transport(sock, **options)
        _prefer(made.get_security_options(), to.host_keys.preferred_types(endpoint))
        return made

    connection = fabric.Connection(
        endpoint.hostname,
        user=endpoint.user,
        port=endpoint.port,
        config=_bare_config(),
        connect_kwargs={
            "sock": to.sock,
            "transport_factory": transport,
            "auth_strategy": login,
            "timeout": left,
            "banner_timeout": left,
            "auth_timeout": max(left, 5.0),
        },
    )
    connection.client.set_missing_host_key_policy(_CheckHostKey(to))
    try:
        connection.open()
        if not connection.client.get_transport().is_authenticated():
            raise Unreachable(
                f"it wants a second factor of {endpoint.user}",
                "open the way yourself (ControlMaster in ~/.ssh/config) and reach it through ProxyJump",
            )
    except (paramiko.SSHException, EOFError, OSError) as error:
        connection.close()
        to.sock.close()
        raise _why_not(error, to, login) from None
    except BaseException:
        connection.close()
        to.sock.close()
        raise
    return connection


@cache
def _bare_config() -> fabric.Config:
    """No fabric.yaml, no second reading of ssh_config: what a connection needs, the endpoint has."""
    return fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True)


def _prefer(options: paramiko.transport.SecurityOptions, known: tuple[str, ...]) -> None:
    """The fast ciphers first, and first the host key types that we could check."""
    options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)
    wanted = [*known, "rsa-sha2-512", "rsa-sha2-256"] if "ssh-rsa" in known else list(known)
    first = [name for name in wanted if name in options.key_types]
    options.key_types = [*first, *(name for name in options.key_types if name not in first)]


def _note_request(channel: paramiko.Channel, message: paramiko.Message) -> None:
    start = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        channel.ended_by = message.get_text()  # type: ignore[attr-defined]
    message.packet.seek(start)
    paramiko.Channel._handle_request(channel, message)  # type: ignore[attr-defined]


class _Transport(paramiko.Transport):
    """Keeps the one thing paramiko drops: which signal ended a command."""

    _channel_handler_table: ClassVar[dict[int, Any]] = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
        MSG_CHANNEL_REQUEST: _note_request,
    }


class _CheckHostKey(paramiko.MissingHostKeyPolicy):
    """Every key comes here, since the client is given no known_hosts of its own."""

    def __init__(self, to: Handshake) -> None:
        self._to = to

    def missing_host_key(self, client: object, hostname: str, key: paramiko.PKey) -> None:
        del client, hostname
        self._to.host_keys.check(self._to.endpoint, key.get_name(), key.asbytes())


def _why_not(error: Exception, to: Handshake, login: Login) -> Unreachable:
    """What to tell the user of an error that paramiko words for programmers."""
    endpoint, by_ourselves = to.endpoint, f"try by hand: {by_hand(to.host)}"
    if isinstance(error, paramiko.AuthenticationException):
        return auth_refusal(error, endpoint, login)
    if isinstance(to.sock, ProxySocket) and (complaint := to.sock.complaint()):
        through = endpoint.jump or "its ProxyCommand"
        if "open refused by peer" in complaint or "stdio forwarding failed" in complaint.lower():
            return Unreachable(f"{through} can't connect to it", f"is sshd running there? {by_ourselves}")
        return Unreachable(f"no way to it through {through}: {complaint}", by_ourselves)
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return Unreachable(f"the sshd there and we share no algorithm: {error}", by_ourselves)
    if time.monotonic() > to.deadline - _LATE:
        return Unreachable(
            f"port {endpoint.port} accepts connections but says nothing (waited {to.timeout:g} s)",
            "sshd hangs there, or it isn't sshd that listens on this port; --connect-timeout gives it longer",
        )
    return Unreachable(
        f"port {endpoint.port} closed the connection before we were logged in",
        "is it sshd that listens there? its log says why (MaxStartups, DenyUsers, hosts.deny)",
    )

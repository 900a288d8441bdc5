"""From an open socket to a connection that is logged in: algorithms, host key, login, and why it failed."""

from __future__ import annotations

import contextlib
import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import fabric
import paramiko
from paramiko.common import (
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EOF,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_CHANNEL_REQUEST,
    MSG_CHANNEL_WINDOW_ADJUST,
)

from ipexctl.remote.auth import Login, auth_refusal
from ipexctl.remote.outcome import Cancelled, Unreachable
from ipexctl.remote.proxy_jump import ProxySocket, close_tunnel
from ipexctl.remote.ssh_config import by_hand

if TYPE_CHECKING:
    from ipexctl.hosts.host import Host
    from ipexctl.remote.auth import KeyRing
    from ipexctl.remote.deadline import Deadline
    from ipexctl.remote.host_keys import HostKeys
    from ipexctl.remote.ssh_config import Endpoint

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


_TO_A_CHANNEL: Final = frozenset(
    {
        MSG_CHANNEL_WINDOW_ADJUST,
        MSG_CHANNEL_DATA,
        MSG_CHANNEL_EXTENDED_DATA,
        MSG_CHANNEL_EOF,
        MSG_CHANNEL_CLOSE,
        MSG_CHANNEL_REQUEST,
    }
)


@dataclass(frozen=True, slots=True)
class Handshake:
    """One host's socket and what is needed to log in over it, by a clock that runs since the dialling began."""

    host: Host
    endpoint: Endpoint
    sock: socket.socket
    host_keys: HostKeys
    keys: KeyRing
    deadline: Deadline


def connect(to: Handshake) -> fabric.Connection:
    """Shake hands, check the host key, log in. Raises a HostError with what to type next; the socket is closed."""

    def hang_up() -> None:
        with contextlib.suppress(OSError):
            to.sock.shutdown(socket.SHUT_RDWR)

    login = Login(to.endpoint, to.keys, to.deadline, named=to.host.identity)
    connection = _connection(to, login)
    try:
        with to.deadline.closing(hang_up):
            connection.open()
        if not connection.client.get_transport().is_authenticated():
            raise Unreachable(
                f"it wants a second factor of {to.endpoint.user}",
                "open the way yourself (ControlMaster in ~/.ssh/config) and reach it through ProxyJump",
            )
    except BaseException as error:
        connection.close()
        close_tunnel(to.sock)
        if to.deadline.cancelled:
            raise Cancelled("stopped before it was connected") from None
        if isinstance(error, (paramiko.SSHException, EOFError, OSError)):
            raise _why_not(error, to, login) from None
        raise
    return connection


def _connection(to: Handshake, login: Login) -> fabric.Connection:
    def transport(sock: socket.socket, **options: Any) -> paramiko.Transport:
        made = _Transport(sock, **options)
        _prefer(made.get_security_options(), to.host_keys.preferred_types(to.endpoint))
        return made

    # paramiko's own clocks, which know neither switch nor pause, must not end it before ours does.
    long = (to.deadline.seconds or 0) + 3600
    connection = fabric.Connection(
        to.endpoint.hostname,
        user=to.endpoint.user,
        port=to.endpoint.port,
        config=_bare_config(),
        connect_kwargs={
            "sock": to.sock,
            "transport_factory": transport,
            "auth_strategy": login,
            "timeout": long,
            "banner_timeout": long,
            "auth_timeout": long,
        },
    )
    connection.client.set_missing_host_key_policy(_CheckHostKey(to))
    return connection


def _bare_config() -> fabric.Config:
    """No fabric.yaml, no second reading of ssh_config: what a connection needs, the endpoint has.

    One for each connection: a Config merges anew when it is asked, and is empty for whoever asks meanwhile.
    """
    return fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True)


def _prefer(options: paramiko.transport.SecurityOptions, known: tuple[str, ...]) -> None:
    """The fast ciphers first, and first the types of the known host keys, among them in the order that ssh has."""
    options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)
    options.key_types = sorted(options.key_types, key=lambda name: _key_type(name) not in known)


def _key_type(algorithm: str) -> str:
    """The type of the key a signature algorithm works with, as known_hosts has it."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def _note_request(channel: paramiko.Channel, message: paramiko.Message) -> None:
    start = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        channel.ended_by = message.get_text()  # type: ignore[attr-defined]
    message.packet.seek(start)
    paramiko.Channel._handle_request(channel, message)  # type: ignore[attr-defined]
    wake = getattr(channel, "wake", None)
    if wake is not None:
        wake.set()


class _Transport(paramiko.Transport):
    """Keeps what paramiko drops, which signal ended a command, and wakes whoever waits for a command's end.

    Nothing is said to a channel behind its close: a thread that feeds a command may come too late, and sshd ends the
    whole connection over a word to a channel it no longer knows.
    """

    _channel_handler_table: ClassVar[dict[int, Any]] = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
        MSG_CHANNEL_REQUEST: _note_request,
    }

    def __init__(self, *args: Any, **options: Any) -> None:
        self._left: set[int] = set()
        super().__init__(*args, **options)

    def _send_message(self, data: paramiko.Message) -> None:
        """One at a time: paramiko holds a lock around what isn't key exchange."""
        with data.packet.getbuffer() as packed:
            kind, number = packed[0], int.from_bytes(packed[1:5], "big")
        if kind in _TO_A_CHANNEL:
            if number in self._left:
                return
            if kind == MSG_CHANNEL_CLOSE:
                self._left.add(number)
        super()._send_message(data)  # type: ignore[misc]

    def _parse_channel_open_success(self, message: paramiko.Message) -> None:
        """sshd gives a number again once it is free."""
        start = message.packet.tell()
        message.get_int()
        self._left.discard(message.get_int())
        message.packet.seek(start)
        super()._parse_channel_open_success(message)  # type: ignore[misc]


class _CheckHostKey(paramiko.MissingHostKeyPolicy):
    """Every key comes here, since the client is given no known_hosts of its own."""

    def __init__(self, to: Handshake) -> None:
        self._to = to

    def missing_host_key(self, client: object, hostname: str, key: paramiko.PKey) -> None:
        del client, hostname
        self._to.host_keys.check(self._to.endpoint, key.get_name(), key.asbytes())


def _why_not(error: Exception, to: Handshake, login: Login) -> Unreachable:
    """What to tell the user of an error that paramiko words for programmers."""
    port, by_ourselves = to.endpoint.port, f"try by hand: {by_hand(to.host)}"
    if to.deadline.over:
        waited = f"(waited {to.deadline.seconds:g} s)"
        if login.begun:
            return Unreachable(
                f"sshd there takes too long over the login {waited}",
                f"its PAM or DNS is slow? {by_ourselves}",
                option="--connect-timeout gives it longer",
            )
        return Unreachable(
            f"port {port} accepts connections but says nothing {waited}",
            "sshd hangs there, or it isn't sshd that listens on this port",
            option="--connect-timeout gives it longer",
        )
    if isinstance(error, paramiko.AuthenticationException):
        return auth_refusal(error, to.endpoint, login)
    if isinstance(to.sock, ProxySocket) and (complaint := to.sock.end()):
        through = to.endpoint.jump or "its ProxyCommand"
        if "open refused by peer" in complaint or "stdio forwarding failed" in complaint.lower():
            return Unreachable(f"{through} can't connect to it", f"is sshd running there? {by_ourselves}")
        return Unreachable(f"no way to it through {through}: {complaint}", by_ourselves)
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return Unreachable(f"the sshd there and we share no algorithm: {error}", by_ourselves)
    return Unreachable(
        f"port {port} closed the connection before we were logged in",
        "is it sshd that listens there? its log says why (MaxStartups, DenyUsers, hosts.deny)",
    )

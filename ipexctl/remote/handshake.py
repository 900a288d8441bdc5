"""Turn an open socket into an authenticated ssh connection: choose algorithms, check the host key, log in, and explain
a failure.

paramiko's timeouts know neither Ctrl-C nor pauses for a passphrase, so only the deadline limits the handshake.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import Any, ClassVar, Final, NamedTuple

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
from paramiko.packet import Packetizer

from ipexctl.hosts.host import Host
from ipexctl.remote.algorithms import apply_algorithms
from ipexctl.remote.auth import KeyRing, Login, is_short
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.host_keys import HostKeys, fingerprint_of
from ipexctl.remote.outcome import Cancelled, LoginRefused, Unreachable
from ipexctl.remote.ssh_config import Endpoint, manual_command
from ipexctl.remote.tcp import silent_login

_CHANNEL_MESSAGES: Final = frozenset(
    {
        MSG_CHANNEL_WINDOW_ADJUST,
        MSG_CHANNEL_DATA,
        MSG_CHANNEL_EXTENDED_DATA,
        MSG_CHANNEL_EOF,
        MSG_CHANNEL_CLOSE,
        MSG_CHANNEL_REQUEST,
    }
)
"""Messages whose first field is a channel of the server."""


class ClosedChannels:
    """Server channels that this side has closed and whose numbers the server has not reused yet. On a message for an
    unknown channel sshd ends the connection with all its commands, and the thread that feeds stdin may be late."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def may_send(self, kind: int, channel: int) -> bool:
        """Return False for a message to a closed channel, because the close message must be its last one."""
        if kind not in _CHANNEL_MESSAGES:
            return True
        if channel in self._numbers:
            return False
        if kind == MSG_CHANNEL_CLOSE:
            self._numbers.add(channel)
        return True

    def on_opened(self, channel: int) -> None:
        """Note that the server uses this number again, for a new channel."""
        self._numbers.discard(channel)


def _record_exit_signal(channel: paramiko.Channel, message: paramiko.Message) -> None:
    """Set `ended_by` of a channel if a signal ended its command, which paramiko ignores."""
    start = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        channel.ended_by = message.get_text()  # type: ignore[attr-defined]
    message.packet.seek(start)
    paramiko.Channel._handle_request(channel, message)  # type: ignore[attr-defined]
    wake = getattr(channel, "wake", None)
    if wake is not None:
        wake.set()


class CorrectedTransport(paramiko.Transport):
    """Keeps the signal that ended a command, and sends no message to a closed channel. paramiko has no hook for either,
    so private methods are overridden."""

    _channel_handler_table: ClassVar[dict[int, Any]] = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
        MSG_CHANNEL_REQUEST: _record_exit_signal,
    }

    def __init__(self, sock: socket.socket, **options: Any) -> None:
        self._closed_channels = ClosedChannels()
        super().__init__(sock, packetizer_class=_Packetizer, **options)

    def _send_message(self, data: paramiko.Message) -> None:
        """Send the message unless its channel is closed. paramiko's lock serializes this, except during key
        exchange."""
        with data.packet.getbuffer() as packed:
            kind, channel = packed[0], int.from_bytes(packed[1:5], "big")
        if self._closed_channels.may_send(kind, channel):
            super()._send_message(data)  # type: ignore[misc]

    def _parse_channel_open_success(self, message: paramiko.Message) -> None:
        """Note which number the server gave the new channel, then let paramiko read the message from its start."""
        start = message.packet.tell()
        message.get_int()  # the channel's number on this side
        self._closed_channels.on_opened(message.get_int())
        message.packet.seek(start)
        super()._parse_channel_open_success(message)  # type: ignore[misc]


class _Packetizer(Packetizer):
    def start_handshake(self, timeout: float) -> None:
        """Start no timer: after a failed handshake, its thread would delay the exit by up to these 15 s."""


logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)
"""Failures are reported as Unreachable."""


class Handshake(NamedTuple):
    host: Host
    endpoint: Endpoint
    sock: socket.socket
    host_keys: HostKeys
    keys: KeyRing
    deadline: Deadline


def connect(handshake: Handshake) -> fabric.Connection:
    """Return the connection, logged in and with a checked host key.

    Raises an Unreachable or a Cancelled; the socket is closed then.
    """

    def shut_down() -> None:
        with contextlib.suppress(OSError):
            handshake.sock.shutdown(socket.SHUT_RDWR)

    login = Login(handshake.endpoint, handshake.keys, handshake.deadline, identity=handshake.host.identity)
    connection = _connection(handshake, login)
    try:
        with handshake.deadline.closing(shut_down):
            connection.open()
        if not connection.client.get_transport().is_authenticated():
            raise LoginRefused(
                f"it requires a second factor from {handshake.endpoint.user}",
                "log in yourself first, with ControlMaster and ControlPath in ~/.ssh/config",
            )
    except BaseException as error:
        connection.close()
        handshake.sock.close()
        if handshake.deadline.cancelled:
            raise Cancelled("stopped before it was connected") from None
        if isinstance(error, (paramiko.SSHException, EOFError, OSError)):
            raise _connection_error(error, handshake, login) from None
        raise
    return connection


def _connection(handshake: Handshake, login: Login) -> fabric.Connection:
    """Return a fabric connection that is not open yet, over the socket, with this call's algorithms, login and check of
    the host key."""

    def transport(sock: socket.socket, **options: Any) -> paramiko.Transport:
        corrected = CorrectedTransport(sock, **options)
        endpoint = handshake.endpoint
        apply_algorithms(corrected, endpoint.algorithms, handshake.host_keys.preferred_types(endpoint))
        return corrected

    # paramiko's own timeouts know neither cancellation nor pauses, so they must not expire before the deadline.
    no_timeout = (handshake.deadline.seconds or 0) + 3600
    connection = fabric.Connection(
        handshake.endpoint.hostname,
        user=handshake.endpoint.user,
        port=handshake.endpoint.port,
        # Reads no files, because the endpoint has everything. Not shared, because another thread may see it empty.
        config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
        connect_kwargs={
            "sock": handshake.sock,
            "transport_factory": transport,
            "auth_strategy": login,
            "banner_timeout": no_timeout,
            "auth_timeout": no_timeout,
        },
        connect_timeout=no_timeout,
        forward_agent=False,
        inline_ssh_env=True,
    )
    connection.client.set_missing_host_key_policy(_CheckHostKey(handshake))
    return connection


class _CheckHostKey(paramiko.MissingHostKeyPolicy):
    """Checks every host key, because paramiko's client gets no known_hosts."""

    def __init__(self, handshake: Handshake) -> None:
        self._handshake = handshake

    def missing_host_key(self, client: object, hostname: str, key: paramiko.PKey) -> None:
        del client, hostname
        if is_short(key):
            raise LoginRefused("its RSA host key has fewer than 2048 bits", "ask its administrator for an ed25519 key")
        self._handshake.host_keys.check(self._handshake.endpoint, key.get_name(), fingerprint_of(key.asbytes()))


def _connection_error(error: Exception, handshake: Handshake, login: Login) -> Unreachable:
    """Return the error for the user for a handshake that failed."""
    port, try_by_hand = handshake.endpoint.port, f"try by hand: {manual_command(handshake.host)}"
    if handshake.deadline.over:
        return silent_login(port, handshake.deadline, try_by_hand)
    if isinstance(error, paramiko.AuthenticationException):
        return login.refusal()
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return LoginRefused(f"its sshd and ipexctl have no algorithm in common: {error}", try_by_hand)
    return Unreachable(
        f"port {port} closed the connection before the login",
        "check that sshd listens there; its log shows the reason (MaxStartups, DenyUsers, hosts.deny)",
    )

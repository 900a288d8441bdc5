"""Turns an open socket into an authenticated ssh connection: algorithms, host key, login, error messages.

Only the deadline bounds the handshake: paramiko's timeouts know neither Ctrl-C nor pauses for a passphrase, so they
expire later. `transport.py` changes paramiko's connection, `auth.py` logs in.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import fabric
import paramiko

from ipexctl.remote.algorithms import apply_algorithms
from ipexctl.remote.auth import Login
from ipexctl.remote.outcome import Cancelled, Unreachable
from ipexctl.remote.proxy_jump import ProxySocket, close_tunnel
from ipexctl.remote.ssh_config import manual_command
from ipexctl.remote.transport import Transport

if TYPE_CHECKING:
    from ipexctl.hosts.host import Host
    from ipexctl.remote.auth import KeyRing
    from ipexctl.remote.cancel import Deadline
    from ipexctl.remote.host_keys import HostKeys
    from ipexctl.remote.ssh_config import Endpoint

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class Handshake(NamedTuple):
    host: Host
    endpoint: Endpoint
    sock: socket.socket
    host_keys: HostKeys
    keys: KeyRing
    deadline: Deadline


def connect(handshake: Handshake) -> fabric.Connection:
    """Handshake, host key check, login. Raises HostError with a fix, after closing the socket."""

    def shut_down() -> None:
        with contextlib.suppress(OSError):
            handshake.sock.shutdown(socket.SHUT_RDWR)

    login = Login(handshake.endpoint, handshake.keys, handshake.deadline, identity=handshake.host.identity)
    connection = _connection(handshake, login)
    try:
        with handshake.deadline.closing(shut_down):
            connection.open()
        if not connection.client.get_transport().is_authenticated():
            raise Unreachable(
                f"it wants a second factor of {handshake.endpoint.user}",
                "open the way yourself (ControlMaster in ~/.ssh/config) and reach it through ProxyJump",
            )
    except BaseException as error:
        connection.close()
        close_tunnel(handshake.sock)
        if handshake.deadline.cancelled:
            raise Cancelled("stopped before it was connected") from None
        if isinstance(error, (paramiko.SSHException, EOFError, OSError)):
            raise _connection_error(error, handshake, login) from None
        raise
    return connection


def _connection(handshake: Handshake, login: Login) -> fabric.Connection:
    def transport(sock: socket.socket, **options: Any) -> paramiko.Transport:
        made = Transport(sock, **options)
        endpoint = handshake.endpoint
        apply_algorithms(made, endpoint.algorithms, handshake.host_keys.preferred_types(endpoint))
        return made

    # paramiko's own timeouts know neither cancellation nor pauses, so they must not expire before the deadline.
    no_timeout = (handshake.deadline.seconds or 0) + 3600
    connection = _Connection(
        handshake.endpoint.hostname,
        user=handshake.endpoint.user,
        port=handshake.endpoint.port,
        config=_CONFIG,
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


class _Connection(fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """A connection with plain attributes.

    fabric's __setattr__ searches `dir(self)` at each assignment, half a millisecond per host, and changes the config.
    """

    __setattr__ = object.__setattr__


class _NoSSHConfig(paramiko.SSHConfig):
    """No options; paramiko's own, even empty, calls getpwuid twice per host."""

    def lookup(self, hostname: str) -> paramiko.SSHConfigDict:
        return paramiko.SSHConfigDict(hostname=hostname)


_CONFIG: Final = fabric.Config(ssh_config=_NoSSHConfig(), lazy=True)
"""Reads neither fabric.yaml nor ssh_config: the endpoint has everything."""
_CONFIG._set(_root=_CONFIG, _keypath=())  # invoke searches for them in vain at each of ten accesses per host


class _CheckHostKey(paramiko.MissingHostKeyPolicy):
    """Checks every host key: paramiko's client gets no known_hosts."""

    def __init__(self, handshake: Handshake) -> None:
        self._handshake = handshake

    def missing_host_key(self, client: object, hostname: str, key: paramiko.PKey) -> None:
        del client, hostname
        endpoint = self._handshake.endpoint
        if isinstance(key, paramiko.RSAKey) and key.get_bits() < endpoint.required_rsa_size:
            raise Unreachable(
                f"its RSA host key has {key.get_bits()} bits, and RequiredRSASize of the ssh config is"
                f" {endpoint.required_rsa_size}",
                "ask the administrator of that machine for a longer key, or an ed25519 key",
            )
        self._handshake.host_keys.check(endpoint, key.get_name(), key.asbytes())


def _connection_error(error: Exception, handshake: Handshake, login: Login) -> Unreachable:
    port, try_by_hand = handshake.endpoint.port, f"try by hand: {manual_command(handshake.host)}"
    if handshake.deadline.over:
        waited = f"(waited {handshake.deadline.seconds:g} s)"
        if login.has_started:
            return Unreachable(
                f"sshd there takes too long over the login {waited}",
                f"its PAM or DNS is slow? {try_by_hand}",
                option="--connect-timeout gives it longer",
            )
        return Unreachable(
            f"port {port} accepts connections but says nothing {waited}",
            "sshd hangs there, or it isn't sshd that listens on this port",
            option="--connect-timeout gives it longer",
        )
    if isinstance(error, paramiko.AuthenticationException):
        return login.refusal()
    if isinstance(handshake.sock, ProxySocket) and (proxy_error := handshake.sock.end()):
        proxy = handshake.endpoint.jump or "its ProxyCommand"
        if "open refused by peer" in proxy_error or "stdio forwarding failed" in proxy_error.lower():
            return Unreachable(f"{proxy} can't connect to it", f"is sshd running there? {try_by_hand}")
        return Unreachable(f"no way to it through {proxy}: {proxy_error}", try_by_hand)
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return Unreachable(f"its sshd and ipexctl have no algorithm in common: {error}", try_by_hand)
    return Unreachable(
        f"port {port} closed the connection before the login",
        "is it sshd that listens there? its log says why (MaxStartups, DenyUsers, hosts.deny)",
    )

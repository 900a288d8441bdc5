"""Connections made by many threads at once."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest

from ipexctl.hosts.host import Host
from ipexctl.remote.algorithms import Algorithms, apply_algorithms, choose_algorithms
from ipexctl.remote.auth import KeyRing, Login
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.handshake import ClosedChannels, CorrectedTransport, Handshake, _connection
from ipexctl.remote.host_keys import HostKeys
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.ssh_config import Endpoint
from ipexctl.remote.tcp import TunedSocket


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    """Make threads switch very often, so that rare races become likely."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_thread_switches")
def test_concurrent_threads_create_independent_connections() -> None:
    endpoint, ring = Endpoint("10.0.0.1", 22, "me"), KeyRing()

    def make(number: int) -> str:
        host, deadline = Host(f"n{number}", "10.0.0.1"), Deadline(10)
        with socket.socket() as sock:
            to = Handshake(host, endpoint, sock, HostKeys("strict"), ring, deadline)
            connection = _connection(to, Login(endpoint, ring, deadline))
            return f"{connection.gateway} {connection.authentication.strategy_class} {connection.user}"

    with ThreadPoolExecutor(32) as pool:
        assert set(pool.map(make, range(500))) == {"None None me"}


@pytest.mark.parametrize(
    ("known", "first"),
    [
        ((), ["ssh-ed25519"]),
        (("ecdsa-sha2-nistp256",), ["ecdsa-sha2-nistp256", "ssh-ed25519"]),
        (("ssh-rsa",), ["rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519"]),
        (("ssh-rsa", "ssh-ed25519"), ["ssh-ed25519", "rsa-sha2-512", "rsa-sha2-256", "ecdsa-sha2-nistp256"]),
        (("ssh-dss",), ["ssh-ed25519"]),
    ],
)
def test_known_host_key_types_come_first_in_the_order_of_ssh(known: tuple[str, ...], first: list[str]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = paramiko.Transport(ours)
        options = transport.get_security_options()
        before = set(options.key_types)
        apply_algorithms(transport, Algorithms(), known)
    assert list(options.key_types)[: len(first)] == first
    assert set(options.key_types) == before


def test_only_strong_algorithms_that_the_ssh_config_allows_are_offered() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport: Any = paramiko.Transport(ours)
        options = transport.get_security_options()
        apply_algorithms(transport, Algorithms(), ())
        offered = [*options.ciphers, *options.digests, *options.kex, *options.key_types, *transport.preferred_pubkeys]
        assert not [name for name in offered if "cbc" in name or "md5" in name or "sha1" in name or name == "ssh-rsa"]
        apply_algorithms(
            transport,
            Algorithms(
                "chacha20-poly1305@openssh.com,aes256-ctr,aes128-cbc",
                "hmac-sha2-512,hmac-sha1",
                "sntrup761x25519-sha512,curve25519-sha256",
                "ssh-ed25519-cert-v01@openssh.com,ssh-ed25519",
                "rsa-sha2-512",
            ),
            (),
        )
        assert (options.ciphers, options.digests) == (("aes256-ctr",), ("hmac-sha2-512",))
        assert (options.kex, options.key_types) == (("curve25519-sha256@libssh.org",), ("ssh-ed25519",))
        assert transport.preferred_pubkeys == ("rsa-sha2-512",)


@pytest.mark.parametrize("configured", ["aes128-cbc", "chacha20-poly1305@openssh.com"])
def test_algorithm_lists_without_a_supported_entry_are_refused_by_name(configured: str) -> None:
    with pytest.raises(Unreachable) as caught:
        choose_algorithms("Ciphers", ("aes128-ctr", "aes128-cbc"), configured)
    assert "Ciphers" in caught.value.reason
    assert configured in caught.value.reason
    assert "aes128-ctr" in caught.value.fix


def test_closed_channel_gets_no_messages_until_its_number_is_reused() -> None:
    def message(kind: int, *numbers: int) -> paramiko.Message:
        made = paramiko.Message()
        made.add_byte(bytes([kind]))
        for number in numbers:
            made.add_int(number)
        return made

    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport: Any = CorrectedTransport(ours)
        sent: list[tuple[int, int]] = []
        transport.packetizer.send_message = lambda said: sent.append((said.asbytes()[0], said.asbytes()[4]))
        for kind, number in [(94, 1), (97, 1), (96, 1), (94, 2), (98, 1), (90, 1), (96, 2)]:
            transport._send_message(message(kind, number))
        assert sent == [(94, 1), (97, 1), (94, 2), (90, 1), (96, 2)]
        opened = paramiko.Message(message(0, 7, 1, 0, 0).asbytes()[1:])
        transport._parse_channel_open_success(opened)
        transport._send_message(message(94, 1))
        assert sent[-1] == (94, 1)


def test_only_messages_of_closed_channels_are_held_back() -> None:
    channels = ClosedChannels()
    data, close, open_ = 94, 97, 90
    assert channels.may_send(close, 1)
    assert [channels.may_send(kind, 1) for kind in (data, close, open_)] == [False, False, True]
    assert channels.may_send(data, 2)
    channels.on_opened(1)
    assert channels.may_send(data, 1)


@pytest.mark.parametrize(("request_name", "ended_by"), [("exit-signal", "KILL"), ("exit-status", None)])
def test_signal_that_ended_a_command_is_recorded_and_wakes_the_reader(request_name: str, ended_by: str | None) -> None:
    message = paramiko.Message()
    message.add_string(request_name)
    message.add_boolean(False)
    message.add_string("KILL") if ended_by else message.add_int(3)
    channel: Any = paramiko.Channel(1)
    channel.wake = threading.Event()
    channel.transport = SimpleNamespace(server_object=None)
    CorrectedTransport._channel_handler_table[98](channel, paramiko.Message(message.asbytes()))
    assert getattr(channel, "ended_by", None) == ended_by
    assert channel.exit_status == (-1 if ended_by else 3)
    assert channel.wake.is_set()


# The socket of an ssh connection: read-ahead, timeouts, and close() during a read


@pytest.fixture
def connected_sockets() -> Iterator[tuple[TunedSocket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, TunedSocket() as near:
        near.connect(server.getsockname())
        far, _ = server.accept()
        with far:
            yield near, far


def test_recv_returns_data_in_pieces_of_any_size(connected_sockets: tuple[TunedSocket, socket.socket]) -> None:
    near, far = connected_sockets
    sent = bytes(range(256)) * 1000
    far.sendall(sent)
    far.shutdown(socket.SHUT_WR)
    pieces = [near.recv(size) for size in (1, 16, 0, 300)]
    assert [len(piece) for piece in pieces] == [1, 16, 0, 300]
    while piece := near.recv(20000):
        pieces.append(piece)
    assert b"".join(pieces) == sent
    assert near.recv(10) == b""


def test_recv_and_send_end_at_the_timeout(connected_sockets: tuple[TunedSocket, socket.socket]) -> None:
    near, far = connected_sockets
    near.settimeout(0.05)
    with pytest.raises(TimeoutError):
        near.recv(1)
    far.sendall(b"x")
    assert near.recv(1) == b"x"
    with pytest.raises((TimeoutError, BlockingIOError)):
        while True:
            near.send(bytes(1 << 20))


def test_close_ends_a_recv_in_another_thread(connected_sockets: tuple[TunedSocket, socket.socket]) -> None:
    near, _ = connected_sockets
    near.settimeout(60)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(near.recv(1)), daemon=True)
    reader.start()
    reader.join(0.2)
    near.close()
    reader.join(10)
    assert received == [b""]

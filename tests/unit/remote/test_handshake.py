"""Connections made by many threads at once."""

from __future__ import annotations

import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from ipexctl.hosts.host import Host
from ipexctl.remote.auth import KeyRing, Login
from ipexctl.remote.clock import Clock
from ipexctl.remote.handshake import Handshake, _connection
from ipexctl.remote.host_keys import HostKeys
from ipexctl.remote.ssh_config import Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns at every chance: a race that strikes once in a thousand calls strikes at once."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_threads_that_make_connections_do_not_disturb_each_other() -> None:
    endpoint, ring = Endpoint("10.0.0.1", 22, "me"), KeyRing()

    def make(number: int) -> str:
        host, clock = Host(f"n{number}", "10.0.0.1"), Clock(10)
        with socket.socket() as sock:
            to = Handshake(host, endpoint, sock, HostKeys("strict"), ring, clock)
            connection = _connection(to, Login(endpoint, ring, clock))
            return f"{connection.gateway} {connection.authentication.strategy_class} {connection.user}"

    with ThreadPoolExecutor(32) as pool:
        assert set(pool.map(make, range(500))) == {"None None me"}

"""Connections made by many threads at once."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

from ipexctl.hosts.host import Host
from ipexctl.remote.auth import KeyRing, Login
from ipexctl.remote.clock import Clock
from ipexctl.remote.handshake import Handshake, _connection
from ipexctl.remote.host_keys import HostKeys
from ipexctl.remote.ssh_config import Endpoint


def test_threads_that_make_connections_do_not_disturb_each_other() -> None:
    endpoint, ring = Endpoint("10.0.0.1", 22, "me"), KeyRing()

    def make(number: int) -> str:
        host, clock = Host(f"n{number}", "10.0.0.1"), Clock(10)
        with socket.socket() as sock:
            to = Handshake(host, endpoint, sock, HostKeys("strict"), ring, clock)
            connection = _connection(to, Login(endpoint, ring, clock))
            return f"{connection.gateway} {connection.authentication.strategy_class} {connection.user}"

    with ThreadPoolExecutor(32) as pool:
        assert set(pool.map(make, range(2000))) == {"None None me"}

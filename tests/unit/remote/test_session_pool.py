"""The session pool: a host that is unreachable is connected to once, a detached session stays open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.session_pool import SessionPool


class Reach:
    """Counts who is dialled."""

    def __init__(self, opened: Callable[[Host], Any]) -> None:
        self.opened = opened
        self.dialled: list[str] = []

    def load(self, hosts: Any) -> None: ...

    def open(self, host: Host, cancel: Cancel) -> Any:
        del cancel
        self.dialled.append(host.name)
        return self.opened(host)


def test_a_host_that_was_found_off_is_not_dialled_again_and_says_so_each_time() -> None:
    def off(host: Host) -> Any:
        raise Unreachable(f"{host.name} is off")

    connector = Reach(off)
    with SessionPool(connector, Cancel(), forks=2) as pool:  # type: ignore[arg-type]
        pool.warm([Host("a", "a")])
        for _ in range(2):
            with pytest.raises(Unreachable, match="a is off"):
                pool.session(Host("a", "a"))
    assert connector.dialled == ["a"]


def test_a_session_that_was_handed_over_is_left_open() -> None:
    closed: list[str] = []

    class Session:
        def __init__(self, host: Host) -> None:
            self.host = host

        def close(self) -> None:
            closed.append(self.host.name)

    hosts = (Host("a", "a"), Host("b", "b"))
    with SessionPool(Reach(Session), Cancel(), forks=2) as pool:  # type: ignore[arg-type]
        for host in hosts:
            pool.session(host)
        kept = pool.detach(hosts[0])
        assert kept is not None
        assert pool.detach(Host("c", "c")) is None
    assert closed == ["b"]

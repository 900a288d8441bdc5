"""What is begun before anything is decided: nobody is dialled twice, nothing is brought to a run that won't begin."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from ipexctl.hosts.host import Host
from ipexctl.jobs.submit.failure import PreflightFailure
from ipexctl.jobs.submit.gather import GateClosed, GatheredContext, UploadGate
from ipexctl.remote.background import run_in_background
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import HostError, Unreachable
from ipexctl.remote.session_pool import SessionPool

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


def through(gate: UploadGate) -> Future[Any]:
    def work() -> str:
        gate()
        return "brought"

    return run_in_background(work, "tree")


def gathered(gate: UploadGate, tree: Future[Any]) -> GatheredContext:
    return GatheredContext("r", run_in_background(tuple, "answers"), None, tree, gate)


def test_the_gate_holds_until_it_is_known_that_the_run_may_go() -> None:
    gate, asked = UploadGate(), threading.Event()
    tree = through(gate)

    def may_go() -> None:
        asked.set()

    assert not asked.wait(0.05)
    gate.decide(may_go)
    assert tree.result() == "brought"
    assert asked.is_set()


def test_what_is_said_against_the_run_is_why_nothing_is_brought() -> None:
    gate = UploadGate()
    tree = through(gate)
    gate.decide(lambda: PreflightFailure("no way"))
    for _ in range(2):
        with pytest.raises(GateClosed) as closed:
            tree.result()
        assert closed.value.refused == PreflightFailure("no way")


@pytest.mark.parametrize("fails", [None, HostError("lost"), Unreachable("off")])
def test_who_leaves_waits_until_nobody_asks_hosts_any_more(fails: HostError | None) -> None:
    gate, over = UploadGate(), threading.Event()

    def work() -> str:
        try:
            gate()
        finally:
            over.set()
            if fails is not None:
                raise fails
        return "brought"

    gathered(gate, run_in_background(work, "tree")).leave()
    assert over.is_set()


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

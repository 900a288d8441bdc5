"""Work on many hosts at once: limited concurrency, one result per host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fakes import FakeSession
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.outcome import HostError, Unreachable, exit_code
from ipexctl.remote.session import capture

HOSTS = [Host(f"n{i}", f"n{i}") for i in range(20)]


def test_fan_out_returns_one_outcome_per_host_with_its_own_error() -> None:
    def work(host: Host) -> str:
        if host.name == "n3":
            raise Unreachable("gone", "look")
        return host.name.upper()

    done = list(fan_out(HOSTS, work, forks=4, cancel=Cancel()))
    assert sorted(d.host.name for d in done) == sorted(h.name for h in HOSTS)
    assert [(d.host.name, d.error.reason) for d in done if d.error] == [("n3", "gone")]
    assert all(d.result == d.host.name.upper() for d in done if not d.error)


def test_at_most_forks_hosts_run_at_once() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def work(host: Host) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.01)
        with lock:
            now -= 1

    list(fan_out(HOSTS, work, forks=3, cancel=Cancel()))
    assert most == 3


def test_after_cancel_no_further_host_is_started() -> None:
    cancel, begun = Cancel(), []

    def work(host: Host) -> None:
        begun.append(host)
        cancel.throw()

    done = list(fan_out(HOSTS, work, forks=1, cancel=cancel))
    assert len(begun) == 1
    assert sum(d.error is not None and d.error.reason == "not started" for d in done) == len(HOSTS) - 1


def test_errors_that_are_not_host_errors_are_raised() -> None:
    def work(host: Host) -> None:
        raise KeyError(host.name)

    with pytest.raises(KeyError):
        list(fan_out(HOSTS, work, forks=2, cancel=Cancel()))


def test_raised_error_cancels_the_other_hosts_and_waits_for_them() -> None:
    cancel, ended = Cancel(), []

    def work(host: Host) -> None:
        if host.name == "n0":
            raise KeyError(host.name)
        woken = threading.Event()
        with cancel.waking(woken.set):
            assert woken.wait(10)
        ended.append(host)

    with pytest.raises(KeyError):
        list(fan_out(HOSTS[:4], work, forks=4, cancel=cancel))
    assert len(ended) == 3


def test_closing_the_generator_waits_for_all_threads() -> None:
    cancel, ended = Cancel(), []

    def work(host: Host) -> None:
        if host.name != "n0":
            woken = threading.Event()
            with cancel.waking(woken.set):
                assert woken.wait(10)
        ended.append(host)

    for _ in fan_out(HOSTS[:4], work, forks=4, cancel=cancel):
        break
    assert len(ended) == 4


def test_exit_code_of_unreachable_hosts_precedes_failed_hosts() -> None:
    assert exit_code(["ok", "changed"]) == 0
    assert exit_code(["ok", "failed"]) == 1
    assert exit_code(["failed", "unreachable", "ok"]) == 3
    assert HostError("x").status == "failed"


# The session pool: a host that is unreachable is connected to once, a detached session stays open


class RecordingConnector:
    """A connector that records the hosts it connects to."""

    def __init__(self, opened: Callable[[Host], Any]) -> None:
        self.opened = opened
        self.dialled: list[str] = []

    def load(self, hosts: Any) -> None: ...

    def open(self, host: Host, cancel: Cancel) -> Any:
        del cancel
        self.dialled.append(host.name)
        return self.opened(host)


def test_unreachable_host_is_connected_to_once_and_reported_each_time() -> None:
    def off(host: Host) -> Any:
        raise Unreachable(f"{host.name} is off")

    connector = RecordingConnector(off)
    with SessionPool(connector, Cancel(), forks=2) as pool:  # type: ignore[arg-type]
        pool.warm([Host("a", "a")])
        for _ in range(2):
            with pytest.raises(Unreachable, match="a is off"):
                pool.session(Host("a", "a"))
        (done,) = pool.each([Host("a", "a")], lambda host, session: session)
    assert str(done.error) == "a is off"
    assert connector.dialled == ["a"]


A, B = Host("a", "a"), Host("b", "b")


@pytest.fixture
def opened() -> list[FakeSession]:
    """The sessions of the pool in the order in which they were opened; each prints its number."""
    return []


@pytest.fixture
def pool(opened: list[FakeSession]) -> Iterator[SessionPool]:
    def open_session(host: Host) -> FakeSession:
        opened.append(FakeSession(host, stdout=b"%d" % len(opened)))
        return opened[-1]

    with SessionPool(RecordingConnector(open_session), Cancel(), forks=2) as pool:  # type: ignore[arg-type]
        pool.session(A)
        yield pool


def test_detached_session_stays_open(pool: SessionPool, opened: list[FakeSession]) -> None:
    pool.session(B)
    assert pool.detach(A) is not None
    assert pool.detach(Host("c", "c")) is None
    pool.close()
    assert [session.closed for session in opened] == [False, True]


def test_working_lent_session_returns_to_the_pool(pool: SessionPool, opened: list[FakeSession]) -> None:
    for _ in range(2):
        lent = pool.borrow(A, Cancel())
        assert capture(lent, Command.argv("true")).stdout == b"0"
        lent.close()
    assert pool.session(A) is opened[0]
    assert [session.closed for session in opened] == [False]


def test_lost_lent_session_is_closed_and_replaced(pool: SessionPool, opened: list[FakeSession]) -> None:
    opened[0].error = Unreachable("the connection was lost")
    lent = pool.borrow(A, Cancel())
    with pytest.raises(Unreachable):
        capture(lent, Command.argv("true"))
    lent.close()
    lent = pool.borrow(A, Cancel())
    assert capture(lent, Command.argv("true")).stdout == b"1"
    lent.close()
    assert pool.session(A) is opened[1]
    assert [session.closed for session in opened] == [True, False]


def test_throw_in_a_signal_handler_does_not_deadlock_with_a_callback_lock() -> None:
    cancel, held, woken = Cancel(), threading.Lock(), threading.Event()

    def wake() -> None:
        with held:
            woken.set()

    with cancel.waking(wake):
        with held:  # as in Event.wait and Event.clear
            cancel.throw()
            assert cancel.thrown
        assert woken.wait(10)


def test_callback_registered_after_throw_is_called_at_once() -> None:
    cancel, woken = Cancel(), threading.Event()
    cancel.throw()
    with cancel.waking(woken.set):
        assert woken.is_set()

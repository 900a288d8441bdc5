"""Two segments of shared memory in one process, mapped twice as by two ranks."""

import os
import platform
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipexctl.inrank.segment import HEADER, NAME, Segment, create_memfd
from ipexctl.inrank.waiting import MASK, Peer, Waiter, is_alive, read_state
from ipexctl.node.run.process_stacks import awaited_rank

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the order of stores is that of x86-64")


@pytest.fixture
def number() -> Iterator[int]:
    number = create_memfd(HEADER)
    yield number
    os.close(number)


def myself() -> Peer:
    return Peer(3, os.getpid(), read_state(os.getpid())[1])


def waiter(number: int, peer: Peer, timeout: float = 60) -> Waiter:
    return Waiter(Segment(create_memfd(HEADER), HEADER), [Segment(number, HEADER)], [peer], timeout)


def test_only_its_user_may_open_a_segment_and_it_has_no_name(number: int) -> None:
    assert stat.S_IMODE(os.fstat(number).st_mode) == 0o600
    assert os.fstat(number).st_nlink == 0
    assert not os.get_inheritable(number)


def test_a_child_does_not_have_the_memory(number: int) -> None:
    kept = Segment(number, HEADER)
    assert NAME in Path("/proc/self/maps").read_text()
    child = os.fork()
    if child == 0:
        os._exit(NAME in Path("/proc/self/maps").read_text())
    assert os.waitpid(child, 0)[1] == 0
    del kept
    assert NAME not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(("progress", "target"), [(5, 5), (7, 5), (3, MASK - 1)])
def test_what_is_reached_needs_no_wait(number: int, progress: int, target: int) -> None:
    Segment(number, HEADER).progress[0] = progress
    waiter(number, myself(), timeout=0.01).wait_for_all(target)


def test_a_sleeping_rank_is_woken_at_once_and_says_for_whom_it_waits(number: int) -> None:
    other, waiting = Segment(number, HEADER), waiter(number, myself())
    waits_for = waiting.own.waits_for
    thread = threading.Thread(target=waiting.wait_for_all, args=(1,), daemon=True)
    thread.start()
    until = time.monotonic() + 10
    while not waits_for[0] and time.monotonic() < until:
        time.sleep(0.001)
    assert waits_for[0] == 3 + 1
    other.progress[0] = 1
    other.wake()
    thread.join(10)
    assert not thread.is_alive()
    assert waits_for[0] == 0


def test_a_rank_that_ends_is_an_error(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipexctl.inrank.waiting.SLEEP", 0.05)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    peer = Peer(3, process.pid, read_state(process.pid)[1])
    assert is_alive(peer)
    process.send_signal(signal.SIGSTOP)
    assert is_alive(peer)
    process.kill()  # and it stays a zombie
    with pytest.raises(RuntimeError, match="Connection closed by peer: rank 3 "):
        waiter(number, peer).wait_for_all(1)
    process.communicate()


def test_a_rank_that_takes_longer_than_the_group_allows_is_an_error(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ipexctl.inrank.waiting.SLEEP", 0.05)
    with pytest.raises(RuntimeError, match="Timed out waiting 200ms for rank 3"):
        waiter(number, myself(), timeout=0.2).wait_for_all(1)


def test_a_process_with_the_number_of_an_ended_one_is_another() -> None:
    assert not is_alive(myself()._replace(started=1))


def test_waiting_takes_no_processor_time(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = waiter(number, myself(), timeout=0.5)
    monkeypatch.setattr("ipexctl.inrank.waiting.SLEEP", 0.2)
    before = time.process_time()
    with pytest.raises(RuntimeError):
        waiting.wait_for_all(1)
    assert time.process_time() - before < 0.1


def test_a_dump_finds_the_rank_that_a_process_waits_for(number: int) -> None:
    assert awaited_rank(os.getpid()) is None
    Segment(number, HEADER).waits_for[0] = 3 + 1
    assert awaited_rank(os.getpid()) == 3

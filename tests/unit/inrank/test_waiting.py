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

from ipexctl.inrank.segment import COPIED, HEADER, NAME, SUMMED, WRITTEN, Segment, create_memfd
from ipexctl.inrank.waiting import MASK, Peer, Waiter, awaited_key, is_alive, read_state
from ipexctl.node.run.rank.process_stacks import awaited_rank

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the order of stores is that of x86-64")


@pytest.fixture
def number() -> Iterator[int]:
    number = create_memfd(HEADER)
    yield number
    os.close(number)


def myself() -> Peer:
    return Peer(3, os.getpid(), read_state(os.getpid())[1])


def waiter(number: int, peer: Peer, timeout: float = 60) -> Waiter:
    own = Segment(create_memfd(HEADER), HEADER)
    return Waiter(own, [own, Segment(number, HEADER)], [myself(), peer], lambda: timeout)


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
    Segment(number, HEADER).counters[SUMMED][0] = progress
    waiting = waiter(number, myself(), timeout=0.01)
    waiting.count_up(SUMMED, progress)
    waiting.wait_for_all(SUMMED, target)


def test_a_look_at_the_others_does_not_wait(number: int) -> None:
    waiting = waiter(number, myself())
    Segment(number, HEADER).counters[WRITTEN][0] = 2
    waiting.count_up(WRITTEN, 5)
    assert [waiting.have_reached(WRITTEN, target) for target in (1, 2, 3)] == [True, True, False]
    assert not waiting.have_reached(SUMMED, 1)


@pytest.mark.parametrize("counter", [WRITTEN, SUMMED, COPIED])
def test_a_sleeping_rank_is_woken_at_once_and_says_for_whom_it_waits(number: int, counter: int) -> None:
    mine, others = (Segment(number, HEADER) for number in (create_memfd(HEADER), number))
    waiting = Waiter(mine, [mine, others], [myself(), myself()], lambda: 60)
    counting = Waiter(others, [mine, others], [myself(), myself()], lambda: 60)
    counting.count_up(counter, MASK)  # nobody waits yet
    waiting.count_up(counter, 2)
    thread = threading.Thread(target=waiting.wait_for_all, args=(counter, 2), daemon=True)
    thread.start()
    until = time.monotonic() + 10
    while not mine.awaited[0] and time.monotonic() < until:
        time.sleep(0.001)
    assert mine.waits_for[0] == 3 + 1
    begun = time.monotonic()
    counting.count_up(counter, 1)
    assert thread.is_alive()
    counting.count_up(counter, 2)
    thread.join(10)
    assert not thread.is_alive()
    assert time.monotonic() - begun < 0.5  # a second, had it not been woken
    assert mine.waits_for[0] == mine.awaited[0] == 0


def test_a_rank_wakes_only_those_that_wait_for_its_number(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    monkeypatch.setattr(Segment, "wake", lambda _, counter: woken.append(counter))
    mine, others = (Segment(number, HEADER) for number in (create_memfd(HEADER), number))
    counting = Waiter(others, [mine, others], [myself(), myself()], lambda: 60)
    mine.awaited[0] = awaited_key(1, SUMMED) << 32 | 1  # after the largest number
    counting.count_up(WRITTEN, 1)
    counting.count_up(SUMMED, MASK)
    counting.count_up(SUMMED, 0)
    assert woken == []
    counting.count_up(SUMMED, 1)
    mine.awaited[0] = awaited_key(0, SUMMED) << 32 | 2  # of another rank
    counting.count_up(SUMMED, 2)
    assert woken == [SUMMED]


def test_a_rank_that_ends_is_an_error(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipexctl.inrank.waiting.SLEEP", 0.05)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    peer = Peer(3, process.pid, read_state(process.pid)[1])
    assert is_alive(peer)
    process.send_signal(signal.SIGSTOP)
    assert is_alive(peer)
    process.kill()  # and it stays a zombie
    with pytest.raises(RuntimeError, match="Connection closed by peer: rank 3 "):
        waiting = waiter(number, peer)
        waiting.count_up(WRITTEN, 1)
        waiting.wait_for_all(WRITTEN, 1)
    process.communicate()


def test_a_rank_that_takes_longer_than_the_group_allows_is_an_error(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ipexctl.inrank.waiting.SLEEP", 0.05)
    with pytest.raises(RuntimeError, match="Timed out waiting 200ms for rank 3"):
        waiter(number, myself(), timeout=0.2).wait_for_all(WRITTEN, 1)


def test_a_process_with_the_number_of_an_ended_one_is_another() -> None:
    assert not is_alive(myself()._replace(started=1))


def test_waiting_takes_no_processor_time(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = waiter(number, myself(), timeout=0.5)
    monkeypatch.setattr("ipexctl.inrank.waiting.SLEEP", 0.2)
    before = time.process_time()
    with pytest.raises(RuntimeError):
        waiting.wait_for_all(WRITTEN, 1)
    assert time.process_time() - before < 0.1


def test_a_dump_finds_the_rank_that_a_process_waits_for(number: int) -> None:
    assert awaited_rank(os.getpid()) is None
    Segment(number, HEADER).waits_for[0] = 3 + 1
    assert awaited_rank(os.getpid()) == 3

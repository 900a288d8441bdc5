"""Notes of a rank's processes: what is read of /proc, and what its kernel does not tell."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ipexctl.node.run.meter.rank_notes import MAX_READS, RankProbe

approx: Any = pytest.approx
"""In place of a number in a tuple."""
PID, MAIN, BACKWARD, OTHER, CHILD = 10, 10, 12, 13, 20
TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class Proc:
    """A directory as /proc, with one process, its thread of backward, and a child."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def process(self, pid: int, *, cpu: float, pages: int = 100, faults: int = 0) -> None:
        fields = ["S", *["0"] * 8, str(faults), "0", str(int(cpu * TICKS)), "0", *["0"] * 8, str(pages)]
        self.write(f"{pid}/stat", f"{pid} (a) b) {' '.join(fields)}\n")

    def thread(self, thread: int, *, cpu: float, queue: float, name: str) -> None:
        path = f"{PID}/task/{thread}"
        self.write(f"{path}/comm", f"{name}\n")
        self.write(f"{path}/schedstat", f"{int(cpu * 1e9)} {int(queue * 1e9)} 7\n")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    found = Proc(tmp_path)
    found.process(PID, cpu=100)
    found.thread(MAIN, cpu=50, queue=5, name="python")
    found.thread(BACKWARD, cpu=20, queue=2, name="pt_autograd_0")
    return found


def probe_of(proc: Proc) -> RankProbe:
    probe = RankProbe(1000.0, str(proc.root))
    probe.update([PID], MAIN, 1010.0)
    probe.take()
    return probe


def go_on(proc: Proc) -> None:
    proc.process(PID, cpu=130, pages=300, faults=40)
    proc.thread(MAIN, cpu=54, queue=6, name="python")
    proc.thread(BACKWARD, cpu=23, queue=2.5, name="pt_autograd_0")


def test_what_the_thread_used_before_its_first_step_is_in_no_window(proc: Proc) -> None:
    probe = RankProbe(1000.0, str(proc.root))
    probe.update([PID], 0, 1010.0)
    probe.take()
    go_on(proc)
    probe.update([PID], MAIN, 1020.0)
    first = probe.take()
    assert first is not None
    assert first.cpu == approx(0.7)
    proc.thread(OTHER, cpu=500, queue=500, name="python")
    shares = []
    for number in range(2):
        probe.update([PID], OTHER, 1030.0 + number)
        notes = probe.take()
        assert notes is not None
        shares.append(notes.cpu)
    assert shares == [None, 0.0]


def test_without_a_new_reading_there_is_no_note(proc: Proc) -> None:
    probe = probe_of(proc)
    assert probe.take() is None
    probe.update([], MAIN, 1020.0)  # the processes are gone
    assert probe.take() is None


def test_a_child_counts_from_its_start_and_one_that_ended_takes_nothing_away(proc: Proc) -> None:
    probe = probe_of(proc)
    proc.process(CHILD, cpu=10, pages=50, faults=20)
    probe.update([PID, CHILD], MAIN, 1020.0)
    first = probe.take()
    probe.update([PID], MAIN, 1030.0)
    second = probe.take()
    assert first is not None
    assert second is not None
    assert (first.faults_per_s, first.rss) == (2.0, 150 * PAGE)
    assert (second.faults_per_s, second.rss) == (0.0, 100 * PAGE)


@pytest.mark.parametrize("thread", [0, 99])
def test_a_thread_that_is_none_of_the_rank_is_not_read(proc: Proc, thread: int) -> None:
    probe = RankProbe(1000.0, str(proc.root))
    probe.update([PID], thread, 1010.0)
    notes = probe.take()
    assert notes is not None
    assert (notes.cpu, notes.queue, notes.rss) == (None, None, 100 * PAGE)


def test_a_thread_of_backward_may_get_its_name_late_and_names_are_read_twice(proc: Proc) -> None:
    proc.thread(BACKWARD, cpu=20, queue=2, name="python")
    probe = probe_of(proc)
    proc.thread(BACKWARD, cpu=21, queue=2, name="pt_autograd_0")
    for at in range(MAX_READS):
        probe.update([PID], MAIN, 1020.0 + at)
    notes = probe.take()
    assert notes is not None
    assert notes.cpu == 1.0


@pytest.mark.parametrize(("cores", "queue"), [(1, 0.325), (4, 0.38125)])
def test_the_queue_behind_its_own_threads_of_gloo_is_left_out(proc: Proc, cores: int, queue: float) -> None:
    proc.thread(30, cpu=1, queue=0, name="gloo_tcp_loop")
    proc.thread(31, cpu=2, queue=0, name="pt_gloo_runloop")
    proc.thread(32, cpu=9, queue=0, name="python")
    probe = probe_of(proc)
    proc.process(PID, cpu=100 + 10 * cores)
    proc.thread(MAIN, cpu=54, queue=8, name="python")
    proc.thread(BACKWARD, cpu=23, queue=3, name="pt_autograd_0")
    proc.thread(30, cpu=2, queue=0, name="gloo_tcp_loop")
    proc.thread(31, cpu=2.5, queue=0, name="pt_gloo_runloop")
    proc.thread(32, cpu=19, queue=0, name="python")
    probe.update([PID], MAIN, 1020.0)
    notes = probe.take()
    assert notes is not None
    assert (notes.cpu, notes.queue) == (approx(0.7), approx(queue))


def test_what_cannot_be_read_is_unknown(proc: Proc) -> None:
    (proc.root / f"{PID}/task/{MAIN}/schedstat").write_text("")
    probe = probe_of(proc)
    probe.update([PID], MAIN, 1020.0)
    notes = probe.take()
    assert notes is not None
    assert (notes.cpu, notes.queue) == (None, None)


def test_a_real_thread_that_computes_and_one_that_sleeps() -> None:
    until = time.monotonic() + 0.3
    probe = RankProbe(time.monotonic())
    probe.update([os.getpid()], threading.get_native_id(), time.monotonic())
    probe.take()
    while time.monotonic() < until:
        pass
    probe.update([os.getpid()], threading.get_native_id(), time.monotonic())
    busy = probe.take()
    time.sleep(0.2)
    probe.update([os.getpid()], threading.get_native_id(), time.monotonic())
    idle = probe.take()
    assert busy is not None
    assert idle is not None
    assert busy.cpu is not None
    assert busy.queue is not None
    assert idle.cpu is not None
    assert busy.cpu + busy.queue > 0.7
    assert idle.cpu < 0.3


def test_what_the_ranks_of_a_host_share_counts_once_for_all_of_them(proc: Proc) -> None:
    proc.write(f"{PID}/status", "Name:\tRssAnon:\nRssAnon:\t  1000 kB\nRssFile:\t  400 kB\nRssShmem:\t  80000 kB\n")
    lines = [
        "7f0000000000-7f0004000000 rw-p 00000000 00:01 65 /memfd:ipexctl-weights (deleted)",
        "7f0005000000-7f0006000000 rw-s 00000000 00:01 66 /memfd:ipexctl-allreduce (deleted)",
    ]
    proc.write(f"{PID}/maps", "\n".join(lines))
    found = []
    for sharers in (1, 4):
        probe = RankProbe(1000.0, str(proc.root), sharers)
        probe.update([PID], MAIN, 1010.0)
        notes = probe.take()
        assert notes is not None
        found.append(notes.rss)
    assert found == [81400 << 10, (1000 + 80000 - 65536 + (400 + 65536) // 4) << 10]

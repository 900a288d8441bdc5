"""Ranks that wait for one another in shared memory, without torch: whom a dump names, and whom the run's end blames."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from run_helpers import HERE, Run

from ipexctl.remote.local import LocalSession
from ipexctl.run.dump import Dump, dump
from ipexctl.run.start.begin import in_rank_files

pytest_plugins = ["run_fixtures"]

EXCHANGES = """
import os, sys, time
sys.path.insert(0, os.environ["PYTHONPATH"].partition(":")[0])  # the run's hooks are imported from there, and hide it
from ipexctl_inrank.segment import HEADER, WRITTEN, Segment, create_memfd
from ipexctl_inrank.waiting import MASK, Peer, Waiter, read_state

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
number = create_memfd(HEADER)
with open(f"{rank}.new", "w") as file:
    file.write(f"{os.getpid()} {number} {read_state(os.getpid())[1]}")
os.rename(f"{rank}.new", f"{rank}.peer")
while not all(os.path.exists(f"{peer}.peer") for peer in range(size)):
    time.sleep(0.01)
peers, segments = [], []
for peer in range(size):
    pid, theirs, started = map(int, open(f"{peer}.peer").read().split())
    peers.append(Peer(peer, pid, started))
    opened = number if peer == rank else os.open(f"/proc/{pid}/fd/{theirs}", os.O_RDWR)
    segments.append(Segment(opened, HEADER))
count, waiter = 0, Waiter(segments[rank], segments, peers, 600.0)
print("here", flush=True)
while True:
    count = (count + 1) & MASK
    waiter.count_up(WRITTEN, count)
    waiter.wait_for_all(WRITTEN, count)
    time.sleep(0.001)
"""


def awaited_by(run: Run, rank: int) -> int | None:
    """For which rank that one waits, as a dump says it."""
    found = dump(LocalSession(HERE), run.record, [rank])
    assert isinstance(found, Dump)
    return found.ranks[0].processes[0].waits_for


@pytest.mark.core
def test_rank_that_died_first_is_blamed_and_not_the_one_that_waited_for_it(make: Callable[..., Run]) -> None:
    """The wrapper of the rank that is killed stands still until the other rank has raised its error."""
    run = make(EXCHANGES)
    run.listen()
    for file in in_rank_files():
        (run.rundir / file.name).parent.mkdir(exist_ok=True)
        (run.rundir / file.name).write_bytes(file.content)
    run.write_job()
    run.send_go()
    run.wait_for_all(b"here")
    victim = run.status["ranks"][1]
    os.kill(victim["pid"], signal.SIGSTOP)
    run.wait_until(lambda: awaited_by(run, 0) == 1)
    os.kill(victim["wrapper"], signal.SIGSTOP)
    try:
        os.kill(victim["pid"], signal.SIGKILL)
        run.wait_until(lambda: run.events("ending"))
    finally:
        os.kill(victim["wrapper"], signal.SIGCONT)
    status = run.wait()
    (ending,) = run.events("ending")
    assert "rank 0" in ending["reason"], "it was the first to end, a second after the other's death"
    assert b"Connection closed by peer: rank 1 ended" in run.output(0, "err")
    first = status["first_failure"]
    assert (status["exit_code"], first["kind"], first["rank"], first["signal"]) == (137, "signal", 1, signal.SIGKILL)
    assert run.left() == []

"""Shows `ipexctl why` what is running beside a slow rank, for a second.

It runs on the host of the rank and reads /proc twice. Of other processes it tells pid, name, account, CPU use and
whether they are of the run. Their arguments and variables may contain secrets, so these are searched for the run's name
and never told. Processes of other accounts may be invisible: `unseen_share` is what the kernel counted and no visible
process explains.
"""

from __future__ import annotations

import os
import time
from typing import Collection, Iterator, Mapping

from ipexctl.node.common.answer import Action, AgentError, answer
from ipexctl.node.common.files import RunReference
from ipexctl.node.common.processes import ProcessStat, all_processes, read_text
from ipexctl.node.run.run_replies import ProcessShare, SuspectSnapshot

LOOK = 1.0
MOST_OTHERS = 5
LEAST_SHARE = 0.05
"""Fraction of a processor. A process that uses less does not slow a rank down."""
MOST_CANDIDATES = 40
MOST_THREADS = 256
MAX_ENVIRON = 256 << 10
_TICKS = os.sysconf("SC_CLK_TCK")


class SuspectRequest(RunReference):
    pid: int


def inspect_suspect(request: SuspectRequest, _: object) -> SuspectSnapshot:
    """Return which other processes use the cores of a rank, measured over LOOK seconds. Raises an AgentError if the
    rank's process is gone."""
    run, pid = request["id"], request["pid"]
    if not _is_of_run(pid, run):
        raise AgentError("the rank's process has exited, or belongs to another run")
    try:
        cores = sorted(os.sched_getaffinity(pid))
    except OSError:
        raise AgentError("the rank's process has exited") from None
    begun = time.monotonic()
    before, used_before = all_processes(), busy_seconds(read_text("/proc/stat"), cores)
    time.sleep(LOOK)
    after, used_after = all_processes(), busy_seconds(read_text("/proc/stat"), cores)
    seconds = time.monotonic() - begun
    shares = cpu_shares(before, after, seconds)
    own = family(after, pid)
    candidates = sorted((one for one in shares if one not in own | {os.getpid()}), key=lambda one: -shares[one])
    others = tuple(_others(candidates, shares, frozenset(cores), run))
    own_share = sum(shares.get(one, 0.0) for one in own)
    used = None if used_before is None or used_after is None else (used_after - used_before) / seconds
    seen = own_share + sum(process.share for process in others)
    return SuspectSnapshot(
        others=others[:MOST_OTHERS],
        unseen_share=None if used is None else max(0.0, used - seen),
    )


def family(stats: Collection[ProcessStat], pid: int) -> set[int]:
    """Return the pids of a process and all its descendants."""
    members, size = {pid}, 0
    while len(members) > size:
        size = len(members)
        members |= {stat.pid for stat in stats if stat.parent in members}
    return members


def cpu_shares(before: Collection[ProcessStat], after: Collection[ProcessStat], seconds: float) -> dict[int, float]:
    """Return how many processors each process used. A new process counts from its start."""
    earlier = {(stat.pid, stat.start): stat.seconds for stat in before}
    return {stat.pid: (stat.seconds - earlier.get((stat.pid, stat.start), 0.0)) / seconds for stat in after}


def busy_seconds(text: str, cores: Collection[int]) -> float | None:
    """Return the busy seconds of these processors since boot, from the `text` of /proc/stat; None if unknown."""
    names = {f"cpu{core}" for core in cores}
    rows = [line.split() for line in text.splitlines() if line.split(" ", 1)[0] in names]
    if not rows:
        return None
    # user, nice, system, irq and softirq, but not idle, iowait and steal
    return sum(int(row[column]) for row in rows for column in (1, 2, 3, 6, 7) if len(row) > column) / _TICKS


def _others(
    candidates: Collection[int], shares: Mapping[int, float], cores: frozenset[int], run: str
) -> Iterator[ProcessShare]:
    for pid in list(candidates)[:MOST_CANDIDATES]:
        if shares[pid] < LEAST_SHARE:
            return
        part = _part_on(pid, cores)
        if part * shares[pid] >= LEAST_SHARE:
            command = read_text(f"/proc/{pid}/comm").rstrip("\n")[:32]
            yield ProcessShare(pid, command, _account(pid), part * shares[pid], _is_of_run(pid, run))


def _part_on(pid: int, cores: frozenset[int]) -> float:
    try:
        threads = os.listdir(f"/proc/{pid}/task")[:MOST_THREADS]
    except OSError:
        return 0.0
    running, inside = 0, 0
    for thread in threads:
        fields = read_text(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2].split()
        if len(fields) > 36 and (fields[0] == "R" or len(threads) == 1):
            running += 1
            inside += int(fields[36]) in cores
    return inside / running if running else 0.0


def _account(pid: int) -> str:
    try:
        number = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    try:
        import pwd  # may be missing

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return str(number)


def _is_of_run(pid: int, run: str) -> bool:
    for name, pattern in (("environ", f"IPEXCTL_RUN={run}".encode()), ("cmdline", f"/runs/{run}/".encode())):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                data = file.read(MAX_ENVIRON)
        except OSError:
            continue
        if pattern in (data.split(b"\0") if name == "environ" else data):
            return True
    return False


def main(action: str) -> int:
    """Answer the agent's call `inspect`, and return its exit code."""
    actions: dict[str, Action] = {"inspect": inspect_suspect}
    return answer(actions[action])

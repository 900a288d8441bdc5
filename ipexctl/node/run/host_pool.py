"""Plans an attempt for the hosts that answer, out of the plan for all hosts of the run. Pure.

The supervisor has no planner: the plan came with the run. Node0 has rank 0 in every attempt. A host keeps its number of
ranks, their cores and variables; only the numbers of ranks and hosts change. What all hosts must share (backend,
instructions, all-reduce) stays as decided for all of them, so that steps round alike and a host that comes back fits.
Hosts of the attempt before come first, then others in the order of the hostfile.

`tests/unit/run/test_host_pool.py` compares it with the planner for random hosts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Collection, Mapping, Sequence

from ipexctl.node.common.job import RankPlacement, job_file
from ipexctl.node.run.rank_wrappers import ADDRESSES

if TYPE_CHECKING:
    from ipexctl.node.common.job import HostPool, JobRecord, StartRequest

_OF_RANK = 5
"""Words of a rank wrapper's line before the addresses; the last is the path of its job."""


def choose_hosts(pool: HostPool, present: Collection[str], last: Sequence[str]) -> tuple[str, ...]:
    """Hosts of the next attempt; fewer than `pool.least` if no more answer. `last`: hosts of the attempt before."""
    names = [host.host for host in pool.hosts]
    there = [name for name in names if name == names[0] or name in present]
    chosen = sorted(there, key=lambda name: name not in last)[: pool.wanted]
    return tuple(name for name in names if name in chosen)


def start_with(start: StartRequest, hosts: Collection[str], attempt: int) -> StartRequest:
    assert start.pool is not None
    chosen = [host for host in start.pool.hosts if host.host in hosts]
    of_ranks = [host for host in chosen for _ in range(host.ranks)]
    placements = tuple(RankPlacement(rank, host.host, host.store, host.word) for rank, host in enumerate(of_ranks))
    argv = _with_numbers(start.argv, len(chosen), len(placements)) if start.by_mpirun else list(start.argv)
    at = len(argv) - ADDRESSES - 1
    argv[at] = f"{argv[at].rpartition('/')[0]}/{job_file(attempt)}"
    return start._replace(argv=tuple(argv), ranks=placements, world_size=len(placements), nodes=len(chosen))


def _with_numbers(argv: Sequence[str], hosts: int, ranks: int) -> list[str]:
    """The line of mpirun, `… -n RANKS` before the line of a rank, or a scheduler's with both as options."""
    line = [f"--nodes={hosts}" if word.startswith("--nodes=") else word for word in argv]
    line = [f"--ntasks={ranks}" if word.startswith("--ntasks=") else word for word in line]
    at = len(line) - ADDRESSES - _OF_RANK - 1
    if at > 0 and line[at - 1] == "-n":
        line[at] = str(ranks)
    return line


def hostfile_of(pool: HostPool, hosts: Collection[str]) -> str:
    return "".join(host.line for host in pool.hosts if host.host in hosts)


def jobs_with(job: JobRecord, start: StartRequest, attempt: int | None) -> Mapping[str, JobRecord]:
    """Store → its job in an attempt, from the job of all hosts. `start`: the request for the attempt."""
    of_hosts: dict[str, list[int]] = {}
    for rank in sorted(job.ranks):
        of_hosts.setdefault(job.ranks[rank].host, []).append(rank)
    jobs: dict[str, JobRecord] = {}
    for placement in start.ranks:
        own = job.ranks[of_hosts[placement.host].pop(0)]
        if placement.store not in jobs:
            hosts = tuple(dict.fromkeys(other.host for other in start.ranks))
            jobs[placement.store] = job._replace(
                world_size=start.world_size, hosts=hosts, attempt=attempt, ranks={placement.rank: own}
            )
        else:
            before = jobs[placement.store]
            jobs[placement.store] = before._replace(ranks={**before.ranks, placement.rank: own})
    return jobs

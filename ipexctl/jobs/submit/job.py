"""The job records of a run: the part of the plan that each host's ranks read. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.launch.plan import RANK_NAMES
from ipexctl.node.common.job import JobRecord, Master, RankJob

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.launch.plan import HostPlan, LaunchPlan


def job_of(plan: LaunchPlan, host: HostPlan, secrets: Mapping[str, str]) -> JobRecord:
    """One host's job, without what `start` adds: the run's id and directory, the supervisor's address and token.

    A secret of the plan that is missing in `secrets` is a KeyError: it must not reach a rank empty.
    """
    variables: dict[str, str | None] = {}
    of_ranks: dict[int, dict[str, str | None]] = {rank.rank: {} for rank in host.ranks}
    prepended = []
    for setting in plan.settings:
        if setting.host not in (None, host.name) or setting.name in RANK_NAMES:
            continue  # the rank wrapper sets those from mpirun's variables
        value = secrets[setting.name] if setting.secret else setting.value
        if setting.rank is None:
            variables[setting.name] = value
        elif setting.rank in of_ranks:
            of_ranks[setting.rank][setting.name] = value
        if setting.prepend:
            prepended.append(setting.name)
    return JobRecord(
        world_size=plan.world_size,
        master=Master(plan.master_addr, plan.master_port),
        command=plan.command,
        cwd=plan.cwd,
        variables=variables,
        prepended=tuple(prepended),
        ranks={
            rank.rank: RankJob(
                host.name, rank.local_rank, len(host.ranks), rank.cores, rank.memory, of_ranks[rank.rank]
            )
            for rank in host.ranks
        },
    )


def merge_jobs(jobs: Sequence[JobRecord]) -> JobRecord:
    """One job for hosts that share a home: variables of a host become variables of its ranks."""
    if len(jobs) == 1:
        return jobs[0]
    ranks = {
        rank: plan._replace(variables={**job.variables, **plan.variables})
        for job in jobs
        for rank, plan in job.ranks.items()
    }
    prepended = {name for job in jobs for name in job.prepended}
    return jobs[0]._replace(variables={}, prepended=tuple(sorted(prepended)), ranks=ranks)

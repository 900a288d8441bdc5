"""One host's part of a plan, as the job file of `node/run/rank.py` wants it: its ranks and their variables. Pure.

Token, supervisor, paths and the values of secrets are put beside it by whoever starts the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipexctl.launch.rank_env import RANK_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.launch.plan import HostPlan, LaunchPlan


def job_of(plan: LaunchPlan, host: HostPlan, secrets: Mapping[str, str]) -> dict[str, Any]:
    """`world_size`, `master`, `command`, `cwd`, `variables`, `unset`, `prepended` and `ranks`.

    A secret of the plan that isn't among `secrets` is a KeyError: it must not reach a rank empty.
    """
    variables: dict[str, str | None] = {}
    of_ranks: dict[int, dict[str, str | None]] = {rank.rank: {} for rank in host.ranks}
    prepended = []
    for setting in plan.settings:
        if setting.host not in (None, host.name) or setting.name in RANK_NAMES:
            continue  # which rank it is, the rank wrapper knows by itself
        value = secrets[setting.name] if setting.secret else setting.value
        if setting.rank is None:
            variables[setting.name] = value
        elif setting.rank in of_ranks:
            of_ranks[setting.rank][setting.name] = value
        if setting.prepend:
            prepended.append(setting.name)
    return {
        "world_size": plan.world_size,
        "master": {"addr": plan.master_addr, "port": plan.master_port},
        "command": list(plan.command),
        "cwd": plan.cwd,
        "python": plan.python,
        "variables": {name: value for name, value in variables.items() if value is not None},
        "unset": [name for name, value in variables.items() if value is None],
        "prepended": prepended,
        "ranks": {
            str(rank.rank): {
                "host": host.name,
                "local_rank": rank.local_rank,
                "local_size": len(host.ranks),
                "cores": list(rank.cores),
                "memory": list(rank.memory),
                "variables": of_ranks[rank.rank],
            }
            for rank in host.ranks
        },
    }

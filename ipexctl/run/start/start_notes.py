"""Notes for the user before a run begins: about the job it is in or beside, restarts, and the script. Only a script
that is certain to need a GPU is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from ipexctl.hosts.allocation import SCHEDULERS
from ipexctl.hosts.nodeset import fold
from ipexctl.hosts.select import LOCAL
from ipexctl.known_errors.gpu_code import suggestions
from ipexctl.launch.request import Gathered
from ipexctl.node.common.plan import Plan
from ipexctl.run.start.preflight.resume import find_resume_flag, trainer_resume_note
from ipexctl.run.start.preflight.trainer import sets_use_ipex, trainer_note, use_ipex_note
from ipexctl.run.start.request import StartError, StartFailure
from ipexctl.spec import RunSpec
from ipexctl.stack.catalog import known_rows

_NEAR_END: Final = 3600
"""Seconds before the end of a job from which a note names it."""


def job_notes(context: Gathered, *, is_followed: bool = True) -> tuple[str, ...]:
    """In a job: that it ends soon, or with the call. Outside: that a scheduler manages the hosts."""
    seconds, job = context.job_seconds, context.transport.job_title(context.job)
    if seconds is not None and seconds < _NEAR_END:
        time_left = f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"
        return (f"{job} ends in {time_left}, and the run with it",)
    if context.job and not is_followed:
        return (f"the run ends with {job}, which may end with its last command; ipexctl wait waits for the run",)
    batches = {name: facts.batch for name, facts in context.facts.items()}
    managed = {name: batch.schedulers[0] for name, batch in batches.items() if batch.schedulers and not batch.job}
    if not managed or context.job:
        return ()
    scheduler = SCHEDULERS.get(next(iter(managed.values())))
    name, command = scheduler if scheduler is not None else ("a scheduler", "")
    where = "this machine" if context.hosts[0].address == LOCAL.address else fold(managed)
    note = f"{name} manages {where}, and this run is in no job of it: other jobs may get the same cores, or end it"
    if command:
        note += f"; {command.format(hosts=len(managed))} gets nodes, for ipexctl run inside it"
    return (note,)


def logind_notes(context: Gathered) -> tuple[str, ...]:
    name = context.hosts[0].name
    logind = context.facts[name].logind
    if logind is None or not logind.kill_user_processes or logind.linger:
        return ()
    note = f"{name}: logind ends all processes of an account at its last logout, and the run with them"
    return (f"{note}; `loginctl enable-linger` there, once, prevents that",)


def restart_note(plan: Plan) -> str:
    first = plan.hosts[0].name
    others = [host.name for host in plan.hosts if plan.stores[host.name] != plan.stores[first]]
    if not others:
        return ""
    return (
        f"--max-restarts: what rank 0 writes on {first} is not on {fold(others)}; if only rank 0 saves the checkpoint, "
        "the ranks there start again without it and can wait forever; --checkpoint PATH brings that file or directory "
        "to all hosts before each start"
    )


def check_gpu_code(spec: RunSpec, packages: Mapping[str, str]) -> None:
    """Raise a StartError for a script that fails on CPUs in any case. A user's torch may find a GPU. Pure."""
    script = spec.project.script
    if script is None or spec.python is not None or any(name.startswith("nvidia-") for name in packages):
        return
    if any(line.is_certain for line in script.gpu_lines):
        reason = f"{script.name} is written for GPUs, and the ranks run on CPUs"
        raise StartError(StartFailure(reason, suggestions(script.gpu_lines), exit_code=2))


def script_notes(context: Gathered, plan: Plan) -> tuple[str, ...]:
    spec, script = context.spec, context.spec.project.script
    uses_it, has_trainer = (script.uses_trainer, script.has_trainer) if script is not None else (False, False)
    packages = context.env.packages if context.env.is_installed else {}
    ranks = plan.world_size if plan.backend != "none" else 1
    has_use_ipex = sets_use_ipex(spec.argv[1:])
    lines = script.gpu_lines if script is not None else ()
    notes = (
        f"{spec.script} seems to be written for GPUs, and the ranks run on CPUs: {suggestions(lines)}" if lines else "",
        use_ipex_note(packages, _last_with_ipex(context.env.stacks)) if has_use_ipex else "",
        trainer_note(uses_it=uses_it, argv=spec.argv, packages=packages, ranks=ranks),
        trainer_resume_note(find_resume_flag(spec.argv[1:]), has_trainer=has_trainer, packages=packages, ranks=ranks),
    )
    return tuple(note for note in notes if note)


def _last_with_ipex(stacks: Sequence[str]) -> Mapping[str, str]:
    return next((dict(row.hugging_face) for row in known_rows(os.environ) if row.name in stacks), {})

"""Checks once the hosts have the project, before the ranks start: paths and files that the script names, and the
checkpoints that it resumes from. `pipeline.py` calls each of `CHECKS_AFTER_UPLOAD` in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ipexctl.homes.registry import RunRegistry
from ipexctl.node.common.plan import Plan
from ipexctl.run.start.apart_checkpoints import check_resumed, resume_note
from ipexctl.run.start.path_checks import check_data, unsynced_arguments
from ipexctl.run.start.run_start import RunStart
from ipexctl.run.start.start_project import files_in_other_generations
from ipexctl.run.unsent import unsent_note

CheckedPlan = tuple[Plan, Iterable[str]]
"""The plan with what the check decided, and notes for the user, some of them empty."""


def check_named_paths(start: RunStart, plan: Plan) -> CheckedPlan:
    """Refuse data that the hosts lack, and warn of paths in arguments that exist only on the control machine."""
    content, tree = start.project.content(), start.project.tree
    arguments = {} if content is None else unsynced_arguments(start.spec, content.manifest, tree)
    return plan, check_data(start.spec, tree, start.pool, arguments)


def note_unsent_files(start: RunStart, plan: Plan) -> CheckedPlan:
    """Warn of files that the script names and that were left out of the project."""
    content = start.project.content()
    return plan, () if content is None else unsent_note(start.spec, content)


def note_other_generations(start: RunStart, plan: Plan) -> CheckedPlan:
    """Warn of results that earlier runs left in another copy of the project on the hosts."""
    if not start.spec.asked.sync:
        return plan, ()
    return plan, [files_in_other_generations(start.project.tree, start.spec.project, RunRegistry().all())]


def keep_resumed_checkpoint(start: RunStart, plan: Plan) -> CheckedPlan:
    """Keep the checkpoint that a resumed run starts from, so that the run cannot overwrite it."""
    if not start.spec.asked.resumed:
        return plan, ()
    from ipexctl.run.start.resume import keep_checkpoint  # most runs begin anew

    text, source = keep_checkpoint(start.spec, start.spec.nodes_of(plan), plan, start.pool, RunRegistry())
    return plan._replace(resumes_from=source), (text,)


def compare_checkpoints(start: RunStart, plan: Plan) -> CheckedPlan:
    """Warn of hosts that would resume from different checkpoints."""
    apart = check_resumed(start.spec.nodes_of(plan), start.spec, plan, start.pool, RunRegistry().all())
    return plan._replace(apart=apart), () if apart is None else (resume_note(apart),)


CHECKS_AFTER_UPLOAD: Final[tuple[Callable[[RunStart, Plan], CheckedPlan], ...]] = (
    check_named_paths,
    note_unsent_files,
    note_other_generations,
    keep_resumed_checkpoint,
    compare_checkpoints,
)
"""Each raises a StartError if the run must not start."""

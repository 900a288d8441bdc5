"""Checks once the hosts have the project, before the ranks start: paths and files that the script names, and the
checkpoints that it resumes from. Each of `PARTS` has one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.plan import Plan
from ipexctl.remote.connector import SessionPool
from ipexctl.run.start.apart_checkpoints import check_resumed, resume_note
from ipexctl.run.start.path_checks import check_data, unsynced_arguments
from ipexctl.run.start.start_project import files_in_other_generations
from ipexctl.run.unsent import unsent_note
from ipexctl.sync.project import Project


@dataclass(frozen=True, slots=True)
class SentRun:
    spec: RunSpec
    plan: Plan
    nodes: Sequence[Host]
    """Node0 and the hosts with ranks."""
    tree: str
    content: Project | None
    """None with --no-sync."""
    pool: SessionPool
    registry: RunRegistry


def check_named_paths(run: SentRun) -> tuple[Plan, Iterable[str]]:
    arguments = {} if run.content is None else unsynced_arguments(run.spec, run.content.manifest, run.tree)
    return run.plan, check_data(run.spec, run.tree, run.pool, arguments)


def note_unsent_files(run: SentRun) -> tuple[Plan, Iterable[str]]:
    return run.plan, () if run.content is None else unsent_note(run.spec, run.content)


def note_other_generations(run: SentRun) -> tuple[Plan, Iterable[str]]:
    is_synced = run.spec.asked.sync
    return run.plan, ([files_in_other_generations(run.tree, run.spec.project, run.registry.all())] if is_synced else ())


def keep_resumed_checkpoint(run: SentRun) -> tuple[Plan, Iterable[str]]:
    if not run.spec.asked.resumed:
        return run.plan, ()
    from ipexctl.run.start.resume import keep_checkpoint  # most runs begin anew

    text, source = keep_checkpoint(run.spec, run.nodes, run.plan, run.pool, run.registry)
    return run.plan._replace(resumes_from=source), (text,)


def compare_checkpoints(run: SentRun) -> tuple[Plan, Iterable[str]]:
    apart = check_resumed(run.nodes, run.spec, run.plan, run.pool, run.registry.all())
    return run.plan._replace(apart=apart), () if apart is None else (resume_note(apart),)


PARTS: Final[tuple[Callable[[SentRun], tuple[Plan, Iterable[str]]], ...]] = (
    check_named_paths,
    note_unsent_files,
    note_other_generations,
    keep_resumed_checkpoint,
    compare_checkpoints,
)
"""Each returns the plan so far with what it found, and notes, some of them empty. Raises a StartError."""

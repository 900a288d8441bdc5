"""Starts a run: gather, plan, preflight, upload, start. Or only plans it, for a dry run.

Slow steps begin early in the background, and the step that needs their result waits for them:

project is read ──► hosts are asked for their copies of it ───────────┐
facts, homes, environment ──► plan ──► preflight, supervisor starts ──┴──► upload ──► job files ──► mpirun

Each step that leaves something on a host adds its removal to `_Undo`, so a run that does not start leaves nothing where
the hosts can be reached. A start whose end is unknown, because node0 was lost meanwhile, removes nothing: it may run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath

from ipexctl.errors import Refusal
from ipexctl.facts.live_runs import CallDetails
from ipexctl.homes.pending import clear_pending, mark_pending
from ipexctl.homes.prune_runs import prune_local, read_limits
from ipexctl.homes.registry import RunRegistry, new_id, new_record
from ipexctl.launch.other_runs import notes_on
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.python_env import own_paths
from ipexctl.launch.run_context import RunContext
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.job import ConnectivityRecord
from ipexctl.node.common.plan import Plan
from ipexctl.node.env.check import normalize
from ipexctl.option_declaration import install_command
from ipexctl.remote.caller import identify_caller
from ipexctl.remote.fanout import run_in_background
from ipexctl.run.start.begin import Launch
from ipexctl.run.start.checks_after_upload import CHECKS_AFTER_UPLOAD
from ipexctl.run.start.connection_checks import check_connectivity
from ipexctl.run.start.context import likely_nodes
from ipexctl.run.start.earlier_runs import find_earlier_files
from ipexctl.run.start.exclusive import HostLocks, OtherRunBegan, check_alone, lock_hosts, notes_on_hiding
from ipexctl.run.start.run_start import RunStart
from ipexctl.run.start.script_imports import check_on_hosts, install_by_run
from ipexctl.run.start.start_notes import (
    AFTER_START_NOTES,
    BEFORE_START_NOTES,
    DRY_RUN_NOTES,
    PLAN_NOTES,
    SCRIPT_CHECKS,
    collect_notes,
)
from ipexctl.run.start.start_project import find_commit
from ipexctl.run.start.start_request import StartError, StartFailure, check_pool_plan
from ipexctl.run.start.watcher import PlannedRun, StartedRun
from ipexctl.run.windows import earlier_memory
from ipexctl.sync.path_notes import note_secret_files


class _Undo(ExitStack):
    """Removes what the steps have left behind, in reverse order, unless `pop_all` is called once the run has
    started."""

    def __init__(self) -> None:
        super().__init__()
        self.unreached = set[str]()
        """Hosts that could not be reached to remove what is there."""

    def on_hosts(self, clean: Callable[[], frozenset[str]]) -> None:
        """`clean` returns the hosts that it could not reach."""
        self.callback(lambda: self.unreached.update(clean()))


def plan_run(start: RunStart, run: str = "RUN", *, checks_script: bool = False) -> PlannedRun | StartFailure:
    """Plan the run for --dry-run and export: take the steps of `start_run` that change nothing.

    `checks_script`: also look for the modules that the script imports, if the environment exists on the hosts."""
    try:
        with ExitStack() as at_end:
            at_end.enter_context(start.named("{run}"))
            spec, project = start.spec, start.project
            project.compare(lease=None)
            at_end.callback(project.release)
            context, plan = _plan(start, run, dry_run=True)
            project.upload(context)
            if checks_script and context.env.is_installed:
                start.show(check_on_hosts(context, context.spec.nodes_of(plan), project.content(), start.pool))
            notes = (*notes_on(plan.other_runs, time.time()), *plan.notes)
            plan = with_tree_paths(plan._replace(notes=tuple(map(spec.options.apply, notes))), project.tree, spec)
            return PlannedRun(plan, context)
    except StartError as error:
        return error.failure


def start_run(start: RunStart) -> StartedRun | StartFailure:
    """Start a run. The run is in the registry before its first rank lives.

    With --exclusive, a start that was overtaken by another run waits for that run, and begins again."""
    spec, run = start.spec, new_id(start.spec.asked.script, time.time())
    note_secret_files(spec.secret_files)
    with ExitStack() as at_end:
        at_end.enter_context(start.named(run))
        at_end.callback(start.notes.remember())
        try:
            locks = _lock_hosts(start, run, at_end) if spec.asked.is_exclusive else None
            while True:
                try:
                    return _start_locked(start, run, locks)
                except OtherRunBegan:
                    assert locks is not None
                    locks.wait_until_free()
                    start.forget()
        except StartError as error:
            return error.failure


def _start_locked(start: RunStart, run: str, locks: HostLocks | None) -> StartedRun:
    """Start the run on hosts that are free, or that it may share with other runs. Raises a StartError, or
    OtherRunBegan, if the run does not start."""
    spec, pool, project = start.spec, start.pool, start.project
    registry, undo, retention = RunRegistry(), _Undo(), read_limits(os.environ)
    with mark_pending(registry.directory, run, undo.unreached), undo:
        began = time.monotonic()
        project.compare(lease=run)
        undo.on_hosts(project.release)
        context, plan = _plan(start, run, locks=locks)

        project.content(waits=False)  # if the project was already refused, do not bother the hosts with the preflight
        preflight = run_in_background(partial(_preflight, start, context, plan), "preflight")
        undo.callback(wait, (preflight,))  # or its notes could appear after the call has returned
        project.content()  # a project that is refused here has put no file of the run on a host yet
        record = new_record(context, plan, pool.connector.options)
        undo.callback(registry.remove, run)
        launch = Launch(record, pool, retention)
        launch.start_supervisor()
        undo.on_hosts(launch.abandon)

        upload_seconds = project.upload(context, preflight)
        plan = with_tree_paths(plan, project.tree, spec)
        for check in CHECKS_AFTER_UPLOAD:
            plan, notes = check(start, plan)
            start.show(notes)
        earlier = run_in_background(partial(find_earlier_files, start, plan), "earlier files")
        undo.callback(wait, (earlier,))
        plan = plan._replace(
            commit=find_commit(spec.project.root),
            before_start={"checks": time.monotonic() - began - upload_seconds, "sync": upload_seconds},
            by=identify_caller(os.environ),
        )
        record = replace(record, source=plan)
        registry.save(record)
        launch.upload_jobs(plan, spec.secrets)

        connectivity = preflight.result()
        start.show(earlier.result())
        clear_pending(registry.directory, run)  # from here on, node0 knows whether the run lives
        try:
            launch.start_launcher(connectivity, spec.notify)
        except StartError as error:
            if error.failure.is_unsure:
                undo.pop_all()  # it may run
            raise
        undo.pop_all()
    with launch.stopped_on_failure(start.watcher.on_note):
        if locks is not None:
            locks.leave(record.rundir)
        run_in_background(lambda: prune_local(registry, retention), "prune")
        start.show(collect_notes(AFTER_START_NOTES, context, plan))
    return StartedRun(record, launch)


def _plan(
    start: RunStart, run: str, *, locks: HostLocks | None = None, dry_run: bool = False
) -> tuple[RunContext, Plan]:
    """Gather what the plan needs, and make it. Raises a StartError, and a UserError if the call names ranks to show
    that the plan does not have."""
    spec, context = start.spec, start.gather_context(dry_run=dry_run)
    if dry_run:
        start.project.content()  # named before any note
        start.show(context.notes)  # also for a run that is refused
    context = replace(context, earlier_memory=earlier_memory(spec.project.root, spec.asked.script))
    plan = make_plan(context, run)
    if locks is not None:
        check_alone(plan.other_runs, locks)
    start.watcher.on_planned(plan)
    start.show(collect_notes(DRY_RUN_NOTES if dry_run else BEFORE_START_NOTES, context, plan))
    return context, plan


def _lock_hosts(start: RunStart, run: str, at_end: ExitStack) -> HostLocks:
    """Lock the hosts that will probably get ranks, waiting for other runs as --wait says; release them at the end."""
    spec = start.spec
    call = CallDetails(identify_caller(os.environ), spec.asked.script, spec.asked.tag or "")
    locks = lock_hosts(likely_nodes(spec), run, spec.asked.wait, start.pool, start.watcher.on_step, call)
    at_end.callback(locks.release)
    if locks.has_waited:
        start.forget()
    start.show(notes_on_hiding(locks.hiding))
    return locks


def _preflight(start: RunStart, context: RunContext, plan: Plan) -> ConnectivityRecord | None:
    """Check the connections between the nodes and the script's imports at the same time. Return the record of the
    connections. If both checks fail, raise the failure of the connections."""
    nodes = context.spec.nodes_of(plan)
    connectivity = run_in_background(lambda: check_connectivity(nodes, context, start.pool), "connectivity")
    try:
        start.show(check_on_hosts(context, nodes, start.project.content(), start.pool))
    except StartError:
        connectivity.result()  # raises the failure of a connection, which comes first
        raise
    return connectivity.result()


def make_plan(context: RunContext, run: str) -> Plan:
    """Return the plan of a run, without a working directory: `with_tree_paths` adds it once the hosts have the project.
    Raises a StartError if the run must not or cannot start."""
    spec = context.spec
    for refuse in SCRIPT_CHECKS:
        refuse(spec, context.env.packages)
    plan = plan_launch(context, run)
    if isinstance(plan, Refusal):
        raise StartError(plan)
    plan = plan._replace(notes=tuple(collect_notes(PLAN_NOTES, context, plan)))
    if plan.env:
        requirements = spec.project.requirements
        own = sorted({*requirements.names} - {pin.partition("==")[0] for pin in requirements.pins})
        plan = plan._replace(
            install=str(install_command(spec.asked.env)),
            packages=tuple(sorted(map(normalize, context.env.packages))),
            install_by_run=str(install_by_run(spec) or ""),
            project_packages=(*own, *requirements.pins),
        )
    if spec.asked.has_pool and (refusal := check_pool_plan(spec.asked, plan)) is not None:
        raise StartError(refusal)
    return plan


def with_tree_paths(plan: Plan, tree: str, spec: RunSpec) -> Plan:
    """Return the plan with the ranks' working directory, and with the directories of the project's own modules in
    `tree`, the project's path on the hosts."""
    settings = (*plan.settings, *own_paths(plan.project, tree, plan.rundir))
    return plan._replace(cwd=str(PurePosixPath(tree) / spec.project.subdirectory), settings=settings)

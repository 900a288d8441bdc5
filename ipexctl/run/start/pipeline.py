"""Starts a run: gather, plan, preflight, upload, start. Or only plans it, for a dry run.
Slow steps begin early in the background, and the step that needs them waits:
project is read ──► hosts are asked for their copies of it ───────────┐
facts, homes, environment ──► plan ──► preflight, supervisor starts ──┴──► upload ──► job files ──► mpirun
Each step that leaves something behind adds its removal to `_Undo`, so a run that does not start leaves nothing.
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
from ipexctl.launch.request import Gathered
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
    AFTER_START,
    OF_PLAN,
    OF_SCRIPT,
    OF_START,
    REFUSALS,
    texts_of,
)
from ipexctl.run.start.start_project import find_commit
from ipexctl.run.start.start_request import StartError, StartFailure, check_pool_plan
from ipexctl.run.start.watcher import PlannedRun, StartedRun
from ipexctl.run.windows import earlier_memory
from ipexctl.sync.path_notes import note_secret_files


class _Undo(ExitStack):
    """How to remove what the steps leave behind, in reverse order; used unless the run starts."""

    def __init__(self) -> None:
        super().__init__()
        self.unreached = set[str]()

    def on_hosts(self, clean: Callable[[], frozenset[str]]) -> None:
        """`clean` returns the hosts that it could not reach."""
        self.callback(lambda: self.unreached.update(clean()))


def plan_run(start: RunStart, run: str = "RUN", *, checks_script: bool = False) -> PlannedRun | StartFailure:
    """The steps of `start_run` up to the first that changes something, for --dry-run and export. `checks_script`: look
    for the script's modules in an environment that exists."""
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
            plan = in_tree(plan._replace(notes=tuple(map(spec.options.apply, notes))), project.tree, spec)
            return PlannedRun(plan, context)
    except StartError as error:
        return error.failure


def start_run(start: RunStart) -> StartedRun | StartFailure:
    """Start a run. It is in the registry before its first rank lives; of one that does not start, nothing is left."""
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
    """Raises a StartError; then nothing of the run is left."""
    spec, pool, project = start.spec, start.pool, start.project
    registry, undo, retention = RunRegistry(), _Undo(), read_limits(os.environ)
    with mark_pending(registry.directory, run, undo.unreached), undo:
        began = time.monotonic()
        project.compare(lease=run)
        undo.on_hosts(project.release)
        context, plan = _plan(start, run, locks=locks)

        project.content(waits=False)  # refused by now: the hosts need no check
        preflight = run_in_background(lambda: _preflight(start, context, plan), "preflight")
        undo.callback(wait, (preflight,))  # its notes come before the answer of the call
        project.content()  # refused here, while no host has a file of the run
        record = new_record(context, plan, pool.connector.options)
        undo.callback(registry.remove, run)
        launch = Launch(record, pool, retention)
        launch.start_supervisor()
        undo.on_hosts(launch.abandon)

        upload_seconds = project.upload(context, preflight)
        plan = in_tree(plan, project.tree, spec)
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
        if locks is not None:
            locks.leave(record.rundir)
    run_in_background(lambda: prune_local(registry, retention), "prune")
    start.show(texts_of(AFTER_START, context, plan))
    return StartedRun(record, launch)


def _plan(start: RunStart, run: str, *, locks: HostLocks | None = None, dry_run: bool = False) -> tuple[Gathered, Plan]:
    """Raises a StartError, and a UserError for ranks to show that do not exist."""
    spec, context = start.spec, start.gather(dry_run=dry_run)
    if dry_run:
        start.project.content()  # named before any note
        start.show(context.notes)  # also for a run that is refused
    context = replace(context, earlier_memory=earlier_memory(spec.project.root, spec.asked.script))
    plan = make_plan(context, run)
    if locks is not None:
        check_alone(plan.other_runs, locks)
    start.watcher.on_planned(plan)
    start.show(texts_of(OF_SCRIPT if dry_run else OF_START, context, plan))
    return context, plan


def _lock_hosts(start: RunStart, run: str, at_end: ExitStack) -> HostLocks:
    spec = start.spec
    call = CallDetails(identify_caller(os.environ), spec.asked.script, spec.asked.tag or "")
    locks = lock_hosts(likely_nodes(spec), run, spec.asked.wait, start.pool, start.watcher.on_step, call)
    at_end.callback(locks.release)
    if locks.has_waited:
        start.forget()
    start.show(notes_on_hiding(locks.hiding))
    return locks


def _preflight(start: RunStart, context: Gathered, plan: Plan) -> ConnectivityRecord | None:
    nodes = context.spec.nodes_of(plan)
    connectivity = run_in_background(lambda: check_connectivity(nodes, context, start.pool), "connectivity")
    try:
        start.show(check_on_hosts(context, nodes, start.project.content(), start.pool))
    except StartError:
        connectivity.result()  # raises the failure of a connection, which comes first
        raise
    return connectivity.result()


def make_plan(context: Gathered, run: str) -> Plan:
    """The plan of a run; its working directory follows when the hosts' tree is known. Raises a StartError."""
    spec = context.spec
    for refuse in REFUSALS:
        refuse(spec, context.env.packages)
    plan = plan_launch(context, run)
    if isinstance(plan, Refusal):
        raise StartError(plan)
    plan = plan._replace(notes=tuple(texts_of(OF_PLAN, context, plan)))
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


def in_tree(plan: Plan, tree: str, spec: RunSpec) -> Plan:
    """The plan with the ranks' working directory and the modules' directories in the tree that the hosts have."""
    settings = (*plan.settings, *own_paths(plan.project, tree, plan.rundir))
    return plan._replace(cwd=str(PurePosixPath(tree) / spec.project.subdirectory), settings=settings)

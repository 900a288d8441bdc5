"""Starts a run: gather, plan, preflight, upload, start. Or only plans it, for a dry run.
Slow steps begin early in the background, and the step that needs them waits:
project is read ──► hosts are asked for their copies of it ───────────┐
facts, homes, environment ──► plan ──► preflight, supervisor starts ──┴──► upload ──► job files ──► mpirun
Each step that leaves something behind adds its removal to `_Undo`, so a run that does not start leaves nothing.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath

from ipexctl.errors import Refusal
from ipexctl.facts.gather import HostFacts
from ipexctl.facts.live_runs import CallDetails
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.accelerate_config import remarks
from ipexctl.launch.accelerate_env import unsupported_settings
from ipexctl.launch.other_runs import notes_on
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.python_env import own_paths
from ipexctl.launch.request import Gathered
from ipexctl.node.common.job import ConnectivityRecord
from ipexctl.node.common.plan import Plan
from ipexctl.node.common.records import RunStatus
from ipexctl.node.env.check import normalize
from ipexctl.option_declaration import install_command
from ipexctl.remote.caller import identify_caller
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.fanout import run_in_background
from ipexctl.run.local_copy import read_final_status
from ipexctl.run.pending import clear_pending, mark_pending
from ipexctl.run.prune_runs import prune_local, read_limits
from ipexctl.run.registry import RunRecord, RunRegistry, new_id, new_record, read_given_id
from ipexctl.run.start.before_install import likely_nodes
from ipexctl.run.start.begin import Launch, clean_up
from ipexctl.run.start.connection_checks import check_connectivity
from ipexctl.run.start.context import gather
from ipexctl.run.start.exclusive import HostLocks, Obstacles, lock_hosts, refusal
from ipexctl.run.start.path_checks import check_data, unsynced_arguments
from ipexctl.run.start.project import files_in_other_generations, find_commit
from ipexctl.run.start.request import StartError, StartFailure, check_pool_plan
from ipexctl.run.start.script_imports import (
    check_own_modules,
    check_script,
    install_by_run,
    with_environment,
    with_sent_files,
)
from ipexctl.run.start.start_notes import (
    check_gpu_code,
    check_resumed,
    job_notes,
    logind_notes,
    restart_note,
    resume_note,
    script_notes,
)
from ipexctl.run.start.upload import begin_query, refuse_lost_checkpoint, release_tree, start_reading, upload_project
from ipexctl.run.start.watcher import PlannedRun, StartedRun, StartWatcher
from ipexctl.run.unsent import unsent_note
from ipexctl.run.windows import earlier_memory
from ipexctl.spec import RunSpec
from ipexctl.sync.path_notes import note_secret_files
from ipexctl.sync.project import Project
from ipexctl.sync.project_sync import ProjectSync


class _Start:
    def __init__(self, spec: RunSpec, pool: SessionPool, watcher: StartWatcher) -> None:
        self.spec, self.pool, self.watcher = spec, pool, watcher
        self._noted = set[str]()

    def note(self, text: str) -> None:
        """Once. Each command to type in it gets the options of the call."""
        text = self.spec.options.apply(text)
        if text not in self._noted:
            self._noted.add(text)
            self.watcher.on_note(text)


class _Undo(ExitStack):
    """How to remove what the steps leave behind, in reverse order; used unless the run starts."""

    def __init__(self) -> None:
        super().__init__()
        self.unreached = set[str]()

    def on_hosts(self, clean: Callable[[], frozenset[str]]) -> None:
        """`clean` returns the hosts that it could not reach."""
        self.callback(lambda: self.unreached.update(clean()))


def plan_run(
    spec: RunSpec, pool: SessionPool, watcher: StartWatcher, run: str = "RUN", *, checks_script: bool = False
) -> PlannedRun | StartFailure:
    """The steps of `start_run` up to the first that changes something, for --dry-run and export. `checks_script`: look
    for the script's modules in an environment that exists."""
    try:
        with ExitStack() as at_end:
            reading = start_reading(spec, watcher.on_step)
            query = begin_query(reading, spec, pool, lease=None)
            if query is not None:
                at_end.callback(wait, (query,))
            start = _Start(spec, pool, watcher)
            context, plan = _plan(start, query, run, dry_run=True)
            tree, _ = upload_project(query, context, watcher.on_step)
            if checks_script and context.env.is_installed and (text := _check_script(start, context, plan, reading)):
                start.note(text)
            notes = (*notes_on(plan.other_runs, time.time()), *plan.notes)
            plan = _in_tree(plan._replace(notes=tuple(map(spec.options.apply, notes))), tree, spec)
            return PlannedRun(plan, context)
    except StartError as error:
        return error.failure


def start_run(
    spec: RunSpec,
    pool: SessionPool,
    watcher: StartWatcher,
    *,
    reading: Future[Project] | None = None,
    probed: Sequence[HostFacts] = (),
) -> StartedRun | StartFailure:
    """Start a run. It is in the registry before its first rank lives. `probed`: facts that were just gathered."""
    start = _Start(spec, pool, watcher)
    try:
        return _start_once(start, reading, probed)
    except StartError as error:
        return error.failure


class _OtherRunBegan(StartError):
    """A run without --exclusive began on the hosts although this call holds their locks."""


def _start_once(start: _Start, reading: Future[Project] | None, probed: Sequence[HostFacts]) -> StartedRun:
    """Raises a StartError; then nothing of the run is left."""
    spec, registry = start.spec, RunRegistry()
    run = read_given_id(os.environ)
    if not run or registry.knows(run):  # another run of the same job
        run = new_id(spec.asked.script, time.time())
    note_secret_files(spec.secret_files)
    with ExitStack() as at_end:
        locks = _lock_hosts(start, run, at_end)
        while True:
            if locks is not None and locks.has_waited:
                reading, probed = None, ()  # the project and the hosts may have changed since
            try:
                return _start_locked(start, run, locks, reading, probed)
            except _OtherRunBegan:
                assert locks is not None
                locks.wait_until_free()
                locks.has_waited = True


def _start_locked(
    start: _Start,
    run: str,
    locks: HostLocks | None,
    reading: Future[Project] | None,
    probed: Sequence[HostFacts],
) -> StartedRun:
    spec, pool, on_step = start.spec, start.pool, start.watcher.on_step
    registry, undo, retention = RunRegistry(), _Undo(), read_limits(os.environ)
    with mark_pending(registry.directory, run, undo.unreached), undo:
        began = time.monotonic()
        reading = reading or start_reading(spec, on_step)
        query = begin_query(reading, spec, pool, lease=run)
        if query is not None:
            undo.on_hosts(partial(release_tree, query, spec, pool, lease=run))
        context, plan = _plan(start, query, run, locks=locks, probed=probed)

        _refuse_bad_project(reading, wait_for_it=False)  # then the hosts need no check
        preflight = _begin_preflight(start, context, plan, undo, reading)
        _refuse_bad_project(reading)  # while no host has a file of the run
        record = new_record(context, plan, pool.connector.options)
        undo.callback(registry.remove, run)
        launch = Launch(record, pool, retention)
        launch.start_supervisor()
        undo.on_hosts(launch.abandon)

        tree, upload_seconds = upload_project(query, context, on_step, preflight)
        arguments = {} if reading is None else unsynced_arguments(spec, reading.result().manifest, tree)
        notes = check_data(spec, tree, pool, arguments)
        if reading is not None:
            notes += unsent_note(spec, reading.result())
        for text in notes:
            start.note(text)
        records = registry.all()
        if spec.asked.sync and (text := files_in_other_generations(tree, spec.project, records)):
            start.note(text)
        plan = _in_tree(plan, tree, spec)
        refuse_lost_checkpoint(spec, record.nodes, plan, pool, registry)
        if apart := check_resumed(record.nodes, spec, plan, pool, records):
            start.note(resume_note(apart))
            plan = plan._replace(apart=apart)
        before = {"checks": time.monotonic() - began - upload_seconds, "sync": upload_seconds}
        commit = find_commit(spec.project.root)
        plan = plan._replace(commit=commit, before_start=before, by=identify_caller(os.environ))
        record = replace(record, source=plan)
        registry.save(record)
        launch.upload_jobs(plan, spec.secrets)

        connectivity = preflight.result()
        clear_pending(registry.directory, run)  # from here on, node0 knows whether the run lives
        _start_launcher(launch, connectivity, spec.notify, undo)
        if locks is not None:
            locks.leave(record.rundir)
    run_in_background(lambda: prune_local(registry, retention), "prune")
    for text in (*plan.notes, *logind_notes(context)):
        start.note(text)
    return StartedRun(record, launch)


def _plan(
    start: _Start,
    query: Future[ProjectSync] | None,
    run: str,
    *,
    locks: HostLocks | None = None,
    probed: Sequence[HostFacts] = (),
    dry_run: bool = False,
) -> tuple[Gathered, Plan]:
    """Raises a StartError, and a UserError for ranks to show that do not exist."""
    spec = start.spec
    context = gather(spec, start.pool, dry_run=dry_run, probed=probed)
    notes = list(context.notes)
    if dry_run:
        if query is not None:
            query.result()  # the project is named before any note
        while notes:  # also for a run that is refused
            start.note(notes.pop(0))
    context = replace(context, earlier_memory=earlier_memory(spec.project.root, spec.asked.script))
    plan = make_plan(context, run)
    if locks is not None:
        _check_alone(plan, locks)
    start.watcher.on_planned(plan)
    if not dry_run:
        if locks is None:
            notes = [*notes_on(plan.other_runs, time.time()), *notes]
        notes += job_notes(context, is_followed=spec.asked.is_followed)
        is_of_all = spec.asked.max_restarts and not spec.asked.keep_going  # copies are started again where they were
        if is_of_all and not spec.asked.checkpoint and (text := restart_note(plan)):
            notes.append(text)
    for text in (*notes, *script_notes(context, plan)):
        start.note(text)
    return context, plan


# Other runs


def _lock_hosts(start: _Start, run: str, at_end: ExitStack) -> HostLocks | None:
    spec = start.spec
    if not spec.asked.is_exclusive:
        return None
    call = CallDetails(identify_caller(os.environ), spec.asked.script, spec.asked.tag or "")
    locks = lock_hosts(likely_nodes(spec), run, spec.asked.wait, start.pool, start.watcher.on_step, call)
    at_end.callback(locks.release)
    if locks.hiding:
        start.note(
            f"{fold(locks.hiding)}: /proc hides the processes of other accounts (hidepid), so that their runs are not "
            "seen there"
        )
    return locks


def _check_alone(plan: Plan, locks: HostLocks) -> None:
    """Raise an `_OtherRunBegan` if a run without --exclusive has begun since the hosts were locked; a StartError if it
    is on a host that this call has not locked."""
    running = tuple(other for other in plan.other_runs if other.state == "running")
    if running:
        locked = {host.name for host in locks.hosts}
        error = _OtherRunBegan if any(locked.intersection(other.hosts) for other in running) else StartError
        raise error(refusal(Obstacles(running), now=time.time()))


def _refuse_bad_project(reading: Future[Project] | None, *, wait_for_it: bool = True) -> None:
    """Raise the UserError of a project that cannot be sent; without `wait_for_it`, only if it is known by now."""
    if reading is not None and (wait_for_it or reading.done()):
        reading.result()


# Plan: pure


def make_plan(context: Gathered, run: str) -> Plan:
    """The plan of a run; its working directory follows when the hosts' tree is known. Pure. Raises a StartError."""
    plan = _plan_hosts(context, run)
    if context.spec.asked.has_pool and (refusal := check_pool_plan(context.spec.asked, plan)) is not None:
        raise StartError(refusal)
    return plan


def _plan_hosts(context: Gathered, run: str) -> Plan:
    spec = context.spec
    check_gpu_code(spec, context.env.packages)
    packages = tuple(sorted(map(normalize, context.env.packages)))
    if spec.project.script is not None:
        check_own_modules(spec.project.script, packages)
    plan = plan_launch(context, run)
    if isinstance(plan, Refusal):
        raise StartError(plan)
    notes = (*plan.notes, *_accelerate_notes(context))
    plan = plan._replace(notes=notes)
    if not plan.env:
        return plan
    plan = plan._replace(install=str(install_command(spec.asked.env)), packages=packages)
    return plan._replace(
        install_by_run=str(install_by_run(spec) or ""), project_packages=tuple(sorted(spec.project.requirements.names))
    )


def _accelerate_notes(context: Gathered) -> tuple[str, ...]:
    """On fields of an accelerate config that set no variable."""
    config = context.spec.accelerate
    if config is None:
        return ()
    node0 = context.hosts[0]
    addresses = {address.address for nic in context.facts[node0.name].network.nics for address in nic.addresses}
    notes = remarks(config, len(context.hosts), {node0.name, node0.address, *addresses})
    return (*notes, *unsupported_settings(config, context.env.packages))


def _in_tree(plan: Plan, tree: str, spec: RunSpec) -> Plan:
    """The plan with the ranks' working directory and the modules' directories in the tree that the hosts have."""
    settings = (*plan.settings, *own_paths(plan.project, tree, plan.rundir))
    return plan._replace(cwd=str(PurePosixPath(tree) / spec.project.subdirectory), settings=settings)


# Preflight


def _begin_preflight(
    start: _Start, context: Gathered, plan: Plan, undo: _Undo, reading: Future[Project] | None
) -> Future[ConnectivityRecord | None]:
    preflight = run_in_background(partial(_preflight, start, context, plan, reading), "preflight")
    undo.callback(wait, (preflight,))  # its notes come before the answer of the call
    return preflight


def _preflight(
    start: _Start, context: Gathered, plan: Plan, reading: Future[Project] | None
) -> ConnectivityRecord | None:
    nodes = context.nodes_of(plan)
    connectivity = run_in_background(lambda: check_connectivity(nodes, context, start.pool), "connectivity")
    try:
        text = _check_script(start, context, plan, reading)
    except StartError:
        connectivity.result()  # raises the failure of a connection, which comes first
        raise
    if text:
        start.note(text)
    return connectivity.result()


def _check_script(start: _Start, context: Gathered, plan: Plan, reading: Future[Project] | None) -> str:
    script = start.spec.project.script
    if script is None or not start.spec.asked.sync:
        return ""
    script = with_environment(script, context)
    if reading is not None:
        script = with_sent_files(script, [entry.path for entry in reading.result().manifest.entries])
    return check_script(context.nodes_of(plan), context.env.python, script, start.pool)


# Start


def _start_launcher(launch: Launch, connectivity: ConnectivityRecord | None, notify: str, undo: _Undo) -> None:
    """Start the ranks. From then on nothing is undone, even if it is unclear whether the run started."""
    try:
        launch.start_launcher(connectivity, notify)
    except StartError as error:
        if error.failure.is_unsure:
            undo.pop_all()
        raise
    undo.pop_all()


# Afterwards


def remove_job_files(hosts: Sequence[Host], record: RunRecord, pool: SessionPool) -> None:
    """For a run that failed or was stopped before all ranks had read their token and secrets."""
    names = hosts_with_job_files(record, read_final_status(RunRegistry().directory / record.id))
    rundir = shlex.quote(record.rundir)
    clean_up([host for host in hosts if host.name in names], f"rm -f {rundir}/job.json {rundir}/job.*.json", pool)


def hosts_with_job_files(record: RunRecord, ended: RunStatus | None) -> frozenset[str]:
    """The hosts that may still have the job file. Pure. A rank wrapper that has reached the supervisor removes it, so
    such a host is not contacted again: connecting to one that was cut off takes the whole timeout. A killed wrapper
    leaves the file for a restart, as do all of a stopped attempt.
    """
    if ended is None:
        return frozenset(record.hosts)
    for_restart = ended.attempt < ended.restarts
    is_left = for_restart and ended.state == "stopped"
    left = {
        rank.host for rank in ended.ranks if is_left or rank.wrapper is None or (for_restart and rank.state == "lost")
    }
    return frozenset(record.hosts) & left

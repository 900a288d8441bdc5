"""Starts a run: gather, plan, preflight, upload, start. Or only plans it, for a dry run.

In: the hosts, a checked `RunRequest`, the project's place and a pool of sessions. Out: a `StartedRun`, which continues
without this program, or the `StartFailure` that says why nothing runs. `submit_run` has the steps in their order; what
takes long is begun early and in the background, and the step that needs it waits for it:

    project is read ──► hosts are asked for their copies of it ───────────┐
    facts, homes, environment ──► plan ──► preflight, supervisor starts ──┴──► upload ──► job files ──► mpirun

Two rules. No file of the project is uploaded before preflight has passed. A run that does not start leaves nothing:
each step that leaves something behind adds to `_Undo` how that is removed.
"""

from __future__ import annotations

import os
import shlex
import time
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ipexctl.call_options import NO_OPTIONS, CallOptions
from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.local_copy import read_final_status
from ipexctl.jobs.measured import notes_on as notes_on_measurement
from ipexctl.jobs.registry import RunRecord, RunRegistry, clear_pending, given_id, mark_pending, new_id
from ipexctl.jobs.retention import RetentionLimits, prune_local, read_limits
from ipexctl.jobs.submit.commit import find_commit
from ipexctl.jobs.submit.context import RunContext, gather
from ipexctl.jobs.submit.exclusive import HostLocks, Obstacles, lock_hosts, refusal
from ipexctl.jobs.submit.preflight.before_install import likely_nodes
from ipexctl.jobs.submit.preflight.connectivity import check_connectivity
from ipexctl.jobs.submit.preflight.imports import check_script, with_environment
from ipexctl.jobs.submit.preflight.paths import check_data
from ipexctl.jobs.submit.project import ProjectLocation, files_in_other_generations
from ipexctl.jobs.submit.records import launch_spec, logind_notes, nodes_of, plan_document, run_record
from ipexctl.jobs.submit.request import RunRequest, StartError, StartFailure
from ipexctl.jobs.submit.start import Launch, clean_up, job_of
from ipexctl.jobs.submit.start_notes import job_notes, restart_notes, script_notes
from ipexctl.jobs.submit.upload import begin_query, note_secret_files, release_tree, start_reading, upload_project
from ipexctl.jobs.windows import earlier_memory
from ipexctl.launch.other_runs import notes_on
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.request import LaunchOptions, LaunchRequest
from ipexctl.launch.stated_backend import stated_backend
from ipexctl.refusal import Refusal
from ipexctl.remote.fanout import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipexctl.facts.gather import HostFacts
    from ipexctl.hosts.host import Host
    from ipexctl.launch.accelerate_config import AccelerateConfig
    from ipexctl.launch.memory import EarlierMemory
    from ipexctl.launch.plan import LaunchPlan
    from ipexctl.node.common.job import ConnectivityRecord
    from ipexctl.node.common.records import RunStatus
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.sync.project import Project


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run that continues on its own."""

    record: RunRecord
    plan: LaunchPlan
    launch: Launch
    """To follow it or to leave it."""
    notes: tuple[str, ...] = ()
    document: str = ""
    """The text of plan.json, for the copy on the control machine."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The result of a dry run."""

    plan: LaunchPlan
    context: RunContext


@dataclass(frozen=True, slots=True)
class _Call:
    """What every step of a start gets."""

    hosts: Sequence[Host]
    request: RunRequest
    pool: SessionPool
    project: ProjectLocation
    notify: Callable[[str], None]
    """Gets each step that the user sees."""
    note: Callable[[str], None]
    """Gets advice."""


class _Undo(ExitStack):
    """How to remove what the steps leave behind, in reverse order; used unless the run starts."""

    def __init__(self) -> None:
        super().__init__()
        self.unreached = set[str]()
        """The hosts on which that failed."""

    def on_hosts(self, clean: Callable[[], frozenset[str]]) -> None:
        """`clean` returns the hosts that it could not reach."""
        self.callback(lambda: self.unreached.update(clean()))


def plan_run(
    hosts: Sequence[Host],
    request: RunRequest,
    pool: SessionPool,
    project: ProjectLocation,
    *,
    run: str,
    notify: Callable[[str], None],
    note: Callable[[str], None],
) -> PlannedRun | StartFailure:
    """Plan a run and change nothing, for --dry-run and export. Steps are told to `notify`, advice to `note`."""
    call = _Call(hosts, request, pool, project, notify, note)
    try:
        with ExitStack() as at_end:
            query = begin_query(start_reading(request, project, notify), hosts, request, pool, lease=None)
            if query is not None:
                at_end.callback(wait, (query,))
            context = gather(hosts, request, pool, unsynced=project.executed_path(request), dry_run=True)
            if query is not None:
                query.result()  # the project is named before any note
            for text in context.notes:
                note(text)
            plan = make_plan(context, request, project, run, earlier_memory(project.root, request.argv[0]))
            for text in script_notes(context, plan, request, project):
                note(text)
            plan = _with_measurement(call, context, plan)
            tree, _ = upload_project(query, request, project, context, notify)
            plan = replace(plan, notes=(*notes_on(plan.other_runs, time.time()), *plan.notes))
            return PlannedRun(_plan_in(tree, plan, project), context)
    except StartError as error:
        return error.failure


def submit_run(
    hosts: Sequence[Host],
    request: RunRequest,
    pool: SessionPool,
    project: ProjectLocation,
    *,
    notify: Callable[[str], None],
    note: Callable[[str], None],
    reading: Future[Project] | None = None,
    call_options: CallOptions = NO_OPTIONS,
    probed: Sequence[HostFacts] = (),
) -> StartedRun | StartFailure:
    """Start a run. It is in the registry before its first rank lives, and a run that does not start leaves nothing.

    `reading`: the project, if `start_reading` was called before. `call_options` are those of this call on a command
    line. `probed`: the facts, if they were gathered just before.
    """
    call = _Call(hosts, request, pool, project, notify, note)
    registry, undo = RunRegistry(), _Undo()
    run = given_id(os.environ)
    if not run or registry.knows(run):  # another run of the same job
        run = new_id(request.script, time.time())
    retention = read_limits(os.environ)
    note_secret_files(request)
    try:
        locks = _lock_hosts(call, run, undo)
        if locks is not None and locks.has_waited:
            reading, probed = None, ()  # the project and the hosts may have changed since
        with mark_pending(registry.directory, run, undo.unreached), undo:
            began = time.monotonic()
            reading = reading or start_reading(request, project, notify)
            query = begin_query(reading, hosts, request, pool, lease=run)
            if query is not None:
                undo.on_hosts(partial(release_tree, query, hosts, request, pool, lease=run))
            context = gather(hosts, request, pool, unsynced=project.executed_path(request), probed=probed)

            plan = make_plan(context, request, project, run, earlier_memory(project.root, request.argv[0]))
            _check_other_runs(call, plan, locks)
            for text in (
                *context.notes,
                *job_notes(context, is_followed=request.is_followed),
                *restart_notes(context, plan, request),
                *script_notes(context, plan, request, project),
            ):
                note(text)
            plan = _with_measurement(call, context, plan)

            _refuse_bad_project(reading, wait_for_it=False)  # then the hosts need no check
            preflight = _begin_preflight(call, context, plan, undo)
            _refuse_bad_project(reading)  # while no host has a file of the run
            options = pool.connector.options
            record = run_record(run, context, plan, request, options, call_options, str(project.root))
            launch = _begin_launch(call, record, context, plan, retention, registry, undo)

            tree, upload_seconds = upload_project(query, request, project, context, notify, preflight)
            check_data(hosts, request, project.root, tree, pool)
            if request.sync and (text := files_in_other_generations(tree, project.subdirectory, registry.all())):
                note(text)
            plan = _plan_in(tree, plan, project)
            record = replace(record, cwd=plan.cwd)
            registry.save(record)
            before = {"checks": time.monotonic() - began - upload_seconds, "sync": upload_seconds}
            document = plan_document(context, plan, request, find_commit(project.root), before)
            launch.upload_jobs(partial(job_of, plan, _secrets(request)), document)

            connectivity = preflight.result()
            clear_pending(registry.directory, run)  # from here on, node0 knows whether the run lives
            _start_mpirun(launch, connectivity, undo)
            if locks is not None:
                locks.leave(record.rundir)
    except StartError as error:
        return error.failure
    run_in_background(lambda: prune_local(registry, retention), "prune")
    return StartedRun(record, plan, launch, (*plan.notes, *logind_notes(context)), document)


# Other runs


def _lock_hosts(call: _Call, run: str, undo: _Undo) -> HostLocks | None:
    """The locks of the hosts, for a run that is to have them for itself. Raises a StartError."""
    request = call.request
    if not request.is_exclusive:
        return None
    locks = lock_hosts(likely_nodes(call.hosts, request), run, request.wait, call.pool, call.notify)
    undo.callback(locks.release)
    if locks.hiding:
        call.note(
            f"{fold(locks.hiding)}: /proc hides the processes of other accounts (hidepid), so that their runs are not "
            "seen there"
        )
    return locks


def _check_other_runs(call: _Call, plan: LaunchPlan, locks: HostLocks | None) -> None:
    """Say which runs are on the hosts. One that did not ask may have begun since they were locked: raises a
    StartError."""
    if locks is None:
        for text in notes_on(plan.other_runs, time.time()):
            call.note(text)
    elif running := tuple(other for other in plan.other_runs if not other.is_starting):
        raise StartError(refusal(Obstacles(running), now=time.time()))


def _refuse_bad_project(reading: Future[Project] | None, *, wait_for_it: bool = True) -> None:
    """Raise the UserError of a project that cannot be sent; without `wait_for_it`, only if it is known by now."""
    if reading is not None and (wait_for_it or reading.done()):
        reading.result()


# Plan: pure


def make_plan(
    context: RunContext,
    request: RunRequest,
    project: ProjectLocation,
    run: str,
    earlier: EarlierMemory | None = None,
) -> LaunchPlan:
    """The plan of a run; its working directory is known later, when the hosts have answered which tree they have. Pure.

    Raises a StartError if there is no plan, a UserError if the ranks to show do not exist.
    """
    options, notes = request.options, list[str]()
    if request.accelerate is not None:
        options, notes = _accelerate_options(request.accelerate, options, context)
    stated = stated_backend(request.argv[1:], request.accelerate)
    by_accelerate = request.accelerate is not None or (stated is not None and stated.of_trainer)
    by_accelerate |= project.script is not None and project.script.uses_accelerate
    options = replace(options, stated=stated, uses_accelerate=by_accelerate)
    plan = plan_launch(
        LaunchRequest(
            hosts=context.hosts,
            facts=context.facts,
            internal=context.addresses,
            env=context.env,
            command=project.command,
            kind=request.kind,
            cwd=context.home,
            rundir=f"{context.home}/runs/{run}",
            ssh_names=context.ssh_names,
            ssh_config=context.ssh_config,
            options=options,
            mpi_seen=context.mpi,
            starter=context.starter,
            earlier_memory=earlier,
        )
    )
    if isinstance(plan, Refusal):
        raise StartError(StartFailure.of_refusal(plan))
    request.ranks.within(plan.world_size)
    return replace(plan, notes=(*plan.notes, *notes))


def _accelerate_options(
    config: AccelerateConfig, options: LaunchOptions, context: RunContext
) -> tuple[LaunchOptions, list[str]]:
    """The launch options with the variables of an accelerate config, and notes about its other fields.

    They depend on the version of accelerate in the environment.
    """
    from ipexctl.launch.accelerate_config import remarks
    from ipexctl.launch.accelerate_env import misunderstandings, variables_of

    keeps_workers = options.ccl_workers is not None
    variables = variables_of(config, context.env.packages)
    given = tuple(setting for setting in variables if not (keeps_workers and setting.name == "CCL_WORKER_COUNT"))
    node0 = context.hosts[0]
    addresses = {address.address for nic in context.facts[node0.name].network.nics for address in nic.addresses}
    notes = remarks(config, len(context.hosts), {node0.name, node0.address, *addresses})
    return replace(options, given=given), [*notes, *misunderstandings(config, context.env.packages)]


def _plan_in(tree: str, plan: LaunchPlan, project: ProjectLocation) -> LaunchPlan:
    """The plan with the working directory of the ranks, which is in the tree that the hosts have."""
    return replace(plan, cwd=str(PurePosixPath(tree) / project.subdirectory))


def _with_measurement(call: _Call, context: RunContext, plan: LaunchPlan) -> LaunchPlan:
    """The plan with what `autotune` has measured of its settings; a note goes out if that is no longer what runs."""
    if call.request.trial:
        return plan
    text, note = notes_on_measurement(plan, context, call.request, call.project)
    if note:
        call.note(note)
    return replace(plan, choices=(*plan.choices, text)) if text else plan


# Preflight


def _begin_preflight(
    call: _Call, context: RunContext, plan: LaunchPlan, undo: _Undo
) -> Future[ConnectivityRecord | None]:
    preflight = run_in_background(partial(_preflight, call, context, plan), "preflight")
    undo.callback(wait, (preflight,))  # its notes come before the answer of the call
    return preflight


def _preflight(call: _Call, context: RunContext, plan: LaunchPlan) -> ConnectivityRecord | None:
    """Check the imports of the script, and the connections between the hosts with ranks."""
    nodes, request, script = nodes_of(context, plan), call.request, call.project.script
    connectivity = run_in_background(lambda: check_connectivity(nodes, context, call.pool), "connectivity")
    script = with_environment(script, request, context) if script and request.sync else None
    try:
        text = check_script(nodes, context.env.python, script, call.pool) if script is not None else ""
    except StartError:
        connectivity.result()  # raises the failure of a connection, which comes first
        raise
    if text:
        call.note(text)
    return connectivity.result()


# Start


def _begin_launch(
    call: _Call,
    record: RunRecord,
    context: RunContext,
    plan: LaunchPlan,
    retention: RetentionLimits,
    registry: RunRegistry,
    undo: _Undo,
) -> Launch:
    """Let the supervisor start on node0, where it waits for its job and the mpirun line."""
    undo.callback(registry.remove, record.id)
    launch = Launch(record.nodes, launch_spec(record, context, plan, call.request, retention), call.pool)
    launch.start_supervisor()
    undo.on_hosts(launch.abandon)
    return launch


def _start_mpirun(launch: Launch, connectivity: ConnectivityRecord | None, undo: _Undo) -> None:
    """Start the ranks. From then on nothing is undone, also where the run may have started."""
    try:
        launch.start_mpirun(connectivity)
    except StartError as error:
        if error.failure.is_unsure:
            undo.pop_all()
        raise
    undo.pop_all()


def _secrets(request: RunRequest) -> dict[str, str]:
    return {export.name: export.value for export in request.options.exports if export.secret}


# Afterwards


def remove_job_files(hosts: Sequence[Host], record: RunRecord, pool: SessionPool) -> None:
    """Remove token and secrets from the nodes of a run that failed or was stopped before all ranks had read them."""
    names = hosts_with_job_files(record, read_final_status(RunRegistry().directory / record.id))
    clean_up([host for host in hosts if host.name in names], f"rm -f {shlex.quote(record.rundir)}/job.json", pool)


def hosts_with_job_files(record: RunRecord, ended: RunStatus | None) -> frozenset[str]:
    """The hosts that may still have the job file. Pure.

    Once a rank wrapper has reached the supervisor, it removes the file, also when it is cut off later: such a host is
    not contacted again, because connecting to it may take the whole timeout. A killed wrapper leaves the file for a
    restart, and so do all wrappers of an attempt that was over when the run was stopped.
    """
    if ended is None:
        return frozenset(record.hosts)
    for_restart = ended.attempt < ended.restarts
    is_left = for_restart and ended.state == "stopped"
    left = {
        rank.host for rank in ended.ranks if is_left or rank.wrapper is None or (for_restart and rank.state == "lost")
    }
    return frozenset(record.hosts) & left

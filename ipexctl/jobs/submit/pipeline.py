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
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from ipexctl.call_options import NO_OPTIONS, CallOptions
from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.local_copy import read_final_status
from ipexctl.jobs.measured import notes_on as notes_on_measurement
from ipexctl.jobs.registry import RunRecord, RunRegistry, abandoned_runs, clear_pending, given_id, mark_pending, new_id
from ipexctl.jobs.retention import RetentionLimits, prune_local, read_limits
from ipexctl.jobs.submit.commit import find_commit
from ipexctl.jobs.submit.context import RunContext, gather
from ipexctl.jobs.submit.exclusive import Claim, hold_hosts, refusal
from ipexctl.jobs.submit.preflight.before_install import likely_nodes
from ipexctl.jobs.submit.preflight.checkpoint import check_synced_path, check_unsynced_path, first_link
from ipexctl.jobs.submit.preflight.connectivity import check_connectivity
from ipexctl.jobs.submit.preflight.imports import check_script, with_environment
from ipexctl.jobs.submit.preflight.paths import check_data
from ipexctl.jobs.submit.preflight.trainer import sets_use_ipex, trainer_note, use_ipex_note
from ipexctl.jobs.submit.project import ProjectLocation, describe_project, files_in_other_generations
from ipexctl.jobs.submit.records import launch_spec, logind_notes, nodes_of, plan_document, run_record
from ipexctl.jobs.submit.request import RunRequest, StartError, StartFailure
from ipexctl.jobs.submit.start import Launch, clean_up, job_of
from ipexctl.launch.other_runs import notes_on
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.request import LaunchOptions, LaunchRequest
from ipexctl.launch.stated_backend import stated_backend
from ipexctl.refusal import Refusal
from ipexctl.remote.fanout import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ipexctl.facts.gather import HostFacts
    from ipexctl.hosts.host import Host
    from ipexctl.launch.accelerate_config import AccelerateConfig
    from ipexctl.launch.plan import HostPlan, LaunchPlan
    from ipexctl.node.common.job import ConnectivityRecord
    from ipexctl.node.common.records import RunStatus
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.sync.project import Project
    from ipexctl.sync.sync import ProjectSync


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
            query = None
            if (reading := start_reading(request, project, notify)) is not None:
                query = run_in_background(partial(_query_tree, call, reading, lease=None), "tree")
                at_end.callback(wait, (query,))
            context = gather(hosts, request, pool, unsynced=project.executed_path(request), dry_run=True)
            if query is not None:
                query.result()  # the project is named before any note
            for text in context.notes:
                note(text)
            plan = make_plan(context, request, project, run)
            for text in _script_notes(context, plan, request, project):
                note(text)
            plan = _with_measurement(call, context, plan)
            tree, _ = upload_project(query, project, context, notify)
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
    _note_secret_files(request)
    try:
        claim = _hold_hosts(call, run, undo)
        if claim is not None and claim.has_waited:
            reading, probed = None, ()  # the project and the hosts may have changed since
        with mark_pending(registry.directory, run, undo.unreached), undo:
            began = time.monotonic()
            reading = reading or start_reading(request, project, notify)
            query = _begin_query(call, reading, run, undo)
            context = gather(hosts, request, pool, unsynced=project.executed_path(request), probed=probed)

            plan = make_plan(context, request, project, run)
            _check_other_runs(call, plan, claim)
            for text in (
                *_job_notes(context),
                *_restart_notes(context, plan, request),
                *_script_notes(context, plan, request, project),
            ):
                note(text)
            plan = _with_measurement(call, context, plan)

            _refuse_bad_project(reading, wait_for_it=False)  # then the hosts need no check
            preflight = _begin_preflight(call, context, plan, undo)
            _refuse_bad_project(reading)  # while no host has a file of the run
            record = run_record(run, context, plan, request, pool.connector.options, call_options)
            launch = _begin_launch(call, record, context, plan, retention, registry, undo)

            tree, upload_seconds = upload_project(query, project, context, notify, preflight)
            check_data(hosts, request, project.root, tree, pool)
            _note_other_generations(call, tree, registry)
            plan = _plan_in(tree, plan, project)
            record = replace(record, cwd=plan.cwd)
            registry.save(record)
            before = {"checks": time.monotonic() - began - upload_seconds, "sync": upload_seconds}
            document = plan_document(context, plan, request, find_commit(project.root), before)
            launch.upload_jobs(partial(job_of, plan, _secrets(request)), document)

            connectivity = preflight.result()
            clear_pending(registry.directory, run)  # from here on, node0 knows whether the run lives
            _start_mpirun(launch, connectivity, undo)
            if claim is not None:
                claim.leave(record.rundir)
    except StartError as error:
        return error.failure
    run_in_background(lambda: prune_local(registry, retention), "prune")
    return StartedRun(record, plan, launch, (*plan.notes, *logind_notes(context)), document)


# Other runs


def _hold_hosts(call: _Call, run: str, undo: _Undo) -> Claim | None:
    """The hold on the hosts, for a run that is to have them for itself. Raises a StartError."""
    request = call.request
    if not request.is_exclusive:
        return None
    claim = hold_hosts(likely_nodes(call.hosts, request), run, request.wait, call.pool, call.notify)
    undo.callback(claim.release)
    if claim.hiding:
        call.note(
            f"{fold(claim.hiding)}: /proc hides the processes of other accounts (hidepid), so that their runs are not "
            "seen there"
        )
    return claim


def _check_other_runs(call: _Call, plan: LaunchPlan, claim: Claim | None) -> None:
    """Say which runs are on the hosts. One that did not ask may have begun since they were claimed: raises a
    StartError."""
    if claim is None:
        for text in notes_on(plan.other_runs, time.time()):
            call.note(text)
    elif running := [other for other in plan.other_runs if not other.is_starting]:
        raise StartError(refusal(running, now=time.time()))


# Gather


def _note_secret_files(request: RunRequest) -> None:
    """Remember the files of --env-file and the private keys, so that no later sync sends them."""
    if request.secret_files:
        from ipexctl.sync.secret_files import note_secret_files  # few runs have one

        note_secret_files(request.secret_files)


def start_reading(
    request: RunRequest, project: ProjectLocation, notify: Callable[[str], None]
) -> Future[Project] | None:
    """Read the project in the background and name it, as the first line of a run; None if it is not synced."""
    checkpoint = request.checkpoint or ""
    if not request.sync:
        check_unsynced_path(checkpoint, project, is_found=request.checkpoint_is_found)
        notify(describe_project(project, request))
        return None

    def read_content() -> Project:
        from ipexctl.sync.project import read_project  # imported while the hosts are connected

        content = read_project(
            project.root,
            request.exclude,
            includes=request.include,
            secret_files=request.secret_files,
            home=request.home,
            allow_big=request.allow_big,
            own_tree=request.own_tree,
            data=[Path(path) for path in request.data],
        )
        check_synced_path(checkpoint, project, content.manifest)
        notify(describe_project(project, request, content.manifest.summary))
        return content

    reading = run_in_background(read_content, "project")
    if first_link(checkpoint, project):
        reading.result()  # it may be refused, and then no host is asked anything
    return reading


def _refuse_bad_project(reading: Future[Project] | None, *, wait_for_it: bool = True) -> None:
    """Raise the UserError of a project that cannot be sent; without `wait_for_it`, only if it is known by now."""
    if reading is not None and (wait_for_it or reading.done()):
        reading.result()


def _begin_query(call: _Call, reading: Future[Project] | None, run: str, undo: _Undo) -> Future[ProjectSync] | None:
    """Ask the hosts for their copies of the project, in the background; None if it is not synced."""
    if reading is None:
        return None
    query = run_in_background(partial(_query_tree, call, reading, lease=run), "tree")
    undo.on_hosts(lambda: _release_tree(call, run, query))
    return query


def _query_tree(call: _Call, reading: Future[Project], *, lease: str | None) -> ProjectSync:
    """Ask the hosts which files of the project they have. A complete tree gets the lease at once."""
    from ipexctl.sync.sync import query_project  # imported while the facts are gathered

    return query_project(
        reading.result(),
        call.hosts,
        call.pool,
        home=call.request.home,
        iface=call.request.iface,
        timeout=call.request.timeout,
        dry_run=lease is None,
        lease=lease,
        ended=abandoned_runs(RunRegistry().directory),
    )


def _release_tree(call: _Call, run: str, query: Future[ProjectSync]) -> frozenset[str]:
    """Remove the run's leases, so that the next sync may change the tree in place; returns the hosts that have them."""
    wait((query,))  # it may still ask for a lease
    home = shlex.quote(call.request.home.removeprefix("~/"))  # sessions start in the home directory
    return clean_up(call.hosts, f"rm -f {home}/code/*/.ipexctl/leases/{run}", call.pool)


# Plan: pure


def make_plan(context: RunContext, request: RunRequest, project: ProjectLocation, run: str) -> LaunchPlan:
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
            transport=context.transport,
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


def _script_notes(
    context: RunContext, plan: LaunchPlan, request: RunRequest, project: ProjectLocation
) -> tuple[str, ...]:
    """What the source of the script shows for this environment and these ranks. Pure."""
    uses_it = project.script is not None and project.script.uses_trainer
    packages = context.env.packages if context.env.is_installed else {}
    ranks = plan.world_size if plan.backend != "none" else 1
    has_use_ipex = sets_use_ipex(request.argv[1:])
    notes = (
        use_ipex_note(packages, _last_with_ipex(context.env.stacks)) if has_use_ipex else "",
        trainer_note(uses_it=uses_it, argv=request.argv, packages=packages, ranks=ranks),
    )
    return tuple(note for note in notes if note)


def _with_measurement(call: _Call, context: RunContext, plan: LaunchPlan) -> LaunchPlan:
    """The plan with what `autotune` has measured of its settings; a note goes out if that is no longer what runs."""
    if call.request.trial:
        return plan
    text, note = notes_on_measurement(plan, context, call.request, call.project)
    if note:
        call.note(note)
    return replace(plan, choices=(*plan.choices, text)) if text else plan


def _last_with_ipex(stacks: Sequence[str]) -> Mapping[str, str]:
    """The last transformers and accelerate for that stack."""
    from ipexctl.stack.catalog.user_table import known_rows  # slow to import, and seldom needed

    return next((dict(row.hugging_face) for row in known_rows(os.environ) if row.name in stacks), {})


_NEAR_END: Final = 3600
"""Seconds before the end of a Slurm job from which a note names it."""


def _job_notes(context: RunContext) -> tuple[str, ...]:
    seconds = context.job_seconds
    if seconds is None or seconds >= _NEAR_END:
        return ()
    time_left = f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"
    return (f"Slurm job {context.job} ends in {time_left}, and the run with it",)


def _restart_notes(context: RunContext, plan: LaunchPlan, request: RunRequest) -> tuple[str, ...]:
    note = restart_note(plan.hosts, context.stores) if request.max_restarts and not request.checkpoint else ""
    return (note,) if note else ()


def restart_note(hosts: Sequence[HostPlan], stores: Mapping[str, str]) -> str:
    """A warning if the hosts do not share a home: a checkpoint of rank 0 is then on one host only. Pure."""
    first = hosts[0].name
    others = [host.name for host in hosts if stores[host.name] != stores[first]]
    if not others:
        return ""
    return (
        f"--max-restarts: what rank 0 writes on {first} is not on {fold(others)}; if only rank 0 saves the checkpoint, "
        "the ranks there start again without it and can wait forever; --checkpoint PATH brings that file or directory "
        "to all hosts before each start"
    )


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


# Upload


def upload_project(
    query: Future[ProjectSync] | None,
    project: ProjectLocation,
    context: RunContext,
    notify: Callable[[str], None],
    preflight: Future[ConnectivityRecord | None] | None = None,
) -> tuple[str, float]:
    """Upload what the hosts lack of the project, if preflight has passed. Returns the path of the tree, and seconds."""
    if query is None:
        return str(project.root), 0.0
    sync = query.result()
    if sync.needs_upload and preflight is not None:
        preflight.result()
    sync.facts.update(context.facts)
    began = time.monotonic()
    report = sync.upload()
    seconds = time.monotonic() - began
    failed = [host for host in report.hosts if host.status in ("failed", "unreachable")]
    if failed:
        first = failed[0]
        raise StartError(
            StartFailure(
                f"{first.host.name}: the project could not be synced: {first.reason}",
                first.fix,
                tuple(host.host.name for host in failed),
                first.exit_code,
            )
        )
    for text in report.notes:  # such as credentials that were left out: never held back
        notify(f"note: {text}")
    changed = [host for host in report.hosts if host.files_sent]
    if changed and not sync.dry_run:
        files = "1 file" if report.files == 1 else f"{report.files} files"
        sent, names = max(host.files_sent for host in changed), fold(host.host.name for host in changed)
        notify(f"{report.root}: {sent} of {files} uploaded to {names}, {report.seconds:.1f} s")
    path = report.path or next((host.path for host in report.hosts if host.path), None)
    return path or f"{context.home}/code/{report.project}", seconds


def _note_other_generations(call: _Call, tree: str, registry: RunRegistry) -> None:
    subdirectory = call.project.subdirectory
    if call.request.sync and (text := files_in_other_generations(tree, subdirectory, registry.all())):
        call.note(text)


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

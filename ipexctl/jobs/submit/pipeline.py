"""Starts a run: gather, plan, preflight, upload, start."""

from __future__ import annotations

import json
import os
import shlex
import time
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ipexctl.call_options import NO_OPTIONS, CallOptions
from ipexctl.hosts.home import find_leaders
from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.local_copy import read_final_status
from ipexctl.jobs.registry import RunRecord, RunRegistry, abandoned_runs, clear_pending, mark_pending, new_id
from ipexctl.jobs.retention import RetentionLimits, prune_local, read_limits
from ipexctl.jobs.submit.context import RunContext, gather
from ipexctl.jobs.submit.preflight.checkpoint import check_synced_path, check_unsynced_path, first_link
from ipexctl.jobs.submit.preflight.connectivity import check_connectivity
from ipexctl.jobs.submit.preflight.imports import check_script, install_command, normalised, with_environment
from ipexctl.jobs.submit.preflight.paths import check_data
from ipexctl.jobs.submit.preflight.trainer import trainer_note
from ipexctl.jobs.submit.project import ProjectLocation, describe_project, files_in_other_generations
from ipexctl.jobs.submit.request import RunRequest, StartFailure
from ipexctl.jobs.submit.start import File, Launch, LaunchSpec, clean_up, job_of
from ipexctl.launch.plan import HostPlan, LaunchPlan, to_json
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.request import LaunchOptions, LaunchRequest
from ipexctl.node.common.job import ConnectivityRecord, Master, RankPlacement, StartRequest
from ipexctl.refusal import Refusal
from ipexctl.remote.fanout import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ipexctl.facts.gather import HostFacts
    from ipexctl.hosts.host import Host
    from ipexctl.launch.accelerate_config import AccelerateConfig
    from ipexctl.node.common.records import RunStatus
    from ipexctl.remote.connector import ConnectOptions
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
    try:
        with ExitStack() as stack:
            query = None
            if (reading := start_reading(request, project, notify)) is not None:
                query = run_in_background(partial(_query_tree, hosts, request, pool, reading, lease=None), "tree")
                stack.callback(wait, (query,))
            context = gather(hosts, request, pool, unsynced=project.executed_path(request), dry_run=True)
            if query is not None:
                query.result()  # the project is named before any note
            for text in context.notes:
                note(text)
            plan = make_plan(context, request, project, run)
            for text in _script_notes(context, plan, request, project):
                note(text)
            tree = _upload(query, project, context, notify)
            return PlannedRun(replace(plan, cwd=str(PurePosixPath(tree) / project.subdirectory)), context)
    except StartFailure as failure:
        return failure


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

    The order: the project is read and the hosts are asked for their copies of it while the facts are gathered. Then the
    plan; the preflight checks, the start of the supervisor and the upload at once, but files are uploaded only after
    the checks have passed; the job files; mpirun.

    `reading`: the project, if `start_reading` was called before. `call_options` are those of this call on a command
    line. `probed`: the facts, if they were gathered just before.
    """
    run, registry, retention = new_id(request.script, time.time()), RunRegistry(), read_limits(os.environ)
    if request.secret_files:
        from ipexctl.sync.secret_files import note_secret_files  # few runs have one

        note_secret_files(request.secret_files)
    unreached = set[str]()
    try:
        with mark_pending(registry.directory, run, unreached), ExitStack() as on_failure:
            query = None
            reading = reading or start_reading(request, project, notify)
            if reading is not None:
                query = run_in_background(partial(_query_tree, hosts, request, pool, reading, lease=run), "tree")
                on_failure.callback(lambda: unreached.update(_release_tree(hosts, request, pool, run, query)))

            context = gather(hosts, request, pool, unsynced=project.executed_path(request), probed=probed)
            plan = make_plan(context, request, project, run)
            if request.max_restarts and not request.checkpoint and (text := restart_note(plan.hosts, context.stores)):
                note(text)
            for text in _script_notes(context, plan, request, project):
                note(text)
            if reading is not None and reading.done():
                reading.result()  # a refused project needs no check of the hosts
            preflight = run_in_background(partial(_preflight, context, plan, request, pool, project, note), "preflight")
            on_failure.callback(wait, (preflight,))  # its notes come before the answer of the call

            if reading is not None:
                reading.result()  # raises the UserError of a refused project, while no host has a file of the run
            record = _record(run, context, plan, request, pool.connector.options, call_options)
            on_failure.callback(registry.remove, run)
            launch = Launch(record.nodes, _launch_spec(record, context, plan, request, retention), pool)
            launch.start_supervisor()
            on_failure.callback(lambda: unreached.update(launch.abandon()))
            tree = _upload(query, project, context, notify, preflight)
            check_data(hosts, request, project.root, tree, pool)
            if request.sync and (text := files_in_other_generations(tree, project.subdirectory, registry.all())):
                note(text)
            plan = replace(plan, cwd=str(PurePosixPath(tree) / project.subdirectory))
            record = replace(record, cwd=plan.cwd)
            registry.save(record)
            secrets = {export.name: export.value for export in request.options.exports if export.secret}
            document = _plan_document(context, plan, request)
            launch.upload_jobs(partial(job_of, plan, secrets), document)
            connectivity = preflight.result()
            clear_pending(registry.directory, run)  # from here on, node0 knows whether the run lives
            try:
                launch.start_mpirun(connectivity)
            except StartFailure as failure:
                if failure.is_unsure:
                    on_failure.pop_all()
                raise
            on_failure.pop_all()
    except StartFailure as failure:
        return failure
    run_in_background(lambda: prune_local(registry, retention), "prune")
    return StartedRun(record, plan, launch, (*plan.notes, *_logind_notes(context)), document)


def make_plan(context: RunContext, request: RunRequest, project: ProjectLocation, run: str) -> LaunchPlan:
    """The plan of a run; its working directory is known later, when the hosts have answered which tree they have. Pure.

    Raises a StartFailure if there is no plan, a UserError if the ranks to show do not exist.
    """
    options, notes = request.options, list[str]()
    if request.accelerate is not None:
        options, notes = _accelerate_options(request.accelerate, options, context)
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
        )
    )
    if isinstance(plan, Refusal):
        raise StartFailure.of_refusal(plan)
    request.ranks.within(plan.world_size)
    return replace(plan, notes=(*plan.notes, *notes))


def _script_notes(
    context: RunContext, plan: LaunchPlan, request: RunRequest, project: ProjectLocation
) -> tuple[str, ...]:
    """What the source of the script shows for this environment and these ranks. Pure."""
    uses_it = project.script is not None and project.script.uses_trainer
    packages = context.env.packages if context.env.is_installed else {}
    note = trainer_note(uses_it=uses_it, argv=request.argv, packages=packages, ranks=plan.world_size)
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


def _preflight(
    context: RunContext,
    plan: LaunchPlan,
    request: RunRequest,
    pool: SessionPool,
    project: ProjectLocation,
    note: Callable[[str], None],
) -> ConnectivityRecord | None:
    """Check the imports of the script, and the connections between the hosts with ranks."""
    nodes = _nodes(context, plan)
    connectivity = run_in_background(lambda: check_connectivity(nodes, context, pool), "connectivity")
    script = with_environment(project.script, request, context) if project.script and request.sync else None
    try:
        text = check_script(nodes, context.env.python, script, pool) if script is not None else ""
    except StartFailure:
        connectivity.result()  # raises the failure of a connection, which comes first
        raise
    if text:
        note(text)
    return connectivity.result()


def start_reading(
    request: RunRequest, project: ProjectLocation, notify: Callable[[str], None]
) -> Future[Project] | None:
    """Read the project in the background and name it, as the first line of a run; None if it is not synced."""
    checkpoint = request.checkpoint or ""
    if not request.sync:
        check_unsynced_path(checkpoint, project, is_found=request.checkpoint_is_found)
        notify(describe_project(project, request))
        return None

    def read() -> Project:
        from ipexctl.sync.project import data_patterns, read_project  # imported while the hosts are connected

        excludes = (*request.exclude, *data_patterns(project.root, [Path(path) for path in request.data]))
        content = read_project(
            project.root,
            excludes,
            includes=request.include,
            secret_files=request.secret_files,
            home=request.home,
            allow_big=request.allow_big,
        )
        check_synced_path(checkpoint, project, content.manifest)
        notify(describe_project(project, request, content.manifest.summary))
        return content

    reading = run_in_background(read, "project")
    if first_link(checkpoint, project):
        reading.result()  # it may be refused, and then no host is asked anything
    return reading


def _query_tree(
    hosts: Sequence[Host], request: RunRequest, pool: SessionPool, reading: Future[Project], *, lease: str | None
) -> ProjectSync:
    """Ask the hosts which files of the project they have. A complete tree gets the lease at once."""
    from ipexctl.sync.sync import query_project  # imported while the facts are gathered

    return query_project(
        reading.result(),
        hosts,
        pool,
        home=request.home,
        iface=request.iface,
        timeout=request.timeout,
        dry_run=lease is None,
        lease=lease,
        ended=abandoned_runs(RunRegistry().directory),
    )


def _upload(
    query: Future[ProjectSync] | None,
    project: ProjectLocation,
    context: RunContext,
    notify: Callable[[str], None],
    preflight: Future[ConnectivityRecord | None] | None = None,
) -> str:
    """Upload what the hosts lack of the project, if preflight has passed. Returns the path of the tree."""
    if query is None:
        return str(project.root)
    sync = query.result()
    if sync.needs_upload and preflight is not None:
        preflight.result()
    sync.facts.update(context.facts)
    report = sync.upload()
    failed = [host for host in report.hosts if host.status in ("failed", "unreachable")]
    if failed:
        first = failed[0]
        raise StartFailure(
            f"{first.host.name}: the project could not be synced: {first.reason}",
            first.fix,
            tuple(host.host.name for host in failed),
            first.exit_code,
        )
    for text in report.notes:  # such as credentials that were left out: never held back
        notify(f"note: {text}")
    changed = [host for host in report.hosts if host.files_sent]
    if changed and not sync.dry_run:
        files = "1 file" if report.files == 1 else f"{report.files} files"
        sent, names = max(host.files_sent for host in changed), fold(host.host.name for host in changed)
        notify(f"{report.root}: {sent} of {files} uploaded to {names}, {report.seconds:.1f} s")
    path = report.path or next((host.path for host in report.hosts if host.path), None)
    return path or f"{context.home}/code/{report.project}"


def _nodes(context: RunContext, plan: LaunchPlan) -> tuple[Host, ...]:
    """Node0, which may be without ranks, and the hosts with ranks."""
    names = {host.name for host in plan.hosts}
    return (context.hosts[0], *(host for host in context.hosts[1:] if host.name in names))


def _record(
    run: str, context: RunContext, plan: LaunchPlan, request: RunRequest, connect: ConnectOptions, call: CallOptions
) -> RunRecord:
    nodes = _nodes(context, plan)
    leaders = find_leaders([host.name for host in nodes], context.stores.__getitem__)
    return RunRecord(
        id=run,
        node0=nodes[0],
        home=context.home,
        python=context.env.python,
        script=" ".join(request.argv)[:200],
        env=plan.env or plan.python,
        started=time.time(),
        world_size=plan.world_size,
        hosts=tuple(host.name for host in nodes),
        host_keys=connect.host_keys,
        connect_timeout=connect.connect_timeout,
        stores=tuple(dict.fromkeys(leaders.values())),
        nodes=nodes,
        ranks=tuple(rank.host for rank in plan.ranks),
        cwd=plan.cwd,
        again=call.hosts,
        again_run=call.run,
    )


def _launch_spec(
    record: RunRecord,
    context: RunContext,
    plan: LaunchPlan,
    request: RunRequest,
    retention: RetentionLimits,
) -> LaunchSpec:
    stores = context.stores
    start = StartRequest(
        argv=tuple(plan.argv),
        by_mpirun=plan.flavor != "none",
        ranks=tuple(RankPlacement(rank.rank, rank.host, stores[rank.host]) for rank in plan.ranks),
        world_size=plan.world_size,
        nodes=len(plan.hosts),
        master=Master(plan.master_addr, plan.master_port),
        script=record.script,
        env=record.env,
        variables={setting.name: setting.value for setting in plan.launcher_env},
        setup=context.setup,
        addresses=tuple(host.address for host in plan.hosts),
        time_limit=plan.time_limit,
        restarts=request.max_restarts,
        checkpoint=(request.checkpoint or "") if len({stores[host.name] for host in plan.hosts}) > 1 else "",
        checkpoint_is_found=request.checkpoint_is_found,
        hang_after=request.hang_after,
        on_hang=request.on_hang,
    )
    return LaunchSpec(
        record=record,
        bind=plan.hosts[0].address,
        start=start,
        stores=stores,
        files=[File(file.name, file.text.encode(), file.mode) for file in plan.files],
        python_version=context.env.version,
        logind=context.facts[record.node0.name].logind,
        retention=retention,
    )


def _plan_document(context: RunContext, plan: LaunchPlan, request: RunRequest) -> str:
    """The text of plan.json."""
    install = install_command(context.env_records(plan.env), request.env) if plan.env else ""
    packages = sorted(map(normalised, context.env.packages)) if plan.env else []
    return json.dumps({**to_json(plan), "install": install, "packages": packages}, indent=1)


def _logind_notes(context: RunContext) -> tuple[str, ...]:
    name = context.hosts[0].name
    logind = context.facts[name].logind
    if logind is None or not logind.kill_user_processes or logind.linger:
        return ()
    note = f"{name}: logind ends all processes of an account at its last logout, and the run with them"
    return (f"{note}; `loginctl enable-linger` there, once, prevents that",)


def _release_tree(
    hosts: Sequence[Host], request: RunRequest, pool: SessionPool, run: str, query: Future[ProjectSync]
) -> frozenset[str]:
    """Remove the run's leases, so that the next sync may change the tree in place; returns the hosts that have them."""
    wait((query,))  # it may still ask for a lease
    home = shlex.quote(request.home.removeprefix("~/"))  # sessions start in the home directory
    return clean_up(hosts, f"rm -f {home}/code/*/.ipexctl/leases/{run}", pool)


def remove_job_files(hosts: Sequence[Host], record: RunRecord, pool: SessionPool) -> None:
    """Remove token and secrets from the nodes of a run that failed or was stopped before all ranks had read them."""
    names = hosts_with_job_files(record, read_final_status(RunRegistry().directory / record.id))
    clean_up([host for host in hosts if host.name in names], f"rm -f {shlex.quote(record.rundir)}/job.json", pool)


def hosts_with_job_files(record: RunRecord, ended: RunStatus | None) -> frozenset[str]:
    """The hosts that may still have the job file. Pure.

    Once a rank wrapper has reached the supervisor, it removes the file, also when it is cut off later: such a host is
    not contacted again, because connecting to it may take the whole timeout. A killed wrapper leaves the file for a
    restart.
    """
    if ended is None:
        return frozenset(record.hosts)
    for_restart = ended.attempt < ended.restarts
    left = {rank.host for rank in ended.ranks if rank.wrapper is None or (for_restart and rank.state == "lost")}
    return frozenset(record.hosts) & left

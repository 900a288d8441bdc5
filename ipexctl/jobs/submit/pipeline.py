"""The verb behind `ipexctl run`: look, find the environment, bring the code, plan, try the way, start."""

from __future__ import annotations

import functools
import json
import os
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.registry import RunRecord, RunRegistry
from ipexctl.jobs.retention import prune_local, read_limits
from ipexctl.jobs.submit import start as starting
from ipexctl.jobs.submit.context import cluster_context, environment_of, has_environment, planned_environment
from ipexctl.jobs.submit.failure import PreflightFailure
from ipexctl.jobs.submit.gather import GateClosed, start_gathering
from ipexctl.jobs.submit.pending import pending_runs
from ipexctl.jobs.submit.preflight.connectivity import check_connectivity
from ipexctl.jobs.submit.preflight.paths import check_data, check_paths
from ipexctl.jobs.submit.preflight.requirements import command_of, completed
from ipexctl.jobs.submit.project import files_in_other_generations
from ipexctl.launch.plan import LaunchRefusal, job_of, to_json
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.request import LaunchRequest
from ipexctl.remote.background import run_in_background
from ipexctl.remote.command import Command
from ipexctl.remote.outcome import TimedOut, Unreachable
from ipexctl.remote.session import capture
from ipexctl.trust.config import config_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from ipexctl.hosts.host import Host
    from ipexctl.jobs.submit.context import ClusterContext
    from ipexctl.jobs.submit.gather import GatheredContext
    from ipexctl.jobs.submit.project import ProjectLocation
    from ipexctl.jobs.submit.request import RunRequest
    from ipexctl.launch.accelerate_config import AccelerateConfig
    from ipexctl.launch.plan import LaunchPlan
    from ipexctl.launch.request import LaunchOptions, RankEnv
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.sync.report import SyncReport

Say = Callable[[str], None]
"""Somebody who tells the user how far it is."""


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run that is on its own now."""

    record: RunRecord
    plan: LaunchPlan
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConnectSettings:
    """How this call reaches hosts, as the record remembers it."""

    host_keys: str | None = None
    connect_timeout: float = 10.0
    again: str = ""
    """The options that choose the same hosts."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run that could begin, with the project in its place."""

    plan: LaunchPlan
    known: ClusterContext
    env: RankEnv
    may_go: Callable[[], PreflightFailure | None]
    """Waits until the ways among the nodes have been tried."""


def plan_run(
    hosts: Sequence[Host],
    wishes: RunRequest,
    pool: SessionPool,
    place: ProjectLocation,
    *,
    run: str,
    say: Say,
    dry_run: bool = False,
    gathered: GatheredContext | None = None,
) -> PlannedRun | PreflightFailure:
    """All up to the plan; with `dry_run` nothing is copied. `gathered` is what the caller has begun with already."""
    gathered = gathered or start_gathering(hosts, wishes, pool, place, run=run, dry_run=dry_run)
    planned: PlannedRun | PreflightFailure | None = None
    try:
        planned = _planned(hosts, wishes, pool, place, gathered, say=say, dry_run=dry_run)
    finally:
        if not isinstance(planned, PlannedRun):
            gathered.leave()
    return planned


def _planned(
    hosts: Sequence[Host],
    wishes: RunRequest,
    pool: SessionPool,
    place: ProjectLocation,
    gathered: GatheredContext,
    *,
    say: Say,
    dry_run: bool,
) -> PlannedRun | PreflightFailure:
    known = cluster_context(hosts, wishes, gathered.answers.result())
    if isinstance(known, PreflightFailure):
        return known
    found = check_paths(hosts, wishes, pool, "" if wishes.sync else place.executed(wishes.kind))
    if isinstance(found, PreflightFailure):
        return found
    env = found.env or _environment(hosts, wishes, known, say=say, dry_run=dry_run)
    if isinstance(env, PreflightFailure):
        return env
    try:
        config = None
        if gathered.config is not None:
            config = config_in(known.home, gathered.config.result(), [host.name for host in hosts[1:]])
    except (Unreachable, TimedOut) as error:
        return PreflightFailure(f"{hosts[0].name}: {error.reason}", error.fix, (hosts[0].name,), unreachable=True)
    plan = plan_launch(
        LaunchRequest(
            hosts=tuple(hosts),
            facts=known.facts,
            internal=known.internal,
            env=env,
            command=place.words,
            kind=wishes.kind,
            cwd=known.home,
            rundir=f"{known.home}/runs/{gathered.run}",
            words=known.words,
            ssh_config=config,
            options=_options(wishes, env),
            mpi_seen=found.mpi,
        )
    )
    if isinstance(plan, LaunchRefusal):
        return PreflightFailure(plan.reason, plan.fix, plan.hosts)
    plan = replace(plan, notes=(*plan.notes, *_remarks(wishes.accelerate, hosts, known, env)))
    wishes.ranks.within(plan.world_size)
    ways: Future[PreflightFailure | str] = run_in_background(lambda: "", "nothing")
    if not dry_run:
        used = [host for host in hosts if host.name in {each.name for each in plan.hosts}]
        needs = completed(place.needs, wishes, known, env) if place.needs is not None and wishes.sync else None
        reached = [hosts[0], *(host for host in used if host != hosts[0])]
        ways = run_in_background(lambda: check_connectivity(reached, known, env, config, pool, needs), "ways")

    @functools.cache
    def may_go() -> PreflightFailure | None:
        said = ways.result()
        if said and not isinstance(said, PreflightFailure):
            say(f"note: {said}")
        return said if isinstance(said, PreflightFailure) else None

    gathered.gate.decide(may_go)
    tree = _tree(gathered.tree, place, known, say=say, dry_run=dry_run)
    if isinstance(tree, PreflightFailure):
        return tree
    lacking = None if dry_run else check_data(hosts, wishes, tree, pool)
    if wishes.sync and (said := files_in_other_generations(tree, place.below, RunRegistry().all())):
        say(f"note: {said}")
    plan = replace(plan, cwd=str(PurePosixPath(tree) / place.below))
    return lacking or PlannedRun(plan, known, env, may_go)


def _options(wishes: RunRequest, env: RankEnv) -> LaunchOptions:
    """What the ranks get from a configuration depends on the accelerate that is in their environment."""
    if wishes.accelerate is None:
        return wishes.options
    from ipexctl.launch.accelerate_env import variables_of

    kept = wishes.options.ccl_workers is not None
    words = variables_of(wishes.accelerate, env.packages)
    return replace(wishes.options, given=tuple(w for w in words if not (kept and w.name == "CCL_WORKER_COUNT")))


def _remarks(
    config: AccelerateConfig | None, hosts: Sequence[Host], known: ClusterContext, env: RankEnv
) -> tuple[str, ...]:
    if config is None:
        return ()
    from ipexctl.launch.accelerate_config import remarks
    from ipexctl.launch.accelerate_env import misunderstandings

    node0 = hosts[0]
    own = {each.address for nic in known.facts[node0.name].network.nics for each in nic.addresses}
    named = {node0.name, node0.address, *own}
    return (*remarks(config, len(hosts), named), *misunderstandings(config, env.packages))


def _environment(
    hosts: Sequence[Host], wishes: RunRequest, known: ClusterContext, *, say: Say, dry_run: bool
) -> RankEnv | PreflightFailure:
    """The one that is there; to show a plan, one that could be."""
    if not dry_run or has_environment(wishes, known):
        return environment_of(hosts, wishes, known)
    from ipexctl.stack.catalog.user_table import known_rows  # the table costs start-up, and is seldom needed

    planned = planned_environment(wishes, known, known_rows(os.environ))
    if isinstance(planned, PreflightFailure):
        return planned
    env, said = planned
    say(f"note: {said}")
    return env


def submit_run(
    hosts: Sequence[Host],
    wishes: RunRequest,
    pool: SessionPool,
    place: ProjectLocation,
    secrets: Mapping[str, str],
    way: ConnectSettings,
    *,
    say: Say,
    gathered: GatheredContext | None = None,
) -> StartedRun | PreflightFailure:
    """Plan the run and start it; it is in this machine's register before its first rank lives."""
    gathered = gathered or start_gathering(hosts, wishes, pool, place)
    run = gathered.run
    try:
        keep = read_limits(os.environ)
        planned = plan_run(hosts, wishes, pool, place, run=run, say=say, gathered=gathered)
    except UserError:
        gathered.leave()
        _release_tree(hosts, wishes, pool, run)
        raise
    if isinstance(planned, PreflightFailure):
        _release_tree(hosts, wishes, pool, run)
        return planned
    plan, known, env = planned.plan, planned.known, planned.env
    used = [host for host in hosts if host.name in {each.name for each in plan.hosts}]
    if hosts[0] not in used:
        used.insert(0, hosts[0])
    stores = known.stores()
    python = env.python
    firsts: dict[str, str] = {}
    for host in used:
        firsts.setdefault(stores[host.name] or f"alone:{host.name}", host.name)
    record = RunRecord(
        id=run,
        node0=hosts[0],
        home=known.home,
        python=python,
        script=" ".join(wishes.words)[:200],
        env=plan.env or plan.python,
        started=time.time(),
        world_size=plan.world_size,
        hosts=tuple(host.name for host in used),
        host_keys=way.host_keys,
        connect_timeout=way.connect_timeout,
        stores=tuple(firsts.values()),
        nodes=tuple(used),
        ranks=tuple(each.host for each in sorted(plan.ranks, key=lambda each: each.rank)),
        cwd=plan.cwd,
        again=way.again,
    )
    jobs = {host.name: job_of(plan, host, secrets) for host in plan.hosts}
    files = [starting.File(file.name, file.text.encode(), file.mode) for file in plan.files]
    shown = {**to_json(plan), "install": command_of(plan.env, known, wishes.env) if plan.env else ""}
    files.append(starting.File("plan.json", json.dumps(shown, indent=1).encode()))
    spec = starting.LaunchSpec(
        id=run,
        home=known.home,
        python=python,
        bind=plan.hosts[0].address,
        addresses=[host.address for host in plan.hosts],
        argv=plan.argv,
        launcher_env={setting.name: setting.value for setting in plan.launcher_env},
        jobs=jobs,
        stores=stores,
        files=files,
        setup=wishes.setup,
        script=record.script,
        env=record.env,
        time_limit=plan.time_limit,
        restarts=wishes.restarts,
        hang_after=wishes.hang_after,
        logind=known.facts[hosts[0].name].logind,
        keep=keep,
    )
    register = RunRegistry()
    try:
        register.save(record)
    except UserError:
        _release_tree(used, wishes, pool, run)
        raise

    def may_go() -> PreflightFailure | None:
        refused = planned.may_go()
        if refused is None:
            pending_runs(register.directory, run)
        return refused

    try:
        started = starting.start(used, spec, pool, may_go)
    except UserError:
        register.remove(run)
        _release_tree(used, wishes, pool, run)
        raise
    if isinstance(started, starting.StartFailure) and started.unsure:
        name, error = next(iter(started.errors.items()))
        fix = f"it may have begun, or not: ipexctl ps says which, ipexctl stop {run} ends it"
        return PreflightFailure(f"{name}: {error.reason}", fix, (name,), error.status == "unreachable", unsure=True)
    if isinstance(started, starting.StartFailure):
        register.remove(run)
        _release_tree(used, wishes, pool, run)
        if started.refused is not None:
            return started.refused
        name, error = next(iter(started.errors.items()))
        return PreflightFailure(
            f"{name}: {error.reason}", error.fix, tuple(started.errors), error.status == "unreachable"
        )
    run_in_background(lambda: prune_local(register, keep), "prune")
    return StartedRun(record, replace(plan, master_port=started.master_port), (*plan.notes, *started.notes))


def remove_job_files(hosts: Sequence[Host], record: RunRecord, pool: SessionPool) -> None:
    """A run that failed or was stopped early may not have reached every node: its token and secrets are taken off."""
    used = [host for host in hosts if host.name in record.hosts]

    def clear(host: Host, session: Session) -> None:
        del host
        capture(session, Command.argv("rm", "-f", f"{record.rundir}/job.json"), timeout=10)

    list(pool.each(used, clear))  # a node that is lost keeps a token that opens nothing any more


def _release_tree(hosts: Sequence[Host], wishes: RunRequest, pool: SessionPool, run: str) -> None:
    """A run that doesn't begin holds no tree: the next sync may change it in place."""
    if not wishes.sync:
        return
    home = shlex.quote(wishes.home[2:]) if wishes.home.startswith("~/") else shlex.quote(wishes.home)

    def release(host: Host, session: Session) -> None:
        del host
        capture(session, Command(f"rm -f {home}/code/*/.ipexctl/leases/{run}", "release the tree"), timeout=10)

    list(pool.each(hosts, release))  # where a host is lost, its lease runs out by itself


def _tree(
    bringing: Future[SyncReport] | None, place: ProjectLocation, known: ClusterContext, *, say: Say, dry_run: bool
) -> str | PreflightFailure:
    """The project's directory on the hosts."""
    if bringing is None:
        return str(place.root)
    try:
        report = bringing.result()
    except GateClosed as closed:
        if closed.refused is None:
            raise
        return closed.refused
    bad = [each for each in report.hosts if each.status in ("failed", "unreachable")]
    if bad:
        return PreflightFailure(
            f"{bad[0].host.name}: the project is not there: {bad[0].reason}",
            bad[0].fix,
            tuple(each.host.name for each in bad),
            unreachable=bad[0].status == "unreachable",
        )
    for note in report.notes:
        say(f"note: {note}")
    lacked = [each for each in report.hosts if each.files_sent]
    if lacked and not dry_run:
        files = "1 file" if report.files == 1 else f"{report.files} files"
        sent, to = max(each.files_sent for each in lacked), fold(each.host.name for each in lacked)
        say(f"{report.root}: {sent} of {files} brought to {to}, {report.seconds:.1f} s")
    path = report.path or next((each.path for each in report.hosts if each.path), None)
    return path or f"{known.home}/code/{report.project}"

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
from ipexctl.jobs.begin import start as starting
from ipexctl.jobs.begin.ahead import Closed, ask_ahead
from ipexctl.jobs.begin.needs import command_of, completed
from ipexctl.jobs.begin.places import check_data, check_places
from ipexctl.jobs.begin.prepare import environment_of, has_environment, look, planned_environment
from ipexctl.jobs.begin.project import left_elsewhere
from ipexctl.jobs.begin.refused import Refused
from ipexctl.jobs.begin.under_way import going
from ipexctl.jobs.begin.ways import check_ways
from ipexctl.jobs.keep import prune_here, read_keep
from ipexctl.jobs.record import Register, RunRecord
from ipexctl.launch.job import job_of
from ipexctl.launch.plan import LaunchRefusal, to_json
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.request import LaunchRequest
from ipexctl.remote.aside import Aside
from ipexctl.remote.command import Command
from ipexctl.remote.outcome import TimedOut, Unreachable
from ipexctl.remote.session import capture
from ipexctl.trust.known import config_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.jobs.begin.ahead import Ahead
    from ipexctl.jobs.begin.prepare import Known
    from ipexctl.jobs.begin.project import Place
    from ipexctl.jobs.begin.wishes import RunWishes
    from ipexctl.launch.accelerate import AccelerateConfig
    from ipexctl.launch.plan import LaunchPlan
    from ipexctl.launch.request import LaunchOptions, RankEnv
    from ipexctl.remote.crew import Crew
    from ipexctl.remote.session import Session
    from ipexctl.sync.report import SyncReport

Say = Callable[[str], None]
"""Somebody who tells the user how far it is."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that is on its own now."""

    record: RunRecord
    plan: LaunchPlan
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Way:
    """How this call reaches hosts, as the record remembers it."""

    host_keys: str | None = None
    connect_timeout: float = 10.0
    again: str = ""
    """The options that choose the same hosts."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A run that could begin, with the project in its place."""

    plan: LaunchPlan
    known: Known
    env: RankEnv
    may_go: Callable[[], Refused | None]
    """Waits until the ways among the nodes have been tried."""


def plan_run(
    hosts: Sequence[Host],
    wishes: RunWishes,
    crew: Crew,
    place: Place,
    *,
    run: str,
    say: Say,
    dry_run: bool = False,
    ahead: Ahead | None = None,
) -> Planned | Refused:
    """All up to the plan; with `dry_run` nothing is copied. `ahead` is what the caller has begun with already."""
    ahead = ahead or ask_ahead(hosts, wishes, crew, place, run=run, dry_run=dry_run)
    planned: Planned | Refused | None = None
    try:
        planned = _planned(hosts, wishes, crew, place, ahead, say=say, dry_run=dry_run)
    finally:
        if not isinstance(planned, Planned):
            ahead.leave()
    return planned


def _planned(
    hosts: Sequence[Host], wishes: RunWishes, crew: Crew, place: Place, ahead: Ahead, *, say: Say, dry_run: bool
) -> Planned | Refused:
    known = look(hosts, wishes, ahead.answers.result())
    if isinstance(known, Refused):
        return known
    found = check_places(hosts, wishes, crew, "" if wishes.sync else place.executed(wishes.kind))
    if isinstance(found, Refused):
        return found
    env = found.env or _environment(hosts, wishes, known, say=say, dry_run=dry_run)
    if isinstance(env, Refused):
        return env
    try:
        config = None
        if ahead.config is not None:
            config = config_in(known.home, ahead.config.result(), [host.name for host in hosts[1:]])
    except (Unreachable, TimedOut) as error:
        return Refused(f"{hosts[0].name}: {error.reason}", error.fix, (hosts[0].name,), unreachable=True)
    plan = plan_launch(
        LaunchRequest(
            hosts=tuple(hosts),
            facts=known.facts,
            internal=known.internal,
            env=env,
            command=place.words,
            kind=wishes.kind,
            cwd=known.home,
            rundir=f"{known.home}/runs/{ahead.run}",
            words=known.words,
            ssh_config=config,
            options=_options(wishes, env),
            mpi_seen=found.mpi,
        )
    )
    if isinstance(plan, LaunchRefusal):
        return Refused(plan.reason, plan.fix, plan.hosts)
    plan = replace(plan, notes=(*plan.notes, *_remarks(wishes.accelerate, hosts, known, env)))
    wishes.ranks.within(plan.world_size)
    ways = Aside[Refused | str](lambda: "", "nothing")
    if not dry_run:
        used = [host for host in hosts if host.name in {each.name for each in plan.hosts}]
        needs = completed(place.needs, wishes, known, env) if place.needs is not None and wishes.sync else None
        reached = [hosts[0], *(host for host in used if host != hosts[0])]
        ways = Aside(lambda: check_ways(reached, known, env, config, crew, needs), "ways")

    @functools.cache
    def may_go() -> Refused | None:
        said = ways.result()
        if said and not isinstance(said, Refused):
            say(f"note: {said}")
        return said if isinstance(said, Refused) else None

    ahead.gate.decide(may_go)
    tree = _tree(ahead.tree, place, known, say=say, dry_run=dry_run)
    if isinstance(tree, Refused):
        return tree
    lacking = None if dry_run else check_data(hosts, wishes, tree, crew)
    if wishes.sync and (said := left_elsewhere(tree, place.below, Register().all())):
        say(f"note: {said}")
    plan = replace(plan, cwd=str(PurePosixPath(tree) / place.below))
    return lacking or Planned(plan, known, env, may_go)


def _options(wishes: RunWishes, env: RankEnv) -> LaunchOptions:
    """What the ranks get from a configuration depends on the accelerate that is in their environment."""
    if wishes.accelerate is None:
        return wishes.options
    from ipexctl.launch.accelerate_words import words_of

    kept = wishes.options.ccl_workers is not None
    words = words_of(wishes.accelerate, env.packages)
    return replace(wishes.options, given=tuple(w for w in words if not (kept and w.name == "CCL_WORKER_COUNT")))


def _remarks(config: AccelerateConfig | None, hosts: Sequence[Host], known: Known, env: RankEnv) -> tuple[str, ...]:
    if config is None:
        return ()
    from ipexctl.launch.accelerate import remarks
    from ipexctl.launch.accelerate_words import misunderstandings

    node0 = hosts[0]
    own = {each.address for nic in known.facts[node0.name].network.nics for each in nic.addresses}
    named = {node0.name, node0.address, *own}
    return (*remarks(config, len(hosts), named), *misunderstandings(config, env.packages))


def _environment(
    hosts: Sequence[Host], wishes: RunWishes, known: Known, *, say: Say, dry_run: bool
) -> RankEnv | Refused:
    """The one that is there; to show a plan, one that could be."""
    if not dry_run or has_environment(wishes, known):
        return environment_of(hosts, wishes, known)
    from ipexctl.stack.rows.user_rows import known_rows  # the table costs start-up, and is seldom needed

    planned = planned_environment(wishes, known, known_rows(os.environ))
    if isinstance(planned, Refused):
        return planned
    env, said = planned
    say(f"note: {said}")
    return env


def begin(
    hosts: Sequence[Host],
    wishes: RunWishes,
    crew: Crew,
    place: Place,
    secrets: Mapping[str, str],
    way: Way,
    *,
    say: Say,
    ahead: Ahead | None = None,
) -> Begun | Refused:
    """Plan the run and start it; it is in this machine's register before its first rank lives."""
    ahead = ahead or ask_ahead(hosts, wishes, crew, place)
    run = ahead.run
    try:
        keep = read_keep(os.environ)
        planned = plan_run(hosts, wishes, crew, place, run=run, say=say, ahead=ahead)
    except UserError:
        ahead.leave()
        _give_back(hosts, wishes, crew, run)
        raise
    if isinstance(planned, Refused):
        _give_back(hosts, wishes, crew, run)
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
    beginning = starting.Beginning(
        id=run,
        home=known.home,
        python=python,
        bind=plan.hosts[0].address,
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
    register = Register()
    try:
        register.save(record)
    except UserError:
        _give_back(used, wishes, crew, run)
        raise

    def may_go() -> Refused | None:
        refused = planned.may_go()
        if refused is None:
            going(register.directory, run)
        return refused

    try:
        started = starting.start(used, beginning, crew, may_go)
    except UserError:
        register.remove(run)
        _give_back(used, wishes, crew, run)
        raise
    if isinstance(started, starting.NotStarted) and started.unsure:
        name, error = next(iter(started.errors.items()))
        fix = f"it may have begun, or not: ipexctl ps says which, ipexctl stop {run} ends it"
        return Refused(f"{name}: {error.reason}", fix, (name,), error.status == "unreachable", unsure=True)
    if isinstance(started, starting.NotStarted):
        register.remove(run)
        _give_back(used, wishes, crew, run)
        if started.refused is not None:
            return started.refused
        name, error = next(iter(started.errors.items()))
        return Refused(f"{name}: {error.reason}", error.fix, tuple(started.errors), error.status == "unreachable")
    Aside(lambda: prune_here(register, keep), "prune")
    return Begun(record, replace(plan, master_port=started.master_port), (*plan.notes, *started.notes))


def clear_away(hosts: Sequence[Host], record: RunRecord, crew: Crew) -> None:
    """A run that failed or was stopped early may not have reached every node: its token and secrets are taken off."""
    used = [host for host in hosts if host.name in record.hosts]

    def clear(host: Host, session: Session) -> None:
        del host
        capture(session, Command.argv("rm", "-f", f"{record.rundir}/job.json"), timeout=10)

    list(crew.each(used, clear))  # a node that is lost keeps a token that opens nothing any more


def _give_back(hosts: Sequence[Host], wishes: RunWishes, crew: Crew, run: str) -> None:
    """A run that doesn't begin holds no tree: the next sync may change it in place."""
    if not wishes.sync:
        return
    home = shlex.quote(wishes.home[2:]) if wishes.home.startswith("~/") else shlex.quote(wishes.home)

    def release(host: Host, session: Session) -> None:
        del host
        capture(session, Command(f"rm -f {home}/code/*/.ipexctl/leases/{run}", "release the tree"), timeout=10)

    list(crew.each(hosts, release))  # where a host is lost, its lease runs out by itself


def _tree(bringing: Aside[SyncReport] | None, place: Place, known: Known, *, say: Say, dry_run: bool) -> str | Refused:
    """The project's directory on the hosts."""
    if bringing is None:
        return str(place.root)
    try:
        report = bringing.result()
    except Closed as closed:
        if closed.refused is None:
            raise
        return closed.refused
    bad = [each for each in report.hosts if each.status in ("failed", "unreachable")]
    if bad:
        return Refused(
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

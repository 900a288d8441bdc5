"""The verb behind `ipexctl run`: look, find the environment, bring the code, plan, try the way, start."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted
from ipexctl.jobs import start as starting
from ipexctl.jobs.places import check_places
from ipexctl.jobs.prepare import Refused, environment_of, has_environment, look, planned_environment, ssh_config_of
from ipexctl.jobs.record import Register, RunRecord, new_id
from ipexctl.jobs.ways import check_ways
from ipexctl.launch.job import job_of
from ipexctl.launch.plan import LaunchRefusal, to_json
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.request import LaunchRequest
from ipexctl.remote.command import Command
from ipexctl.remote.outcome import TimedOut, Unreachable
from ipexctl.remote.session import capture
from ipexctl.stack.user_rows import known_rows
from ipexctl.sync.project import data_patterns
from ipexctl.sync.root import root_for
from ipexctl.sync.sync import sync_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.jobs.prepare import Known
    from ipexctl.jobs.wishes import RunWishes
    from ipexctl.launch.plan import LaunchPlan
    from ipexctl.launch.request import RankEnv
    from ipexctl.remote.crew import Crew
    from ipexctl.remote.session import Session

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


@dataclass(frozen=True, slots=True)
class Place:
    """Where the project is here, and what the ranks execute in it."""

    root: Path
    below: str
    """The working directory, from the root on."""
    words: tuple[str, ...]
    """The command, the script from the working directory on."""


def find_place(wishes: RunWishes, cwd: Path) -> Place:
    """Refuses a script that isn't there before any host is touched."""
    script = Path(wishes.script) if wishes.kind == "script" else None
    if script is not None:
        at = cwd / script
        if not at.is_file():
            what = "is a directory" if at.is_dir() else "is not there"
            raise UserError(
                f"the script {quoted(str(script))} {what}",
                fix="its path from here; a module: -m NAME; a command: -- CMD",
            )
    if wishes.cwd is not None and not (cwd / wishes.cwd).is_dir():
        raise UserError(
            f"--cwd {quoted(str(wishes.cwd))} is no directory", fix="the project's directory on this machine"
        )
    root = root_for(script, wishes.cwd, cwd)
    here = Path(os.path.normpath(cwd))
    below = here.relative_to(root).as_posix() if here.is_relative_to(root) else "."
    if script is None:
        return Place(root, below, wishes.words)
    at = Path(os.path.normpath(cwd / script))
    if not at.is_relative_to(root):
        raise UserError(
            f"the script {quoted(str(script))} is not below {root}",
            fix="--cwd names the directory that holds all of it",
        )
    return Place(root, below, (os.path.relpath(at, root / below), *wishes.words[1:]))


def plan_run(
    hosts: Sequence[Host], wishes: RunWishes, crew: Crew, place: Place, *, run: str, say: Say, dry_run: bool = False
) -> tuple[LaunchPlan, Known, RankEnv] | Refused:
    """All up to the plan; with `dry_run` nothing is copied."""
    known = look(hosts, wishes, crew)
    if isinstance(known, Refused):
        return known
    found = check_places(hosts, wishes, crew)
    if isinstance(found, Refused):
        return found
    env = found.env or _environment(hosts, wishes, known, say=say, dry_run=dry_run)
    if isinstance(env, Refused):
        return env
    try:
        config = ssh_config_of(hosts, known, crew)
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
            rundir=f"{known.home}/runs/{run}",
            words=known.words,
            ssh_config=config,
            options=wishes.options,
            mpi_seen=found.mpi,
        )
    )
    if isinstance(plan, LaunchRefusal):
        return Refused(plan.reason, plan.fix, plan.hosts)
    wishes.ranks.within(plan.world_size)
    if not dry_run:
        used = [host for host in hosts if host.name in {each.name for each in plan.hosts}]
        if refused := check_ways([hosts[0], *(h for h in used if h != hosts[0])], known, env, config, crew):
            return refused
    # Last, as it is the first thing to change anything there.
    tree = _tree(hosts, wishes, crew, place, known, run=run, say=say, dry_run=dry_run)
    if isinstance(tree, Refused):
        return tree
    plan = replace(plan, cwd=str(PurePosixPath(tree) / place.below))
    return plan, known, env


def _environment(
    hosts: Sequence[Host], wishes: RunWishes, known: Known, *, say: Say, dry_run: bool
) -> RankEnv | Refused:
    """The one that is there; to show a plan, one that could be."""
    if not dry_run or has_environment(wishes, known):
        return environment_of(hosts, wishes, known)
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
) -> Begun | Refused:
    """Plan the run and start it; it is in this machine's register before its first rank lives."""
    run = new_id(wishes.script, time.time())
    try:
        planned = plan_run(hosts, wishes, crew, place, run=run, say=say)
    except UserError:
        _give_back(hosts, wishes, crew, run)
        raise
    if isinstance(planned, Refused):
        _give_back(hosts, wishes, crew, run)
        return planned
    plan, known, env = planned
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
    )
    jobs = {host.name: job_of(plan, host, secrets) for host in plan.hosts}
    files = [starting.File(file.name, file.text.encode(), file.mode) for file in plan.files]
    files.append(starting.File("plan.json", json.dumps(to_json(plan), indent=1).encode()))
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
        logind=known.facts[hosts[0].name].logind,
    )
    register = Register()
    register.save(record)
    started = starting.start(used, beginning, crew)
    if isinstance(started, starting.NotStarted):
        register.remove(run)
        _give_back(used, wishes, crew, run)
        name, error = next(iter(started.errors.items()))
        return Refused(f"{name}: {error.reason}", error.fix, tuple(started.errors), error.status == "unreachable")
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


def _tree(
    hosts: Sequence[Host],
    wishes: RunWishes,
    crew: Crew,
    place: Place,
    known: Known,
    *,
    run: str,
    say: Say,
    dry_run: bool,
) -> str | Refused:
    """The project's directory on the hosts."""
    if not wishes.sync:
        return str(place.root)
    excludes = (*wishes.excludes, *data_patterns(place.root, [Path(each) for each in wishes.data]))
    report = sync_tree(
        place.root,
        hosts,
        crew,
        known.facts,
        home=wishes.home,
        excludes=excludes,
        iface=wishes.iface,
        timeout=wishes.timeout,
        allow_big=wishes.allow_big,
        dry_run=dry_run,
        lease=None if dry_run else run,
    )
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
    sent = sum(each.files_sent for each in report.hosts)
    if sent and not dry_run:
        files = "1 file" if report.files == 1 else f"{report.files} files"
        say(f"{files} of {report.root}: {sent} brought, {report.seconds:.1f} s")
    path = report.path or next((each.path for each in report.hosts if each.path), None)
    return path or f"{known.home}/code/{report.project}"

"""The verb behind `ipexctl install`: look, decide, fetch once, spread, build on each store, verify on each host."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipexctl.remote.command import Command
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.session import capture
from ipexctl.stack.choice.fit import interpreters_for, misfit
from ipexctl.stack.choice.plan import Refusal
from ipexctl.stack.choice.wish import stacks
from ipexctl.stack.course import Course, Wishes
from ipexctl.stack.env import environment
from ipexctl.stack.env.existing import EnvFields, find_existing
from ipexctl.stack.env.names import env_directory
from ipexctl.stack.env.obstacles import homes_differ
from ipexctl.stack.env.setup import Setup, check_env, find_obstacle, is_named, machine_token, prove_only, set_up
from ipexctl.stack.lock.lock import Lock, Wheel
from ipexctl.stack.lock.locking import uv_for_node
from ipexctl.stack.lock.supply import installer_of, supply
from ipexctl.stack.look import look, say_how_much, summary_of
from ipexctl.stack.progress import Said, unwatched
from ipexctl.stack.report import HostInstall, StackSummary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.remote.crew import Crew
    from ipexctl.remote.outcome import Status
    from ipexctl.remote.session import Session
    from ipexctl.stack.env.environment import CheckResult
    from ipexctl.stack.env.existing import EnvRecord, Existing
    from ipexctl.stack.lock.supply import Supplied
    from ipexctl.stack.progress import Watch
    from ipexctl.stack.report import InstallReport

__all__ = ["Wishes", "install"]


def install(hosts: Sequence[Host], wishes: Wishes, crew: Crew, watch: Watch = unwatched) -> InstallReport:
    """Put one stack on every host. A host that fails takes no other down; a second call finishes the job."""
    course = Course(hosts, wishes, crew, watch)
    look(course)
    if not course.there:
        return course.report()
    homes = {host.name: home.path for host in course.there if (home := course.facts[host.name].home)}
    users = [course.facts[host.name].account.user for host in course.there]
    if refusal := homes_differ(homes, users):
        return course.report(refusal=refusal)
    known = None if wishes.upgrade else find_existing(wishes.env, wishes.name, course.facts)
    if known is not None and (setup := _setup_again(course, known)) is not None:
        return _go_on(course, known.record, setup)
    try:
        decided = supply(course)
    except Cancelled as error:
        for host in course.there:
            course.end(host, error)
        return course.report()
    except HostError as error:
        return course.report(refusal=Refusal(error.reason, error.fix))
    if isinstance(decided, Refusal):
        return course.report(refusal=decided)
    return _begin(course, decided)


def _begin(course: Course, decided: Supplied) -> InstallReport:
    """A lock that was just made, on all hosts."""
    plan, lock = decided.plan, decided.lock
    course.notes += plan.notes
    name = env_directory(plan.row.name, lock.digest)
    summary = summary_of(plan, lock)
    fetches = f"{course.first.name} fetches them itself"
    say_how_much(course, decided, by=fetches if decided.by_node0 else "they come through this machine")
    if course.wishes.dry_run:
        for host in course.there:
            if wrong := find_obstacle(course, host, lock, plan.interpreters.get(host.name)):
                course.end(host, HostError(*wrong))
            else:
                course.done[host.name] = HostInstall(
                    host, "changed", "", "", name, lock.packages, seconds=course.seconds
                )
        return course.report(stack=summary, lock=lock, path=f"{course.home}/envs/{course.wishes.name}")
    setup = Setup(
        name=name,
        lock=lock,
        installer=decided.installer,
        record=EnvFields(
            row=plan.row.name,
            python=plan.python,
            requests=(course.wishes.env.to_json(),),
            backend=plan.backend,
            module=plan.row.module if plan.oneccl else None,
            retired=plan.row.retired,
            mpi=summary.mpi,
            why=plan.why,
            installer=decided.installer.to_json() if decided.installer else None,
        ).to_json(),
        interpreters=plan.interpreters,
        asked=decided.asked,
        by_node0=decided.by_node0,
    )
    set_up(course, setup, course.there)
    return course.report(stack=summary, lock=lock, path=f"{course.home}/envs/{course.wishes.name}")


def _setup_again(course: Course, known: Existing) -> Setup | None:
    """The environment that answers this request already, for all hosts; None where it wouldn't do for all of them."""
    record = known.record
    row = stacks(course.wishes.rows).get(record.row)
    if row is None or any(misfit(row, facts) for facts in course.facts.values()):
        return None
    interpreters = interpreters_for(record.python, course.facts)
    if any(host.name not in interpreters for host in course.there):
        return None
    for name in known.hosts:
        host = next(host for host in course.there if host.name == name)
        lock = _read_lock(course, host, record)
        if lock is not None:
            fields = EnvFields(
                row=record.row,
                python=record.python,
                requests=record.requests,
                backend=record.backend,
                module=record.module,
                retired=row.retired,
                mpi=record.mpi,
                why=record.why,
                installer=record.installer,
            ).to_json()
            return Setup(record.name, lock, None, fields, interpreters)
    return None


def _read_lock(course: Course, host: Host, record: EnvRecord) -> Lock | None:
    """An environment's lock, from one host that has it; None where it is broken there."""
    path = f"{course.home}/envs/{record.name}/lock.json"
    try:
        session = course.crew.session(host)
        said = capture(session, Command.argv("cat", path), timeout=60, cancel=course.crew.cancel)
        lock = Lock.from_json(json.loads(said.stdout))
    except (HostError, ValueError, KeyError, TypeError):
        return None
    return lock if lock.digest == record.digest else None


def _go_on(course: Course, record: EnvRecord, setup: Setup) -> InstallReport:
    """The environment is known: what is whole stays, what is broken or missing is made from the same lock."""
    summary = StackSummary(
        name=record.row,
        torch=record.packages.get("torch", ""),
        ipex=record.packages.get("intel-extension-for-pytorch"),
        oneccl=record.packages.get("oneccl-bind-pt"),
        mpi=record.mpi,
        python=record.python,
        backend=record.backend,
        why=record.why,
        retired=bool(setup.record.get("retired")),
    )
    path = f"{course.home}/envs/{course.wishes.name}"
    found = _check_all(course, setup)
    whole = [host for host in course.there if host.name in found and found[host.name].ok]
    broken = {host.name: result.build for host, result in _there(course, found) if not result.ok}
    setup = replace(setup, broken=broken)
    rest = [host for host in course.there if host not in whole]
    if course.wishes.dry_run:
        for host in course.there:
            status: Status = "ok" if host in whole else "changed"
            course.done[host.name] = _host_install(course, setup, host, status)
        return course.report(stack=summary, lock=setup.lock, path=path)
    for host, result in _there(course, found):
        if not result.ok:
            course.watch(Said(f"{host.name}: made anew, for {result.wrong[0]}"))
    unproved = []
    for host in whole:
        proof = environment.noted(found[host.name].verified.get(machine_token(course, host)))
        if proof is None:
            unproved.append(host)
        else:
            course.done[host.name] = _host_install(course, setup, host, "ok", proof.to_json())
    prove_only(course, setup, unproved)
    _name_where_missing(course, setup, whole)
    if rest:  # only then: to know our own uv is to read all of it
        set_up(course, replace(setup, installer=_recorded_installer(record)), rest)
    return course.report(stack=summary, lock=setup.lock, path=path)


def _check_all(course: Course, setup: Setup) -> dict[str, CheckResult]:
    def check(host: Host, session: Session) -> CheckResult:
        with course.timed(host.name, "checked the environment"):
            return check_env(course, setup, host, session)

    found: dict[str, CheckResult] = {}
    for done in course.crew.each(course.there, check):
        if done.error is not None:
            course.end(done.host, done.error)
        elif done.result is not None:
            found[done.host.name] = done.result
    return found


def _there(course: Course, found: Mapping[str, CheckResult]) -> list[tuple[Host, CheckResult]]:
    """The hosts where there is an environment of that name, whole or not."""
    return [(host, found[host.name]) for host in course.hosts if host.name in found and found[host.name].there]


def _name_where_missing(course: Course, setup: Setup, hosts: Sequence[Host]) -> None:
    """The environment may be there under another name only."""
    name = course.wishes.name

    def give(host: Host, session: Session) -> None:
        python = course.python(host, setup.interpreters[host.name])
        environment.link(session, python, home=course.home, name=setup.name, links=(name,), cancel=course.crew.cancel)

    for done in course.crew.each([host for host in hosts if not is_named(course, setup, host)], give):
        if done.error is not None:
            course.end(done.host, done.error, setup.name)
        elif (before := course.done[done.host.name]).status == "ok":
            course.done[done.host.name] = replace(before, status="changed", reason=f"called {name} now")


def _host_install(
    course: Course, setup: Setup, host: Host, status: Status, verify: Mapping[str, Any] | None = None
) -> HostInstall:
    packages = setup.lock.packages
    return HostInstall(host, status, "", "", setup.name, packages, verify or {}, course.seconds)


def _recorded_installer(record: EnvRecord) -> Wheel | None:
    """uv as the environment was made with, where it can be had again; else ours."""
    with contextlib.suppress(TypeError):
        if record.installer and record.installer.get("url"):
            return Wheel(**record.installer)
    return installer_of(uv_for_node(None, "2.17"))

"""The verb behind `ipexctl install`: look, decide, fetch once, spread, build on each store, verify on each host."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipexctl.remote.command import Command
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.progress import Notice, ignore_event
from ipexctl.remote.session import capture
from ipexctl.stack.env import environment
from ipexctl.stack.env.build import (
    EnvSpec,
    build_everywhere,
    check_env,
    find_obstacle,
    is_named,
    machine_token,
    name_env,
    prove_only,
)
from ipexctl.stack.env.preflight import homes_differ
from ipexctl.stack.env.record import EnvFields, env_directory, find_existing
from ipexctl.stack.install_context import InstallContext, InstallRequest, announce_sizes, inspect_hosts, summary_of
from ipexctl.stack.lock.lock import Lock, Wheel
from ipexctl.stack.lock.make_lock import uv_for_node
from ipexctl.stack.lock.pipeline import installer_of, lock_stack
from ipexctl.stack.report import InstallResult, StackSummary
from ipexctl.stack.resolve.compatibility import incompatibility, interpreters_for
from ipexctl.stack.resolve.constraints import stacks
from ipexctl.stack.resolve.model import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.remote.outcome import Status
    from ipexctl.remote.progress import Watch
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.stack.env.environment import CheckResult
    from ipexctl.stack.env.record import EnvRecord, Existing
    from ipexctl.stack.lock.pipeline import LockedStack
    from ipexctl.stack.report import InstallReport

__all__ = ["InstallRequest", "install"]


def install(
    hosts: Sequence[Host], wishes: InstallRequest, pool: SessionPool, watch: Watch = ignore_event
) -> InstallReport:
    """Put one stack on every host. A host that fails takes no other down; a second call finishes the job."""
    context = InstallContext(hosts, wishes, pool, watch)
    inspect_hosts(context)
    if not context.there:
        return context.report()
    homes = {host.name: home.path for host in context.there if (home := context.facts[host.name].home)}
    users = [context.facts[host.name].account.user for host in context.there]
    if refusal := homes_differ(homes, users):
        return context.report(refusal=refusal)
    known = None if wishes.upgrade else find_existing(wishes.to_json(), wishes.name, context.facts)
    if known is not None and (report := _reuse(context, known)) is not None:
        return report
    if not context.there:
        return context.report()
    try:
        decided = lock_stack(context)
    except Cancelled as error:
        for host in context.there:
            context.end(host, error)
        return context.report()
    except HostError as error:
        return context.report(refusal=Refusal(error.reason, error.fix))
    if isinstance(decided, Refusal):
        return context.report(refusal=decided)
    return _begin(context, decided)


def _begin(context: InstallContext, decided: LockedStack) -> InstallReport:
    """A lock that was just made, on all hosts."""
    plan, lock = decided.plan, decided.lock
    context.notes += plan.notes
    name = env_directory(plan.row.name, lock.digest)
    summary = summary_of(plan, lock)
    fetches = f"{context.first.name} fetches them itself"
    announce_sizes(context, decided, by=fetches if decided.by_node0 else "they come through this machine")
    if context.wishes.dry_run:
        for host in context.there:
            if wrong := find_obstacle(context, host, lock, plan.interpreters.get(host.name)):
                context.end(host, HostError(*wrong))
            else:
                context.done[host.name] = InstallResult(
                    host, "changed", seconds=context.seconds, env=name, packages=lock.packages
                )
        return context.report(stack=summary, lock=lock, path=f"{context.home}/envs/{context.wishes.name}")
    setup = EnvSpec(
        name=name,
        lock=lock,
        installer=decided.installer,
        record=EnvFields(
            row=plan.row.name,
            python=plan.python,
            requests=(context.wishes.to_json(),),
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
    build_everywhere(context, setup, context.there)
    return context.report(stack=summary, lock=lock, path=f"{context.home}/envs/{context.wishes.name}")


def _setup_again(context: InstallContext, known: Existing) -> EnvSpec | None:
    """The environment that answers this request already, for all hosts; None where it wouldn't do for all of them."""
    record = known.record
    row = stacks(context.wishes.rows).get(record.row)
    if row is None or any(incompatibility(row, facts) for facts in context.facts.values()):
        return None
    interpreters = interpreters_for(record.python, context.facts)
    if any(host.name not in interpreters for host in context.there):
        return None
    for name in known.hosts:
        host = next(host for host in context.there if host.name == name)
        lock = _read_lock(context, host, record)
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
            return EnvSpec(record.name, lock, None, fields, interpreters)
    return None


def _read_lock(context: InstallContext, host: Host, record: EnvRecord) -> Lock | None:
    """An environment's lock, from one host that has it; None where it is broken there."""
    path = f"{context.home}/envs/{record.name}/lock.json"
    try:
        session = context.pool.session(host)
        said = capture(session, Command.argv("cat", path), timeout=60, cancel=context.pool.cancel)
        lock = Lock.from_json(json.loads(said.stdout))
    except (HostError, ValueError, KeyError, TypeError):
        return None
    return lock if lock.digest == record.digest else None


def _reuse(context: InstallContext, known: Existing) -> InstallReport | None:
    """Keep the environment where it is whole, and make it from the same lock where it is damaged or missing.

    None where it does not fit all hosts, or where it failed its verification wherever it is.
    """
    setup = _setup_again(context, known)
    if setup is None:
        return None
    record = known.record
    found = _check_all(context, setup)
    present = _there(context, found)
    if present and all(result.has_failed for _, result in present):
        return None
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
    path = f"{context.home}/envs/{context.wishes.name}"
    broken = {host.name: result.build for host, result in present if not result.ok or result.has_failed}
    whole = [host for host, result in present if host.name not in broken]
    setup = replace(setup, broken=broken)
    rest = [host for host in context.there if host not in whole]
    if context.wishes.dry_run:
        for host in context.there:
            status: Status = "ok" if host in whole else "changed"
            context.done[host.name] = _host_install(context, setup, host, status)
        return context.report(stack=summary, lock=setup.lock, path=path)
    for host, result in present:
        if host.name in broken:
            reason = result.wrong[0] if result.wrong else "its verification failed"
            context.watch(Notice(f"{host.name}: building the environment again: {reason}"))
    unproved = []
    for host in whole:
        proof = environment.noted(found[host.name].verified.get(machine_token(context, host)))
        if proof is None:
            unproved.append(host)
        else:
            context.done[host.name] = _host_install(context, setup, host, "ok", proof.to_json())
    prove_only(context, setup, unproved)
    _name_where_missing(context, setup, [host for host in whole if host not in unproved])
    if rest:  # only then: to know our own uv is to read all of it
        build_everywhere(context, replace(setup, installer=_recorded_installer(record)), rest)
    return context.report(stack=summary, lock=setup.lock, path=path)


def _check_all(context: InstallContext, setup: EnvSpec) -> dict[str, CheckResult]:
    def check(host: Host, session: Session) -> CheckResult:
        with context.timed(host.name, "checked the environment"):
            return check_env(context, setup, host, session)

    found: dict[str, CheckResult] = {}
    for done in context.pool.each(context.there, check):
        if done.error is not None:
            context.end(done.host, done.error)
        elif done.result is not None:
            found[done.host.name] = done.result
    return found


def _there(context: InstallContext, found: Mapping[str, CheckResult]) -> list[tuple[Host, CheckResult]]:
    """The hosts where there is an environment of that name, whole or not."""
    return [(host, found[host.name]) for host in context.hosts if host.name in found and found[host.name].there]


def _name_where_missing(context: InstallContext, setup: EnvSpec, hosts: Sequence[Host]) -> None:
    """The environment may be there under another name only."""

    def give(host: Host, session: Session) -> None:
        name_env(context, setup, host, session)

    for done in context.pool.each([host for host in hosts if not is_named(context, setup, host)], give):
        if done.error is not None:
            context.end(done.host, done.error, setup.name)
        elif (before := context.done[done.host.name]).status == "ok":
            reason = f"is named {context.wishes.name} now"
            context.done[done.host.name] = replace(before, status="changed", reason=reason)


def _host_install(
    context: InstallContext, setup: EnvSpec, host: Host, status: Status, verify: Mapping[str, Any] | None = None
) -> InstallResult:
    packages = setup.lock.packages
    return InstallResult(host, status, seconds=context.seconds, env=setup.name, packages=packages, verify=verify or {})


def _recorded_installer(record: EnvRecord) -> Wheel | None:
    """uv as the environment was made with, where it can be had again; else ours."""
    with contextlib.suppress(KeyError, TypeError):
        if record.installer and record.installer.get("url"):
            return Wheel.from_json(record.installer)
    return installer_of(uv_for_node(None, "2.17"))

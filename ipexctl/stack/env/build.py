"""Installs an environment on hosts: wheels to each store, one build per store, verification on every host."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ipexctl.facts.internal import addresses_among
from ipexctl.hosts.internal import NoCommonNetwork
from ipexctl.hosts.nodeset import fold
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import Cancelled, HostError, Status, TimedOut
from ipexctl.remote.progress import BytesMoved, HostFinished, Stepped
from ipexctl.remote.transfer.store_client import Damaged, NotInStore, StoreLocation, missing
from ipexctl.stack.env.environment import CheckResult, EnvClient, machine_token, parse_result
from ipexctl.stack.env.preflight import home_obstacle
from ipexctl.stack.install_context import InstallContext, InstallResult

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.remote.session import Session
    from ipexctl.stack.lock.indexes import IndexAnswer
    from ipexctl.stack.lock.lock import Lock, Wheel


@dataclass(frozen=True, slots=True)
class Base:
    """An environment whose packages another one shares on each host."""

    name: str
    wheels: frozenset[str]
    """The hashes of its wheels, which need not travel again."""


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """The environment to install on all hosts."""

    name: str
    """The name of its directory."""
    lock: Lock
    installer: Wheel | None
    record: Mapping[str, Any] = field(hash=False)
    """The fields of env.json that are the same on every host."""
    interpreters: Mapping[str, str] = field(hash=False)
    index_answer: IndexAnswer | None = field(default=None, repr=False)
    """The answer of the indexes; None if the lock is an older one, read from a host."""
    by_node0: bool = True
    """Whether the first host downloads the wheels. Then their URLs come from a host."""
    base: Base | None = None
    """The environment that this one extends."""
    broken: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    """Host → the build token of an environment there that is damaged or failed, to be replaced."""

    @property
    def new(self) -> Lock:
        """The wheels that the base lacks."""
        return self.lock.without(self.base.wheels) if self.base else self.lock

    @property
    def files(self) -> tuple[Wheel, ...]:
        """The wheels that must be in a host's store, and their installer."""
        return (*self.new.wheels, *((self.installer,) if self.installer else ()))


def build_everywhere(context: InstallContext, spec: EnvSpec, hosts: Sequence[Host]) -> None:
    """Deliver the wheels, build once per store and verify on every host; results go to the context."""
    from ipexctl.remote.transfer.distribute import Distributor  # slow to import, as those below

    if spec.base is not None and not all(_has_env(context, spec.base.name, host) for host in hosts):
        spec = replace(spec, base=None)  # a host needs all wheels, so they are all brought to the first one
    ready = [host for host in hosts if _check_room(context, spec, host)]
    if not ready:
        return
    spec = _find_damaged(context, spec, ready)
    locations = _store_locations(context, spec)
    source: StoreLocation | None = locations[context.first.name]
    if any(needs_build(context, spec, host) for host in ready):
        source = _stage(context, spec, locations, ready)
    if source is None:
        return
    leaders = _leaders(context, ready)

    def moved(host: Host, done: int, total: int | None) -> None:
        context.watch(BytesMoved(host.name, "receiving", done, total))

    files = [wheel.stored_file for wheel in spec.files]
    built: set[str] = set()
    with Distributor(context.pool, source, files, on_progress=moved) as distributor:

        def build_one(host: Host, session: Session) -> None:
            if needs_build(context, spec, host):
                with context.timed(host.name, "got the wheels"):
                    route = distributor.bring(locations[host.name], session, timeout=context.request.timeout)
                if route == "here" and not isinstance(session, LocalSession):
                    context.uplink += sum(file.size or 0 for file in files)
            with context.timed(host.name, "built the environment"):
                is_new = _build(context, spec, host, session)
            built.add(host.name)
            if not is_new:
                # so that the next call with this request needs no index
                env_client(context, spec, host, session).add_request(spec.name, context.request.to_json())
            _verify(context, spec, host, session, changed=is_new)

        for done in context.pool.each(leaders, build_one):
            if done.error is not None:
                context.end(done.host, done.error, spec.name)
                context.watch(HostFinished(done.host.name, done.error.reason, ok=False))
    _verify_followers(context, spec, ready, leaders, built)
    _drop_wheels(context, spec, [h for h in leaders if h.name in built and not _same_store(context, h, source.host)])


def _find_damaged(context: InstallContext, spec: EnvSpec, hosts: Sequence[Host]) -> EnvSpec:
    """Mark environments of that name that are damaged or failed their verification, to be replaced."""
    present = [host for host in hosts if not needs_build(context, spec, host)]
    found = {
        done.host.name: done.result.build
        for done in context.pool.each(present, lambda host, session: check_env(context, spec, host, session))
        if done.result is not None and (not done.result.ok or done.result.has_failed)
    }
    return replace(spec, broken={**spec.broken, **found})


def needs_build(context: InstallContext, spec: EnvSpec, host: Host) -> bool:
    """Whether the host lacks a usable environment of that name."""
    return host.name in spec.broken or not _has_env(context, spec.name, host)


def _has_env(context: InstallContext, name: str, host: Host) -> bool:
    return any(env.name == name and env.runs for env in context.facts[host.name].software.envs)


def is_named(context: InstallContext, spec: EnvSpec, host: Host) -> bool:
    """Whether the requested name (`--env`) points at the environment on that host."""
    envs = context.facts[host.name].software.envs
    return any(env.name == spec.name and context.request.name in env.names for env in envs)


def _stage(
    context: InstallContext, spec: EnvSpec, locations: Mapping[str, StoreLocation], ready: list[Host]
) -> StoreLocation | None:
    """Bring all wheels to the first host, or to the next one if it cannot store them; None if no host can."""
    from ipexctl.stack.env.staging import stage_wheels

    first = context.first
    is_fit = first.name not in context.done or context.done[first.name].status in ("ok", "changed")
    for host in [*([first] if is_fit else []), *(host for host in tuple(ready) if host != first)]:
        try:
            stage_wheels(context, spec, context.pool.session(host), locations[host.name])
        except (Cancelled, TimedOut, NotInStore, Damaged) as error:
            for other in ready:
                is_its_own = other == host or isinstance(error, NotInStore)
                reason = (
                    error.reason if is_its_own else f"{host.name}, which passes the wheels on, failed: {error.reason}"
                )
                context.end(other, HostError(reason, error.fix))
            return None
        except HostError as error:
            if host in ready:
                ready.remove(host)
                context.end(host, error)
                context.watch(HostFinished(host.name, error.reason, ok=False))
            else:
                context.notes.append(f"{host.name} cannot store the wheels to pass them on: {error.reason}")
        else:
            return locations[host.name]
    return None


def _drop_wheels(context: InstallContext, spec: EnvSpec, hosts: Sequence[Host]) -> None:
    """Remove the wheels, after all hosts have them; the first host keeps its copy for the next install."""

    def drop(host: Host, session: Session) -> None:
        _build(context, spec, host, session, drop=True)

    for done in context.pool.each(hosts, drop):
        if done.error is not None:
            context.notes.append(
                f"{done.host.name} still has the wheels ({done.error.reason}); while no run or install is alive "
                "(ipexctl doctor), ipexctl envs --prune removes them, and environments without a name"
            )


def remove_superseded(context: InstallContext, spec: EnvSpec, name: str) -> None:
    """Remove an environment that has lost its name on every host, unless a process of a host uses it."""
    hosts = [host for host in context.hosts if host.name in context.facts and _has_env(context, name, host)]

    def is_used(host: Host, session: Session) -> bool:
        return env_client(context, spec, host, session).is_used(name, [context.request.name])

    used = {done.host.name for done in context.pool.each(hosts, is_used) if done.result is not False}
    used_stores = {_store(context, host) for host in hosts if host.name in used}
    leaders = [host for host in _leaders(context, hosts) if _store(context, host) not in used_stores]

    def remove(host: Host, session: Session) -> None:
        env_client(context, spec, host, session).remove([name])

    for removed in context.pool.each(leaders, remove):
        if removed.error is not None:
            context.notes.append(f"{removed.host.name} still has {name}: {removed.error.reason}")
    if used:
        where = fold(host.name for host in hosts if host.name in used)
        context.notes.append(f"{name} stays on {where}, where it is used; later: ipexctl envs --prune")


def _verify_followers(
    context: InstallContext,
    spec: EnvSpec,
    hosts: Sequence[Host],
    leaders: Sequence[Host],
    built: Collection[str],
) -> None:
    """Verify on the hosts that share the home of a leader, which has built the environment."""
    leader_names = {leader.name for leader in leaders}
    followers = []
    for host in hosts:
        if host.name in leader_names:
            continue
        leader = next(other for other in leaders if _same_store(context, host, other))
        if leader.name in built:
            followers.append(host)
        else:
            context.end(host, HostError(f"it shares the home of {leader.name}, where the build failed"))
    verify_on_hosts(context, spec, followers, shares_home=True)


def verify_on_hosts(
    context: InstallContext, spec: EnvSpec, hosts: Sequence[Host], *, shares_home: bool = False
) -> None:
    """Verify on hosts that have the environment already, or share the home of a host that has just built it."""

    def verify(host: Host, session: Session) -> None:
        _verify(context, spec, host, session, changed=shares_home, shares_home=shares_home)

    for done in context.pool.each(hosts, verify):
        if done.error is not None:
            context.end(done.host, done.error, spec.name)


def _check_room(context: InstallContext, spec: EnvSpec, host: Host) -> bool:
    if not needs_build(context, spec, host):
        return True
    found = find_obstacle(context, host, spec.new, spec.interpreters.get(host.name))
    if found is not None:
        context.end(host, HostError(*found))
    return found is None


def find_obstacle(context: InstallContext, host: Host, lock: Lock, interpreter: str | None) -> tuple[str, str] | None:
    """The reason against an environment on that host, and the fix. Wheels in its store need no room again."""
    facts = context.facts[host.name]
    found = home_obstacle(facts, lock)
    if found is None:
        return None
    location = StoreLocation(host, context.python(host, interpreter), f"{context.home}/wheels")
    files = [wheel.stored_file for wheel in lock.wheels]
    try:
        lacking = missing(context.pool.session(host), location, files, timeout=60, cancel=context.pool.cancel)
    except HostError:
        return found
    return home_obstacle(facts, lock, held=lock.size - sum(file.size or 0 for file in lacking))


def _same_store(context: InstallContext, host: Host, other: Host) -> bool:
    return host.name == other.name or _store(context, host) == _store(context, other)


def _store(context: InstallContext, host: Host) -> str:
    home = context.facts[host.name].home
    return (home.store if home else None) or f"alone:{host.name}"


def _leaders(context: InstallContext, hosts: Sequence[Host]) -> list[Host]:
    """The first host of each shared home; it builds for the others."""
    firsts: dict[str, Host] = {}
    for host in hosts:
        firsts.setdefault(_store(context, host), host)
    return list(firsts.values())


def _store_locations(context: InstallContext, spec: EnvSpec) -> dict[str, StoreLocation]:
    hosts = [host for host in context.hosts if host.name in context.facts]
    internal = addresses_among(hosts, context.facts, context.request.iface)
    if isinstance(internal, NoCommonNetwork):
        if len(hosts) > 1:
            context.notes.append(f"wheels pass through the control machine: {internal.reason}. {internal.fix}")
        internal = {}
    store = f"{context.home}/wheels"
    return {
        host.name: StoreLocation(
            host,
            context.python(host, spec.interpreters.get(host.name)),
            store,
            internal.get(host.name),
        )
        for host in hosts
    }


def env_client(context: InstallContext, spec: EnvSpec, host: Host, session: Session) -> EnvClient:
    python = context.python(host, spec.interpreters.get(host.name))
    return EnvClient(session, python, context.home, context.pool.cancel)


def _build(context: InstallContext, spec: EnvSpec, host: Host, session: Session, *, drop: bool = False) -> bool:
    def on_event(event: dict[str, Any]) -> None:
        context.watch(Stepped(host.name, str(event.get("what") or "building")))

    return env_client(context, spec, host, session).build(
        spec,
        spec.interpreters[host.name],
        drop_wheels=drop,
        replace=None if drop else spec.broken.get(host.name),
        on_event=on_event,
        timeout=context.request.timeout or 3600.0,
    )


def check_env(context: InstallContext, spec: EnvSpec, host: Host, session: Session) -> CheckResult:
    return check_by_digest(context, spec.name, spec.lock.digest, spec.interpreters.get(host.name), session)


def check_by_digest(
    context: InstallContext, name: str, digest: str, interpreter: str | None, session: Session
) -> CheckResult:
    """Check that the environment exists and is what the lock with that digest says."""
    host = session.host
    client = EnvClient(session, context.python(host, interpreter), context.home, context.pool.cancel)
    with context.timed(host.name, "checked the environment"):
        return client.check(name, digest=digest, cached=not context.request.dry_run)


def _verify(
    context: InstallContext, spec: EnvSpec, host: Host, session: Session, *, changed: bool, shares_home: bool = False
) -> None:
    """Verify the environment on this host, and record the host's result; only a good environment gets the name."""
    from ipexctl.stack.env.verify_errors import explain

    began = time.monotonic()
    context.watch(Stepped(host.name, "verifying"))
    found = check_env(context, spec, host, session)
    if not found.ok:
        raise HostError(f"the environment {spec.name} is damaged: {found.problems[0]}", "run ipexctl install again")
    if isinstance(mpi := found.record.get("mpi"), str):
        context.installed_mpi = mpi
    machine = machine_token(context.facts[host.name], host)
    client = env_client(context, spec, host, session)
    result = client.verify(spec.name, found.record, machine=machine, timeout=context.request.timeout)
    problem = explain(result, env=spec.name, record=found.record)
    named = is_named(context, spec, host)
    works_elsewhere = any(parse_result(other) for name, other in found.verified.items() if name != machine)
    if problem is None and not named:
        client.link(spec.name, [context.request.name])
    elif problem is not None and named and not works_elsewhere:
        client.unlink(spec.name, [context.request.name])
    status: Status = "failed" if problem is not None else "changed" if changed or not named else "ok"
    reason, fix = problem or ("shares the home of another host" if shares_home else "", "")
    context.done[host.name] = InstallResult(
        host, status, reason, fix, context.seconds, spec.name, spec.lock.packages, result.to_json()
    )
    context.watch(HostFinished(host.name, f"verified ({time.monotonic() - began:.1f} s)", ok=problem is None))

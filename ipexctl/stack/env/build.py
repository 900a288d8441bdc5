"""An environment on every host: bytes to each store, built once a store, verified on each host that uses it."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ipexctl.facts.internal import addresses_among
from ipexctl.hosts.internal import NoCommonNetwork
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut
from ipexctl.remote.progress import BytesMoved, Ended, Stepped
from ipexctl.remote.transfer.distribute import Distributor
from ipexctl.remote.transfer.store_client import Damaged, NotInStore, StoreLocation, missing
from ipexctl.stack.env import environment
from ipexctl.stack.env.preflight import home_obstacle
from ipexctl.stack.env.staging import WheelDelivery, blob_of, stage_wheels
from ipexctl.stack.env.verify_errors import explain
from ipexctl.stack.report import InstallResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.remote.outcome import Status
    from ipexctl.remote.session import Session
    from ipexctl.stack.env.environment import BuildResult, CheckResult
    from ipexctl.stack.install_context import InstallContext
    from ipexctl.stack.lock.indexes import IndexAnswer
    from ipexctl.stack.lock.lock import Lock, Wheel


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """The environment that all hosts are to have."""

    name: str
    """Its directory's."""
    lock: Lock
    installer: Wheel | None
    record: Mapping[str, Any] = field(hash=False)
    """env.json's fields that are the same everywhere."""
    interpreters: Mapping[str, str] = field(hash=False)
    asked: IndexAnswer | None = None
    by_node0: bool = True
    broken: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    """Host → which making of the environment there is broken, and is to be made anew."""


def machine_token(context: InstallContext, host: Host) -> str:
    """What a host's verification is noted under: hosts that share a home have one environment between them."""
    return hashlib.sha256((context.facts[host.name].machine or host.name).encode()).hexdigest()[:16]


def build_everywhere(context: InstallContext, setup: EnvSpec, hosts: Sequence[Host]) -> None:
    """Everything from bytes to proof, for these hosts; each one's end is noted in the course."""
    well = [host for host in hosts if _has_room(context, setup, host)]
    if not well:
        return
    setup = _with_damage(context, setup, well)
    places = _places(context, setup)
    source: StoreLocation | None = places[context.first.name]
    if any(lacks(context, setup, host) for host in well):
        source = _stocked(context, setup, places, well)
    if source is None:
        return
    leaders = _leaders(context, well)

    def moved(host: Host, done: int, total: int | None) -> None:
        context.watch(BytesMoved(host.name, "receiving", done, total))

    blobs = [blob_of(wheel) for wheel in _files(setup)]
    built: dict[str, BuildResult] = {}
    with Distributor(context.pool, source, blobs, on_progress=moved) as spreader:

        def make(host: Host, session: Session) -> BuildResult:
            if lacks(context, setup, host):
                with context.timed(host.name, "got the wheels"):
                    way = spreader.bring(places[host.name], session, timeout=context.wishes.timeout)
                if way == "here" and not isinstance(session, LocalSession):
                    context.uplink += setup.lock.size
            with context.timed(host.name, "made the environment"):
                result = _build(context, setup, host, session)
            built[host.name] = result
            if result.state == "there":
                _note_request(context, setup, host, session)
            _prove(context, setup, host, session, changed=result.state == "built")
            return result

        for done in context.pool.each(leaders, make):
            if done.error is not None:
                context.end(done.host, done.error, setup.name)
                context.watch(Ended(done.host.name, done.error.reason, ok=False))
    _verify_followers(context, setup, well, leaders, built)
    _drop_wheels(context, setup, [h for h in leaders if h.name in built and not _same_store(context, h, source.host)])


def _with_damage(context: InstallContext, setup: EnvSpec, hosts: Sequence[Host]) -> EnvSpec:
    """An environment of that name that is damaged or failed its verification is made anew."""
    there = [host for host in hosts if not lacks(context, setup, host)]
    found = {
        done.host.name: done.result.build
        for done in context.pool.each(there, lambda host, session: check_env(context, setup, host, session))
        if done.result is not None and (not done.result.ok or done.result.has_failed)
    }
    return replace(setup, broken={**setup.broken, **found})


def lacks(context: InstallContext, setup: EnvSpec, host: Host) -> bool:
    """Whether the environment has to be made there: one that seems to be there is looked at first."""
    envs = context.facts[host.name].software.envs
    return host.name in setup.broken or not any(env.name == setup.name and env.runs for env in envs)


def is_named(context: InstallContext, setup: EnvSpec, host: Host) -> bool:
    """Whether the name of this call points at the environment there."""
    envs = context.facts[host.name].software.envs
    return any(env.name == setup.name and context.wishes.name in env.names for env in envs)


def _stocked(
    context: InstallContext, setup: EnvSpec, places: Mapping[str, StoreLocation], well: list[Host]
) -> StoreLocation | None:
    """The host that has all wheels now: the first, or the next where it can't take them, which is then through."""
    first = context.first
    is_fit = first.name not in context.done or context.done[first.name].status in ("ok", "changed")
    for host in [*([first] if is_fit else []), *(host for host in tuple(well) if host != first)]:
        try:
            stage_wheels(context, context.pool.session(host), places[host.name], _delivery(setup))
        except (Cancelled, TimedOut, NotInStore, Damaged) as error:
            for each in well:
                is_its_own = each == host or isinstance(error, NotInStore)
                reason = error.reason if is_its_own else f"wheels come by way of {host.name}: {error.reason}"
                context.end(each, HostError(reason, error.fix))
            return None
        except HostError as error:
            if host in well:
                well.remove(host)
                context.end(host, error)
                context.watch(Ended(host.name, error.reason, ok=False))
            else:
                context.notes.append(f"{host.name} can't take the wheels to hand them on: {error.reason}")
        else:
            return places[host.name]
    return None


def _drop_wheels(context: InstallContext, setup: EnvSpec, hosts: Sequence[Host]) -> None:
    """Not before all have theirs: who is complete hands wheels on. The first host keeps them for the next time."""

    def drop(host: Host, session: Session) -> None:
        _build(context, setup, host, session, drop=True)

    for done in context.pool.each(hosts, drop):
        if done.error is not None:
            context.notes.append(f"{done.host.name} still has the wheels: {done.error.reason}; ipexctl envs --prune")


def _verify_followers(
    context: InstallContext,
    setup: EnvSpec,
    hosts: Sequence[Host],
    leaders: Sequence[Host],
    built: Mapping[str, BuildResult],
) -> None:
    """Those that share the home of another: nothing is built there, everything is proved."""
    led = {leader.name for leader in leaders}
    followers = []
    for host in hosts:
        if host.name in led:
            continue
        leader = next(each for each in leaders if _same_store(context, host, each))
        if leader.name in built:
            followers.append(host)
        else:
            context.end(host, HostError(f"it shares the home of {leader.name}, where the environment was not made"))

    def prove(host: Host, session: Session) -> None:
        _prove(context, setup, host, session, changed=True, shares=True)

    for done in context.pool.each(followers, prove):
        if done.error is not None:
            context.end(done.host, done.error, setup.name)


def prove_only(context: InstallContext, setup: EnvSpec, hosts: Sequence[Host]) -> None:
    """For hosts that have the environment, whole: whether it works there."""

    def prove(host: Host, session: Session) -> None:
        _prove(context, setup, host, session, changed=False)

    for done in context.pool.each(hosts, prove):
        if done.error is not None:
            context.end(done.host, done.error, setup.name)


def _has_room(context: InstallContext, setup: EnvSpec, host: Host) -> bool:
    if not lacks(context, setup, host):
        return True
    found = find_obstacle(context, host, setup.lock, setup.interpreters.get(host.name))
    if found is not None:
        context.end(host, HostError(*found))
    return found is None


def find_obstacle(context: InstallContext, host: Host, lock: Lock, interpreter: str | None) -> tuple[str, str] | None:
    """The reason against an environment on that host, and the fix. Wheels in its store need no room again."""
    facts = context.facts[host.name]
    found = home_obstacle(facts, lock)
    if found is None:
        return None
    place = StoreLocation(host, context.python(host, interpreter), f"{context.home}/wheels")
    blobs = [blob_of(wheel) for wheel in lock.wheels]
    try:
        lacking = missing(context.pool.session(host), place, blobs, timeout=60, cancel=context.pool.cancel)
    except HostError:
        return found
    return home_obstacle(facts, lock, held=lock.size - sum(blob.size or 0 for blob in lacking))


def _same_store(context: InstallContext, host: Host, other: Host) -> bool:
    return host.name == other.name or _store(context, host) == _store(context, other)


def _store(context: InstallContext, host: Host) -> str:
    home = context.facts[host.name].home
    return (home.store if home else None) or f"alone:{host.name}"


def _leaders(context: InstallContext, hosts: Sequence[Host]) -> list[Host]:
    """One host of each home, the first; it builds for all that share it."""
    firsts: dict[str, Host] = {}
    for host in hosts:
        firsts.setdefault(_store(context, host), host)
    return list(firsts.values())


def _places(context: InstallContext, setup: EnvSpec) -> dict[str, StoreLocation]:
    hosts = [host for host in context.hosts if host.name in context.facts]
    internal = addresses_among(hosts, context.facts, context.wishes.iface)
    if isinstance(internal, NoCommonNetwork):
        if len(hosts) > 1:
            context.notes.append(f"wheels go through this machine: {internal.reason}. {internal.fix}")
        internal = {}
    store = f"{context.home}/wheels"
    return {
        host.name: StoreLocation(
            host,
            context.python(host, setup.interpreters.get(host.name)),
            store,
            internal.get(host.name),
        )
        for host in hosts
    }


def _files(setup: EnvSpec) -> tuple[Wheel, ...]:
    return (*setup.lock.wheels, *((setup.installer,) if setup.installer else ()))


def _delivery(setup: EnvSpec) -> WheelDelivery:
    return WheelDelivery(_files(setup), setup.asked, setup.by_node0)


def _build(context: InstallContext, setup: EnvSpec, host: Host, session: Session, *, drop: bool = False) -> BuildResult:
    def on_event(event: dict[str, Any]) -> None:
        context.watch(Stepped(host.name, str(event.get("what") or "building")))

    interpreter = setup.interpreters[host.name]
    return environment.build(
        session,
        interpreter,
        home=context.home,
        name=setup.name,
        interpreter=interpreter,
        lock=setup.lock,
        record={**setup.record, "interpreter": interpreter},
        installer=setup.installer,
        drop_wheels=drop,
        replace=None if drop else setup.broken.get(host.name),
        on_event=on_event,
        timeout=context.wishes.timeout or 3600.0,
        cancel=context.pool.cancel,
    )


def _note_request(context: InstallContext, setup: EnvSpec, host: Host, session: Session) -> None:
    """An environment that was there answers this request, too: the next such call needs no index."""
    environment.note(
        session,
        context.python(host, setup.interpreters.get(host.name)),
        home=context.home,
        name=setup.name,
        request=context.wishes.to_json(),
        cancel=context.pool.cancel,
    )


def check_env(context: InstallContext, setup: EnvSpec, host: Host, session: Session) -> CheckResult:
    """Whether the environment is there, and as its lock says."""
    return environment.check(
        session,
        context.python(host, setup.interpreters.get(host.name)),
        home=context.home,
        name=setup.name,
        digest=setup.lock.digest,
        cached=not context.wishes.dry_run,
        cancel=context.pool.cancel,
    )


def _prove(
    context: InstallContext, setup: EnvSpec, host: Host, session: Session, *, changed: bool, shares: bool = False
) -> None:
    """Verify the environment on this host, and record the host's result; only a good environment gets the name."""
    began = time.monotonic()
    context.watch(Stepped(host.name, "verifying"))
    with context.timed(host.name, "checked the environment"):
        found = check_env(context, setup, host, session)
    if not found.ok:
        raise HostError(f"the environment {setup.name} is damaged: {found.wrong[0]}", "run ipexctl install again")
    machine = machine_token(context, host)
    result = environment.verify_env(
        session,
        path=f"{context.home}/envs/{setup.name}",
        record=found.record,
        machine=machine,
        timeout=context.wishes.timeout,
        cancel=context.pool.cancel,
    )
    wrong = explain(result, env=setup.name, record=found.record)
    named = is_named(context, setup, host)
    works_elsewhere = any(environment.noted(other) for name, other in found.verified.items() if name != machine)
    if wrong is None and not named:
        name_env(context, setup, host, session)
    elif wrong is not None and named and not works_elsewhere:
        _take_name(context, setup, host, session)
    status: Status = "failed" if wrong is not None else "changed" if changed or not named else "ok"
    reason, fix = wrong or ("shares the home of another host" if shares else "", "")
    context.done[host.name] = InstallResult(
        host, status, reason, fix, context.seconds, setup.name, setup.lock.packages, result.to_json()
    )
    context.watch(Ended(host.name, f"verified ({time.monotonic() - began:.1f} s)", ok=wrong is None))


def name_env(context: InstallContext, setup: EnvSpec, host: Host, session: Session) -> None:
    """Make the name of this call point at the environment."""
    environment.link(
        session,
        context.python(host, setup.interpreters[host.name]),
        home=context.home,
        name=setup.name,
        links=(context.wishes.name,),
        cancel=context.pool.cancel,
    )


def _take_name(context: InstallContext, setup: EnvSpec, host: Host, session: Session) -> None:
    environment.unlink(
        session,
        context.python(host, setup.interpreters[host.name]),
        home=context.home,
        name=setup.name,
        links=(context.wishes.name,),
        cancel=context.pool.cancel,
    )

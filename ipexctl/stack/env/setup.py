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
from ipexctl.remote.spread import Spreader
from ipexctl.remote.stores import Damaged, NotHere, Place, missing
from ipexctl.stack.env import environment
from ipexctl.stack.env.explain import explain
from ipexctl.stack.env.obstacles import obstacle
from ipexctl.stack.env.stock import Goods, blob_of, stock
from ipexctl.stack.progress import Ended, Moved, Stepped
from ipexctl.stack.report import HostInstall
from ipexctl.trust.known import config_for
from ipexctl.trust.plan import words_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.remote.session import Session
    from ipexctl.stack.course import Course
    from ipexctl.stack.env.environment import BuildResult, CheckResult
    from ipexctl.stack.lock.indexes import Asked
    from ipexctl.stack.lock.lock import Lock, Wheel


@dataclass(frozen=True, slots=True)
class Setup:
    """The environment that all hosts are to have."""

    name: str
    """Its directory's."""
    lock: Lock
    installer: Wheel | None
    record: Mapping[str, Any] = field(hash=False)
    """env.json's fields that are the same everywhere."""
    interpreters: Mapping[str, str] = field(hash=False)
    asked: Asked | None = None
    by_node0: bool = True
    broken: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    """Host → which making of the environment there is broken, and is to be made anew."""


def machine_token(course: Course, host: Host) -> str:
    """What a host's verification is noted under: hosts that share a home have one environment between them."""
    return hashlib.sha256((course.facts[host.name].machine or host.name).encode()).hexdigest()[:16]


def set_up(course: Course, setup: Setup, hosts: Sequence[Host]) -> None:
    """Everything from bytes to proof, for these hosts; each one's end is noted in the course."""
    well = [host for host in hosts if _has_room(course, setup, host)]
    if not well:
        return
    setup = _with_damage(course, setup, well)
    places = _places(course, setup)
    source: Place | None = places[course.first.name]
    if any(lacks(course, setup, host) for host in well):
        source = _stocked(course, setup, places, well)
    if source is None:
        return
    leaders = _leaders(course, well)
    config = _ssh_config(course, places) if source.host == course.first else None

    def moved(host: Host, done: int, total: int | None) -> None:
        course.watch(Moved(host.name, "receiving", done, total))

    blobs = [blob_of(wheel) for wheel in _files(setup)]
    built: dict[str, BuildResult] = {}
    with Spreader(course.crew, source, blobs, ssh_config=config, on_progress=moved) as spreader:

        def make(host: Host, session: Session) -> BuildResult:
            if lacks(course, setup, host):
                with course.timed(host.name, "got the wheels"):
                    way = spreader.bring(places[host.name], session, timeout=course.wishes.timeout)
                if way == "here" and not isinstance(session, LocalSession):
                    course.uplink += setup.lock.size
            with course.timed(host.name, "made the environment"):
                result = _build(course, setup, host, session)
            built[host.name] = result
            if result.state == "there":
                _note_request(course, setup, host, session)
            named = is_named(course, setup, host)
            _prove(course, setup, host, session, changed=result.state == "built" or not named)
            return result

        for done in course.crew.each(leaders, make):
            if done.error is not None:
                course.end(done.host, done.error, setup.name)
                course.watch(Ended(done.host.name, done.error.reason, ok=False))
    _verify_followers(course, setup, well, leaders, built)
    _drop_wheels(course, setup, [h for h in leaders if h.name in built and not _same_store(course, h, source.host)])


def _with_damage(course: Course, setup: Setup, hosts: Sequence[Host]) -> Setup:
    """What is there by that name may be damaged, where nobody has looked at it yet: it is made anew."""
    there = [host for host in hosts if not lacks(course, setup, host)]
    found = {
        done.host.name: done.result.build
        for done in course.crew.each(there, lambda host, session: check_env(course, setup, host, session))
        if done.result is not None and not done.result.ok
    }
    return replace(setup, broken={**setup.broken, **found})


def lacks(course: Course, setup: Setup, host: Host) -> bool:
    """Whether the environment has to be made there: one that seems to be there is looked at first."""
    envs = course.facts[host.name].software.envs
    return host.name in setup.broken or not any(env.name == setup.name and env.runs for env in envs)


def is_named(course: Course, setup: Setup, host: Host) -> bool:
    """Whether the name of this call points at the environment there."""
    envs = course.facts[host.name].software.envs
    return any(env.name == setup.name and course.wishes.name in env.names for env in envs)


def _stocked(course: Course, setup: Setup, places: Mapping[str, Place], well: list[Host]) -> Place | None:
    """The host that has all wheels now: the first, or the next where it can't take them, which is then through."""
    first = course.first
    is_fit = first.name not in course.done or course.done[first.name].status in ("ok", "changed")
    for host in [*([first] if is_fit else []), *(host for host in tuple(well) if host != first)]:
        try:
            stock(course, course.crew.session(host), places[host.name], _goods(setup))
        except (Cancelled, TimedOut, NotHere, Damaged) as error:
            for each in well:
                is_its_own = each == host or isinstance(error, NotHere)
                reason = error.reason if is_its_own else f"wheels come by way of {host.name}: {error.reason}"
                course.end(each, HostError(reason, error.fix))
            return None
        except HostError as error:
            if host in well:
                well.remove(host)
                course.end(host, error)
                course.watch(Ended(host.name, error.reason, ok=False))
            else:
                course.notes.append(f"{host.name} can't take the wheels to hand them on: {error.reason}")
        else:
            return places[host.name]
    return None


def _drop_wheels(course: Course, setup: Setup, hosts: Sequence[Host]) -> None:
    """Not before all have theirs: who is complete hands wheels on. The first host keeps them for the next time."""

    def drop(host: Host, session: Session) -> None:
        _build(course, setup, host, session, drop=True)

    for done in course.crew.each(hosts, drop):
        if done.error is not None:
            course.notes.append(f"{done.host.name} still has the wheels: {done.error.reason}; ipexctl envs --prune")


def _verify_followers(
    course: Course, setup: Setup, hosts: Sequence[Host], leaders: Sequence[Host], built: Mapping[str, BuildResult]
) -> None:
    """Those that share the home of another: nothing is built there, everything is proved."""
    led = {leader.name for leader in leaders}
    followers = []
    for host in hosts:
        if host.name in led:
            continue
        leader = next(each for each in leaders if _same_store(course, host, each))
        if leader.name in built:
            followers.append(host)
        else:
            course.end(host, HostError(f"it shares the home of {leader.name}, where the environment was not made"))

    def prove(host: Host, session: Session) -> None:
        _prove(course, setup, host, session, changed=True, shares=True)

    for done in course.crew.each(followers, prove):
        if done.error is not None:
            course.end(done.host, done.error, setup.name)


def prove_only(course: Course, setup: Setup, hosts: Sequence[Host]) -> None:
    """For hosts that have the environment, whole: whether it works there."""

    def prove(host: Host, session: Session) -> None:
        _prove(course, setup, host, session, changed=False)

    for done in course.crew.each(hosts, prove):
        if done.error is not None:
            course.end(done.host, done.error, setup.name)


def _has_room(course: Course, setup: Setup, host: Host) -> bool:
    if not lacks(course, setup, host):
        return True
    found = find_obstacle(course, host, setup.lock, setup.interpreters.get(host.name))
    if found is not None:
        course.end(host, HostError(*found))
    return found is None


def find_obstacle(course: Course, host: Host, lock: Lock, interpreter: str | None) -> tuple[str, str] | None:
    """The reason against an environment on that host and what to do; its store is only asked where room seems short."""
    facts = course.facts[host.name]
    found = obstacle(facts, lock)
    if found is None or obstacle(facts, lock, held=lock.size) is not None:
        return found
    place = Place(host, course.python(host, interpreter), f"{course.home}/wheels")
    blobs = [blob_of(wheel) for wheel in lock.wheels]
    try:
        lacking = missing(course.crew.session(host), place, blobs, timeout=60, cancel=course.crew.cancel)
    except HostError:
        return found
    return obstacle(facts, lock, held=lock.size - sum(blob.size or 0 for blob in lacking))


def _same_store(course: Course, host: Host, other: Host) -> bool:
    return host.name == other.name or _store(course, host) == _store(course, other)


def _store(course: Course, host: Host) -> str:
    home = course.facts[host.name].home
    return (home.store if home else None) or f"alone:{host.name}"


def _leaders(course: Course, hosts: Sequence[Host]) -> list[Host]:
    """One host of each home, the first; it builds for all that share it."""
    firsts: dict[str, Host] = {}
    for host in hosts:
        firsts.setdefault(_store(course, host), host)
    return list(firsts.values())


def _places(course: Course, setup: Setup) -> dict[str, Place]:
    hosts = [host for host in course.hosts if host.name in course.facts]
    internal = addresses_among(hosts, course.facts, course.wishes.iface)
    if isinstance(internal, NoCommonNetwork):
        if len(hosts) > 1:
            course.notes.append(f"wheels go through this machine: {internal.reason}. {internal.fix}")
        internal = {}
    words = words_for(hosts, internal)
    store = f"{course.home}/wheels"
    return {
        host.name: Place(
            host,
            course.python(host, setup.interpreters.get(host.name)),
            store,
            internal.get(host.name),
            words.get(host.name),
        )
        for host in hosts
    }


def _files(setup: Setup) -> tuple[Wheel, ...]:
    return (*setup.lock.wheels, *((setup.installer,) if setup.installer else ()))


def _goods(setup: Setup) -> Goods:
    return Goods(_files(setup), setup.asked, setup.by_node0)


def _ssh_config(course: Course, places: Mapping[str, Place]) -> str | None:
    """The config by which node0 reaches the others, where `trust` has been there for all of these hosts."""
    if len(places) < 2:
        return None
    others = set(places) - {course.first.name}
    try:
        return config_for(course.crew.session(course.first), course.home, others, cancel=course.crew.cancel)
    except HostError:
        return None  # whoever is lost, or stopped, says so in its own step


def _build(course: Course, setup: Setup, host: Host, session: Session, *, drop: bool = False) -> BuildResult:
    def on_event(event: dict[str, Any]) -> None:
        course.watch(Stepped(host.name, str(event.get("what") or "building")))

    interpreter = setup.interpreters[host.name]
    return environment.build(
        session,
        interpreter,
        home=course.home,
        name=setup.name,
        interpreter=interpreter,
        lock=setup.lock,
        record={**setup.record, "interpreter": interpreter},
        installer=setup.installer,
        links=(course.wishes.name,),
        drop_wheels=drop,
        replace=None if drop else setup.broken.get(host.name),
        on_event=on_event,
        timeout=course.wishes.timeout or 3600.0,
        cancel=course.crew.cancel,
    )


def _note_request(course: Course, setup: Setup, host: Host, session: Session) -> None:
    """An environment that was there answers this request, too: the next such call needs no index."""
    environment.note(
        session,
        course.python(host, setup.interpreters.get(host.name)),
        home=course.home,
        name=setup.name,
        request=course.wishes.env.to_json(),
        cancel=course.crew.cancel,
    )


def check_env(course: Course, setup: Setup, host: Host, session: Session) -> CheckResult:
    """Whether the environment is there, and as its lock says."""
    return environment.check(
        session,
        course.python(host, setup.interpreters.get(host.name)),
        home=course.home,
        name=setup.name,
        digest=setup.lock.digest,
        cancel=course.crew.cancel,
    )


def _prove(course: Course, setup: Setup, host: Host, session: Session, *, changed: bool, shares: bool = False) -> None:
    """Verify the environment as it is on this host now, and note the host's end."""
    began = time.monotonic()
    course.watch(Stepped(host.name, "verifying"))
    with course.timed(host.name, "checked the environment"):
        found = check_env(course, setup, host, session)
    if not found.ok:
        raise HostError(f"the environment {setup.name} isn't whole: {found.wrong[0]}", "ipexctl install again")
    result = environment.verify_env(
        session,
        path=f"{course.home}/envs/{setup.name}",
        record=found.record,
        machine=machine_token(course, host),
        timeout=course.wishes.timeout,
        cancel=course.crew.cancel,
    )
    wrong = explain(result, env=setup.name)
    seconds = course.seconds
    if wrong is not None:
        course.done[host.name] = HostInstall(
            host, "failed", wrong[0], wrong[1], setup.name, setup.lock.packages, result.to_json(), seconds
        )
    else:
        reason = "shares the home of another host" if shares else ""
        course.done[host.name] = HostInstall(
            host, "changed" if changed else "ok", reason, "", setup.name, setup.lock.packages, result.to_json(), seconds
        )
    course.watch(Ended(host.name, f"verified ({time.monotonic() - began:.1f} s)", ok=wrong is None))

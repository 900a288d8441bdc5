"""From a request to exact wheels: who is asked, on which machine, what is taken, and the lock that pins it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.remote import stores
from ipexctl.remote.outcome import HostError
from ipexctl.remote.stores import Blob, Download, Place, Web
from ipexctl.stack.choice import resolver
from ipexctl.stack.choice.fit import few
from ipexctl.stack.choice.plan import Refusal
from ipexctl.stack.lock.indexes import (
    BESIDES,
    PYPI,
    PipSettings,
    Source,
    ask,
    directory_of,
    pip_settings,
    shown,
    sources_for,
)
from ipexctl.stack.lock.lock import Wheel
from ipexctl.stack.lock.locking import Maker, make_lock, sized, uv_for_node, uv_here
from ipexctl.stack.lock.requirements import contradiction
from ipexctl.stack.progress import Said

if TYPE_CHECKING:
    from ipexctl.stack.choice.obtainable import Obtainable
    from ipexctl.stack.choice.plan import StackPlan
    from ipexctl.stack.choice.request import Sources
    from ipexctl.stack.course import Course
    from ipexctl.stack.lock.indexes import Asked
    from ipexctl.stack.lock.lock import Lock
    from ipexctl.stack.lock.locking import UvFile


@dataclass(frozen=True, slots=True)
class Supplied:
    """What is to be installed, and who knows where its bytes are."""

    plan: StackPlan
    lock: Lock
    installer: Wheel | None
    """uv, as a file; None: the hosts' own pip."""
    asked: Asked
    by_node0: bool
    """Whether node0 reaches what was asked, and can fetch by itself."""


def supply(course: Course, *, node0_may: bool = True) -> Supplied | Refusal:
    """The lock for all hosts; raises a HostError of the machine that was to make it.

    `node0_may`: whether node0 is asked, too, and does the work where it reaches an index.
    """
    request = course.wishes.env.stack
    by_table = resolver.resolve(request, course.facts, None, rows=course.wishes.rows)
    if isinstance(by_table, Refusal) and (by_table.wrong_call or by_table.hosts):
        return by_table  # what nobody publishes may still lie in somebody's wheelhouse; what no host can run doesn't
    projects = resolver.projects(request, course.wishes.rows)
    sources = course.wishes.sources
    alone: Supplied | Refusal | HostError | None = None
    if sources.wheelhouse is not None:
        alone = _from_directories(course, sources, projects)
        if isinstance(alone, Supplied):
            return alone
    if sources.offline:
        found = _from_directories(course, sources, projects, and_pips=True)
        if isinstance(found, Supplied):
            return found
        why = found if alone is None else alone  # of two failures that of what the call names
        if isinstance(why, HostError):
            raise why
        return why
    here_only = not node0_may or any(directory_of(word) is not None for word in _named(sources))
    ask_them = _ask_here if here_only else _ask_where_best
    with course.timed("", "asked the indexes"):
        asked, by_node0 = ask_them(course, sources, projects)
    _tell_silent(course, asked.obtainable, by_node0=by_node0)
    decided = resolver.resolve(request, course.facts, asked.obtainable, rows=course.wishes.rows)
    if isinstance(decided, Refusal):
        return decided
    return _locked(course, decided, asked, by_node0=by_node0)


def _named(sources: Sources) -> tuple[str, ...]:
    return (*((sources.wheelhouse,) if sources.wheelhouse else ()), *sources.find_links)


def _from_directories(
    course: Course, sources: Sources, projects: tuple[str, ...], *, and_pips: bool = False
) -> Supplied | Refusal | HostError:
    """From the wheelhouse and other places of wheels that the call names, or pip's settings; no index is asked."""
    here = course.here
    try:
        settings = PipSettings()
        if and_pips:
            settings = pip_settings(here.session, here.python, cancel=course.crew.cancel)
        places = sources_for(sources, replace(settings, no_index=True))
        asked = ask(here.session, here.python, places, projects, PipSettings(), cancel=course.crew.cancel)
        _tell_silent(course, asked.obtainable, by_node0=False)
        decided = resolver.resolve(course.wishes.env.stack, course.facts, asked.obtainable, rows=course.wishes.rows)
        return decided if isinstance(decided, Refusal) else _locked(course, decided, asked, by_node0=False)
    except HostError as error:
        return error


def _ask_here(course: Course, sources: Sources, projects: tuple[str, ...]) -> tuple[Asked, bool]:
    here, cancel = course.here, course.crew.cancel
    settings = pip_settings(here.session, here.python, cancel=cancel)
    wanted = sources_for(sources, settings, besides=_besides(course))
    return ask(here.session, here.python, wanted, projects, settings, cancel=cancel), False


def _ask_node0(course: Course, sources: Sources, projects: tuple[str, ...]) -> Asked:
    host, cancel = course.first, course.crew.cancel
    session, python = course.crew.session(host), course.python(host)
    settings = pip_settings(session, python, cancel=cancel)
    wanted = sources_for(sources, settings, here=False, besides=_besides(course))
    return ask(session, python, wanted, projects, settings, cancel=cancel)


def _ask_where_best(course: Course, sources: Sources, projects: tuple[str, ...]) -> tuple[Asked, bool]:
    """Both are asked at once, so that one without a way out costs no time; node0 is taken where it reaches an index."""
    from_node0: list[Asked] = []

    def at_node0() -> None:
        try:
            from_node0.append(_ask_node0(course, sources, projects))
        except HostError as error:
            course.notes.append(f"{course.first.name} could not ask indexes: {error.reason}")

    other = threading.Thread(target=at_node0, name="ask-node0", daemon=True)
    other.start()
    try:
        mine: Asked | HostError = _ask_here(course, sources, projects)[0]
    except HostError as error:
        mine = error
    other.join()
    if course.wishes.dry_run and not isinstance(mine, HostError) and mine.obtainable.of(resolver.TORCH):
        return mine, False  # a lock made on node0 would leave uv there
    if from_node0 and (isinstance(mine, HostError) or from_node0[0].obtainable.of(resolver.TORCH)):
        return from_node0[0], True
    if isinstance(mine, HostError):
        raise mine
    return mine, False


def _besides(course: Course) -> tuple[Source, ...]:
    """Where the rows that may be taken publish their wheels, under the names people know."""
    labels = {source.url.rstrip("/"): source for source in BESIDES}
    return tuple(
        labels.get(index.url.rstrip("/"), Source(index.kind, index.url, shown(index.url)))
        for index in resolver.indexes(course.wishes.env.stack, course.wishes.rows)
        if index.url.rstrip("/") != PYPI
    )


def _tell_silent(course: Course, obtainable: Obtainable, *, by_node0: bool) -> None:
    where = course.first.name if by_node0 else "this machine"
    reasons: dict[str, list[str]] = {}
    for silent in obtainable.silent:
        reasons.setdefault(silent.reason, []).append(silent.source)
    for reason, sources in reasons.items():
        course.notes.append(f"no answer to {where} from {few(sources, 3)}: {reason}")


def _locked(course: Course, plan: StackPlan, asked: Asked, *, by_node0: bool) -> Supplied:
    """The lock, made on the machine that asked; where node0 can't run uv, here, for what node0 has seen."""
    wishes = course.wishes
    if wrong := contradiction(plan, wishes.env.extras, wishes.origins):
        raise wrong
    uv = uv_for_node(asked.obtainable, plan.glibc)
    maker = _maker(course, uv, asked, by_node0=by_node0)
    course.watch(Said(f"{plan.row.name} for Python {plan.python}: finding out what belongs to it"))
    with course.timed("", "made the lock"):
        lock = make_lock(
            maker,
            plan,
            asked,
            extras=wishes.env.extras,
            constraints=wishes.env.constraints,
            origins=wishes.origins,
            cancel=course.crew.cancel,
        )
    installer = installer_of(uv)
    if installer is not None and installer.size is None:
        (installer,) = sized(maker, (installer,), asked, course.crew.cancel)
    return Supplied(plan, lock, installer, asked, by_node0)


def _maker(course: Course, uv: UvFile | None, asked: Asked, *, by_node0: bool) -> Maker:
    here = course.here
    if by_node0 and uv is not None:
        host = course.first
        session, python = course.crew.session(host), course.python(host)
        place = Place(host, python, f"{course.home}/wheels")
        if uv.url:
            download = Download(Blob(uv.sha256, uv.name, uv.size), uv.url, asked.headers_for(uv.url))
            fetched = stores.fetch(session, place, [download], web=web_of(asked.settings), cancel=course.crew.cancel)
            if fetched.failed:
                raise HostError(f"{uv.name} can't be fetched: {next(iter(fetched.failed.values()))}")
        elif uv.path:
            stores.push(session, place, [(Blob(uv.sha256, uv.name, uv.size), Path(uv.path))], cancel=course.crew.cancel)
        return Maker(session, python, course.home, uv)
    binary = uv_here()
    if binary is None:
        raise HostError(
            "there is no uv on this machine, which makes the lock",
            "pip install uv beside ipexctl",
        )
    return Maker(here.session, here.python, here.home, binary)


def installer_of(uv: UvFile | None) -> Wheel | None:
    if uv is None:
        return None
    version = uv.name.split("-")[1] if uv.name.endswith(".whl") else ""
    return Wheel("uv", version, uv.name, uv.sha256, uv.size, uv.url, uv.path)


def web_of(settings: PipSettings) -> Web:
    """How a machine with these settings downloads."""
    proxy = settings.proxy
    return Web(
        proxies={"http": proxy, "https": proxy} if proxy else None,
        cafile=settings.cert,
        client_cert=settings.client_cert,
        trusted_hosts=settings.trusted_hosts,
    )

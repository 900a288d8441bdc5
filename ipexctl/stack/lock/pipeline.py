"""From a request to exact wheels: who is asked, on which machine, what is taken, and the lock that pins it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.remote.outcome import HostError
from ipexctl.remote.progress import Notice
from ipexctl.remote.transfer import store_client as stores
from ipexctl.remote.transfer.store_client import Download, StoredFile, StoreLocation, WebSettings
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
from ipexctl.stack.lock.make_lock import LockMaker, make_lock, sized, uv_for_node, uv_here
from ipexctl.stack.lock.requirements import contradiction
from ipexctl.stack.resolve import resolver
from ipexctl.stack.resolve.compatibility import few
from ipexctl.stack.resolve.model import Refusal

if TYPE_CHECKING:
    from ipexctl.stack.install_context import InstallContext
    from ipexctl.stack.lock.indexes import IndexAnswer
    from ipexctl.stack.lock.lock import Lock
    from ipexctl.stack.lock.make_lock import UvFile
    from ipexctl.stack.resolve.model import Availability, Sources, StackPlan


@dataclass(frozen=True, slots=True)
class LockedStack:
    """What is to be installed, and who knows where its bytes are."""

    plan: StackPlan
    lock: Lock
    installer: Wheel | None
    """uv, as a file; None: the hosts' own pip."""
    asked: IndexAnswer
    by_node0: bool
    """Whether node0 reaches what was asked, and can fetch by itself."""


def lock_stack(context: InstallContext, *, node0_may: bool = True) -> LockedStack | Refusal:
    """The lock for all hosts; raises a HostError of the machine that was to make it.

    `node0_may`: whether node0 is asked, too, and does the work where it reaches an index.
    """
    request = context.wishes.env.stack
    by_table = resolver.resolve(request, context.facts, None, rows=context.wishes.rows)
    if isinstance(by_table, Refusal) and (by_table.wrong_call or by_table.hosts):
        return by_table  # what nobody publishes may still lie in somebody's wheelhouse; what no host can run doesn't
    projects = resolver.projects(request, context.wishes.rows)
    sources = context.wishes.sources
    alone: LockedStack | Refusal | HostError | None = None
    if sources.wheelhouse is not None:
        alone = _from_directories(context, sources, projects)
        if isinstance(alone, LockedStack):
            return alone
    if sources.offline:
        found = _from_directories(context, sources, projects, and_pips=True)
        if isinstance(found, LockedStack):
            return found
        why = found if alone is None else alone  # of two failures that of what the call names
        if isinstance(why, HostError):
            raise why
        return why
    here_only = not node0_may or any(directory_of(word) is not None for word in _named(sources))
    with context.timed("", "asked the indexes"):
        if here_only:
            asked, by_node0 = ask_here(context, sources, projects), False
        else:
            asked, by_node0 = _ask_where_best(context, sources, projects)
    _tell_silent(context, asked.obtainable, by_node0=by_node0)
    decided = resolver.resolve(request, context.facts, asked.obtainable, rows=context.wishes.rows)
    if by_node0 and not isinstance(decided, Refusal) and uv_for_node(asked.obtainable, decided.glibc) is None:
        # node0 can't run uv; uv on this machine does not go to indexes that a host names.
        asked, by_node0 = ask_here(context, sources, projects), False
        decided = resolver.resolve(request, context.facts, asked.obtainable, rows=context.wishes.rows)
    if isinstance(decided, Refusal):
        return decided
    return _locked(context, decided, asked, by_node0=by_node0)


def _named(sources: Sources) -> tuple[str, ...]:
    return (*((sources.wheelhouse,) if sources.wheelhouse else ()), *sources.find_links)


def _from_directories(
    context: InstallContext, sources: Sources, projects: tuple[str, ...], *, and_pips: bool = False
) -> LockedStack | Refusal | HostError:
    """From the wheelhouse and other places of wheels that the call names, or pip's settings; no index is asked."""
    here = context.here
    try:
        settings = PipSettings()
        if and_pips:
            settings = pip_settings(here.session, here.python, cancel=context.pool.cancel)
        places = sources_for(sources, replace(settings, no_index=True))
        asked = ask(here.session, here.python, places, projects, PipSettings(), cancel=context.pool.cancel)
        _tell_silent(context, asked.obtainable, by_node0=False)
        decided = resolver.resolve(context.wishes.env.stack, context.facts, asked.obtainable, rows=context.wishes.rows)
        return decided if isinstance(decided, Refusal) else _locked(context, decided, asked, by_node0=False)
    except HostError as error:
        return error


def ask_here(context: InstallContext, sources: Sources, projects: tuple[str, ...]) -> IndexAnswer:
    """The answer of the control machine's indexes."""
    here, cancel = context.here, context.pool.cancel
    settings = pip_settings(here.session, here.python, cancel=cancel)
    wanted = sources_for(sources, settings, besides=_besides(context))
    return ask(here.session, here.python, wanted, projects, settings, cancel=cancel)


def _ask_node0(context: InstallContext, sources: Sources, projects: tuple[str, ...]) -> IndexAnswer:
    host, cancel = context.first, context.pool.cancel
    session, python = context.pool.session(host), context.python(host)
    settings = pip_settings(session, python, cancel=cancel)
    wanted = sources_for(sources, settings, here=False, besides=_besides(context))
    return ask(session, python, wanted, projects, settings, cancel=cancel)


def _ask_where_best(context: InstallContext, sources: Sources, projects: tuple[str, ...]) -> tuple[IndexAnswer, bool]:
    """Both are asked at once, so that one without a way out costs no time; node0 is taken where it reaches an index."""
    from_node0: list[IndexAnswer] = []

    def at_node0() -> None:
        try:
            from_node0.append(_ask_node0(context, sources, projects))
        except HostError as error:
            context.notes.append(f"{context.first.name} could not ask indexes: {error.reason}")

    other = threading.Thread(target=at_node0, name="ask-node0", daemon=True)
    other.start()
    try:
        mine: IndexAnswer | HostError = ask_here(context, sources, projects)
    except HostError as error:
        mine = error
    other.join()
    if context.wishes.dry_run and not isinstance(mine, HostError) and mine.obtainable.of(resolver.TORCH):
        return mine, False  # a lock made on node0 would leave uv there
    if from_node0 and (isinstance(mine, HostError) or from_node0[0].obtainable.of(resolver.TORCH)):
        return from_node0[0], True
    if isinstance(mine, HostError):
        raise mine
    return mine, False


def _besides(context: InstallContext) -> tuple[Source, ...]:
    """Where the rows that may be taken publish their wheels, under the names people know."""
    labels = {source.url.rstrip("/"): source for source in BESIDES}
    return tuple(
        labels.get(index.url.rstrip("/"), Source(index.kind, index.url, shown(index.url)))
        for index in resolver.indexes(context.wishes.env.stack, context.wishes.rows)
        if index.url.rstrip("/") != PYPI
    )


def _tell_silent(context: InstallContext, obtainable: Availability, *, by_node0: bool) -> None:
    where = context.first.name if by_node0 else "this machine"
    reasons: dict[str, list[str]] = {}
    for silent in obtainable.silent:
        reasons.setdefault(silent.reason, []).append(silent.source)
    for reason, sources in reasons.items():
        context.notes.append(f"no answer to {where} from {few(sources, 3)}: {reason}")


def _locked(context: InstallContext, plan: StackPlan, asked: IndexAnswer, *, by_node0: bool) -> LockedStack:
    """The lock, made on the machine that asked the indexes."""
    wishes = context.wishes
    if wrong := contradiction(plan, wishes.env.extras, wishes.origins):
        raise wrong
    uv = uv_for_node(asked.obtainable, plan.glibc)
    maker = _maker(context, uv, asked, by_node0=by_node0)
    context.watch(Notice(f"{plan.row.name} for Python {plan.python}: finding out what belongs to it"))
    with context.timed("", "made the lock"):
        lock = make_lock(
            maker,
            plan,
            asked,
            extras=wishes.env.extras,
            constraints=wishes.env.constraints,
            origins=wishes.origins,
            cancel=context.pool.cancel,
        )
    installer = installer_of(uv)
    if installer is not None and installer.size is None:
        (installer,) = sized(maker, (installer,), asked, context.pool.cancel)
    return LockedStack(plan, lock, installer, asked, by_node0)


def _maker(context: InstallContext, uv: UvFile | None, asked: IndexAnswer, *, by_node0: bool) -> LockMaker:
    here = context.here
    if by_node0 and uv is not None:
        host = context.first
        session, python = context.pool.session(host), context.python(host)
        place = StoreLocation(host, python, f"{context.home}/wheels")
        if uv.url:
            download = Download(StoredFile(uv.sha256, uv.name, uv.size), uv.url, asked.headers_for(uv.url))
            fetched = stores.fetch(session, place, [download], web=web_of(asked.settings), cancel=context.pool.cancel)
            if fetched.failed:
                raise HostError(f"{uv.name} can't be fetched: {next(iter(fetched.failed.values()))}")
        elif uv.path:
            stores.push(
                session, place, [(StoredFile(uv.sha256, uv.name, uv.size), Path(uv.path))], cancel=context.pool.cancel
            )
        return LockMaker(session, python, context.home, uv)
    binary = uv_here()
    if binary is None:
        raise HostError(
            "there is no uv on this machine, which makes the lock",
            "pip install uv beside ipexctl",
        )
    return LockMaker(here.session, here.python, here.home, binary)


def installer_of(uv: UvFile | None) -> Wheel | None:
    if uv is None:
        return None
    version = uv.name.split("-")[1] if uv.name.endswith(".whl") else ""
    return Wheel("uv", version, uv.name, uv.sha256, uv.size, uv.url, uv.path)


def web_of(settings: PipSettings) -> WebSettings:
    """How a machine with these settings downloads."""
    proxy = settings.proxy
    return WebSettings(
        proxies={"http": proxy, "https": proxy} if proxy else None,
        cafile=settings.cert,
        client_cert=settings.client_cert,
        trusted_hosts=settings.trusted_hosts,
    )

"""The verbs behind `ipexctl envs`: what environments there are, taking one away, proving one, also one not ours."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ipexctl.facts.gather import gather
from ipexctl.remote.outcome import HostError, HostResult, Report
from ipexctl.stack.env import environment
from ipexctl.stack.env.preflight import gigabytes
from ipexctl.stack.env.verify_errors import explain
from ipexctl.stack.resolve.compatibility import usable_pythons

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host
    from ipexctl.remote.outcome import Status
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.stack.env.environment import EnvListing


@dataclass(frozen=True, slots=True)
class EnvsResult(HostResult):
    """One host: what is there, what was taken away, or what was proved."""

    listing: EnvListing | None = None
    removed: tuple[str, ...] = ()
    verify: Mapping[str, Any] = field(default_factory=dict, hash=False)
    home: str | None = None
    store: str | None = None


@dataclass(frozen=True, slots=True)
class EnvsReport(Report[EnvsResult]):
    verb: str = "list"


@dataclass(frozen=True, slots=True)
class _There:
    """A host that answered, with what our scripts need there."""

    host: Host
    session: Session
    facts: Facts
    home: str
    python: str


def list_envs(hosts: Sequence[Host], pool: SessionPool, *, home: str, timeout: float | None = None) -> EnvsReport:
    def look(there: _There) -> EnvsResult:
        found = environment.listing(there.session, there.python, home=there.home, cancel=pool.cancel)
        return _of(there, "ok", listing=found)

    return _on_each(hosts, pool, look, home=home, timeout=timeout, verb="list")


def remove_envs(
    hosts: Sequence[Host], pool: SessionPool, names: Sequence[str], *, home: str, timeout: float | None = None
) -> EnvsReport:
    """Take environments away, by their own names or those that point at them; a second time there is nothing to do."""

    def take(there: _There) -> EnvsResult:
        known = {word for env in there.facts.software.envs for word in (env.name, *env.names)}
        gone = environment.remove(
            there.session,
            there.python,
            home=there.home,
            names=[name for name in names if name in known],
            cancel=pool.cancel,
        )
        if gone.failed:
            name, why = next(iter(gone.failed.items()))
            raise HostError(f"{name} stays: {why}")
        unknown = [name for name in names if name not in known]
        reason = f"not there: {', '.join(unknown)}" if unknown else ""
        return _of(there, "changed" if gone.removed else "ok", reason, removed=gone.removed)

    return _once_a_store(hosts, pool, take, home=home, timeout=timeout, verb="remove")


def prune_envs(hosts: Sequence[Host], pool: SessionPool, *, home: str, timeout: float | None = None) -> EnvsReport:
    """Take away wheels, leftovers, and environments no name points at."""

    def take(there: _There) -> EnvsResult:
        gone = environment.prune(there.session, there.python, home=there.home, cancel=pool.cancel)
        if gone.failed:
            name, why = next(iter(gone.failed.items()))
            raise HostError(f"{name} stays: {why}")
        wheels = f"wheels and leftovers taken away, {gigabytes(gone.bytes)}" if gone.bytes else ""
        return _of(there, "changed" if gone.removed or gone.bytes else "ok", wheels, removed=gone.removed)

    return _once_a_store(hosts, pool, take, home=home, timeout=timeout, verb="prune")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is to be proved: an environment of ours, or a Python of the user's with a file that sets it up."""

    name: str | None = None
    python: str | None = None
    setup: str | None = None


def verify_envs(
    hosts: Sequence[Host], pool: SessionPool, subject: Subject, *, home: str, timeout: float | None = None
) -> EnvsReport:
    """Use it on every host, and say whether it works. Nothing in it is changed."""

    def prove(there: _There) -> EnvsResult:
        if subject.python is not None:
            result = environment.verify(
                there.session, subject.python, setup=subject.setup, timeout=timeout, cancel=pool.cancel
            )
            wrong = explain(result, env=subject.python)
        else:
            name = subject.name or "default"
            found = environment.check(
                there.session, there.python, home=there.home, name=name, timeout=timeout, cancel=pool.cancel
            )
            if not found.there:
                raise HostError(f"there is no environment {name}", "ipexctl envs shows those that are there")
            if not found.ok:
                raise HostError(f"{name} isn't whole: {found.wrong[0]}", "ipexctl install makes it anew")
            path = f"{there.home}/envs/{found.name}"
            result = environment.verify_env(
                there.session, path=path, record=found.record, timeout=timeout, cancel=pool.cancel
            )
            wrong = explain(result, env=found.name, record=found.record)
        if wrong is not None:
            return _of(there, "failed", wrong[0], wrong[1], verify=result.to_json())
        return _of(there, "ok", verify=result.to_json())

    return _on_each(hosts, pool, prove, home=home, timeout=timeout, verb="verify")


def _of(there: _There, status: Status, reason: str = "", fix: str = "", **found: Any) -> EnvsResult:
    store = there.facts.home.store if there.facts.home else None
    return EnvsResult(there.host, status, reason, fix, home=there.home, store=store, **found)


def _on_each(
    hosts: Sequence[Host],
    pool: SessionPool,
    work: Callable[[_There], EnvsResult],
    *,
    home: str,
    timeout: float | None,
    verb: str,
) -> EnvsReport:
    began = time.monotonic()
    done, there = _look(hosts, pool, home, timeout)
    done |= _fan_out(pool, there, work)
    return EnvsReport(tuple(done[host.name] for host in hosts), time.monotonic() - began, verb)


def _once_a_store(
    hosts: Sequence[Host],
    pool: SessionPool,
    work: Callable[[_There], EnvsResult],
    *,
    home: str,
    timeout: float | None,
    verb: str,
) -> EnvsReport:
    """Hosts that share a home have it done once, and share the outcome."""
    began = time.monotonic()
    done, there = _look(hosts, pool, home, timeout)
    firsts: dict[str, Host] = {}
    for host in hosts:
        if host.name in there:
            firsts.setdefault(_store(there[host.name]), host)
    leaders = {host.name: there[host.name] for host in firsts.values()}
    done |= _fan_out(pool, leaders, work)
    for name, each in there.items():
        if name not in done:
            leader = firsts[_store(each)]
            ended = done[leader.name]
            done[name] = EnvsResult(
                each.host, ended.status, ended.reason or f"shares the home of {leader.name}", ended.fix
            )
    return EnvsReport(tuple(done[host.name] for host in hosts), time.monotonic() - began, verb)


def _store(there: _Found) -> str:
    return (there.facts.home.store if there.facts.home else None) or f"alone:{there.host.name}"


@dataclass(frozen=True, slots=True)
class _Found:
    """A host's facts, before its session is asked for anything else."""

    host: Host
    facts: Facts
    home: str
    python: str


def _look(
    hosts: Sequence[Host], pool: SessionPool, home: str, timeout: float | None
) -> tuple[dict[str, EnvsResult], dict[str, _Found]]:
    done: dict[str, EnvsResult] = {}
    there: dict[str, _Found] = {}
    for answer in gather(hosts, pool, home=home, timeout=timeout):
        host, facts = answer.host, answer.facts
        if facts is None or answer.status != "ok" or facts.home is None:
            status: Status = "failed" if answer.status == "ok" else answer.status
            done[host.name] = EnvsResult(
                host, status, answer.reason or "it did not say where our directory is", answer.fix, answer.seconds
            )
            continue
        pythons = usable_pythons(facts)
        if not pythons:
            done[host.name] = EnvsResult(host, "failed", "there is no Python 3.8 or newer", "ipexctl doctor says more")
            continue
        there[host.name] = _Found(host, facts, facts.home.path, pythons[0].path)
    return done, there


def _fan_out(
    pool: SessionPool, there: Mapping[str, _Found], work: Callable[[_There], EnvsResult]
) -> dict[str, EnvsResult]:
    began = time.monotonic()

    def on_one(host: Host, session: Session) -> EnvsResult:
        found = there[host.name]
        return work(_There(host, session, found.facts, found.home, found.python))

    done: dict[str, EnvsResult] = {}
    for ended in pool.each([found.host for found in there.values()], on_one):
        if ended.result is not None:
            done[ended.host.name] = replace(ended.result, seconds=time.monotonic() - began)
        elif ended.error is not None:
            error = ended.error
            done[ended.host.name] = EnvsResult(
                ended.host, error.status, error.reason, error.fix, time.monotonic() - began
            )
    return done

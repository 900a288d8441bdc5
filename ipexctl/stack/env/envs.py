"""`ipexctl envs`: lists, removes and verifies environments, also a Python of the user."""

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
    """The result of one host: its environments, the removed ones, or a verification."""

    listing: EnvListing | None = None
    removed: tuple[str, ...] = ()
    verify: Mapping[str, Any] = field(default_factory=dict, hash=False)
    home: str | None = None
    store: str | None = None


@dataclass(frozen=True, slots=True)
class EnvsReport(Report[EnvsResult]):
    verb: str = "list"


@dataclass(frozen=True, slots=True)
class _Target:
    """A host with its facts and session."""

    host: Host
    session: Session
    facts: Facts
    home: str
    python: str


def list_envs(hosts: Sequence[Host], pool: SessionPool, *, home: str, timeout: float | None = None) -> EnvsReport:
    def list_one(target: _Target) -> EnvsResult:
        found = environment.listing(target.session, target.python, home=target.home, cancel=pool.cancel)
        return _of(target, "ok", listing=found)

    return _on_each(hosts, pool, list_one, home=home, timeout=timeout, verb="list")


def remove_envs(
    hosts: Sequence[Host], pool: SessionPool, names: Sequence[str], *, home: str, timeout: float | None = None
) -> EnvsReport:
    """Remove environments by directory or name; missing ones are no failure."""

    def remove_one(target: _Target) -> EnvsResult:
        known = {word for env in target.facts.software.envs for word in (env.name, *env.names)}
        removed = environment.remove(
            target.session,
            target.python,
            home=target.home,
            names=[name for name in names if name in known],
            cancel=pool.cancel,
        )
        if removed.failed:
            name, why = next(iter(removed.failed.items()))
            raise HostError(f"{name} was not removed: {why}")
        unknown = [name for name in names if name not in known]
        reason = f"no such environment: {', '.join(unknown)}" if unknown else ""
        return _of(target, "changed" if removed.removed else "ok", reason, removed=removed.removed)

    return _once_a_store(hosts, pool, remove_one, home=home, timeout=timeout, verb="remove")


def prune_envs(hosts: Sequence[Host], pool: SessionPool, *, home: str, timeout: float | None = None) -> EnvsReport:
    """Remove wheels, leftovers, and environments without a name."""

    def remove_one(target: _Target) -> EnvsResult:
        removed = environment.prune(target.session, target.python, home=target.home, cancel=pool.cancel)
        if removed.failed:
            name, why = next(iter(removed.failed.items()))
            raise HostError(f"{name} was not removed: {why}")
        wheels = f"wheels and leftovers removed, {gigabytes(removed.bytes)}" if removed.bytes else ""
        return _of(target, "changed" if removed.removed or removed.bytes else "ok", wheels, removed=removed.removed)

    return _once_a_store(hosts, pool, remove_one, home=home, timeout=timeout, verb="prune")


@dataclass(frozen=True, slots=True)
class Subject:
    """The environment to verify: by name, or a Python of the user with a file to source."""

    name: str | None = None
    python: str | None = None
    setup: str | None = None


def verify_envs(
    hosts: Sequence[Host], pool: SessionPool, subject: Subject, *, home: str, timeout: float | None = None
) -> EnvsReport:
    """Verify an environment on every host."""

    def prove(target: _Target) -> EnvsResult:
        if subject.python is not None:
            result = environment.verify(
                target.session, subject.python, setup=subject.setup, timeout=timeout, cancel=pool.cancel
            )
            problem = explain(result, env=subject.python)
        else:
            name = subject.name or "default"
            found = environment.check(
                target.session, target.python, home=target.home, name=name, timeout=timeout, cancel=pool.cancel
            )
            if not found.exists:
                raise HostError(f"there is no environment {name}", "list the environments: ipexctl envs")
            if not found.ok:
                raise HostError(f"{name} is damaged: {found.problems[0]}", "build it again: ipexctl install")
            path = f"{target.home}/envs/{found.name}"
            result = environment.verify_env(
                target.session, path=path, record=found.record, timeout=timeout, cancel=pool.cancel
            )
            problem = explain(result, env=found.name, record=found.record)
        if problem is not None:
            return _of(target, "failed", problem[0], problem[1], verify=result.to_json())
        return _of(target, "ok", verify=result.to_json())

    return _on_each(hosts, pool, prove, home=home, timeout=timeout, verb="verify")


def _of(target: _Target, status: Status, reason: str = "", fix: str = "", **found: Any) -> EnvsResult:
    store = target.facts.home.store if target.facts.home else None
    return EnvsResult(target.host, status, reason, fix, home=target.home, store=store, **found)


def _on_each(
    hosts: Sequence[Host],
    pool: SessionPool,
    work: Callable[[_Target], EnvsResult],
    *,
    home: str,
    timeout: float | None,
    verb: str,
) -> EnvsReport:
    began = time.monotonic()
    done, target = _look(hosts, pool, home, timeout)
    done |= _fan_out(pool, target, work)
    return EnvsReport(tuple(done[host.name] for host in hosts), time.monotonic() - began, verb)


def _once_a_store(
    hosts: Sequence[Host],
    pool: SessionPool,
    work: Callable[[_Target], EnvsResult],
    *,
    home: str,
    timeout: float | None,
    verb: str,
) -> EnvsReport:
    """Do it once per shared home; all its hosts get the same result."""
    began = time.monotonic()
    done, target = _look(hosts, pool, home, timeout)
    firsts: dict[str, Host] = {}
    for host in hosts:
        if host.name in target:
            firsts.setdefault(_store(target[host.name]), host)
    leaders = {host.name: target[host.name] for host in firsts.values()}
    done |= _fan_out(pool, leaders, work)
    for name, other in target.items():
        if name not in done:
            leader = firsts[_store(other)]
            ended = done[leader.name]
            done[name] = EnvsResult(
                other.host, ended.status, ended.reason or f"shares the home of {leader.name}", ended.fix
            )
    return EnvsReport(tuple(done[host.name] for host in hosts), time.monotonic() - began, verb)


def _store(target: _Found) -> str:
    return (target.facts.home.store if target.facts.home else None) or f"alone:{target.host.name}"


@dataclass(frozen=True, slots=True)
class _Found:
    """A host with its facts."""

    host: Host
    facts: Facts
    home: str
    python: str


def _look(
    hosts: Sequence[Host], pool: SessionPool, home: str, timeout: float | None
) -> tuple[dict[str, EnvsResult], dict[str, _Found]]:
    done: dict[str, EnvsResult] = {}
    target: dict[str, _Found] = {}
    for answer in gather(hosts, pool, home=home, timeout=timeout):
        host, facts = answer.host, answer.facts
        if facts is None or answer.status != "ok" or facts.home is None:
            status: Status = "failed" if answer.status == "ok" else answer.status
            done[host.name] = EnvsResult(
                host, status, answer.reason or "it reported no home directory", answer.fix, answer.seconds
            )
            continue
        pythons = usable_pythons(facts)
        if not pythons:
            done[host.name] = EnvsResult(
                host, "failed", "there is no Python 3.8 or newer", "list the Pythons: ipexctl doctor"
            )
            continue
        target[host.name] = _Found(host, facts, facts.home.path, pythons[0].path)
    return done, target


def _fan_out(
    pool: SessionPool, target: Mapping[str, _Found], work: Callable[[_Target], EnvsResult]
) -> dict[str, EnvsResult]:
    began = time.monotonic()

    def on_one(host: Host, session: Session) -> EnvsResult:
        found = target[host.name]
        return work(_Target(host, session, found.facts, found.home, found.python))

    done: dict[str, EnvsResult] = {}
    for ended in pool.each([found.host for found in target.values()], on_one):
        if ended.result is not None:
            done[ended.host.name] = replace(ended.result, seconds=time.monotonic() - began)
        elif ended.error is not None:
            error = ended.error
            done[ended.host.name] = EnvsResult(
                ended.host, error.status, error.reason, error.fix, time.monotonic() - began
            )
    return done

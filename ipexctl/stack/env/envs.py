"""Do the work of `ipexctl envs`: list, remove, prune and verify environments, and verify a user's own Python.

Environments are removed once per home; one that is in use on any of the home's hosts stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ipexctl.errors import UserError
from ipexctl.facts.facts import Facts
from ipexctl.facts.gather import HostFacts, gather_facts
from ipexctl.facts.software import Env
from ipexctl.hosts.host import Host, find_leaders
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.owners import Owned, find_foreign
from ipexctl.node.env.env_replies import EnvListing
from ipexctl.remote.caller import describe_foreign, removal_request
from ipexctl.remote.connector import OpenHosts, SessionPool
from ipexctl.remote.node_call import AgentPlace
from ipexctl.remote.outcome import HostError, HostResult, HostStatus, Report, ignore_event
from ipexctl.remote.session import Session
from ipexctl.stack.env.environment import EnvClient, explain, machine_token, verify
from ipexctl.stack.env.record import records_of
from ipexctl.stack.resolve.compatibility import usable_pythons
from ipexctl.text import readable


@dataclass(frozen=True, slots=True)
class EnvsResult(HostResult):
    """What came of `ipexctl envs` on one host."""

    listing: EnvListing | None = None
    """None unless environments were listed."""
    removed: tuple[str, ...] = ()
    """Names and directories of environments that are gone."""
    verify: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Result of the verification; empty unless one was made."""
    home: str | None = None
    """Path of ipexctl's home on the host; None if the host has none."""
    foreign: tuple[Owned, ...] = ()
    """Environments of others, which a prune kept."""


@dataclass(frozen=True, slots=True)
class EnvsReport(Report[EnvsResult]):
    verb: str = "list"


@dataclass(frozen=True, slots=True)
class _Target:
    host: Host
    facts: Facts
    home: str
    python: str
    used: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Environment that other hosts of the home use → where."""

    @property
    def store(self) -> str:
        return self.facts.store_of(self.host.name)

    def client(self, session: Session) -> EnvClient:
        return EnvClient(session, AgentPlace(self.python, self.home))

    def result(self, status: HostStatus, reason: str = "", fix: str = "", **found: Any) -> EnvsResult:
        return EnvsResult(self.host, status, reason, fix, home=self.home, **found)


def list_envs(opened: OpenHosts) -> EnvsReport:
    """List the environments of each host. Hosts that share a home list the same ones."""

    def list_one(target: _Target, session: Session) -> EnvsResult:
        return target.result("ok", listing=target.client(session).listing())

    return _on_hosts(opened, "list", list_one)


def remove_envs(opened: OpenHosts, names: Sequence[str], *, force: bool = False) -> EnvsReport:
    """Remove environments by name or directory. Raises a UserError before anything is removed if others installed one
    of these, unless `force`."""

    def remove_one(target: _Target, session: Session) -> EnvsResult:
        known = {name for env in target.facts.software.envs for name in (env.name, *env.names)}
        present = [name for name in names if name in known]
        outcome = target.client(session).remove(present, target.used, force=force)
        missing = [name for name in names if name not in known]
        reason = f"does not exist: {', '.join(missing)}" if missing else ""
        return target.result("changed" if outcome.removed else "ok", reason, removed=outcome.removed)

    def removed(target: _Target) -> list[Env]:
        envs = target.facts.software.envs
        return [env for env in envs if env.name in names or (env.names and {*env.names} <= {*names})]

    def refuse_foreign(targets: Mapping[str, _Target]) -> None:
        owned_by_others = {host: find_foreign_envs(target.facts, names) for host, target in targets.items()}
        if (foreign := {host: owned for host, owned in owned_by_others.items() if owned}) and not force:
            words = [word for name in names for word in ("--remove", name)]
            raise UserError(describe_foreign(foreign), fix=Fix("`ipexctl envs {*words} --force`", words=words))

    return _on_hosts(opened, "remove", remove_one, removed, refuse_foreign)


def find_foreign_envs(facts: Facts, names: Sequence[str]) -> tuple[Owned, ...]:
    """Return the environments of these names that others installed."""
    records = [record for env, record in records_of(facts) if {env.name, *env.names} & {*names}]
    made = {record.name: record._asdict() for record in records}
    return find_foreign("environment", made, removal_request(force=False))


def prune_envs(opened: OpenHosts, *, force: bool = False) -> EnvsReport:
    """Remove leftovers, wheels and environments without a name, once per home. `force`: also environments that others
    installed; without it the result lists them as `foreign`."""

    def prune_one(target: _Target, session: Session) -> EnvsResult:
        outcome = target.client(session).prune(target.used, force=force)
        reason = f"wheels and leftovers removed, {readable(outcome.bytes)}" if outcome.bytes else ""
        status: HostStatus = "changed" if outcome.removed or outcome.bytes else "ok"
        return target.result(status, reason, removed=outcome.removed, foreign=outcome.foreign)

    def removed(target: _Target) -> list[Env]:
        return [env for env in target.facts.software.envs if not env.names]

    return _on_hosts(opened, "prune", prune_one, removed)


def verify_envs(opened: OpenHosts, name: str, python: str | None, setup: str | None) -> EnvsReport:
    """Verify the named environment on every host; the next install reads the recorded result. `python`: the user's own,
    which is verified instead of the environment; nothing is recorded for it."""
    timeout = opened.timeout

    def verify_one(target: _Target, session: Session) -> EnvsResult:
        if python is not None:
            result = verify(session, python, setup=setup, timeout=timeout)
            problem = explain(result, env=python)
        else:
            client = target.client(session)
            checked = client.check(name, timeout=timeout)
            if not checked.exists:
                raise HostError(f"environment {name!r} does not exist", Fix("list the environments: `ipexctl envs`"))
            if checked.record is None:
                raise HostError(f"{name} is damaged: {checked.problem}", Fix("build it again: `ipexctl install`"))
            machine = machine_token(target.facts, target.host)
            result = client.verify(checked.name, checked.record, machine=machine, timeout=timeout)
            problem = explain(result, env=checked.name, record=checked.record)
        reason, fix = problem or ("", "")
        return target.result("failed" if problem else "ok", reason, fix, verify=result.to_json())

    return _on_hosts(opened, "verify", verify_one)


def _on_hosts(
    opened: OpenHosts,
    verb: str,
    work: Callable[[_Target, Session], EnvsResult],
    removed: Callable[[_Target], Sequence[Env]] | None = None,
    check: Callable[[Mapping[str, _Target]], None] = ignore_event,
) -> EnvsReport:
    """Do the work on every host. `removed` returns the environments that the work removes: it is then done on the first
    host of each home, after asking the home's other hosts what they use."""
    began, pool = time.monotonic(), opened.pool
    done: dict[str, EnvsResult] = {}
    targets: dict[str, _Target] = {}
    for answer in gather_facts(opened):
        target = _target_of(answer)
        if isinstance(target, _Target):
            targets[answer.host.name] = target
        else:
            done[answer.host.name] = target
    check(targets)
    leader_of = find_leaders(
        [host for host in opened.hosts if host.name in targets],
        lambda host: targets[host.name].store if removed else host.name,
    )
    started = time.monotonic()
    if removed:
        done |= {result.host.name: result for result in _ask_others(targets, pool, leader_of, removed)}
    leaders = list(dict.fromkeys(leader_of.values()))
    for ended in pool.each(leaders, lambda host, session: work(targets[host.name], session)):
        done[ended.host.name] = replace(ended.result_or(EnvsResult.of_error), seconds=time.monotonic() - started)
    for name, target in targets.items():
        if name not in done:
            leader = leader_of[target.host]
            outcome = done[leader.name]
            reason = outcome.reason or f"shares the home of {leader.name}"
            done[name] = EnvsResult(target.host, outcome.status, reason, outcome.fix)
    return EnvsReport(tuple(done[host.name] for host in opened.hosts), time.monotonic() - began, verb)


def _ask_others(
    targets: dict[str, _Target],
    pool: SessionPool,
    leader_of: Mapping[Host, Host],
    removed: Callable[[_Target], Sequence[Env]],
) -> list[EnvsResult]:
    """Note in each leader what its home's other hosts use; return results for hosts that did not answer."""
    failed = []
    others = [host for host, leader in leader_of.items() if leader != host and removed(targets[host.name])]

    def used(host: Host, session: Session) -> list[str]:
        client = targets[host.name].client(session)
        envs = removed(targets[host.name])
        return [env.name for env in envs if client.is_used(env.name, env.names, or_named=False)]

    for ended in pool.each(others, used):
        target, error = targets[ended.host.name], ended.error
        uses = dict.fromkeys(ended.result or (), f"is in use on {ended.host.name}")
        if error is not None:
            uses = {env.name: f"may be in use on {ended.host.name}, which did not answer" for env in removed(target)}
            failed.append(EnvsResult.of_error(ended.host, error))
        leader = targets[leader_of[target.host].name]
        targets[leader.host.name] = replace(leader, used={**leader.used, **uses})
    return failed


def _target_of(answer: HostFacts) -> _Target | EnvsResult:
    """Return what is needed to work on a host's environments, or the result of a host without facts, home or Python."""
    host = answer.host
    try:
        facts, home = answer.require_home()
    except HostError as error:
        return EnvsResult.of_error(host, error, seconds=answer.seconds)
    pythons = usable_pythons(facts)
    if not pythons:
        return EnvsResult(host, "failed", "there is no Python 3.8 or newer", Fix("list the Pythons: `ipexctl doctor`"))
    return _Target(host, facts, home.path, pythons[0].path)

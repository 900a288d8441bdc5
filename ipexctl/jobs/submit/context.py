"""What must be known before a run can be planned: facts, one environment everywhere, addresses, node0's way to each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipexctl.facts.internal import addresses_among
from ipexctl.hosts.internal import NoCommonNetwork
from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.submit.failure import PreflightFailure
from ipexctl.launch.request import RankEnv
from ipexctl.stack.env.preflight import homes_differ
from ipexctl.stack.env.record import records_of
from ipexctl.stack.resolve.model import EnvRequest
from ipexctl.trust.plan import ssh_names_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.facts.gather import HostFacts
    from ipexctl.hosts.host import Host
    from ipexctl.jobs.submit.request import RunRequest
    from ipexctl.stack.catalog.table import StackSpec
    from ipexctl.stack.env.record import EnvRecord


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """All of a call's hosts as they are now."""

    facts: Mapping[str, Facts] = field(hash=False)
    internal: Mapping[str, str] = field(hash=False)
    words: Mapping[str, str] = field(hash=False)
    home: str
    """Absolute, the same everywhere."""

    def stores(self) -> dict[str, str | None]:
        return {name: facts.home.store if facts.home else None for name, facts in self.facts.items()}


def cluster_context(
    hosts: Sequence[Host], wishes: RunRequest, answers: Iterable[HostFacts]
) -> ClusterContext | PreflightFailure:
    """Every host must answer: a run with a rank missing is none."""
    facts: dict[str, Facts] = {}
    for answer in answers:
        if answer.facts is None or answer.status != "ok" or answer.facts.home is None:
            reason = answer.reason or "it did not say where our directory is"
            leave_out = f"leave it out: -l '!{answer.host.name}'" if len(hosts) > 1 else "see: ipexctl doctor"
            fix = f"{answer.fix}; or {leave_out}" if answer.fix else leave_out
            lost = answer.status == "unreachable"
            return PreflightFailure(f"{answer.host.name}: {reason}", fix, (answer.host.name,), unreachable=lost)
        facts[answer.host.name] = answer.facts
    homes = {name: known.home.path for name, known in facts.items() if known.home}
    if refusal := homes_differ(homes, [known.account.user for known in facts.values()]):
        return PreflightFailure(refusal.reason, refusal.fix, refusal.hosts)
    internal: Mapping[str, str] = {}
    if len(hosts) > 1:
        chosen = addresses_among(hosts, facts, wishes.iface)
        if isinstance(chosen, NoCommonNetwork):
            return PreflightFailure(chosen.reason, chosen.fix, chosen.hosts)
        internal = chosen
    return ClusterContext(facts, internal, ssh_names_for(hosts, internal), next(iter(homes.values())))


def environment_of(hosts: Sequence[Host], wishes: RunRequest, known: ClusterContext) -> RankEnv | PreflightFailure:
    """The environment of ours that the ranks run in, the same on every host."""
    found: dict[str, EnvRecord] = {}
    dead: list[str] = []
    for host in hosts:
        for env, record in records_of(known.facts[host.name]):
            if wishes.env in (env.name, *env.names):
                if env.runs:
                    found[host.name] = record
                else:
                    dead.append(host.name)
    missing = tuple(host.name for host in hosts if host.name not in found)
    install = "ipexctl install" + ("" if wishes.env == "default" else f" --env {wishes.env}")
    if dead := [name for name in dead if name not in found]:
        return PreflightFailure(
            f"the environment {wishes.env} on {fold(dead)} doesn't run: the Python it was made with is gone",
            f"{install} makes it anew; a Python of your own: --python PATH",
            tuple(dead),
        )
    if missing:
        where = "here" if len(hosts) == 1 else f"on {fold(missing)}"
        return PreflightFailure(
            f"there is no environment {wishes.env} {where}",
            f"{install} makes it there, or run --install; a Python of your own: --python PATH",
            missing,
        )
    names = {record.name for record in found.values()}
    if len(names) > 1:
        first = found[hosts[0].name]
        others = tuple(name for name, record in found.items() if record.name != first.name)
        return PreflightFailure(
            f"{wishes.env} is {first.name} on {hosts[0].name} and {found[others[0]].name} on {fold(others)}: ranks of "
            "different stacks don't understand one another",
            f"{install} --upgrade gives all hosts the same",
            others,
        )
    record = found[hosts[0].name]
    return RankEnv.of(record, f"{known.home}/envs/{record.name}")


def requested_before(answers: Iterable[HostFacts], env: str) -> tuple[EnvRequest | None, bool]:
    """By which request the environment of that name was made where it is, and whether no host lacks it. Pure."""
    request: EnvRequest | None = None
    everywhere = True
    for answer in answers:
        found = records_of(answer.facts) if answer.facts is not None else ()
        record = next((known for each, known in found if env in (each.name, *each.names) and each.runs), None)
        everywhere = everywhere and record is not None
        if record is not None and record.requests and request is None:
            request = EnvRequest.from_json(record.requests[-1])
    return request, everywhere


def planned_environment(
    wishes: RunRequest, known: ClusterContext, rows: Sequence[StackSpec]
) -> tuple[RankEnv, str] | PreflightFailure:
    """Where no host has it yet: the environment that install would make by the table, and a sentence that says so."""
    from ipexctl.stack.lock.wheels import split_requirement
    from ipexctl.stack.resolve.model import (
        Refusal,  # these cost start-up, and are seldom needed
        StackRequest,
    )
    from ipexctl.stack.resolve.resolver import resolve

    plan = resolve(StackRequest(wishes.torch, wishes.stack), known.facts, None, rows=rows)
    if isinstance(plan, Refusal):
        return PreflightFailure(
            f"there is no environment {wishes.env}, and none can be made: {plan.reason}", plan.fix, plan.hosts
        )
    prefix = f"{known.home}/envs/{wishes.env}"
    packages = {split_requirement(line)[0]: "" for line in plan.requirements}
    packages |= {"torch": plan.torch, **({"intel-extension-for-pytorch": plan.ipex} if plan.ipex else {})}
    variables: dict[str, str] = {}
    if plan.backend == "ccl" and "impi-rt" not in packages:  # the bindings have an Intel MPI inside
        variables["I_MPI_ROOT"] = f"{prefix}/lib/python{plan.python}/site-packages/{plan.row.module}/opt/mpi"
    env = RankEnv(f"{prefix}/bin/python", prefix, wishes.env, packages, variables, (), ccl=plan.backend == "ccl")
    said = (
        f"the environment {wishes.env} isn't there yet: this is planned with {plan.row.name}, which install would take"
    )
    return env, said


def has_environment(wishes: RunRequest, known: ClusterContext) -> bool:
    """Whether any host has one of that name, in whatever state."""
    return any(wishes.env in (env.name, *env.names) for facts in known.facts.values() for env in facts.software.envs)

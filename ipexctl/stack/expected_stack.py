"""Find the stack that hosts have or would get, for doctor, versions and run.

No index is queried: the installed environment decides, then the last answer of the indexes, then the table alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ipexctl.errors import Refusal, UserError
from ipexctl.facts.facts import Facts
from ipexctl.facts.gather import HostFacts, gather_facts
from ipexctl.facts.software import Env
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.fix import Fix
from ipexctl.node.env.env_replies import EnvRecord
from ipexctl.option_declaration import DEFAULT_ENV
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.outcome import exit_code
from ipexctl.stack.catalog import IPEX, ONECCL, TORCH, StackSpec, project_of, rows_digest
from ipexctl.stack.env.record import find_existing, records_of
from ipexctl.stack.lock.wheel_indexes import CONTROL_MACHINE, CachedAnswer, IndexCache
from ipexctl.stack.resolve import reasons
from ipexctl.stack.resolve.compatibility import interpreters_for, oldest_glibc
from ipexctl.stack.resolve.constraints import stacks
from ipexctl.stack.resolve.model import EnvRequest, StackPlan, StackRequest, Undecided
from ipexctl.stack.resolve.reasons import Reason, because, unknown_version
from ipexctl.stack.resolve.resolver import projects, resolve, resolve_by_table

_PARTS = (TORCH, IPEX, ONECCL, "impi-rt", "intel-openmp")
"""Stack packages that other packages may not change."""


def check_stack_request(request: StackRequest, rows: Sequence[StackSpec]) -> None:
    """Refuse an unknown stack or version, before any host is contacted."""
    wrong = _wrong_call(request, rows)
    if wrong is not None:
        fix: str = wrong.fix
        if wrong.kind is unknown_version and wrong.fields["part"] == "torch":
            fix = Fix("to install the newest that every host can run: `ipexctl install --stack torch`; {fix}", fix=fix)
        raise UserError(wrong.text, fix=fix)


def _wrong_call(request: StackRequest, rows: Sequence[StackSpec]) -> Reason | None:
    decided = resolve(request, {}, None, rows=rows)
    return decided if isinstance(decided, Reason) and decided.is_wrong_call else None


def choose_stack(
    request: StackRequest,
    hosts: Mapping[str, Facts],
    rows: Sequence[StackSpec],
    *,
    env: str = DEFAULT_ENV,
    cache: IndexCache | None = None,
    ipex_use: str = "",
) -> StackPlan | Undecided | Refusal:
    """Return the stack that the hosts have or would get, two candidates if the indexes decide between them, or a
    refusal.

    `ipex_use`: where the project uses IPEX, which counts if no environment and no request decides; empty if it does
    not.
    """
    if (record := installed_record(request, env, hosts, rows)) is not None:
        return installed_plan(record, hosts, rows)
    request = request.for_project(uses_ipex=bool(ipex_use))
    decided = _decide(request, hosts, rows, cache or IndexCache(os.environ))
    if isinstance(decided, Reason):
        return decided.refusal()
    return replace(decided, reason=with_ipex_use(decided.reason, request, ipex_use))


def with_ipex_use(reason: Reason, request: StackRequest, use: str) -> Reason:
    """Return the reason, and where the project uses IPEX if the request is for IPEX. `use`: that text; if it is empty,
    the reason stays as it is."""
    return because(reasons.needed, reason=reason, use=use) if use and request.stack == "ipex" else reason


def _decide(
    request: StackRequest, hosts: Mapping[str, Facts], rows: Sequence[StackSpec], cache: IndexCache
) -> StackPlan | Undecided | Reason:
    """Choose by the table and the last answer of the indexes, and say in the reason which of them decided."""
    by_table = resolve_by_table(request, hosts, rows)
    if isinstance(by_table, Reason) and (by_table.is_wrong_call or by_table.hosts):
        return by_table  # the answer is the same whatever the indexes have
    answer = _last_answer(request, hosts, rows, cache)
    if answer is None:
        return (
            replace(by_table, reason=because(reasons.by_table, reason=by_table.reason))
            if isinstance(by_table, StackPlan)
            else by_table
        )
    chosen = resolve(request, hosts, answer.availability, rows=rows)
    if isinstance(chosen, Reason):
        return chosen
    clock = time.strftime("%H:%M", time.localtime(answer.at))
    return replace(chosen, reason=because(reasons.chosen_earlier, reason=chosen.reason, at=clock))


def installed_record(
    request: StackRequest, env: str, hosts: Mapping[str, Facts], rows: Sequence[StackSpec]
) -> EnvRecord | None:
    """Return the record of the environment of that name if the request names no stack, else of one made for an equal
    request; None if there is none.

    Environments made with another version of the user's own table do not count.
    """
    table, digest = stacks(rows), rows_digest(rows)

    def answers(entry: Env, record: EnvRecord) -> bool:
        requests = [made for made in record.requests if made.get("rows") == digest]
        if not requests or not entry.runs or record.row not in table:
            return False
        if request == StackRequest():
            return env in (entry.name, *entry.names)
        return any(EnvRequest.from_json(made).stack == request for made in requests)

    existing = find_existing(hosts, env, answers)
    return existing.record if existing else None


def installed_plan(record: EnvRecord, hosts: Mapping[str, Facts], rows: Sequence[StackSpec]) -> StackPlan:
    """Return the plan that describes an installed environment. Its row must be in the table."""
    row, packages = stacks(rows)[record.row], record.packages
    names = [
        name
        for name, facts in hosts.items()
        if any(other.name == record.name and entry.runs for entry, other in records_of(facts))
    ]
    return StackPlan(
        row=row,
        torch=packages.get(TORCH, row.torch),
        ipex=packages.get(IPEX),
        oneccl=packages.get(ONECCL),
        python=record.python,
        interpreters=interpreters_for(record.python, hosts),
        requirements=(
            *(f"{name}=={packages[name]}" for name in _PARTS if name in packages),
            *(line for line in row.requires if project_of(line) in set(packages) - set(_PARTS)),
        ),
        constraints=row.constraints,
        backend="ccl" if record.backend == "ccl" else "gloo",
        glibc=oldest_glibc(hosts) or row.glibc,
        reason=because(reasons.installed, on=fold(names), env=record.name),
        bundled_mpi=None if "impi-rt" in packages else record.mpi,
    )


def _last_answer(
    request: StackRequest, hosts: Mapping[str, Facts], rows: Sequence[StackSpec], cache: IndexCache
) -> CachedAnswer | None:
    """Return the last answer of the first host that has one, else the control machine's; None if nobody has one. An
    answer with some torch is preferred to one without."""
    wanted = projects(request, rows)
    without_torch = None
    for machine in (*(facts.machine or name for name, facts in hosts.items()), CONTROL_MACHINE):
        answer = cache.load(machine, wanted)
        if answer is not None and answer.availability.of(TORCH):
            return answer
        without_torch = without_torch or answer
    return without_torch


@dataclass(frozen=True, slots=True)
class VersionsReport:
    """What `ipexctl versions` shows: the version table, and the stack for the hosts."""

    rows: tuple[StackSpec, ...]
    outcome: StackPlan | Undecided | Refusal
    hosts: tuple[HostFacts, ...] = ()
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """Return 2 if the request names an unknown stack or version; else 3 or 1 if hosts were unreachable or failed,
        and 1 if no stack can be chosen."""
        if isinstance(self.outcome, Refusal) and self.outcome.exit_code == 2:
            return 2
        code = exit_code([host.status for host in self.hosts])
        return code or (1 if isinstance(self.outcome, Refusal) else 0)


def versions_for(
    opened: OpenHosts, request: StackRequest, rows: Sequence[StackSpec], *, ipex_use: str = ""
) -> VersionsReport:
    """Return the version table and the stack for these hosts. Hosts without facts are reported and otherwise
    ignored."""
    began = time.monotonic()
    wrong = _wrong_call(request, rows)
    if wrong is not None:
        return VersionsReport(tuple(rows), wrong.refusal())
    answers = {answer.host.name: answer for answer in gather_facts(opened)}
    ordered = tuple(answers[host.name] for host in opened.hosts if host.name in answers)
    facts = {answer.host.name: answer.facts for answer in ordered if answer.facts is not None}
    outcome: StackPlan | Undecided | Refusal = Refusal("no host answered, so no stack can be chosen")
    if facts:
        outcome = choose_stack(request, facts, rows, ipex_use=ipex_use)
    return VersionsReport(tuple(rows), outcome, ordered, time.monotonic() - began)

"""`ipexctl versions`: the version table, and the stack that is installed or would be chosen."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipexctl.remote.outcome import exit_code
from ipexctl.stack.choice import choose_stack
from ipexctl.stack.resolve.model import Refusal, StackPlan, StackRequest, Undecided
from ipexctl.stack.resolve.resolver import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.facts.gather import HostFacts
    from ipexctl.hosts.host import Host
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.stack.catalog.table import StackSpec


@dataclass(frozen=True, slots=True)
class VersionsReport:
    rows: tuple[StackSpec, ...]
    outcome: StackPlan | Undecided | Refusal
    hosts: tuple[HostFacts, ...] = ()
    """The inspected hosts; empty if only the table decided."""
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        if isinstance(self.outcome, Refusal) and self.outcome.wrong_call:
            return 2
        code = exit_code([host.status for host in self.hosts])
        return code or (1 if isinstance(self.outcome, Refusal) else 0)


def versions(request: StackRequest, rows: Sequence[StackSpec]) -> VersionsReport:
    """Choose by the table and the last answer of the indexes."""
    return VersionsReport(tuple(rows), choose_stack(request, {}, rows))


def versions_for(
    hosts: Sequence[Host],
    request: StackRequest,
    rows: Sequence[StackSpec],
    pool: SessionPool,
    *,
    home: str | None = None,
    timeout: float | None = None,
) -> VersionsReport:
    """Choose for these hosts; hosts without facts are reported and do not count."""
    from ipexctl.facts.gather import gather

    began = time.monotonic()
    wrong = resolve(request, {}, None, rows=rows)
    if isinstance(wrong, Refusal) and wrong.wrong_call:
        return VersionsReport(tuple(rows), wrong)
    answers = {answer.host.name: answer for answer in gather(hosts, pool, home=home, timeout=timeout)}
    ordered = tuple(answers[host.name] for host in hosts if host.name in answers)
    facts = {answer.host.name: answer.facts for answer in ordered if answer.facts is not None}
    outcome: StackPlan | Undecided | Refusal = Refusal("no host answered, so no stack can be chosen")
    if facts:
        outcome = choose_stack(request, facts, rows)
    return VersionsReport(tuple(rows), outcome, ordered, time.monotonic() - began)


def mpi_of(plan: StackPlan) -> str | None:
    """The Intel MPI inside the bindings (`2021.14`), else the requirement; None for the hosts' own MPI."""
    if plan.bundled_mpi:
        return plan.bundled_mpi
    return next((each for each in plan.requirements if each.startswith("impi-rt")), None)

"""The reason for a chosen stack, and notes for its user, as values of `reasons.py`. Pure.

One note on oneCCL is enough: the chosen row's if it was requested or hosts are at fault, else the newest row's that has
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.stack.resolve import reasons
from ipexctl.stack.resolve.projects import IPEX, ONECCL
from ipexctl.stack.resolve.reasons import Reason, because
from ipexctl.stack.resolve.rejection import queried_indexes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.stack.catalog.table import StackSpec
    from ipexctl.stack.lock.wheels import Availability
    from ipexctl.stack.resolve.constraints import Constraints
    from ipexctl.stack.resolve.reasons import Newest, Rejected
    from ipexctl.stack.resolve.resolver import Pick

    Tried = Sequence[tuple[StackSpec, Reason]]


def choice_reason(row: StackSpec, tried: Tried, constraints: Constraints, *, any_hosts: bool, or_gloo: bool) -> Reason:
    """`or_gloo`: it runs over gloo if no index has its bindings."""
    is_substitute = constraints.is_default and not row.ipex
    newest_with_oneccl = next(((other.name, problem) for other, problem in tried if other.oneccl), None)
    return because(
        reasons.chosen,
        newest=_newest(row, tried, constraints),
        title=row.title,
        any_hosts=any_hosts,
        newer=_first_newer(row, tried),
        gloo="maybe" if or_gloo else "yes" if row.ipex and not row.oneccl_builds else "no",
        missed=newest_with_oneccl if is_substitute else None,
    )


def _newest(row: StackSpec, tried: Tried, constraints: Constraints) -> Newest | None:
    if constraints.named:
        return None
    if row.ipex:
        return "stack with IPEX and oneCCL bindings" if row.oneccl_builds else "stack with IPEX"
    # IPEX over gloo comes after the maintained rows, so this row is old if they were tried.
    is_old = any(other.ipex and not other.oneccl_builds for other, _ in tried)
    return "maintained PyTorch" if constraints.is_default and not is_old else "PyTorch"


def _first_newer(chosen: StackSpec, tried: Tried) -> Rejected | None:
    for row, problem in tried:
        is_alike = bool(row.oneccl_builds) == bool(chosen.oneccl_builds)
        if row.name != chosen.name and is_alike and (row.oneccl or not row.oneccl_builds):
            return row.name, problem
    return None


def gloo_notes(row: StackSpec, tried: Tried, constraints: Constraints, wheels: Availability) -> Iterator[Reason]:
    if row.oneccl_builds or not row.ipex:
        return
    indexes = queried_indexes(wheels)
    missed = [(other, problem) for other, problem in tried if other.oneccl_builds]
    own = next((problem for other, problem in missed if other.name == row.name), None)
    best = next(((other, problem) for other, problem in missed if other.oneccl and not problem.hosts), None)
    if own and (constraints.named or own.hosts):
        yield because(reasons.gloo_instead_of_oneccl, row=None, problem=own, indexes=indexes)
    elif best and wheels.queried and not wheels.of(ONECCL):
        yield because(reasons.gloo_instead_of_oneccl, row=best[0].name, problem=None, indexes=indexes)
    elif missed:
        newest, problem = best or next((each for each in missed if each[0].oneccl), missed[0])
        yield because(reasons.gloo_instead_of_oneccl, row=newest.name, problem=problem, indexes=indexes)


def retirement_notes(row: StackSpec, maintained: StackSpec | None, problem: Reason | None) -> Iterator[Reason]:
    if row.ipex and row.retired:
        name = maintained.name if maintained else None
        yield because(reasons.ipex_is_retired, maintained=name, problem=problem)


def builds_notes(row: StackSpec, pick: Pick) -> Iterator[Reason]:
    for project, candidate in pick.wheels.items():
        if candidate.yanked:  # an exact version still installs it
            version, source = candidate.version, candidate.source
            yield because(reasons.yanked_wheel, project=project, version=version, source=source)
    if not pick.wheels and pick.ipex and pick.ipex.pypi == "yanked":
        yield because(reasons.yanked_wheel, project=IPEX, version=pick.ipex.version, source="PyPI")
    bindings = pick.wheels.get(ONECCL)
    if bindings and pick.oneccl and pick.oneccl.cpu_wheel == "none":
        yield because(
            reasons.unpublished_bindings,
            version=bindings.version,
            line=row.line,
            source=bindings.source,
            bundled_mpi=pick.bundled_mpi,
        )
    have = {
        "torch": pick.torch,
        "ipex": pick.ipex.version if pick.ipex else None,
        "oneccl": pick.oneccl.version if pick.oneccl else None,
        "python": pick.target.python,
    }
    for bad in row.known_bad:
        meant = {"torch": bad.torch, "ipex": bad.ipex, "oneccl": bad.oneccl, "python": bad.python}
        if any(meant.values()) and all(have[part] == version for part, version in meant.items() if version):
            yield because(reasons.known_problem, bad=bad)


def missing_mpi(requirement: str, hosts: Mapping[str, Facts], wheels: Availability) -> Reason:
    has_mpi = [any(mpi.version for mpi in facts.software.mpis) for facts in hosts.values()]
    every_host, indexes = bool(hosts) and all(has_mpi), queried_indexes(wheels)
    return because(reasons.no_intel_mpi, requirement=requirement, indexes=indexes, every_host_has_mpi=every_host)

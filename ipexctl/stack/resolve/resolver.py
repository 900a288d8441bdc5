"""The resolver: from a request, the facts of hosts and the available wheels to a StackPlan or a Refusal. Pure.

`constraints` reads the request, `compatibility` matches hosts, `lock/wheels` matches platforms, `explanations` has the
sentences.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ipexctl.stack.catalog.table import Index, IpexBuild, OnecclBuild, StackSpec, version_key
from ipexctl.stack.catalog.table import rows as packaged_rows
from ipexctl.stack.lock.wheels import Target, Wheels, is_cpu_build, split_requirement
from ipexctl.stack.resolve import explanations
from ipexctl.stack.resolve.compatibility import (
    HostProfile,
    Incompatibility,
    has_isa,
    incompatibilities,
    interpreters_for,
    profiles,
    span,
    without_python,
)
from ipexctl.stack.resolve.constraints import Constraints, Variant, read_constraints
from ipexctl.stack.resolve.model import Availability, Candidate, Refusal, StackPlan, StackRequest, Undecided

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ipexctl.facts.cpu import Tier
    from ipexctl.facts.facts import Facts

TORCH: Final = "torch"
IPEX: Final = "intel-extension-for-pytorch"
ONECCL: Final = "oneccl-bind-pt"
UV: Final = "uv"
OPTIONAL: Final = ("intel-openmp", "numpy")
"""Packages that a stack can do without."""


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The hosts and the available wheels."""

    hosts: Mapping[str, Facts]
    host_groups: Mapping[HostProfile, tuple[str, ...]]
    wheels: Wheels

    @property
    def glibc(self) -> str | None:
        return min((kind.glibc for kind in self.host_groups if kind.glibc), key=version_key, default=None)

    @property
    def tiers(self) -> tuple[Tier | None, ...]:
        return tuple(kind.tier for kind in self.host_groups)


@dataclass(frozen=True, slots=True)
class Pick:
    """Builds of a row that work together, and their wheels; without an answer of indexes no wheels."""

    variant: Variant
    torch: str
    ipex: IpexBuild | None
    oneccl: OnecclBuild | None
    target: Target
    wheels: Mapping[str, Candidate]

    @property
    def is_for_cpus(self) -> bool:
        """Whether its torch is known to be a build for CPUs; PyPI's is the CUDA build."""
        return TORCH in self.wheels and is_cpu_build(self.wheels[TORCH])

    @property
    def bundled_mpi(self) -> str | None:
        """The Intel MPI inside the bindings, by the wheel itself or else by the table."""
        wheel = self.wheels.get(ONECCL)
        by_table = self.oneccl.mpi if self.oneccl else None
        return (by_table if wheel is None or wheel.mpi is None else wheel.mpi) or None

    def pin(self, project: str, version: str) -> str:
        """The version of the found wheel: `2.8.0+cpu`."""
        found = self.wheels.get(project)
        return found.version if found else version


def resolve(
    request: StackRequest,
    hosts: Mapping[str, Facts],
    availability: Availability | None,
    *,
    rows: Sequence[StackSpec] | None = None,
) -> StackPlan | Refusal:
    """Choose the stack for these hosts. Without `availability` the table alone decides."""
    table = packaged_rows() if rows is None else tuple(rows)
    constraints = read_constraints(request, table)
    if isinstance(constraints, Refusal):
        return constraints
    cluster = _Cluster(hosts, profiles(hosts), Wheels(availability))
    if constraints.python is not None and (lacking := without_python(constraints.python, cluster.host_groups)):
        return lacking
    return _first_fit(request, constraints, cluster, table)


def resolve_by_table(
    request: StackRequest, hosts: Mapping[str, Facts], rows: Sequence[StackSpec]
) -> StackPlan | Undecided | Refusal:
    """Choose without an answer of indexes, or the stacks among which they decide: with oneCCL bindings and without."""
    plan = resolve(request, hosts, None, rows=rows)
    constraints = read_constraints(request, rows)
    if isinstance(plan, Refusal) or isinstance(constraints, Refusal) or plan.oneccl is None:
        return plan
    without = replace(constraints, variants=tuple(each for each in constraints.variants if not each.ccl))
    if constraints.named or not without.variants:
        return plan
    other = _first_fit(request, without, _Cluster(hosts, profiles(hosts), Wheels(None)), rows)
    if isinstance(other, Refusal) or other.row.name == plan.row.name:
        return plan
    return Undecided((plan, other))


def _first_fit(
    request: StackRequest, constraints: Constraints, cluster: _Cluster, table: Sequence[StackSpec]
) -> StackPlan | Refusal:
    tried: list[tuple[Variant, Incompatibility]] = []
    for variant in constraints.variants:
        found = _fit(variant, constraints, cluster)
        if isinstance(found, Pick):
            if better := _for_cpus(found, constraints, cluster, table):
                tried.append((variant, Incompatibility("only its CUDA build is available")))
            return _plan(better or found, tried, constraints, cluster, table)
        tried.append((variant, found))
    return _refuse(request, tried, constraints, cluster, table)


def projects(request: StackRequest, rows: Sequence[StackSpec] | None = None) -> tuple[str, ...]:
    """The projects to query, with `uv`, which builds environments."""
    variants = _variants(request, rows)
    if not variants:
        return ()
    found = [TORCH]
    if any(variant.row.ipex for variant in variants):
        found.append(IPEX)
    if any(variant.ccl for variant in variants):
        found.append(ONECCL)
    for variant in variants:
        queried = [*(requirement for _, requirement in variant.row.mpi), *variant.row.requires]
        found += [split_requirement(requirement)[0] for requirement in queried]
    return tuple(dict.fromkeys([*found, UV]))


def indexes(request: StackRequest, rows: Sequence[StackSpec] | None = None) -> tuple[Index, ...]:
    """The indexes of the candidate rows, those of the best row first and PyPI last."""
    found = dict.fromkeys(index for variant in _variants(request, rows) for index in variant.row.indexes)
    return tuple(sorted(found, key=lambda index: "//pypi.org/" in index.url))


def _variants(request: StackRequest, rows: Sequence[StackSpec] | None) -> tuple[Variant, ...]:
    constraints = read_constraints(request, packaged_rows() if rows is None else rows)
    return () if isinstance(constraints, Refusal) else constraints.variants


def _fit(variant: Variant, constraints: Constraints, cluster: _Cluster) -> Pick | Incompatibility:
    row = variant.row
    pythons = row.pythons
    narrower = variant.ccl and row.oneccl and pythons != row.without_oneccl().pythons
    title = f"oneccl_bind_pt {row.oneccl}" if narrower else row.title
    if constraints.python is not None:
        if constraints.python not in pythons:
            return Incompatibility(f"{title} is built for Python {span(pythons)}, not for {constraints.python}")
        pythons = (constraints.python,)
    problem, common = incompatibilities(row, cluster.host_groups, pythons, title)
    if problem is not None:
        return problem
    targets = [Target(python, cluster.glibc or row.glibc) for python in common]
    picks = [
        pick for target in targets if (pick := next(_picks(variant, constraints, target, cluster), None)) is not None
    ]
    if not picks:
        return explanations.missing_wheels(variant, targets, cluster.wheels)
    if constraints.is_default and variant.ccl and cluster.wheels.queried:
        picks = [pick for pick in picks if pick.is_for_cpus]
        if not picks:
            return Incompatibility(f"only the CUDA build of torch {row.line} is available")
    # A build for CPUs on an older Python is better than gigabytes of CUDA.
    pick = next((pick for pick in picks if pick.is_for_cpus), picks[0])
    return _missing_extra(row, pick, cluster.wheels) or pick


def _for_cpus(found: Pick, constraints: Constraints, cluster: _Cluster, table: Sequence[StackSpec]) -> Pick | None:
    """A maintained torch for CPUs instead of a newer one with gigabytes of CUDA, if no torch was named."""
    if constraints.named or found.variant.row.ipex or found.is_for_cpus or not cluster.wheels.queried:
        return None
    maintained = {row.name for row in table if not (row.ipex or row.retired)}
    others = (_fit(variant, constraints, cluster) for variant in constraints.variants if variant.row.name in maintained)
    return next((other for other in others if isinstance(other, Pick) and other.is_for_cpus), None)


def _picks(variant: Variant, constraints: Constraints, target: Target, cluster: _Cluster) -> Iterator[Pick]:
    """All available combinations that work together, best first."""
    row = variant.row
    for torch in row.patches:
        for ipex in row.ipex_builds or (None,):
            if ipex and not _ipex_runs(ipex, torch, target, cluster):
                continue
            for oneccl in row.oneccl_builds if variant.ccl else (None,):
                if oneccl and not _oneccl_runs(oneccl, torch, target, constraints, cluster.wheels):
                    continue
                found = _wheels(torch, ipex, oneccl, target, cluster.wheels)
                if found is not None:
                    yield Pick(variant, torch, ipex, oneccl, target, found)


def _ipex_runs(build: IpexBuild, torch: str, target: Target, cluster: _Cluster) -> bool:
    return (
        torch in build.works_with
        and target.python in build.pythons
        and version_key(build.glibc) <= version_key(target.glibc)
        and all(has_isa(tier, build.isa) for tier in cluster.tiers)
    )


def _oneccl_runs(build: OnecclBuild, torch: str, target: Target, constraints: Constraints, wheels: Wheels) -> bool:
    """Whether a build of the bindings fits. One never published for CPUs counts if an index has it."""
    if torch not in build.works_with or target.python not in build.pythons:
        return False
    return (
        wheels.queried
        or build.cpu_wheel == "published"
        or (constraints.oneccl is not None and build.cpu_wheel != "none")
    )


def _wheels(
    torch: str, ipex: IpexBuild | None, oneccl: OnecclBuild | None, target: Target, wheels: Wheels
) -> dict[str, Candidate] | None:
    if not wheels.queried:
        return {}
    wanted = {TORCH: torch}
    if ipex:
        wanted[IPEX] = ipex.version
    if oneccl:
        wanted[ONECCL] = oneccl.version
    found: dict[str, Candidate] = {}
    for project, version in wanted.items():
        candidate = wheels.build(project, version, target)
        if candidate is None:
            return None
        found[project] = candidate
    return found


def _missing_extra(row: StackSpec, pick: Pick, wheels: Wheels) -> Incompatibility | None:
    for requirement in row.requires:
        if split_requirement(requirement)[0] not in OPTIONAL and not wheels.can_satisfy(requirement, pick.target):
            return Incompatibility(f"{row.name} needs {requirement}, and {explanations.not_available(wheels, 'it')}")
    return None


def _plan(
    pick: Pick,
    tried: Sequence[tuple[Variant, Incompatibility]],
    constraints: Constraints,
    cluster: _Cluster,
    table: Sequence[StackSpec],
) -> StackPlan:
    row, wheels = pick.variant.row, cluster.wheels
    torch = pick.pin(TORCH, pick.torch)
    ipex = pick.pin(IPEX, pick.ipex.version) if pick.ipex else None
    oneccl = pick.pin(ONECCL, pick.oneccl.version) if pick.oneccl else None
    mpi, mpi_note = _mpi(row, pick, cluster)
    extras = [each for each in row.requires if wheels.can_satisfy(each, pick.target)]
    notes = [
        *explanations.instead_of_what(pick.variant, tried, constraints, cluster.wheels),
        *explanations.retired(row, *_maintained(constraints, cluster, table)),
        *explanations.withdrawn(pick),
        *explanations.made_by_hand(row, pick),
        *explanations.known_bad(row, pick),
        *([mpi_note] if mpi_note else []),
        *explanations.left_out(row, [each for each in row.requires if each not in extras], wheels),
    ]
    pins = {TORCH: torch, IPEX: ipex, ONECCL: oneccl}
    return StackPlan(
        row=row,
        torch=torch,
        ipex=ipex,
        oneccl=oneccl,
        python=pick.target.python,
        interpreters=interpreters_for(pick.target.python, cluster.hosts),
        requirements=(
            *(f"{project}=={pin}" for project, pin in pins.items() if pin),
            *([mpi] if mpi else []),
            *extras,
        ),
        constraints=row.constraints,
        backend="ccl" if oneccl else "gloo",
        glibc=pick.target.glibc,
        why=explanations.why(
            pick.variant,
            tried,
            constraints,
            any_hosts=bool(cluster.hosts),
            otherwise=_runs_without_bindings(pick, constraints, cluster),
        ),
        bundled_mpi=pick.bundled_mpi,
        torch_wheel=pick.wheels.get(TORCH),
        notes=tuple(dict.fromkeys(notes)),
    )


def _mpi(row: StackSpec, pick: Pick, cluster: _Cluster) -> tuple[str | None, str]:
    """The requirement for Intel MPI, or the note that it is not available."""
    if pick.bundled_mpi or not row.mpi:
        return None, ""
    fitting = [each for floor, each in row.mpi if version_key(floor) <= version_key(pick.target.glibc)]
    found = next((each for each in fitting if cluster.wheels.can_satisfy(each, pick.target)), None)
    if found:
        return found, ""
    return None, explanations.no_mpi([each for _, each in row.mpi][-1:], cluster.hosts, cluster.wheels)


def _runs_without_bindings(pick: Pick, constraints: Constraints, cluster: _Cluster) -> bool:
    """Whether the indexes, which were not queried, may lack the bindings of the requested stack."""
    return not cluster.wheels.queried and pick.variant.ccl and constraints.named and not constraints.require_oneccl


def _maintained(
    constraints: Constraints, cluster: _Cluster, table: Sequence[StackSpec]
) -> tuple[StackSpec | None, str]:
    """The newest maintained PyTorch that these hosts can have, or the reason why there is none."""
    why_not = ""
    maintained = tuple(Variant(row, False) for row in table if not (row.ipex or row.retired))
    of_torch = replace(constraints, variants=maintained, kind="torch", named=False, python=None)
    for variant in maintained:
        found = _fit(variant, of_torch, cluster)
        if isinstance(found, Pick):
            return (_for_cpus(found, of_torch, cluster, table) or found).variant.row, ""
        why_not = why_not or found.reason
    return None, why_not


def _refuse(
    request: StackRequest,
    tried: Sequence[tuple[Variant, Incompatibility]],
    constraints: Constraints,
    cluster: _Cluster,
    table: Sequence[StackSpec],
) -> Refusal:
    variant, problem = explanations.simplest_refusal(tried, cluster.host_groups, cluster.wheels)
    row, must = variant.row, constraints.require_oneccl

    def first_fitting(variants: Iterable[Variant]) -> StackSpec | None:
        return next((each.row for each in variants if isinstance(_fit(each, constraints, cluster), Pick)), None)

    fits, stock, gloo = None, None, None
    if constraints.named or constraints.kind == "ipex":
        fits = first_fitting(_others_alike(row, table, ccl=must))
    if row.ipex and not must:
        same_torch = [other for other in table if request.torch and other.line == row.line]
        stock = first_fitting(Variant(other.stock(), False) for other in (*same_torch, *table))
    if must:
        gloo = first_fitting(Variant(other.without_oneccl(), False) for other in table if other.ipex)
    return explanations.refusal(
        problem,
        variant,
        fits=fits,
        stock=stock,
        gloo=gloo,
        constraints=constraints,
        count=len(cluster.hosts),
        queried=cluster.wheels.queried,
    )


def _others_alike(row: StackSpec, table: Sequence[StackSpec], *, ccl: bool) -> Iterator[Variant]:
    """The rows of the same kind for another torch, newest first."""
    for other in table:
        alike = other if row.ipex else other.stock()
        if bool(alike.ipex) == bool(row.ipex) and alike.line != row.line:
            yield Variant(alike, True) if ccl else Variant(alike.without_oneccl(), False)

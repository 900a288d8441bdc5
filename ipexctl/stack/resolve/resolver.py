"""Choose one stack for all hosts. Pure.

The resolver takes the first candidate row that runs on every host and has its wheels. If no index has answered, every
published wheel counts as available.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ipexctl.facts.facts import Facts
from ipexctl.node.env.env_replies import AvailableWheel
from ipexctl.stack.catalog import IPEX, ONECCL, TORCH, Index, IpexBuild, OnecclBuild, StackSpec, project_of, version_key
from ipexctl.stack.catalog import rows as packaged_rows
from ipexctl.stack.lock.wheels import NOT_QUERIED, Availability, Target, is_cpu_build
from ipexctl.stack.resolve import reasons
from ipexctl.stack.resolve.compatibility import (
    HostProfile,
    common_pythons,
    easiest_problem,
    has_isa,
    interpreters_for,
    missing_wheels,
    profiles,
    queried_indexes,
    without_python,
)
from ipexctl.stack.resolve.constraints import Constraints, read_constraints
from ipexctl.stack.resolve.model import OPTIONAL, UV, StackPlan, StackRequest, Undecided
from ipexctl.stack.resolve.reasons import Newest, Reason, Rejected, because

Tried = Sequence[tuple[StackSpec, Reason]]


def choice_reason(row: StackSpec, tried: Tried, constraints: Constraints, *, any_hosts: bool, or_gloo: bool) -> Reason:
    """Return why this row was chosen.

    `tried`: rows that were passed over, each with its problem. `or_gloo`: True if the row runs over gloo in case no
    index has its bindings.
    """
    return because(
        reasons.chosen,
        newest=_newest(row, constraints),
        title=row.title,
        any_hosts=any_hosts,
        newer=_first_newer(row, tried),
        gloo="maybe" if or_gloo else "yes" if row.ipex and not row.oneccl_builds else "no",
    )


def _newest(row: StackSpec, constraints: Constraints) -> Newest | None:
    """Return the sense in which a row is the newest; None if the request named it."""
    if constraints.named:
        return None
    if not row.ipex:
        return "PyTorch"
    return "stack with IPEX and oneCCL bindings" if row.oneccl_builds else "stack with IPEX"


def _first_newer(chosen: StackSpec, tried: Tried) -> Rejected | None:
    """Return the first row that was passed over and is of the same kind, with its problem; None if there is none."""
    for row, problem in tried:
        is_alike = bool(row.oneccl_builds) == bool(chosen.oneccl_builds)
        if row.name != chosen.name and is_alike and (row.oneccl or not row.oneccl_builds):
            return row.name, problem
    return None


def gloo_notes(row: StackSpec, tried: Tried, constraints: Constraints, wheels: Availability) -> Iterator[Reason]:
    """Say why a row with IPEX runs over gloo. Yield nothing for another row, or if no row with bindings was tried."""
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
        newest, problem = best or next((candidate for candidate in missed if candidate[0].oneccl), missed[0])
        yield because(reasons.gloo_instead_of_oneccl, row=newest.name, problem=problem, indexes=indexes)


def retirement_notes(row: StackSpec, maintained: StackSpec | None, problem: Reason | None) -> Iterator[Reason]:
    """Warn that the chosen row is retired. `maintained`: the newest maintained row that runs on the hosts; None if none
    runs, for which `problem` is the reason."""
    if row.ipex and row.retired:
        name = maintained.name if maintained else None
        yield because(reasons.ipex_is_retired, maintained=name, problem=problem)


def builds_notes(row: StackSpec, pick: Pick) -> Iterator[Reason]:
    """Warn of the chosen builds: yanked wheels, bindings that were never published for CPUs, and known problems of the
    combination."""
    for project, candidate in pick.wheels.items():
        if candidate.yanked:  # an exact version still installs a yanked wheel
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
    """Warn that no index has Intel MPI for the hosts, and say whether each host has an MPI of its own."""
    has_mpi = [any(mpi.version for mpi in facts.software.mpis) for facts in hosts.values()]
    every_host, indexes = bool(hosts) and all(has_mpi), queried_indexes(wheels)
    return because(reasons.no_intel_mpi, requirement=requirement, indexes=indexes, every_host_has_mpi=every_host)


@dataclass(frozen=True, slots=True)
class Pick:
    """Builds of a row that fit each other and the hosts."""

    row: StackSpec
    torch: str
    ipex: IpexBuild | None
    oneccl: OnecclBuild | None
    target: Target
    wheels: Mapping[str, AvailableWheel]
    """Project → the chosen wheel; empty if no index was queried."""

    @property
    def is_for_cpus(self) -> bool:
        """True if the chosen torch is known to be a build for CPUs. False also if no index was queried."""
        return TORCH in self.wheels and is_cpu_build(self.wheels[TORCH])

    @property
    def bundled_mpi(self) -> str | None:
        """Return the version of the Intel MPI inside the bindings, according to the wheel or else to the table; None if
        there is none."""
        wheel = self.wheels.get(ONECCL)
        by_table = self.oneccl.mpi if self.oneccl else None
        return (by_table if wheel is None or wheel.mpi is None else wheel.mpi) or None

    def pin(self, project: str, version: str) -> str:
        """Return the version of the project's chosen wheel, such as `2.8.0+cpu`; `version` if no index was queried."""
        wheel = self.wheels.get(project)
        return wheel.version if wheel else version


def resolve(
    request: StackRequest,
    hosts: Mapping[str, Facts],
    availability: Availability | None,
    *,
    rows: Sequence[StackSpec] | None = None,
) -> StackPlan | Reason:
    """Return the stack for all hosts, or the reason why there is none.

    `availability`: what the indexes have; None if they were not queried. `rows`: the version table; None for the
    packaged rows.
    """
    table = packaged_rows() if rows is None else tuple(rows)
    constraints = read_constraints(request, table)
    if isinstance(constraints, Reason):
        return constraints
    host_groups = profiles(hosts)
    if constraints.python is not None and (lacking := without_python(constraints.python, host_groups)):
        return lacking
    return _Search(request, table, hosts, host_groups, availability or NOT_QUERIED).first_fit(constraints)


def resolve_by_table(
    request: StackRequest, hosts: Mapping[str, Facts], rows: Sequence[StackSpec]
) -> StackPlan | Undecided | Reason:
    """Choose without the indexes. If it depends on them which of two stacks is chosen, return both as `Undecided`."""
    plan = resolve(request, hosts, None, rows=rows)
    constraints = read_constraints(request, rows)
    if isinstance(plan, Reason) or isinstance(constraints, Reason) or plan.oneccl is None:
        return plan
    without = replace(constraints, rows=tuple(row for row in constraints.rows if not row.oneccl_builds))
    if constraints.named or not without.rows:
        return plan
    other = _Search(request, rows, hosts, profiles(hosts), NOT_QUERIED).first_fit(without)
    if isinstance(other, Reason) or other.row.name == plan.row.name:
        return plan
    return Undecided((plan, other), because(reasons.undecided, first=plan.row.name, last=other.row.name))


def projects(request: StackRequest, rows: Sequence[StackSpec] | None = None) -> tuple[str, ...]:
    """Return the projects to query for a request, including `uv`, which builds environments; empty if no row fulfils
    the request."""
    candidates = _candidates(request, rows)
    if not candidates:
        return ()
    names = [TORCH]
    if any(row.ipex for row in candidates):
        names.append(IPEX)
    if any(row.oneccl_builds for row in candidates):
        names.append(ONECCL)
    for row in candidates:
        queried = [*(requirement for _, requirement in row.mpi), *row.requires]
        names += [project_of(requirement) for requirement in queried]
    return tuple(dict.fromkeys([*names, UV]))


def indexes(request: StackRequest, rows: Sequence[StackSpec] | None = None) -> tuple[Index, ...]:
    """Return the indexes of all candidate rows, each once and PyPI last; empty if no row fulfils the request."""
    unique = dict.fromkeys(index for row in _candidates(request, rows) for index in row.indexes)
    return tuple(sorted(unique, key=lambda index: "//pypi.org/" in index.url))


def _candidates(request: StackRequest, rows: Sequence[StackSpec] | None) -> tuple[StackSpec, ...]:
    constraints = read_constraints(request, packaged_rows() if rows is None else rows)
    return () if isinstance(constraints, Reason) else constraints.rows


@dataclass(frozen=True, slots=True)
class _Search:
    request: StackRequest
    table: Sequence[StackSpec]
    hosts: Mapping[str, Facts]
    host_groups: Mapping[HostProfile, tuple[str, ...]]
    wheels: Availability

    def first_fit(self, constraints: Constraints) -> StackPlan | Reason:
        """Return the plan of the first candidate that fits the hosts and has its wheels, or the reason why none
        does."""
        tried: list[tuple[StackSpec, Reason]] = []
        for row in constraints.rows:
            fit = self._fit(row, constraints)
            if isinstance(fit, Pick):
                if better := self._for_cpus(fit, constraints):
                    tried.append((row, because(reasons.only_cuda_build, line=row.line)))
                return self._plan(better or fit, tried, constraints)
            tried.append((row, fit))
        return self._refuse(tried, constraints)

    def _fit(self, row: StackSpec, constraints: Constraints) -> Pick | Reason:
        """Return the builds of a row that run on all hosts, or why there are none."""
        pythons = row.pythons
        # Bindings exist for fewer Pythons than the other parts, so name them if they are the limit.
        narrower = row.oneccl and pythons != row.without_oneccl().pythons
        part = f"oneccl_bind_pt {row.oneccl}" if narrower else row.title
        if constraints.python is not None:
            if constraints.python not in pythons:
                python = constraints.python
                return because(reasons.built_for_other_pythons, part=part, pythons=pythons, requested=python)
            pythons = (constraints.python,)
        common = common_pythons(row, self.host_groups, pythons, part)
        if isinstance(common, Reason):
            return common
        # All hosts get the same wheels, which must run on the oldest glibc.
        glibc = min((kind.glibc for kind in self.host_groups if kind.glibc), key=version_key, default=row.glibc)
        bad = {problem.python for problem in row.known_bad}
        targets = [Target(python, glibc) for python in sorted(common, key=bad.__contains__)]  # known bad Pythons last
        picks = [pick for target in targets if (pick := next(self._picks(row, constraints, target), None))]
        if not picks:
            return missing_wheels(row, targets, self.wheels)
        # A CPU build on an older Python is better than gigabytes of CUDA.
        pick = next((pick for pick in picks if pick.is_for_cpus), picks[0])
        for requirement in row.requires:
            name = project_of(requirement)
            is_optional = name in OPTIONAL and not (row.ipex and name == "numpy")
            if not is_optional and not self.wheels.can_satisfy(requirement, pick.target):
                has = queried_indexes(self.wheels)
                return because(reasons.missing_requirement, row=row.name, requirement=requirement, indexes=has)
        return pick

    def _for_cpus(self, found: Pick, constraints: Constraints) -> Pick | None:
        """Return a maintained torch for CPUs in place of a newer one with gigabytes of CUDA; None if the chosen one is
        for CPUs, has IPEX or was named, if no index was queried, or if there is none."""
        if constraints.named or found.row.ipex or found.is_for_cpus or not self.wheels.queried:
            return None
        maintained = {row.name for row in self.table if not (row.ipex or row.retired)}
        others = (self._fit(row, constraints) for row in constraints.rows if row.name in maintained)
        return next((other for other in others if isinstance(other, Pick) and other.is_for_cpus), None)

    def _picks(self, row: StackSpec, constraints: Constraints, target: Target) -> Iterator[Pick]:
        """Yield the builds of a row that fit each other and the target, preferred ones first."""
        for torch in row.patches:
            for ipex in row.ipex_builds or (None,):
                if ipex and not self._ipex_runs(ipex, torch, target):
                    continue
                for oneccl in row.oneccl_builds or (None,):
                    if oneccl and not self._oneccl_runs(oneccl, torch, target, constraints):
                        continue
                    builds = ((TORCH, torch), (IPEX, ipex and ipex.version), (ONECCL, oneccl and oneccl.version))
                    wheels = self._builds({project: version for project, version in builds if version}, target)
                    if wheels is not None:
                        yield Pick(row, torch, ipex, oneccl, target, wheels)

    def _ipex_runs(self, build: IpexBuild, torch: str, target: Target) -> bool:
        """True if an IPEX build works with this torch and runs on the target and on all hosts' CPUs."""
        return (
            torch in build.works_with
            and target.python in build.pythons
            and version_key(build.glibc) <= version_key(target.glibc)
            and all(has_isa(kind.tier, build.isa) for kind in self.host_groups)
        )

    def _oneccl_runs(self, build: OnecclBuild, torch: str, target: Target, constraints: Constraints) -> bool:
        """True if the bindings fit. A build that was never published for CPUs counts if an index has it."""
        is_published = build.cpu_wheel == "published" or (constraints.oneccl is not None and build.cpu_wheel != "none")
        fits = torch in build.works_with and target.python in build.pythons
        return fits and (self.wheels.queried or is_published)

    def _builds(self, wanted: Mapping[str, str], target: Target) -> dict[str, AvailableWheel] | None:
        """Return project → wheel of exactly these versions; None if one of them is missing. Empty if no index was
        queried."""
        chosen: dict[str, AvailableWheel] = {}
        for project, version in wanted.items() if self.wheels.queried else ():
            candidate = self.wheels.build(project, version, target)
            if candidate is None:
                return None
            chosen[project] = candidate
        return chosen

    def _plan(self, pick: Pick, tried: Sequence[tuple[StackSpec, Reason]], constraints: Constraints) -> StackPlan:
        """Return the plan for these builds, with its notes."""
        row, wheels = pick.row, self.wheels
        torch = pick.pin(TORCH, pick.torch)
        ipex = pick.pin(IPEX, pick.ipex.version) if pick.ipex else None
        oneccl = pick.pin(ONECCL, pick.oneccl.version) if pick.oneccl else None
        mpi = self._mpi(row, pick)
        satisfiable = [line for line in row.requires if wheels.can_satisfy(line, pick.target)]
        notes = [
            *gloo_notes(row, tried, constraints, wheels),
            *retirement_notes(row, *self._maintained(constraints)),
            *builds_notes(row, pick),
        ]
        if isinstance(mpi, Reason):
            notes.append(mpi)
        missing = [line for line in row.requires if line not in satisfiable]
        has = queried_indexes(wheels)
        notes += [because(reasons.left_out, requirement=line, title=row.title, indexes=has) for line in missing]
        pins = {TORCH: torch, IPEX: ipex, ONECCL: oneccl}
        # The indexes, which were not queried yet, may lack the requested stack's bindings.
        or_gloo = not wheels.queried and oneccl is not None and constraints.named and not constraints.require_oneccl
        return StackPlan(
            row=row,
            torch=torch,
            ipex=ipex,
            oneccl=oneccl,
            python=pick.target.python,
            interpreters=interpreters_for(pick.target.python, self.hosts),
            requirements=(
                *(f"{project}=={pin}" for project, pin in pins.items() if pin),
                *([mpi] if isinstance(mpi, str) else []),
                *satisfiable,
            ),
            constraints=row.constraints,
            backend="ccl" if oneccl else "gloo",
            glibc=pick.target.glibc,
            reason=choice_reason(row, tried, constraints, any_hosts=bool(self.hosts), or_gloo=or_gloo),
            bundled_mpi=pick.bundled_mpi,
            torch_wheel=pick.wheels.get(TORCH),
            notes=tuple(dict.fromkeys(notes)),
        )

    def _mpi(self, row: StackSpec, pick: Pick) -> str | Reason | None:
        """Return the requirement of Intel MPI; None if the bindings contain it or the row needs none, or a reason if no
        index has it."""
        if pick.bundled_mpi or not row.mpi:
            return None
        fitting = [line for floor, line in row.mpi if version_key(floor) <= version_key(pick.target.glibc)]
        satisfiable = next((line for line in fitting if self.wheels.can_satisfy(line, pick.target)), None)
        return satisfiable or missing_mpi(row.mpi[-1][1], self.hosts, self.wheels)

    def _maintained(self, constraints: Constraints) -> tuple[StackSpec | None, Reason | None]:
        """Return the newest maintained row that runs on the hosts, or else the problem of the newest one."""
        first_problem = None
        maintained = tuple(row for row in self.table if not (row.ipex or row.retired))
        of_torch = replace(constraints, rows=maintained, kind="torch", named=False, python=None)
        for row in maintained:
            fit = self._fit(row, of_torch)
            if isinstance(fit, Pick):
                return (self._for_cpus(fit, of_torch) or fit).row, None
            first_problem = first_problem or fit
        return None, first_problem

    def _refuse(self, tried: Sequence[tuple[StackSpec, Reason]], constraints: Constraints) -> Reason:
        """Return the reason why nothing fits, with what would fit instead."""
        row, problem = easiest_problem(tried, self.host_groups, self.wheels)
        must = constraints.require_oneccl

        def first_fitting(rows: Iterable[StackSpec]) -> StackSpec | None:
            return next((other for other in rows if isinstance(self._fit(other, constraints), Pick)), None)

        # Try alternatives like candidates, because a fix must not name a stack that these hosts can't have.
        fits, stock, gloo = None, None, None
        if constraints.named or constraints.kind == "ipex":
            kindred = [other if row.ipex else other.stock() for other in self.table]
            kindred = [other for other in kindred if bool(other.ipex) == bool(row.ipex) and other.line != row.line]
            if must:
                fits = first_fitting(other for other in kindred if other.oneccl_builds)
            else:
                fits = first_fitting(other.without_oneccl() for other in kindred)
        if row.ipex and not must:
            same_torch = [other for other in self.table if self.request.torch and other.line == row.line]
            stock = first_fitting(other.stock() for other in (*same_torch, *self.table))
        if must:
            gloo = first_fitting(other.without_oneccl() for other in self.table if other.ipex)
        by_name = stock and constraints.named and stock.line == row.line
        return because(
            reasons.nothing_fits,
            problem=problem,
            total_hosts=len(self.hosts),
            fits=fits,
            required=f"--oneccl {constraints.oneccl}" if constraints.oneccl else "--require-oneccl",
            gloo=gloo.name if gloo else None,
            stock=(stock.name if by_name else "torch") if stock else None,
        )

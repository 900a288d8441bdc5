"""The sentences of the resolver: reasons for a stack, notes on it, and refusals. Pure; decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.refusal import Refusal
from ipexctl.stack.catalog.table import StackSpec, version_key
from ipexctl.stack.lock.wheels import Availability, Target, split_requirement
from ipexctl.stack.resolve.compatibility import HostProfile, Incompatibility, join_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.stack.resolve.constraints import Constraints
    from ipexctl.stack.resolve.resolver import Pick

_NAMES = {
    "torch": "torch",
    "intel-extension-for-pytorch": "IPEX",
    "oneccl-bind-pt": "oneccl_bind_pt",
    "impi-rt": "Intel MPI (impi-rt)",
    "intel-openmp": "Intel's OpenMP library (intel-openmp)",
}
_MANY = 3
"""The largest number of hosts that a fix names one by one."""
_RETIRED = "IPEX is retired since March 2026 (no more fixes, known security issues)"


def why(
    row: StackSpec,
    tried: Sequence[tuple[StackSpec, Incompatibility]],
    constraints: Constraints,
    *,
    any_hosts: bool,
    otherwise: bool,
) -> str:
    """One sentence: the reason for this stack. `otherwise`: it runs over gloo if no index has its bindings."""
    fits = " that fits every host" if any_hosts else ""
    if constraints.named:
        text = f"{row.title} was requested"
    elif not row.ipex:
        is_old = any(other.ipex and not other.oneccl_builds for other, _ in tried)  # they come after the maintained
        text = f"the newest {'maintained ' if constraints.is_default and not is_old else ''}PyTorch{fits}"
    elif row.oneccl_builds:
        text = f"the newest stack with IPEX and oneCCL bindings{fits}"
    else:
        text = f"the newest stack with IPEX{fits}"
    if newer := _first_newer(row, tried):
        text += f" ({newer})"
    if row.ipex and not row.oneccl_builds:
        text += ", over gloo"
    best = next(((other, problem) for other, problem in tried if other.oneccl), None)
    if constraints.is_default and not row.ipex and best is not None:
        other, problem = best
        text += f"; not {other.name}, the newest with oneCCL: {problem.brief or problem.reason}"
    if otherwise:
        text += "; over gloo if no index has its bindings"
    return text


def _first_newer(chosen: StackSpec, tried: Sequence[tuple[StackSpec, Incompatibility]]) -> str:
    """The first better row that was not taken, with the reason."""
    for row, problem in tried:
        is_alike = bool(row.oneccl_builds) == bool(chosen.oneccl_builds)
        if row.name != chosen.name and is_alike and (row.oneccl or not row.oneccl_builds):
            return f"{row.name}: {problem.reason}"
    return ""


def instead_of_what(
    row: StackSpec, tried: Sequence[tuple[StackSpec, Incompatibility]], constraints: Constraints, wheels: Availability
) -> Iterator[str]:
    """Sentences about the parts that the user does not get."""
    if row.oneccl_builds or not row.ipex:
        return
    missed = [(other, problem) for other, problem in tried if other.oneccl_builds]
    own = next((problem for other, problem in missed if other.name == row.name), None)
    best = next(((other, problem) for other, problem in missed if other.oneccl and not problem.hosts), None)
    if own and (constraints.named or own.hosts):
        yield f"gloo instead of oneCCL: {own.reason}"
    elif best and wheels.queried and not wheels.of("oneccl-bind-pt"):
        nowhere = not_available(wheels, "oneccl_bind_pt")
        yield f"gloo instead of oneCCL: {nowhere}; the newest stack with it is {best[0].name}"
    elif best:
        yield f"gloo instead of oneCCL: {best[0].name}: {best[1].reason}"
    elif missed:
        newest = next((each for each in missed if each[0].oneccl), missed[0])
        yield f"gloo instead of oneCCL: {newest[0].name}: {newest[1].reason}"


def retired(row: StackSpec, maintained: StackSpec | None, why_not: str) -> Iterator[str]:
    """The note of every row with IPEX."""
    if not (row.ipex and row.retired):
        return
    if maintained is not None:
        yield f"{_RETIRED}; `--stack torch` installs the maintained {maintained.name}"
    else:
        yield f"{_RETIRED}; no maintained stack fits: {why_not}"


def withdrawn(pick: Pick) -> Iterator[str]:
    """Notes on yanked wheels, which can be installed only by their exact version."""
    for project, candidate in pick.wheels.items():
        if candidate.yanked:
            yield _yanked(f"{_NAMES[project]} {candidate.version}", candidate.source)
    if not pick.wheels and pick.ipex and pick.ipex.pypi == "yanked":
        yield _yanked(f"IPEX {pick.ipex.version}", "PyPI")


def made_by_hand(row: StackSpec, pick: Pick) -> Iterator[str]:
    """A note on bindings that were never published for CPUs."""
    candidate = pick.wheels.get("oneccl-bind-pt")
    if candidate and pick.oneccl and pick.oneccl.cpu_wheel == "none":
        needs = "and needs the oneCCL and Intel MPI that it was built with"
        yield (
            f"oneccl_bind_pt {candidate.version} was never published for CPUs with torch {row.line}: this build is "
            f"from {candidate.source} {f'with Intel MPI {pick.bundled_mpi} inside' if pick.bundled_mpi else needs}"
        )


def _yanked(what: str, source: str) -> str:
    return f"{what} is yanked on {source}; it can still be installed by its exact version"


def known_bad(row: StackSpec, pick: Pick) -> Iterator[str]:
    have = {
        "torch": pick.torch,
        "ipex": pick.ipex.version if pick.ipex else None,
        "oneccl": pick.oneccl.version if pick.oneccl else None,
    }
    for bad in row.known_bad:
        meant = {"torch": bad.torch, "ipex": bad.ipex, "oneccl": bad.oneccl}
        if any(meant.values()) and all(have[part] == version for part, version in meant.items() if version):
            yield f"known problem: {bad.what} ({bad.symptom}); better: {bad.instead}"


def no_mpi(requirements: Sequence[str], hosts: Mapping[str, Facts], wheels: Availability) -> str:
    wanted = " or ".join(requirements)
    without = [name for name, facts in hosts.items() if not any(mpi.version for mpi in facts.software.mpis)]
    text = f"without Intel MPI: {not_available(wheels, 'a wheel of ' + wanted)}"
    if hosts and not without:
        return f"{text}; the mpirun of the hosts is used"
    instead = "use an MPI of the cluster with --setup FILE or --mpi PATH"
    return f"{text}; add the wheel of impi_rt to the others, or {instead}"


_WITHOUT = {"intel-openmp": ", often a little slower", "numpy": ", but tensors cannot become arrays"}


def left_out(row: StackSpec, requirements: Sequence[str], wheels: Availability) -> Iterator[str]:
    for requirement in requirements:
        project = split_requirement(requirement)[0]
        what = _NAMES.get(project, project)
        missing = not_available(wheels, requirement)
        yield f"without {what}: {missing}; {row.title} runs without it{_WITHOUT.get(project, '')}"


def not_available(wheels: Availability, what: str) -> str:
    """`no index has X (queried: PyPI; no answer from Intel's index)`."""
    queried = [f"queried: {join_names(wheels.answered, 3)}"] if wheels.answered else []
    if failures := [failure.source for failure in wheels.failures]:
        queried.append(f"no answer from {join_names(failures, 3)}")
    return f"no index in reach has {what}" + (f" ({'; '.join(queried)})" if queried else "")


def missing_wheels(row: StackSpec, targets: Sequence[Target], wheels: Availability) -> Incompatibility:
    """The reason why a row that fits all hosts is not available."""
    if not wheels.queried:
        if row.oneccl_builds and all(build.cpu_wheel != "published" for build in row.oneccl_builds):
            return Incompatibility(f"oneCCL bindings for CPUs were never published for torch {row.line}")
        return Incompatibility(f"no versions of the parts of {row.title} work together on these hosts")
    absent: list[str] = []
    other_builds: dict[str, tuple[str, ...]] = {}
    for project, versions in _parts(row).items():
        if any(wheels.build(project, version, target) for version in versions for target in targets):
            continue
        has = {version.partition("+")[0] for version in wheels.versions(project)}
        available = [version for version in versions if version in has]
        if available:
            other_builds[f"{_NAMES[project]} {available[0]}"] = wheels.pythons(project, available[0])
        else:
            absent.append(f"{_NAMES[project]} {versions[0]}" if has else _NAMES[project])
    reasons = [not_available(wheels, " and ".join(absent))] if absent else []
    if other_builds:
        pythons = join_names([target.python for target in targets])
        subject = f"{' and '.join(other_builds)} {'is' if len(other_builds) == 1 else 'are'} available, but not"
        built_for = next(iter(other_builds.values()))
        reasons.append(
            f"{subject} as a CPU wheel for Python {pythons} and glibc {targets[0].glibc}"
            + _other_wheels(built_for, targets)
        )
    if row.oneccl_builds and not row.oneccl:
        reasons.append(f"oneCCL bindings for CPUs were never published for torch {row.line}")
    if not reasons:
        reasons = [f"the available parts of {row.title} do not work together"]
    nowhere = [f"no index in reach has {' and '.join(absent)}"] if absent else []
    return Incompatibility(
        "; ".join(reasons),
        (),
        "name a directory or an index that has it: --wheelhouse DIR, --index-url URL",
        brief="; ".join([*nowhere, *reasons[1:]]) if absent else "",
    )


def _other_wheels(built_for: Sequence[str], targets: Sequence[Target]) -> str:
    """The wheels that there are: of another Python, or of the same with a newer glibc or with CUDA."""
    if not built_for:
        return ""
    if {target.python for target in targets} <= set(built_for):
        return f" (its wheels of Python {', '.join(built_for)} need a newer glibc, or are builds with CUDA)"
    return f" (there are those of Python {', '.join(built_for)})"


def _parts(row: StackSpec) -> dict[str, list[str]]:
    parts = {"torch": list(row.patches)}
    if row.ipex_builds:
        parts["intel-extension-for-pytorch"] = [build.version for build in row.ipex_builds]
    if row.oneccl_builds:
        parts["oneccl-bind-pt"] = [build.version for build in row.oneccl_builds]
    return parts


def simplest_refusal(
    tried: Sequence[tuple[StackSpec, Incompatibility]],
    host_groups: Mapping[HostProfile, tuple[str, ...]],
    wheels: Availability,
) -> tuple[StackSpec, Incompatibility]:
    """The most useful reason: of an available row without bindings, against the fewest hosts."""
    floor = min((row.glibc for row, _ in tried), key=version_key)
    old = {
        kind.glibc: names
        for kind, names in host_groups.items()
        if kind.glibc and version_key(kind.glibc) < version_key(floor)
    }
    if old and len({row.name for row, _ in tried}) > 1:
        version, names = next(iter(old.items()))
        has = "has" if len(names) == 1 else "have"
        reason = f"{join_names(names)} {has} glibc {version}; every stack needs {floor} or newer"
        return tried[0][0], Incompatibility(reason, names)
    good = [(row, problem) for row, problem in tried if not row.oneccl_builds]
    good = good or [(row, problem) for row, problem in tried if row.oneccl] or list(tried)
    if wheels.queried:
        at_hand = [
            (row, problem)
            for row, problem in good
            if {version.partition("+")[0] for version in wheels.versions("torch")} & set(row.torch_patches)
        ]
        good = at_hand or good
    return min(good, key=lambda item: len(item[1].hosts))


def refusal(
    problem: Incompatibility,
    row: StackSpec,
    *,
    fits: StackSpec | None,
    stock: StackSpec | None,
    gloo: StackSpec | None,
    constraints: Constraints,
    count: int,
    queried: bool,
) -> Refusal:
    """`node3 has glibc 2.17; IPEX 2.8 needs 2.28; newest that fits: 2.5`."""
    reason = problem.reason
    if fits is not None:
        can = "fits" if problem.hosts else "is available" if queried else "has them"
        reason += f"; newest that {can}: {fits.line}"
    fixes = [problem.fix] if problem.fix else []
    if fits is not None and problem.hosts:
        fixes.append(f"--stack {fits.name}")
    if gloo is not None:
        option = f"--oneccl {constraints.oneccl}" if constraints.oneccl else "--require-oneccl"
        fixes.append(f"remove {option} to get {gloo.name} with gloo")
    if stock is not None and row.ipex:
        same = stock.line == row.line
        fixes.append(f"--stack {stock.name}" if constraints.named and same else "--stack torch")
    if problem.hosts and len(problem.hosts) < count and len(problem.hosts) <= _MANY:
        without = ",".join(f"!{name}" for name in problem.hosts)
        fixes.append(f"leave {'it' if len(problem.hosts) == 1 else 'them'} out: --limit '{without}'")
    return Refusal(reason, ", or ".join(fixes), problem.hosts)

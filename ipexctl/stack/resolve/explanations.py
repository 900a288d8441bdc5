"""The resolver's sentences: why this row, what should be known of it, and why there is none. Pure.

Nothing is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.stack.catalog.table import version_key
from ipexctl.stack.lock.wheels import split_requirement
from ipexctl.stack.resolve.compatibility import Incompatibility, few
from ipexctl.stack.resolve.model import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.stack.catalog.table import StackSpec
    from ipexctl.stack.lock.wheels import Target, Wheels
    from ipexctl.stack.resolve.compatibility import HostProfile
    from ipexctl.stack.resolve.constraints import Constraints, Variant
    from ipexctl.stack.resolve.resolver import Pick

_NAMES = {
    "torch": "torch",
    "intel-extension-for-pytorch": "IPEX",
    "oneccl-bind-pt": "oneccl_bind_pt",
    "impi-rt": "Intel MPI (impi-rt)",
    "intel-openmp": "Intel's OpenMP library (intel-openmp)",
}
_MANY = 3
"""Hosts are named one by one up to here."""
_RETIRED = "IPEX is retired since March 2026 (no more fixes, known security issues)"


def why(
    chosen: Variant,
    tried: Sequence[tuple[Variant, Incompatibility]],
    constraints: Constraints,
    *,
    any_hosts: bool,
    otherwise: str | None,
) -> str:
    """One sentence: why this row."""
    row = chosen.row
    fits = " that fits every host" if any_hosts else ""
    if constraints.named:
        said = f"{row.title} was asked for"
    elif not row.ipex:
        said = f"the newest stock PyTorch{fits}"
        if constraints.kind != "torch":
            said = f"no row with IPEX fits; {said}"
    elif chosen.ccl:
        said = f"the newest row with IPEX and oneCCL bindings{fits}"
    else:
        said = f"the newest row with IPEX{fits}"
    if newer := _first_newer(chosen, tried):
        said += f" ({newer})"
    if row.ipex and not chosen.ccl:
        said += ", with gloo"
    if otherwise:
        instead = f"{otherwise} with gloo" if otherwise != row.name else "the same with gloo"
        said += f"; where nobody has its bindings' wheels, it is {instead}"
    return said


def _first_newer(chosen: Variant, tried: Sequence[tuple[Variant, Incompatibility]]) -> str:
    """The first row that was passed over for a reason of the hosts' or of the indexes'."""
    for variant, misfit in tried:
        published = variant.row.oneccl or not variant.ccl
        if variant.row.name != chosen.row.name and variant.ccl == chosen.ccl and published:
            return f"{variant.row.name}: {misfit.reason}"
    return ""


def instead_of_what(
    chosen: Variant, tried: Sequence[tuple[Variant, Incompatibility]], constraints: Constraints, wheels: Wheels
) -> Iterator[str]:
    """What the user doesn't get, said plainly."""
    row = chosen.row
    if chosen.ccl or constraints.kind == "torch" or (constraints.named and not row.ipex):
        return
    if row.ipex:
        missed = [(each, misfit) for each, misfit in tried if each.ccl]
        own = next((misfit for each, misfit in missed if each.row.name == row.name), None)
        best = next(((each, misfit) for each, misfit in missed if each.row.oneccl and not misfit.hosts), None)
        if own and (constraints.named or own.hosts):
            yield f"gloo instead of oneCCL: {own.reason}"
        elif best and wheels.asked and not wheels.has_any("oneccl-bind-pt"):
            nowhere = nobody(wheels, "oneccl_bind_pt")
            yield f"gloo instead of oneCCL: {nowhere}; the newest row with it is {best[0].row.name}"
        elif best:
            yield f"gloo instead of oneCCL: {best[0].row.name}: {best[1].reason}"
        elif missed:
            newest = next((each for each in missed if each[0].row.oneccl), missed[0])
            yield f"gloo instead of oneCCL: {newest[0].row.name}: {newest[1].reason}"
        return
    first = next(((each, misfit) for each, misfit in tried if each.row.ipex and not each.ccl), None)
    if first:
        yield f"stock PyTorch with gloo, without IPEX: {first[1].reason}" + (
            f": {first[1].fix}" if first[1].fix else ""
        )


def retired(row: StackSpec, maintained: StackSpec | None, why_not: str) -> Iterator[str]:
    """The one line every row with IPEX carries."""
    if not (row.ipex and row.retired):
        return
    if maintained is not None:
        yield f"{_RETIRED}; `--stack torch` installs the maintained {maintained.name}"
    else:
        yield f"{_RETIRED}; no maintained row fits: {why_not}"


def withdrawn(pick: Pick) -> Iterator[str]:
    """A yanked wheel is still there for whoever names its exact version."""
    for project, candidate in pick.wheels.items():
        if candidate.yanked:
            yield _yanked(f"{_NAMES[project]} {candidate.version}", candidate.source)
    if not pick.wheels and pick.ipex and pick.ipex.pypi == "yanked":
        yield _yanked(f"IPEX {pick.ipex.version}", "PyPI")


def made_by_hand(row: StackSpec, pick: Pick) -> Iterator[str]:
    """Bindings that nobody ever published for CPUs."""
    candidate = pick.wheels.get("oneccl-bind-pt")
    if candidate and pick.oneccl and pick.oneccl.cpu_wheel == "none":
        yield (
            f"oneccl_bind_pt {candidate.version} was never published for CPUs with torch {row.line}: this build is "
            f"{candidate.source}'s, and needs the oneCCL and Intel MPI it was built against"
        )


def _yanked(what: str, source: str) -> str:
    return f"{what} is withdrawn (yanked) on {source}; pip still takes it by its exact version"


def known_bad(row: StackSpec, pick: Pick) -> Iterator[str]:
    have = {
        "torch": pick.torch,
        "ipex": pick.ipex.version if pick.ipex else None,
        "oneccl": pick.oneccl.version if pick.oneccl else None,
    }
    for bad in row.known_bad:
        meant = {"torch": bad.torch, "ipex": bad.ipex, "oneccl": bad.oneccl}
        if any(meant.values()) and all(have[part] == version for part, version in meant.items() if version):
            yield f"known to go wrong: {bad.what} ({bad.symptom}); better: {bad.instead}"


def no_mpi(requirements: Sequence[str], hosts: Mapping[str, Facts], wheels: Wheels) -> str:
    wanted = " or ".join(requirements)
    without = [name for name, facts in hosts.items() if not any(mpi.version for mpi in facts.software.mpis)]
    said = f"without Intel MPI: {nobody(wheels, 'a wheel of ' + wanted)}"
    if hosts and not without:
        return f"{said}; the hosts' own mpirun is used"
    instead = "name an MPI of the cluster's with --setup FILE or --mpi PATH"
    return f"{said}; put impi_rt's wheel where the others are, or {instead}"


_WITHOUT = {"intel-openmp": ", often a little slower", "numpy": ", but no tensor becomes an array"}


def left_out(row: StackSpec, requirements: Sequence[str], wheels: Wheels) -> Iterator[str]:
    for requirement in requirements:
        project = split_requirement(requirement)[0]
        what = _NAMES.get(project, project)
        yield f"without {what}: {nobody(wheels, requirement)}; {row.title} runs without it{_WITHOUT.get(project, '')}"


def nobody(wheels: Wheels, what: str) -> str:
    """`nobody in reach has X (asked: PyPI; no answer from Intel's index)`."""
    asked = [f"asked: {few(wheels.sources, 3)}"] if wheels.sources else []
    if silent := wheels.silent:
        asked.append(f"no answer from {few(silent, 3)}")
    return f"nobody in reach has {what}" + (f" ({'; '.join(asked)})" if asked else "")


def missing_wheels(variant: Variant, targets: Sequence[Target], wheels: Wheels) -> Incompatibility:
    """All hosts could run this row, and something of it can't be had."""
    row = variant.row
    if not wheels.asked:
        if variant.ccl and all(build.cpu_wheel != "published" for build in row.oneccl_builds):
            return Incompatibility(f"oneCCL bindings for CPUs were never published for torch {row.line}")
        return Incompatibility(f"no versions of {row.title}'s parts go together on these hosts")
    absent: list[str] = []
    wrong: dict[str, tuple[str, ...]] = {}
    for project, versions in _parts(variant).items():
        if any(wheels.build(project, version, target) for version in versions for target in targets):
            continue
        has = {version.partition("+")[0] for version in wheels.versions(project)}
        at_hand = [version for version in versions if version in has]
        if at_hand:
            wrong[f"{_NAMES[project]} {at_hand[0]}"] = wheels.pythons(project, at_hand[0])
        else:
            absent.append(f"{_NAMES[project]} {versions[0]}" if has else _NAMES[project])
    reasons = [nobody(wheels, " and ".join(absent))] if absent else []
    if wrong:
        pythons = few([target.python for target in targets])
        there = f"{' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} there, but not"
        built_for = next(iter(wrong.values()))
        reasons.append(
            f"{there} as a CPU wheel for Python {pythons} and glibc {targets[0].glibc}"
            + (f" (there are those of Python {', '.join(built_for)})" if built_for else "")
        )
    if variant.ccl and not row.oneccl:
        reasons.append(f"oneCCL bindings for CPUs were never published for torch {row.line}")
    if not reasons:
        reasons = [f"what can be had of {row.title}'s parts doesn't go together"]
    return Incompatibility("; ".join(reasons), (), "--wheelhouse DIR or --index-url URL names somebody who has it")


def _parts(variant: Variant) -> dict[str, list[str]]:
    row = variant.row
    others = sorted((patch for patch in row.torch_patches if patch != row.torch), key=version_key, reverse=True)
    parts = {"torch": [row.torch, *others]}
    if row.ipex_builds:
        parts["intel-extension-for-pytorch"] = [build.version for build in row.ipex_builds]
    if variant.ccl:
        parts["oneccl-bind-pt"] = [build.version for build in row.oneccl_builds]
    return parts


def plainest(
    tried: Sequence[tuple[Variant, Incompatibility]], kinds: Mapping[HostProfile, tuple[str, ...]], wheels: Wheels
) -> tuple[Variant, Incompatibility]:
    """The reason that says most: of the least demanding variant, against the fewest hosts, what can be had first."""
    floor = min((variant.row.glibc for variant, _ in tried), key=version_key)
    old = {
        kind.glibc: names
        for kind, names in kinds.items()
        if kind.glibc and version_key(kind.glibc) < version_key(floor)
    }
    if old and len({variant.row.name for variant, _ in tried}) > 1:
        version, names = next(iter(old.items()))
        has = "has" if len(names) == 1 else "have"
        reason = f"{few(names)} {has} glibc {version}; every row needs {floor} or newer"
        return tried[0][0], Incompatibility(reason, names)
    good = [(each, misfit) for each, misfit in tried if not each.ccl]
    good = good or [(each, misfit) for each, misfit in tried if each.row.oneccl] or list(tried)
    if wheels.asked:
        at_hand = [
            (each, misfit)
            for each, misfit in good
            if {version.partition("+")[0] for version in wheels.versions("torch")} & set(each.row.torch_patches)
        ]
        good = at_hand or good
    return min(good, key=lambda item: len(item[1].hosts))


def refusal(
    misfit: Incompatibility,
    variant: Variant,
    *,
    fits: StackSpec | None,
    stock: StackSpec | None,
    gloo: StackSpec | None,
    constraints: Constraints,
    count: int,
    asked: bool,
) -> Refusal:
    """`node3 has glibc 2.17; IPEX 2.8 needs 2.28; newest that fits: 2.5`."""
    reason = misfit.reason
    if fits is not None:
        can = "fits" if misfit.hosts else "can be had" if asked else "has them"
        reason += f"; newest that {can}: {fits.line}"
    fixes = [misfit.fix] if misfit.fix else []
    if fits is not None and misfit.hosts:
        fixes.append(f"--stack {fits.name}")
    if gloo is not None:
        fixes.append(f"leave out --require-oneccl for {gloo.name} with gloo")
    if stock is not None and variant.row.ipex:
        same = stock.line == variant.row.line
        fixes.append(f"--stack {stock.name}" if constraints.named and same else "--stack torch")
    if misfit.hosts and len(misfit.hosts) < count and len(misfit.hosts) <= _MANY:
        without = ",".join(f"!{name}" for name in misfit.hosts)
        fixes.append(f"leave {'it' if len(misfit.hosts) == 1 else 'them'} out: --limit '{without}'")
    return Refusal(reason, ", or ".join(fixes), misfit.hosts)

"""Choose the candidate rows of a request, in the order in which the resolver tries them. Pure.

A request without a stack gets the newest PyTorch, without IPEX. A request for IPEX gets a row with oneCCL first, then
one over gloo. A request that names versions or a row is never widened. It is a wrong call (exit code 2) only if it
names a stack or version that the table does not have, or a Python with three numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final, Literal

from packaging.specifiers import SpecifierSet

from ipexctl.stack.catalog import IpexBuild, OnecclBuild, StackSpec, minor, version_key
from ipexctl.stack.resolve import reasons
from ipexctl.stack.resolve.compatibility import OLDEST_PYTHON
from ipexctl.stack.resolve.model import StackRequest
from ipexctl.stack.resolve.reasons import Reason, because

StackKind = Literal["any", "ipex", "torch"]
STACK_KINDS: Final = ("ipex", "torch")


@dataclass(frozen=True, slots=True)
class Constraints:
    """Candidate rows, best first, and their limits. A row without its bindings runs over gloo."""

    rows: tuple[StackSpec, ...]
    kind: StackKind
    named: bool
    python: str | None
    require_oneccl: bool
    oneccl: str | None = None


def read_constraints(request: StackRequest, table: Sequence[StackSpec]) -> Constraints | Reason:
    """Return the candidate rows of a request with their limits, or why no row of the table fulfils it, whatever the
    hosts have."""
    try:
        return _ConstraintReader(request, tuple(table)).constraints()
    except _Refused as refused:
        return refused.reason


def stacks(table: Iterable[StackSpec]) -> dict[str, StackSpec]:
    """Return all stacks by name: the rows, and the torch-only stack of each IPEX row."""
    rows = tuple(table)
    named = {row.name: row for row in rows}
    for row in rows:
        named.setdefault(row.stock().name, row.stock())
    return named


class _Refused(Exception):
    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _ConstraintReader:
    request: StackRequest
    table: tuple[StackSpec, ...]

    def constraints(self) -> Constraints:
        """Return the candidates. Raises a _Refused if no row of the table fulfils the request."""
        request, table = self.request, self.table
        self._check_stack()
        self._check_torch()
        _check_version("IPEX", request.ipex, [build.version for row in table for build in row.ipex_builds])
        _check_version("oneccl_bind_pt", request.oneccl, [b.version for row in table for b in row.oneccl_builds])
        self._check_python()
        chosen = table if request.stack is None or request.stack in STACK_KINDS else (stacks(table)[request.stack],)
        for narrow in (self._narrow_torch, self._narrow_ipex, self._narrow_oneccl, self._narrow_kind):
            chosen = narrow(chosen)
        kind: StackKind = "any" if request.stack is None else "torch" if not any(row.ipex for row in chosen) else "ipex"
        named = bool(
            (request.torch and not is_range(request.torch))
            or request.ipex
            or request.oneccl
            or (request.stack and request.stack not in STACK_KINDS)
        )
        must = request.require_oneccl or request.oneccl is not None
        rows = _ordered(chosen, must=must, named=named, kind=kind)
        if not rows:
            having = [row for row in table if row.oneccl]
            last = next((row for row in having if row.line == chosen[0].line), having[0] if having else None)
            with_bindings = last.name if last else None
            raise _Refused(because(reasons.no_bindings, title=chosen[0].title, with_bindings=with_bindings))
        if request.python is not None and not any(request.python in row.pythons for row in rows):
            row = next((row for row in rows if not row.oneccl_builds), rows[0])
            pythons, python = row.pythons, request.python
            raise _Refused(because(reasons.built_for_other_pythons, part=row.title, pythons=pythons, requested=python))
        return Constraints(rows, kind, named, request.python, must, request.oneccl)

    def _check_stack(self) -> None:
        """Refuse a stack that the table does not have."""
        stack, known = self.request.stack, [*STACK_KINDS, *stacks(self.table)]
        if stack is not None and stack not in known:
            near = tuple(get_close_matches(stack.lower(), known, n=2))
            oldest = self.table[-1].name
            raise _Refused(because(reasons.unknown_stack, requested=stack, near=near, oldest=known[2], newest=oldest))

    def _check_torch(self) -> None:
        """Refuse a torch that the table does not have."""
        if self.request.torch is None:
            return
        requested = _public(self.request.torch)
        lines = {row.line for row in self.table}
        patches = {patch for row in self.table for patch in row.torch_patches}
        if is_range(requested):
            if any(SpecifierSet(requested).filter(patches)):
                return
            raise _unknown("torch", requested, tuple(dict.fromkeys(row.line for row in reversed(self.table))), ())
        if requested in lines or requested in patches:
            return
        if (line := minor(requested)) in lines:
            of_line = _oldest_first(patch for patch in patches if minor(patch) == line)
            raise _Refused(because(reasons.unknown_patch, requested=self.request.torch, line=line, known=of_line))
        known = tuple(dict.fromkeys(row.line for row in reversed(self.table)))
        oldest, newest = _weight(known[0]), _weight(known[-1])
        is_typo = not re.fullmatch(r"\d+(\.\d+)+", requested) or oldest <= _weight(requested) <= newest
        raise _unknown("torch", self.request.torch, known, _near(requested, lines) if is_typo else ())

    def _check_python(self) -> None:
        """Refuse a Python that no row has, or that is too old for ipexctl."""
        python = self.request.python
        if python is None:
            return
        known = _oldest_first({python for row in self.table for python in row.torch_pythons})
        if python in known:
            if version_key(python) < version_key(OLDEST_PYTHON):
                raise _Refused(because(reasons.python_too_old, python=python, oldest=OLDEST_PYTHON))
            return
        if re.fullmatch(r"\d+\.\d+\.\d+\S*", python) and minor(python) in known:
            raise _Refused(because(reasons.python_with_patch, requested=python, near=(minor(python),)))
        raise _unknown("Python", python, known, _near(python, known))

    def _narrow_torch(self, rows: tuple[StackSpec, ...]) -> tuple[StackSpec, ...]:
        """Return the rows that have the requested torch."""
        if self.request.torch is None:
            return rows
        requested = _public(self.request.torch)
        narrowed = rows_with_torch(requested, rows)
        if narrowed:
            return narrowed
        matching = next((row.name for row in rows_with_torch(requested, self.table)), None)
        matching = matching or next((row.name for row in self.table if row.line == minor(requested)), None)
        stack, line = rows[0].name, rows[0].line
        raise _Refused(
            because(reasons.stack_has_other_torch, stack=stack, line=line, requested=requested, matching=matching)
        )

    def _narrow_ipex(self, rows: tuple[StackSpec, ...]) -> tuple[StackSpec, ...]:
        """Return the rows that have the requested IPEX, with only its builds."""
        ipex, stack = self.request.ipex, self.request.stack
        if ipex is None:
            return rows
        narrowed = []
        for row in rows:
            good = tuple(b for b in row.ipex_builds if _is(ipex, b.version) and _works(b, row))
            if good:
                narrowed.append(replace(row, ipex_builds=good))
        if narrowed and stack != "torch":
            return tuple(narrowed)
        home = next(row for row in self.table if any(_is(ipex, build.version) for build in row.ipex_builds))
        if stack is not None and stack in ("torch", rows[0].name) and not rows[0].ipex_builds:
            raise _Refused(because(reasons.stack_lacks, stack=stack, what="IPEX", matching=home.name))
        fitting = next((row.ipex for row in rows if row.ipex), None)
        raise _Refused(
            because(
                reasons.part_for_other_torch,
                part="IPEX",
                version=ipex,
                torch=self.request.torch or rows[0].line,
                works_with=home.line,
                fitting=fitting,
            )
        )

    def _narrow_oneccl(self, rows: tuple[StackSpec, ...]) -> tuple[StackSpec, ...]:
        """Return the rows that have the requested bindings, with only these."""
        if self.request.oneccl is None:
            return rows
        if self.request.stack != "torch":
            narrowed = [_with_bindings(row, self.request.oneccl) for row in rows]
            if good := tuple(row for row in narrowed if row is not None):
                return good
        raise _Refused(self._explain_oneccl(self.request.oneccl, rows))

    def _explain_oneccl(self, oneccl: str, rows: tuple[StackSpec, ...]) -> Reason:
        """Return why the requested bindings are not in any of these rows."""
        stack = self.request.stack
        home = next(row for row in self.table if any(_is(oneccl, build.version) for build in row.oneccl_builds))
        if stack == "torch" or (stack is not None and not any(row.oneccl_builds for row in rows)):
            return because(reasons.stack_lacks, stack=stack, what="oneCCL bindings", matching=home.name)
        works_with = next(build.works_with[0] for build in home.oneccl_builds if _is(oneccl, build.version))
        fitting = next((build for row in rows for build in row.oneccl_builds if _works(build, row)), None)
        return because(
            reasons.part_for_other_torch,
            part="oneccl_bind_pt",
            version=oneccl,
            torch=self.request.torch or rows[0].torch,
            works_with=works_with,
            fitting=fitting.version if fitting and fitting.cpu_wheel == "published" else None,
        )

    def _narrow_kind(self, rows: tuple[StackSpec, ...]) -> tuple[StackSpec, ...]:
        """Return the rows of the requested kind; for `torch`, each row without IPEX."""
        if self.request.stack == "torch":
            return tuple(row.stock() for row in rows)
        if self.request.stack != "ipex":
            return rows
        with_ipex = tuple(row for row in rows if row.ipex)
        if with_ipex:
            return with_ipex
        last = next((row.line for row in self.table if row.ipex), None)
        torch, stack = str(self.request.torch), rows[0].name
        raise _Refused(because(reasons.no_ipex_for_torch, torch=torch, last_line=last, stack=stack))


def is_range(torch: str) -> bool:
    """True for a range, as in `>=2.9`."""
    return torch.startswith(("<", ">", "=", "!", "~"))


def rows_with_torch(requested: str, rows: Iterable[StackSpec]) -> tuple[StackSpec, ...]:
    """Return the rows that have the requested torch; empty if none has.

    For a patch version (`2.8.0`) or a range (`>=2.7`), each row keeps only the matching patches, and recommends one of
    them. For a minor version (`2.8`), its row stays as it is.
    """
    matching = []
    for row in rows:
        patches = tuple(SpecifierSet(requested).filter(row.torch_patches)) if is_range(requested) else ()
        if requested in row.torch_patches:
            matching.append(replace(row, torch=requested, torch_patches=(requested,)))
        elif patches:
            torch = row.torch if row.torch in patches else patches[-1]
            matching.append(replace(row, torch=torch, torch_patches=patches))
        elif requested == row.line:
            matching.append(row)
    return tuple(matching)


def _with_bindings(row: StackSpec, oneccl: str) -> StackSpec | None:
    """Return the row with only these bindings and the torch patches that work with them; None if it has no such
    bindings, or no IPEX."""
    builds = tuple(build for build in row.oneccl_builds if _is(oneccl, build.version) and _works(build, row))
    if not builds or not row.ipex:
        return None
    patches = tuple(patch for patch in row.torch_patches if any(patch in build.works_with for build in builds))
    torch = row.torch if row.torch in patches else patches[-1]
    return replace(row, oneccl_builds=builds, torch=torch, torch_patches=patches)


def _works(build: IpexBuild | OnecclBuild, row: StackSpec) -> bool:
    return bool(set(build.works_with) & set(row.torch_patches))


def _ordered(rows: Sequence[StackSpec], *, must: bool, named: bool, kind: StackKind) -> tuple[StackSpec, ...]:
    """Return the candidates in the order in which they are tried: with oneCCL, over gloo, without IPEX. A request that
    names nothing gets only rows without IPEX. `must`: only those with oneCCL."""
    ccl = [row for row in rows if row.ipex and row.oneccl_builds]
    if must:
        return tuple(ccl)
    if kind == "any" and not named:
        return tuple(row.stock() for row in rows)
    gloo = [row.without_oneccl() for row in rows if row.ipex]
    stock = [row for row in rows if not row.ipex]
    return (*ccl, *gloo, *(stock if kind == "any" or not gloo else ()))


def _check_version(part: str, requested: str | None, known: Sequence[str]) -> None:
    if requested is None or any(_is(requested, version) for version in known):
        return
    ordered = _oldest_first(set(known))
    raise _unknown(part, requested, ordered, _near(_public(requested), ordered))


def _unknown(part: str, requested: str, known: tuple[str, ...], near: tuple[str, ...]) -> _Refused:
    return _Refused(because(reasons.unknown_version, part=part, requested=requested, near=near, known=known))


def _is(requested: str, version: str) -> bool:
    wanted = _public(requested)
    return wanted == version or (wanted.count(".") == 1 and minor(version) == wanted)


def _public(version: str) -> str:
    return version.strip().removesuffix("+cpu")


def _oldest_first(versions: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(versions, key=version_key))


def _near(requested: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the version nearest to a requested one; for another text, names with a similar spelling."""
    ordered = sorted(known, key=version_key, reverse=True)
    if re.fullmatch(r"\d+(\.\d+)+", requested) and ordered:
        wanted = _weight(requested)
        return (min(ordered, key=lambda version: abs(_weight(version) - wanted)),)
    return tuple(get_close_matches(requested, ordered, n=2, cutoff=0.6))


def _weight(version: str) -> int:
    major, second, third, *_ = (*version_key(version), 0, 0, 0)
    return (major * 1000 + min(second, 999)) * 1000 + min(third, 999)

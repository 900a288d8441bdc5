"""The candidate rows of a request, in order, or a refusal. Pure.

A version that the table does not have is a wrong call (exit code 2); versions that exclude each other are a refusal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal

from ipexctl.stack.catalog.table import IpexBuild, OnecclBuild, StackSpec, minor, version_key
from ipexctl.stack.resolve.compatibility import OLDEST_PYTHON, span
from ipexctl.stack.resolve.model import Refusal, StackRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


Kind = Literal["any", "ipex", "torch"]
KINDS: Final = ("ipex", "torch")
_CLIP: Final = 40


@dataclass(frozen=True, slots=True)
class Variant:
    """A row with its bindings or without."""

    row: StackSpec
    ccl: bool


@dataclass(frozen=True, slots=True)
class Constraints:
    """The candidate rows and their limits."""

    variants: tuple[Variant, ...]
    kind: Kind
    named: bool
    """Whether the request names a row, not only a kind."""
    python: str | None
    require_oneccl: bool
    oneccl: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether the request leaves open what kind of stack it is."""
        return self.kind == "any" and not self.named and not self.require_oneccl


def read_constraints(request: StackRequest, table: Sequence[StackSpec]) -> Constraints | Refusal:
    """Read the constraints of a request, or the refusal that needs no host."""
    checks = (
        _check_stack(request, table),
        _check_torch(request, table),
        _check_version("IPEX", request.ipex, [build.version for row in table for build in row.ipex_builds]),
        _check_version("oneccl_bind_pt", request.oneccl, [b.version for row in table for b in row.oneccl_builds]),
        _check_python(request, table),
    )
    if problem := next(filter(None, checks), None):
        return problem
    is_any = request.stack is None or request.stack in KINDS
    chosen = tuple(table) if request.stack is None or is_any else (stacks(table)[request.stack],)
    for narrow in (_narrow_torch, _narrow_ipex, _narrow_oneccl, _narrow_kind):
        narrowed = narrow(request, chosen, table)
        if isinstance(narrowed, Refusal):
            return narrowed
        chosen = narrowed
    kind: Kind = "any" if request.stack is None else "torch" if not any(row.ipex for row in chosen) else "ipex"
    named = bool(request.torch or request.ipex or request.oneccl or (request.stack and request.stack not in KINDS))
    must = request.require_oneccl or request.oneccl is not None
    variants = _ordered(chosen, must=must, named=named, kind=kind)
    if not variants:
        return _no_oneccl(chosen, table)
    constraints = Constraints(variants, kind, named, request.python, must, request.oneccl)
    return _check_python_fits(constraints) or constraints


def stacks(table: Iterable[StackSpec]) -> dict[str, StackSpec]:
    """All stack names: the rows, and the torch of each IPEX row alone."""
    rows = tuple(table)
    named = {row.name: row for row in rows}
    for row in rows:
        named.setdefault(row.stock().name, row.stock())
    return named


def _ordered(rows: Sequence[StackSpec], *, must: bool, named: bool, kind: Kind) -> tuple[Variant, ...]:
    """IPEX with oneCCL, then maintained PyTorch, then IPEX over gloo, then the rest, each newest first."""
    ccl = [Variant(row, True) for row in rows if row.ipex and row.oneccl_builds]
    if must:
        return tuple(ccl)
    gloo = [Variant(row.without_oneccl(), False) for row in rows if row.ipex]
    stock = [Variant(row, False) for row in rows if not row.ipex]
    if kind == "torch" or (named and not gloo):
        return tuple(Variant(row, False) for row in rows)
    if named or kind == "ipex":
        return (*ccl, *gloo, *(stock if kind == "any" else ()))
    maintained = [variant for variant in stock if not variant.row.retired]
    old = [variant for variant in stock if variant.row.retired]
    alone = [Variant(row.stock(), False) for row in rows if row.ipex]
    return (*ccl, *maintained, *gloo, *old, *alone)


def _check_stack(request: StackRequest, table: Sequence[StackSpec]) -> Refusal | None:
    known = [*KINDS, *stacks(table)]
    if request.stack is None or request.stack in known:
        return None
    reason = f"there is no stack called {_shown(request.stack)}"
    near = get_close_matches(request.stack.lower(), known, n=2)
    return _unknown(reason, near, f"`ipexctl versions` lists them: {known[2]} to {table[-1].name}, ipex, torch")


def _check_torch(request: StackRequest, table: Sequence[StackSpec]) -> Refusal | None:
    if request.torch is None:
        return None
    requested = _public(request.torch)
    lines = {row.line for row in table}
    patches = {patch for row in table for patch in row.torch_patches}
    if requested in lines or requested in patches:
        return None
    reason = f"the version table has no torch {_shown(request.torch)}"
    if minor(requested) in lines:
        have = sorted((patch for patch in patches if minor(patch) == minor(requested)), key=version_key)
        return _unknown(f"{reason}; of torch {minor(requested)} there is {', '.join(have)}", (), f"--torch {have[-1]}")
    return _unknown(reason, _near(requested, lines), f"it has {table[-1].line} to {table[0].line}: ipexctl versions")


def _check_version(what: str, requested: str | None, known: Sequence[str]) -> Refusal | None:
    if requested is None or any(_is(requested, version) for version in known):
        return None
    ordered = sorted(set(known), key=version_key)
    return _unknown(
        f"the version table has no {what} {_shown(requested)}",
        _near(_public(requested), ordered),
        f"it has {ordered[0]} to {ordered[-1]}: ipexctl versions" if ordered else "",
    )


def _check_python(request: StackRequest, table: Sequence[StackSpec]) -> Refusal | None:
    if request.python is None:
        return None
    known = sorted({python for row in table for python in row.torch_pythons}, key=version_key)
    if request.python in known:
        if version_key(request.python) >= version_key(OLDEST_PYTHON):
            return None
        return Refusal(
            f"Python {request.python} is too old: ipexctl needs {OLDEST_PYTHON} or newer on a host",
            f"use --python {OLDEST_PYTHON}, or remove it",
        )
    if re.fullmatch(r"\d+\.\d+\.\d+\S*", request.python) and minor(request.python) in known:
        return _unknown(
            f"--python takes the first two numbers of a version, not {_shown(request.python)}",
            [minor(request.python)],
            "",
        )
    return _unknown(
        f"no row of the version table is for Python {_shown(request.python)}",
        _near(request.python, known),
        f"there are {span(known)}",
    )


def _narrow_torch(
    request: StackRequest, rows: Sequence[StackSpec], table: Sequence[StackSpec]
) -> tuple[StackSpec, ...] | Refusal:
    if request.torch is None:
        return tuple(rows)
    requested = _public(request.torch)
    found = []
    for row in rows:
        if requested in row.torch_patches:
            found.append(replace(row, torch=requested, torch_patches=(requested,)))
        elif requested == row.line:
            found.append(row)
    if found:
        return tuple(found)
    name = rows[0].name
    other = next((row.name for row in table if row.line == minor(requested)), None)
    return Refusal(f"the stack {name} has torch {rows[0].line}, not {requested}", f"--stack {other}" if other else "")


def _narrow_ipex(
    request: StackRequest, rows: Sequence[StackSpec], table: Sequence[StackSpec]
) -> tuple[StackSpec, ...] | Refusal:
    if request.ipex is None:
        return tuple(rows)
    found = []
    for row in rows:
        good = tuple(b for b in row.ipex_builds if _is(request.ipex, b.version) and _works(b, row))
        if good:
            found.append(replace(row, ipex_builds=good))
    if found and request.stack != "torch":
        return tuple(found)
    home = next(row for row in table if any(_is(request.ipex, build.version) for build in row.ipex_builds))
    if request.stack is not None and request.stack in ("torch", rows[0].name) and not rows[0].ipex_builds:
        return Refusal(f"the stack {request.stack} is PyTorch without IPEX", f"--stack {home.name}")
    has, fits = request.torch or rows[0].line, next((row.ipex for row in rows if row.ipex), None)
    return Refusal(
        f"IPEX {request.ipex} does not work with torch {has}: it is built for torch {home.line}",
        f"--torch {home.line}" + (f", or --ipex {fits} for torch {has}" if fits else ""),
    )


def _narrow_oneccl(
    request: StackRequest, rows: Sequence[StackSpec], table: Sequence[StackSpec]
) -> tuple[StackSpec, ...] | Refusal:
    if request.oneccl is None:
        return tuple(rows)
    found = []
    for row in rows:
        good = tuple(b for b in row.oneccl_builds if _is(request.oneccl, b.version) and _works(b, row))
        if good and row.ipex:
            patches = tuple(p for p in row.torch_patches if any(p in build.works_with for build in good))
            torch = row.torch if row.torch in patches else patches[-1]
            found.append(replace(row, oneccl_builds=good, torch=torch, torch_patches=patches))
    if found and request.stack != "torch":
        return tuple(found)
    home = next(row for row in table if any(_is(request.oneccl, build.version) for build in row.oneccl_builds))
    if request.stack == "torch" or (request.stack is not None and not any(row.oneccl_builds for row in rows)):
        return Refusal(f"the stack {request.stack} has no oneCCL bindings", f"--stack {home.name}")
    reason = f"oneccl_bind_pt {request.oneccl} does not work with torch {request.torch or rows[0].torch}"
    fits = next(build.works_with[0] for build in home.oneccl_builds if _is(request.oneccl, build.version))
    fix = f"--torch {fits} with --oneccl {request.oneccl}"
    better = next((build for row in rows for build in row.oneccl_builds if _works(build, row)), None)
    if better and better.cpu_wheel == "published":
        return Refusal(f"{reason}; {better.version} does", f"--oneccl {better.version}, or {fix}")
    return Refusal(reason, fix)


def _works(build: IpexBuild | OnecclBuild, row: StackSpec) -> bool:
    return bool(set(build.works_with) & set(row.torch_patches))


def _narrow_kind(
    request: StackRequest, rows: Sequence[StackSpec], table: Sequence[StackSpec]
) -> tuple[StackSpec, ...] | Refusal:
    if request.stack == "torch":
        if request.require_oneccl:
            return Refusal(
                "stock PyTorch has no oneCCL bindings: --stack torch and --require-oneccl contradict each other",
                "remove one of them",
            )
        return tuple(row.stock() for row in rows)
    if request.stack != "ipex":
        return tuple(rows)
    found = tuple(row for row in rows if row.ipex)
    if found:
        return found
    last = next((row for row in table if row.ipex), None)
    ended = f"; the last IPEX is for torch {last.line}" if last else ""
    return Refusal(
        f"there is no IPEX for torch {request.torch}{ended}",
        f"--stack {rows[0].name}" + (f", or --torch {last.line}" if last else ""),
    )


def _no_oneccl(rows: Sequence[StackSpec], table: Sequence[StackSpec]) -> Refusal:
    having = [row for row in table if row.oneccl]
    last = next((row for row in having if row.line == rows[0].line), having[0] if having else None)
    return Refusal(
        f"there are no oneCCL bindings for {rows[0].title}",
        (f"--stack {last.name} has them; or " if last else "") + "remove --require-oneccl to use gloo",
    )


def _check_python_fits(constraints: Constraints) -> Refusal | None:
    if constraints.python is None or any(constraints.python in variant.row.pythons for variant in constraints.variants):
        return None
    row = next((variant.row for variant in constraints.variants if not variant.ccl), constraints.variants[0].row)
    return Refusal(
        f"{row.title} is built for Python {span(row.pythons)}, not for {constraints.python}",
        "remove --python, or choose another row: ipexctl versions --python " + constraints.python,
    )


def _is(requested: str, version: str) -> bool:
    """Whether a version matches; `2.7` matches every 2.7."""
    wanted = _public(requested)
    return wanted == version or (wanted.count(".") == 1 and minor(version) == wanted)


def _public(version: str) -> str:
    return version.strip().removesuffix("+cpu")


def _near(requested: str, known: Iterable[str]) -> list[str]:
    """The nearest version; for other texts those with a similar spelling."""
    ordered = sorted(known, key=version_key, reverse=True)
    if re.fullmatch(r"\d+(\.\d+)+", requested) and ordered:
        wanted = _weight(requested)
        return [min(ordered, key=lambda version: abs(_weight(version) - wanted))]
    return get_close_matches(requested, ordered, n=2, cutoff=0.6)


def _weight(version: str) -> int:
    """A number whose distance is the distance of versions."""
    major, second, third, *_ = (*version_key(version), 0, 0, 0)
    return (major * 1000 + min(second, 999)) * 1000 + min(third, 999)


def _unknown(reason: str, near: Sequence[str], else_: str) -> Refusal:
    guess = f"did you mean {' or '.join(near)}?" if near else ""
    return Refusal(reason, " ".join(part for part in (guess, else_) if part), wrong_call=True)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _CLIP else text[: _CLIP - 1] + "…")

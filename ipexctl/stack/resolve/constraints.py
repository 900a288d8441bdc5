"""The candidate rows of a request, in order, or a refusal. Pure.

A version that the table does not have is a wrong call (exit code 2); versions that exclude each other are a refusal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal

from ipexctl.hosts.names import quoted
from ipexctl.refusal import Refusal
from ipexctl.stack.catalog.table import IpexBuild, OnecclBuild, StackSpec, minor, version_key
from ipexctl.stack.resolve.compatibility import OLDEST_PYTHON, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ipexctl.stack.resolve.model import StackRequest


Kind = Literal["any", "ipex", "torch"]
KINDS: Final = ("ipex", "torch")


@dataclass(frozen=True, slots=True)
class Constraints:
    """The candidate rows, best first, and their limits; a row without its bindings is for gloo."""

    rows: tuple[StackSpec, ...]
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
    try:
        return _Reader(request, tuple(table)).read()
    except _Refused as refused:
        return refused.refusal


def stacks(table: Iterable[StackSpec]) -> dict[str, StackSpec]:
    """All stack names: the rows, and the torch of each IPEX row alone."""
    rows = tuple(table)
    named = {row.name: row for row in rows}
    for row in rows:
        named.setdefault(row.stock().name, row.stock())
    return named


class _Refused(Exception):
    """The request is refused."""

    def __init__(self, reason: str, fix: str, exit_code: int = 1) -> None:
        super().__init__(reason)
        self.refusal = Refusal(reason, fix, exit_code=exit_code)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Checks a request against the version table, and narrows the table to its rows. Raises _Refused."""

    request: StackRequest
    table: tuple[StackSpec, ...]

    def read(self) -> Constraints:
        request, table = self.request, self.table
        self._check_stack()
        self._check_torch()
        _check_version("IPEX", request.ipex, [build.version for row in table for build in row.ipex_builds])
        _check_version("oneccl_bind_pt", request.oneccl, [b.version for row in table for b in row.oneccl_builds])
        self._check_python()
        chosen = table if request.stack is None or request.stack in KINDS else (stacks(table)[request.stack],)
        for narrow in (self._narrow_torch, self._narrow_ipex, self._narrow_oneccl, self._narrow_kind):
            chosen = narrow(chosen)
        kind: Kind = "any" if request.stack is None else "torch" if not any(row.ipex for row in chosen) else "ipex"
        named = bool(request.torch or request.ipex or request.oneccl or (request.stack and request.stack not in KINDS))
        must = request.require_oneccl or request.oneccl is not None
        rows = _ordered(chosen, must=must, named=named, kind=kind)
        if not rows:
            having = [row for row in table if row.oneccl]
            last = next((row for row in having if row.line == chosen[0].line), having[0] if having else None)
            raise _Refused(
                f"there are no oneCCL bindings for {chosen[0].title}",
                (f"--stack {last.name} has them; or " if last else "") + "remove --require-oneccl to use gloo",
            )
        if request.python is not None and not any(request.python in row.pythons for row in rows):
            row = next((row for row in rows if not row.oneccl_builds), rows[0])
            raise _Refused(
                f"{row.title} is built for Python {span(row.pythons)}, not for {request.python}",
                "remove --python, or choose another row: ipexctl versions --python " + request.python,
            )
        return Constraints(rows, kind, named, request.python, must, request.oneccl)

    def _check_stack(self) -> None:
        stack, known = self.request.stack, [*KINDS, *stacks(self.table)]
        if stack is not None and stack not in known:
            near = get_close_matches(stack.lower(), known, n=2)
            there_are = f"`ipexctl versions` lists them: {known[2]} to {self.table[-1].name}, ipex, torch"
            raise _unknown(f"there is no stack called {quoted(stack)}", near, there_are)

    def _check_torch(self) -> None:
        if self.request.torch is None:
            return
        requested = _public(self.request.torch)
        lines = {row.line for row in self.table}
        patches = {patch for row in self.table for patch in row.torch_patches}
        if requested in lines or requested in patches:
            return
        reason = f"the version table has no torch {quoted(self.request.torch)}"
        if minor(requested) in lines:
            have = sorted((patch for patch in patches if minor(patch) == minor(requested)), key=version_key)
            reason += f"; of torch {minor(requested)} there is {', '.join(have)}"
            raise _unknown(reason, (), f"--torch {have[-1]}")
        there_are = f"it has {self.table[-1].line} to {self.table[0].line}: ipexctl versions"
        raise _unknown(reason, _near(requested, lines), there_are)

    def _check_python(self) -> None:
        python = self.request.python
        if python is None:
            return
        known = sorted({python for row in self.table for python in row.torch_pythons}, key=version_key)
        if python in known:
            if version_key(python) < version_key(OLDEST_PYTHON):
                raise _Refused(
                    f"Python {python} is too old: ipexctl needs {OLDEST_PYTHON} or newer on a host",
                    f"use --python {OLDEST_PYTHON}, or remove it",
                )
            return
        if re.fullmatch(r"\d+\.\d+\.\d+\S*", python) and minor(python) in known:
            reason = f"--python takes the first two numbers of a version, not {quoted(python)}"
            raise _unknown(reason, [minor(python)], "")
        reason = f"no row of the version table is for Python {quoted(python)}"
        raise _unknown(reason, _near(python, known), f"there are {span(known)}")

    def _narrow_torch(self, rows: tuple[StackSpec, ...]) -> tuple[StackSpec, ...]:
        if self.request.torch is None:
            return rows
        requested = _public(self.request.torch)
        found = []
        for row in rows:
            if requested in row.torch_patches:
                found.append(replace(row, torch=requested, torch_patches=(requested,)))
            elif requested == row.line:
                found.append(row)
        if found:
            return tuple(found)
        other = next((row.name for row in self.table if row.line == minor(requested)), None)
        reason = f"the stack {rows[0].name} has torch {rows[0].line}, not {requested}"
        raise _Refused(reason, f"--stack {other}" if other else "")

    def _narrow_ipex(self, rows: tuple[StackSpec, ...]) -> tuple[StackSpec, ...]:
        ipex, stack = self.request.ipex, self.request.stack
        if ipex is None:
            return rows
        found = []
        for row in rows:
            good = tuple(b for b in row.ipex_builds if _is(ipex, b.version) and _works(b, row))
            if good:
                found.append(replace(row, ipex_builds=good))
        if found and stack != "torch":
            return tuple(found)
        home = next(row for row in self.table if any(_is(ipex, build.version) for build in row.ipex_builds))
        if stack is not None and stack in ("torch", rows[0].name) and not rows[0].ipex_builds:
            raise _Refused(f"the stack {stack} is PyTorch without IPEX", f"--stack {home.name}")
        has, fits = self.request.torch or rows[0].line, next((row.ipex for row in rows if row.ipex), None)
        raise _Refused(
            f"IPEX {ipex} does not work with torch {has}: it is built for torch {home.line}",
            f"--torch {home.line}" + (f", or --ipex {fits} for torch {has}" if fits else ""),
        )

    def _narrow_oneccl(self, rows: tuple[StackSpec, ...]) -> tuple[StackSpec, ...]:
        oneccl, stack = self.request.oneccl, self.request.stack
        if oneccl is None:
            return rows
        found = []
        for row in rows:
            good = tuple(b for b in row.oneccl_builds if _is(oneccl, b.version) and _works(b, row))
            if good and row.ipex:
                patches = tuple(p for p in row.torch_patches if any(p in build.works_with for build in good))
                torch = row.torch if row.torch in patches else patches[-1]
                found.append(replace(row, oneccl_builds=good, torch=torch, torch_patches=patches))
        if found and stack != "torch":
            return tuple(found)
        home = next(row for row in self.table if any(_is(oneccl, build.version) for build in row.oneccl_builds))
        if stack == "torch" or (stack is not None and not any(row.oneccl_builds for row in rows)):
            raise _Refused(f"the stack {stack} has no oneCCL bindings", f"--stack {home.name}")
        reason = f"oneccl_bind_pt {oneccl} does not work with torch {self.request.torch or rows[0].torch}"
        fits = next(build.works_with[0] for build in home.oneccl_builds if _is(oneccl, build.version))
        fix = f"--torch {fits} with --oneccl {oneccl}"
        better = next((build for row in rows for build in row.oneccl_builds if _works(build, row)), None)
        if better and better.cpu_wheel == "published":
            raise _Refused(f"{reason}; {better.version} does", f"--oneccl {better.version}, or {fix}")
        raise _Refused(reason, fix)

    def _narrow_kind(self, rows: tuple[StackSpec, ...]) -> tuple[StackSpec, ...]:
        if self.request.stack == "torch":
            if self.request.require_oneccl:
                raise _Refused(
                    "stock PyTorch has no oneCCL bindings: --stack torch and --require-oneccl contradict each other",
                    "remove one of them",
                )
            return tuple(row.stock() for row in rows)
        if self.request.stack != "ipex":
            return rows
        found = tuple(row for row in rows if row.ipex)
        if found:
            return found
        last = next((row for row in self.table if row.ipex), None)
        raise _Refused(
            f"there is no IPEX for torch {self.request.torch}"
            + (f"; the last IPEX is for torch {last.line}" if last else ""),
            f"--stack {rows[0].name}" + (f", or --torch {last.line}" if last else ""),
        )


def _works(build: IpexBuild | OnecclBuild, row: StackSpec) -> bool:
    return bool(set(build.works_with) & set(row.torch_patches))


def _ordered(rows: Sequence[StackSpec], *, must: bool, named: bool, kind: Kind) -> tuple[StackSpec, ...]:
    """IPEX with oneCCL, then maintained PyTorch, then IPEX over gloo, then the rest, each newest first."""
    ccl = [row for row in rows if row.ipex and row.oneccl_builds]
    if must:
        return tuple(ccl)
    gloo = [row.without_oneccl() for row in rows if row.ipex]
    stock = [row for row in rows if not row.ipex]
    if named or kind != "any":
        return (*ccl, *gloo, *(stock if kind == "any" or not gloo else ()))
    maintained = [row for row in stock if not row.retired]
    old = [row for row in stock if row.retired]
    alone = [row.stock() for row in rows if row.ipex]
    return (*ccl, *maintained, *gloo, *old, *alone)


def _check_version(what: str, requested: str | None, known: Sequence[str]) -> None:
    if requested is None or any(_is(requested, version) for version in known):
        return
    ordered = sorted(set(known), key=version_key)
    there_are = f"it has {ordered[0]} to {ordered[-1]}: ipexctl versions" if ordered else ""
    raise _unknown(
        f"the version table has no {what} {quoted(requested)}", _near(_public(requested), ordered), there_are
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


def _unknown(reason: str, near: Sequence[str], there_are: str) -> _Refused:
    guess = f"did you mean {' or '.join(near)}?" if near else ""
    return _Refused(reason, " ".join(part for part in (guess, there_are) if part), exit_code=2)

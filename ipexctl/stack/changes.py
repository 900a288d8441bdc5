"""What an install changes in the environment behind a name, and the changes it refuses. Pure.

A lower version or a lost package needs `--downgrade`, because a working script would fail after an install that ended
with ok. Packages that the call names with a version, or that come with the stack it chose, are no surprise; packages of
another stack count only if an earlier call asked for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ipexctl.errors import Refusal
from ipexctl.node.env.replies import EnvRecord
from ipexctl.stack.resolve.model import EnvRequest, StackRequest

_SHOWN = 6
_BOUNDS = frozenset(("==", "===", "~=", "<", "<="))
"""Operators that limit how high a version may be."""


@dataclass(frozen=True, slots=True)
class PackageChange:
    name: str
    before: str | None
    after: str | None

    @property
    def is_lower(self) -> bool:
        if self.before is None or self.after is None:
            return self.after is None
        try:
            return Version(self.after) < Version(self.before)
        except InvalidVersion:
            return False

    def __str__(self) -> str:
        if self.after is None:
            return f"{self.name} {self.before} would be lost"
        return f"{self.name} {self.before} -> {self.after}" if self.before else f"{self.name} {self.after} is new"


def changes_of(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[PackageChange, ...]:
    names = sorted({*before, *after})
    return tuple(
        PackageChange(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    )


def refuse_downgrade(
    changes: Sequence[PackageChange], record: EnvRecord, row: str, request: EnvRequest, name: str
) -> Refusal | None:
    named = _names((*request.extras, *request.constraints), _BOUNDS)
    before = [EnvRequest.from_json(made_for) for made_for in record.requests]
    wanted = _names(line for made_for in before for line in made_for.extras)
    is_other_stack = row != record.row and request.stack != StackRequest()
    lower = [
        change
        for change in changes
        if change.is_lower
        and canonicalize_name(change.name) not in named
        and (not is_other_stack or canonicalize_name(change.name) in wanted)
    ]
    if not lower:
        return None
    listed = ", ".join(map(str, lower[:_SHOWN])) + (f" and {len(lower) - _SHOWN} more" if len(lower) > _SHOWN else "")
    fix = f"to keep it and have a second one: --env {name}-2; to change this one, add --downgrade"
    return Refusal(f"packages of the environment {name} would be lower or lost: {listed}", fix, exit_code=2)


def with_packages(present: EnvRequest, added: EnvRequest) -> EnvRequest:
    """Packages of both. If both name one, the added line wins: an edited pin must not conflict with itself."""
    named = _names((*added.extras, *added.constraints))
    extras = [line for line in present.extras if not _names([line]) & named]
    constraints = [line for line in present.constraints if not _names([line]) & named]
    return replace(
        present,
        extras=tuple(dict.fromkeys((*extras, *added.extras))),
        constraints=tuple(dict.fromkeys((*constraints, *added.constraints))),
    )


def _names(lines: Iterable[str], operators: frozenset[str] = frozenset()) -> frozenset[str]:
    found = set()
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:  # a path or URL
            continue
        if not operators or any(each.operator in operators for each in requirement.specifier):
            found.add(canonicalize_name(requirement.name))
    return frozenset(found)

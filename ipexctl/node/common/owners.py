"""Whose runs and environments a home has, since several people may use one account of a host.

A run's plan.json and an environment's env.json name who made it. One that names nobody is nobody's.
"""

from __future__ import annotations

from typing import Iterable, Mapping, NamedTuple, Sequence, TypedDict

from ipexctl.node.common.plan import RunBy

MOST_NAMED = 5


class Owned(NamedTuple):
    kind: str
    """`run` or `environment`."""
    name: str
    by: RunBy


class RemovalRequest(TypedDict):
    by: Mapping[str, str]
    """The caller, as the fields of `RunBy`."""
    known: Sequence[str]
    """Runs that the caller's own records have: they are the caller's, wherever they began."""
    force: bool
    """True if what others made is removed, too."""


def read_owner(document: Mapping[str, object]) -> RunBy | None:
    by = document.get("by")
    if not isinstance(by, dict):
        return None
    user, host = by.get("user"), by.get("host")
    return RunBy(user[:80], host[:80]) if isinstance(user, str) and isinstance(host, str) else None


def find_foreign(kind: str, owners: Iterable[tuple[str, RunBy | None]], request: RemovalRequest) -> tuple[Owned, ...]:
    """What others made, of these names with their owners."""
    known, caller = set(request["known"]), dict(request["by"])
    return tuple(
        Owned(kind, name, by) for name, by in owners if by is not None and by._asdict() != caller and name not in known
    )


def name_owners(foreign: Iterable[Owned]) -> str:
    """Name what each owner has, as in `runs a, b by ann@desk; environment c by ben@desk`."""
    groups: dict[tuple[str, RunBy], list[str]] = {}
    for kind, name, by in foreign:
        groups.setdefault((kind, by), []).append(name)
    texts = []
    for (kind, by), names in groups.items():
        rest = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        noun = kind if len(names) == 1 else f"{kind}s"
        texts.append(f"{noun} {', '.join(names[:MOST_NAMED])}{rest} by {by.user}@{by.host}")
    return "; ".join(texts)

"""Whose runs and environments a home has, since several people may use one account of a host.

A run's plan.json and an environment's env.json name who made it. It is the caller's if it names the caller's records,
or if these have it: names of accounts and machines are only shown.
"""

from __future__ import annotations

from typing import Iterable, Mapping, NamedTuple, Sequence, TypedDict

from ipexctl.node.common.plan import RunBy

MOST_NAMED = 5


class Owned(NamedTuple):
    kind: str
    """`run` or `environment`."""
    name: str
    by: RunBy | None
    """None with IPEXCTL_ANONYMOUS=1."""


class RemovalRequest(TypedDict):
    records: str
    """Those of the caller, as in `RunBy`."""
    known: Sequence[str]
    """Runs that the caller's own records have: they are the caller's, wherever they began."""
    force: bool
    """True if what others made is removed, too."""


def read_owner(document: Mapping[str, object]) -> RunBy | None:
    """Return who made a run or an environment, by its document; None if that is unsigned or damaged."""
    by = document.get("by")
    if not isinstance(by, dict):
        return None
    texts = [by.get("user"), by.get("host"), by.get("records", "")]
    return RunBy(*(text[:80] for text in texts)) if all(isinstance(text, str) for text in texts) else None


def find_foreign(kind: str, made: Mapping[str, Mapping[str, object]], request: RemovalRequest) -> tuple[Owned, ...]:
    """Return what others made. `made`: name → document that says who made it. A document without `by` is unfinished,
    and nobody's."""
    known = set(request["known"])
    owners = {name: read_owner(document) for name, document in made.items() if "by" in document}
    return tuple(
        Owned(kind, name, by)
        for name, by in owners.items()
        if name not in known and not is_made_by(by, request["records"])
    )


def is_made_by(by: RunBy | None, records: str) -> bool:
    """True if the caller with these records made it. What nobody signed is another's."""
    return by is not None and by.records == records


def owner_text(by: RunBy | None) -> str:
    """Return the owner as people read it, such as `ann@desk`."""
    return "somebody without a name (IPEXCTL_ANONYMOUS=1)" if by is None else f"{by.user}@{by.host}"


def name_owners(foreign: Iterable[Owned]) -> str:
    """Name what each owner has, as in `runs a, b by ann@desk; environment c by ben@desk`."""
    groups: dict[tuple[str, RunBy | None], list[str]] = {}
    for kind, name, by in foreign:
        groups.setdefault((kind, by), []).append(name)
    texts = []
    for (kind, by), names in groups.items():
        rest = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        noun = kind if len(names) == 1 else f"{kind}s"
        texts.append(f"{noun} {', '.join(names[:MOST_NAMED])}{rest} by {owner_text(by)}")
    return "; ".join(texts)

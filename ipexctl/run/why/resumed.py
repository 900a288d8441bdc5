"""Finds in the output of ranks from which checkpoint each of them resumed. Pure.

A rank shows it by a line that says that it loads, resumes, continues or can't find something, with the name of a
checkpoint: `checkpoint-60`, `DIR/step_60`, `epoch=3-step=60.ckpt`. The first such line counts, because a rank resumes
before it saves. A line about a save, or about the best model, which a Trainer loads at its end, shows nothing.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from ipexctl.known_errors.match import RankOutput, bare
from ipexctl.run.ranks import describe_ranks

_OTHER: Final = re.compile(r"\b(?:best|sav(?:e|es|ed|ing)|delet(?:e|es|ed|ing)|remov(?:e|es|ed|ing))\b", re.IGNORECASE)
_RESUMED: Final = re.compile(
    r"\b(?i:resum(?:e|es|ed|ing)|load(?:s|ed|ing)?|restor(?:e|es|ed|ing)|continu(?:e|es|ed|ing)|from|can't find)\b"
    r".*?(?<![\w./~+=@-])(?P<above>(?:[\w.~+=@-]*/)*)"
    r"(?P<name>checkpoint[-_][0-9]+|(?<=/)(?:step|epoch)[-_][0-9]+|[\w=.-]+\.ckpt)(?![\w=-])"
)


class ResumedFrom(NamedTuple):
    name: str
    above: str
    """Its directory as the rank printed it; or empty."""


class ResumedApart(NamedTuple):
    """Ranks that resumed from different checkpoints."""

    sentence: str
    """`rank 0 resumed from checkpoint-30, ranks 1-2 from checkpoint-60`."""
    place: str
    """Directory of the checkpoints; empty if no rank printed it."""
    rank: int


def find_resumed_apart(outputs: Iterable[RankOutput]) -> ResumedApart | None:
    resumed = find_resumed(outputs)
    ranks: dict[str, list[int]] = {}
    for rank, checkpoint in resumed.items():
        ranks.setdefault(checkpoint.name, []).append(rank)
    if len(ranks) < 2:
        return None
    (first, group), *rest = ranks.items()
    parts = [f"{describe_ranks(group)} resumed from {first}"]
    parts += [f"{describe_ranks(group)} from {name}" for name, group in rest]
    place = next((checkpoint.above for checkpoint in resumed.values() if checkpoint.above), "")
    return ResumedApart(", ".join(parts), place, min(resumed))


def find_resumed(outputs: Iterable[RankOutput]) -> dict[int, ResumedFrom]:
    found = ((output.rank, _resumed_from(output)) for output in outputs)
    return {rank: resumed for rank, resumed in found if rank is not None and resumed is not None}


def _resumed_from(output: RankOutput) -> ResumedFrom | None:
    for line in map(bare, (*output.out, *output.err)):
        if not _OTHER.search(line) and (match := _RESUMED.search(line)) is not None:
            return ResumedFrom(match["name"], posixpath.normpath(match["above"]) if match["above"] else "")
    return None

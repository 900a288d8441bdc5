"""What the ranks of a script took in its newest run that was followed from this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.jobs.registry import RunRegistry, stem_of
from ipexctl.jobs.windows import read_copied_windows
from ipexctl.launch.memory import EarlierMemory

if TYPE_CHECKING:
    from pathlib import Path

_LOOKED_AT: Final = 5
"""The newest runs of the script; one that nobody followed left no windows here."""


def earlier_memory(project: Path, script: str) -> EarlierMemory | None:
    """The most that one rank took; None if no such run is known. `script`: the first word behind `run`."""
    registry = RunRegistry()
    records, _ = registry.read_records(f"{stem_of(script)}-*")
    own = [each for each in records if each.project == str(project) and f"{each.script} ".startswith(f"{script} ")]
    for record in reversed(own[-_LOOKED_AT:]):
        ranks = read_copied_windows(registry.directory / record.id).ranks.values()
        sizes = [rates.rss for rank in ranks for rates in rank.windows if rates is not None and rates.rss]
        if sizes:
            return EarlierMemory(int(max(sizes)), record.id)
    return None

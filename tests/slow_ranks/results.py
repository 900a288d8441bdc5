"""What was played and found, a line of JSON for each round, and the table over all of them.

In come the lines of a results file, from any number of calls; out go the rows of the table, and whether the goals are
reached. The rules: nothing is left out, a line of another setting (hosts, windows) is in a row of its own; a healthy
stretch counts its judged windows and its alarms; a disturbed round is counted apart, and decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

RIGHT_PLACE, RIGHT_CAUSE = 19 / 20, 18 / 20
MOST_ALARMS: Final = 0.01
"""Of the healthy windows."""
MOST_OVERHEAD: Final = 0.005
"""Of the processors' time, for all programs of ipexctl together."""
HEALTHY: Final = "healthy"


def append(path: Path, line: Mapping[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(lines: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, bool]]:
    """Rows, each with whether it reaches its goal."""
    kinds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in lines:
        kinds.setdefault((line["setting"], line["kind"]), []).append(line)
    for (setting, kind), found in sorted(kinds.items()):
        quiet = [line for line in found if not line["is_disturbed"]]
        disturbed = [line for line in found if line["is_disturbed"]]
        row = _healthy if kind == HEALTHY else _slowed
        text, is_good = row(quiet)
        if disturbed:
            text += f" (disturbed: {row(disturbed)[0]})"
        yield f"{setting}, {kind}: {text}{'' if is_good else ': MISSED'}", is_good


def _slowed(rounds: Sequence[Mapping[str, Any]]) -> tuple[str, bool]:
    places, causes = (sum(bool(each[name]) for each in rounds) for name in ("is_place_right", "is_cause_right"))
    count = len(rounds)
    is_good = places >= RIGHT_PLACE * count and causes >= RIGHT_CAUSE * count
    return f"right place {places} of {count}, right cause {causes} of {count}", is_good


def _healthy(stretches: Sequence[Mapping[str, Any]]) -> tuple[str, bool]:
    alarms, windows = (sum(each[name] for each in stretches) for name in ("alarms", "windows"))
    seconds = sum(each["seconds"] for each in stretches)
    overhead = sum(each["overhead"] * each["seconds"] for each in stretches) / seconds if seconds else 0.0
    is_good = alarms <= MOST_ALARMS * max(100, windows) and overhead <= MOST_OVERHEAD
    return f"{alarms} alarms in {windows} windows; our programs took {overhead:.2%} of the processors", is_good

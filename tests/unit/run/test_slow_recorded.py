"""The verdict on windows that a lab recorded while a rank or a link was slowed (`python -m tools.faults slow`).

Two ranks on two hosts over gloo, a core each. The windows have 2 s; joined to one of 10 s, there were too few.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from slow_helpers import BEGIN, setup_of

from ipexctl.node.run.meter.rates import HostRates, RankRates
from ipexctl.node.run.meter.window_file import HostWindows, RankWindows
from ipexctl.run.why import timeline
from ipexctl.run.why.slow_verdict import SlowVerdict, find_slow_ranks
from ipexctl.run.windows import RunWindows

RECORDED: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data/slow-windows.json").read_text())
SECONDS = 2.0


def rank_windows(recorded: dict[str, Any]) -> list[tuple[RankRates, ...]]:
    return [tuple(RankRates(**window) for window in windows) for windows in recorded["ranks"]]


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MIN_STEPS", 6)


def verdict(recorded: dict[str, Any], ranks: list[tuple[RankRates, ...]]) -> SlowVerdict:
    hosts = [tuple(HostRates(**window) for window in windows) for windows in recorded["hosts"]]
    windows = RunWindows(
        {rank: RankWindows(BEGIN, SECONDS, found) for rank, found in enumerate(ranks)},
        {rank: HostWindows(BEGIN, SECONDS, found) for rank, found in enumerate(hosts)},
    )
    return find_slow_ranks(windows, setup_of(2))


CAUSES = {
    "a CPU hog on its core": "other-programs",
    "80 % of a processor": "other-programs",
    "extra work in one rank": "more-work",
    "late data of one rank": "data",
    "a slow link": "link",
}


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded["kind"].replace(" ", "-"))
def test_recorded_windows_are_judged_right(recorded: dict[str, Any]) -> None:
    found = verdict(recorded, rank_windows(recorded))
    ranks = [(each.rank, each.cause.kind) for each in found.findings if each.is_current]
    links = ["link" for each in found.links if each.is_current]
    cause = CAUSES.get(recorded["kind"])
    if cause is None:
        assert (found.findings, found.links) == ((), ())
    elif cause == "link":
        assert (ranks, links) == ([], [cause])
    else:
        assert (ranks, links) == ([(recorded["rank"], cause)], [])

"""What programs read of a run's ranks: `ps --json` and `--events`.

Each number of a rank is decided: its value after the exit, its name in both documents, and that the pages have it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from golden_file import Case, golden_diff

from ipexctl.commands.ps_command import as_json
from ipexctl.hosts.host import Host
from ipexctl.node.common.frames import Chunk
from ipexctl.node.common.records import Failure, RankFigures, RankStatus, RunStatus, Stepping, read_status
from ipexctl.remote.cancel import Cancel
from ipexctl.run.follow_run import RunEnded
from ipexctl.run.ps import KnownRun
from ipexctl.run.ranks import EVERY_RANK
from ipexctl.ui.run.events import EventsView
from record_helpers import run_record

DOCS = Path(__file__).parents[3] / "docs"
FIGURES = RankFigures(790.5, 2 << 30, "S", "futex_wait", 40, 3, 9, Stepping(7, 0.5, 0.2), 12.0)
RANKS = (
    RankStatus(0, "n1", "running", 7, FIGURES, port=2901, restarts=1),
    RankStatus(1, "n2", "failed", 8, FIGURES.after_exit(), 5),
)
RUNNING = RunStatus("r7", "running", script="train.py", world_size=2, nodes=2, started=1e9, ranks=RANKS[:1])
FAILED = RUNNING._replace(
    state="failed", exit_code=5, ended=1e9 + 60, ranks=RANKS, reason="rank 1 ended",
    first_failure=Failure(1, "n2", 5, at=1e9 + 59, kind="exit", ranks=(1,)),
)  # fmt: skip
RECORD = run_record("r7", Host("n1", "n1"), "/h", "python3", "train.py", env="default", started=1e9, hosts=("n1", "n2"))


class Decided(NamedTuple):
    """`idle`: value after the rank's exit, None for the last one."""

    idle: float | None
    name: str
    """In `ps --json` and in events; empty if it is in neither."""


NUMBERS = {
    "cpu": Decided(0.0, "cpu"),
    "rss": Decided(0, "rss"),
    "process": Decided(None, ""),  # for `why` and hangs
    "waits_in": Decided(None, ""),
    "out_lines": Decided(None, "out"),
    "err_lines": Decided(None, "err"),
    "lost": Decided(None, "lost"),
    "stepping": Decided(None, ""),  # for the age of a step
    "unheard": Decided(None, "unheard"),
}


def events(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    view = EventsView(Cancel(), ranks=EVERY_RANK)
    view.record = RECORD
    with view:
        for update in (RUNNING, Chunk(0, "stdout", b"loss 2.5 step 1/9\n"), RunEnded(5, FAILED)):
            view.watch(update)
    view.finish(5, FAILED)
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_ranks(capfd: pytest.CaptureFixture[str]) -> None:
    now = [{**event, "time": 0, **({"call": None} if "call" in event else {})} for event in events(capfd)]
    cases = [Case(f"events {at}: {event['kind']}", json.dumps(event, indent=1)) for at, event in enumerate(now)]
    cases.append(Case("ps --json", json.dumps(as_json([KnownRun(RECORD, FAILED)]), indent=1)))
    assert not (diff := golden_diff("ranks", cases)), diff


def test_each_number_of_a_rank_is_decided(capfd: pytest.CaptureFixture[str]) -> None:
    """A new field of RankFigures fails here until it is reset or kept, shown or not, and documented."""
    assert NUMBERS.keys() == set(RankFigures._fields)
    assert all(value not in (None, 0) for value in FIGURES), "each has a value here, or the tests below prove nothing"
    idle: dict[str, Any] = {name: decided.idle for name, decided in NUMBERS.items() if decided.idle is not None}
    assert FIGURES.after_exit() == FIGURES._replace(**idle)
    shown = {decided.name: getattr(FIGURES, name) for name, decided in NUMBERS.items() if decided.name}
    of_ps = as_json([KnownRun(RECORD, FAILED)])["runs"][0]["ranks"][0]
    figures = next(event for event in events(capfd) if event["kind"] == "figures")
    own = figures["ranks"][0]
    assert own == {**of_ps, "exit_code": None, "state": "running"}
    assert shown.items() <= {**own, **own["lines"]}.items()
    kept = tuple(rank._replace(figures=rank.figures._replace(stepping=None)) for rank in RANKS)
    assert read_status(json.loads(json.dumps(FAILED.to_json()))) == FAILED._replace(ranks=kept)
    (documented,) = re.findall(r"`ranks\[\] \{(.*?)\}+`", (DOCS / "run-watch.md").read_text(), re.DOTALL)
    assert shown.keys() <= set(re.findall(r"\w+", documented))

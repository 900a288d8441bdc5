"""Parsing status.json."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.node.common.records import Failure, RankFigures, RankStatus, RunStatus, read_status

DOCUMENT = {
    "schema": "ipexctl.status/1",
    "id": "r1",
    "state": "failed",
    "script": "train.py",
    "env": "default",
    "started": 10.5,
    "ended": 20,
    "exit_code": 3,
    "nodes": ["a", "b"],
    "world_size": 2,
    "ranks": [
        {"rank": 0, "host": "a", "pid": 7, "state": "ok", "exit_code": 0, "signal": None, "lines": {"out": 4, "err": 0},
         "cpu": 790.5, "rss": 1024, "trial": {"rate": 2.0}},
        {"rank": 1, "host": "b", "pid": 8, "state": "failed", "exit_code": 3, "signal": None},
    ],
    "first_failure": {"rank": 1, "host": "b", "exit_code": 3, "signal": None, "at": 19.5},
}  # fmt: skip


def test_a_status_file_is_read_whole() -> None:
    assert read_status(DOCUMENT) == RunStatus(
        id="r1", state="failed", script="train.py", env="default", nodes=2, world_size=2, started=10.5, ended=20.0,
        exit_code=3,
        ranks=(
            RankStatus(0, "a", "ok", 7, RankFigures(790.5, 1024, out_lines=4, err_lines=0), 0),
            RankStatus(1, "b", "failed", 8, exit_code=3),
        ),
        first_failure=Failure(1, "b", 3, None, 19.5),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "recorded", "code"),
    [("failed", 3, 3), ("failed", 255, 255), ("failed", 0, 1), ("failed", 256, 1), ("failed", 100_000_000, 1),
     ("stopped", -3, 1), ("lost", None, 1), ("ok", 7, 0)],
)  # fmt: skip
def test_no_code_of_a_failed_run_is_zero_once_it_is_an_exit_code(state: str, recorded: int | None, code: int) -> None:
    assert read_status({"id": "r", "state": state, "exit_code": recorded}).code == code


def test_state_of_a_newer_ipexctl_is_read_as_unknown() -> None:
    assert read_status({"id": "r", "state": "hibernating"}).state == "unknown"


def test_invalid_figures_are_left_out() -> None:
    ranks = json.loads('[{"rank": 0, "cpu": NaN, "rss": Infinity, "lines": null}, "x"]')
    assert read_status({"ranks": ranks, "world_size": True}).ranks == (RankStatus(0, "", "unknown"),)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(DOCUMENT)), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(DOCUMENT)), JSON))
def test_any_status_document_is_read(document: dict[str, object]) -> None:
    status = read_status(document)
    assert all(isinstance(rank.rank, int) for rank in status.ranks)
    assert json.loads(json.dumps([status.state, status.started], allow_nan=False)) == [status.state, status.started]

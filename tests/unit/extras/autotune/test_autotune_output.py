"""The table, the bars and the document of autotune."""

from __future__ import annotations

import math

import pytest

from ipexctl.extras.autotune.estimates import Estimate
from ipexctl.extras.autotune.model import NO_CHANGE, Observation, SearchLimits, Settings, Space, Trial
from ipexctl.extras.autotune.search import SearchState
from ipexctl.extras.autotune.trial import SearchError
from ipexctl.extras.autotune.tuner import SearchResult
from ipexctl.extras.autotune.view import SearchView, bar, dry_run_json, result_json, show_result

FASTER: Settings = (("omp", "3"),)
FAILING: Settings = (("omp", "2"),)
SPACE = Space(("omp",), lambda *_: (FASTER, FAILING))


def searched(rate: float, *, trials: int = 1000, failure: str = "") -> SearchResult:
    """A search in which one candidate has this rate and the other one fails."""
    state, done = SearchState(SPACE, SearchLimits(600.0), 1), list[tuple[Trial, Observation]]()
    while (trial := state.progress().next) is not None and len(done) < trials:
        observation = Observation(10.0, rate if trial.settings == FASTER else 1.0, 64.0)
        if trial.settings == FAILING:
            observation = Observation(5.0, failure="rank 0 was killed")
        if trial.settings == NO_CHANGE and failure:
            observation = Observation(5.0, failure=failure)
        done.append((trial, observation))
        state = state.after(observation)
    return SearchResult(state.progress(), tuple(done))


RESULTS = {
    "a gain": searched(1.2),
    "no gain": searched(1.01),
    "nothing ahead": searched(0.8),
    "the plan fails": SearchResult(searched(1.0, failure="no module named x").progress, failed_run="train-1"),
    "interrupted": SearchResult(searched(1.2, trials=8).progress, is_interrupted=True),
    "host lost": SearchResult(searched(1.2, trials=2).progress, error=SearchError("node2: no answer", "FIX", 3)),
}


@pytest.mark.parametrize(
    ("ratio", "low", "high", "drawn"),
    [
        (1.0, 1.0, 1.0, " " * 12 + "●"),
        (2.0, 2.0, 2.0, " " * 12 + "│" + " " * 11 + "●"),
        (1.0, 0.5, 2.0, "─" * 12 + "●" + "─" * 12),
        (1.414, 0.9, 2.0, " " * 10 + "──┼─────●──────"),
    ],
)
def test_bars_have_the_baseline_in_their_middle(ratio: float, low: float, high: float, drawn: str) -> None:
    assert bar(Estimate(ratio, low, high, 8), math.log(2)) == drawn


def test_the_document_has_baseline_best_and_trials() -> None:
    found = result_json(RESULTS["a gain"])
    assert found["schema"] == "ipexctl.autotune/1"
    assert found["ending"] == "gain"
    assert found["baseline"]["steps_per_s"] == 1.0
    assert found["best"]["settings"] == {"omp": "3"}
    assert [found["best"][name] for name in ("ratio", "low", "high")] == pytest.approx([1.2] * 3)
    assert {trial["failure"] for trial in found["trials"]} == {"", "rank 0 was killed"}
    states = {row["options"]: row["state"] for row in found["candidates"] if row["group"] == "omp"}
    assert states == {"--omp 3": "chosen", "--omp 2": "failed"}


@pytest.mark.parametrize(
    ("name", "ending"), [("interrupted", "interrupted"), ("host lost", "error"), ("no gain", "no-gain-shown")]
)
def test_the_document_says_how_it_ended(name: str, ending: str) -> None:
    assert result_json(RESULTS[name])["ending"] == ending


@pytest.mark.parametrize(("budget", "fits"), [(149, False), (150, True)])
def test_a_dry_run_says_what_fits_the_budget(budget: float, fits: bool) -> None:
    found = dry_run_json((SPACE, budget))
    assert (found["trials"], found["groups"][0]["fits"]) == (6, fits)


def test_each_trial_and_each_choice_has_a_line() -> None:
    lines: list[str] = []
    view = SearchView(lines.append, 600.0, "steps/s")
    state = SearchState(SPACE, SearchLimits(600.0), 1)
    result = RESULTS["a gain"]
    for trial, observation in result.trials:
        view.on_trial(trial, None, state.progress())
        state = state.after(observation)
        view.on_trial(trial, observation, state.progress())
    assert len(lines) == len(result.trials) + 2


@pytest.mark.parametrize("name", RESULTS)
def test_the_call_to_type_is_shown_where_there_is_a_gain(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_result(RESULTS[name], "ipexctl run --omp 3 train.py")
    is_shown = "ipexctl run --omp 3 train.py" in capsys.readouterr().out
    assert is_shown == (name in ("a gain", "interrupted"))

"""The spec of a trial, and what its figures mean."""

from __future__ import annotations

import pytest

from ipexctl.extras.autotune.trial import LEAST_SILENCE, ends_silent, figures_of, hangs, observation_of, trial_spec
from ipexctl.node.common.records import RankStatus, RunStatus, TrialFigures
from ipexctl.spec import Export, RunSpec

FIGURES = TrialFigures(4.0, 20, 64.0, 1.0, 0.1, is_warm=True, is_done=True)


def status(*ranks: TrialFigures | None) -> RunStatus:
    of_ranks = tuple(RankStatus(rank, "node1", trial=figures) for rank, figures in enumerate(ranks))
    return RunStatus("run", "running", "train.py", "env", 1, len(ranks), 0.0, ranks=of_ranks)


def spec(**changes: object) -> RunSpec:
    exports = (Export("WANDB_MODE", "online"), Export("A", "b", secret=True))
    return RunSpec("script", ("train.py",), exports=exports, **changes)  # type: ignore[arg-type]


def test_a_trial_has_the_hosts_and_a_tree_for_itself_and_ends_by_itself() -> None:
    found = trial_spec(spec(max_restarts=3, checkpoint="out", notify="mail"), (("omp", "3"),), ".trial-1")
    assert found.exclusive
    assert found.own_tree == ".trial-1"
    assert found.omp == 3
    assert found.time_limit
    assert (found.max_restarts, found.checkpoint, found.notify) == (0, None, "")
    assert found.trial
    assert found.meter


def test_trackers_are_off_and_a_script_can_know_that_it_is_a_trial() -> None:
    exports = trial_spec(spec(), (), ".trial-1").exports
    values = {export.name: export.value for export in exports}
    assert values["IPEXCTL_AUTOTUNE"] == "1"
    assert values["WANDB_MODE"] == "disabled"
    assert values["A"] == "b"
    assert len(exports) == len(values)


def test_the_median_rank_counts_and_samples_are_added_up() -> None:
    found = figures_of(status(FIGURES, FIGURES._replace(rate=5.0), FIGURES._replace(rate=1.0)))
    assert found is not None
    assert found.rate == 4.0
    assert found.samples_per_step == 192.0


def test_a_trial_is_done_when_all_ranks_are() -> None:
    found = figures_of(status(FIGURES, FIGURES._replace(is_done=False)))
    assert found is not None
    assert not found.is_done
    assert figures_of(status(None, None)) is None


def test_samples_that_one_rank_does_not_know_are_not_known() -> None:
    found = figures_of(status(FIGURES, None))
    assert found is not None
    assert found.samples_per_step is None


def test_ranks_without_a_step_count_only_if_no_rank_has_one() -> None:
    without = FIGURES._replace(rate=0.0, steps=0, has_stepped=False, is_done=False)
    found = figures_of(status(FIGURES, without, without))
    assert found is not None
    assert (found.rate, found.is_done, found.samples_per_step) == (4.0, True, None)
    nothing = figures_of(status(without))
    assert nothing is not None
    assert not nothing.has_stepped


@pytest.mark.parametrize(
    ("rate", "since", "expected"),
    [(4.0, LEAST_SILENCE - 1, False), (4.0, LEAST_SILENCE + 1, True), (0.2, 99.0, False), (0.2, 101.0, True)],
)
def test_a_trial_hangs_after_the_time_of_twenty_steps(rate: float, since: float, expected: bool) -> None:
    assert hangs(FIGURES._replace(rate=rate, since_step=since)) == expected


@pytest.mark.parametrize(("steps", "since", "expected"), [(2, 21.0, True), (2, 19.0, False), (3, 21.0, False)])
def test_a_trial_whose_steps_end_before_enough_are_measured_hangs(steps: int, since: float, expected: bool) -> None:
    assert ends_silent(FIGURES._replace(steps=steps, since_step=since)) == expected


@pytest.mark.parametrize(("steps", "has_rate"), [(2, False), (3, True)])
def test_three_steps_are_the_fewest(steps: int, has_rate: bool) -> None:
    found = observation_of(FIGURES._replace(steps=steps), ["step 1 loss 0.5"], "")
    assert (found.rate is not None) == has_rate


def test_a_failure_has_no_rate() -> None:
    assert observation_of(FIGURES, [], "killed").rate is None
    assert observation_of(None, [], "").rate is None

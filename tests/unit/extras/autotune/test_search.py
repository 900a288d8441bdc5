"""The search: blocks, eliminations, the final blocks, and simulated responses (`tests/search_simulations.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest

from ipexctl.extras.autotune.model import NO_CHANGE, Observation, SearchLimits, Settings, Space, Trial, merged
from ipexctl.extras.autotune.race import Excluded
from ipexctl.extras.autotune.search import FINAL, FINAL_BLOCKS, SearchProgress, SearchState, Verdict, effect, reversals
from search_simulations import EQUAL, PROVED, RESPONSES, STARTS, simulate

A, B, C = (("omp", "1"),), (("omp", "2"),), (("omp", "3"),)
Run = Callable[[Settings, int], Observation]


def space(groups: Mapping[str, tuple[Settings, ...]]) -> Space:
    return Space(tuple(groups), lambda group, _: groups[group])


def at_rates(rates: Mapping[Settings, float]) -> Run:
    return lambda settings, _: Observation(10.0, rates.get(settings, 1.0))


def search(
    groups: Mapping[str, tuple[Settings, ...]], run: Run, *, seconds: float = math.inf, starts: int | None = None
) -> tuple[Verdict, list[Trial], SearchProgress]:
    state = SearchState(space(groups), SearchLimits(seconds, starts), 1)
    trials: list[Trial] = []
    while (trial := (progress := state.progress()).next) is not None:
        trials.append(trial)
        state = state.after(run(trial.settings, len(trials)))
    assert progress.verdict is not None
    return progress.verdict, trials, progress


def state_of(progress: SearchProgress, change: Settings) -> str:
    return next(row.state for row in progress.candidates if row.change == change and row.group != FINAL)


@pytest.mark.parametrize("name", PROVED)
def test_the_optimum_is_found_in_seventy_starts(name: str) -> None:
    found = [simulate(RESPONSES[name], seed) for seed in range(25)]
    assert sum(one.reached >= 0.97 for one in found) >= 22
    assert max(one.starts for one in found) <= STARTS


def test_equal_plans_have_no_gain() -> None:
    assert sum(simulate(EQUAL, seed).verdict.ending == "gain" for seed in range(40)) <= 2


def test_a_candidate_that_changes_the_batch_is_never_chosen() -> None:
    found = [simulate(RESPONSES[PROVED[1]], seed, batch_cheat=0.8) for seed in range(10)]
    assert not any("cheat" in dict(one.verdict.settings).values() for one in found)


def test_a_block_starts_the_baseline_and_each_candidate_once() -> None:
    _, trials, _ = search({"omp": (A, B)}, at_rates({}))
    first = [trial for trial in trials if (trial.group, trial.block) == ("omp", 1)]
    assert sorted(trial.settings for trial in first) == [NO_CHANGE, A, B]
    assert [trial.settings for trial in first if trial.is_baseline] == [NO_CHANGE]


def test_order_within_blocks_differs_and_depends_on_the_seed_alone() -> None:
    def orders(seed: int) -> list[Settings]:
        state, found = SearchState(space({"omp": (A, B, C)}), SearchLimits(math.inf), seed), list[Settings]()
        for _ in range(8):
            trial = state.progress().next
            assert trial is not None
            found.append(trial.settings)
            state = state.after(Observation(1.0, 1.0))
        return found

    assert orders(3) == orders(3)
    assert len({tuple(orders(seed)) for seed in range(6)}) > 1


@pytest.mark.parametrize(("rate", "blocks"), [(0.94, 2), (0.96, 3)])
def test_after_the_second_block_goes_what_is_more_than_five_percent_behind(rate: float, blocks: int) -> None:
    _, trials, _ = search({"omp": (A, B)}, at_rates({A: rate, B: 1.0}))
    assert max((trial.block for trial in trials if trial.settings == A and trial.group == "omp"), default=0) == blocks


def test_the_winner_of_a_group_is_in_the_baseline_of_the_next() -> None:
    bind: Settings = (("bind", "none"),)
    _, trials, _ = search({"omp": (A,), "bind": (bind,)}, at_rates({A: 1.3, merged(A, bind): 1.0}))
    assert {trial.settings for trial in trials if trial.group == "bind"} == {A, merged(A, bind)}


def test_a_gain_takes_eight_fresh_blocks() -> None:
    verdict, trials, _ = search({"omp": (A,)}, at_rates({A: 1.2}))
    assert verdict.ending == "gain"
    assert verdict.settings == A
    assert verdict.estimate is not None
    assert verdict.estimate.ratio == pytest.approx(1.2)
    assert sum(trial.group == FINAL for trial in trials) == 2 * FINAL_BLOCKS


@pytest.mark.parametrize(("ratio", "ending"), [(1.0205, "gain"), (1.0195, "no-gain-shown")])
def test_the_second_smallest_ratio_must_be_above_two_percent(ratio: float, ending: str) -> None:
    """The smallest one does not count."""
    final: list[Settings] = []

    def run(settings: Settings, number: int) -> Observation:
        if settings == NO_CHANGE:
            return Observation(10.0, 1.0)
        final.append(settings)
        return Observation(10.0, 0.5 if len(final) == len(before) + 1 else ratio)

    before = [0] * 10_000
    _, trials, _ = search({"omp": (A,)}, run)
    before = [trial for trial in trials if trial.settings == A and trial.group != FINAL]  # type: ignore[misc]
    final.clear()
    verdict, _, _ = search({"omp": (A,)}, run)
    assert verdict.ending == ending


def test_nothing_ahead_ends_without_final_blocks() -> None:
    verdict, trials, progress = search({"omp": (A,)}, at_rates({A: 0.8}))
    assert verdict.ending == "no-better-candidate"
    assert not any(trial.group == FINAL for trial in trials)
    assert state_of(progress, A) == "behind"


def test_no_candidates() -> None:
    assert search({"omp": ()}, at_rates({}))[0].ending == "no-candidates"


def test_a_candidate_that_fails_is_a_result() -> None:
    def run(settings: Settings, _: int) -> Observation:
        return Observation(5.0, failure="killed") if settings == A else Observation(10.0, 1.2 if settings == B else 1.0)

    verdict, trials, progress = search({"omp": (A, B)}, run)
    assert state_of(progress, A) == "failed"
    assert sum(trial.settings == A for trial in trials) == 1
    assert verdict.settings == B


def test_a_plan_of_the_call_that_fails_ends_the_search() -> None:
    verdict, trials, _ = search({"omp": (A,)}, lambda s, _: Observation(5.0, failure="no torch" if not s else ""))
    assert (verdict.ending, verdict.reason) == ("baseline-failed", "no torch")
    assert [trial.settings for trial in trials if trial.settings == NO_CHANGE] == [NO_CHANGE] * 2


def test_a_baseline_that_fails_once_is_started_again() -> None:
    failed: list[int] = []

    def run(settings: Settings, number: int) -> Observation:
        if not settings and number > 3 and not failed:
            failed.append(number)
            return Observation(5.0, failure="killed")
        return Observation(10.0, 1.2 if settings == A else 1.0)

    verdict, trials, progress = search({"omp": (A, B)}, run)
    assert failed
    assert verdict.ending == "gain"
    assert progress.starts == len(trials)


@pytest.mark.parametrize(
    ("samples", "state"), [(128.0, "changes-training"), (256.0, "adopted"), (None, "changes-training")]
)
def test_samples_a_step_must_stay(samples: float | None, state: str) -> None:
    def run(settings: Settings, _: int) -> Observation:
        return Observation(10.0, 2.0, samples) if settings == A else Observation(10.0, 1.0, 256.0)

    _, _, progress = search({"omp": (A,)}, run)
    assert progress.candidates[-1].state == state


def test_limits_end_the_search_and_the_final_blocks_come_on_top() -> None:
    _, trials, _ = search({"omp": (A, B)}, at_rates({A: 1.2, B: 1.19}), starts=6)
    assert sum(trial.group != FINAL for trial in trials) <= 6
    assert sum(trial.group == FINAL for trial in trials) == 2 * FINAL_BLOCKS


def test_a_group_that_does_not_fit_the_budget_is_not_tried() -> None:
    _, trials, progress = search({"omp": (A,), "bind": ((("bind", "none"),),)}, at_rates({}), seconds=45)
    assert {trial.group for trial in trials} == {"omp"}
    assert progress.is_cut


def test_the_same_observations_lead_to_the_same_trial() -> None:
    state = SearchState(space({"omp": (A, B)}), SearchLimits(math.inf), 5)
    for _ in range(7):
        state = state.after(Observation(1.0, 1.0))
    again = SearchState(space({"omp": (A, B)}), SearchLimits(math.inf), 5, state.observations)
    assert again.progress() == state.progress()


@pytest.mark.parametrize(
    ("choices", "starts", "plans", "columns"),
    [(1, 99.0, 2, 1), (3, 99.0, 4, 3), (4, 99.0, 8, 4), (9, 99.0, 8, 7), (5, 7.0, 4, 3), (5, 1.0, 1, 0)],
)
def test_each_choice_is_reversed_in_half_of_the_plans_of_a_second_look(
    choices: int, starts: float, plans: int, columns: int
) -> None:
    rows = reversals(choices, starts)
    assert (len(rows), {len(row) for row in rows}) == (plans, {columns})
    assert not any(rows[0])
    for one in range(columns):
        assert sum(row[one] for row in rows) == plans / 2
        assert all(sum(row[one] and row[other] for row in rows) == plans / 4 for other in range(one))


def test_the_effect_of_a_choice_is_not_that_of_the_others() -> None:
    rows = reversals(3, 8)
    values: list[float | Excluded] = [0.1 * row[0] - 0.3 * row[1] for row in rows]
    found = [effect(values, [row[column] for row in rows]) for column in range(3)]
    assert [value for value, _ in found] == pytest.approx([0.1, -0.3, 0.0])
    assert {weight for _, weight in found} == {2.0}


def test_a_plan_that_fails_is_left_out_unless_all_with_the_choice_fail() -> None:
    failed = Excluded("failed", "killed")
    assert list(effect([0.0, failed, 0.1, 0.1], [False, True, False, True])) == pytest.approx([0.05, 4 / 3])
    assert effect([0.0, failed, 0.1, failed], [False, True, False, True]) == (failed, 1.0)


@pytest.mark.parametrize(("rate", "winner"), [(1.1, NO_CHANGE), (1.2, A)])
def test_a_clear_lead_counts_where_the_budget_ends_after_one_block(rate: float, winner: Settings) -> None:
    _, _, progress = search({"omp": (A,)}, at_rates({A: rate}), starts=3)
    assert progress.is_cut
    assert progress.best == winner

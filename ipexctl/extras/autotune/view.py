"""Output of `ipexctl autotune`: a line for each trial, the table of candidates with intervals as bars, the verdict.

In: the progress of a search, its result, the space of a dry run; out: lines to stderr while trials run, the table and
the verdict to stdout, or the document `ipexctl.autotune/1`. It decides about form alone. The bars are on a scale of
ratios that all rows share, with the baseline in its middle; they need no colour.
"""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Any, Final

from ipexctl.extras.autotune.apply import typed
from ipexctl.extras.autotune.model import NO_CHANGE
from ipexctl.extras.autotune.race import FIRST_BLOCKS
from ipexctl.extras.autotune.search import FINAL, FINAL_BLOCKS
from ipexctl.text import counted, printable, rough_duration
from ipexctl.ui.results import value_json
from ipexctl.ui.table import print_lines, show_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipexctl.extras.autotune.estimates import Estimate
    from ipexctl.extras.autotune.model import Observation, Settings, Space, Trial
    from ipexctl.extras.autotune.search import CandidateReport, SearchProgress, Verdict
    from ipexctl.extras.autotune.tuner import SearchResult

SCHEMA: Final = "ipexctl.autotune/1"
_LONGER: Final = "1h"
TYPICAL_TRIAL: Final = 25.0
"""Seconds that a dry run counts with: a start, an import of torch, some steps."""
_BAR: Final = 12
"""Characters on each side of the baseline."""
_LEAST_SCALE: Final = math.log(1.1)
_STATES: Final = {
    "waiting": "not tried",
    "trying": "tried",
    "behind": "behind",
    "chosen": "ahead",
    "failed": "failed",
    "changes-training": "changes training",
    "adopted": "adopted",
}


class SearchView:
    """The lines of a search while it runs."""

    def __init__(self, print_note: Callable[[str], None], budget: float, unit: str) -> None:
        self._print, self._budget, self._unit = print_note, budget, unit
        self._is_final = False

    def on_trial(self, trial: Trial, observation: Observation | None, progress: SearchProgress) -> None:
        if observation is None:
            if trial.group == FINAL and not self._is_final:
                self._is_final = True
                self._print(
                    f"the search is over; {label(progress.best)} and the plan of the call now meet in "
                    f"{FINAL_BLOCKS} fresh blocks"
                )
            return
        what = f"{trial.group}, block {trial.block}: {label(trial.settings)}"
        rate = (
            f"{observation.rate:.4g} {self._unit}" if observation.rate is not None else printable(observation.failure)
        )
        self._print(f"[{progress.starts}, {_left(progress, self._budget)}] {what}: {rate}")
        if progress.next is None or progress.next.group != trial.group:
            for row in progress.candidates:
                if row.group == trial.group and row.state == "chosen" and row.estimate is not None:
                    self._print(f"{trial.group}: {label(row.change)} is ahead, {row.estimate.ratio:.2f}x")


def _left(progress: SearchProgress, budget: float) -> str:
    """The time that the search may still take, and the final blocks."""
    if progress.next is None:
        return "done"
    mean = progress.seconds / progress.starts if progress.starts else TYPICAL_TRIAL
    final = 2 * FINAL_BLOCKS * mean
    if progress.next.group == FINAL:
        return f"about {rough_duration(2 * (FINAL_BLOCKS - progress.next.block + 1) * mean)} left"
    return f"at most {rough_duration(max(0.0, budget - progress.seconds) + final)} left"


def label(settings: Settings) -> str:
    return printable(typed(settings)) if settings != NO_CHANGE else "the plan of the call"


def show_result(result: SearchResult, best: str, *, quiet: bool = False, no_color: bool = False) -> None:
    """Print the table and the verdict to stdout, also with `quiet`: they are the answer.

    `best` is the call with the settings that were found.
    """
    del quiet
    rows = result.progress.candidates
    if rows:
        scale = scale_of(rows)
        cells = [_cells(row, scale) for row in rows]
        show_table(("settings", "group", "ratio", _axis(scale), "outcome"), cells, no_color=no_color)
    print_lines(verdict_lines(result, best))


def _cells(row: CandidateReport, scale: float) -> tuple[str, ...]:
    drawn = bar(row.estimate, scale) if row.estimate is not None else ""
    return label(row.change), row.group, ratio_text(row), drawn, state_text(row)


def ratio_text(row: CandidateReport) -> str:
    found = row.estimate
    return f"{found.ratio:.2f}x ({found.low:.2f} to {found.high:.2f})" if found is not None else "-"


def state_text(row: CandidateReport) -> str:
    return _STATES[row.state] + (f": {printable(row.reason)[:120]}" if row.reason else "")


def scale_of(rows: Sequence[CandidateReport]) -> float:
    """The log ratio at both ends of the bars."""
    estimates = [row.estimate for row in rows if row.estimate is not None]
    ends = [abs(math.log(value)) for found in estimates for value in (found.low, found.high) if value > 0]
    return max([_LEAST_SCALE, *ends])


def axis_ends(scale: float) -> tuple[str, str]:
    return f"{math.exp(-scale):.2f}", f"{math.exp(scale):.2f}"


def _axis(scale: float) -> str:
    low, high = axis_ends(scale)
    gap = _BAR - len(low)
    return f"{low}{' ' * (gap - 1)}1.00{' ' * (_BAR - 2 - len(high))}{high}"


def bar(found: Estimate, scale: float) -> str:
    """The interval as a line, the ratio as a mark in it, and the baseline as a bar."""
    places = [round((math.log(value) / scale) * _BAR) + _BAR for value in (found.low, found.ratio, found.high)]
    low, middle, high = (max(0, min(2 * _BAR, place)) for place in places)
    cells = ["─" if low <= at <= high else " " for at in range(2 * _BAR + 1)]
    cells[_BAR] = "┼" if low <= _BAR <= high else "│"
    cells[middle] = "●"
    return "".join(cells).rstrip()


def verdict_lines(result: SearchResult, best: str) -> list[str]:
    """The first says how it ended; the others are what to type, or know."""
    progress, verdict = result.progress, result.progress.verdict
    if result.error is not None:
        lines = [f"the search can't go on: {printable(result.error.reason)}"]
        lines += [f"  {printable(result.error.fix)}"] if result.error.fix else []
        return lines + _best_so_far(progress, best)
    if result.is_interrupted:
        return [*_best_so_far(progress, best), "go on with the search: the same call with --resume"]
    assert verdict is not None
    return _ending_lines(verdict, progress, best, result.failed_run)


def _best_so_far(progress: SearchProgress, best: str) -> list[str]:
    if progress.best == NO_CHANGE:
        return [f"nothing is ahead of the plan of the call after {counted(progress.starts, 'trial')}"]
    return [f"ahead so far, not confirmed: {printable(best)}"]


def _ending_lines(verdict: Verdict, progress: SearchProgress, best: str, failed_run: str) -> list[str]:
    tried = counted(sum(row.estimate is not None for row in progress.candidates if row.group != FINAL), "setting")
    found = verdict.estimate
    interval = f"{found.ratio:.2f}x ({found.low:.2f} to {found.high:.2f})" if found is not None else ""
    if verdict.ending == "gain":
        return [f"{interval} by {label(verdict.settings)}; {tried} tried", f"  {printable(best)}"]
    if verdict.ending == "baseline-failed":
        more = [f"  ipexctl why {failed_run}"] if failed_run else []
        return [f"{label(verdict.settings)} fails: {printable(verdict.reason)}", *more]
    if verdict.ending == "no-candidates":
        return ["no setting that could be tried differs on these hosts"]
    shown = f"best {interval}" if found is not None else printable(verdict.reason) or "none was ahead"
    lines = [f"no gain was shown: {tried} tried, {shown}"]
    if progress.is_cut:
        lines += ["the budget was too short to compare all settings", f"  --budget {_LONGER}"]
    return lines


def result_json(result: SearchResult) -> dict[str, Any]:
    progress, verdict = result.progress, result.progress.verdict
    rates = [o.rate for trial, o in result.trials if trial.settings == NO_CHANGE and o.rate is not None]
    found = verdict.estimate if verdict is not None else None
    best: dict[str, Any] = {
        "settings": dict(progress.best),
        "options": typed(progress.best),
        "ratio": None,
        "low": None,
        "high": None,
    }
    if found is not None:
        best |= {"ratio": found.ratio, "low": found.low, "high": found.high}
    return {
        "schema": SCHEMA,
        "ending": "interrupted" if result.is_interrupted else "error" if verdict is None else verdict.ending,
        "reason": printable(result.error.reason if result.error else verdict.reason if verdict else ""),
        "fix": printable(result.error.fix) if result.error else "",
        "baseline": {"steps_per_s": sorted(rates)[len(rates) // 2] if rates else None, "trials": len(rates)},
        "best": best,
        "candidates": [
            {**value_json(row), "change": dict(row.change), "options": typed(row.change)} for row in progress.candidates
        ],
        "trials": [
            {
                "group": trial.group,
                "block": trial.block,
                "settings": dict(trial.settings),
                "is_baseline": trial.is_baseline,
                "steps_per_s": observation.rate,
                "samples_per_step": observation.samples_per_step,
                "failure": printable(observation.failure),
                "seconds": round(observation.seconds, 3),
            }
            for trial, observation in result.trials
        ],
        "run": result.failed_run or None,
    }


def show_dry_run(planned: tuple[Space, float], *, quiet: bool = False, no_color: bool = False) -> None:
    """Print the candidates of the plan of the call, and how many trials they take."""
    del quiet
    document = dry_run_json(planned)
    rows = [
        (group["group"], candidate, str(group["trials"]), "yes" if group["fits"] else "no")
        for group in document["groups"]
        for candidate in group["candidates"]
    ]
    if not rows:
        print_lines(["no setting that could be tried differs on these hosts"])
        return
    show_table(("group", "settings", "trials", "fits the budget"), rows, no_color=no_color)
    search, final = rough_duration(document["trials"] * TYPICAL_TRIAL), rough_duration(2 * FINAL_BLOCKS * TYPICAL_TRIAL)
    text = (
        f"at least {counted(document['trials'], 'trial')}, {search} at {TYPICAL_TRIAL:g} s a trial; then "
        f"{2 * FINAL_BLOCKS} more to confirm a gain, {final}, beyond the budget"
    )
    print_lines([text])


def dry_run_json(planned: tuple[Space, float]) -> dict[str, Any]:
    space, budget = planned
    groups, total = [], 0
    for group in space.groups:
        candidates = space.candidates(group, NO_CHANGE)
        trials = FIRST_BLOCKS * (len(candidates) + 1) if candidates else 0
        total += trials
        groups.append(
            {
                "group": group,
                "candidates": [typed(change) for change in candidates],
                "trials": trials,
                "fits": total * TYPICAL_TRIAL <= budget,
            }
        )
    return {
        "schema": SCHEMA,
        "groups": groups,
        "trials": total,
        "final_trials": 2 * FINAL_BLOCKS,
        "seconds_per_trial": TYPICAL_TRIAL,
        "budget": budget,
    }


def show_diff(before: str, after: str, name: str) -> None:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="", n=2)
    print_lines(printable(line) for line in lines)

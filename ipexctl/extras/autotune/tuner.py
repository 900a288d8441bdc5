"""Runs a search: asks for the next trial, runs it, keeps what it has shown, until the verdict or a signal.

In come a `SearchState`, a function that runs a trial, and the file of trials; out goes a `SearchResult`. The rule: what
was measured is never lost; a signal and a search that can't go on end it with the best plan so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipexctl.extras.autotune.trial import SearchError
from ipexctl.remote.outcome import Cancelled

if TYPE_CHECKING:
    from ipexctl.extras.autotune.model import Observation, Settings, Trial
    from ipexctl.extras.autotune.search import SearchProgress, SearchState
    from ipexctl.extras.autotune.trials_file import TrialsFile

OnTrial = Callable[["Trial", "Observation | None", "SearchProgress"], None]
"""Called before a trial, without an observation, and after it."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The end of a search, or its interruption."""

    progress: SearchProgress
    trials: tuple[tuple[Trial, Observation], ...] = ()
    is_interrupted: bool = False
    error: SearchError | None = None
    """Why it could not go on."""
    failed_run: str = ""
    """The run of the plan of the call that failed; `why` explains it."""


class ChangedSearch(Exception):
    """The trials of the file are not those that this call would make."""


def replayed(state: SearchState, trials: Sequence[tuple[Trial, Observation]]) -> SearchState:
    """The state after the trials of a search that was interrupted. Raises ChangedSearch."""
    for trial, observation in trials:
        if state.progress().next != trial:
            raise ChangedSearch
        state = state.after(observation)
    return state


def run_search(
    state: SearchState,
    run_trial: Callable[[Settings], Observation],
    trials: TrialsFile,
    on_trial: OnTrial,
    done: Sequence[tuple[Trial, Observation]] = (),
) -> SearchResult:
    """`done`: the trials that `state` has."""
    progress = state.progress()
    known = list(done)
    try:
        while progress.next is not None:
            trial = progress.next
            on_trial(trial, None, progress)
            observation = run_trial(trial.settings)
            trials.add(trial, observation)
            known.append((trial, observation))
            state = state.after(observation)
            progress = state.progress()
            on_trial(trial, observation, progress)
    except Cancelled:
        return SearchResult(progress, tuple(known), is_interrupted=True)
    except SearchError as error:
        return SearchResult(progress, tuple(known), error=error)
    return SearchResult(progress, tuple(known))

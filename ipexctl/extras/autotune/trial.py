"""One trial: a run in a tree of its own, watched until enough steps are measured, stopped, and removed.

In come the call and settings; out goes an `Observation`. A trial is started as any run, by
`run/start/pipeline.py`, and ended by the same call as `ipexctl stop`. The rules: it never uses the tree of the
project's other runs; when `run` returns or raises, nothing of the trial lives on the hosts, and its tree and its record
are gone, but for the record of a plan that failed on its own, which `why` shows; if this program is killed, the trial
ends soon after it (`heartbeat.py`), and the next call removes it. A trial that fails is a result. What ends the search
itself, such as a lost host, a run of others, or a script of which nothing can be counted, is raised as `SearchError`.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ipexctl.call_options import NO_OPTIONS
from ipexctl.extras.autotune.apply import with_settings
from ipexctl.extras.autotune.comparison import find_losses
from ipexctl.extras.autotune.heartbeat import Heartbeat
from ipexctl.extras.autotune.model import NO_CHANGE, Observation
from ipexctl.extras.autotune.trial_cleanup import TRIAL, StopCall, remove_record, remove_tree
from ipexctl.node.common.frames import Chunk
from ipexctl.node.common.records import RunStatus, TrialFigures
from ipexctl.remote.outcome import Cancelled, HostError, Unreachable
from ipexctl.run.follow import Follower
from ipexctl.run.local_copy import LocalCopy
from ipexctl.run.registry import RunRegistry
from ipexctl.run.start.pipeline import remove_job_files, start_run
from ipexctl.run.start.request import StartFailure
from ipexctl.run.why.why import cause_from_copy
from ipexctl.spec import Export, RunSpec
from ipexctl.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.extras.autotune.model import Settings
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.run.follow import RunUpdate
    from ipexctl.run.registry import RunRecord
    from ipexctl.run.start.call import RunCall
    from ipexctl.run.start.pipeline import StartedRun

FIRST_STEP: Final = 900.0
"""Seconds until the first step of the plan of the call; models are loaded and compiled before."""
NO_STEP: Final = "no step of a torch optimizer was counted"
NO_VALUE: Final = "no line of the output had a value of --metric"
COUNT_FIX: Final = r"count what the script prints: --metric 'samples/s: (\S+)'"
METRIC_FIX: Final = r"its first group is a number, as in --metric 'samples/s: (\S+)'; or leave out --metric"
RESUME_FIX: Final = "go on with the search: the same call with --resume"
LONGEST: Final = 90.0
"""Seconds from the first step to the end; the rank wrapper says within 60 that it has seen enough."""
FEWEST_STEPS: Final = 3
SILENT_STEPS: Final = 20
"""Steps in whose time no step ended: the trial hangs."""
LEAST_SILENCE: Final = 20.0
MOST_LINES: Final = 20_000
MAX_LINE: Final = 4096
UNREACHABLE: Final = 3
"""The exit code."""
WITHOUT_TRACKERS: Final = {
    "IPEXCTL_AUTOTUNE": "1",
    "WANDB_MODE": "disabled",
    "COMET_MODE": "DISABLED",
    "NEPTUNE_MODE": "debug",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "SWANLAB_MODE": "disabled",
}


class SearchError(Exception):
    """The search can't go on."""

    def __init__(self, reason: str, fix: str, exit_code: int) -> None:
        super().__init__(reason)
        self.reason, self.fix, self.exit_code = reason, fix, exit_code


def trial_spec(spec: RunSpec, settings: Settings, tree: str, first_step: float = FIRST_STEP) -> RunSpec:
    """The spec of a trial. Pure."""
    changed = with_settings(spec, settings)
    kept = tuple(export for export in changed.exports if export.name not in WITHOUT_TRACKERS)
    more = tuple(Export(name, value, source="autotune") for name, value in WITHOUT_TRACKERS.items())
    return replace(
        changed,
        exports=(*kept, *more),
        time_limit=first_step + LONGEST + 60,
        own_tree=tree,
        trial=True,
        meter=True,
        exclusive=True,
        max_restarts=0,
        checkpoint=None,
        hang_after=0.0,
        notify="",
    )


def figures_of(status: RunStatus) -> TrialFigures | None:
    """The figures of the run: those of its median rank, and samples of all ranks. Pure.

    None before the training has begun. Ranks without a step count only if no rank has one.
    """
    known = [rank.trial for rank in status.ranks if rank.trial is not None]
    of_ranks = sorted([each for each in known if each.has_stepped] or known, key=lambda figures: figures.rate)
    if not of_ranks:
        return None
    samples = [rank.samples_per_step for rank in of_ranks if rank.samples_per_step is not None]
    return of_ranks[len(of_ranks) // 2]._replace(
        samples_per_step=sum(samples) if len(samples) == len(status.ranks) else None,
        since_step=min(rank.since_step for rank in of_ranks),
        is_warm=all(rank.is_warm for rank in of_ranks),
        is_done=all(rank.is_done for rank in of_ranks),
    )


def hangs(figures: TrialFigures) -> bool:
    """Whether steps have stopped coming. Pure."""
    length = 1 / figures.rate if figures.rate else LONGEST
    return figures.since_step > max(LEAST_SILENCE, SILENT_STEPS * length)


def ends_silent(figures: TrialFigures) -> bool:
    """Whether too few steps could be measured, as they have stopped coming. Pure."""
    return figures.steps < FEWEST_STEPS and figures.since_step > LEAST_SILENCE


@dataclass
class _Watch:
    """What is seen of one trial while it is followed."""

    stop: StopCall
    first_step_limit: float
    has_metric: bool = False
    began: float = field(default_factory=time.monotonic)
    figures: TrialFigures | None = None
    lines: list[str] = field(default_factory=list)
    problem: str = ""
    """Why it was stopped before enough was seen."""
    is_uncounted: bool = False
    """It trains, and nothing of it can be counted."""
    first_step_after: float | None = None
    _rest: dict[str, bytes] = field(default_factory=dict)
    """Of each stream, the line that has not ended."""

    def on_update(self, update: RunUpdate) -> None:
        if isinstance(update, Chunk):
            self._read_lines(update)
        elif isinstance(update, RunStatus):
            self._look(update)

    def _look(self, status: RunStatus) -> None:
        now = time.monotonic() - self.began
        self.figures = figures_of(status) or self.figures
        if self.figures is None or not self.figures.has_stepped:
            if self.figures is not None and self.figures.is_done:
                self._end(f"{self._uncounted} in {self.figures.since_step:.0f} s of training", is_uncounted=True)
            elif now > self.first_step_limit:
                self._end(f"{self._uncounted} within {self.first_step_limit:.0f} s", is_uncounted=True)
            elif status.state == "ok":
                self.problem, self.is_uncounted = f"it ended, and {self._uncounted}", True
            return
        self.first_step_after = now if self.first_step_after is None else self.first_step_after
        if self.figures.is_done and not ends_silent(self.figures):
            self.stop.request()
        elif self.figures.is_done or hangs(self.figures) or now - self.first_step_after > LONGEST:
            self._end(f"it hangs: no step for {self.figures.since_step:.0f} s")

    @property
    def _uncounted(self) -> str:
        return NO_VALUE if self.has_metric else NO_STEP

    def _end(self, problem: str, *, is_uncounted: bool = False) -> None:
        if not self.problem:
            self.problem, self.is_uncounted = problem, is_uncounted
        self.stop.request()

    def _read_lines(self, chunk: Chunk) -> None:
        """The lines of rank 0."""
        if chunk.rank != 0 or len(self.lines) >= MOST_LINES:
            return
        data = self._rest.get(chunk.stream, b"") + chunk.data
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\r\n").split(b"\n")
        self._rest[chunk.stream] = lines.pop()[-MAX_LINE:]
        self.lines += [line[-MAX_LINE:].decode(errors="replace") for line in lines]


class TrialRunner:
    """Runs trials one after another."""

    def __init__(self, call: RunCall, pool: SessionPool) -> None:
        self._call, self._pool = call, pool
        self._first_step_limit = FIRST_STEP
        self._failed: RunRecord | None = None

    @property
    def failed_run(self) -> str:
        """The last run of the plan of the call, if it failed: its record is kept."""
        return self._failed.id if self._failed is not None else ""

    def run(self, settings: Settings) -> Observation:
        """Raises a SearchError, and Cancelled after a signal."""
        began = time.monotonic()
        tree = f"{TRIAL}{secrets.token_hex(4)}"
        if self._failed is not None:  # the plan of the call is tried again
            remove_record(self._failed, self._pool)
            self._failed = None
        try:
            spec = trial_spec(self._call.spec, settings, tree, self._first_step_limit)
            found = self._run(spec, is_first_plan=settings == NO_CHANGE)
        finally:
            remove_tree(self._call.hosts, self._call.spec.home, self._call.project.root, tree, self._pool)
        return replace(found, seconds=time.monotonic() - began)

    def _run(self, spec: RunSpec, *, is_first_plan: bool) -> Observation:
        call = replace(self._call, spec=spec, options=NO_OPTIONS)
        submitted = start_run(call, self._pool, on_step=_say_nothing, on_note=_say_nothing)
        if isinstance(submitted, StartFailure):
            if self._pool.cancel.thrown:
                raise Cancelled("stopped")
            if submitted.other_runs:
                raise SearchError(
                    submitted.reason, "trials need the hosts for themselves; --wait 3600 waits an hour", 1
                )
            if is_first_plan or submitted.exit_code == UNREACHABLE or submitted.is_unsure:
                raise SearchError(submitted.reason, submitted.fix, submitted.exit_code)
            return Observation(0.0, failure=submitted.reason)
        record, found, ended = submitted.record, None, None
        stop_call = StopCall(record, self._pool)
        try:
            submitted.launch.leave()
            with Heartbeat(record, self._pool):
                found, ended = self._follow(submitted, stop_call, is_first_plan=is_first_plan)
            return found
        finally:
            if ended is None or not ended.is_over:
                self._make_sure(stop_call, record)
            if is_first_plan and found is not None and found.rate is None:
                self._failed = replace(record, is_trial=False)
                RunRegistry().save(self._failed)
                remove_job_files(self._call.hosts, record, self._pool)
            else:
                remove_record(record, self._pool)

    @staticmethod
    def _make_sure(call: StopCall, record: RunRecord) -> None:
        """The run is over. Raises a SearchError; its record stays then."""
        call.request()
        try:
            call.wait()
        except HostError as error:
            raise SearchError(
                f"trial {record.id} could not be stopped: {record.node0.name}: {error.reason}",
                f"it ends soon after this call, or by: ipexctl stop {record.id}",
                1,
            ) from None

    def _follow(
        self, started: StartedRun, call: StopCall, *, is_first_plan: bool
    ) -> tuple[Observation, RunStatus | None]:
        """Watch it until it is over."""
        record, connector = started.record, self._pool.connector
        watch = _Watch(call, self._first_step_limit, has_metric=bool(self._call.spec.metric))
        follower = Follower(
            record,
            lambda cancel: connector.open(record.node0, cancel),
            watch.on_update,
            self._pool.cancel,
            copy=LocalCopy(RunRegistry().directory / record.id, started.document),
        )
        try:
            status = follower.follow().status
        except Unreachable as error:
            raise SearchError(f"{record.node0.name}: {error.reason}", error.advice, UNREACHABLE) from None
        if status is not None and status.state == "stopped" and not call.is_requested:
            raise SearchError(f"trial {record.id} was stopped: {status.reason}", RESUME_FIX, 1)
        if watch.is_uncounted and is_first_plan:
            raise SearchError(watch.problem, METRIC_FIX if watch.has_metric else COUNT_FIX, 1)
        if watch.first_step_after is not None:
            self._first_step_limit = max(60.0, 3 * watch.first_step_after + 30)
        failure = watch.problem
        if not failure and status is not None and status.state == "failed":
            cause = cause_from_copy(record, RunRegistry().directory)
            failure = cause.sentence if cause is not None else status.reason
        return observation_of(watch.figures, watch.lines, failure), status


def _say_nothing(text: str) -> None:
    """Steps and advice are those of the plan, which was shown before the search."""
    del text


def observation_of(figures: TrialFigures | None, lines: Sequence[str], failure: str) -> Observation:
    """What a trial has shown. Pure."""
    if failure:
        return Observation(0.0, failure=failure)
    if figures is None:
        return Observation(0.0, failure=f"it ended, and {NO_STEP}")
    if figures.steps < FEWEST_STEPS or not figures.rate:
        return Observation(0.0, failure=f"only {counted(figures.steps, 'step')} could be measured")
    return Observation(0.0, figures.rate, figures.samples_per_step, find_losses(lines))

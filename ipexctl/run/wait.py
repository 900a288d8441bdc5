"""Wait until runs are over, without touching them.

A run is followed without its output, so little is transferred. A node0 that does not answer is asked until the user
gives up, because a wait of days must survive the reboot of a switch. Nothing here can end or change a run, and an end
that was not seen is not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from ipexctl.homes.local_copy import read_final_status, save_final_status
from ipexctl.homes.registry import RunRecord
from ipexctl.node.common.records import RunStatus
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.outcome import Cancelled, HostError, Unreachable
from ipexctl.remote.session import Session
from ipexctl.run.follow_run import Follower, LineChoice, NotReachedAgain, RunUpdate
from ipexctl.run.ps import KnownRun

ASK_AGAIN_SECONDS: Final = 10.0
"""Seconds between two attempts to reach a node0 that does not answer."""
_NO_LINES: Final = LineChoice(ranks=())
_FIGURES_SECONDS: Final = 60.0
"""Seconds between two statuses that differ only in figures."""


def first_failure(results: Sequence[KnownRun]) -> int:
    """Return the exit code of the first run that did not succeed, in the order of the results; 0 if all did. Pure."""
    return next((result.exit_code for result in results if result.exit_code), 0)


class RunWait:
    """Waits for one run."""

    def __init__(
        self,
        record: RunRecord,
        open_session: Callable[[RunRecord, Cancel], Session],
        cancel: Cancel,
        note: Callable[[str], None],
    ) -> None:
        self._record = record
        self._open_session = open_session
        self._cancel = cancel
        self._note = note
        self._status: RunStatus | None = None
        """The last status; None before the first."""
        self._absence: Unreachable | None = None
        """Why node0 was lost; None while it answers."""

    def wait(self) -> KnownRun:
        """Return once the run is over, node0 has no record of it, or the wait was cancelled."""
        try:
            while True:
                try:
                    return KnownRun(self._record, self._follow())
                except Unreachable as error:
                    self._report_absence(error.last if isinstance(error, NotReachedAgain) else error)
                    self._cancel.sleep(ASK_AGAIN_SECONDS)
        except Cancelled:
            return _unfinished(self._record, self._status, self._absence)
        except HostError as error:
            return _unfinished(self._record, self._status, error)

    def _follow(self) -> RunStatus | None:
        """Follow the run until it is over or node0 is lost."""
        follower = Follower(
            self._record,
            lambda cancel: self._open_session(self._record, cancel),
            self._on_update,
            self._cancel,
            lines=_NO_LINES,
            figures=_FIGURES_SECONDS,
            reconnect=0.0,  # each loss ends the call: how long node0 may be away is decided here
        )
        try:
            return follower.follow().status
        finally:
            self._status = follower.status or self._status

    def _on_update(self, update: RunUpdate) -> None:
        """Note that node0 answers again."""
        del update
        if self._absence is not None:
            self._note(f"{self._record.node0.name} is reached again")
            self._absence = None

    def _report_absence(self, error: Unreachable) -> None:
        """Note once that node0 does not answer."""
        if self._absence is None:
            self._note(
                f"{self._record.node0.name}: {error.reason}; run {self._record.id} may still be running; "
                "connecting again until it answers" + (f"\n  {error.advice}" if error.advice else "")
            )
        self._absence = error


def _unfinished(record: RunRecord, status: RunStatus | None, error: HostError | None) -> KnownRun:
    """Return a run whose end was not seen. `error`: why; None if the wait was cancelled."""
    if error is None or isinstance(error, Cancelled):
        return KnownRun(record, status)
    reason = f"{record.node0.name}: {error.reason}"
    return KnownRun(record, status, reason, error.advice, isinstance(error, Unreachable))


def wait_for_runs(
    records: Sequence[RunRecord],
    directory: Path,
    open_session: Callable[[RunRecord, Cancel], Session],
    cancel: Cancel,
    note: Callable[[str], None],
) -> Iterator[KnownRun]:
    """Yield the result of each run as it comes. `directory`: of the registry, whose final statuses need no node0."""

    def wait(record: RunRecord) -> KnownRun:
        """Wait for one run."""
        known = read_final_status(directory / record.id)
        if known is not None:
            return KnownRun(record, known)
        result = RunWait(record, open_session, cancel, note).wait()
        if record.is_kept and result.status is not None and result.is_over:
            save_final_status(directory / record.id, result.status)
        return result

    for outcome in fan_out(records, wait, forks=len(records), cancel=cancel):
        yield outcome.result_or(lambda record, error: _unfinished(record, None, error))

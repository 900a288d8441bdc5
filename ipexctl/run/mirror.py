"""Mirrors the files of a run: fetches until the run is over, and once more after that. The new bytes of a file that
grew are appended, so that a program that holds it open, such as TensorBoard, keeps reading. Any other changed file is
replaced, and a removed file stays here. A file that changes while it is read is a failure only in the last pass. An
error other than a lost host, such as a full local disk, ends the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from ipexctl.files.requested import FetchResult, FileFailure
from ipexctl.hosts.host import Host
from ipexctl.limits import MIRROR_INTERVAL
from ipexctl.remote.cancel import RETRY_INTERVALS, Cancel
from ipexctl.remote.outcome import (
    AgentEnded,
    BytesMoved,
    Cancelled,
    HostError,
    Notice,
    ProgressEvent,
    TimedOut,
    Unreachable,
    Watch,
)
from ipexctl.remote.session import Session
from ipexctl.run.fetch import FetchRequest, fetch
from ipexctl.run.queue_wait import poll_status
from ipexctl.run.reconnect import Absence
from ipexctl.run.registry import RunRecord
from ipexctl.text import format_count, printable

_LOST: Final = (Unreachable, TimedOut, AgentEnded)
"""Errors after which a pass is retried. AgentEnded: the kernel may kill the program for lack of memory."""
_MOST_NOTED: Final = 10


def add_pass(before: FetchResult | None, latest: FetchResult) -> FetchResult:
    """The result of all passes. Failures are those of the latest pass, because each pass asks for all files. Pure."""
    if before is None:
        return replace(latest, resumed=(), size=latest.received)
    brought = tuple(dict.fromkeys((*before.brought, *latest.brought)))
    files = latest.unchanged + len(latest.brought)
    received = before.received + latest.received
    return replace(
        latest,
        status="failed" if latest.status == "failed" else "changed" if brought else "ok",
        seconds=before.seconds + latest.seconds,
        brought=brought,
        unchanged=max(0, files - len(brought)),
        size=received,
        received=received,
        resumed=(),
    )


def lasting_failures(before: Sequence[FileFailure], latest: Sequence[FileFailure]) -> tuple[FileFailure, ...]:
    """Failures that occurred in two passes in a row. A file that was changing has arrived by the second. Pure."""
    return tuple(failure for failure in latest if failure in before)


@dataclass(slots=True)
class _Mirrored:
    request: FetchRequest
    result: FetchResult | None = None
    failures: tuple[FileFailure, ...] = ()
    is_away: bool = False
    noted: set[str] = field(default_factory=set)

    def is_new(self, text: str) -> bool:
        is_new = text not in self.noted and len(self.noted) < _MOST_NOTED
        self.noted.add(text)
        return is_new


class RunMirror:
    """Mirrors one run. `borrow`: returns a session, whose `close` gives it back."""

    def __init__(
        self,
        record: RunRecord,
        requests: Sequence[FetchRequest],
        borrow: Callable[[Host], Session],
        watch: Watch,
        cancel: Cancel,
        *,
        reconnect: float,
        timeout: float | None = None,
    ) -> None:
        self._record = record
        self._parts = [_Mirrored(replace(request, is_followed=True)) for request in requests]
        self._borrow = borrow
        self._watch = watch
        self._cancel = cancel
        self._timeout = timeout
        self._absence = Absence(reconnect)
        self._has_begun = False
        self._losses = 0
        self._is_first_pass = True

    def results(self, error: HostError | None = None) -> list[FetchResult]:
        """One result for each request, with everything that arrived. `error`: what ended `follow`."""
        if isinstance(error, Cancelled):
            error = HostError("stopped before the run's end", "the same command continues")
        return [self._result(part, error) for part in self._parts]

    def _result(self, part: _Mirrored, error: HostError | None) -> FetchResult:
        result = part.result or FetchResult(part.request.host, "ok", dest=part.request.dest)
        return result if error is None else replace(
            result, status=error.status, reason=error.reason, fix=error.advice
        )  # fmt: skip

    def follow(self, *, is_over: bool) -> None:
        """Fetch until the run is over or an error other than a lost connection occurs, which goes into the results.
        Raises the error if node0 does not answer, and Cancelled.
        """
        while True:
            try:
                is_over = is_over or self._is_run_over()
                goes_on = self._pass(is_last=is_over)
            except _LOST as error:
                self._on_loss(error)
                continue
            if is_over or not goes_on:
                return
            self._cancel.sleep(MIRROR_INTERVAL)

    def _is_run_over(self) -> bool:
        with closing(self._borrow(self._record.node0)) as session:
            known = poll_status(session, self._record, self._cancel)
        if self._losses:
            self._watch(Notice(f"{self._record.node0.name} is reached again"))
        self._has_begun, self._losses = True, 0
        self._absence.on_frame(time.monotonic())
        return known.status is not None and known.status.is_over

    def _on_loss(self, error: HostError) -> None:
        if not self._has_begun:
            raise error
        now, name, run = time.monotonic(), self._record.node0.name, self._record.id
        step = self._absence.on_loss(now)
        if step == "over":
            raise Unreachable(
                self._absence.end_reason(run, error.reason), f"when {name} answers again, the same command continues"
            )
        if text := self._absence.notice(step, name, error.reason, now):
            self._watch(Notice(text, True))
        interval = RETRY_INTERVALS[min(self._losses, len(RETRY_INTERVALS) - 1)]
        self._losses += 1
        self._cancel.sleep(min(interval, self._absence.left(now)))

    def _pass(self, *, is_last: bool) -> bool:
        """Fetch from each host; return True if another pass makes sense. Raises the error of a lost node0."""
        for part in self._parts:
            request = part.request
            try:
                latest = self._fetch(part, is_last=is_last)
            except Cancelled:
                raise
            except HostError as error:
                is_lost = isinstance(error, _LOST)
                if is_lost and request.host == self._record.node0:
                    raise
                part.result = self._result(part, error)
                if not is_lost and not is_last:
                    return False
                if is_lost and not is_last and not part.is_away:
                    part.is_away = True
                    text = f"{request.host.name}: {error.reason}; it is tried again every {MIRROR_INTERVAL:g} s"
                    self._watch(Notice(text, True))
                continue
            part.is_away = False
            if not is_last:
                self._note(part, latest)
            part.failures = latest.failed
            part.result = add_pass(part.result, latest)
        self._is_first_pass = False
        return True

    def _fetch(self, part: _Mirrored, *, is_last: bool) -> FetchResult:
        request, has_files = part.request, part.result is not None and bool(part.result.brought)
        if request.request["path"] is not None and (not is_last or has_files):  # not there yet, or removed by the run
            request = replace(request, request={**request.request, "may_be_missing": True})
        return fetch(request, lambda: self._borrow(request.host), self._on_event, self._cancel, self._timeout)

    def _on_event(self, event: ProgressEvent) -> None:
        if isinstance(event, BytesMoved) and event.host == self._record.node0.name:
            self._absence.on_frame(time.monotonic())  # a long pass is no absence
        if self._is_first_pass or not isinstance(event, BytesMoved):  # later passes are short
            self._watch(event)

    def _note(self, part: _Mirrored, latest: FetchResult) -> None:
        host, run, interval = part.request.host.name, self._record.id, f"every {MIRROR_INTERVAL:g} s"
        count = len(latest.brought) + latest.unchanged
        if not count and not latest.failed and part.is_new("nothing"):
            text = f"{host}: nothing is at {printable(latest.source)} yet; checking again {interval} until {run} ends"
            self._watch(Notice(text))
        elif count and part.is_new("arrived"):
            there = (
                f"{format_count(count, 'file')} of {host} {'is' if count == 1 else 'are'} in {printable(latest.dest)}"
            )
            self._watch(
                Notice(f"{there}; what changes follows {interval} until {run} ends; Ctrl-C ends only this call")
            )
        for failure in lasting_failures(part.failures, latest.failed):
            if part.is_new(failure.name):
                self._watch(Notice(f"{host}: {printable(failure.name)}: {printable(failure.reason)}", True))

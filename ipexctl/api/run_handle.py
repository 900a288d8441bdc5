"""The Python interface to runs: a `Run` was started by `Cluster.run` or by a command, and is known by its record.

Leaving a call leaves the run as it is. So does Ctrl-C in `events` and `wait`, unless `on_interrupt="stop"`. Messages
for the user, such as that node0 does not answer, go to `on_line`, from any thread.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from ipexctl.addons_list import addition
from ipexctl.api import explained_runs, followed_runs, known_runs
from ipexctl.api.fetch_calls import fetch_files, fetch_from_all
from ipexctl.api.interruptible import interruptible, refuses_wrong_calls
from ipexctl.api.known_runs import CallWatcher
from ipexctl.errors import CallError
from ipexctl.files.requested import FetchResult
from ipexctl.homes.registry import RunRecord
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.frames import Chunk, StreamName
from ipexctl.node.common.records import RunStatus
from ipexctl.option_declaration import RECONNECT_SECONDS, check_seconds
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import Cancelled, Notice, ignore_event
from ipexctl.run.fetch import order_of_run, orders_of_all_hosts
from ipexctl.run.find_run import find_runs
from ipexctl.run.follow_run import LineChoice, RunUpdate, check_pattern
from ipexctl.run.node0 import options_of
from ipexctl.run.ps import KnownRun as WaitResult
from ipexctl.run.ranks import parse_ranks
from ipexctl.run.stack_dump import Dump
from ipexctl.run.stop import StopResult
from ipexctl.run.why.why import WhyResult

T = TypeVar("T")
OnInterrupt = Literal["detach", "stop"]
_MOST_UPDATES = 1000
"""Updates that wait for the program. If there are more, the follower waits, never the run."""


class OutputLine(NamedTuple):
    """One line that a rank printed."""

    rank: int
    stream: StreamName
    text: str
    at: float | None
    """When node0 received the line, in seconds since the epoch; None if unknown."""


@refuses_wrong_calls
class Run:
    """A run, whatever its state."""

    def __init__(self, record: RunRecord, *, on_line: Callable[[str], object] = ignore_event) -> None:
        self.record = record
        self._on_line = on_line

    @classmethod
    def find(cls, run: str = "last", *, on_line: Callable[[str], object] = ignore_event) -> Run:
        """Find a run by its ID or a unique part of it; `last` is the last run of this directory's project, `last:all`
        of all.

        For a run that another machine began: `Cluster.find`. Raises a UserError if there is none, or several.
        """
        return cls(find_runs([run])[0], on_line=on_line)

    @property
    def id(self) -> str:
        """The ID of the run."""
        return self.record.id

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def events(
        self, *, reconnect: float = RECONNECT_SECONDS, on_interrupt: OnInterrupt = "detach"
    ) -> Iterator[RunUpdate]:
        """Yield what happens, from the first line to the end: `Chunk`, `Note`, `Notice`, `RunStatus`, finally
        `RunEnded`.

        Leaving the loop leaves the run as it is.
        """
        cancel = Cancel()
        updates: queue.Queue[RunUpdate | None] = queue.Queue(_MOST_UPDATES)

        def put(update: RunUpdate | None) -> None:
            """Hand over an update. Raises Cancelled once the program has left the loop."""
            while not cancel.thrown:
                try:
                    return updates.put(update, timeout=0.2)
                except queue.Full:
                    continue
            raise Cancelled("the program has left the loop")

        def follow() -> None:
            """Follow the run, in a thread."""
            try:
                followed_runs.follow(self.record, self._watcher(cancel), put, reconnect=reconnect)
            finally:
                put(None)

        future: Future[None] = run_in_background(follow, "follow")
        try:
            while (update := updates.get()) is not None:
                yield update
            future.result()
        except KeyboardInterrupt:
            self._after_interrupt(on_interrupt)
            raise
        finally:
            cancel.throw()

    def wait(self, timeout: float | None = None, *, on_interrupt: OnInterrupt = "detach") -> WaitResult:
        """Wait until the run is over, without touching it; after `timeout` seconds the result is not `is_over`."""
        check_seconds("timeout", timeout)
        (result,) = self._call(
            lambda watcher: followed_runs.wait([self.record], watcher, timeout=timeout),
            after=lambda: self._after_interrupt(on_interrupt),
        )
        return result

    def stop(self, *, timeout: float | None = None, force: bool = False) -> StopResult:
        """Stop the run on every node. `force`: also one that others began."""
        return self._call(partial(known_runs.stop, self.record, force=force), timeout=timeout)

    def why(self, *, timeout: float | None = None) -> WhyResult:
        """Explain why the run ended: the first failure, its last lines, the likely cause and the fix."""
        return self._call(partial(explained_runs.why, self.record), timeout=timeout)

    def report(self, path: str | os.PathLike[str] | None = None, *, compare: Run | Sequence[Run] | None = None) -> Path:
        """Write one HTML page about the run; without a path, report-RUN.html in the current directory."""
        file = Path(path or f"report-{self.id}.html")

        others = [compare] if isinstance(compare, Run) else compare or ()
        records = [run.record for run in (self, *others)]
        self._call(lambda watcher: addition("page-of-run")("path", file, records, watcher))
        return file

    def dump(self, ranks: Sequence[int] | None = None, *, timeout: float | None = None) -> Dump | RunStatus:
        """Return the Python stacks of all ranks, or of these; the status if the run is not alive."""
        return self._call(lambda watcher: explained_runs.dump(self.record, watcher, ranks), timeout=timeout)

    def logs(
        self, rank: int | None = None, *, stderr: bool = False, tail: int | None = None, grep: str = ""
    ) -> list[OutputLine]:
        """Return the output so far of one rank or of all, in order of time. With `stderr`, only that stream.

        Raises a CallError if node0 does not answer and this machine has no copy.
        """
        check_pattern(grep)
        lines, open_lines = list[OutputLine](), dict[tuple[int, "StreamName"], bytes]()

        def add(update: RunUpdate) -> None:
            """Collect the lines that an update completes."""
            if isinstance(update, Notice):
                self._on_line(update.text)
            elif isinstance(update, Chunk):
                key = update.rank, update.stream
                *complete, open_lines[key] = (open_lines.get(key, b"") + update.data).split(b"\n")
                lines.extend(OutputLine(*key, line.decode(errors="replace"), update.at) for line in complete)

        def read(watcher: CallWatcher) -> followed_runs.LogsResult:
            """Read the output."""
            ranks = None if rank is None else [rank]
            parse_ranks("all" if rank is None else str(rank)).within(self.record.plan.world_size)
            streams: tuple[StreamName, ...] = ("stderr",) if stderr else ("stdout", "stderr")
            return followed_runs.logs(self.record, watcher, LineChoice(ranks, streams, tail, grep, exact=True), add)

        result = self._call(read)
        if result.error is not None:
            raise result.error
        rest = [
            OutputLine(*key, line.decode(errors="replace"), None) for key, line in sorted(open_lines.items()) if line
        ]
        return lines + rest

    def fetch(
        self,
        path: str | None = None,
        dest: str | os.PathLike[str] = ".",
        *,
        rank: int | None = None,
        from_: str | None = None,
        force: bool = False,
    ) -> FetchResult:
        """Fetch files of the run, from node0 or from the host of a rank; without a path, its record and output.

        With `force`, also files that another run wrote later.
        """

        def fetch(watcher: CallWatcher) -> FetchResult:
            """Fetch."""
            request = order_of_run(self.record, path, os.fspath(dest), rank=rank, host=from_, others=(), force=force)
            return fetch_files(request, options_of(self.record), watcher.cancel)[0]

        return self._call(fetch)

    def fetch_from_all(
        self, path: str | None = None, dest: str | os.PathLike[str] = ".", *, results: bool = False
    ) -> list[FetchResult]:
        """Fetch from every host of the run, each to DEST/HOST. With `results`, what ranks wrote to IPEXCTL_RUN_DIR."""

        def fetch(watcher: CallWatcher) -> list[FetchResult]:
            """Fetch."""
            requests = orders_of_all_hosts(self.record, path, os.fspath(dest), results=results)
            return fetch_from_all(requests, options_of(self.record), watcher.cancel)

        return self._call(fetch)

    def _call(
        self,
        step: Callable[[CallWatcher], T],
        after: Callable[[], object] = ignore_event,
        timeout: float | None = None,
    ) -> T:
        """Do a step in a thread that Ctrl-C cancels; then call `after`."""
        return interruptible(lambda cancel: step(replace(self._watcher(cancel), timeout=timeout)), after)

    def _watcher(self, cancel: Cancel) -> CallWatcher:
        """Return what a call about this run needs."""

        def tell(text: str) -> None:
            """Pass a message to the program."""
            self._on_line(text)

        return CallWatcher(cancel, tell, tell)

    def _after_interrupt(self, choice: OnInterrupt) -> None:
        """Stop the run after Ctrl-C, if the program has chosen that."""
        if choice == "stop":
            try:
                known_runs.stop(self.record, self._watcher(Cancel()))
            except CallError as error:
                self._on_line(Fix(f"run {self.id} could not be stopped: {error.message}; `ipexctl stop {self.id}`"))

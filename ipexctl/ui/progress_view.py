"""Show the progress of an install, sync or fetch on stderr.

On a terminal there is a bar per host and a total; elsewhere plain lines, one every 5 seconds while bytes move. A short
transfer is not shown, because importing rich takes longer. Warnings are shown even with --quiet.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from ipexctl.remote.outcome import BytesMoved, HostFinished, Notice, ProgressEvent, StepStarted, StepTimed
from ipexctl.text import printable, readable, safe_lines
from ipexctl.ui.message_output import are_colors_off, notice_text, print_message

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID
    from rich.text import Text as RichText


_PROGRESS_SECONDS: Final = 5.0
"""Seconds between lines about one transfer."""
_SHORT_SECONDS: Final = 1.0
"""A shorter transfer gets no line; one shorter than half of this gets no bar."""
_MOST_BARS: Final = 24
"""Hosts that have a bar; the others only count in the total."""
CONTROL_MACHINE: Final = "control machine"


class ProgressView:
    """Shows the events of one call, until the context is left."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self._quiet = quiet
        self._verbose = verbose
        terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._bars = _Bars() if terminal and not quiet else None
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], float] = {}
        """(host, what) → when the last line was printed; infinity once a transfer was said to be complete."""
        self._began: dict[tuple[str, str], tuple[float, int]] = {}
        """(host, what) → when the transfer was first seen, and the bytes that were done by then."""

    def __enter__(self) -> ProgressView:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def watch(self, event: ProgressEvent) -> None:
        """Show an event. Called from several threads."""
        if self._quiet and not (isinstance(event, Notice) and event.warning):
            return
        if isinstance(event, StepTimed) and not self._verbose:
            return
        if self._bars is not None:
            self._bars.show(event)
        elif isinstance(event, Notice | StepTimed):
            print_message(_message(event))
        elif isinstance(event, BytesMoved):
            self._print_bytes(event)
        elif isinstance(event, StepStarted) or self._verbose or not event.ok:
            print_message(f"{event.host or CONTROL_MACHINE}: {event.what}")

    def _print_bytes(self, event: BytesMoved) -> None:
        """Print a line about a transfer, if the last one is long ago or the transfer is complete."""
        key, now = (event.host, event.what), time.monotonic()
        is_complete = event.total is not None and event.done >= event.total
        with self._lock:
            began, first_done = self._began.setdefault(key, (now, event.done))
            if event.done < first_done:  # other files than before
                began, first_done = self._began[key] = now, event.done
            if not is_complete and now - self._last.get(key, began) < _PROGRESS_SECONDS:
                return
            if is_complete and (now - began < _SHORT_SECONDS or self._last.get(key) == float("inf")):
                return
            self._last[key] = float("inf") if is_complete else now
        total_text = f" of {readable(event.total)}" if event.total else ""
        rate = f" ({readable((event.done - first_done) / (now - began))}/s)" if now - began > 1 else ""
        print_message(f"{event.host or CONTROL_MACHINE}: {event.what} {readable(event.done)}{total_text}{rate}")


class _Bars:
    """The bars of rich, which is imported with the first bar."""

    def __init__(self) -> None:

        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._bytes: dict[str, tuple[str, int, int | None]] = {}
        """Host → what it moves, bytes done, and bytes in total or None."""
        self._total_task: TaskID | None = None
        self._show_bytes_from = time.monotonic() + _SHORT_SECONDS / 2

    def show(self, event: ProgressEvent) -> None:
        """Show an event."""
        with self._lock:
            if self._progress is None and isinstance(event, BytesMoved) and time.monotonic() < self._show_bytes_from:
                return  # rich takes longer to import than a small transfer
            progress = self._progress or self._start()
            if isinstance(event, Notice | StepTimed):
                text = safe_lines([_message(event)], colors=False)
                progress.console.print(text, end="", markup=False, highlight=False)
                return
            if isinstance(event, HostFinished) and not event.host:
                if CONTROL_MACHINE in self._tasks:
                    progress.remove_task(self._tasks.pop(CONTROL_MACHINE))
                return
            task, what = self._task(progress, event.host or CONTROL_MACHINE), printable(event.what)
            if isinstance(event, BytesMoved):
                self._bytes[event.host] = (event.what, event.done, event.total)
                if task is not None:
                    progress.update(task, what=what, moves_bytes=True, completed=event.done, total=event.total)
                self._update_total(progress)
            elif task is not None and isinstance(event, StepStarted):
                progress.reset(task)  # the time is the step's, not the host's
                progress.update(task, what=what, moves_bytes=False, total=None)
            elif task is not None and isinstance(event, HostFinished):
                progress.update(task, what=what, moves_bytes=False, completed=1, total=1)

    def stop(self) -> None:
        """Remove the bars."""
        with self._lock:
            if self._progress is not None:
                self._progress.stop()

    def _start(self) -> Progress:
        """Import rich and show the first bar."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TransferSpeedColumn,
        )
        from rich.text import Text

        class Amount(DownloadColumn):
            """Bytes and their rate; the time of a step that moves none."""

            def render(self, task: Task) -> RichText:
                """Return bytes and rate; the time of a step that moves no bytes."""
                if not task.fields["moves_bytes"]:
                    return TimeElapsedColumn().render(task)
                rate = TransferSpeedColumn().render(task) if task.finished_speed or task.speed else ""
                return Text.assemble(super().render(task), " ", rate)

        console = Console(stderr=True, no_color=are_colors_off() or None)
        self._progress = Progress(
            TextColumn("{task.fields[host]}", markup=False),
            TextColumn("{task.fields[what]}", markup=False),
            BarColumn(bar_width=20),
            Amount(),
            console=console,
            transient=True,
        )
        self._progress.start()
        return self._progress

    def _task(self, progress: Progress, host: str) -> TaskID | None:
        """Return the bar of a host; None for hosts beyond the limit, which only count in the total."""
        if host not in self._tasks:
            if len(self._tasks) >= _MOST_BARS:
                return None
            self._tasks[host] = progress.add_task("", host=printable(host)[:24], what="", moves_bytes=False, total=None)
            if self._total_task is not None:  # so that the total stays the last line
                progress.remove_task(self._total_task)
                self._total_task = None
        return self._tasks[host]

    def _update_total(self, progress: Progress) -> None:
        """Show the total, once two hosts move bytes."""
        if len(self._bytes) < 2:
            return
        done = sum(done for _, done, _ in self._bytes.values())
        totals = [total for _, _, total in self._bytes.values()]
        if self._total_task is None:
            self._total_task = progress.add_task("", host="total", what="", moves_bytes=True, total=None)
        progress.update(self._total_task, completed=done, total=sum(t or 0 for t in totals) if all(totals) else None)


def _message(event: Notice | StepTimed) -> str:
    """Return the line of an event."""
    if isinstance(event, Notice):
        return notice_text(event)
    return f"{event.host or CONTROL_MACHINE}: {event.what} ({event.seconds:.3f} s)"

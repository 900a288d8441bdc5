"""Follow a run for `run` and `attach`: react to signals, keys, a lost node0 and the end of the run.

The first Ctrl-C stops the run. The second exits at once, and leaves the stop to a process in the background. SIGTERM
does the same for `run`, and detaches `attach`; SIGHUP and `q` only detach. A slow or closed reader of stdout never
delays a signal.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import closing
from typing import Final

from ipexctl.api.followed_runs import follow_copy_instead
from ipexctl.api.known_runs import CallWatcher, call_error
from ipexctl.commands.interrupt import Interrupt, Leave, handling_signals
from ipexctl.commands.option_groups import Output, ViewOptions
from ipexctl.errors import OutputError
from ipexctl.homes.local_copy import LocalCopy, read_final_status
from ipexctl.homes.registry import RunRecord, RunRegistry, explain_foreign_run
from ipexctl.limits import STOPPED_RUN_SILENCE
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.records import RunStatus
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import Connector
from ipexctl.remote.outcome import Cancelled, HostError, Notice
from ipexctl.remote.session import Session
from ipexctl.run.follow_run import FollowCall, Follower, RunEnded, RunUpdate
from ipexctl.run.ranks import RankSet
from ipexctl.run.stop import stop
from ipexctl.ui.message_output import fit_lines, print_message, print_with_fix, write_to_terminal
from ipexctl.ui.run.end_of_run import left_lines
from ipexctl.ui.run.events import EventsView
from ipexctl.ui.run.plain import PlainRun, RunView, wants_live

_MAIN: Final = "import sys; sys.path.pop(0); from ipexctl.__main__ import main; main()"
"""As `python -m ipexctl`, but without the working directory in the search path, whose files may be anybody's."""


def watch_run(
    record: RunRecord,
    view: ViewOptions,
    ranks: RankSet,
    output: Output,
    *,
    started: tuple[Session, FollowCall] | None = None,
    interrupt: Interrupt | None = None,
    events: EventsView | None = None,
    detaching: Collection[int] = (signal.SIGHUP,),
) -> int:
    """Show the run until it ends or the user detaches; return the exit code of the call.

    `started`: the session that started the run, which is closed here, and its first call. `interrupt`: a signal that
    already arrived. `detaching`: signals that detach; others stop the run.
    """
    if events is not None:
        events.record = record
    with CallWatcher(Cancel(), on_warning=print_message).connector(record) as connector:
        watching = _Watching(record, connector, view, ranks, output, started, events, detaching)
        reason = fix = ""
        try:
            code = watching.run(interrupt)
        except HostError as error:
            failed = call_error(record, error)
            reason, fix = failed.message, failed.fix
            print_with_fix(reason, fix)
            code = failed.exit_code if watching.code is None else watching.code
        watching.finish(code, reason, fix)
        return code


def open_view(
    record: RunRecord,
    options: ViewOptions,
    ranks: RankSet,
    output: Output,
    cancel: Cancel,
    stop: Callable[[], None],
) -> RunView:
    """Return the view that the call asks for. `stop` is called to stop the run; `cancel` is thrown to detach."""
    if not wants_live(plain=options.plain):
        return PlainRun(cancel, ranks=ranks, quiet=output.quiet, folds=not options.plain)
    from ipexctl.ui.run.live_view import LiveRun  # rich's layout is slow to import

    plan, nodes = record.plan, len(record.hosts) or 1
    first = RunStatus(record.id, "starting", plan.script, plan.environment, nodes, plan.world_size, record.started)
    return LiveRun(first, stop, cancel.throw, ranks=ranks, tag=plan.asked.tag or "")


class _Watching:
    """Following one run. `code` is the exit code of the signal that ended it; None without a signal."""

    def __init__(
        self,
        record: RunRecord,
        connector: Connector,
        view: ViewOptions,
        ranks: RankSet,
        output: Output,
        started: tuple[Session, FollowCall] | None,
        events: EventsView | None,
        detaching: Collection[int],
    ) -> None:
        self.code: int | None = None
        """Exit code for the first signal; None without one."""
        self._detaching = detaching if record.is_own else (*detaching, signal.SIGINT)
        self._is_detached = False
        self._record = record
        self._connector = connector
        self._session = started[0] if started is not None else None
        self._cancel = events.cancel if events is not None else Cancel()
        self._stop_requested = threading.Event()
        self._number = int(signal.SIGINT)
        """Signal that the supervisor gets if the run is to stop."""
        self._over = threading.Event()
        """Set once nothing of the run is followed any more."""
        self._last_event_at = time.monotonic()
        """When the run last sent something."""
        self._not_stopped = ""
        """Why the run could not be stopped after a signal; empty if it was, or if no signal asked for it."""
        self._view: RunView = events or open_view(record, view, ranks, output, self._cancel, self._stop_requested.set)
        self._ended: RunEnded | None = None
        """The end of the run; None if it was not seen."""
        self._run_dir = RunRegistry().directory / record.id
        self._follower = Follower(
            record,
            self._open,
            self._on_event,
            self._cancel,
            # The copy has all ranks, even hidden ones: fetching them afterwards would delay the end.
            copy=LocalCopy(self._run_dir) if record.is_kept else None,
            first_call=started[1] if started is not None else None,
            figures=self._view.figures_interval,
            reconnect=view.reconnect,
            open_host=connector.open,
        )

    def run(self, interrupt: Interrupt | None = None) -> int:
        """Follow the run, and return the exit code. `interrupt`: a signal that arrived before."""
        threading.Thread(target=self._stop_when_asked, name="stop", daemon=True).start()
        with handling_signals(self._handle_signal), self._view:
            if interrupt is not None and interrupt.code is not None:
                interrupt.is_over = True
                self._handle_signal(interrupt.code - 128, write_to_terminal)
            self._ended = ended = self._follow()
            if self.code is not None:  # a blocked reader of stdout must not delay the exit after a signal
                last = threading.Timer(STOPPED_RUN_SILENCE, self._cancel.throw)
                last.daemon = True
                last.start()
        return self._print_end(ended)

    def _follow(self) -> RunEnded | None:
        """Follow the run to its end; None if the call detached or was cut short.

        If node0 is lost, the local copy tells the end.
        """
        try:
            return self._follower.follow()
        except Cancelled:
            return None
        except HostError as error:
            return follow_copy_instead(self._record, error, self._follower.status, self._on_event, self._cancel)
        finally:
            self._over.set()

    def _print_end(self, ended: RunEnded | None) -> int:
        """Print how the run ended, or that it goes on; return the exit code."""
        run = self._record.id
        is_cut_short = self._view.drops_output and self._cancel.thrown
        is_stopped = self.code is not None and not self._is_detached and (ended is None or is_cut_short)
        if ended is None and self._not_stopped:
            print_message(self._not_stopped, Fix(f"run {run} may still be running: `ipexctl stop {run}`"))
        elif is_stopped or self._has_left_ended():
            print_message(Fix(f"run {run} is over; not all of its output was shown: `ipexctl logs {run}`"))
        elif ended is None:
            print_message(*self._left_lines())
        if self.code is not None:
            return self.code
        if not self._record.is_kept and ended is not None and ended.status is not None and ended.status.code:
            print_message(Fix(f"`ipexctl why {run}`"))
        elif ended is not None and ended.status is not None and ended.status.state == "failed":
            from ipexctl.commands.why_command import cause_lines
            from ipexctl.run.why.why import cause_from_copy, is_for_want_of_gpu

            cause = cause_from_copy(self._record, self._run_dir.parent)
            print_message(*fit_lines(cause_lines(run, cause)))
            if is_for_want_of_gpu(cause):
                self._print_gpu_command()
            if ended.status.fetch_line and (line := self._record.continue_command):
                script, checkpoint = self._record.plan.asked.script, ended.status.checkpoint
                print_message(f"  {checkpoint} is there; {script} decides whether it loads it: {line}")
        elif ended is not None and ended.status is not None and ended.status.lacks_gpu:
            self._print_gpu_command()
        self._check_output()
        return 0 if ended is None else ended.exit_code

    def _print_gpu_command(self) -> None:
        """Print the command that lets the script see GPUs."""
        print_message(Fix("  to say that there are GPUs: {line}", line=self._record.gpu_command))

    def _left_lines(self) -> tuple[str, ...]:
        """Return the lines that say where the run goes on."""
        record = self._record
        whose = "" if record.is_own else explain_foreign_run(record)
        return left_lines(record.id, record.node0.name, self._follower.unseen, whose)

    def _has_left_ended(self) -> bool:
        """True if the reader of stdout closed it, and the run has ended."""
        status = self._follower.status
        return self._ended is None and self._view.broken is not None and status is not None and status.is_over

    def finish(self, code: int, reason: str, fix: str) -> None:
        """Write the end to the view. `reason`, `fix`: of a failed connection; empty without one."""
        status = self._ended.status if self._ended is not None else read_final_status(self._run_dir)
        self._view.finish(code, status, reason, fix)
        if self.code is None:
            self._check_output()

    def _check_output(self) -> None:
        """Raise an OutputError if stdout broke."""
        if self._view.broken is not None:
            raise OutputError(self._view.broken)

    def _on_event(self, event: RunUpdate) -> None:
        """Show an event."""
        self._view.watch(event)
        self._last_event_at = time.monotonic()

    def _open(self, cancel: Cancel) -> Session:
        """Return the session that started the run, on the first call; later a new one."""
        session, self._session = self._session, None
        if session is None:
            return self._connector.open(self._record.node0, cancel)
        session.cancel = cancel
        return session

    def _handle_signal(self, number: int, leave: Leave) -> None:
        """React to a signal: the first stops the run or detaches, the second exits."""
        if self.code is None:
            self.code = 128 + number
            self._is_detached = number in self._detaching
            if self._is_detached or self._over.is_set():
                self._cancel.throw()
                return
            self._number = number
            self._stop_requested.set()
            self._view.stopping()
        elif number != signal.SIGHUP:  # a terminal closed during the stop is ignored
            self._view.abandon()
            run = self._record.id
            if self._over.is_set():
                leave("left before all was shown")
            elif self._is_detached:
                leave(*self._left_lines())
            words = shlex.split(self._record.call_text(Fix(f"`ipexctl stop {run}`")))
            argv, nowhere = [sys.executable, "-c", _MAIN, *words[1:]], subprocess.DEVNULL
            subprocess.Popen(argv, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
            end = Fix(f"run {run} is being stopped in the background: `ipexctl why {run}` shows its end")
            leave(Fix("exited without waiting; {end}", end=end))

    def _stop_when_asked(self) -> None:
        """Stop the run when a key or a signal asks for it. A thread; the follower continues and shows the end."""
        while True:
            self._stop_requested.wait()
            self._stop_requested.clear()
            try:
                self._stop()
            except HostError as error:
                self._report_not_stopped(f"{self._record.node0.name}: {error.reason}")
            while self.code is not None and not self._over.wait(0.5):
                if time.monotonic() - self._last_event_at > STOPPED_RUN_SILENCE:
                    self._cancel.throw()

    def _stop(self) -> None:
        """Stop the run. Raises a HostError if it is not the user's own, or does not end."""
        if not self._record.is_own:
            raise HostError(
                Fix(f"{explain_foreign_run(self._record)}; `ipexctl stop {self._record.id} --force` stops it")
            )
        with closing(self._connector.open(self._record.node0, Cancel())) as session:
            stopped = stop(session, self._record, number=self._number)
        if not stopped.status.is_over:
            raise HostError("it has the request to stop, but has not ended yet")

    def _report_not_stopped(self, reason: str) -> None:
        """After a signal, end the call with the reason; after a key, show it and go on."""
        if self.code is not None:
            self._not_stopped = reason
            self._cancel.throw()
        else:
            self._on_event(Notice(f"it could not be stopped: {reason}", True))
            self._view.not_stopping()

"""A run before somebody's eyes, for `run` and `attach`: live or plain, stopped by Ctrl-C, left by SIGHUP or `q`."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ipexctl.cli.interrupt import handling_signals, write_to_terminal
from ipexctl.cli.run_hosts import connector_of, host_failed
from ipexctl.errors import OutputError
from ipexctl.jobs.events import RunEnded, RunNotice, RunStatus
from ipexctl.jobs.follow import Follower, run_exit_code
from ipexctl.jobs.local_copy import LocalCopy, read_copy
from ipexctl.jobs.ranks import EVERY_RANK, RankSet
from ipexctl.jobs.registry import RunRegistry
from ipexctl.jobs.stop import stop
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import Connector
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.ui.messages import print_message
from ipexctl.ui.run.live import LiveRun, wants_live
from ipexctl.ui.run.plain import PlainRun
from ipexctl.ui.run.summary import cut_short_lines, left_lines, not_stopped_lines

if TYPE_CHECKING:
    from ipexctl.cli.interrupt import Interrupt, Leave
    from ipexctl.jobs.events import Event
    from ipexctl.jobs.registry import RunRecord
    from ipexctl.remote.session import Session

_PATIENCE: Final = 8.0
"""Seconds without an event until a run that was stopped is left, though its last lines aren't shown."""
_SELDOM: Final = 10.0
"""Seconds between two looks at figures that nobody sees."""


@dataclass(frozen=True, slots=True)
class View:
    """How the run is to be shown."""

    plain: bool = False
    live: bool = False
    ranks: RankSet = EVERY_RANK
    no_color: bool = False
    quiet: bool = False


def watch_run(record: RunRecord, view: View, *, session: Session | None = None, came: Interrupt | None = None) -> int:
    """Show the run until it ends or is left; returns the exit code of the call.

    `session` is one that is open to node0 already; it is closed here. `came`: what heeded signals until now.
    """
    with connector_of(record) as connector:
        watching = _Watching(record, connector, view, session)
        try:
            return watching.run(came)
        except HostError as error:
            code = host_failed(record, error)
            return code if watching.code is None else watching.code


class _Watching:
    """`code` is the exit code that a signal asked for."""

    def __init__(self, record: RunRecord, connector: Connector, view: View, session: Session | None) -> None:
        self.code: int | None = None
        self._record = record
        self._reach = connector
        self._session = session
        self._cancel = Cancel()
        self._asked = threading.Event()
        self._number = int(signal.SIGINT)
        self._over = threading.Event()
        self._heard_at = time.monotonic()
        self._not_stopped = ""
        self._shown: LiveRun | PlainRun
        if wants_live(os.environ, plain=view.plain, live=view.live):
            first = RunStatus(
                record.id,
                "starting",
                record.script,
                record.env,
                len(record.hosts) or 1,
                record.world_size,
                record.started,
            )
            self._shown = LiveRun(first, self._asked.set, self._cancel.throw, ranks=view.ranks, no_color=view.no_color)
        else:
            self._shown = PlainRun(self._cancel, ranks=view.ranks, no_color=view.no_color, quiet=view.quiet)
        self._place = RunRegistry().directory / record.id
        self._follower = Follower(
            record,
            self._open,
            self._watch,
            self._cancel,
            copy=LocalCopy(
                self._place
            ),  # of all ranks, whichever are shown: brought afterwards, they would hold up the end
            figures=0.5 if isinstance(self._shown, LiveRun) else _SELDOM,
        )

    def run(self, came: Interrupt | None = None) -> int:
        threading.Thread(target=self._stop_when_asked, name="stop", daemon=True).start()
        with handling_signals(self._heed), self._shown:
            if came is not None and came.code is not None:
                self._heed(came.code - 128, write_to_terminal)
            ended = self._follow()
            if self.code is not None:  # a reader that doesn't read keeps nobody who wants to leave
                last = threading.Timer(_PATIENCE, self._cancel.throw)
                last.daemon = True
                last.start()
        return self._say_after(ended)

    def _follow(self) -> RunEnded | None:
        """How the run ended; None where it was left before."""
        try:
            return self._follower.follow()
        except Cancelled:
            return None
        except HostError as error:
            return self._show_copy(error)
        finally:
            self._over.set()

    def _show_copy(self, error: HostError) -> RunEnded:
        """For a run that is over, whose node0 is out of reach or has forgotten it."""
        copy = read_copy(self._place)
        if self._follower.status is not None or copy is None or not copy.is_whole:
            raise error
        self._watch(RunNotice(f"{self._record.node0.name}: {error.reason}; this is the copy on this machine", True))
        for chunk in copy.chunks(None, ("stdout", "stderr")):
            self._watch(chunk)
        ended = RunEnded(run_exit_code(copy.status), copy.status)
        self._watch(ended)
        return ended

    def _say_after(self, ended: RunEnded | None) -> int:
        run = self._record.id
        if ended is None and self._not_stopped:
            print_message("\n".join(not_stopped_lines(run, self._not_stopped)))
        elif self.code not in (None, 128 + signal.SIGHUP) and (ended is None or self._is_cut_short):
            print_message("\n".join(cut_short_lines(run)))
        elif ended is None and (isinstance(self._shown, PlainRun) or not self._shown.detached):
            print_message("\n".join(left_lines(run)))
        if self.code is not None:
            return self.code
        if ended is not None and ended.status is not None and ended.status.state == "failed":
            self._say_why()
        if isinstance(self._shown, PlainRun) and self._shown.broken:
            raise OutputError(self._shown.broken)
        return 0 if ended is None else ended.exit_code

    @property
    def _is_cut_short(self) -> bool:
        return isinstance(self._shown, PlainRun) and self._cancel.thrown

    def _say_why(self) -> None:
        from ipexctl.jobs.why.why import cause_from_copy
        from ipexctl.ui.why import cause_lines

        print_message("\n".join(cause_lines(self._record.id, cause_from_copy(self._record, self._place.parent))))

    def _watch(self, event: Event) -> None:
        self._shown.watch(event)
        self._heard_at = time.monotonic()

    def _open(self, cancel: Cancel) -> Session:
        session, self._session = self._session, None
        return session or self._reach.open(self._record.node0, cancel)

    def _heed(self, number: int, leave: Leave) -> None:
        """The first signal stops the run, or leaves it; the second leaves at once. This interrupts whatever we do."""
        if self.code is None:
            self.code = 128 + number
            if number == signal.SIGHUP or self._over.is_set():
                self._cancel.throw()
                return
            self._number = number
            self._asked.set()
            if isinstance(self._shown, LiveRun):
                self._shown.stopping()
            else:
                write_to_terminal("stopping on every host (once more to leave at once)\n")
        elif number != signal.SIGHUP:  # a terminal that is closed while the run is being stopped changes nothing
            if isinstance(self._shown, LiveRun):
                self._shown.abandon()
            run = self._record.id
            left = f"left at once; run {run} may go on: ipexctl stop {run}\n"
            leave("left before all was shown\n" if self._over.is_set() else left)

    def _stop_when_asked(self) -> None:
        """By a key or a signal. Meanwhile the run is followed further, and shows how it ends."""
        while True:
            self._asked.wait()
            self._asked.clear()
            try:
                self._stop()
            except HostError as error:
                self._tell_not_stopped(f"{self._record.node0.name}: {error.reason}")
            while self.code is not None and not self._over.wait(0.5):
                if time.monotonic() - self._heard_at > _PATIENCE:
                    self._cancel.throw()

    def _stop(self) -> None:
        cancel = Cancel()
        session = self._reach.open(self._record.node0, cancel)
        try:
            stopped = stop(session, self._record, number=self._number, cancel=cancel)
        finally:
            session.close()
        if not stopped.is_over:
            raise HostError("it has been told, and is not over yet")

    def _tell_not_stopped(self, reason: str) -> None:
        if self.code is not None:
            self._not_stopped = reason
            self._cancel.throw()
        else:
            self._watch(RunNotice(f"it could not be stopped: {reason}", True))
            if isinstance(self._shown, LiveRun):
                self._shown.not_stopping()

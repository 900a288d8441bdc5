"""A run before somebody's eyes, for `run` and `attach`: live or plain, stopped by Ctrl-C, left by SIGHUP or `q`."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipexctl.cli.interrupt import cancelling
from ipexctl.errors import OutputError
from ipexctl.jobs.events import Said, Status
from ipexctl.jobs.follow import Follower
from ipexctl.jobs.ranks import EVERY_RANK, RankSet
from ipexctl.jobs.stop import stop
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import Cancelled, HostError, Unreachable
from ipexctl.remote.reach import Reach, ReachOptions
from ipexctl.ui.run_live import LiveRun, wants_live
from ipexctl.ui.run_plain import PlainRun
from ipexctl.ui.run_summary import left_lines
from ipexctl.ui.say import say

if TYPE_CHECKING:
    from ipexctl.cli.interrupt import Interrupt
    from ipexctl.jobs.record import RunRecord
    from ipexctl.remote.session import Session


@dataclass(frozen=True, slots=True)
class View:
    """How the run is to be shown."""

    plain: bool = False
    live: bool = False
    ranks: RankSet = EVERY_RANK
    no_color: bool = False
    quiet: bool = False


def reach_of(record: RunRecord) -> Reach:
    """By the way it was reached when it was started."""
    policy: Any = record.host_keys
    return Reach(ReachOptions(connect_timeout=record.connect_timeout, host_keys=policy))


def host_failed(record: RunRecord, error: HostError) -> int:
    """Say what node0 could not do, and return the contract's exit code."""
    say(f"{record.node0.name}: {error.reason}" + (f"\n  {error.fix}" if error.fix else ""))
    return 3 if isinstance(error, Unreachable) else 1


def watch_run(record: RunRecord, view: View) -> int:
    """Show the run until it ends or is left; returns the exit code of the call."""
    cancel = Cancel()
    with cancelling(cancel) as interrupt, reach_of(record) as reach:
        try:
            return _Watching(record, reach, view, cancel, interrupt).run()
        except HostError as error:
            return host_failed(record, error)


class _Watching:
    def __init__(self, record: RunRecord, reach: Reach, view: View, cancel: Cancel, interrupt: Interrupt) -> None:
        self._record = record
        self._reach = reach
        self._interrupt = interrupt
        self._stopper: threading.Thread | None = None
        self.shown: LiveRun | PlainRun
        if wants_live(os.environ, plain=view.plain, live=view.live):
            first = Status(
                record.id,
                "starting",
                record.script,
                record.env,
                len(record.hosts) or 1,
                record.world_size,
                record.started,
            )
            self.shown = LiveRun(first, self._stop_aside, cancel.throw, ranks=view.ranks, no_color=view.no_color)
        else:
            self.shown = PlainRun(cancel, ranks=view.ranks, no_color=view.no_color, quiet=view.quiet)
        wanted = [rank for rank in range(record.world_size) if rank in view.ranks]
        few = isinstance(self.shown, PlainRun) and not view.ranks.everyone
        self._follower = Follower(record, self._open, self.shown.watch, cancel, ranks=wanted if few else None)

    def run(self) -> int:
        with self.shown:
            code = self._follow()
            if self._stopper is not None:
                self._stopper.join(1.0)
        if code is None and isinstance(self.shown, PlainRun):
            say("\n".join(left_lines(self._record.id)))
        if isinstance(self.shown, PlainRun) and self.shown.broken:
            raise OutputError(self.shown.broken)
        return code if code is not None else self._interrupt.code or 0

    def _follow(self) -> int | None:
        """The call's exit code; None where the run was left to itself."""
        try:
            return self._follower.follow().exit_code
        except Cancelled:
            if self._interrupt.code in (None, 128 + signal.SIGHUP):
                return None
        self._follower.cancel = cancel = Cancel()
        try:
            self._stop(cancel)
            self._follower.follow()
        except HostError as error:
            host_failed(self._record, error)
            say(f"run {self._record.id} may go on: ipexctl stop {self._record.id}")
        return self._interrupt.code

    def _stop(self, cancel: Cancel) -> None:
        session = self._open(cancel)
        try:
            stop(session, self._record, number=(self._interrupt.code or 143) - 128, cancel=cancel)
        finally:
            session.close()

    def _open(self, cancel: Cancel) -> Session:
        return self._reach.open(self._record.node0, cancel)

    def _stop_aside(self) -> None:
        """The key for it was pressed: the view goes on, and shows how the run ends."""

        def work() -> None:
            try:
                self._stop(Cancel())
            except HostError as error:
                self.shown.watch(Said(f"it could not be stopped: {error.reason}", True))

        self._stopper = threading.Thread(target=work, name="stop", daemon=True)
        self._stopper.start()

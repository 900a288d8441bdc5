"""Tells node0 of a trial that the call which watches it lives; `node/run/machine.py` ends the trial without it."""

from __future__ import annotations

import contextlib
import shlex
import threading
from typing import TYPE_CHECKING, Final

from ipexctl.node.common.job import CALLER_FILE
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import capture

if TYPE_CHECKING:
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.run.registry import RunRecord

INTERVAL: Final = 10.0
"""Seconds; each time costs node0 a process of some milliseconds."""


class Heartbeat:
    """A context in which node0 hears of this call, over a connection that is open anyway, or a new one if it breaks."""

    def __init__(self, record: RunRecord, pool: SessionPool) -> None:
        self._record, self._pool = record, pool
        self._over, self._cancel = threading.Event(), Cancel()
        self._own: Session | None = None

    def __enter__(self) -> Heartbeat:
        run_in_background(self._beat, "heartbeat")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._cancel.throw()

    def _beat(self) -> None:
        command = Command(f"touch {shlex.quote(f'{self._record.rundir}/{CALLER_FILE}')}", "show that the call lives")
        session = self._pool.opened(self._record.node0)
        try:
            while not self._over.wait(INTERVAL):
                try:
                    if session is None:
                        session = self._own = self._pool.connector.open(self._record.node0, self._cancel)
                    capture(session, command, timeout=INTERVAL, cancel=self._cancel)
                except HostError:
                    self._close()
                    session = None
        finally:
            self._close()

    def _close(self) -> None:
        if self._own is not None:
            with contextlib.suppress(OSError, EOFError):
                self._own.close()
            self._own = None

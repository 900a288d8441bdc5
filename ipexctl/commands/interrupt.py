"""Handle signals while hosts work: the first signal cancels all steps, the second exits at once.

A signal must end the call even if a thread hangs or stdout is a full pipe, so a thread of its own exits the process
after a while.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import typer

from ipexctl.errors import CallError, Interrupted
from ipexctl.node.common.processes import seconds_queued
from ipexctl.remote.cancel import Cancel, cleanups, end_own_groups
from ipexctl.remote.outcome import Cancelled
from ipexctl.ui.message_output import STOPPING, write_to_terminal

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Leave = Callable[..., None]
LAST_SECONDS: Final = 2.0
"""Seconds for a call to end after a signal; seconds of processor time where the machine is busy."""
LONGEST_CLEANUP: Final = 10.0
"""Seconds that hosts may take to end and remove what the call began, before `LAST_SECONDS` count."""
_TICK: Final = 0.05
"""Seconds between looks."""
SAME_SIGNAL: Final = {signal.SIGTERM: 1.0, signal.SIGINT: 0.05, signal.SIGHUP: 1.0}
"""Seconds within which a repeated signal counts once: `timeout` signals the program and its group, and a service
manager every process of a unit. Pressing Ctrl-C twice on purpose takes longer than 0.05 s."""


class Interrupt:
    """Which signal arrived, for the exit code of the call."""

    code: int | None = None
    """Exit code for the signal that arrived; None if none did."""
    is_over = False
    """True once something else decides how the call ends."""

    def check(self) -> None:
        """Raise Interrupted after a signal, because the report of the call is incomplete."""
        if self.code is not None:
            raise Interrupted(self.code)

    def or_exit(self, code: int) -> typer.Exit:
        """Return an exit with this code or, after a signal, with the code of the signal. The caller raises it."""
        return typer.Exit(code if self.code is None else self.code)


@contextmanager
def cancelling(cancel: Cancel, *, only_waits: bool = False) -> Iterator[Interrupt]:
    """Throw `cancel` on the first signal; end the process with the second.

    `only_waits`: True if nothing runs on the hosts for this call, so there is nothing to say. A cancelled step without
    results of hosts raises Interrupted with the exit code of the signal; a CallError gets that code.
    """
    interrupt = Interrupt()

    def handle(number: int, leave: Leave) -> None:
        """React to a signal."""
        if interrupt.code is None:
            interrupt.code = 128 + number
            cancel.throw()
            # Not by a `Thread`, whose start takes a lock.
            _thread.start_new_thread(leave_late, (interrupt, terminal, last_words))
            if not only_waits:
                write_to_terminal(STOPPING)
        else:
            leave(*last_words)

    terminal = _terminal_state()
    last_words = [] if only_waits else ["exited without waiting: processes may still be running on the hosts"]
    with handling_signals(handle):
        try:
            yield interrupt
        except Cancelled:
            if interrupt.code is None:
                raise
            raise Interrupted(interrupt.code) from None
        except CallError as error:
            error.exit_code = interrupt.code or error.exit_code
            raise


def leave_late(interrupt: Interrupt, terminal: list[Any] | None = None, last_words: Sequence[str] = ()) -> None:
    """End the process if a thread hangs: in a login, a name server, a full pipe. Runs in a thread of its own."""
    left, until = LAST_SECONDS, time.monotonic() + LONGEST_CLEANUP
    while left > 0:
        queued, computed = seconds_queued(), time.process_time()
        time.sleep(_TICK)
        if interrupt.is_over:
            return
        is_starved = seconds_queued() - queued > _TICK / 2
        if not cleanups or time.monotonic() > until:
            left -= time.process_time() - computed if is_starved else _TICK
    _restore(terminal)
    end_own_groups()
    write_to_terminal(*last_words)
    os._exit(interrupt.code or 0)


@contextmanager
def handling_signals(handle: Callable[[int, Leave], None]) -> Iterator[None]:
    """Pass SIGINT, SIGTERM and SIGHUP to `handle`, which can call `leave(*lines)` to end the process by the signal.

    What the caller of ipexctl ignores stays ignored: SIGHUP under nohup, SIGINT in a script's background (`ipexctl …
    &`). SIGTERM is always handled.
    """
    last = dict.fromkeys(_SIGNALS, -math.inf)

    def on_signal(number: int, _: FrameType | None) -> None:
        """Pass the signal on, unless it repeats the last one."""
        of_signal = signal.Signals(number)
        before, last[of_signal] = last[of_signal], time.monotonic()
        if last[of_signal] - before < SAME_SIGNAL[of_signal]:
            return

        def leave(*lines: str) -> None:
            """End the process by the signal, after these lines."""
            signal.signal(number, signal.SIG_DFL)
            _restore(terminal)
            end_own_groups()
            write_to_terminal(*lines)
            signal.raise_signal(number)

        handle(number, leave)

    terminal = _terminal_state()
    numbers = [
        number for number in _SIGNALS if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _restore(terminal)


def _terminal_state() -> list[Any] | None:
    """Return the settings of the terminal; None without one.

    A prompt for a passphrase in another thread turns echo off, and an exit must turn it on again.
    """
    with contextlib.suppress(termios.error, ValueError, OSError):
        return termios.tcgetattr(sys.stdin.fileno())
    return None


def _restore(terminal: list[Any] | None) -> None:
    """Restore the terminal; not in the background, where the kernel would stop this process."""
    if terminal is not None:
        with contextlib.suppress(termios.error, OSError):
            if os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
                return
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, terminal)

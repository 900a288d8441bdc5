"""What Ctrl-C and friends mean while hosts are at work: once, everything is ended; twice, we leave at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ipexctl.errors import Interrupted
from ipexctl.remote.outcome import Cancelled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from ipexctl.remote.cancel import Cancel

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Leave = Callable[[str], None]


class Interrupt:
    """Whether a signal came, and the exit code it asks for."""

    code: int | None = None


@contextmanager
def cancelling(cancel: Cancel) -> Iterator[Interrupt]:
    """Throw the switch on the first signal; on the second, leave as the signal would have it.

    A step that was stopped before any host's own outcome could say so ends the call with the signal's code.
    """
    came = Interrupt()

    def handle(number: int, leave: Leave) -> None:
        if came.code is None:
            came.code = 128 + number
            cancel.throw()
            write_to_terminal("stopping on every host (once more to leave at once)\n")
        else:
            leave("left without waiting: something may still be running on the hosts\n")

    with handling_signals(handle):
        try:
            yield came
        except Cancelled:
            if came.code is None:
                raise
            raise Interrupted(came.code) from None


@contextmanager
def handling_signals(handle: Callable[[int, Leave], None]) -> Iterator[None]:
    """While inside, Ctrl-C and friends go to `handle`, which may `leave` as the signal would have it, with a word.

    Who was told to live through a closed terminal (nohup) does.
    """

    def take(number: int, _: FrameType | None) -> None:
        def leave(text: str) -> None:
            signal.signal(number, signal.SIG_DFL)
            _restore(terminal)
            write_to_terminal(text)
            signal.raise_signal(number)

        handle(number, leave)

    terminal = _terminal_state()
    heeded = [number for number in _SIGNALS if number != signal.SIGHUP or not _is_ignored(number)]
    before = {number: signal.signal(number, take) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _restore(terminal)


def _is_ignored(number: int) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN


def write_to_terminal(text: str) -> None:
    """Straight to the descriptor: the handler may have interrupted whoever holds a lock or a buffer of stderr's.

    A reader that doesn't read must not hold us up either.
    """
    with contextlib.suppress(OSError, ValueError):
        blocking = os.get_blocking(2)
        os.set_blocking(2, False)
        try:
            os.write(2, text.encode())
        finally:
            os.set_blocking(2, blocking)


def _terminal_state() -> list[Any] | None:
    """A passphrase prompt in another thread turns echo off; if we leave in its middle, somebody must turn it on."""
    with contextlib.suppress(termios.error, ValueError, OSError):
        return termios.tcgetattr(sys.stdin.fileno())
    return None


def _restore(terminal: list[Any] | None) -> None:
    """A job in the background would be stopped for touching the terminal, and has no say in it."""
    if terminal is not None:
        with contextlib.suppress(termios.error, OSError):
            if os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
                return
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, terminal)

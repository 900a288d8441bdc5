"""What Ctrl-C and friends mean while hosts are at work: once, everything is ended; twice, we leave at once."""

from __future__ import annotations

import contextlib
import signal
import sys
import termios
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ipexctl.ui.say import say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from ipexctl.remote.cancel import Cancel

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Whether a signal came, and the exit code it asks for."""

    code: int | None = None


@contextmanager
def cancelling(cancel: Cancel) -> Iterator[Interrupt]:
    """Throw the switch on the first signal; on the second, leave as the signal would have it."""
    came = Interrupt()

    def handle(number: int, _: FrameType | None) -> None:
        if came.code is None:
            came.code = 128 + number
            say("stopping on every host (once more to leave at once)")
            cancel.throw()
        else:
            say("left without waiting: something may still be running on the hosts")
            _restore(terminal)
            sys.stderr.flush()
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    terminal = _terminal_state()
    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _restore(terminal)


def _terminal_state() -> list[object] | None:
    """A passphrase prompt in another thread turns echo off; if we leave in its middle, somebody must turn it on."""
    with contextlib.suppress(termios.error, ValueError, OSError):
        return list(termios.tcgetattr(sys.stdin.fileno()))
    return None


def _restore(terminal: list[object] | None) -> None:
    if terminal is not None:
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, terminal)  # type: ignore[arg-type]

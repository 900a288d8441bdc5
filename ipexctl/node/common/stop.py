"""Commands that end early: by a signal, or because the control machine no longer reads what they write."""

from __future__ import annotations

import select
import signal
from typing import TYPE_CHECKING, Any

from ipexctl.node.common.answer import answer, emit

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Action

EXIT_CODE = 143
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asks this process to end, or its reader is gone."""


def stop_on_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, _stop)


def _stop(*_: object) -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise Stopped


def emit_step(what: str) -> None:
    """Report what is done now."""
    emit_or_stop("step", what=what)


def emit_or_stop(event: str, **fields: Any) -> None:
    try:
        emit(event, **fields)
    except BrokenPipeError:
        raise Stopped from None


def check_reader() -> None:
    """Raises Stopped when the reader of stdout is gone."""
    poller = select.poll()
    poller.register(1, 0)
    if poller.poll(0):
        raise Stopped


def answer_until_stopped(action: Action) -> int:
    """As `answer`, for an action that cleans up behind itself when Stopped is raised in it."""
    stop_on_signals()
    try:
        return answer(action, private=False)
    except (Stopped, BrokenPipeError):
        return EXIT_CODE

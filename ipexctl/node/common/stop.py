"""Ends commands early: on a signal, or when the control machine no longer reads their output."""

from __future__ import annotations

import select
import signal

from ipexctl.node.common.answer import Action, answer, emit

EXIT_CODE = 143
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stopped(BaseException):
    """This process got a signal, or stdout has no reader."""


def stop_on_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, _stop)


_signals: list[object] = []
"""Signals so far. Python drops an exception of a handler that runs in a callback, such as one after a fork."""


def _stop(received: object, _: object) -> None:
    _signals.append(received)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise Stopped


def emit_step(what: str) -> None:
    try:
        emit("step", what=what)
    except BrokenPipeError:
        raise Stopped from None


def check_stopped() -> None:
    """Raises Stopped after a signal, or when stdout has no reader."""
    poller = select.poll()
    poller.register(1, 0)
    if _signals or poller.poll(0):
        raise Stopped


def answer_until_stopped(action: Action) -> int:
    """Like `answer`, for an action that cleans up when Stopped is raised in it."""
    stop_on_signals()
    try:
        return answer(action)
    except (Stopped, BrokenPipeError):
        return EXIT_CODE

"""Cancellation from a signal handler, and callbacks that are registered after it."""

from __future__ import annotations

import threading

from ipexctl.remote.cancel import Cancel


def test_throw_in_a_signal_handler_does_not_deadlock_with_a_callback_lock() -> None:
    cancel, held, woken = Cancel(), threading.Lock(), threading.Event()

    def wake() -> None:
        with held:
            woken.set()

    with cancel.waking(wake):
        with held:  # as in Event.wait and Event.clear
            cancel.throw()
            assert cancel.thrown
        assert woken.wait(10)


def test_callback_registered_after_throw_is_called_at_once() -> None:
    cancel, woken = Cancel(), threading.Event()
    cancel.throw()
    with cancel.waking(woken.set):
        assert woken.is_set()

"""Cancellation: from a signal handler, and of what begins after it."""

from __future__ import annotations

import threading

from ipexctl.remote.cancel import Cancel


def test_a_signal_handler_may_throw_while_its_thread_holds_what_a_callback_needs() -> None:
    cancel, held, woken = Cancel(), threading.Lock(), threading.Event()

    def wake() -> None:
        with held:
            woken.set()

    with cancel.waking(wake):
        with held:  # as in Event.wait and Event.clear
            cancel.throw()
            assert cancel.thrown
        assert woken.wait(10)


def test_what_begins_after_a_cancellation_is_woken_at_once() -> None:
    cancel, woken = Cancel(), threading.Event()
    cancel.throw()
    with cancel.waking(woken.set):
        assert woken.is_set()

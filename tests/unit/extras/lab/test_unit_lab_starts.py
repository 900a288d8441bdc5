"""An interrupted `up` waits for the hosts that it is starting before it removes the lab."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ipexctl.errors import UserError

up: Any = importlib.import_module("ipexctl.extras.lab.up")  # the package has a function of that name


def test_close_waits_for_starts_that_a_pool_forgot_and_lets_none_begin() -> None:
    starts = up._Starts()
    begun, seen = threading.Event(), []

    def start(number: int, *, is_closed: Callable[[], bool]) -> None:
        begun.set()
        while not is_closed():
            time.sleep(0.01)
        seen.append(number)

    threading.Thread(target=starts.call, args=(start, 1), daemon=True).start()
    assert begun.wait(10)
    starts.close()
    assert seen == [1]
    starts.call(start, 2)
    assert seen == [1]


def test_failed_start_is_not_under_way_any_more() -> None:
    starts = up._Starts()

    def fail(*, is_closed: Callable[[], bool]) -> None:
        raise UserError("no")

    with pytest.raises(UserError):
        starts.call(fail)
    starts.close()


def test_nobody_waits_for_the_banner_of_a_closed_start() -> None:
    up._await_banner("192.0.2.1", timeout=60, is_closed=lambda: True)

"""An interrupted `up` waits for the hosts that it is starting before it removes the lab."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipexctl.addons.lab import lab_system
from ipexctl.addons.lab.lab_system import CommandError
from ipexctl.errors import UserError
from ipexctl.node.common.processes import is_running
from message_data import missing

up: Any = importlib.import_module("ipexctl.addons.lab.up")  # the package has a function of that name


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


def test_program_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    """A fault's script would go on filling a disk that is being mended."""
    script = tmp_path / "fill"
    script.write_text(f"sleep 60 &\necho $! >{tmp_path}/pid\nwait\n")
    with pytest.raises(CommandError) as raised:
        lab_system.run(["/bin/sh", str(script)], timeout=1)
    assert missing(str(raised.value), f"{script} 1 s") == []
    pid = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(pid)

"""What is said of a host once a limit is reached: only what it measured, load before memory before disks."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from fakes import FakeSession
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.command import Command
from ipexctl.remote.outcome import TimedOut
from ipexctl.remote.session import BURDEN, CommandEnd, Readable, capture, describe_burden, timeout_error

BUSY = "93.10 2 61\n24 R bob    python3\n2 D root   dd\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            BUSY,
            "its load is 93 on 2 cores (24 python3 of bob compute now), 2 dd of root wait for a disk or file server",
        ),
        ("93.10 2 3\n", "its load is 93 on 2 cores, 3 % of its memory is left"),
        ("1.10 2 61\n1 R bob python3\n", ""),
        ("", ""),
        ("no such\x1b[31m file\n", ""),
        ("99 1 50\n1 R bob \x1b[2J\n", "its load is 99 on 1 core (1 \ufffd[2J of bob compute now)"),
    ],
)
def test_only_what_was_measured_is_said(text: str, said: str) -> None:
    assert describe_burden(text) == said


@pytest.mark.parametrize(("answer", "is_busy"), [(BUSY, True), ("0.10 2 61\n", False)])
@pytest.mark.parametrize("timeout", [None, 0.2])
def test_a_limit_that_is_reached_says_what_the_host_measured(
    answer: str, timeout: float | None, *, is_busy: bool
) -> None:
    class Slow(FakeSession):
        def _run(
            self, command: Command, sink: Callable[..., None], stdin: Readable | None, deadline: Deadline
        ) -> CommandEnd:
            if command is BURDEN:
                sink("stdout", answer.encode())
                return CommandEnd(0)
            while not deadline.over:
                time.sleep(0.01)
            raise timeout_error(deadline)

    with pytest.raises(TimedOut) as caught:
        capture(Slow(Host("a", "a")), Command.argv("true"), silence=0.2, timeout=timeout)
    assert ("load is 93" in caught.value.reason) == (is_busy and timeout is None)
    assert "disk hangs" not in f"{caught.value.reason} {caught.value.fix}"

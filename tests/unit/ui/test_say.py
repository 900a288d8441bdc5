"""What is said along the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.hosts.host import Host
from ipexctl.remote.command import Command
from ipexctl.ui.say import say_step

if TYPE_CHECKING:
    import pytest

NODE = Host("node1", "10.0.0.1")


def test_one_v_tells_steps_and_two_the_commands(capfd: pytest.CaptureFixture[str]) -> None:
    command = Command("exec ls -l /", "look around")
    say_step(1, NODE, None, 0.5)
    say_step(1, NODE, command, 1.25)
    assert capfd.readouterr().err == "node1: connected (0.500 s)\nnode1: look around (1.250 s)\n"
    say_step(2, NODE, command, 1.25)
    assert capfd.readouterr().err == "node1: look around (1.250 s)\n  exec ls -l /\n"


def test_of_a_command_that_brings_a_script_both_ends_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    say_step(2, NODE, Command(f"exec sh -c '{'x' * 9000}' list --all", "list"), 0.1)
    _, told = capfd.readouterr().err.splitlines()
    assert len(told) < 500
    assert told.startswith("  exec sh -c 'xxx")
    assert told.endswith("' list --all")

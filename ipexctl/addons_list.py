"""The addons: parts of ipexctl that the core imports only for a call that needs one."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

COMMANDS: Final[Mapping[str, str]] = {
    "lab": "Create and break a cluster of real SSH hosts on one machine.",
    "play": "Run a playbook of ipexctl tasks, files and commands on the hosts.",
    "report": "Write one HTML page that shows a run.",
}
"""Command → its line in the help. `addons/NAME/NAME_command.py` defines the command."""
ADDITIONS: Final[Mapping[str, str]] = {
    "labs-left": "lab.down:labs_left",
    "page-of-run": "report.report_command:write_report",
    "run-page": "report.report_command:RunPageFile",
}
"""Name by which the core asks for a function or class of an addon → `module:name` below `ipexctl.addons`."""


def addition(name: str) -> Any:
    """Import a function or class of an addon."""
    module, _, attribute = ADDITIONS[name].partition(":")
    return getattr(import_module(f"ipexctl.addons.{module}"), attribute)

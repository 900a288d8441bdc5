"""Starts another command of the running agent."""

from __future__ import annotations

import sys
from typing import List


def agent_argv(python: str, command: str, action: str = "", *, isolated: bool = True) -> List[str]:  # noqa: UP006
    """An argv that starts another command of this agent with that Python; valid while this process lives.

    Without `isolated`, PYTHONPATH and similar variables apply, as for a user's script.
    """
    return [python, "-I" if isolated else "-s", sys.path[0], command, *([action] if action else [])]


def own_archive() -> bytes:
    """The zip from which this agent was started, to be sent to another host."""
    with open(sys.path[0], "rb") as file:  # noqa: PTH123
        return file.read()

"""The running agent's own files, for programs that start another of its commands."""

from __future__ import annotations

import sys
from typing import List


def agent_argv(python: str, command: str, action: str = "", *, isolated: bool = True) -> List[str]:  # noqa: UP006
    """An argv that starts another command of this agent under that Python; valid as long as this process lives.

    Not `isolated`, it obeys PYTHONPATH and its like, as a user's script does.
    """
    return [python, "-I" if isolated else "-s", sys.path[0], command, *([action] if action else [])]


def own_archive() -> bytes:
    """The zip this agent was started from, to be sent on to another host."""
    with open(sys.path[0], "rb") as file:  # noqa: PTH123
        return file.read()

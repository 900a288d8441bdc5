"""The running agent: starts another of its commands, and opens the home with its copy."""

from __future__ import annotations

import os
import sys
import threading
from typing import List

from ipexctl.node.common import home as homes
from ipexctl.node.common.answer import AgentError, emit_failure, explain_os_error


def agent_argv(python: str, command: str, action: str = "", *, isolated: bool = True) -> List[str]:  # noqa: UP006
    """Return the command line of another command of this agent, valid while this process is running.

    If not `isolated`, PYTHONPATH and similar variables apply, as for a user's script.
    """
    return [python, "-I" if isolated else "-s", sys.path[0], command, *([action] if action else [])]


def open_home(copy: str, is_present: bool) -> None:
    """Check and mark the home, and save this agent there. Does not create a missing home; the command does."""
    try:
        exists = homes.open_home(os.path.dirname(os.path.dirname(copy)))  # noqa: PTH120
    except AgentError as error:
        emit_failure(error)
        sys.exit(1)
    except OSError as error:
        emit_failure(explain_os_error(error))
        sys.exit(1)
    if exists and not is_present:
        # In a thread, so that the command does not wait for the disk.
        threading.Thread(target=_unpack, args=(copy,)).start()


def _unpack(copy: str) -> None:
    from ipexctl.node.common.agent_copy import unpack_copy  # 10 ms, and the copy is usually present

    unpack_copy(copy)

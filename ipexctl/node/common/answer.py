"""Input and output of an agent command: a request as one line of JSON on stdin, events as lines of JSON on stdout."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any, BinaryIO, Callable, Dict

Json = Dict[str, Any]
Action = Callable[[Json, BinaryIO], Json]
_write_lock = threading.Lock()


class AgentError(Exception):
    """An error on this host, with a reason and a fix for the user."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


def emit(event: str, **fields: Any) -> None:
    """Write one event to stdout; raises an OSError when the control machine has closed it."""
    line = json.dumps({"event": event, **fields}).encode() + b"\n"
    with _write_lock:
        while line:
            line = line[os.write(1, line) :]


def answer(action: Action, *, private: bool = True) -> int:
    """Read the request, run the action, and emit its result as the last event; returns the exit code.

    `private`: new files are readable by this account only, regardless of its umask.
    """
    if private:
        os.umask(0o077)
    stdin = sys.stdin.buffer
    request = json.loads(stdin.readline())
    try:
        result = action(request, stdin)
    except AgentError as error:
        emit("failed", reason=error.reason, fix=error.fix)
        return 1
    emit("done", **result)
    return 0

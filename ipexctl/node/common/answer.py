"""The shape of an agent command: a request as one line of JSON on stdin, events as lines of JSON on stdout."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any, BinaryIO, Callable, Dict

Json = Dict[str, Any]
Action = Callable[[Json, BinaryIO], Json]
_writing = threading.Lock()


class AgentError(Exception):
    """What went wrong on this host, and what the user can do about it."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


def emit(event: str, **fields: Any) -> None:
    """Write one event to stdout; raises an OSError when the control machine no longer reads."""
    line = json.dumps({"event": event, **fields}).encode() + b"\n"
    with _writing:
        while line:
            line = line[os.write(1, line) :]


def answer(action: Action, *, private: bool = True) -> int:
    """Read the request, run the action, and emit its result as the last event; returns the exit code.

    `private`: new files are for this account only, whatever its umask says.
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

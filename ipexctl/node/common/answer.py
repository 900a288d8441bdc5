"""Input and output of an agent command: a request as one line of JSON on stdin, events as lines of JSON on stdout.

Output of ranks is not JSON: between two events, a command may send frames (`frames.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, Iterator

from ipexctl.node.common.json_records import as_json

if TYPE_CHECKING:
    from ipexctl.node.common.frames import CompressedFrameWriter

Json = Dict[str, Any]
Action = Callable[[Any, BinaryIO], object]
"""Takes the request and what follows it on stdin; returns a dict or a record."""
_write_lock = threading.Lock()


class AgentError(Exception):
    """An error on this host, with a reason and a fix for the user."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


def emit(event: str, **fields: Any) -> None:
    """Write one event to stdout; raises an OSError when the control machine has closed it."""
    _write(json.dumps({"event": event, **fields}).encode() + b"\n")


def emit_failure(error: AgentError) -> None:
    emit("failed", reason=error.reason, fix=error.fix)


def _write(data: bytes) -> None:
    with _write_lock:
        while data:
            data = data[os.write(1, data) :]


@contextlib.contextmanager
def emit_frames() -> Iterator[CompressedFrameWriter]:
    """The event `frames`, then a stream of frames; lines of JSON follow its end."""
    from ipexctl.node.common.frames import CompressedFrameWriter

    emit("frames")
    writer = CompressedFrameWriter(_write)
    try:
        yield writer
    finally:
        writer.close()


def answer(action: Action, stdin: BinaryIO | None = None) -> int:
    """Read the request, run the action, and emit its result as the last event; returns the exit code.

    New files are readable by this account only, regardless of its umask. An OSError of the action is explained.
    """
    os.umask(0o077)
    stdin = stdin or open(0, "rb", buffering=1 << 16, closefd=False)  # noqa: SIM115  # a pipe's size
    request = json.loads(stdin.readline())
    try:
        result = action(request, stdin)
    except AgentError as error:
        emit_failure(error)
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:
        from ipexctl.node.common.files import explain_os_error  # it imports this module

        emit_failure(explain_os_error(error, request.get("home", ""), "see: ipexctl doctor"))
        return 1
    emit("done", **as_json(result))
    return 0

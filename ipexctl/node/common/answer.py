"""Input and output of an agent command: a request as one line of JSON on stdin, events as lines of JSON on stdout.

Output of ranks and content of files are not JSON: they follow an event, as frames (`frames.py`) or as bytes. A failure
on the host is an `AgentError` with a reason and a fix; `answer` sends it as the last event, `failed`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, Iterator

from ipexctl.node.common.json_parser import JsonError, parse_object
from ipexctl.node.common.json_records import as_json

if TYPE_CHECKING:
    from ipexctl.node.common.frames import CompressedFrameWriter

Json = Dict[str, Any]
Action = Callable[[Any, BinaryIO], object]
"""Takes the request and what follows it on stdin; returns a dict or a record."""
_write_lock = threading.Lock()
_buffer = bytearray()
_buffer_size = 0
_writes = 0
FREE_SPACE_FIX = "make room there, or name another directory: --home DIR"
_OS_ERRORS = {
    errno.ENOSPC: ("the disk is full", FREE_SPACE_FIX),
    errno.EDQUOT: ("this account's disk quota is used up", FREE_SPACE_FIX),
    errno.EROFS: ("the filesystem is mounted read-only", "name a directory that can be written: --home DIR"),
    errno.EACCES: ("this account may not write there", "name a directory of its own: --home DIR"),
    errno.EPERM: ("this account may not write there", "name a directory of its own: --home DIR"),
    errno.ENOTDIR: ("a file is where a directory is needed", "move that file away"),
    errno.EEXIST: ("a file is where a directory is needed", "move that file away"),
    errno.EISDIR: ("a directory is where a file is needed", "look at its files, then move that directory away"),
    errno.ENOTEMPTY: ("a directory is where a file is needed", "look at its files, then move that directory away"),
}


class AgentError(Exception):
    """An error on this host, with a reason and a fix for the user."""

    is_wrong_call = False
    """The call names something that must not be used, on whatever host: it ends with exit code 2."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


def emit(event: str, **fields: Any) -> None:
    """Write one event to stdout; raises an OSError when the control machine has closed it."""
    write_bytes(json.dumps({"event": event, **fields}).encode() + b"\n")


def explain_os_error(error: OSError, path: str | bytes | os.PathLike[str] = "", fix: str = "") -> AgentError:
    """An AgentError for a filesystem error. `path` is for errors without a path, `fix` for unusual errors."""
    location = error.filename if error.filename is not None else path
    location = location.decode("utf-8", "surrogateescape") if isinstance(location, bytes) else location
    reason, fix = _OS_ERRORS.get(error.errno or 0, (error.strerror or str(error), fix))
    return AgentError(f"{location}: {reason}" if location else reason, fix)


def emit_with_bytes(event: str, data: bytes, **fields: Any) -> None:
    """An event and the bytes that it announces, with nothing in between."""
    with _write_lock:
        _write_or_buffer(json.dumps({"event": event, **fields}).encode() + b"\n")
        _write_or_buffer(data)


@contextlib.contextmanager
def signs_of_life(interval: float, longest: float) -> Iterator[None]:
    """Meanwhile an event `working` comes where nothing else was written for `interval` seconds, and what is buffered.

    So the control machine can tell a program that reads a large file from one that hangs. After `longest` seconds of
    such signs alone there are no more: then a disk hangs.
    """
    over = threading.Event()

    def show() -> None:
        silent, before = 0.0, _writes
        while not over.wait(interval):
            silent = silent + interval if before == _writes else 0.0
            if 0 < silent <= longest:
                with contextlib.suppress(OSError), _write_lock:
                    _buffer.extend(b'{"event": "working"}\n')
                    _flush()
            before = _writes

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def emit_failure(error: AgentError) -> None:
    emit("failed", reason=error.reason, fix=error.fix, **({"wrong_call": True} if error.is_wrong_call else {}))


def write_bytes(data: bytes) -> None:
    """Write bytes to stdout that an event has announced. Data that fills the buffer is not copied into it."""
    with _write_lock:
        _write_or_buffer(data)


def _write_or_buffer(data: bytes) -> None:
    if len(_buffer) + len(data) < _buffer_size:
        _buffer.extend(data)
    else:
        _flush()
        _write_all(data)


def buffer_output(size: int) -> None:
    """From now on collect so many bytes before they are written: many small events become few writes."""
    global _buffer_size
    with _write_lock:
        _flush()
        _buffer_size = size


def _flush() -> None:
    data = bytes(_buffer)
    _buffer.clear()
    _write_all(data)


def _write_all(data: bytes) -> None:
    global _writes
    _writes += 1
    left = memoryview(data)
    while left:
        left = left[os.write(1, left) :]


@contextlib.contextmanager
def emit_frames() -> Iterator[CompressedFrameWriter]:
    """The event `frames`, then a stream of frames; lines of JSON follow its end."""
    from ipexctl.node.common.frames import CompressedFrameWriter

    emit("frames")
    writer = CompressedFrameWriter(write_bytes)
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
    request: Json = {}
    try:
        request = parse_object(stdin.readline())
        result = action(request, stdin)
    except JsonError as error:
        emit_failure(AgentError(f"the request can't be read: {error}", "run it again"))
        return 1
    except AgentError as error:
        emit_failure(error)
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:
        emit_failure(explain_os_error(error, request.get("home", ""), "see: ipexctl doctor"))
        return 1
    emit("done", **as_json(result))
    return 0

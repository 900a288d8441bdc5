"""Input and output of an agent command: the request is one line of JSON on stdin, events are lines of JSON on stdout.

Frames (`frames.py`) or raw bytes may follow an event. An `AgentError` is sent as the last event, `failed`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import threading
from typing import Any, BinaryIO, Callable, Dict, Iterator

from ipexctl.node.common.fix import Fix, fix_to_json
from ipexctl.node.common.json_records import JsonError, encode, parse_object

Json = Dict[str, Any]
Action = Callable[[Any, BinaryIO], object]
"""Takes the request and stdin, read up to the end of the request; returns a dict or a record."""
_write_lock = threading.Lock()
_buffer = bytearray()
_buffer_size = 0
_writes = 0
ANOTHER_HOME, ANOTHER_PATH = "directory: --home DIR", "PATH"
FREE_SPACE_FIX = "free some space there, or name another directory: --home DIR"
_FEW_INODES = 1000
_OS_ERRORS = {
    errno.ENOSPC: ("the disk is full", FREE_SPACE_FIX),
    errno.EDQUOT: ("this account's disk quota is used up", FREE_SPACE_FIX),
    errno.EROFS: ("the filesystem is mounted read-only", "name a writable directory: --home DIR"),
    errno.EACCES: ("this account may not write there", "name a separate directory: --home DIR"),
    errno.EPERM: ("this account may not write there", "name a separate directory: --home DIR"),
    errno.ENOTDIR: ("a file is where a directory is needed", "move that file away"),
    errno.EEXIST: ("a file is where a directory is needed", "move that file away"),
    errno.EISDIR: ("a directory is where a file is needed", "look at its files, then move that directory away"),
    errno.ENOTEMPTY: ("a directory is where a file is needed", "look at its files, then move that directory away"),
}


class AgentError(Exception):
    is_wrong_call = False
    """True if the call would fail on every host; ipexctl then exits with 2."""
    kind = ""
    """What callers may act on; empty for most errors."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


def emit(event: str, **fields: Any) -> None:
    """Write one event to stdout; raises an OSError if the control machine closed the connection."""
    write_bytes(json.dumps({"event": event, **fields}).encode() + b"\n")


def explain_os_error(error: OSError, path: str | bytes | os.PathLike[str] = "", fix: str = "") -> AgentError:
    """Turn a filesystem error into an AgentError. `path` is shown if the error has no file name, or one below an opened
    directory; `fix` if the error is not in `_OS_ERRORS`."""
    location = os.fsdecode(error.filename if isinstance(error.filename, (str, bytes, os.PathLike)) else path)
    location = location if location.startswith("/") or not path else os.fsdecode(path)
    reason, fix = _OS_ERRORS.get(error.errno or 0, (error.strerror or str(error), fix))
    if error.errno == errno.ENOSPC and (inodes := _inodes_left(location)) is not None and inodes < _FEW_INODES:
        reason = f"{reason}: {inodes or 'no'} inodes are left for more files"
    return AgentError(f"{location}: {reason}" if location else reason, fix)


def _inodes_left(path: str) -> int | None:
    """Return how many files the disk of a path can still take; None if unknown. What failed may have removed the path
    since, so the nearest directory above counts."""
    while path and not os.path.lexists(path):
        path = path.rpartition("/")[0]
    try:
        status = os.statvfs(path or "/")
    except OSError:
        return None
    return status.f_favail if status.f_files else None  # btrfs has no figures


def emit_with_bytes(event: str, data: bytes, **fields: Any) -> None:
    """Write an event and the raw bytes that belong to it. No event of another thread comes between them."""
    with _write_lock:
        _write_or_buffer(json.dumps({"event": event, **fields}).encode() + b"\n")
        _write_or_buffer(data)


@contextlib.contextmanager
def signs_of_life(interval: float, longest: float) -> Iterator[None]:
    """Emit `working` every `interval` seconds without other output, but not for more than `longest` seconds: then a
    disk is probably hanging."""
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
    """Write the event `failed`, which is the last one of a call."""
    more = {"wrong_call": True} if error.is_wrong_call else {}
    emit("failed", reason=error.reason, fix=fix_to_json(error.fix), kind=error.kind, **more)


def write_bytes(data: bytes) -> None:
    """Write the bytes of an event. Data that does not fit into the buffer is written without a copy."""
    with _write_lock:
        _write_or_buffer(data)


def _write_or_buffer(data: bytes) -> None:
    if len(_buffer) + len(data) < _buffer_size:
        _buffer.extend(data)
    else:
        _flush()
        _write_all(data)


def buffer_output(size: int) -> None:
    """Buffer up to `size` bytes of output, so that many small events need few writes."""
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


def answer(action: Action, stdin: BinaryIO | None = None) -> int:
    """Read the request, run the action and emit its result as the last event; returns the exit code. New files are
    private, whatever the umask. The advice of a request with `is_of_path` is another PATH instead of another home."""
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
        failure = error
    except BrokenPipeError:
        raise
    except OSError as error:
        failure = explain_os_error(error, request.get("home", ""), Fix("see: `ipexctl doctor`"))
    else:
        emit("done", **encode(result))
        return 0
    if request.get("is_of_path"):
        failure.fix = failure.fix.replace(ANOTHER_HOME, ANOTHER_PATH)
    emit_failure(failure)
    return 1


EXIT_CODE = 143
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stopped(BaseException):
    """Raised when this process gets a signal, or when nobody reads stdout any more."""


def stop_on_signals() -> None:
    """Have the signals of SIGNALS raise a Stopped in the main thread. All after the first are ignored."""
    for number in SIGNALS:
        signal.signal(number, _stop)


_signals: list[object] = []
"""Signals received so far. The exception alone is not enough: Python drops it if the signal handler runs in a callback,
such as one after a fork."""


def _stop(received: object, _: object) -> None:
    _signals.append(received)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise Stopped


def emit_step(what: str) -> None:
    """Tell the caller what is done now. Raises a Stopped if nobody reads stdout any more."""
    try:
        emit("step", what=what)
    except BrokenPipeError:
        raise Stopped from None


def check_stopped() -> None:
    """Raise a Stopped if a signal has come, or nobody reads stdout any more.

    Call it in loops: the exception of a signal alone may have been lost.
    """
    poller = select.poll()
    poller.register(1, 0)
    if _signals or poller.poll(0):
        raise Stopped


def answer_until_stopped(action: Action) -> int:
    """As `answer`, but return EXIT_CODE if a signal comes, or if the caller is gone."""
    stop_on_signals()
    try:
        return answer(action)
    except (Stopped, BrokenPipeError):
        return EXIT_CODE

"""Read local files without ever hanging or filling memory.

A file that was found, or that another file names, must be a regular file. Pipes are allowed only where the user typed
the name (`-H <(command)`). Both are read up to a limit for their kind. The `strerror` of the OSError says what is
wrong; callers add file and line.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
from pathlib import Path
from typing import Final, NamedTuple

from ipexctl.limits import PIPE_SILENCE

_MB: Final = 1 << 20
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY


class FileKind(NamedTuple):
    """What a file is read as, and its size limit in bytes."""

    noun: str
    limit: int


KEY: Final = FileKind("a key", _MB)
"""An RSA key of 16384 bits, the largest that ssh-keygen makes, has 13 kB."""
SSH_CONFIG: Final = FileKind("an ssh config", 16 * _MB)
"""Tools that write one for a cluster need some 100 bytes a host."""
KNOWN_HOSTS: Final = FileKind("a list of host keys", 256 * _MB)
"""A site's ssh_known_hosts has 1 kB a host."""
HOSTS: Final = FileKind("a hostfile", 4 * _MB)
FOUND_HOSTS: Final = FileKind("a hostfile", _MB)
DEFAULTS: Final = FileKind("a file of defaults", 64_000)
IGNORE_FILE: Final = FileKind("a file of patterns", 64_000)
"""Each pattern is tried on each path of the project."""
VARIABLES: Final = FileKind("a file of variables", _MB)
"""With the usual stack limit, the kernel allows a process 2 MB of variables and arguments."""
REQUIREMENTS: Final = FileKind("a requirements file", 16 * _MB)
"""A lock of 1000 packages with all hashes has 1 MB; uv's, with the wheels of all platforms, 4 MB."""
ACCELERATE: Final = FileKind("an accelerate config", 64_000)
"""One has some twenty lines."""
STACK_ROWS: Final = FileKind("a version table", 4_000_000)
PLAYBOOK: Final = FileKind("a playbook", 8_000_000)
"""Also for files of variables and templates. All are parsed in memory."""
COPIED: Final = FileKind("a file for copy", 256 * _MB)
"""Kept in memory for all hosts; sync sends larger files."""
SOURCE: Final = FileKind("a source file", 2_000_000)
SCRIPT: Final = FileKind("a script", 16 * _MB)
"""Only a much shorter one is parsed (`projects/modules.py`)."""
SHELL_SCRIPT: Final = FileKind("a shell script", _MB // 4)
"""A launcher's line is looked for in it, which takes 0.9 s and 100 MB for the worst file of this size."""


CHECKED: Final[dict[str, os.stat_result | None]] = {}
"""Found file → the status that `found_files.py` checked; None if there was no file.

The next read of that path accepts no other file.
"""


class NotRegularError(OSError):
    """A device, pipe or socket: reading it may never end."""


class TooLargeError(OSError):
    """The file is larger than the limit of its kind."""


def read_regular(path: Path | str, kind: FileKind) -> bytes:
    """Read a regular file; /dev/null is empty.

    Raises an OSError for anything else, and for a file that is too large.
    """
    return _read_limited(open_regular(path), path, kind)


def read_or_empty(path: Path | str, kind: FileKind) -> bytes:
    """Read a regular file; return nothing if it cannot be read.

    For files that another program reads later, and says so.
    """
    try:
        return read_regular(path, kind)
    except (OSError, ValueError):  # of a path with a NUL
        return b""


def read_typed(path: Path | str, kind: FileKind) -> bytes:
    """Read a file that the user named, which may be a pipe. A pipe is read until its writer closes it.

    Raises an OSError if a pipe has no writer, or sends nothing for PIPE_SILENCE seconds.
    """
    if not stat.S_ISFIFO(os.stat(path).st_mode):  # noqa: PTH116
        return _read_limited(os.open(path, _FLAGS), path, kind)
    number = _open_pipe(path)
    try:
        return _read_pipe(number, path, kind)
    finally:
        os.close(number)


def _open_pipe(path: Path | str) -> int:
    """Open a pipe in another thread, because opening waits for a writer."""
    opened: list[int | OSError] = []

    def open_pipe() -> None:
        """Open the pipe, in a thread."""
        try:
            opened.append(os.open(path, _FLAGS))
        except OSError as error:
            opened.append(error)

    thread = threading.Thread(target=open_pipe, name="pipe", daemon=True)
    thread.start()
    thread.join(PIPE_SILENCE)
    if not opened:
        raise _silent(path, "no program has opened it to write")
    if isinstance(opened[0], OSError):
        raise opened[0]
    return opened[0]


def _read_pipe(number: int, path: Path | str, kind: FileKind) -> bytes:
    """Read a pipe to its end. Raises an OSError if it is silent, or sends too much."""
    data = b""
    while len(data) <= kind.limit:
        if not select.select([number], [], [], PIPE_SILENCE)[0]:
            raise _silent(path, "nothing more came from it")
        if not (more := os.read(number, _MB)):
            return data
        data += more
    raise _too_large(path, kind)


def _silent(path: Path | str, problem: str) -> OSError:
    """Return the error for a pipe that is silent."""
    return OSError(errno.ETIMEDOUT, f"it is a pipe, and {problem} for {PIPE_SILENCE:g} s", os.fspath(path))


def decode_text(data: bytes, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Decode bytes, and turn all line ends into `\\n`."""
    return data.decode(encoding, errors).replace("\r\n", "\n").replace("\r", "\n")


def open_regular(path: Path | str | bytes, flags: int = 0) -> int:
    """Open a regular file or /dev/null. Raises an OSError for anything else. Can be the `opener` of `open`."""
    try:
        number = os.open(path, flags | _FLAGS | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device that does not exist
            raise NotRegularError(errno.EINVAL, _NOT_REGULAR, os.fsdecode(path)) from None
        raise
    try:
        _check_kind(number, path)
    except BaseException:
        os.close(number)
        raise
    return number


def check_regular(path: Path | str) -> None:
    """Raise an OSError for a device, pipe or socket. Only for files that another program opens."""
    status = os.stat(path)  # noqa: PTH116
    if not stat.S_ISDIR(status.st_mode) and not _is_readable(status):
        raise NotRegularError(errno.EINVAL, _NOT_REGULAR, str(path))


_NOT_REGULAR: Final = "it is not a regular file"


def _check_kind(number: int, path: Path | str | bytes) -> None:
    """Raise an OSError if the open file is not regular, or not the one that `found_files.py` has checked."""
    status = os.fstat(number)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(path))
    if not _is_readable(status):
        raise NotRegularError(errno.EINVAL, _NOT_REGULAR, os.fsdecode(path))
    checked = CHECKED.pop(os.fsdecode(path), None)
    if checked is not None and not os.path.samestat(checked, status):
        raise OSError(errno.ESTALE, "it was exchanged while it was opened", os.fsdecode(path))


def _is_readable(status: os.stat_result) -> bool:
    """True for a regular file and /dev/null."""
    if stat.S_ISREG(status.st_mode):
        return True
    # ssh and others use /dev/null as an empty file.
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev  # noqa: PTH116


def _read_limited(number: int, path: Path | str, kind: FileKind) -> bytes:
    """Read an open file, and close it. Raises a TooLargeError."""
    with open(number, "rb") as file:
        data = file.read(kind.limit + 1)
    if len(data) > kind.limit:
        raise _too_large(path, kind)
    return data


def _too_large(path: Path | str, kind: FileKind) -> TooLargeError:
    """Return the error for a file that is too large."""
    size = f"{kind.limit >> 20} MB" if kind.limit % _MB == 0 else f"{kind.limit:,} bytes"
    return TooLargeError(errno.EFBIG, f"it is larger than {size}, too large for {kind.noun}", os.fspath(path))

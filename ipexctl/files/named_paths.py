"""Open the path that the user names for output, such as FILE of `--summary` or DEST of `fetch`.

Another account could exchange a directory on the way for a symlink, and so choose which file of this account is
overwritten. `node/common/walk.py` decides who may own the directories; a path that another account could change is
refused.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.guarded_directory import GuardedDirectory, enter_named
from ipexctl.node.common.walk import Place, Refused
from ipexctl.node.files.compare import refuse_special
from ipexctl.node.files.policies import DOWNLOAD

_FIX: Final = "name a place in a directory of your own"
_STREAMS: Final = {"/dev/stdout": 1, "/dev/stderr": 2}
"""Path → number of a file that is open already."""


def open_named_file(path: Path | str) -> int:
    """Open a file for writing as the shell's `>` does, and return its descriptor: a new file, an emptied one, a FIFO.

    Raises an OSError, or a UserError if another account could change the path.
    """
    if (number := _open_stream(path)) is not None:
        return number
    with _enter(path, is_file=True) as place:
        if not place.name:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), place.path)
        if "/" in place.name:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place.path)
        if place.status is None:
            return os.open(place.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=place.number)
        try:
            number = place.open_end(os.O_WRONLY)
        except Refused as refused:
            raise UserError(str(refused), fix=_FIX) from None
        if stat.S_ISREG(place.status.st_mode):
            os.ftruncate(number, 0)
        return number


def write_named_file(path: Path | str, content: bytes, mode: int, *, make: bool = False) -> str | None:
    """Write a file atomically, in place of an existing one, and return the topmost path that this created.

    None if the file existed. `make`: True to create missing directories. Raises an OSError, or a UserError if another
    account could change the path, or if it is a FIFO, socket or device.
    """
    with _enter(path, make=make, is_file=True) as place:
        if not place.name or "/" in place.name:
            number = errno.ENOENT if place.name else errno.EISDIR
            raise OSError(number, os.strerror(number), place.path)
        _refuse_special(place)
        directory = GuardedDirectory.of(place)
        directory.write(os.fsencode(place.name), [content], mode)
        return next(iter(place.made), place.path if place.status is None else None)


def check_named_file(path: Path | str, *, is_replaced: bool = False) -> None:
    """Refuse a path that another account could change, before the work whose result is to be written there.

    `is_replaced`: True to refuse what `write_named_file` refuses, too: a FIFO, socket or device.
    """
    if is_replaced or _open_stream(path, opens=False) is None:
        with _enter(path, is_file=True) as place:
            if is_replaced:
                _refuse_special(place)


def _refuse_special(place: Place) -> None:
    """Refuse a FIFO, socket or device at the path. Raises a UserError."""
    try:
        refuse_special(place.path, place.status, DOWNLOAD)
    except AgentError as error:
        raise UserError(error.reason, fix=error.fix) from None


def open_named_directory(path: Path | str, *, make: bool = False) -> tuple[GuardedDirectory, tuple[str, ...]]:
    """Open a directory; also return the directories created for it, top first. Raises an OSError or a UserError."""
    place = _enter(path, make=make)
    return GuardedDirectory.at(place), place.made


def _enter(path: Path | str, *, make: bool = False, is_file: bool = False) -> Place:
    """Enter a path, relative to the working directory. Raises an OSError, or a UserError for a refused path."""
    try:
        return enter_named(os.path.join(os.getcwd(), path), _FIX, make=make, is_file=is_file)
    except AgentError as error:
        raise UserError(error.reason, fix=error.fix) from None


def _open_stream(path: Path | str, *, opens: bool = True) -> int | None:
    """Return a copy of an open file of this process, such as /dev/stdout or /dev/fd/3; None for any other path.

    `opens`: False to return the number itself, for a check.
    """
    text = os.fspath(path)
    number = _STREAMS.get(text)
    if match := re.fullmatch(r"/(?:dev|proc/self)/fd/([0-9]{1,7})", text):
        number = int(match[1])
    return number if number is None or not opens else os.dup(number)

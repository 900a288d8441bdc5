"""Opens the path that the user names for output, such as FILE of `--summary` or DEST of `fetch`.

`node/common/walk.py` decides who may own the directories on the way.
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


def open_named_file(path: Path | str) -> int:
    """As the shell's `>` does. Raises an OSError or a UserError."""
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
    """Replace a file atomically; return the topmost path that this created. Raises an OSError or a UserError."""
    with _enter(path, make=make, is_file=True) as place:
        if not place.name or "/" in place.name:
            number = errno.ENOENT if place.name else errno.EISDIR
            raise OSError(number, os.strerror(number), place.path)
        _refuse_special(place)
        directory = GuardedDirectory.of(place)
        directory.write(os.fsencode(place.name), [content], mode)
        return next(iter(place.made), place.path if place.status is None else None)


def check_named_file(path: Path | str, *, is_replaced: bool = False) -> None:
    """Raise the error that opening or writing the file would raise because of another account."""
    if is_replaced or _open_stream(path, opens=False) is None:
        with _enter(path, is_file=True) as place:
            if is_replaced:
                _refuse_special(place)


def _refuse_special(place: Place) -> None:
    try:
        refuse_special(place.path, place.status, DOWNLOAD)
    except AgentError as error:
        raise UserError(error.reason, fix=error.fix) from None


def open_named_directory(path: Path | str, *, make: bool = False) -> tuple[GuardedDirectory, tuple[str, ...]]:
    """Open a directory; also return the directories created for it, top first. Raises an OSError or a UserError."""
    place = _enter(path, make=make)
    return GuardedDirectory.at(place), place.made


def _enter(path: Path | str, *, make: bool = False, is_file: bool = False) -> Place:
    try:
        return enter_named(os.path.join(os.getcwd(), path), _FIX, make=make, is_file=is_file)
    except AgentError as error:
        raise UserError(error.reason, fix=error.fix) from None


def _open_stream(path: Path | str, *, opens: bool = True) -> int | None:
    """Open a stream of this process, such as /dev/stdout; None for any other path."""
    text = os.fspath(path)
    number = _STREAMS.get(text)
    if found := re.fullmatch(r"/(?:dev|proc/self)/fd/([0-9]{1,7})", text):
        number = int(found[1])
    return number if number is None or not opens else os.dup(number)

"""Opens the place that a call names for its output, as FILE of `--summary` or DEST of `fetch`: whose links lead there.

In comes a path that the user typed; out comes a descriptor of the file or the directory, or a UserError. The rule for
links is that of `--checkpoint`. In a directory with the sticky bit, as /tmp, nothing is written to a file of another
account, or to one with a second name: that account could read it, or has chosen which file that is.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.guarded_directory import GuardedDirectory, is_of_stranger, resolve_links

if TYPE_CHECKING:
    from pathlib import Path

_FIX: Final = "name a place in a directory of your own"


def is_strangers_file(status: os.stat_result, directory: os.stat_result) -> bool:
    """Whether a file of a directory with the sticky bit is of another account, or has a name elsewhere."""
    if not directory.st_mode & stat.S_ISVTX or stat.S_ISCHR(status.st_mode):
        return False
    return is_of_stranger(status, directory) or (stat.S_ISREG(status.st_mode) and status.st_nlink > 1)


def resolve_named(path: Path | str) -> str:
    """The path without links, also if its end does not exist. Raises an OSError, or a UserError for a refused link."""
    try:
        return resolve_links(os.path.join(os.getcwd(), path), _FIX)
    except AgentError as error:
        raise UserError(error.reason, fix=error.fix) from None


def open_named_file(path: Path | str) -> int:
    """Open a file to write, as the shell's `>`: its content is gone. Raises an OSError or a UserError."""
    resolved = resolve_named(path)
    if _is_in_proc(resolved):  # /dev/stdout
        return os.open(resolved, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    with _open_directory(os.path.dirname(resolved)) as directory:
        name = os.fsencode(os.path.basename(resolved))
        if (status := directory.status_of(name)) is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            return os.open(name, flags, 0o666, dir_fd=directory.number)
        _check_file(resolved, status, directory)  # before it is opened, as to open a pipe may never end
        number = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory.number)
        try:
            _check_file(resolved, os.fstat(number), directory)
            if stat.S_ISREG(status.st_mode):
                os.ftruncate(number, 0)
        except BaseException:
            os.close(number)
            raise
        return number


def check_named_file(path: Path | str) -> None:
    """Raise what `open_named_file` would raise because of another account."""
    resolved = resolve_named(path)
    if not _is_in_proc(resolved):
        with _open_directory(os.path.dirname(resolved)) as directory:
            if (status := directory.status_of(os.fsencode(os.path.basename(resolved)))) is not None:
                _check_file(resolved, status, directory)


def open_named_directory(path: Path | str, *, make: bool = False) -> GuardedDirectory:
    """Open a directory; with `make`, missing ones are made. Raises an OSError or a UserError."""
    resolved = resolve_named(path)
    with _open_directory(resolved, make=make) as found, _open_directory(os.path.dirname(resolved)) as above:
        if above.status().st_mode & stat.S_ISVTX and is_of_stranger(found.status(), above.status()):
            uid = found.status().st_uid
            raise UserError(f"{resolved} is a directory of another account (uid {uid})", fix=_FIX)
        return GuardedDirectory(os.dup(found.number), found.path)


def _open_directory(path: str, *, make: bool = False) -> GuardedDirectory:
    try:
        return GuardedDirectory.open(path, make=make)
    except AgentError as error:
        raise UserError(error.reason, fix=error.fix) from None


def _check_file(path: str, status: os.stat_result, directory: GuardedDirectory) -> None:
    if not is_strangers_file(status, directory.status()):
        return
    if is_of_stranger(status, directory.status()):
        raise UserError(f"{path} is a file of another account (uid {status.st_uid})", fix=_FIX)
    raise UserError(f"{path} is a file with another name elsewhere (a hard link)", fix=_FIX)


def _is_in_proc(path: str) -> bool:
    return path.startswith("/proc/")

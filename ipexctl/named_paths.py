"""Opens the place that a call names for its output, as FILE of `--summary` or DEST of `fetch`: whose links lead there.

In comes a path that the user typed; out comes a descriptor of its directory, or of the file. The rule is that of
`--checkpoint`: a link counts if it belongs to this account, to root or to the owner of the directory that it is in. In
a directory with the sticky bit, as /tmp, a file of another account, or one with a second name, is not written to:
another account could read it or has chosen which file that is. Every step is taken from an open directory, so that
nothing that is checked can be exchanged before it is used. What /proc shows as a link, as /dev/stdout, is no path.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

from ipexctl.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

_MAX_LINKS: Final = 40
"""As many as Linux follows."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_ONLY: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_FIX: Final = "name a file in a directory of your own"


class StrangersPath(UserError):
    """A link or a file of another account is at the place, or on the way to it."""

    def __init__(self, path: str, what: str, uid: int) -> None:
        super().__init__(f"{path} is a {what} of another account (uid {uid})", fix=_FIX)


class Place(NamedTuple):
    """The open directory of a path without links, and the name in it; the caller closes the directory."""

    directory: int
    name: str
    path: str


def is_of_stranger(status: os.stat_result, directory: os.stat_result) -> bool:
    """Whether another account may have put that file there: neither this account, root nor the directory's owner."""
    return status.st_uid not in (0, os.geteuid(), directory.st_uid)


def is_strangers_file(status: os.stat_result, directory: os.stat_result) -> bool:
    """Whether a file of a directory with the sticky bit is of another account, or has a name elsewhere."""
    if not directory.st_mode & stat.S_ISVTX or stat.S_ISCHR(status.st_mode):
        return False
    return is_of_stranger(status, directory) or (stat.S_ISREG(status.st_mode) and status.st_nlink > 1)


def find_place(path: Path | str) -> Place:
    """Raises an OSError, or a StrangersPath for a link that does not count. The last part may be missing."""
    pending, done, links = _parts(os.path.join(os.getcwd(), path)), "/", 0
    above = os.open("/", _PATH_ONLY)
    try:
        while pending:
            part = pending.pop()
            here, is_proc = os.path.join(done, part), _is_proc(above)
            status = None if part == ".." else _lstat(part, above)
            if status is not None and stat.S_ISLNK(status.st_mode) and not is_proc:
                if is_of_stranger(status, os.stat(above)):
                    raise StrangersPath(here, "link", status.st_uid)
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), here)
                target = os.readlink(part, dir_fd=above)
                pending += _parts(target)
                if target.startswith("/"):
                    os.close(above)
                    above, done = os.open("/", _PATH_ONLY), "/"
            elif pending or part == "..":
                below = _enter(part, above, here, 0 if is_proc else os.O_NOFOLLOW)
                os.close(above)
                above, done = below, os.path.dirname(done) if part == ".." else here
            else:
                return Place(os.dup(above), part, here)
        return Place(os.dup(above), ".", done)
    finally:
        os.close(above)


def _parts(path: str) -> list[str]:
    """The parts of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def open_named_file(path: Path | str) -> int:
    """Open a file to write, as the shell's `>`: its content is gone. Raises an OSError or a StrangersPath."""
    place = find_place(path)
    try:
        if (status := _lstat(place.name, place.directory)) is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            return os.open(place.name, flags, 0o666, dir_fd=place.directory)
        if stat.S_ISLNK(status.st_mode):  # of /proc
            return os.open(place.name, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, dir_fd=place.directory)
        _check_file(place, status)  # also before it is opened: to open a pipe may never end
        number = os.open(place.name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.directory)
        try:
            _check_file(place, os.fstat(number))
            if stat.S_ISREG(status.st_mode):
                os.ftruncate(number, 0)
        except BaseException:
            os.close(number)
            raise
        return number
    finally:
        os.close(place.directory)


def check_named_file(path: Path | str) -> None:
    """Raise what `open_named_file` would raise because of another account."""
    place = find_place(path)
    try:
        if (status := _lstat(place.name, place.directory)) is not None and not stat.S_ISLNK(status.st_mode):
            _check_file(place, status)
    finally:
        os.close(place.directory)


def open_named_directory(path: Path | str) -> int:
    """Open an existing directory. Raises an OSError or a StrangersPath."""
    place = find_place(path)
    try:
        number = os.open(place.name, _DIRECTORY, dir_fd=place.directory)
        status, above = os.fstat(number), os.fstat(place.directory)
        if above.st_mode & stat.S_ISVTX and is_of_stranger(status, above):
            os.close(number)
            raise StrangersPath(place.path, "directory", status.st_uid)
        return number
    finally:
        os.close(place.directory)


def _check_file(place: Place, status: os.stat_result) -> None:
    directory = os.stat(place.directory)
    if is_strangers_file(status, directory):
        if is_of_stranger(status, directory):
            raise StrangersPath(place.path, "file", status.st_uid)
        raise UserError(f"{place.path} is a file with another name elsewhere (a hard link)", fix=_FIX)


def _enter(part: str, above: int, here: str, flags: int) -> int:
    try:
        return os.open(part, _PATH_ONLY | flags, dir_fd=above)
    except OSError as error:
        raise OSError(error.errno, error.strerror, here) from None


def _is_proc(directory: int) -> bool:
    """Whether it is in /proc, where a link may be an open file."""
    try:
        return os.stat(directory).st_dev == os.stat("/proc/self").st_dev
    except OSError:
        return False


def _lstat(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None

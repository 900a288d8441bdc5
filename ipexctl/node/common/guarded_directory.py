"""A directory that other accounts may change: opened once, and everything in it is reached from its descriptor.

Anybody who can write to a parent directory can rename the path and put something else there. So names are checked, no
link is followed, and a new file has a temporary name until it is complete. For programs that only take paths, `anchor`
leads into the opened directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import BinaryIO, Callable, Iterable, Iterator, Sequence

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.walk import (
    OnSymlink,
    PathPart,
    Place,
    Refused,
    callers,
    check_entry,
    enter,
    named_path,
    others_may_write,
    own_path,
)

_ENTER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TEMPORARY_NAME = 200
"""Bytes of a file's name that go into its temporary name, because a name has at most 255 bytes."""
_DEPTH = 100
_OUTWARD = frozenset(("", ".", ".."))


def check_name(name: str) -> list[str]:
    """Return the parts of a relative name. Raises an AgentError if it could lead out of a directory."""
    parts = name.split("/")
    if "\0" in name or not _OUTWARD.isdisjoint(parts):
        raise AgentError(f"{name[:200]!r} leads out of the directory")
    return parts


def enter_named(
    path: str,
    fix: str,
    *,
    make: bool = False,
    is_file: bool = False,
    on_symlink: OnSymlink | None = None,
    inside: os.stat_result | None = None,
) -> Place:
    """Enter a path of the user's data by the rule `named_path`. Raises an AgentError if another account can change the
    path."""
    try:
        return enter(path, named_path, make=make, is_file=is_file, uids=callers(), on_symlink=on_symlink, inside=inside)
    except Refused as refused:
        raise AgentError(str(refused), fix) from None


def _enter(name: bytes, above: int, *, make: bool, mode: int = 0o777) -> int:
    try:
        return os.open(name, _ENTER, dir_fd=above)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # another process may have made it
        os.mkdir(name, mode, dir_fd=above)
    return os.open(name, _ENTER, dir_fd=above)


def open_file(path: str) -> int:
    """Open an absolute path for reading, without following a link or blocking on a FIFO."""
    with GuardedDirectory.open(os.path.dirname(path)) as directory:
        try:
            return os.open(os.path.basename(path), _READ, dir_fd=directory.number)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None


def open_own(path: str) -> GuardedDirectory:
    """Open a directory of this account. Raises an AgentError if another account could change its path, and an OSError
    if it is missing."""
    try:
        place = enter(path, own_path)
    except Refused as refused:
        raise AgentError(str(refused), "name a directory below one of this account: --home DIR") from None
    return GuardedDirectory.at(place)


class GuardedDirectory:
    """An open directory. Names are relative to it; a missing entry raises FileNotFoundError."""

    def __init__(self, number: int, path: str) -> None:
        self.number, self.path = number, path

    @classmethod
    def open(cls, path: str) -> GuardedDirectory:
        """Open a directory by its absolute path. Raises an AgentError if a part of the path is a link."""
        with cls(os.open("/", _ENTER), "/") as root:
            return root.enter(os.fsencode(path))

    @classmethod
    def of(cls, place: Place) -> GuardedDirectory:
        """Take over the directory that a place has open: the path's end, or what is above it if that is a file or
        missing."""
        return cls(place.number, place.path[: len(place.path) - len(place.name)].rstrip("/") or "/")

    @classmethod
    def at(cls, place: Place) -> GuardedDirectory:
        """Take over the directory at a place's end. Raises an OSError if it is missing or no directory."""
        if not place.name:
            return cls(place.number, place.path)
        os.close(place.number)
        number = errno.ENOENT if place.status is None else errno.ENOTDIR
        raise OSError(number, os.strerror(number), place.path)

    def __enter__(self) -> GuardedDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor. Entries can't be reached then."""
        os.close(self.number)

    @property
    def anchor(self) -> str:
        """A path valid in this process that leads into the open directory."""
        return f"/proc/self/fd/{self.number}"

    def status(self) -> os.stat_result:
        """Return the status of the directory itself."""
        return os.fstat(self.number)

    def set_mode(self, mode: int) -> None:
        """Set the directory's mode. Raises an OSError with its path."""
        try:
            os.chmod(self._of_inode, mode)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None

    def set_times(self, mtime: int) -> None:
        """Set when the directory was last changed and read, in nanoseconds since the epoch."""
        os.utime(self._of_inode, ns=(mtime, mtime))

    @property
    def _of_inode(self) -> int | str:
        """The directory, for calls that do not accept an O_PATH descriptor."""
        return self.anchor if hasattr(os, "O_PATH") else self.number

    def check_entry(self, name: bytes, status: os.stat_result | None, fix: str) -> None:
        """Raise an AgentError for an entry that another account made, or put here as a hard link."""
        if status is None:
            return
        uids, own = callers(), self.status()
        above = PathPart(self.path, own, uids, lambda: others_may_write(self.number, own, uids))
        below = PathPart(os.path.join(self.path, os.fsdecode(name)), status, uids, lambda: "")
        if problem := check_entry(above, below):
            raise AgentError(str(Refused(problem[0], below.path, status.st_uid)), fix)

    def check_private(self, fix: str) -> None:
        """Raise an AgentError unless this account owns the directory and nobody else can open it."""
        status = self.status()
        if status.st_uid != os.geteuid():
            raise AgentError(f"{self.path} belongs to another account (uid {status.st_uid})", fix)
        if status.st_mode & 0o077:
            raise AgentError(f"{self.path} is open to other accounts (mode {stat.S_IMODE(status.st_mode):o})", fix)

    def enter(self, name: bytes, *, make: bool = False, mode: int = 0o777) -> GuardedDirectory:
        """Enter a directory below this one; `make` creates missing ones. Raises an AgentError for a link."""
        number, done = os.dup(self.number), os.fsencode(self.path)
        for part in filter(None, name.split(b"/")):
            done = os.path.join(done, part)
            try:
                below = _enter(part, number, make=make, mode=mode)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_symlink(part, number):
                    raise AgentError(f"{os.fsdecode(done)} is a link", "name the directory itself") from None
                raise OSError(error.errno, error.strerror, os.fsdecode(done)) from None
            finally:
                os.close(number)
            number = below
        return GuardedDirectory(number, os.fsdecode(done))

    def status_of(self, name: bytes) -> os.stat_result | None:
        """Return the status of an entry without following links; None if it is missing."""
        with contextlib.suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self.number, follow_symlinks=False)
        return None

    def open_to_read(self, name: bytes) -> int:
        """Open a regular file in the directory, and return its descriptor. Raises an OSError for anything else, a link
        included."""
        number = os.open(name, _READ, dir_fd=self.number)
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise OSError(errno.EINVAL, "it is not a regular file", os.path.join(self.path, os.fsdecode(name)))
        return number

    def read(self, name: bytes, limit: int) -> bytes:
        """Return the content of a file. Raises an AgentError if another account owns it or it is larger than
        `limit`."""
        with open(self.open_to_read(name), "rb") as file:
            status = os.fstat(file.fileno())
            where = os.path.join(self.path, os.fsdecode(name))
            if status.st_uid != os.geteuid():
                raise AgentError(f"{where} belongs to another account (uid {status.st_uid})")
            if status.st_size > limit:
                raise AgentError(f"{where} is {status.st_size} bytes; the limit is {limit}")
            return file.read()

    @contextlib.contextmanager
    def written(self, name: bytes, mode: int | None, *, replace: bool = True, temporary: bytes = b"") -> Iterator[int]:
        """Yield the descriptor of a new file, which gets its name and mode at the end; after an exception it is
        removed.

        Without `replace`, an existing name raises FileExistsError. If `mode` is None, the caller sets the mode.
        """
        temporary = temporary or b".%s.ipexctl-%s.new" % (name[:_TEMPORARY_NAME], os.urandom(4).hex().encode())
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        number = os.open(temporary, flags, 0o600, dir_fd=self.number)
        try:
            yield number
            if mode is not None:
                os.fchmod(number, mode)
            self.rename(self.number, temporary, name, replace=replace)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self.number)
            raise
        finally:
            os.close(number)

    def write(self, name: bytes, chunks: Iterable[bytes], mode: int = 0o600) -> None:
        """Write a file, which takes its name, and the place of an entry of that name, once it is complete."""
        with self.written(name, mode) as number:
            for chunk in chunks:
                write_all(number, chunk)

    def link_to(self, target: bytes, name: bytes, *, replace: bool = True) -> None:
        """Make a symlink. With `replace`, it takes the place of an entry of that name; else a FileExistsError is
        raised."""
        if not replace:
            os.symlink(target, name, dir_fd=self.number)
            return
        temporary = b".%s.ipexctl-%s.new" % (name[:_TEMPORARY_NAME], os.urandom(4).hex().encode())
        os.symlink(target, temporary, dir_fd=self.number)
        try:
            self.rename(self.number, temporary, name)
        except OSError:
            self.unlink(temporary)
            raise

    def rename(self, source: int, old: bytes, name: bytes, *, replace: bool = True) -> None:
        """Move an entry of another open directory here. Without `replace`, an existing name raises FileExistsError: a
        hard link checks that atomically; on filesystems without hard links, the name is looked up first."""
        if not replace:
            try:
                os.link(old, name, src_dir_fd=source, dst_dir_fd=self.number, follow_symlinks=False)
                os.unlink(old, dir_fd=source)
                return
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
                    raise
            if self.status_of(name) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(name))
        os.replace(old, name, src_dir_fd=source, dst_dir_fd=self.number)

    def unlink(self, name: bytes) -> None:
        """Remove a file or link. A missing one is no error."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.number)

    def names(self) -> list[bytes]:
        """Return the names of all entries, in no order."""
        number = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.number)  # O_PATH can't list
        try:
            return [os.fsencode(name) for name in os.listdir(number)]
        finally:
            os.close(number)

    def remove_tree(self, name: bytes, *, ignore_errors: bool = False) -> None:
        """Remove an entry and everything below it, without following links. Raises the first OSError unless
        `ignore_errors`."""
        waiting = [name]
        errors = (OSError,) if ignore_errors else ()
        while waiting:
            with contextlib.suppress(*errors):
                _remove(self, waiting.pop(), self, 0, waiting, errors)


class DirectoryChain:
    """Keeps the last directories open that lead to the one entered last: lists are sorted, so the next file is near.

    Before removing or replacing a directory, enter its parent, which closes the directory here.
    """

    def __init__(
        self, top: GuardedDirectory, open_below: Callable[[GuardedDirectory, Sequence[bytes]], GuardedDirectory]
    ) -> None:
        """`open_below(parent, names)` opens the last name in `parent`. The names lead there from `top`."""
        self._top, self._open_below = top, open_below
        self._opened: list[tuple[bytes, GuardedDirectory]] = []
        self._entered: Sequence[bytes] = ()
        self._closed = 0
        """How many of them, from the top, are closed again: a process may have 1,024 descriptors."""

    def enter(self, names: Sequence[bytes]) -> GuardedDirectory:
        """Return the directory to which the names lead. Do not close it; it may be closed by the next call."""
        if names == self._entered:  # as for most files
            return self._last
        common = 0
        while common < min(len(self._opened), len(names)) and self._opened[common][0] == names[common]:
            common += 1
        self.leave(common if common > self._closed else 0)
        for depth in range(len(self._opened), len(names)):
            self._opened.append((names[depth], self._open_below(self._last, names[: depth + 1])))
            if depth >= self._closed + _DEPTH:
                self._opened[self._closed][1].close()
                self._closed += 1
        self._entered = names
        return self._last

    def leave(self, depth: int = 0) -> None:
        """Close the opened directories that are more than `depth` names below the top."""
        while len(self._opened) > depth:
            directory = self._opened.pop()[1]
            if len(self._opened) >= self._closed:
                directory.close()
        self._entered = ()
        self._closed = min(self._closed, depth)

    @property
    def _last(self) -> GuardedDirectory:
        return self._opened[-1][1] if self._opened else self._top


def write_all(number: int, data: bytes | memoryview) -> None:
    """Write all data to a descriptor, however small the pieces that it takes."""
    left = memoryview(data)
    while left:
        left = left[os.write(number, left) :]


def blocks_of(file: BinaryIO) -> Iterator[bytes]:
    """Return an iterator over the rest of a file, in blocks of 1 MB."""
    return iter(lambda: file.read(1 << 20), b"")


def set_attributes(number: int, mode: int | None, mtime: int) -> None:
    """Set the mode, unless it is None, and the modification time in nanoseconds."""
    if mode is not None:
        os.fchmod(number, mode)
    os.utime(number, ns=(mtime, mtime))


def _remove(
    directory: GuardedDirectory,
    name: bytes,
    top: GuardedDirectory,
    depth: int,
    waiting: list[bytes],
    errors: tuple[type[OSError], ...],
) -> None:
    """Remove an entry. Directories deeper than `_DEPTH` are moved to `top` first: each level needs a descriptor."""
    status = directory.status_of(name)
    if status is None:
        return
    if not stat.S_ISDIR(status.st_mode):
        directory.unlink(name)
        return
    if depth > _DEPTH:
        waiting.append(b".ipexctl-%s.old" % os.urandom(8).hex().encode())
        os.rename(name, waiting[-1], src_dir_fd=directory.number, dst_dir_fd=top.number)
        return
    with directory.enter(name) as below:
        for entry in below.names():
            with contextlib.suppress(*errors):
                _remove(below, entry, top, depth + 1, waiting, errors)
    os.rmdir(name, dir_fd=directory.number)


def _is_symlink(name: bytes, above: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    except OSError:
        return False

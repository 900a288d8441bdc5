"""Writes fetched files: to a temporary file next to the destination, checked, then renamed.

`compare.py` decides which files are written, `choose_transfer` from which byte on; received parts stay for the next
call. Names are taken from directories held open and no link is followed, so nothing is written outside. Another
account's file is not taken for a part, written into or replaced. Modes are the host's, masked by the umask, as with cp
and rsync. For a running run, a file that grew on the host grows here in place, because a program may hold it open.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Literal, TypeAlias

from ipexctl.errors import UserError
from ipexctl.files.file_names import NameRules, find_equal, rules_of
from ipexctl.hosts.names import quoted
from ipexctl.named_paths import open_named_directory
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.files import decode_name, encode_name
from ipexctl.node.common.guarded_directory import (
    DirectoryChain,
    GuardedDirectory,
    set_attributes,
    write_all,
)
from ipexctl.node.files.compare import EntryComparer, Match, state_of
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.node.files.policies import DOWNLOAD, Action
from ipexctl.remote.outcome import HostError

_READ: Final = 1 << 20
_NO_DIRECTORY: Final = " on the control machine; fetch writes into directories only"
_AT_IT: Final = "another fetch is bringing it to the same place"
_CHANGED: Final = "the part of it that was here has changed; fetch it again"
_OWN_DEST: Final = "fetch into a directory of your own"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class WriteRefused(Exception):
    """One entry can't be written; the others can."""


@dataclass(frozen=True, slots=True)
class MissingPart:
    entry: ManifestEntry
    have: int = 0
    known: str | None = None
    crc: int = 0
    in_place: bool = False
    """True for bytes of the file itself, not of a temporary file."""


@dataclass(slots=True)
class _OpenFile:
    entry: ManifestEntry
    directory: GuardedDirectory
    part: bytes
    number: int
    crc: int
    at: int
    in_place: bool
    """The file itself: it only lacks time and mode, or it grows."""
    refused: str = ""
    mode: int = -1
    """-1 if not known."""
    kept: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.kept = self.at if self.in_place and self.at < self.entry.size and not self.refused else None

    def cut(self) -> None:
        if self.kept is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self.number, self.kept)


class Destination(EntryComparer):
    def __init__(self, root: str, *, appends: bool = False) -> None:
        self.root = root
        self._appends = appends
        self._umask = read_umask()
        self._directories: dict[tuple[str, ...], ManifestEntry] = {}
        self._made: tuple[str, ...] | None = None
        self._file: _OpenFile | None = None
        try:
            self._top, self._made_above = open_named_directory(root, make=True)
        except OSError as error:
            raise HostError(f"{root} on this machine can't be written to: {error.strerror or error}") from None
        except UserError as error:
            raise HostError(str(error), error.fix) from None
        self.created: list[str] = list(self._made_above[:1])
        """Absolute paths that did not exist before; nothing below a created directory."""
        self._new: set[tuple[str, ...]] = {()} if self._made_above else set()
        self._opened = DirectoryChain(self._top, self._open_below)

    def find_equal(self, paths: Mapping[int, str]) -> dict[int, str]:
        """Numbers of paths that this file system would write over an earlier one, with that path."""
        if not find_equal(paths, NameRules()):
            return {}
        try:
            return find_equal(paths, rules_of(self._top))
        except OSError as error:
            raise self._disk(error) from None

    def remove_if_empty(self) -> None:
        """Remove the directory, and parents created for it, if empty; each parent is found from its child."""
        names = [os.path.basename(path) for path in self._made_above]
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):  # not empty
            below = self._top
            for name in map(os.fsencode, reversed(names)):
                above = GuardedDirectory(os.open("..", _ABOVE, dir_fd=below.number), os.path.dirname(below.path))
                held.callback(above.close)
                there = above.status_of(name)
                if there is None or not os.path.samestat(there, below.status()):
                    return
                os.rmdir(name, dir_fd=above.number)
                below = above

    def __enter__(self) -> Destination:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()
        self._opened.leave()
        self._top.close()

    def inspect(self, entry: ManifestEntry) -> MissingPart | None:
        """The missing part of a file; directories and links are created at once. Raises WriteRefused."""
        try:
            if entry.kind == "d":
                self._directories[entry.parts] = entry
                self._enter(entry.parts)
                return None
            directory, name = self._enter(entry.parts[:-1]), encode_name(entry.parts[-1])
            if entry.kind == "f" and self._made == entry.parts[:-1]:
                return MissingPart(entry)
            there = directory.status_of(name)
            _check_owner(directory, name, there)
            state = state_of(entry, there, self)
            action = DOWNLOAD.actions[state]
            if action == "refuse":
                raise WriteRefused("there is a directory of that name on the control machine; move it away")
            if entry.kind == "l":
                if action != "keep":
                    directory.link_to(encode_name(entry.content), name)
                if action == "send":
                    self._note(entry.parts)
                return None
            if action == "keep":
                if there is not None and stat.S_IMODE(there.st_mode) != self._mode_of(entry):
                    self._set_mode(directory, name, entry)
                return None
            return self._missing_part(directory, name, there, entry, action)
        except OSError as error:
            raise _write_error(error) from None

    def begin(self, entry: ManifestEntry, at: int, missing: MissingPart) -> None:
        if at not in (0, missing.have):
            raise HostError("it resumes a file at another offset than requested")
        crc = missing.crc if at else 0
        name = encode_name(entry.parts[-1])
        try:
            directory = self._enter(entry.parts[:-1])
            if at and missing.in_place and self._appends and at < entry.size:
                number = _open_to_append(directory, name, at)
                self._file = _OpenFile(entry, directory, b"", number, crc, at, True)
                return
            if at and missing.in_place:
                refused = "" if at == entry.size else "it changed while it was read; fetch it again"
                number = os.open(name, _READING, dir_fd=directory.number)
                self._file = _OpenFile(entry, directory, b"", number, crc, at, True, refused)
                return
            part, number, mode = self._open_part(directory, name, at, entry.mode & 0o777 | 0o600)
        except (OSError, WriteRefused) as error:
            why = str(error) if isinstance(error, WriteRefused) else str(_write_error(error))
            if isinstance(error, OSError) and error.errno in _FULL:
                raise self._disk(error) from None
            self._file = _OpenFile(entry, self._top, b"", -1, crc, at, False, why)
            return
        self._file = _OpenFile(entry, directory, part, number, crc, at, False, mode=mode)

    @staticmethod
    def _open_part(directory: GuardedDirectory, name: bytes, at: int, mode: int) -> tuple[bytes, int, int]:
        """Name, descriptor and mode of the temporary file; a new name if the usual one belongs to something else."""
        part = _part(name)
        number: int | None = None
        with contextlib.suppress(FileExistsError):
            number = os.open(part, _NEW, mode, dir_fd=directory.number)
        if number is None and (number := _open_own(directory, part, os.O_RDWR)) is None:
            if at:
                raise WriteRefused(_CHANGED)
            part = _part(name, os.urandom(8))
            number = os.open(part, _NEW, mode, dir_fd=directory.number)
        try:
            if not _is_free(number):
                raise WriteRefused(_AT_IT)
            status, there = os.fstat(number), directory.status_of(part)
            if there is None or there.st_ino != status.st_ino:  # it got its name just now
                raise WriteRefused(_AT_IT)
            if status.st_size < at:
                directory.unlink(part)
                raise WriteRefused(_CHANGED)
            if status.st_size:
                os.ftruncate(number, at)
                os.lseek(number, at, os.SEEK_SET)
        except (OSError, WriteRefused):
            os.close(number)
            raise
        return part, number, stat.S_IMODE(status.st_mode)

    def write(self, data: memoryview) -> None:
        file = self._file
        assert file is not None
        if file.at + len(data) > file.entry.size:
            raise HostError(f"it sends more bytes of {quoted(file.entry.path)} than its list says")
        file.at += len(data)
        if file.refused:
            return
        file.crc = zlib.crc32(data, file.crc)
        try:
            write_all(file.number, data)
        except OSError as error:
            raise self._disk(error) from None

    def finish(self, known: object, *, changed: bool, may_grow: bool = False) -> None:
        """Give a complete file its name if its hash is the host's. Raises WriteRefused."""
        file, self._file = self._file, None
        assert file is not None
        entry, name = file.entry, encode_name(file.entry.parts[-1])
        try:
            if file.refused:
                raise WriteRefused(file.refused)
            if changed and not (may_grow and file.at == entry.size):
                file.cut()
                raise WriteRefused("it changed while it was read; fetch it again")
            if file.crc != known or file.at != entry.size:
                file.cut()
                with contextlib.suppress(OSError):
                    file.directory.unlink(file.part)
                raise WriteRefused("it was damaged on the way; fetch it again")
            mode = self._mode_of(entry)
            set_attributes(file.number, mode if mode != file.mode else None, entry.mtime)
            if not file.in_place:
                is_new = not self._is_below_new(entry.parts) and file.directory.status_of(name) is None
                file.directory.rename(file.directory.number, file.part, name)
                if is_new:
                    self._note(entry.parts)
        except OSError as error:
            raise _write_error(error) from None
        finally:
            _close(file)

    def abandon(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        if file.part and file.part != _part(encode_name(file.entry.parts[-1])):
            with contextlib.suppress(OSError):
                file.directory.unlink(file.part)
        _close(file)

    def close_directories(self) -> None:
        for entry in reversed(self._directories.values()):
            with contextlib.suppress(OSError, WriteRefused):
                directory = self._enter(entry.parts)
                directory.set_times(entry.mtime)
                inherited = directory.status().st_mode & stat.S_ISGID  # of its parent on this machine
                directory.set_mode(self._mode_of(entry) | inherited)

    def _mode_of(self, entry: ManifestEntry) -> int:
        return entry.mode & 0o777 & ~self._umask

    def match(self, entry: ManifestEntry, status: os.stat_result) -> Match:
        if entry.kind == "l":
            directory = self._enter(entry.parts[:-1])
            target = os.readlink(encode_name(entry.parts[-1]), dir_fd=directory.number)
            return "equal" if target == encode_name(entry.content) else "other"
        if status.st_size != entry.size:
            return "other"
        return "equal" if _same_time(status.st_mtime_ns, entry.mtime) else "similar"

    def _missing_part(
        self,
        directory: GuardedDirectory,
        name: bytes,
        there: os.stat_result | None,
        entry: ManifestEntry,
        action: Action,
    ) -> MissingPart:
        """A file whose bytes, all or from some point on, are still to come."""
        part = directory.status_of(_part(name))
        part_size = part.st_size if part is not None and _is_own(part) else 0
        size = there.st_size if there is not None and stat.S_ISREG(there.st_mode) else 0
        transfer = choose_transfer(entry, action, size if self._appends else 0, part_size)
        return MissingPart(entry) if transfer == "whole" else self._partial_file(directory, name, entry, transfer)

    def _partial_file(
        self, directory: GuardedDirectory, name: bytes, entry: ManifestEntry, transfer: Transfer
    ) -> MissingPart:
        digest, crc, size = hashlib.blake2b(digest_size=32), 0, 0
        number: int | None = None
        if transfer == "check":
            with contextlib.suppress(OSError):
                number = os.open(name, _READING, dir_fd=directory.number)
        elif transfer == "append":
            number = _open_own(directory, name, os.O_RDWR)
        else:
            number = _open_own(directory, _part(name), os.O_RDONLY)
        if number is None:
            return MissingPart(entry)
        with os.fdopen(number, "rb", buffering=0) as file:
            if transfer != "check" and not _is_free(number):
                raise WriteRefused(_AT_IT)
            while data := file.read(_READ):
                digest.update(data)
                crc = zlib.crc32(data, crc)
                size += len(data)
        if not 0 < size <= entry.size:
            return MissingPart(entry)
        return MissingPart(entry, size, digest.hexdigest(), crc, transfer != "resume")

    def _set_mode(self, directory: GuardedDirectory, name: bytes, entry: ManifestEntry) -> None:
        with contextlib.suppress(OSError):
            number = os.open(name, _READING, dir_fd=directory.number)
            try:
                os.fchmod(number, self._mode_of(entry))
            finally:
                os.close(number)

    def _note(self, parts: tuple[str, ...]) -> None:
        if not self._is_below_new(parts):
            self._new.add(parts)
            self.created.append(os.path.join(os.path.abspath(self.root), *parts))

    def _is_below_new(self, parts: tuple[str, ...]) -> bool:
        return any(parts[:depth] in self._new for depth in range(len(parts)))

    def _enter(self, parts: Sequence[str]) -> GuardedDirectory:
        """The directory, created if needed, open until another one is requested."""
        return self._opened.enter([encode_name(part) for part in parts])

    def _open_below(self, above: GuardedDirectory, names: Sequence[bytes]) -> GuardedDirectory:
        parts = tuple(map(decode_name, names))
        entry = self._directories.get(parts)
        mode = 0o777 if entry is None else entry.mode & 0o777 | 0o700  # private from the first file on
        with contextlib.suppress(FileExistsError):
            os.mkdir(names[-1], mode, dir_fd=above.number)
            self._made = parts
            self._note(parts)
        here = os.path.join(self.root, *parts)
        try:
            directory = above.enter(names[-1])
        except AgentError:
            raise WriteRefused(f"{here} is a link{_NO_DIRECTORY}") from None
        except NotADirectoryError:
            raise WriteRefused(f"{here} is a file{_NO_DIRECTORY}") from None
        try:
            _check_owner(above, names[-1], directory.status())
        except WriteRefused:
            directory.close()
            raise
        mode = stat.S_IMODE(directory.status().st_mode)
        if mode & 0o700 != 0o700:
            with contextlib.suppress(OSError):
                directory.set_mode(mode | 0o700)
        return directory

    def _disk(self, error: OSError) -> HostError:
        full = "; make room and run it again: it continues from here" if error.errno in _FULL else ""
        return HostError(f"{self.root} on this machine: {error.strerror or error}{full}")


Transfer: TypeAlias = Literal["check", "append", "resume", "whole"]
"""Compare hashes; after the bytes of the file or of its part, if they are the host's; or from the first byte."""


def choose_transfer(entry: ManifestEntry, action: Action, grown: int, part: int) -> Transfer:
    """`grown`: bytes of a file that may grow in its place, `part`: of an earlier unfinished transfer. Pure."""
    if action == "check":
        return "check"
    if part <= grown and 0 < grown < entry.size:
        return "append"
    return "resume" if 0 < part <= entry.size else "whole"


_ABOVE: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_READING: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def _open_own(directory: GuardedDirectory, name: bytes, flags: int) -> int | None:
    """Descriptor of a file of this account without other names; None otherwise."""
    try:
        number = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory.number)
    except OSError:
        return None
    if _is_own(os.fstat(number)):
        return number
    os.close(number)
    return None


def _open_to_append(directory: GuardedDirectory, name: bytes, at: int) -> int:
    """Descriptor at the end of the file. Raises WriteRefused if it was exchanged."""
    number = _open_own(directory, name, os.O_RDWR)
    if number is None:
        raise WriteRefused(_CHANGED)
    try:
        if not _is_free(number):
            raise WriteRefused(_AT_IT)
        if os.lseek(number, 0, os.SEEK_END) != at:
            raise WriteRefused(_CHANGED)
    except (OSError, WriteRefused):
        os.close(number)
        raise
    return number


def _is_own(status: os.stat_result) -> bool:
    """False if another account may have made the file, or linked it here: it could read and change the content."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1


def _check_owner(directory: GuardedDirectory, name: bytes, status: os.stat_result | None) -> None:
    try:
        directory.check_entry(name, status, _OWN_DEST)
    except AgentError as error:
        raise WriteRefused(f"{error.reason}; {error.fix}") from None


def read_umask() -> int:
    """Linux shows the umask; elsewhere it is made stricter for an instant."""
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as file:
        if (found := re.search(rb"^Umask:\s*([0-7]+)$", file.read(), re.MULTILINE)) is not None:
            return int(found[1], 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _is_free(number: int) -> bool:
    """Lock the file until it is closed; False if another process has locked it."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)  # a filesystem without locks
    return True


def _close(file: _OpenFile) -> None:
    if file.number >= 0:
        os.close(file.number)


def _part(name: bytes, salt: bytes = b"") -> bytes:
    """Short, unique name of a temporary file. Without salt, later calls find it."""
    return b".ipexctl-" + hashlib.blake2b(name, digest_size=8, salt=salt).hexdigest().encode() + b".part"


def _same_time(time: int, other: int) -> bool:
    """Some filesystems store only seconds."""
    return time == other or (time % 10**9 == 0 and time // 10**9 == other // 10**9)


def _write_error(error: OSError) -> WriteRefused:
    return WriteRefused(f"it can't be written here: {error.strerror or error}")

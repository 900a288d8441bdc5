"""Writes fetched files: each next to its place, checked, then renamed (`node/files/place.py`).

`policies.py` says which files are written, `choose_transfer` from which byte on; received parts stay for the next
call. Names are taken from directories held open and no link is followed, so nothing is written outside. Another
account's file is not taken for a part, written into or replaced. Modes are the host's, masked by the umask, as with cp
and rsync.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from ipexctl.errors import UserError
from ipexctl.files.file_names import NameRules, find_equal, rules_of
from ipexctl.files.named_paths import open_named_directory
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.files import decode_name, encode_name, free_space
from ipexctl.node.common.guarded_directory import GuardedDirectory
from ipexctl.node.files.compare import EntryComparer, Match, is_special, state_of
from ipexctl.node.files.file_sender import checksums
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.node.files.place import TAKEN, PartFile, Writer, is_own, lock_file, open_own, part_name
from ipexctl.node.files.policies import DOWNLOAD, Action
from ipexctl.remote.outcome import HostError
from ipexctl.text import readable

_OWN_DEST: Final = "fetch into a directory of your own"


@dataclass(frozen=True, slots=True)
class MissingPart:
    entry: ManifestEntry
    have: int = 0
    known: str | None = None
    crc: int = 0
    in_place: bool = False
    """True for bytes of the file itself, not of a temporary file."""
    is_new: bool = False
    """True if there is no file yet."""


class Destination(Writer, EntryComparer):
    """Methods for one entry raise an AgentError or an OSError if it can't be written; the others can."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._file: PartFile | None = None
        self._missing: MissingPart | None = None
        try:
            top, made = open_named_directory(root, make=True)
        except OSError as error:
            raise HostError(f"{root} on this machine can't be written to: {error.strerror or error}") from None
        except UserError as error:
            raise HostError(str(error), error.fix) from None
        super().__init__(top, DOWNLOAD, read_umask(), owner_fix=_OWN_DEST)
        self.created: list[str] = list(made[:1])
        """Absolute paths that did not exist before; nothing below a created directory."""
        self._new = {""} if made else set[str]()
        """Paths below DEST that this created."""

    def find_equal(self, paths: Mapping[int, str]) -> dict[int, str]:
        """Numbers of paths that this file system would write over an earlier one, with that path."""
        if not find_equal(paths, NameRules()):
            return {}
        try:
            return find_equal(paths, rules_of(self._top))
        except OSError as error:
            raise self.error_of_disk(error) from None

    def check_room(self, size: int) -> None:
        free = free_space(self._top.number)
        if size > free:
            raise HostError(
                f"{self.root} on this machine: the disk is full: {readable(size)} more needed, {readable(free)} free",
                "free some space there, or name another DEST",
            )

    def __enter__(self) -> Destination:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.abandon()
        self.finish_directories()
        super().__exit__()
        self._top.close()

    def inspect(self, entry: ManifestEntry) -> MissingPart | None:
        """The missing part of a file, or a link that was made; None for a directory and for what is there already."""
        if entry.kind == "d":
            self.make_directory(entry)
            return None
        if entry.kind == "f" and _above(entry.path) in self._new:
            return MissingPart(entry, is_new=True)
        with self.place_of(entry.path) as (directory, name):
            there = directory.status_of(name)
            directory.check_entry(name, there, _OWN_DEST)
            state = state_of(entry, there, self)
            action = DOWNLOAD.actions[state]
            if action == "refuse":
                raise self._in_the_way(entry, "directory" if state == "directory" else "FIFO, socket or device")
            if entry.kind == "l":
                if action != "keep":
                    directory.link_to(encode_name(entry.content), name)
                if action == "send":
                    self._note(entry.path)
                return None if action == "keep" else MissingPart(entry)
            if there is not None and action == "keep":
                if stat.S_IMODE(there.st_mode) != self.mode_of(entry):
                    self.set_mode(entry)
                return None
            return self._missing_part(directory, name, entry, action)

    def begin(self, missing: MissingPart, at: int) -> None:
        entry = missing.entry
        if at not in (0, missing.have):
            raise HostError("it resumes a file at another offset than requested")
        self._missing = missing
        with self.place_of(entry.path) as (directory, name):
            if at and missing.in_place:
                if at < entry.size:
                    raise AgentError("it changed while it was read; fetch it again")
                self._file = PartFile.in_place(directory, name, at, entry.size)
            else:
                self._file = PartFile.next_to(directory, name, at, entry.mode & 0o777 | 0o600)
            self._file.crc = missing.crc if at else 0

    def write(self, data: memoryview) -> None:
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError as error:
            raise self.error_of_disk(error) from None

    def finish(self, crc: object, *, changed: bool, may_grow: bool = False) -> None:
        """Give a complete file its name if its hash is the host's."""
        file, missing = self._file, self._missing
        assert file is not None
        assert missing is not None
        entry = missing.entry
        try:
            if changed and not (may_grow and file.at == entry.size):
                file.discard(keeps_part=True)
                raise AgentError("it changed while it was read; fetch it again")
            if file.crc != crc or file.at != entry.size:
                file.discard()
                raise AgentError("it was damaged on the way; fetch it again")
            there = file.status_of_place()
            if there is not None and is_special(there):  # made during the transfer
                file.discard()
                raise self._in_the_way(entry, "FIFO, socket or device")
            file.finish(self.mode_of(entry), entry.mtime)
            if missing.is_new:
                self._note(entry.path)
        finally:
            self.abandon()

    def abandon(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def match(self, entry: ManifestEntry, status: os.stat_result) -> Match:
        if entry.kind == "l":
            with self.place_of(entry.path) as (directory, name):
                is_same = os.readlink(name, dir_fd=directory.number) == encode_name(entry.content)
            return "equal" if is_same else "other"
        if status.st_size != entry.size:
            return "other"
        return "equal" if _same_time(status.st_mtime_ns, entry.mtime) else "similar"

    def _missing_part(
        self,
        directory: GuardedDirectory,
        name: bytes,
        entry: ManifestEntry,
        action: Action,
    ) -> MissingPart:
        """A file whose bytes, all or from some point on, are still to come."""
        missing, part = MissingPart(entry, is_new=action == "send"), part_name(name)
        status = directory.status_of(part)
        transfer = choose_transfer(entry, action, status.st_size if status is not None and is_own(status) else 0)
        if transfer == "whole":
            return missing
        number = open_own(directory, part if transfer == "resume" else name, os.O_RDONLY)
        if number is None:
            return missing
        try:
            if transfer == "resume" and not lock_file(number):
                raise AgentError(TAKEN)
            crc, known, size = checksums(number, entry.size + 1)
        finally:
            os.close(number)
        if not 0 < size <= entry.size:
            return missing
        return replace(missing, have=size, known=known, crc=crc, in_place=transfer == "check")

    def _note(self, path: str) -> None:
        if _above(path) not in self._new:
            self.created.append(os.path.join(os.path.abspath(self.root), path))
        self._new.add(path)

    def _make(self, above: GuardedDirectory, names: Sequence[bytes], mode: int) -> None:
        os.mkdir(names[-1], mode, dir_fd=above.number)  # this process has the umask
        self._note(decode_name(b"/".join(names)))

    def _open(self, above: GuardedDirectory, names: Sequence[bytes]) -> GuardedDirectory:
        try:
            directory = super()._open(above, names)
        except (AgentError, NotADirectoryError) as error:
            if isinstance(error, AgentError) and error.fix == _OWN_DEST:
                raise
            kind = "link" if isinstance(error, AgentError) else "file"
            here = self.path_of(decode_name(b"/".join(names)))
            raise AgentError(f"{here} on this machine is a {kind}; fetch writes into directories only") from None
        mode = stat.S_IMODE(directory.status().st_mode)
        if mode & 0o700 != 0o700:
            with contextlib.suppress(OSError):
                directory.set_mode(mode | 0o700)
        return directory

    def path_of(self, path: str) -> str:
        return os.path.join(self.root, path)

    def _in_the_way(self, entry: ManifestEntry, kind: str) -> AgentError:
        here = self.path_of(entry.path)
        return AgentError(f"{here} on this machine is a {kind}; move it away, or name another DEST")

    def error_of_disk(self, error: OSError) -> HostError:
        full = "; make room and run it again: it continues from here" if is_disk_full(error) else ""
        return HostError(f"{self.root} on this machine: {error.strerror or error}{full}")


Transfer: TypeAlias = Literal["check", "resume", "whole"]
"""Compare hashes; after the bytes of its part, if they are the host's; or from the first byte."""


def choose_transfer(entry: ManifestEntry, action: Action, part: int) -> Transfer:
    """`part`: bytes of an earlier unfinished transfer. Pure."""
    if action == "check":
        return "check"
    return "resume" if 0 < part <= entry.size else "whole"


def read_umask() -> int:
    """Linux shows the umask; elsewhere it is made stricter for an instant."""
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as file:
        if (found := re.search(rb"^Umask:\s*([0-7]+)$", file.read(), re.MULTILINE)) is not None:
            return int(found[1], 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _above(path: str) -> str:
    return path.rpartition("/")[0]


def _same_time(time: int, other: int) -> bool:
    """Some filesystems store only seconds."""
    return time == other or (time % 10**9 == 0 and time // 10**9 == other // 10**9)

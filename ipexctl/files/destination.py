"""Write fetched files: each under a temporary name beside its path, checked, then renamed (`node/files/place.py`).

- `policies.py` says which files are written, `choose_transfer` from which byte on. Parts that were received stay for
  the next call.
- The host is not trusted: names are opened relative to directories that are held open, and no symlink is followed, so
  nothing is written outside DEST.
- Other accounts may write in DEST, too: a file of another account is not taken for a part, written into or replaced.
- Modes are the host's, masked by the umask, as with cp and rsync.
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
    """A file that is requested from the host, from some byte on; or a symlink that was made."""

    entry: ManifestEntry
    have: int = 0
    """Bytes that are here already, if they are the host's."""
    known: str | None = None
    """Hash of the bytes that are here, which the host compares with its own (`file_sender.checksums`); None if there
    are none."""
    crc: int = 0
    """CRC of the bytes that are here."""
    in_place: bool = False
    """True for bytes of the file itself, not of a temporary file."""
    is_new: bool = False
    """True if there is no file yet."""


class Destination(Writer, EntryComparer):
    """DEST of a fetch. Methods for one entry raise an AgentError or an OSError if that entry alone can't be written,
    and a HostError if none can, as on a full disk."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._file: PartFile | None = None
        self._missing: MissingPart | None = None
        try:
            top, new_directories = open_named_directory(root, make=True)
        except OSError as error:
            raise HostError(f"{root} on this machine can't be written to: {error.strerror or error}") from None
        except UserError as error:
            raise HostError(str(error), error.fix) from None
        super().__init__(top, DOWNLOAD, read_umask(), owner_fix=_OWN_DEST)
        self.created: list[str] = list(new_directories[:1])
        """Absolute paths that did not exist before; nothing below a created directory."""
        self._new = {""} if new_directories else set[str]()
        """Paths below DEST that this created; the empty one is DEST itself."""

    def find_equal(self, paths: Mapping[int, str]) -> dict[int, str]:
        """Return number of a path → the earlier path over which this file system would write it: `Data` and `data`.

        `paths`: number → path. The file system is asked only if two paths may be equal.
        """
        if not find_equal(paths, NameRules()):
            return {}
        try:
            return find_equal(paths, rules_of(self._top))
        except OSError as error:
            raise self.error_of_disk(error) from None

    def check_room(self, size: int) -> None:
        """Refuse a fetch of more bytes than the disk has free."""
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
        """Leave an unfinished file for the next call, and give the directories their modes."""
        self.abandon()
        self.finish_directories()
        super().__exit__()
        self._top.close()

    def inspect(self, entry: ManifestEntry) -> MissingPart | None:
        """Make a directory or a symlink, or find out what is missing of a file.

        Returns the missing part of a file, or a symlink that was made; None for a directory, and for an entry that is
        here already.
        """
        if entry.kind == "d":
            self.make_directory(entry)
            return None
        if entry.kind == "f" and _parent(entry.path) in self._new:
            return MissingPart(entry, is_new=True)
        with self.place_of(entry.path) as (directory, name):
            status = directory.status_of(name)
            directory.check_entry(name, status, _OWN_DEST)
            state = state_of(entry, status, self)
            action = DOWNLOAD.actions[state]
            if action == "refuse":
                raise self._in_the_way(entry, "directory" if state == "directory" else "FIFO, socket or device")
            if entry.kind == "l":
                if action != "keep":
                    directory.link_to(encode_name(entry.content), name)
                if action == "send":
                    self._note(entry.path)
                return None if action == "keep" else MissingPart(entry)
            if status is not None and action == "keep":
                if stat.S_IMODE(status.st_mode) != self.mode_of(entry):
                    self.set_mode(entry)
                return None
            return self._missing_part(directory, name, entry, action)

    def begin(self, missing: MissingPart, at: int) -> None:
        """Open a file for its bytes from `at` on. The host decides: 0 if the bytes here are not its own."""
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
        """Write bytes to the open file. Raises a HostError, because another file would not fit either."""
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError as error:
            raise self.error_of_disk(error) from None

    def finish(self, crc: object, *, changed: bool, may_grow: bool = False) -> None:
        """Give the open file its name, if it is complete and its CRC is the host's; raise an AgentError if it is not.

        `changed`: True if the host's file changed while it was read. `may_grow`: that is no error for a file that only
        grows, if all listed bytes have come.
        """
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
            status = file.status_of_place()
            if status is not None and is_special(status):  # made during the transfer
                file.discard()
                raise self._in_the_way(entry, "FIFO, socket or device")
            file.finish(self.mode_of(entry), entry.mtime)
            if missing.is_new:
                self._note(entry.path)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the open file, if there is one; an unfinished one stays for the next call."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def match(self, entry: ManifestEntry, status: os.stat_result) -> Match:
        """Return `equal`, `other`, or `similar` for a file of the same size and another time, whose hash decides."""
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
        """Return from which byte on a file is requested, and hash and CRC of the bytes before, which are here.

        Raises an AgentError if another call is receiving the same file.
        """
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
        """Note that this call created a path."""
        if _parent(path) not in self._new:
            self.created.append(os.path.join(os.path.abspath(self.root), path))
        self._new.add(path)

    def _make(self, above: GuardedDirectory, names: Sequence[bytes], mode: int) -> None:
        os.mkdir(names[-1], mode, dir_fd=above.number)  # this process has the umask
        self._note(decode_name(b"/".join(names)))

    def _open(self, above: GuardedDirectory, names: Sequence[bytes]) -> GuardedDirectory:
        """Open a directory below DEST, and let this account write into it. Raises an AgentError if a file or symlink is
        in its path."""
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
        """Return the whole path of a file below the destination."""
        return os.path.join(self.root, path)

    def _in_the_way(self, entry: ManifestEntry, kind: str) -> AgentError:
        """Return the error for something of another kind that is at the entry's path. `kind`: what it is."""
        here = self.path_of(entry.path)
        return AgentError(f"{here} on this machine is a {kind}; move it away, or name another DEST")

    def error_of_disk(self, error: OSError) -> HostError:
        """Return the error that ends the fetch from this host, because no file can be written."""
        full = "; make room and run it again: it continues from here" if is_disk_full(error) else ""
        return HostError(f"{self.root} on this machine: {error.strerror or error}{full}")


Transfer: TypeAlias = Literal["check", "resume", "whole"]
"""`check`: compare the hash of the whole file first. `resume`: send what follows the received part, if its hash is
that of the host's bytes. `whole`: send from the first byte."""


def choose_transfer(entry: ManifestEntry, action: Action, part: int) -> Transfer:
    """Return how a file is transferred. `part`: bytes that an unfinished transfer left; 0 for none. Pure."""
    if action == "check":
        return "check"
    return "resume" if 0 < part <= entry.size else "whole"


def read_umask() -> int:
    """Return the umask of this process. Linux shows it; elsewhere it is made stricter for an instant."""
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as file:
        if (line := re.search(rb"^Umask:\s*([0-7]+)$", file.read(), re.MULTILINE)) is not None:
            return int(line[1], 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def is_disk_full(error: OSError) -> bool:
    """True if the disk or the quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _same_time(time: int, other: int) -> bool:
    """True if two times in ns are equal, or `time` may be `other` as a filesystem stores it that has only seconds."""
    return time == other or (time % 10**9 == 0 and time // 10**9 == other // 10**9)

"""Writes entries below an opened directory.

Contents arrive in a `StagedFiles`, and then get one name after the other; or each next to its place, as a `PartFile`.
No link is followed, and each file has its old or its new content, even after a full disk or a kill.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import zlib
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Callable, Collection, Iterable, Iterator, Sequence

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.files import decode_name, encode_name, remove_abandoned, sha256_of_open
from ipexctl.node.common.guarded_directory import DirectoryChain, GuardedDirectory, blocks_of, set_attributes, write_all
from ipexctl.node.files.compare import refuse_special
from ipexctl.node.files.file_stream import CHUNK, ByteStream, check_hash, read_files
from ipexctl.node.files.policies import REFUSE_ALL

if TYPE_CHECKING:
    from ipexctl.node.files.manifest import ManifestEntry
    from ipexctl.node.files.policies import Policy

CONTENT, PARCEL = "content", "parcel"
"""Names in a stage's directories: a large file, or a stream of several small ones."""
_MARK = "user.ipexctl.pushed"
"""Extended attribute of a file that a push wrote: its inode and sha256 then. A copy has another inode."""
_NEXT = b"next"
_LONGEST = 240
"""Bytes of a name to which something is appended; file systems allow 255."""
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
TAKEN = "another fetch is bringing it to the same place"
_CHANGED = "the part of it that was here has changed; fetch it again"


class StagedFiles:
    """Contents that have arrived, in a directory that only this account can open: HASH, or HASH/content of a store.

    HASH may be of a killed call, and is complete if it has the right size.
    """

    def __init__(self, directory: GuardedDirectory, changed: str) -> None:
        """`changed`: the reason if a content has another hash."""
        self.directory, self._changed = directory, changed
        self._stored: set[bytes] = set()

    def lacks(self, entry: ManifestEntry) -> bool:
        """Return True if the content of a file has not arrived. Ask before `put`, which does not look again."""
        name = check_hash(entry.content).encode()
        status = self.directory.status_of(name)
        if status is not None and stat.S_ISDIR(status.st_mode):
            self._stored.add(name)
            with self.directory.enter(name) as directory:
                status = directory.status_of(CONTENT.encode())
        return status is None or status.st_size != entry.size

    @contextlib.contextmanager
    def _opened(self, content: str) -> Iterator[tuple[GuardedDirectory, bytes]]:
        name = content.encode()
        if name in self._stored:
            with self.directory.enter(name) as directory:
                yield directory, CONTENT.encode()
        else:
            yield self.directory, name

    def receive(self, stream: ByteStream) -> None:
        """Take all files of a stream. Raises an AgentError if one has another hash than its header says."""
        for file in read_files(stream):
            name = check_hash(file.sha256).encode()
            if file.part.size > CHUNK:
                self.add(file.sha256, file.chunks(file.sha256))
            else:
                self._add_small(name, file.content(self._changed))

    def unpack(self, sha256: str) -> None:
        """Take the files of a parcel."""
        with self.directory.enter(check_hash(sha256).encode()) as directory:
            number = directory.open_to_read(PARCEL.encode())
        with open(number, "rb") as parcel:
            self.receive(parcel)

    def add(self, sha256: str, chunks: Iterable[bytes]) -> None:
        """Add a content. Raises an AgentError if the hash differs."""
        import hashlib  # loads OpenSSL (10 ms), which the description of a tree does not need

        digest = hashlib.sha256()
        with self.directory.written(check_hash(sha256).encode(), 0o600) as number:
            for chunk in chunks:
                digest.update(chunk)
                write_all(number, chunk)
            if digest.hexdigest() != sha256:
                raise AgentError(self._changed, "run it again")

    def _add_small(self, name: bytes, data: bytes) -> None:
        """Write directly to the final name: a third of the system calls."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            number = os.open(name, flags, 0o600, dir_fd=self.directory.number)
        except FileExistsError:  # of a killed call
            self.directory.unlink(name)
            number = os.open(name, flags, 0o600, dir_fd=self.directory.number)
        try:
            write_all(number, data)
        finally:
            os.close(number)

    def put(
        self,
        entry: ManifestEntry,
        mode: int,
        target: GuardedDirectory,
        name: bytes,
        *,
        is_last: bool,
        is_checked: bool = False,
        is_marked: bool = False,
        may_replace: Callable[[], bool],
    ) -> None:
        """Move a file to its place; `is_last`: no other entry needs the content."""
        with self._opened(entry.content) as (source, arrived):
            if is_checked:
                with open(source.open_to_read(arrived), "rb", buffering=0) as file:
                    if sha256_of_open(file) != entry.content:
                        raise AgentError(f"{entry.path}: {self._changed}", "run it again")
            if not is_last:
                with open(source.open_to_read(arrived), "rb", buffering=0) as file:
                    self.directory.write(_NEXT, blocks_of(file))
                source, arrived = self.directory, _NEXT
            os.chmod(arrived, mode, dir_fd=source.number)
            if entry.mtime:
                os.utime(arrived, ns=(entry.mtime, entry.mtime), dir_fd=source.number)
            if is_marked:
                _mark(source, arrived, entry.content)
            give_name(source, arrived, target, name, replaces=may_replace())

    def put_link(
        self, content: bytes, target: GuardedDirectory, name: bytes, *, may_replace: Callable[[], bool]
    ) -> None:
        """Make a link at its place. `content`: its target; `may_replace`: whether an entry there may be replaced, asked
        at the last moment."""
        self.directory.unlink(_NEXT)
        self.directory.link_to(content, _NEXT, replace=False)
        give_name(self.directory, _NEXT, target, name, replaces=may_replace())


class Writer:
    def __init__(
        self, top: GuardedDirectory, policy: Policy, umask: int = 0, *, replaces: bool = True, owner_fix: str = ""
    ) -> None:
        """`umask`: of the account; this process may have another. Without `replaces`, a file that has appeared since
        the comparison raises a FileExistsError. `owner_fix`: what the AgentError for another account's entry advises;
        without it, owners are not checked."""
        self._top, self._policy, self._umask, self._replaces = top, policy, umask, replaces
        self._owner_fix = owner_fix
        self._directories = DirectoryChain(top, self._open)
        self._listed: dict[str, ManifestEntry] = {}
        """Directories of the list that have been entered, by path."""
        self._times: dict[str, int | None] = {}
        """Path of a directory → its mtime when it was entered first, in ns; None for a new one."""

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._directories.leave()

    def _open(self, above: GuardedDirectory, names: Sequence[bytes]) -> GuardedDirectory:
        path, is_new = decode_name(b"/".join(names)), False
        try:
            directory = above.enter(names[-1])
        except FileNotFoundError:
            if not self._policy.umask:
                raise
            entry = self._listed.get(path)
            mode = 0o777 if entry is None else entry.mode & 0o777 | 0o700  # private from the first file on
            with contextlib.suppress(FileExistsError):
                self._make(above, names, mode)
                is_new = True
            directory = above.enter(names[-1])
        if self._owner_fix:
            status = directory.status()
            try:
                above.check_entry(names[-1], status, self._owner_fix)
            except AgentError:
                directory.close()
                raise
            self._times.setdefault(path, None if is_new else status.st_mtime_ns)
        return directory

    def _make(self, above: GuardedDirectory, names: Sequence[bytes], mode: int) -> None:
        with umask_set(self._umask):
            os.mkdir(names[-1], mode, dir_fd=above.number)

    def enter(self, path: str) -> GuardedDirectory:
        """Return a directory, open until another one is entered."""
        return self._directories.enter([part for part in encode_name(path).split(b"/") if part])

    @contextlib.contextmanager
    def place_of(self, path: str) -> Iterator[tuple[GuardedDirectory, bytes]]:
        """Yield the opened directory of an entry, and its name there."""
        *above, name = encode_name(path).split(b"/")
        try:
            yield self._directories.enter(above), name
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.path.join(self._top.path, path)) from None

    def check(self, entries: Iterable[ManifestEntry], removed: Collection[str] = ()) -> None:
        """Raise for an entry whose place has something that is never replaced, before anything is written. `removed`:
        paths that will be missing by then."""
        chain = DirectoryChain(self._top, lambda above, names: above.enter(names[-1]))
        with contextlib.ExitStack() as held:
            held.callback(chain.leave)
            for entry in entries:
                *above, name = encode_name(entry.path).split(b"/")
                path = os.path.join(self._top.path, entry.path)
                if entry.path in removed or entry.kind == "d":
                    continue
                try:
                    directory = chain.enter(above)
                except FileNotFoundError:
                    continue
                status = directory.status_of(name)
                refuse_special(path, status, self._policy)
                if status is not None and stat.S_ISDIR(status.st_mode):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
                if self._owner_fix:
                    directory.check_entry(name, status, self._owner_fix)

    def make(self, entries: Sequence[ManifestEntry], stage: StagedFiles) -> None:
        """Write entries whose contents are all in the stage. Raises an OSError with the path."""
        uses, policy = Counter(entry.content for entry in entries if entry.kind == "f"), self._policy
        if policy.actions["special"] == REFUSE_ALL:
            self.check(entries)
        for entry in entries:
            if entry.kind == "d":
                self.make_directory(entry)
                continue
            with self.place_of(entry.path) as (directory, name):
                may_replace = partial(self._may_replace, directory, name)
                there = directory.status_of(name) if self._replaces or policy.marks else None
                refuse_special(os.path.join(self._top.path, entry.path), there, policy)
                if self._owner_fix:
                    directory.check_entry(name, there, self._owner_fix)
                uses[entry.content] -= entry.kind == "f"
                try:
                    if entry.kind == "l":
                        stage.put_link(encode_name(entry.content), directory, name, may_replace=may_replace)
                        continue
                    stage.put(
                        entry,
                        self.mode_of(entry),
                        directory,
                        name,
                        is_last=not uses[entry.content],
                        is_checked=policy.checks_again,
                        is_marked=policy.marks,
                        may_replace=may_replace,
                    )
                except FileExistsError:
                    if not _is_same(directory, name, entry):  # of another call that wrote it meanwhile
                        raise
                    stage.directory.unlink(_NEXT)

    def _may_replace(self, directory: GuardedDirectory, name: bytes) -> bool:
        return self._replaces or (self._policy.marks and is_as_written(directory, name))

    def make_directory(self, entry: ManifestEntry) -> None:
        """Make a directory of the list. If the policy takes the list's modes, it must not exist; else one that exists
        stays."""
        if self._policy.umask:
            self._listed[entry.path] = entry
            self.enter(entry.path)
            return
        with self.place_of(entry.path) as (above, name):
            os.mkdir(name, dir_fd=above.number)
            os.chmod(name, entry.mode, dir_fd=above.number)

    def finish_directories(self) -> None:
        """Give the directories of the list their times and modes, now that nothing is written into them any more."""
        for entry in reversed(list(self._listed.values())):
            with contextlib.suppress(OSError, AgentError):
                directory = self.enter(entry.path)
                directory.set_times(entry.mtime)
                inherited = directory.status().st_mode & stat.S_ISGID  # of its parent on this host
                directory.set_mode(self.mode_of(entry) | inherited)

    def restore_times(self, entries: Sequence[ManifestEntry]) -> None:
        """Give directories the times they had, and new ones that of their newest file."""
        for path, before in self._times.items():
            newest = max((entry.mtime for entry in entries if entry.path.startswith(f"{path}/")), default=None)
            at = newest if before is None else before
            if at is not None:
                with contextlib.suppress(FileNotFoundError), self.place_of(path) as (directory, name):
                    os.utime(name, ns=(at, at), follow_symlinks=False, dir_fd=directory.number)

    def mode_of(self, entry: ManifestEntry) -> int:
        """Return the mode that an entry gets on this host."""
        return self._policy.mode_of(entry.mode, self._umask)

    def set_mode(self, entry: ManifestEntry) -> None:
        """Set the mode of an existing entry, without following a link."""
        with self.place_of(entry.path) as (directory, name):
            flags = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
            with GuardedDirectory(os.open(name, flags, dir_fd=directory.number), entry.path) as opened:
                opened.set_mode(self.mode_of(entry))

    def keep(self, path: str) -> None:
        """Rename an entry to NAME.node-N, with a long NAME cut."""
        with self.place_of(path) as (directory, name):
            number = 1
            while directory.status_of(kept := b"%s.node-%d" % (name[:_LONGEST], number)) is not None:
                number += 1
            directory.rename(directory.number, name, kept)

    def remove(self, path: str) -> None:
        """Remove an entry. A directory in which a run has just written stays."""
        with self.place_of(path) as (directory, name):
            if not stat.S_ISDIR(os.stat(name, dir_fd=directory.number, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=directory.number)
                return
            try:
                os.rmdir(name, dir_fd=directory.number)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise


def _mark(directory: GuardedDirectory, name: bytes, sha256: str) -> None:
    # A file system, or a Python, without extended attributes.
    with contextlib.suppress(OSError, AttributeError), open(directory.open_to_read(name), "rb") as file:
        os.setxattr(file.fileno(), _MARK, _mark_of(os.fstat(file.fileno()), sha256))


def is_as_written(directory: GuardedDirectory, name: bytes) -> bool:
    """True for a file that a push wrote and nobody has changed since; False if that is not known."""
    with contextlib.suppress(OSError, AttributeError), open(directory.open_to_read(name), "rb", buffering=0) as file:
        before, mark = os.fstat(file.fileno()), os.getxattr(file.fileno(), _MARK)
        if mark.startswith(_mark_of(before, "")) and mark == _mark_of(before, sha256_of_open(file)):
            return _state(directory.status_of(name)) == _state(before)  # not changed while it was read
    return False


def _mark_of(status: os.stat_result, sha256: str) -> bytes:
    return b"%d %s" % (status.st_ino, sha256.encode())


def _state(status: os.stat_result | None) -> tuple[int, ...]:
    return () if status is None else (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _is_same(directory: GuardedDirectory, name: bytes, entry: ManifestEntry) -> bool:
    directory.check_entry(name, directory.status_of(name), "name a directory of your own")
    with contextlib.suppress(OSError):
        if entry.kind == "l":
            return os.readlink(name, dir_fd=directory.number) == encode_name(entry.content)
        with open(directory.open_to_read(name), "rb", buffering=0) as file:
            return sha256_of_open(file) == entry.content
    return False


class PartFile:
    """A file that arrives under a temporary name next to its place, or whose last bytes are appended in its place.

    It is locked until it is closed. An incomplete one stays for a later call.
    """

    def __init__(self, directory: GuardedDirectory, name: bytes, number: int, part: bytes = b"") -> None:
        """`part`: the temporary name; empty for the file itself."""
        self._directory, self._name, self._number, self._part = directory, name, number, part
        self.at = self.crc = self._began = 0
        self._mode = -1

    @classmethod
    def next_to(cls, directory: GuardedDirectory, name: bytes, at: int, mode: int) -> PartFile:
        """Keep `at` bytes of what an earlier call left. If something else has the usual name, the part has another."""
        part, own = part_name(name), None
        try:
            number = os.open(part, _NEW, mode, dir_fd=directory.number)
        except FileExistsError:
            own = open_own(directory, part, os.O_RDWR)
            part = part if own is not None else part_name(name, os.urandom(8))
            number = os.open(part, _NEW, mode, dir_fd=directory.number) if own is None else own
        return cls(directory, name, number, part)._begin(at, is_new=own is None)

    @classmethod
    def in_place(cls, directory: GuardedDirectory, name: bytes, at: int, size: int) -> PartFile:
        """Open the file itself, to append to it. If it has all its bytes, only attributes are set."""
        number = open_own(directory, name, os.O_RDWR if at < size else os.O_RDONLY)
        if number is None:
            raise AgentError(_CHANGED)
        return cls(directory, name, number)._begin(at, is_locked=at < size)

    def _begin(self, at: int, *, is_new: bool = False, is_locked: bool = True) -> PartFile:
        try:
            if is_locked and not lock_file(self._number):
                raise AgentError(TAKEN)
            status = os.fstat(self._number)
            if not is_new:
                there = self._directory.status_of(self._part or self._name)
                if there is None or not os.path.samestat(there, status):  # another call has just finished it
                    raise AgentError(TAKEN)
            if status.st_size < at or (status.st_size > at and not self._part):
                raise AgentError(_CHANGED)
            if self._part and status.st_size:
                os.ftruncate(self._number, at)
            if at:
                os.lseek(self._number, at, os.SEEK_SET)
        except BaseException:
            os.close(self._number)
            raise
        self.at, self._began, self._mode = at, at, stat.S_IMODE(status.st_mode)
        return self

    def write(self, data: memoryview) -> None:
        """Append bytes."""
        self.crc = zlib.crc32(data, self.crc)
        write_all(self._number, data)
        self.at += len(data)

    def discard(self, *, keeps_part: bool = False) -> None:
        """Drop the bytes of this call; with `keeps_part`, only those in the file's place."""
        with contextlib.suppress(OSError):
            if not self._part and self.at > self._began:
                os.ftruncate(self._number, self._began)
            elif self._part and not keeps_part:
                self._directory.unlink(self._part)

    def status_of_place(self) -> os.stat_result | None:
        """Return the status of what has the file's name now; None if nothing has."""
        return self._directory.status_of(self._name)

    def finish(self, mode: int, mtime: int) -> None:
        """Give the complete file its name."""
        set_attributes(self._number, mode if mode != self._mode else None, mtime)
        if self._part:
            self._directory.rename(self._directory.number, self._part, self._name)
            self._part = b""

    def close(self) -> None:
        """Close the file, which unlocks it. A part that no later call would find is removed."""
        if self._part and self._part != part_name(self._name):  # no later call would find it
            self.discard()
        os.close(self._number)


def part_name(name: bytes, salt: bytes = b"") -> bytes:
    """Return a short, unique name for a temporary file. Without salt, later calls find it."""
    import hashlib  # loads OpenSSL, as above

    return b".ipexctl-" + hashlib.blake2b(name, digest_size=8, salt=salt).hexdigest().encode() + b".part"


def open_own(directory: GuardedDirectory, name: bytes, flags: int) -> int | None:
    """Return the descriptor of a file of this account without other names, which another account can't read or change;
    None for any other."""
    try:
        number = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory.number)
    except OSError:
        return None
    if is_own(os.fstat(number)):
        return number
    os.close(number)
    return None


def is_own(status: os.stat_result) -> bool:
    """Return True for a regular file of this account that has no other name (hard link)."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1


def lock_file(number: int) -> bool:
    """Lock the file until it is closed. Return False if another process has locked it."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)  # a filesystem without locks
    return True


@contextlib.contextmanager
def umask_set(umask: int) -> Iterator[None]:
    """Use this umask in the block. All threads of the process have it then."""
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


def give_name(
    source: GuardedDirectory, arrived: bytes, directory: GuardedDirectory, name: bytes, *, replaces: bool = True
) -> None:
    """Move an entry of another opened directory to its place, with a copy if that is on another disk."""
    try:
        directory.rename(source.number, arrived, name, replace=replaces)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    with contextlib.suppress(OSError):  # not a link
        directory.link_to(os.readlink(arrived, dir_fd=source.number), name, replace=replaces)
        return
    remove_abandoned(directory.number, re.compile(rb"%s\.ipexctl-([0-9]{1,7})\.tmp" % re.escape(name)))
    temporary = b"%s.ipexctl-%d.tmp" % (name, os.getpid())
    with open(source.open_to_read(arrived), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        with directory.written(name, None, replace=replaces, temporary=temporary) as number:
            for block in blocks_of(file):
                write_all(number, block)
            set_attributes(number, stat.S_IMODE(status.st_mode), status.st_mtime_ns)
    source.unlink(arrived)

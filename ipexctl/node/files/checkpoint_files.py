"""A checkpoint on one host, and what is remembered of it between exchanges: finds its files, opens them for other
hosts, puts received ones in place, and sets others aside (`checkpoint_aside.py`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import stat
from typing import IO, Collection, Iterable, Iterator, Mapping

from ipexctl.node.common.answer import AgentError, Json
from ipexctl.node.common.authenticated_socket import MALFORMED
from ipexctl.node.common.checkpoint_layout import (
    METADATA,
    HalfWrittenError,
    check_complete,
    directories_above,
    find_named_parts,
    is_of_trainer,
    is_temporary,
)
from ipexctl.node.common.files import sha256_of_open, write_json_atomically
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.guarded_directory import GuardedDirectory
from ipexctl.node.common.json_records import read_json_file
from ipexctl.node.common.walk import Place, Refused
from ipexctl.node.files.checkpoint_aside import HIDDEN, AsideFiles
from ipexctl.node.files.checkpoint_path import OWN_CHECKPOINT, enter_path, name_of_place
from ipexctl.node.files.checkpoint_report import (
    MAX_FILES,
    HostCopies,
    KnownContent,
    KnownFiles,
    check_name,
    read_known,
    read_number,
)
from ipexctl.node.files.manifest import ManifestEntry, identity_of
from ipexctl.node.files.place import StagedFiles, Writer
from ipexctl.node.files.policies import CHECKPOINT
from ipexctl.node.files.tree import generations, runs_with_programs
from ipexctl.node.run.record.file_owner import FileOwners, keep_for
from ipexctl.node.run.record.run_files import adopt

_NO_HASH = "0" * 64
_MAX_LIST = 64 << 20
"""Bytes of a list of parts; with many ranks it has a few MB."""


class CheckpointFiles:
    """The checkpoint on one host, and what is remembered of it between exchanges."""

    def __init__(self, path: str, home: str, project: str = "", tree: str = "", run: str = "") -> None:
        """`run`: the one that the exchange is for; empty if whose the files are does not matter."""
        self.base, self.top = os.path.split(path)
        self._path, self._home, self._tree, self._run = path, home, tree, run
        self._owners = FileOwners(os.path.join(home, "runs", run)) if run else None
        self.runs: dict[str, str] = {}
        """File → the run that wrote it, at the scan."""
        self._others: list[CheckpointFiles] = []
        self._enter = functools.partial(enter_path, home=home, project=project)
        self._entered: Place | None = None
        key = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        self.directory = os.path.join(home, "checkpoints", key)
        self.inbox = os.path.join(self.directory, "in")
        self._record = os.path.join(self.directory, "files.json")
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._mount: str | None = None
        """Mount point of the checkpoint's filesystem after the last exchange."""
        self._has_hashes = True
        self._number = 0
        self._newest = -1
        """Highest ctime of its files at the scan, in ns."""
        self._seen: dict[str, int] = {}
        """Other tree → its highest ctime that the last exchange saw."""
        self._identities: dict[str, list[int]] = {}
        self._hashes: dict[str, str] = {}
        self._named_parts: dict[str, frozenset[str]] = {}
        self._empty: list[str] = []
        """Empty directories that scripts take for checkpoints."""
        self._rows: Json = {}
        self.known: KnownFiles = {}
        self._damaged = ""
        try:
            record = read_json_file(self._record)
            rows, number = record["files"], read_number(record.get("number", 0))
            seen = {str(tree): int(at) for tree, at in record.get("seen", {}).items()}
            self.known = read_known({name: list(KnownContent(*row[:-3])) for name, row in rows.items()}, self.top)
            self._rows, self._mount, self._number, self._seen = rows, record.get("mount"), number, seen
        except FileNotFoundError:
            pass
        except (OSError, *MALFORMED, AttributeError):
            self._damaged = f"{self._record}.damaged"
        self.since = self._number
        """Exchange after which its files were written: an earlier one than the last if some were put back."""

    @property
    def _place(self) -> Place:
        """The file or directory, kept open whatever others do to its name. Raises an AgentError if the project or
        another account can change it."""
        if self._entered is None:
            self._entered = self._enter(self._path)
        return self._entered

    def close(self) -> None:
        """Close what is held open of this tree and of others. A second call does no harm."""
        for files in (self, *self._others):
            if files._entered is not None:
                files._writer.__exit__()
                os.close(files._entered.number)
                files._entered = None

    @functools.cached_property
    def _writer(self) -> Writer:
        return Writer(GuardedDirectory.of(self._place), CHECKPOINT, self._umask, owner_fix=OWN_CHECKPOINT)

    def _path_of(self, name: str) -> str:
        """Return the path for the writer: below PATH, or below the directory above if PATH is a file or missing."""
        place, below = self._place, self._below(name)
        if below and place.name and place.status is not None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), place.path)
        return "/".join(filter(None, (place.name, below)))

    @property
    def root(self) -> str:
        """The checkpoint's path without links."""
        return self._place.path

    @functools.cached_property
    def aside_files(self) -> AsideFiles:
        """What exchanges have set aside of this checkpoint, and where the next files go."""
        return AsideFiles(self.directory, self.root)

    def _below(self, name: str) -> str:
        return check_name(name, self.top)[len(self.top) + 1 :]

    def _real_path(self, name: str) -> str:
        return os.path.realpath("/".join(filter(None, (self._place.path, self._below(name)))))

    def adopt(self, runs: Mapping[str, str]) -> None:
        """Record received files as files of the runs that wrote them on other hosts."""
        for run in {*runs.values()}:
            paths = [self._real_path(name) for name, writer in runs.items() if writer == run]
            adopt(os.path.join(self._home, "runs", run), paths)

    def _open_source(self, name: str) -> tuple[int, os.stat_result]:
        """Open a file to send. Raises an OSError or AgentError, also for a link that leads out."""
        place = self._place
        path = "/".join(filter(None, (place.path, self._below(name))))
        with self._enter(path, inside=os.fstat(place.number)) as source:
            return _open_file(source)

    def scan(self, *, has_hashes: bool = True) -> HostCopies:
        """Return the copies on this host, also in other trees. Without hashes, all contents look the same."""
        self._has_hashes = has_hashes
        here = self._scan(-1)
        return here._replace(others=tuple(self._scan_others()), damaged=self._damaged)

    def _scan_others(self) -> Iterator[HostCopies]:
        """Yield the copies in other trees of the project that are new. Skip trees that a live run uses: that run may be
        saving a checkpoint."""
        base = f"{self._home}/code/"
        if not self._tree or not self._path.startswith(f"{base}{self._tree}/"):
            return
        for tree in generations(os.fsencode(self._home), re.sub(r"\.gen[0-9]+$", "", self._tree)):
            name = os.fsdecode(os.path.basename(tree.path))
            is_used = {os.fsencode(run) for run in tree.runs()}.intersection(runs_with_programs())
            if name == self._tree or not tree.exists() or is_used:
                continue
            path = base + name + self._path[len(base) + len(self._tree) :]
            files = CheckpointFiles(path, self._home, run=self._run)
            files.known, files._has_hashes = {}, self._has_hashes
            self._others.append(files)
            with contextlib.suppress(OSError, AgentError):
                report = files._scan(self._seen.get(name, -1))
                self._seen[name] = files._newest
                if report.copies:
                    yield report._replace(left={}, written=set(report.copies), number=self._number, place=name)

    def _scan(self, since: int) -> HostCopies:
        """Find copies newer than `since`; unchanged files keep their hash from the last exchange."""
        self._newest = since
        copies: dict[str, ManifestEntry] = {}
        half: dict[str, str] = {}
        left: dict[str, str] = {}
        for name in self._names():
            if len(copies) >= MAX_FILES:
                raise AgentError(f"more than {MAX_FILES} files", "name the directory of the checkpoints alone")
            try:
                copies[name] = self._read_copy(name, since)
            except HalfWrittenError as error:
                half[name] = str(error)
            except (OSError, AgentError) as error:
                left[name] = getattr(error, "strerror", None) or str(error)
        self._check_mounted({*copies, *half, *left})
        place = os.path.relpath(name_of_place(self.root, self._home), self.base)
        written = {name for name in copies if self._rows.get(name, [])[-3:] != self._identities[name]}
        age = self._number - self.since
        return HostCopies(
            copies, half, left, self.known, written, self._number, self._named_parts, place, age, runs=self.runs
        )

    def _check_mounted(self, found: set[str]) -> None:
        """Raise if every file this host wrote vanished with the filesystem: elsewhere they would count as deleted."""
        written = {name for name, file in self.known.items() if not file.is_brought}
        if written and not written & found and self._mount is not None and not os.path.ismount(self._mount):
            raise AgentError(
                f"{self.root}: its files are gone, and nothing is mounted at {self._mount} any more",
                Fix("mount it; or get the files of the other hosts back: `rm {path}`", path=self._record),
            )

    def _check_unreadable(self, error: OSError) -> None:
        """Raise if an unreadable directory held known files: they would count as deleted."""
        below = self.top + error.filename[len(self._anchor) :]
        if not isinstance(error, FileNotFoundError) and any(name.startswith(f"{below}/") for name in self.known):
            raise error

    @property
    def _anchor(self) -> str:
        return f"/proc/self/fd/{self._place.number}"

    def _names(self) -> Iterator[str]:
        if self._place.name:
            if self._place.status is not None:
                yield self.top
            return
        for directory, directories, files in os.walk(self._anchor, onerror=self._check_unreadable):
            above = self.top + directory[len(self._anchor) :]
            if above != self.top and not directories and not files and is_of_trainer(above):
                self._empty.append(above)
            directories[:] = sorted(part for part in directories if not is_temporary(part) and HIDDEN not in part)
            for part in sorted(files):
                if not is_temporary(part):
                    yield f"{above}/{part}"

    def _read_copy(self, name: str, since: int) -> ManifestEntry:
        """Describe a complete copy. Raises with the reason if it is not complete."""
        number, status = self._open_source(name)
        with open(number, "rb", buffering=0) as file:
            if status.st_ctime_ns <= since:
                raise AgentError("the last exchange has seen it")
            self._newest = max(self._newest, status.st_ctime_ns)
            if not stat.S_ISREG(status.st_mode):
                raise AgentError("it is not a file")
            check_complete(file, name, status.st_size)
            if not status.st_size:
                raise AgentError("it is empty")
            row = self._rows.get(name)
            file.seek(0)
            identity = identity_of(status)
            if row and row[-3:] == identity:
                sha256 = str(row[0])
            else:
                sha256 = sha256_of_open(file) if self._has_hashes else _NO_HASH
            if os.path.basename(name) == METADATA and status.st_size <= _MAX_LIST:
                file.seek(0)
                self._named_parts[name] = frozenset(sorted(find_named_parts(file.read(_MAX_LIST)))[:MAX_FILES])
            if identity_of(os.fstat(file.fileno())) != identity:
                raise AgentError("it is being written")
        self._identities[name], self._hashes[name] = identity, sha256
        if self._owners is not None and (owner := self._owners.owner(self._real_path(name), status)):
            self.runs[name] = owner
        mode = stat.S_IMODE(status.st_mode)
        return ManifestEntry(name, "f", mode, status.st_size, sha256, status.st_mtime_ns)

    def open_copy(self, copy: ManifestEntry) -> IO[bytes]:
        """Open a file for other hosts. Raises an OSError if it is not the reported one any more."""
        files = next((files for files in (self, *self._others) if files._hashes.get(copy.path) == copy.content), self)
        try:
            number, status = files._open_source(copy.path)
        except AgentError as error:
            raise OSError(errno.ELOOP, error.reason, copy.path) from None
        file = open(number, "rb", buffering=0)  # noqa: SIM115
        if stat.S_ISREG(status.st_mode) and (status.st_size, status.st_mtime_ns) == (copy.size, copy.mtime):
            return file
        file.close()
        raise OSError(errno.ESTALE, "it has changed", copy.path)

    def check(self, copies: Iterable[ManifestEntry], removed: Collection[str]) -> None:
        """Raise if a received file could not get its place, before anything is received or set aside."""
        entries = (copy._replace(path=self._path_of(copy.path)) for copy in copies)
        self._writer.check(entries, {self._path_of(name) for name in removed})

    def place(self, copies: list[ManifestEntry]) -> None:
        """Replace files with the received ones. Each holds its old or its new content, never a part."""
        entries = [copy._replace(path=self._path_of(copy.path)) for copy in copies]
        if copies:  # otherwise there is no inbox
            with GuardedDirectory.open(os.path.realpath(self.inbox)) as inbox:
                stage = StagedFiles(inbox, "what has arrived was changed")
                lacking = [copy.path for copy in copies if stage.lacks(copy)]
                if lacking:
                    raise AgentError(f"{lacking[0]} was removed after it had arrived", "start the run again")
                self._writer.make(entries, stage)
        # Scripts pick the oldest checkpoint by the mtime of its directory, so an exchange must not change it.
        self._writer.restore_times(entries)

    def remove(self, names: Collection[str], received: Mapping[str, str]) -> None:
        """Set files and temporary ones aside; remove emptied directories: scripts take them for checkpoints. A file of
        another run than the `received` ones goes to that run's kept copies."""
        for name in names:
            with contextlib.suppress(FileNotFoundError), self._writer.place_of(self._path_of(name)) as (opened, entry):
                opened.check_entry(entry, opened.status_of(entry), OWN_CHECKPOINT)
                writer = self.runs.get(name, "")
                is_of_other = bool(writer and received) and writer not in received.values()
                if not (is_of_other and keep_for(writer, self._home, opened, entry)):
                    self.aside_files.keep(name, entry, opened.number)
        emptied = {above for name in names for above in directories_above(name)} - {self.top}
        for directory in sorted(emptied.union(self._empty), key=lambda name: -name.count("/")):
            with contextlib.suppress(OSError):
                if directory in emptied:
                    self._set_temporaries_aside(directory)
                with self._writer.place_of(self._path_of(directory)) as (opened, entry):
                    os.rmdir(entry, dir_fd=opened.number)

    def _set_temporaries_aside(self, directory: str) -> None:
        """Set an exited rank's temporary files aside: a script would take their directory for a checkpoint."""
        opened = self._writer.enter(self._path_of(directory))
        entries = {entry: opened.status_of(entry) for entry in opened.names()}
        if all(
            is_temporary(os.fsdecode(entry)) and status and stat.S_ISREG(status.st_mode)
            for entry, status in entries.items()
        ):
            for entry in entries:
                self.aside_files.keep(f"{directory}/{os.fsdecode(entry)}", entry, opened.number)

    def make_directory(self, name: str) -> GuardedDirectory:
        """Open a directory of the checkpoint, made if it is missing. The caller closes it."""
        return self._writer.enter(self._path_of(name)).enter(b"")

    def save(self, known: KnownFiles, number: int) -> None:
        """Record for the next exchange which content each file has and whether another host wrote it, with size, mtime
        and inode, by which an unchanged file is recognized.

        `number`: of this exchange. A damaged record is kept beside the new one.
        """
        rows = {}
        for name, file in known.items():
            with contextlib.suppress(OSError, AgentError):
                opened, status = self._open_source(name)
                os.close(opened)
                rows[name] = [*file, *identity_of(status)]
        mount = self.root
        while not os.path.ismount(mount):
            mount = os.path.dirname(mount)
        if self._damaged:
            with GuardedDirectory.open(os.path.realpath(self.directory)) as directory:
                directory.rename(directory.number, b"files.json", b"files.json.damaged")
        write_json_atomically(self._record, {"files": rows, "mount": mount, "number": number, "seen": self._seen})

    def forget_changed(self, report: HostCopies) -> HostCopies:
        """Forget what is gone or another file now: no run deleted it, it was set aside or put back."""
        self.known = {
            name: file for name, file in self.known.items() if name in report.copies and name not in report.written
        }
        if self._rows:
            self.save(self.known, report.number)
        return report._replace(known=self.known)

    def clear(self) -> None:
        """Remove received files that were not put in place."""
        with contextlib.suppress(OSError), GuardedDirectory.open(os.path.realpath(self.directory)) as directory:
            directory.remove_tree(b"in", ignore_errors=True)


def _open_file(place: Place) -> tuple[int, os.stat_result]:
    """Open for reading without blocking on a pipe. Raises an OSError if the file was exchanged."""
    if not place.name or place.status is None:
        number = errno.ENOENT if place.status is None else errno.EISDIR
        raise OSError(number, os.strerror(number), place.path)
    try:
        return place.open_end(os.O_RDONLY | os.O_NONBLOCK), place.status
    except Refused as refused:
        raise OSError(errno.ESTALE, str(refused), place.path) from None

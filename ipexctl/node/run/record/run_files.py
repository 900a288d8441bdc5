"""The record of the files that a run wrote on a host: HOME/runs/RUN/files/MACHINE.json.

When the first rank begins on a host, a file is made for a moment in each directory that the run writes to, and its
ctime is noted as the begin (`MACHINE.begin.json`). When the last rank there has ended, each file with a later ctime is
recorded with its size, mtime and inode. The kernel of the file's own server sets ctime, and nobody can set it back, so
no two clocks are compared, and no printed word is read.

If the ranks were killed, the next call that looks makes the record, at the latest before the next run begins on this
host, so that the files of two runs that follow each other are told apart. Two runs at the same time may both record a
file: then it is nobody's (`file_owner.py`). A file that ipexctl itself puts in place for a run, from a kept copy or
from another host, is added to that run's adopted files (`MACHINE.adopted.json`), which decide before everything else.

Hosts that share a home have a record each. Files of other accounts are never recorded.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import stat
import tempfile
from typing import Collection, Iterable, Iterator, List, Mapping, NamedTuple

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.clock import seconds_since
from ipexctl.node.common.files import make_private_directory, read_json, remove_file, write_atomically
from ipexctl.node.common.home import STATE_DIRECTORY
from ipexctl.node.common.home_entries import list_names
from ipexctl.node.common.json_records import MAX_FILE, JsonError, parse_object
from ipexctl.node.common.liveness import REPORT_LIMITS, liveness_of
from ipexctl.node.common.walk import callers
from ipexctl.node.run.record.stored_status import read_document
from ipexctl.node.run.retention import runs_with_processes

FILES = "files"
"""Directory of these records, in a run's directory."""
_BEGIN, _END, _ADOPTED, _FETCHED, _LOCK = ".begin.json", ".json", ".adopted.json", ".fetched.json", ".lock"
_MOST_ENTRIES = 500_000
"""Entries that are looked at below one directory. A record of more says that it is incomplete."""
Identity = List[int]
"""Size, mtime in ns, and inode. Not ctime, which a chmod or a hard link changes; not the device, whose number may be
another one after a reboot."""


class Top(NamedTuple):
    """A directory that a run writes to, and when: ctimes in ns of the directory's own file system."""

    path: str
    since: int
    until: int = 0
    """0 until the record is made."""

    def covers(self, path: str) -> bool:
        """Return True if a path lies below this directory. Not for the directory itself."""
        return path.startswith(f"{self.path}/")

    def may_have_written(self, status: os.stat_result) -> bool:
        """Return True if the file last changed while the run could write here, by its ctime."""
        return self.since < status.st_ctime_ns and not 0 < self.until < status.st_ctime_ns


class HostRecord:
    """What a run wrote on one host. The rows of a closed record are read when they are first needed."""

    def __init__(self, tops: Iterable[Top], path: str = "", *, is_complete: bool = False) -> None:
        self.tops, self.path, self._is_complete = tuple(tops), path, is_complete

    @functools.cached_property
    def rows(self) -> Mapping[str, Identity]:
        """File → its identity at the end; empty while the run goes on."""
        if not self.path:
            return {}
        with contextlib.suppress(OSError, JsonError), open(self.path, "rb") as file:
            file.readline()
            return parse_object(file.read())
        return {}

    def has(self, path: str, status: os.stat_result) -> bool:
        """True if the file, at its path without links, is as the run left it."""
        if status.st_uid not in callers():
            return False
        if path in self.rows or self._is_complete:
            return self.rows.get(path) == identity_of(status)
        return any(top.covers(path) and top.may_have_written(status) for top in self.tops)


class RecordedFiles(NamedTuple):
    """The files of one run, by all records of its hosts that this home has."""

    run: str
    hosts: tuple[HostRecord, ...]
    adopted: Mapping[str, Identity]

    @property
    def tops(self) -> tuple[Top, ...]:
        """The directories that the run writes to, on all hosts."""
        return tuple(top for host in self.hosts for top in host.tops)

    @property
    def is_closed(self) -> bool:
        """True if the records of all hosts are made. False while one of them still says only when the run began."""
        return all(host.path for host in self.hosts)

    def has(self, path: str, status: os.stat_result) -> bool:
        """Return True if the file, at its path without links, is as the run left it, or as ipexctl put it there for the
        run."""
        return self.has_adopted(path, status) or any(host.has(path, status) for host in self.hosts)

    def has_adopted(self, path: str, status: os.stat_result) -> bool:
        """Return True if the file is as ipexctl put it there for the run."""
        return self.adopted.get(path) == identity_of(status)

    def has_written(self, path: str, status: os.stat_result) -> bool:
        """True if the run may have made the last change of this file, or wrote an earlier one."""
        is_newer = any(top.covers(path) and status.st_ctime_ns > top.since for top in self.tops)
        return is_newer or path in self.adopted or any(path in host.rows for host in self.hosts)

    def paths(self) -> Iterator[str]:
        """Yield the files that the run wrote, whether or not they still exist; of a host where it still runs, those
        that exist."""
        yield from {path: None for rows in (self.adopted, *(host.rows for host in self.hosts)) for path in rows}
        for host in self.hosts:
            if not host.path:
                yield from (path for path, status in files_below(host.tops) if host.has(path, status))


def identity_of(status: os.stat_result) -> Identity:
    """Return what a file is recognized by: size, mtime and inode."""
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def files_below(tops: Iterable[Top], left: int = _MOST_ENTRIES) -> Iterator[tuple[str, os.stat_result]]:
    """Yield regular files at their paths without links, also behind links to directories of the same file system. Each
    directory is read once; one above is not read, since others write there."""
    seen: set[tuple[int, int]] = set()
    for top in tops:
        with contextlib.suppress(OSError):
            at_top = os.stat(top.path)
            if stat.S_ISREG(at_top.st_mode):
                yield top.path, at_top
                continue
            waiting = [top.path]
            while waiting and left > 0:
                with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
                    for entry in entries:
                        left -= 1
                        status = _status_of(entry)
                        if status is None or status.st_dev != at_top.st_dev:
                            continue
                        path = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
                        if stat.S_ISREG(status.st_mode):
                            yield path, status
                        elif stat.S_ISDIR(status.st_mode) and entry.name != STATE_DIRECTORY:
                            key = (status.st_dev, status.st_ino)
                            if key not in seen and not f"{top.path}/".startswith(f"{path.rstrip('/')}/"):
                                seen.add(key)
                                waiting.append(path)


def _status_of(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the status of an entry; None if it is gone, or a link that leads nowhere."""
    try:  # for each of 100,000 files: faster than contextlib.suppress
        return entry.stat()
    except OSError:
        return None


class HostRank:
    """One rank's part of the record on this host. While its command lives, it holds a shared lock on a file of the
    run; the kernel releases that of a killed process. So a rank that gets the lock alone is the last one."""

    def __init__(self, rundir: str) -> None:
        self._rundir, self._lock = rundir, -1

    def begin(self, cwd: str, checkpoint: str) -> None:
        """Note the begin before the command of this rank starts, unless another rank has. Raises an OSError if the
        disk is full: whose the files are then stays unknown."""
        make_private_directory(os.path.join(self._rundir, FILES))
        if self._lock < 0:
            self._lock = os.open(_file_of(self._rundir, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # no locks on this file server: each rank makes the record
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        remove_file(_file_of(self._rundir, _END))  # of an earlier attempt
        if os.path.exists(_file_of(self._rundir, _BEGIN)):
            return
        close_ended(os.path.dirname(self._rundir))
        tops = [Top(path, _now_in(path)) for path in _places(cwd, checkpoint)]
        document = {"machine": os.uname().nodename, "tops": [top for top in tops if top.since]}
        _write_once(_file_of(self._rundir, _BEGIN), json.dumps(document).encode())

    def end(self) -> bool:
        """Make the record if this is the last rank of the host. Return whether it did."""
        if self._lock < 0:
            return False
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # no locks there
            pass
        finally:
            os.close(self._lock)
            self._lock = -1
        close_record(self._rundir)
        return True


def close_record(rundir: str) -> None:
    """Make this machine's record of a run whose ranks are gone."""
    _, tops = _read_begin(_file_of(rundir, _BEGIN))
    if tops:
        write_atomically(_file_of(rundir, _END), _closed_record(tops), durable=False)


def _closed_record(tops: Iterable[Top]) -> bytes:
    closed = [top._replace(until=_now_in(top.path)) for top in tops]
    rows: dict[str, Identity] = {}
    count = 0
    own = callers()
    for top in closed:
        for path, status in files_below([top]):
            count += 1
            if status.st_uid in own and top.since < status.st_ctime_ns:
                rows[path] = identity_of(status)
    header = {"tops": closed, "complete": count < _MOST_ENTRIES}
    return b"\n".join(json.dumps(part, separators=(",", ":")).encode() for part in (header, rows))


def recorded_files(rundir: str) -> RecordedFiles | None:
    """Return the files of a run; None for a run that began nowhere in this home, or with a version that made no record.

    A missing record of a run that has ended is made here.
    """
    directory, hosts = os.path.join(rundir, FILES), []
    names = list_names(directory)
    for begin in (name for name in names if name.endswith(_BEGIN)):
        path = os.path.join(directory, begin[: -len(_BEGIN)] + _END)
        record = _read_record(path)
        if record is None:
            _close_if_ended(rundir, os.path.join(directory, begin), path)
            record = _read_record(path)
        hosts.append(record or HostRecord(_read_begin(os.path.join(directory, begin))[1]))
    adopted: dict[str, Identity] = {}
    for name in names:
        if name.endswith(_ADOPTED):
            adopted.update(read_json(os.path.join(directory, name)))
    return RecordedFiles(os.path.basename(rundir), tuple(hosts), adopted) if hosts or adopted else None


def close_ended(runs: str) -> None:
    """Make the missing records of all runs that have ended."""
    for run in list_names(runs):
        names = set(list_names(os.path.join(runs, run, FILES)))
        begun = [name[: -len(_BEGIN)] for name in names if name.endswith(_BEGIN)]
        if any(machine + _END not in names for machine in begun):
            recorded_files(os.path.join(runs, run))


def _close_if_ended(rundir: str, begin: str, path: str) -> None:
    machine, begun = _read_begin(begin)
    if not begun or os.path.exists(path) or _is_alive(rundir, machine):
        return
    is_here = machine == os.uname().nodename
    home = os.path.realpath(os.path.dirname(os.path.dirname(rundir)))
    tops = [top for top in begun if is_here or top.path.startswith(f"{home}/")]
    with contextlib.suppress(OSError):  # a full disk, or a home that turned read-only: the begin alone counts
        _write_once(path, _closed_record(tops))


def _is_alive(rundir: str, machine: str) -> bool:
    """True if the run may still write on a host of this home."""
    runs, run = os.path.split(rundir)
    if machine == os.uname().nodename:
        return run in runs_with_processes(runs)
    with contextlib.suppress(AgentError):  # processes of another host are not seen from here; its node0 knows the end
        stored = read_document(os.path.join(rundir, "status.json"))
        return liveness_of(stored.status, seconds_since(stored.written), REPORT_LIMITS) not in ("over", "dead")
    return True


def adopt(rundir: str, paths: Iterable[str]) -> None:
    """Record files that ipexctl put in place for a run as files of that run."""
    adopted = dict(read_json(_file_of(rundir, _ADOPTED)))
    for path in map(os.path.realpath, paths):
        with contextlib.suppress(FileNotFoundError):
            adopted[path] = identity_of(os.lstat(path))
    if adopted:
        make_private_directory(rundir)
        make_private_directory(os.path.join(rundir, FILES))
        write_atomically(_file_of(rundir, _ADOPTED), json.dumps(adopted).encode(), durable=False)


def note_fetched(rundir: str, paths: Iterable[str]) -> None:
    """Note that a user has fetched these files of the run, so that no later run says that nobody has. A full disk loses
    the note."""
    fetched = {*read_fetched(rundir), *paths}
    with contextlib.suppress(OSError):  # a full disk: a later run says once more that nobody fetched them
        write_atomically(_file_of(rundir, _FETCHED), json.dumps({"paths": sorted(fetched)}).encode(), durable=False)


def read_fetched(rundir: str) -> Collection[str]:
    """Return the paths of files that users have fetched, by all machines that share the home."""
    directory = os.path.join(rundir, FILES)
    names = (name for name in list_names(directory) if name.endswith(_FETCHED))
    listed = (read_json(os.path.join(directory, name)).get("paths") for name in names)
    return {path for paths in listed if isinstance(paths, list) for path in paths if isinstance(path, str)}


def _file_of(rundir: str, suffix: str) -> str:
    return os.path.join(rundir, FILES, os.uname().nodename.replace("/", "_") + suffix)


def _read_begin(path: str) -> tuple[str, tuple[Top, ...]]:
    """Return the machine and the directories of a begin; no directories if the file is damaged: ranks can write to
    it."""
    begun = read_json(path)
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return str(begun["machine"]), tuple(map(_top_of, begun["tops"]))
    return "", ()


def _top_of(row: list[object]) -> Top:
    path, since, until = row
    return Top(str(path), int(str(since)), int(str(until)))


def _places(cwd: str, checkpoint: str) -> Iterator[str]:
    """Yield the working directory, the PATH of `--checkpoint`, and directories of other file systems directly below the
    working directory."""
    top = os.path.realpath(cwd)
    yield top
    device = os.stat(top).st_dev
    path = os.path.realpath(os.path.join(top, checkpoint))
    if checkpoint and not path.startswith(f"{top}/"):
        yield path
    with os.scandir(top) as entries:
        for entry in entries:
            status = _status_of(entry)
            if status is not None and stat.S_ISDIR(status.st_mode) and status.st_dev != device:
                yield os.path.realpath(entry.path)


def _now_in(path: str) -> int:
    """Return the time of a path's file system: the ctime of a file that is made there for a moment. 0 if none can be
    made."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(prefix=".ipexctl-", dir=path) as file:
        return os.fstat(file.fileno()).st_ctime_ns
    return 0


def _write_once(path: str, data: bytes) -> None:
    """Write a file unless it exists: the first of several ranks or looks decides."""
    with tempfile.NamedTemporaryFile(prefix=".record-", dir=os.path.dirname(path)) as file:
        file.write(data)
        file.flush()
        with contextlib.suppress(FileExistsError):
            os.link(file.name, path)


def _read_record(path: str) -> HostRecord | None:
    """Read a record; None if it does not exist, or can't be read: then the begin alone counts."""
    with contextlib.suppress(OSError, JsonError, KeyError, TypeError, ValueError), open(path, "rb") as file:
        header = parse_object(file.readline(MAX_FILE))
        return HostRecord(map(_top_of, header["tops"]), path, is_complete=header["complete"] is True)
    return None

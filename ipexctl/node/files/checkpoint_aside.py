"""Keeps the checkpoint files that an exchange set aside until the next exchange has succeeded.

Files are renamed, never copied, so a full disk is no obstacle, and to a place where no script finds them:
HOME/checkpoints/KEY if a rename leads there, otherwise a hidden directory next to PATH (in PATH if that is a mount
point) with a link to it below HOME/checkpoints/KEY. Two mounts of one filesystem have the same device number, and only
a rename shows that none leads from one to the other. A directory set aside incomplete is put back before the exchange
decides if a host takes part that did not before: it may have the rest. Others may write next to PATH, so each step
opens that directory anew (`guarded_directory.py`), and only if this account alone owns it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from typing import Callable, Collection, Iterator

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.guarded_directory import GuardedDirectory
from ipexctl.node.common.json_records import parse_object
from ipexctl.node.files.checkpoint_report import check_name

HIDDEN = ".ipexctl-aside-"
"""Prefix of the hidden directory; the key of the checkpoint follows."""
_PARTS = b"parts.json"
_EXCHANGE = re.compile(rb"[0-9a-f]{32}")
_MAX_PARTS = 64 << 20


class AsideFiles:
    def __init__(self, directory: str, root: str) -> None:
        """`directory`: of the checkpoint, in the home; `root`: the checkpoint's path without links."""
        self._link = os.path.join(directory, "aside")
        self._root = root
        self._exchange = ""
        self.is_used = False

    @property
    def path(self) -> str:
        """The directory in which files are set aside. Raises an OSError if a link of the user has its name."""
        return _place_of(self._link)

    def is_empty(self) -> bool:
        """Return True if no exchange has set files aside here; also if that can't be read."""
        with contextlib.suppress(OSError, AgentError), _open(self._link) as aside_files:
            return not _exchanges(aside_files)
        return True

    def prepare(self, exchange: str) -> None:
        """Make a directory for what this exchange sets aside, on the filesystem of the checkpoint. Raises an AgentError
        if there is no place for it."""
        if not _EXCHANGE.fullmatch(exchange.encode()):
            raise ValueError(f"{exchange!r:.80} is not a name of an exchange")
        self._exchange = exchange
        device = os.stat(_existing(self._root)).st_dev
        with contextlib.suppress(OSError, AgentError), _open(self._link) as aside_files:
            if aside_files.status().st_dev == device:
                return
        with _above(self._link) as (directory, name):
            if os.path.islink(self._link):
                directory.unlink(name)
            if directory.status().st_dev == device:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=directory.number)
                return
        if not self._move_beside_root():
            raise AgentError(
                f"{self._root}: files can't be set aside there",
                Fix("make it writable: `chmod u+wx {path}`", path=self._root),
            )

    def _move_beside_root(self) -> bool:
        """Set files aside in a hidden directory next to PATH from now on, or in PATH if that one was tried. Return
        False if neither can be made."""
        places = [os.path.dirname(self._root), self._root]
        if os.path.islink(self._link):
            places = places[places.index(os.path.dirname(self.path)) + 1 :]
            remove_aside(self._link)
        else:
            with _above(self._link) as (directory, name):
                directory.remove_tree(name, ignore_errors=True)  # left from another disk or mount
        device = os.stat(_existing(self._root)).st_dev
        for above in places:
            with contextlib.suppress(OSError):
                if os.stat(above).st_dev == device:
                    self._make_hidden(above)
                    return True
        return False

    def _make_hidden(self, above: str) -> None:
        name = HIDDEN + os.path.basename(os.path.dirname(self._link))
        with GuardedDirectory.open(above) as directory, contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=directory.number)
        with _above(self._link) as (directory, link):
            directory.link_to(os.fsencode(os.path.join(above, name)), link, replace=False)
            with contextlib.suppress(AgentError), _open(self._link):
                return
            directory.unlink(link)
        raise FileExistsError(
            errno.EEXIST, os.strerror(errno.EEXIST), os.path.join(above, name)
        )  # belongs to another account

    def keep(self, name: str, entry: bytes, directory: int) -> None:
        """Set an entry of an open directory aside. `name`: its path below the checkpoint's; `entry`: its name in the
        directory.

        Raises an AgentError if the entry is on another filesystem than the place.
        """
        while not self._rename(name, entry, directory):
            if self.is_used or not self._move_beside_root():
                raise AgentError(
                    f"{name} can't be set aside: it is on another filesystem than {self._root}",
                    "name a directory below it: --checkpoint PATH",
                )
        self.is_used = True

    def _rename(self, name: str, entry: bytes, directory: int) -> bool:
        """Return False if the file is on another filesystem or mount."""
        above, _, last = name.rpartition("/")
        try:
            with _open(self._link) as aside_files:
                target = aside_files.enter(os.fsencode(f"{self._exchange}/{above}"), make=True, mode=0o700)
        except FileNotFoundError as error:
            raise AgentError(f"{error.filename} was removed during the exchange", "start the run again") from None
        try:
            target.rename(directory, entry, os.fsencode(last))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return False
        finally:
            target.close()
        return True

    def note_parts(self, parts: Collection[str], hosts: Collection[str], since: int) -> None:
        """Record which directories were incomplete, if any file was set aside. `since`: the number of the exchange
        after which they were written."""
        if self.is_used and parts:
            record = {"parts": list(parts), "hosts": list(hosts), "since": since}
            with _open(self._link) as aside_files, aside_files.enter(self._exchange.encode()) as exchange:
                exchange.write(_PARTS, [json.dumps(record).encode()])

    def put_back(self, top: str, hosts: Collection[str], make: Callable[[str], GuardedDirectory], since: int) -> int:
        """Put incomplete directories back, where nothing is now, if another host takes part. Returns the lowest number
        of the exchanges after which they, and what is there now, were written; `since`: what is there now."""
        with contextlib.suppress(FileNotFoundError, AgentError), _open(self._link) as aside_files:
            for name in _exchanges(aside_files):
                with aside_files.enter(name) as exchange:
                    parts, written_since = _read_parts(exchange, top, hosts)
                    for part in parts:
                        _put_back(part, make, exchange)
                        since = min(since, written_since)
        return since

    def end(self) -> None:
        """Remove what earlier exchanges set aside, where possible. Call it after a successful exchange."""
        remove_aside(self._link, kept=self._exchange)


def _put_back(part: str, make: Callable[[str], GuardedDirectory], exchange: GuardedDirectory) -> None:
    with contextlib.suppress(NotADirectoryError), make(part) as target:
        if target.names():
            return
        for directory, _, files, source in os.fwalk(part, dir_fd=exchange.number):
            with target.enter(os.fsencode(directory[len(part) :]), make=True) as below:
                for file in map(os.fsencode, files):
                    below.rename(source, file, file)


def remove_aside(link: str, kept: str = "") -> None:
    """Remove a checkpoint's `aside` in a home, a directory or a link with its hidden directory, if this account made
    it. `kept`: the exchange whose files stay."""
    with contextlib.suppress(OSError, AgentError), _open(link) as aside_files:
        names = _exchanges(aside_files)
        for name in names:
            if name != kept.encode():
                aside_files.remove_tree(name)
        if kept.encode() not in names:
            _remove_place(link)


def _place_of(link: str) -> str:
    """Return `link`, or the hidden directory it names. Raises an OSError for any other target: links of the user
    stay."""
    if not os.path.islink(link):
        return os.path.join(os.path.realpath(os.path.dirname(link)), os.path.basename(link))
    place = os.readlink(link)
    if os.path.basename(place) != HIDDEN + os.path.basename(os.path.dirname(link)):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place)
    return place


def _remove_place(link: str) -> None:
    with contextlib.suppress(OSError):
        with _above(_place_of(link)) as (directory, name):
            os.rmdir(name, dir_fd=directory.number)
        if os.path.islink(link):
            with _above(link) as (directory, name):
                directory.unlink(name)


@contextlib.contextmanager
def _above(path: str) -> Iterator[tuple[GuardedDirectory, bytes]]:
    directory, name = os.path.split(path)
    with GuardedDirectory.open(os.path.realpath(directory)) as opened:
        yield opened, os.fsencode(name)


@contextlib.contextmanager
def _open(link: str) -> Iterator[GuardedDirectory]:
    """Open the files set aside; raises an AgentError if another account can change the directory."""
    with GuardedDirectory.open(_place_of(link)) as aside_files:
        aside_files.check_private(Fix("`mv {path} {path}.old`", path=aside_files.path))
        yield aside_files


def _exchanges(aside_files: GuardedDirectory) -> list[bytes]:
    return sorted(name for name in aside_files.names() if _EXCHANGE.fullmatch(name))


def _is_directory(name: str, exchange: GuardedDirectory) -> bool:
    with contextlib.suppress(OSError, AgentError), exchange.enter(os.fsencode(name)):
        return True
    return False


def _read_parts(exchange: GuardedDirectory, top: str, hosts: Collection[str]) -> tuple[list[str], int]:
    try:
        record = parse_object(exchange.read(_PARTS, _MAX_PARTS))
        if not set(hosts) <= set(record["hosts"]):
            parts = [check_name(part, top) for part in record["parts"] if _is_directory(part, exchange)]
            return parts, int(record.get("since", 0))
    except (AgentError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return [], 0


def _existing(path: str) -> str:
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path

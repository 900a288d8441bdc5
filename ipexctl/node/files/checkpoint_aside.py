"""Keeps the files of a checkpoint that an exchange set aside, until the next exchange has succeeded.

In: the place of the checkpoint and names below it, which `checkpoint_units` chose; out: the files, renamed into a
directory of this exchange. The rules: nothing is copied, so a full disk is no obstacle; no script finds the files in
the checkpoint's directory. So they go below HOME/checkpoints/KEY if that is on the same filesystem; else beside PATH,
or into it if it is a filesystem of its own, to a hidden directory, to which a link below HOME/checkpoints/KEY leads.

A directory that was in part may be needed again: the host that wrote the rest of it may take part the next time. If a
host takes part that did not before, it is put back before the exchange decides.

Others may write beside PATH, and rename that directory: it is opened once for each step (`guarded_directory.py`), only
if it belongs to this account alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
from typing import Callable, Collection, Iterator

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.guarded_directory import GuardedDirectory
from ipexctl.node.common.json_parser import parse_object
from ipexctl.node.files.checkpoint_report import check_name

HIDDEN = ".ipexctl-aside-"
"""The beginning of its name outside of the home; the key of the checkpoint follows."""
_PARTS = b"parts.json"
_EXCHANGE = re.compile(rb"[0-9a-f]{32}")
_MAX_PARTS = 64 << 20


class AsideFiles:
    """The files of a checkpoint that were set aside on this host."""

    def __init__(self, directory: str, root: str) -> None:
        """`directory`: of the checkpoint, in the home; `root`: the checkpoint, a path without links."""
        self._link = os.path.join(directory, "aside")
        self._root = root
        self._exchange = ""
        self.is_used = False
        """Whether this exchange has set a file aside."""

    @property
    def path(self) -> str:
        return _place_of(self._link)

    def is_empty(self) -> bool:
        with contextlib.suppress(OSError, AgentError), _open(self._link) as aside_files:
            return not _exchanges(aside_files)
        return True

    def prepare(self, exchange: str) -> None:
        """Choose the place: where the checkpoint's files can be renamed to."""
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
            directory.remove_tree(name, ignore_errors=True)  # of a disk on which the checkpoint was before
        for above in (os.path.dirname(self._root), self._root):
            with contextlib.suppress(OSError):
                if os.stat(above).st_dev == device:
                    self._make_hidden(above)
                    return
        raise AgentError(f"{self._root}: files can't be set aside there", f"make it writable: chmod u+wx {self._root}")

    def _make_hidden(self, above: str) -> None:
        name = HIDDEN + os.path.basename(os.path.dirname(self._link))
        with GuardedDirectory.open(above) as directory, contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=directory.number)
        with _above(self._link) as (directory, link):
            directory.link_to(os.fsencode(os.path.join(above, name)), link, replace=False)
            with contextlib.suppress(AgentError), _open(self._link):
                return
            directory.unlink(link)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.path.join(above, name))  # of another account

    def keep(self, name: str, entry: str, directory: int) -> None:
        """Rename an entry of an open directory to its place among the files set aside."""
        above, _, last = name.rpartition("/")
        try:
            with _open(self._link) as aside_files:
                target = aside_files.enter(os.fsencode(f"{self._exchange}/{above}"), make=True, mode=0o700)
        except FileNotFoundError as error:
            raise AgentError(f"{error.filename} was removed during the exchange", "start the run again") from None
        try:
            target.rename(directory, os.fsencode(entry), os.fsencode(last))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            raise AgentError(
                f"{name} can't be set aside: it is on another filesystem than {self._root}",
                "name a directory below it: --checkpoint PATH",
            ) from None
        finally:
            target.close()
        self.is_used = True

    def note_parts(self, parts: Collection[str], hosts: Collection[str]) -> None:
        """Remember the directories that were in part, if files of them were set aside."""
        if not self.is_used:
            return
        with _open(self._link) as aside_files, aside_files.enter(self._exchange.encode()) as exchange:
            parts = [part for part in parts if _is_directory(part, exchange)]
            if parts:
                record = {"parts": parts, "hosts": list(hosts)}
                exchange.write(_PARTS, [json.dumps(record).encode()])

    def put_back(self, top: str, hosts: Collection[str], make: Callable[[str], GuardedDirectory]) -> None:
        """Rename directories that were in part to their places, where nothing is now, if another host takes part.

        `make` opens a directory of the checkpoint, a missing one, too.
        """
        with contextlib.suppress(FileNotFoundError, AgentError), _open(self._link) as aside_files:
            for name in _exchanges(aside_files):
                with aside_files.enter(name) as exchange:
                    for part in _read_parts(exchange, top, hosts):
                        _put_back(part, make, exchange)

    def end(self) -> None:
        """The exchange has succeeded: what earlier ones have set aside goes, as far as that is possible."""
        with contextlib.suppress(OSError, AgentError), _open(self._link) as aside_files:
            for name in _exchanges(aside_files):
                if name != self._exchange.encode():
                    aside_files.remove_tree(name)
            if not _exchanges(aside_files):
                _remove_place(self._link)


def _put_back(part: str, make: Callable[[str], GuardedDirectory], exchange: GuardedDirectory) -> None:
    with contextlib.suppress(NotADirectoryError), make(part) as target:
        if target.names():
            return
        for directory, _, files, source in os.fwalk(part, dir_fd=exchange.number):
            with target.enter(os.fsencode(directory[len(part) :]), make=True) as below:
                for file in map(os.fsencode, files):
                    below.rename(source, file, file)


def remove_aside(link: str) -> None:
    """Remove `aside` of a checkpoint in a home: the directory, or the link with the hidden directory that it names.

    Nothing is removed in a directory that belongs to another account, or that ipexctl has not named.
    """
    with contextlib.suppress(OSError, AgentError), _open(link) as aside_files:
        for name in _exchanges(aside_files):
            aside_files.remove_tree(name)
        _remove_place(link)


def _place_of(link: str) -> str:
    """Where the files are: `link`, or the hidden directory that it names. Raises an OSError for any other target.

    Links to the home, or in it, are the user's.
    """
    if not os.path.islink(link):
        return os.path.join(os.path.realpath(os.path.dirname(link)), os.path.basename(link))
    place = os.readlink(link)
    if os.path.basename(place) != HIDDEN + os.path.basename(os.path.dirname(link)):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place)
    return place


def _remove_place(link: str) -> None:
    """Remove the directory if it is empty, and the link to it."""
    with contextlib.suppress(OSError):
        with _above(_place_of(link)) as (directory, name):
            os.rmdir(name, dir_fd=directory.number)
        if os.path.islink(link):
            with _above(link) as (directory, name):
                directory.unlink(name)


@contextlib.contextmanager
def _above(path: str) -> Iterator[tuple[GuardedDirectory, bytes]]:
    """The opened directory of an entry, and its name there."""
    directory, name = os.path.split(path)
    with GuardedDirectory.open(os.path.realpath(directory)) as opened:
        yield opened, os.fsencode(name)


@contextlib.contextmanager
def _open(link: str) -> Iterator[GuardedDirectory]:
    """The directory of the files that were set aside; raises an AgentError if another account has a hand in it."""
    with GuardedDirectory.open(_place_of(link)) as aside_files:
        aside_files.check_private(f"mv {shlex.quote(aside_files.path)} {shlex.quote(aside_files.path)}.old")
        yield aside_files


def _exchanges(aside_files: GuardedDirectory) -> list[bytes]:
    return sorted(name for name in aside_files.names() if _EXCHANGE.fullmatch(name))


def _is_directory(name: str, exchange: GuardedDirectory) -> bool:
    with contextlib.suppress(OSError, AgentError), exchange.enter(os.fsencode(name)):
        return True
    return False


def _read_parts(exchange: GuardedDirectory, top: str, hosts: Collection[str]) -> list[str]:
    """The directories that were in part in an exchange, if one of `hosts` took no part in it."""
    try:
        record = parse_object(exchange.read(_PARTS, _MAX_PARTS))
        if set(hosts) <= set(record["hosts"]):
            return []
        return [check_name(part, top) for part in record["parts"] if _is_directory(part, exchange)]
    except (AgentError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _existing(path: str) -> str:
    """The nearest path that exists."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path

"""Keeps the checkpoints that a run may resume from, because a script that starts over overwrites them: the newest whole
one of each name, numbers aside, as `last.pt` and `best.pt` (which of them the script loads is not known).

Whose a file is, `file_owner.py` says. When a run is resumed, files that another run left among its checkpoints are
moved away, to the kept copies of that run, and what the resumed run has lost is put back from its own kept copies. When
a run begins anew where an ended one left checkpoints, these are kept first, if that is cheap.

A copy is in HOME/results/RUN/.ipexctl-kept: a reflink where the filesystem has that, else the bytes. A hard link is not
enough, because scripts write in place. It goes with the run's record, or once a run that went on from it has a newer
whole checkpoint. Files that are no run's, such as one that the user edited, go to HOME/results/RUN/set-aside instead,
which ipexctl never removes by itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from typing import Collection, Iterator, NamedTuple, Sequence

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.checkpoint_layout import is_of_torch, parts_of
from ipexctl.node.common.files import HomeRequest, explain_full_disk, format_size, free_space
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.guarded_directory import GuardedDirectory, blocks_of, enter_named, write_all
from ipexctl.node.common.home import home_of
from ipexctl.node.common.home_entries import KEPT, KEPT_PART, drop_kept_copies, kept_copies
from ipexctl.node.run.record.file_owner import FileOwners
from ipexctl.node.run.record.newest_checkpoint import is_whole, newest_checkpoint, unit_of
from ipexctl.node.run.record.run_files import Top, adopt, files_below, identity_of
from ipexctl.node.run.retention import runs_with_processes

_CLONE = 0x40049409
"""FICLONE of linux/fs.h."""
_SET_ASIDE = "set-aside"
_RESERVE = 64 << 20
"""Bytes that stay free: ranks need room for their output."""
_CHEAP_SHARE = 10
"""A fresh start copies checkpoints of an earlier run only up to this part of the free space, so ten starts in a row
leave a third of the disk."""


class KeepRequest(HomeRequest):
    cwd: str
    resumed: Sequence[str]
    """The runs that the new one continues, in order."""
    recorded: str
    """The newest checkpoint by the record of the last of them that has one; absolute; empty if there is none."""
    path: str
    """PATH of --checkpoint, likewise."""
    superseded: Sequence[str]
    """Those of the runs from whose checkpoints a later one of them went on."""
    sets_aside: bool
    """True if another host has a checkpoint of these runs, so that another run's is only in the way here."""


class KeptCheckpoint(NamedTuple):
    path: str = ""
    """Absolute; empty if there is none."""
    run: str = ""
    """The run that wrote it last: none of the resumed ones if this host has none of theirs."""
    written: float = 0.0
    replaced: str = ""
    """RUN:PATH of another run's checkpoint that was in the way, and is kept; or empty."""
    set_aside: str = ""
    """Where files are now that were in the way, and are no run's; or empty."""
    has_record: bool = False
    """True if this host knows which files the runs wrote; older versions did not record that."""


class _Checkpoint(NamedTuple):
    """A file, or a directory that is one checkpoint, at its path or as a kept copy."""

    path: str
    files: tuple[tuple[str, os.stat_result], ...]
    owners: frozenset[str]
    """Runs whose files it has; empty text for files that are no run's any more."""
    copy: str = ""
    """Where it is kept, if it is not at its path."""

    @property
    def written(self) -> float:
        return max(status.st_mtime for _, status in self.files)


class _CheckpointFiles:
    """The checkpoints of a run and of those that it resumed, and those of other runs among them."""

    def __init__(self, request: KeepRequest) -> None:
        self.home = home_of(request, "results")
        self.runs, self.chain = os.path.join(self.home, "runs"), tuple(request["resumed"])
        self.owners = FileOwners(os.path.join(self.runs, self.chain[-1]))
        self.cwd, self.recorded = os.path.realpath(request["cwd"]), request["recorded"]
        if not self.recorded:  # its supervisor was killed, and this host's record has it
            newest = newest_checkpoint(self.cwd, request["path"], os.path.join(self.runs, self.chain[-1]))
            self.recorded = os.path.join(self.cwd, newest) if newest else ""
        top = request["path"] or os.path.dirname(self.recorded)
        self.top = os.path.realpath(top) if top else ""
        check_owners(self.top)
        here = list(_checkpoints(self.top, "", self.cwd, self.owners))
        copies = [
            unit._replace(owners=frozenset((run,)))
            for run in self.chain
            for unit in _checkpoints(self.top, kept_copies(os.path.join(self.runs, run)), self.cwd, None)
        ]
        of_chain = [unit for unit in here if not unit.owners.isdisjoint(self.chain)]
        series = {_series(path) for path in (self.recorded, *(unit.path for unit in (*of_chain, *copies)))}
        self.others = [unit for unit in here if not unit.owners <= {*self.chain} and _series(unit.path) in series]
        candidates = [*(unit for unit in of_chain if self._is_intact(unit)), *copies]
        self.newest: dict[str, _Checkpoint] = {}
        for unit in sorted(candidates, key=lambda unit: unit.written, reverse=True):
            if _series(unit.path) not in self.newest and is_whole(unit.copy or unit.path):
                self.newest[_series(unit.path)] = unit

    def run_of(self, unit: _Checkpoint) -> str:
        """Return the last of the resumed runs that wrote this checkpoint."""
        return max(unit.owners.intersection(self.chain), key=self.chain.index)

    def _is_intact(self, unit: _Checkpoint) -> bool:
        """True if all files that the last of the runs recorded in this checkpoint are as that run left them."""
        run = self.run_of(unit)
        here = dict(unit.files)
        rows = [
            path
            for own in self.owners.own
            if own.run == run
            for path in own.paths()
            if path.startswith(f"{unit.path}/")
        ]
        return all(path in here and self.owners.owner(path, here[path]) == run for path in rows)


def _checkpoints(top: str, base: str, cwd: str, owners: FileOwners | None) -> Iterator[_Checkpoint]:
    """Yield the checkpoints below a directory, or the one at a path. `base`: of kept copies."""
    units: dict[str, list[tuple[str, os.stat_result]]] = {}
    for path, status in files_below([Top(base + top, 0)]) if top else ():
        if is_of_torch(os.path.basename(path)) and status.st_size:
            units.setdefault(unit_of(path, base + cwd), []).append((path, status))
    for unit, files in units.items():
        whole = list(files_below([Top(unit, 0)])) if os.path.isdir(unit) else files
        whose = {owners.owner(path, status) for path, status in whole} if owners is not None else set()
        if whose != {None}:
            known = frozenset(owner for owner in whose if owner is not None)
            yield _Checkpoint(unit[len(base) :], tuple(whole), known, unit if base else "")


def check_owners(top: str) -> None:
    """Refuse a checkpoint of another account below a directory that `--checkpoint` names: it may have any content, and
    the script would load it. Raises an AgentError."""
    for path, status in files_below([Top(top, 0)]) if top else ():
        if is_of_torch(os.path.basename(path)):
            fix = "move it away, `mv {path} {path}.theirs`, or name a directory of your own: --checkpoint PATH"
            with _opened(path) as directory:
                directory.check_entry(os.fsencode(os.path.basename(path)), status, Fix(fix, path=path))


def keep_checkpoint(request: KeepRequest) -> KeptCheckpoint:
    """Keep what there is, put back what another run replaced, and return the newest. What is not of these runs is moved
    away if this host, or with `sets_aside` another one, has a checkpoint of them. Raises an AgentError if a copy does
    not fit, or if the other run goes on."""
    checkpoints = _CheckpointFiles(request)
    is_in_the_way = bool(checkpoints.others) and (bool(checkpoints.newest) or request["sets_aside"])
    replaced = set_aside = ""
    if is_in_the_way:
        replaced, set_aside = _move_away(checkpoints)
    for unit in checkpoints.newest.values():
        run = checkpoints.run_of(unit)
        if unit.copy:
            with _opened(unit.path) as directory:
                _copy_unit(unit.copy, directory)
            adopt(os.path.join(checkpoints.runs, run), _files_of(unit.path))
        else:
            _keep(unit.path, checkpoints.home, run)
    for run in request["superseded"] if checkpoints.newest else ():
        drop_kept_copies(os.path.join(checkpoints.runs, run))
    newest = max(checkpoints.newest.values(), key=lambda unit: unit.written, default=None)
    if newest is not None:
        run = checkpoints.run_of(newest)
        return KeptCheckpoint(newest.path, run, newest.written, replaced, set_aside, has_record=True)
    has_record = bool(checkpoints.owners.own)
    if checkpoints.others and not is_in_the_way:
        of_series = [unit for unit in checkpoints.others if _series(unit.path) == _series(checkpoints.recorded)]
        other = max(of_series or checkpoints.others, key=lambda unit: unit.written)
        writer = next((run for run in sorted(other.owners) if run not in checkpoints.chain), "")
        return KeptCheckpoint(other.path, writer, other.written, has_record=has_record)
    return KeptCheckpoint(replaced=replaced, set_aside=set_aside, has_record=has_record)


def keep_of_others(home: str, cwd: str, top: str, runs: Collection[str]) -> set[str]:
    """Keep the newest whole checkpoint that each of these ended runs left below a directory, if that is cheap, before a
    fresh start. Return the runs with one that is kept."""
    cwd, kept = os.path.realpath(cwd), set[str]()
    newest: dict[tuple[str, str], _Checkpoint] = {}
    owners = FileOwners(os.path.join(home, "runs", "none"))
    for unit in _checkpoints(os.path.realpath(top), "", cwd, owners):
        if len(unit.owners) == 1 and unit.owners <= {*runs} and is_whole(unit.path):
            key = (min(unit.owners), _series(unit.path))
            newest[key] = max(unit, newest.get(key, unit), key=lambda unit: unit.written)
    for (run, _), unit in newest.items():
        size = sum(status.st_size for _, status in unit.files)
        if _is_kept(unit.path, home, run):
            kept.add(run)
        elif size * _CHEAP_SHARE < free_space(home):
            _keep(unit.path, home, run)
            kept.add(run)
    return kept


def _series(path: str) -> str:
    """Return the path without the numbers of its last part: those of a directory above may be a run's id."""
    above, name = os.path.split(path)
    return os.path.join(above, re.sub("[0-9]+", "#", name))


def _move_away(checkpoints: _CheckpointFiles) -> tuple[str, str]:
    """Move files of other runs to their kept copies, and files of no run aside. Returns RUN:PATH of the newest
    checkpoint that was moved, and the first path of what is no run's. Raises an AgentError if a run that wrote there
    goes on."""
    living = runs_with_processes(checkpoints.runs)
    replaced = set_aside = ""
    for unit in checkpoints.others:
        if alive := living.intersection(unit.owners):
            fix = Fix("when it has ended: `ipexctl wait {run}`", run=min(alive))
            raise AgentError(f"run {min(alive)} goes on, and writes {unit.path}", fix)
    for unit in sorted(checkpoints.others, key=lambda unit: unit.written, reverse=True):
        parts = unit.files if os.path.isdir(unit.path) else [(path, os.lstat(path)) for path in _files_of(unit.path)]
        for path, status in parts:
            owner = checkpoints.owners.owner(path, status)
            if owner is None or owner in checkpoints.chain:
                continue
            below = f"{owner}/{KEPT}" if owner else f"{checkpoints.chain[-1]}/{_SET_ASIDE}"
            _move(path, status, checkpoints.home, f"results/{below}")
            replaced = replaced or (f"{owner}:{unit.path}" if owner else "")
            set_aside = set_aside or ("" if owner else f"{checkpoints.home}/results/{below}{path}")
        with contextlib.suppress(OSError), _opened(unit.path) as above:  # it has files of the runs themselves
            os.rmdir(os.path.basename(unit.path), dir_fd=above.number)
    return replaced, set_aside


def _opened(path: str) -> GuardedDirectory:
    """Open the directory that a checkpoint is in."""
    above = os.path.dirname(path)
    return GuardedDirectory.at(enter_named(above, f"make {above} this account's own"))


def _move(path: str, status: os.stat_result, home: str, below: str) -> None:
    """Move a file below a directory of the home, to its own absolute path there."""
    above, name = os.path.split(path)
    encoded = os.fsencode(name)
    with _opened(path) as source, GuardedDirectory.open(os.path.realpath(home)) as top, top.enter(
        os.fsencode(f"{below}{above}"), make=True, mode=0o700
    ) as target:
        now = source.status_of(encoded)
        source.check_entry(encoded, now, Fix("move it away: `mv {path} {path}.theirs`", path=path))
        if now is None or identity_of(now) != identity_of(status):
            raise AgentError(f"{path} changed meanwhile", "when nothing writes it any more, run it again")
        target.remove_tree(encoded, ignore_errors=True)
        try:
            target.rename(source.number, encoded, encoded)
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        _copy(path, target, encoded)
        if identity_of(os.lstat(path)) != identity_of(status):
            raise AgentError(f"{path} changed while it was copied", "when nothing writes it any more, run it again")
        source.unlink(encoded)


def _keep(path: str, home: str, run: str) -> None:
    path, copies = os.path.realpath(path), kept_copies(f"{home}/runs/{run}")
    if _is_kept(path, home, run):
        return
    below = os.fsencode(f"results/{run}/{KEPT}{os.path.dirname(path)}")
    with GuardedDirectory.open(home) as top, top.enter(below, make=True, mode=0o700) as directory:
        try:
            _copy_unit(path, directory)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                size = sum(os.stat(source).st_size for source in _files_of(path))
                raise _too_large(path, os.path.dirname(copies), size) from None
            raise


def _is_kept(path: str, home: str, run: str) -> bool:
    copies = kept_copies(f"{home}/runs/{run}")
    return all(_identity(copies + source) == _identity(source) for source in _files_of(path))


def _copy_unit(path: str, target: GuardedDirectory) -> None:
    """Copy a checkpoint into a directory, where it is complete or as it was."""
    above, part = os.path.dirname(path), KEPT_PART.encode()
    target.remove_tree(part, ignore_errors=True)
    try:
        for source in _files_of(path):
            directory, name = os.path.split(os.fsencode(os.path.relpath(source, above)))
            with target.enter(part + b"/" + directory, make=True) as copied:
                _copy(source, copied, name)
        with target.enter(part) as copied:
            for name in copied.names():
                target.remove_tree(name, ignore_errors=True)
                target.rename(copied.number, name, name)
    finally:
        target.remove_tree(part, ignore_errors=True)


def _copy(source: str, directory: GuardedDirectory, name: bytes) -> None:
    with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        with directory.written(name, stat.S_IMODE(status.st_mode)) as number:
            try:
                fcntl.ioctl(number, _CLONE, file.fileno())
            except OSError:  # no reflinks there
                if status.st_size + _RESERVE > free_space(number):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source) from None
                for block in blocks_of(file):
                    write_all(number, block)
            os.utime(number, ns=(status.st_mtime_ns, status.st_mtime_ns))


def _too_large(path: str, results: str, size: int) -> AgentError:
    text = f"{path} ({format_size(size)}) has to be kept while a resumed run may overwrite it"
    source = f"{os.path.basename(results)}:{path}"
    fix = Fix(
        "free some space there; or bring it here, `ipexctl fetch {source} out/`, and start without --resume",
        source=source,
    )
    return AgentError(f"{text}: {explain_full_disk(results, size + _RESERVE).reason}", fix)


def _names_of(path: str) -> list[str]:
    """Return the names that are one checkpoint with a path, in its directory."""
    above, name = os.path.split(path)
    return [name] if os.path.isdir(path) else sorted(parts_of(name, os.listdir(above)))


def _files_of(path: str) -> Iterator[str]:
    for top in (os.path.join(os.path.dirname(path), name) for name in _names_of(path)):
        walk = os.walk(top) if os.path.isdir(top) else [(os.path.dirname(top), [], [os.path.basename(top)])]
        files = (os.path.join(directory, name) for directory, _, names in walk for name in sorted(names))
        yield from (file for file in files if stat.S_ISREG(os.lstat(file).st_mode))


def _identity(path: str) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        return status.st_size, status.st_mtime_ns
    return None

"""Keeps the checkpoints that a run may resume from, because a script that starts over overwrites them: the newest whole
one of each name, numbers aside, as `last.pt` and `best.pt` (which of them the script loads is not known). One that
another run has replaced is put back, and the other's is kept instead.

A copy is in HOME/results/RUN (`file_owner.py`), where RUN is the run that wrote the file last: a reflink where the
filesystem has that, else the bytes. A hard link is not enough, because scripts write in place. It goes with the run's
record, or once a run that went on from it has a newer whole checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import stat
from typing import Iterator, NamedTuple, Sequence

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.checkpoint_layout import parts_of
from ipexctl.node.common.files import HomeRequest, explain_full_disk, format_size, free_space
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.guarded_directory import GuardedDirectory, blocks_of, enter_named, write_all
from ipexctl.node.common.home import home_of
from ipexctl.node.common.home_entries import KEPT, KEPT_PART, drop_kept_copies, kept_copies
from ipexctl.node.common.plan import PLAN_FILE
from ipexctl.node.run.record.newest_checkpoint import (
    find_later_writer,
    is_whole,
    newest_write,
    other_runs,
    recorded_run,
    saved_files,
)
from ipexctl.node.run.retention import runs_with_processes

_CLONE = 0x40049409
"""FICLONE of linux/fs.h."""
_RESERVE = 64 << 20
"""Bytes that stay free: ranks need room for their output."""


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


class _Checkpoint(NamedTuple):
    path: str
    run: str
    written: float
    copy: str = ""
    """Where it is kept, if it is not at its path."""


def keep_checkpoint(request: KeepRequest) -> KeptCheckpoint:
    """Keep what there is, put back what another run replaced, and return the newest. Raises an AgentError if it does
    not fit, or if the other run goes on."""
    home, found = home_of(request, "results"), list[KeptCheckpoint]()
    runs, of_series = os.path.join(home, "runs"), dict[str, list[_Checkpoint]]()
    for unit in sorted(_units(request, runs), key=lambda unit: unit.written, reverse=True):
        of_series.setdefault(_series(unit.path), []).append(unit)
    for series, units in of_series.items():
        own: _Checkpoint | None = None
        others = list[_Checkpoint]()
        for unit in units:
            if own is None and is_whole(unit.copy or unit.path):
                others.append(unit)
                own = others.pop() if unit.run in request["resumed"] else None
        is_recorded = series == _series(request["recorded"])
        is_in_the_way = bool(others) and (own is not None or (request["sets_aside"] and is_recorded))
        replaced = f"{others[0].run}:{others[0].path}" if is_in_the_way else ""
        if own is not None and not own.copy:
            _keep(own.path, home, own.run)
        for unit in others if is_in_the_way else others[:1]:
            _keep(unit.path, home, unit.run)
        if is_in_the_way:
            _remove(others, home)
        if own is not None:
            found.append(KeptCheckpoint(own.path, own.run, own.written, replaced))
            if own.copy:
                with _opened(own.path) as directory:
                    _copy_unit(own.copy, directory)
        elif others and is_recorded:
            found.append(KeptCheckpoint(replaced=replaced) if is_in_the_way else KeptCheckpoint(*others[0][:3]))
    for run in request["superseded"] if found else ():
        drop_kept_copies(os.path.join(runs, run))
    return max(found, key=lambda each: (each.run in request["resumed"], each.written), default=KeptCheckpoint())


def _series(path: str) -> str:
    return re.sub("[0-9]+", "#", path)


def _units(request: KeepRequest, runs: str) -> Iterator[_Checkpoint]:
    """Checkpoints at their paths, then kept ones of the resumed runs."""
    chain = [recorded_run(os.path.join(runs, run)) for run in request["resumed"]]
    top, recorded = request["path"] or os.path.dirname(request["recorded"]), request["recorded"]

    def saved(base: str) -> list[str]:
        with contextlib.suppress(OSError):
            began = os.stat(os.path.join(chain[0].directory, PLAN_FILE))
            files = saved_files(os.path.dirname(runs), request["cwd"], base + top, began) if top else []
            return [*dict.fromkeys(file.path for file in files)]
        return []

    others = functools.lru_cache(maxsize=None)(lambda own, directory: tuple(other_runs(own, directory)))

    for path in saved("") or ([recorded] if os.path.lexists(recorded) else []):
        written = newest_write(path)
        own = next((run for run in reversed(chain) if run.begun < written), chain[-1])
        writer = find_later_writer(written, own, others(own, os.path.dirname(path))) or own
        yield _Checkpoint(path, writer.id, written)
    for run in chain:
        base = kept_copies(run.directory)
        yield from (_Checkpoint(copy[len(base) :], run.id, newest_write(copy), copy) for copy in saved(base))


def _opened(path: str) -> GuardedDirectory:
    """The directory of a checkpoint."""
    above = os.path.dirname(path)
    return GuardedDirectory.at(enter_named(above, f"make {above} this account's own"))


def _remove(units: Sequence[_Checkpoint], home: str) -> None:
    """Remove kept checkpoints of other runs from the way. Raises an AgentError if one of them is still written."""
    for run in runs_with_processes(os.path.join(home, "runs")).intersection(unit.run for unit in units):
        fix = Fix("when it has ended: `ipexctl wait {run}`", run=run)
        raise AgentError(f"run {run} goes on, and writes {units[0].path}", fix)
    for unit in units:
        if not _is_kept(os.path.realpath(unit.path), home, unit.run):  # a run of another host may write there, too
            raise AgentError(
                f"{unit.path} changed while it was copied", "when nothing writes it any more, run it again"
            )
        with _opened(unit.path) as directory:
            for name in _names_of(unit.path):
                directory.remove_tree(os.fsencode(name))


def _keep(path: str, home: str, run: str) -> None:
    path, place = os.path.realpath(path), kept_copies(f"{home}/runs/{run}")
    if _is_kept(path, home, run):
        return
    below = os.fsencode(f"results/{run}/{KEPT}{os.path.dirname(path)}")
    with GuardedDirectory.open(home) as top, top.enter(below, make=True, mode=0o700) as directory:
        try:
            _copy_unit(path, directory)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                size = sum(os.stat(source).st_size for source in _files_of(path))
                raise _too_large(path, os.path.dirname(place), size) from None
            raise


def _is_kept(path: str, home: str, run: str) -> bool:
    place = kept_copies(f"{home}/runs/{run}")
    return all(_identity(place + source) == _identity(source) for source in _files_of(path))


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
    """What is one checkpoint with a path, in its directory."""
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

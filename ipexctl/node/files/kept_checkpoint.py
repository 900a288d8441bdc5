"""Keeps the checkpoints that a run may resume from, because a script that starts over overwrites them: the newest whole
one of each name, numbers aside, as `last.pt` and `best.pt` (which of them the script loads is not known).

A copy is in HOME/results/RUN (`file_owner.py`), where RUN is the run that wrote the file last: a reflink where the
filesystem has that, else the bytes. A hard link is not enough, because scripts write in place. It goes with the run's
record, or once a run that went on from it has a newer whole checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from typing import Iterator, NamedTuple, Sequence, TypedDict

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.checkpoint_layout import parts_of
from ipexctl.node.common.files import explain_full_disk, format_size, free_space, read_json
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.guarded_directory import GuardedDirectory, blocks_of, write_all
from ipexctl.node.common.home import home_of
from ipexctl.node.common.home_entries import KEPT, KEPT_PART, drop_kept_copies, kept_copies
from ipexctl.node.common.plan import PLAN_FILE
from ipexctl.node.common.records import read_status
from ipexctl.node.run.record.newest_checkpoint import (
    find_later_writer,
    is_whole,
    newest_write,
    other_runs,
    recorded_run,
    saved_files,
)

_CLONE = 0x40049409
"""FICLONE of linux/fs.h."""
_RESERVE = 64 << 20
"""Bytes that stay free: ranks need room for their output."""


class KeepRequest(TypedDict):
    home: str
    cwd: str
    resumed: Sequence[str]
    """The runs that the new one continues, in order."""
    recorded: str
    """The newest checkpoint by the record of the last of them that has one; absolute; empty if node0 has to know."""
    path: str
    """PATH of --checkpoint, likewise."""
    superseded: Sequence[str]
    """Those of the runs from whose checkpoints a later one of them went on."""


class KeptCheckpoint(NamedTuple):
    path: str = ""
    """Absolute; empty if there is none."""
    run: str = ""
    """The run that wrote it last."""
    written: float = 0.0


def keep_checkpoint(request: KeepRequest) -> KeptCheckpoint:
    """Keep what there is, and return the newest. Raises an AgentError if it does not fit."""
    home, newest = home_of(request, "results"), KeptCheckpoint()
    runs = os.path.join(home, "runs")
    chain = [recorded_run(os.path.join(runs, run)) for run in request["resumed"]]
    for path in _find(request, os.path.join(runs, request["resumed"][0])):
        written = newest_write(path)
        own = next((run for run in reversed(chain) if run.begun < written), chain[-1])
        writer = find_later_writer(written, own, other_runs(own, os.path.dirname(path))) or own
        _keep(os.path.realpath(path), home, os.path.basename(writer.directory))
        newest = newest if newest.path else KeptCheckpoint(path, os.path.basename(writer.directory), written)
    for run in request["superseded"] if newest.path else ():
        drop_kept_copies(os.path.join(runs, run))
    return newest


def _find(request: KeepRequest, first: str) -> Sequence[str]:
    """The newest first. `first`: the first run's directory."""
    recorded, found = request["recorded"] or _recorded(request["resumed"], os.path.dirname(first)), dict[str, str]()
    with contextlib.suppress(OSError):
        began = os.stat(os.path.join(first, PLAN_FILE))
        top = request["path"] or os.path.dirname(recorded)
        files = saved_files(first.rpartition("/runs/")[0], request["cwd"], top, began) if top else []
        for file in sorted(files, key=lambda file: file.written, reverse=True):
            series = re.sub("[0-9]+", "#", file.path)
            if series not in found and is_whole(file.path):
                found[series] = file.path
    if not found and os.path.lexists(recorded) and is_whole(recorded):
        return (recorded,)
    return tuple(found.values())


def _recorded(resumed: Sequence[str], runs: str) -> str:
    for rundir in (os.path.join(runs, run) for run in reversed(resumed)):
        checkpoint = read_status(read_json(os.path.join(rundir, "status.json"))).checkpoint
        if checkpoint:
            return os.path.join(str(read_json(os.path.join(rundir, PLAN_FILE)).get("cwd")), checkpoint)
    return ""


def _keep(path: str, home: str, run: str) -> None:
    sources, place = list(_files_of(path)), kept_copies(f"{home}/runs/{run}")
    if all(_identity(place + source) == _identity(source) for source in sources):
        return
    with GuardedDirectory.open(home) as top, top.enter(os.fsencode(f"results/{run}"), make=True, mode=0o700) as results:
        try:
            results.remove_tree(KEPT_PART.encode(), ignore_errors=True)
            for source in sources:
                directory, name = os.path.split(os.fsencode(source))
                with results.enter(KEPT_PART.encode() + directory, make=True, mode=0o700) as target:
                    _copy(source, target, name)
            for unit in (path,) if os.path.isdir(path) else sources:
                directory, name = os.path.split(os.fsencode(unit))
                with results.enter(KEPT.encode() + directory, make=True, mode=0o700) as target:
                    target.remove_tree(name, ignore_errors=True)
                    with results.enter(KEPT_PART.encode() + directory) as copied:
                        target.rename(copied.number, name, name)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                size = sum(os.stat(source).st_size for source in sources)
                raise _too_large(path, os.path.dirname(place), size) from None
            raise
        finally:
            results.remove_tree(KEPT_PART.encode(), ignore_errors=True)


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


def _files_of(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        above, name = os.path.split(path)
        yield from (os.path.join(above, part) for part in sorted(parts_of(name, os.listdir(above))))
    for directory, _, names in os.walk(path):
        files = (os.path.join(directory, name) for name in sorted(names))
        yield from (file for file in files if stat.S_ISREG(os.lstat(file).st_mode))


def _identity(path: str) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        return status.st_size, status.st_mtime_ns
    return None

"""The newest whole checkpoint that a run wrote on node0, as the line at its end names it: what is whole, the exchange
between hosts decides alike (`node/common/checkpoint_layout.py`).

A file that may be of another run is not named: one from before the begin, or one that was written while another run
could write to the same directory, unless only this run printed that it saved the file.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import stat
from itertools import islice
from typing import TYPE_CHECKING, Callable, Iterable, Iterator, NamedTuple, Sequence

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.checkpoint_layout import (
    HalfWrittenError,
    check_complete,
    find_checkpoints,
    has_all_shards,
    is_of_torch,
    parts_of,
)
from ipexctl.node.common.clock import seconds_since
from ipexctl.node.common.files import last_lines, read_json
from ipexctl.node.common.home import STATE_DIRECTORY
from ipexctl.node.common.home_entries import list_names
from ipexctl.node.common.json_records import read_json_file
from ipexctl.node.common.liveness import REPORT_LIMITS, liveness_of
from ipexctl.node.common.plan import PLAN_FILE
from ipexctl.node.run.record.stored_status import NoRecord, read_document
from ipexctl.node.run.retention import runs_with_processes

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

_DIRECTORY = re.compile(r"(?:checkpoint|(?:global_)?step|epoch|iter)[-_]?[0-9]+.*|.*\.ckpt")
"""A directory that is one checkpoint; another one may have several."""
_MOST_DIRECTORIES = 2000
"""A project may have its data beside its checkpoints, on a slow disk."""
CLOCK_DOUBT = 2.0
"""Seconds by which a file server's clock may differ from node0's."""
_SAVES = re.compile(r"\b(?:sav(?:e|es|ed|ing)|wr(?:ote|it\w+)|stor(?:e|es|ed|ing)|dump\w*|export\w*)\b", re.IGNORECASE)
_LOADS = re.compile(r"\b(?:load|resum|restor)", re.IGNORECASE)
_MOST_OUTPUT, _MOST_STREAMS = 1 << 20, 256
"""Bytes of a stream that are searched, from its end, and streams of a run."""


class SavedFile(NamedTuple):
    path: str
    """Absolute; of a checkpoint of several files, their directory."""
    written: float
    """mtime of the file."""
    has_clock_of_record: bool
    """True if it is on the file system of the run's record, so that one clock made all times."""


class RecordedRun(NamedTuple):
    directory: str
    begun: float
    ended: float
    """Infinite while it goes on, or if the end is unknown."""

    @property
    def id(self) -> str:
        return os.path.basename(self.directory)


def find_later_writer(written: float, own: RecordedRun, others: Iterable[RecordedRun]) -> RecordedRun | None:
    """The run to which a file of `own` belongs now, because that wrote in its directory later; None if `own` may have
    written the file last, or nobody is known who did. Without a doubt for clocks: a file refused by mistake can be
    forced, one brought by mistake is taken for another.

    What changed between a later run's end and the next one's begin counts as that run's: `own` had ended before."""
    later = [
        run for run in others if run.begun <= written and (run.begun >= own.ended or own.ended < written <= run.ended)
    ]
    return max(later, key=lambda run: run.begun, default=None)


def choose_newest(
    files: Iterable[SavedFile],
    own: RecordedRun,
    others: Sequence[RecordedRun],
    says_saved: Callable[[RecordedRun, str], bool],
    is_whole: Callable[[str], bool],
) -> str:
    """Return the newest whole checkpoint that this run wrote; empty without one, or if another run may have written a
    newer one.

    `others`: runs that may write to the same directory. `says_saved`: whether the run printed that it saved the file.
    """
    for file in sorted(files, key=lambda file: file.written, reverse=True):
        doubt = 0.0 if file.has_clock_of_record else CLOCK_DOUBT
        if file.written <= own.begun + doubt or not is_whole(file.path):
            continue
        rivals = [run for run in others if run.begun - doubt <= file.written <= run.ended + doubt]
        is_theirs = any(says_saved(run, file.path) for run in rivals)
        is_own = not rivals or says_saved(own, file.path)
        if is_own or not is_theirs:
            return "" if is_own == is_theirs else file.path
    return ""


def is_saved(line: str, path: str, cwd: str) -> bool:
    """True if the line of a rank says that it wrote the file, or a file in it."""
    names = "|".join(re.escape(name) for name in (path, os.path.relpath(path, cwd)))
    named = re.search(rf"(?<![\w./-])(?:\./)?(?:{names})(?![\w-]|\.\w)", line)
    return bool(named and _SAVES.search(line) and not _LOADS.search(line))


def newest_checkpoint(cwd: str, asked: str, rundir: str, first_write: os.stat_result) -> str:
    """The newest one, relative to `cwd`, or absolute if `asked` is; empty without one. `asked`: the PATH of
    `--checkpoint`, or empty. `first_write`: the file that the supervisor wrote first."""
    top = os.path.join(cwd, asked)
    files = saved_files(os.path.dirname(os.path.dirname(rundir)), cwd, top, first_write)
    if not files:
        return ""

    def says_saved(run: RecordedRun, path: str) -> bool:
        return any(is_saved(line, path, cwd) for line in _output(run.directory))

    own = RecordedRun(rundir, first_write.st_mtime, math.inf)
    others = tuple(other_runs(own, top))
    newest = choose_newest(files, own, others, says_saved, functools.lru_cache(maxsize=None)(is_whole))
    return newest if not newest or os.path.isabs(asked) else os.path.relpath(newest, cwd)


def saved_files(home: str, cwd: str, top: str, first_write: os.stat_result) -> list[SavedFile]:
    """Checkpoints not older than the run, without those that sync brought."""
    tree, sent = _sent_files(home, cwd)
    walk = os.walk(top) if os.path.isdir(top) else [(os.path.dirname(top), [], [os.path.basename(top)])]
    saved = []
    for directory, names, files in islice(walk, _MOST_DIRECTORIES):
        if "pyvenv.cfg" in files:
            del names[:]
            continue
        names[:] = (name for name in names if not name.startswith("."))
        for name in filter(is_of_torch, files):
            path = os.path.join(directory, name)
            with contextlib.suppress(OSError):
                found = os.lstat(path)
                is_new = stat.S_ISREG(found.st_mode) and found.st_size and found.st_mtime > first_write.st_mtime
                identity = [found.st_size, found.st_mtime_ns, found.st_ino]
                if is_new and sent.get(os.path.relpath(path, tree)) != identity:
                    is_one = directory != cwd and _DIRECTORY.fullmatch(os.path.basename(directory))
                    named = directory if is_one or name.endswith(".distcp") else path
                    saved.append(SavedFile(named, found.st_mtime, found.st_dev == first_write.st_dev))
    return saved


def _sent_files(home: str, cwd: str) -> tuple[str, dict[str, list[int]]]:
    """The tree with this directory, and the size, mtime and inode of each file that sync brought there."""
    code = os.path.join(home, "code")
    tree = os.path.join(code, os.path.relpath(cwd, code).partition("/")[0])
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # no tree of ours
        rows = read_json_file(os.path.join(tree, STATE_DIRECTORY, "state.json"))[
            "rows"
        ]  # `node/files/tree.py: TreeRow`
        return tree, {path: identity for path, *_, identity, is_from_sync in rows if is_from_sync}
    return tree, {}


def is_whole(path: str) -> bool:
    """False for a checkpoint whose save did not finish, and for data. Ranks of other hosts may have parts of it."""
    above, walk = os.path.dirname(path), islice(os.walk(path), _MOST_DIRECTORIES)
    names = [os.path.join(directory, name) for directory, _, files in walk for name in files]
    try:
        if not names:
            parts = parts_of(os.path.basename(path), os.listdir(above))
            names = [os.path.join(above, part) for part in parts]
            if not has_all_shards(set(parts)):
                return False
        for name in filter(os.path.isfile, names):
            with open(name, "rb") as file:
                check_complete(file, name, os.fstat(file.fileno()).st_size)
                file.seek(0)
                # A zip file, or a pickle of an old torch; not the token files of nanoGPT.
                if name == path and name.endswith(".bin") and not file.read(4).startswith((b"PK\3\4", b"\x80")):
                    return False
    except (OSError, HalfWrittenError):
        return False
    units = find_checkpoints((os.path.relpath(name, above) for name in names), "")
    return all(unit.is_whole for unit in units.values())


def other_runs(own: RecordedRun, top: str) -> Iterator[RecordedRun]:
    """Runs of this home that may write below `top`. All times are by the clock of the home's file system."""
    runs = os.path.dirname(own.directory)

    @functools.lru_cache(maxsize=None)
    def active() -> set[str]:
        return runs_with_processes(runs)

    for name in list_names(runs):
        directory = os.path.join(runs, name)
        with contextlib.suppress(OSError, AgentError):
            plan, begun = _read_plan(directory)
            if directory == own.directory or not _may_write(plan, top):
                continue
            try:
                ended = _end_of(directory)
            except NoRecord:  # another host is its node0, and has its end
                ended = math.inf if begun > own.begun or name in active() else begun
            yield RecordedRun(directory, begun, ended)


@functools.lru_cache(maxsize=None)
def _read_plan(rundir: str) -> tuple[Json, float]:
    """A run's plan, which no longer changes, and when the run began."""
    path = os.path.join(rundir, PLAN_FILE)
    return read_json(path), os.stat(path).st_mtime


def recorded_run(rundir: str, ended: float | None = None) -> RecordedRun:
    """`ended`: for a host that is not the run's node0; None if unknown."""
    end, begun = ended or math.inf, math.inf
    with contextlib.suppress(OSError):
        begun = os.stat(os.path.join(rundir, PLAN_FILE)).st_mtime
    with contextlib.suppress(AgentError):
        end = _end_of(rundir)
    return RecordedRun(rundir, begun, end)


def newest_write(path: str) -> float:
    """The mtime of a file, or of the newest one below a directory; 0 if there is none."""
    walk = islice(os.walk(path), _MOST_DIRECTORIES)
    names = [os.path.join(directory, name) for directory, _, files in walk for name in files] or [path]
    times = [0.0]
    for name in names:
        with contextlib.suppress(OSError):
            times.append(os.lstat(name).st_mtime)
    return max(times)


def _end_of(directory: str) -> float:
    stored = read_document(os.path.join(directory, "status.json"))
    is_over = liveness_of(stored.status, seconds_since(stored.written), REPORT_LIMITS) in ("over", "dead")
    return stored.written if is_over else math.inf


def _may_write(plan: Json, top: str) -> bool:
    """True if one of the directories is in the other."""
    cwd, asked = plan.get("cwd"), plan.get("asked")
    checkpoint = asked.get("checkpoint") if isinstance(asked, dict) else None
    if not isinstance(cwd, str) or not os.path.isabs(cwd):
        return False
    places = (cwd, os.path.join(cwd, checkpoint if isinstance(checkpoint, str) else ""))
    pairs = [(os.path.normpath(place), os.path.normpath(top)) for place in places]
    return any(os.path.commonpath(pair) in pair for pair in pairs)


def _output(directory: str) -> Iterator[str]:
    ranks = os.path.join(directory, "ranks")
    streams = (name for name in list_names(ranks) if name.endswith((".out", ".err")))
    for name in islice(streams, _MOST_STREAMS):
        for line in last_lines(os.path.join(ranks, name), _MOST_OUTPUT, _MOST_OUTPUT):
            yield line.decode(errors="replace")

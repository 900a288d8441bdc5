"""Finds, before a run begins anew, which files of earlier runs are in the directories that its command line names, by
the records of these runs (`run_files.py`)."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, NamedTuple, Sequence

from ipexctl.node.common.files import HomeRequest
from ipexctl.node.common.home import home_of
from ipexctl.node.files.kept_checkpoint import check_owners, keep_of_others
from ipexctl.node.run.record.file_owner import HomeRecords
from ipexctl.node.run.record.run_files import RecordedFiles, read_fetched


class LookRequest(HomeRequest):
    cwd: str
    paths: Sequence[str]
    """Words of the command line that may be directories, relative to `cwd` or absolute."""
    checkpoint: str
    """PATH of `--checkpoint`, one of the paths; or empty."""
    finished: Sequence[str]
    """Runs that succeeded, as far as the caller knows: they are not resumed."""


class EarlierFiles(NamedTuple):
    """Files of one earlier run that are in the way of a new one."""

    run: str
    path: str
    """As the command line names it."""
    files: int
    """Files that nobody fetched; of a live run, all."""
    size: int
    """Bytes."""
    is_alive: bool
    is_kept: bool
    """True if the newest checkpoint among them is kept, so that the earlier run can be resumed."""


def look(request: LookRequest) -> Iterator[EarlierFiles]:
    """Yield the files of earlier runs, and keep checkpoints that a resume of an earlier run needs. Raises an AgentError
    for a checkpoint of another account."""
    home = home_of(request, "runs")
    records = HomeRecords(os.path.join(home, "runs"))
    top = os.path.realpath(request["cwd"])
    for path in request["paths"]:
        directory = os.path.realpath(os.path.join(top, path))
        if directory == top or not os.path.isdir(directory):
            continue
        if path == request["checkpoint"]:
            check_owners(directory)
        # The records tell which files to look at: a directory that the line names may be a data set.
        left = {recorded.run: dict(_files_in(recorded, directory)) for recorded in records.all}
        ended = [recorded.run for recorded in records.all if recorded.is_closed and left[recorded.run]]
        unfinished = {*ended} - {*request["finished"]}
        kept = keep_of_others(home, top, directory, unfinished) if unfinished else set[str]()
        for recorded in records.all:
            fetched = read_fetched(os.path.join(home, "runs", recorded.run)) if recorded.is_closed else ()
            sizes = [size for file, size in left[recorded.run].items() if file not in fetched]
            if sizes or (not recorded.is_closed and any(top.path == directory for top in recorded.tops)):
                is_alive = not recorded.is_closed
                yield EarlierFiles(recorded.run, path, len(sizes), sum(sizes), is_alive, recorded.run in kept)


def _files_in(recorded: RecordedFiles, directory: str) -> Iterator[tuple[str, int]]:
    """Yield files that are as the run left them, with their sizes. Rows are read only of runs that wrote near by."""
    near = (
        top for top in recorded.tops if top.path.startswith(directory) or f"{directory}/".startswith(f"{top.path}/")
    )
    if not recorded.adopted and next(near, None) is None:
        return
    for path in recorded.paths():
        with contextlib.suppress(OSError):
            if path.startswith(f"{directory}/") and recorded.has(path, status := os.stat(path)):
                yield path, status.st_size

"""Says whose a file of a run is now, by the records of the runs of this home (`run_files.py`).

HOME/results/RUN/.ipexctl-kept has copies of a run's checkpoints from before a later run could overwrite them, each at
its own absolute path below it (`node/files/kept_checkpoint.py`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
from typing import Iterator

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.files import read_json
from ipexctl.node.common.guarded_directory import GuardedDirectory
from ipexctl.node.common.home_entries import KEPT, kept_copies, list_names
from ipexctl.node.common.plan import PLAN_FILE
from ipexctl.node.common.records import LaterWrite
from ipexctl.node.run.record.run_files import RecordedFiles, Top, files_below, recorded_files
from ipexctl.node.run.record.stored_status import StoredStatus, read_status_file

_CHECKPOINT_DIRECTORY = re.compile(r"(?:checkpoint|(?:global_)?step|epoch|iter)[-_]?[0-9]+.*|.*\.ckpt")


def is_checkpoint_directory(path: str) -> bool:
    """Return True for the name of a directory that is one checkpoint; another one may have several."""
    return _CHECKPOINT_DIRECTORY.fullmatch(os.path.basename(path)) is not None


class HomeRecords:
    """The recorded files of all runs of a home, read once for all questions of a call."""

    def __init__(self, runs: str) -> None:
        self.runs = runs

    @functools.cached_property
    def all(self) -> tuple[RecordedFiles, ...]:
        """The recorded files of all runs. Runs without a record of files are left out."""
        records = (recorded_files(os.path.join(self.runs, run)) for run in list_names(self.runs))
        return tuple(recorded for recorded in records if recorded is not None)


class FileOwners:
    """Tells the files of a run, and of those that it resumed, from the files of all other runs of the home."""

    def __init__(self, rundir: str, home_records: HomeRecords | None = None) -> None:
        self.run, self.kept_copies = os.path.basename(rundir), kept_copies(rundir)
        self._home_records = home_records or HomeRecords(os.path.dirname(rundir))
        asked = read_json(os.path.join(rundir, PLAN_FILE)).get("asked") or {}
        self.chain: tuple[str, ...] = (self.run, *reversed(asked.get("resumed") or ()))

    @functools.cached_property
    def own(self) -> tuple[RecordedFiles, ...]:
        """Records of the run, then of those that it resumed; empty if an older version recorded the run."""
        records = (recorded_files(os.path.join(self._home_records.runs, run)) for run in self.chain)
        return tuple(recorded for recorded in records if recorded is not None)

    @functools.cached_property
    def others(self) -> tuple[RecordedFiles, ...]:
        """Records of the runs that are neither this one nor resumed by it."""
        return tuple(recorded for recorded in self._home_records.all if recorded.run not in self.chain)

    def owner(self, path: str, status: os.stat_result) -> str | None:
        """Return the run whose file this is, at its path without links. None if it is older than the run and no run's,
        such as a file of the project. Empty if it is not as any run left it, or as two runs left it that ran at once.
        """
        for recorded in (*self.own, *self.others):
            if recorded.has_adopted(path, status):
                return recorded.run
        own = next((recorded for recorded in self.own if recorded.has(path, status)), None)
        writing = [recorded for recorded in self.others if _was_writing(recorded, path, status)]
        if own is not None and _was_writing(own, path, status):  # only a run at the same time may have it, too
            return "" if any(recorded.has(path, status) for recorded in writing) else own.run
        other = next((recorded for recorded in (*writing, *self.others) if recorded.has(path, status)), None)
        if own is not None or other is not None:
            return "" if own is not None and other is not None else (own or other).run  # type: ignore[union-attr]
        return "" if any(recorded.has_written(path, status) for recorded in self.own) else None

    def other_writer(self, path: str, status: os.stat_result) -> LaterWrite | None:
        """Return who else has changed the file last; None for a file that is the run's, or of a run that it resumed, or
        no run's."""
        owner = self.owner(os.path.realpath(path), status)
        return None if owner is None or owner in self.chain else LaterWrite(owner, status.st_mtime)

    def is_own(self, path: str, status: os.stat_result) -> bool:
        """Return True if the file, as it is now, is of this run or of one that it resumed."""
        return self.owner(os.path.realpath(path), status) in self.chain

    def lost_below(self, directory: str) -> Iterator[str]:
        """Yield the files that the run itself left below a directory, and that are gone."""
        above = os.path.realpath(directory) + "/"
        for recorded in self.own[:1]:
            yield from (path for path in recorded.paths() if path.startswith(above) and not os.path.lexists(path))

    def kept(self, path: str) -> str:
        """Return the copy of an absolute path from before another run could overwrite it; empty without one."""
        above, name = os.path.split(path)
        copy = f"{self.kept_copies}{os.path.realpath(above)}/{name}"
        return copy if os.path.lexists(copy) else ""


def keep_for(run: str, home: str, directory: GuardedDirectory, name: bytes) -> bool:
    """Move a file of an open directory to the kept copies of the run that wrote it, by a rename. Return False if these
    are on another file system."""
    below = f"results/{run}/{KEPT}{os.path.realpath(directory.path)}"
    with GuardedDirectory.open(os.path.realpath(home)) as top, top.enter(
        os.fsencode(below), make=True, mode=0o700
    ) as target:
        target.remove_tree(name, ignore_errors=True)
        try:
            target.rename(directory.number, name, name)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return False
    return True


def separate(rundir: str) -> None:
    """Move files of other runs out of the checkpoint directories that this run wrote to, to the kept copies of those
    runs, so that no directory has files of two runs. Call it once the run's record is made."""
    owners, home = FileOwners(rundir), os.path.dirname(os.path.dirname(rundir))
    for own in owners.own[:1]:
        for directory in filter(is_checkpoint_directory, {os.path.dirname(path) for path in own.paths()}):
            for path, status in files_below([Top(directory, 0)]):
                owner = None if own.has(path, status) else owners.owner(path, status)
                if owner and owner not in owners.chain:
                    above, name = os.path.split(path)
                    with contextlib.suppress(OSError, AgentError), GuardedDirectory.open(above) as opened:
                        keep_for(owner, home, opened, os.fsencode(name))


def _was_writing(recorded: RecordedFiles, path: str, status: os.stat_result) -> bool:
    """True if the file's last change was while this run could write to it."""
    return any(top.covers(path) and top.may_have_written(status) for top in recorded.tops)


def read_status_now(
    rundir: str,
    *,
    is_copy: bool = False,
    unchanged_for: float | None = None,
    home_records: HomeRecords | None = None,
) -> StoredStatus:
    """Read a status as `read_status_file` does, and look at the checkpoint of an ended run: one that is gone is left
    out, one that another run has changed is said to be that run's."""
    stored = read_status_file(rundir, is_copy=is_copy, unchanged_for=unchanged_for)
    checkpoint = "" if is_copy or not stored.status.is_over else stored.status.checkpoint
    cwd = read_json(os.path.join(rundir, PLAN_FILE)).get("cwd") if checkpoint else None
    if not isinstance(cwd, str):
        return stored
    path, owners = os.path.realpath(os.path.join(cwd, checkpoint)), FileOwners(rundir, home_records)
    if not owners.own:  # recorded by an older version: only whether it is there is known
        is_there = os.path.lexists(path)
        files, later = [path] if is_there else [], None
    else:
        below = list(files_below([Top(path, 0)]))
        files = [file for file, _ in below]
        changed = [(file, status) for file, status in below if not any(own.has(file, status) for own in owners.own)]
        later = next((writer for file, status in changed if (writer := owners.other_writer(file, status))), None)
    if (files and later is None) or owners.kept(path):
        return stored
    status = stored.status._replace(checkpoint=checkpoint if files else "", overwritten=later)
    more = {"checkpoint": status.checkpoint, "overwritten": later and later._asdict()}
    return stored._replace(status=status, document={**stored.document, **more})

"""Whose a file of a run is now: of the run that wrote it last, as `newest_checkpoint.py: find_later_writer` decides.

HOME/results/RUN/.ipexctl-kept has copies of a run's checkpoints from before a later run could overwrite them, each at
its own absolute path below it (`node/files/kept_checkpoint.py`).
"""

from __future__ import annotations

import functools
import os

from ipexctl.node.common.files import read_json
from ipexctl.node.common.home_entries import kept_copies
from ipexctl.node.common.plan import PLAN_FILE
from ipexctl.node.common.records import LaterWrite
from ipexctl.node.run.record.newest_checkpoint import (
    RecordedRun,
    find_later_writer,
    newest_write,
    other_runs,
    recorded_run,
)
from ipexctl.node.run.record.stored_status import StoredStatus, read_status_file


class FileOwner:
    """`ended`: for a host that is not the run's node0; None if unknown. `top`: where the run's files are looked for.
    `is_of_whole_run`: nobody asks for single files."""

    def __init__(self, rundir: str, top: str, ended: float | None = None, *, is_of_whole_run: bool = False) -> None:
        self.is_of_whole_run = is_of_whole_run
        self._own, self._top, self._kept = recorded_run(rundir, ended), top, kept_copies(rundir)

    @functools.cached_property
    def _others(self) -> tuple[RecordedRun, ...]:
        return tuple(other_runs(self._own, self._top))

    def later_write(self, written: float) -> LaterWrite | None:
        """None for a file that is still the run's."""
        if written < self._own.ended:  # of most files; nothing is read of other runs
            return None
        writer = find_later_writer(written, self._own, self._others)
        return None if writer is None else LaterWrite(os.path.basename(writer.directory), written)

    def kept(self, path: str) -> str:
        """The copy of an absolute path from before another run could overwrite it; empty without one."""
        above, name = os.path.split(path)
        copy = f"{self._kept}{os.path.realpath(above)}/{name}"
        return copy if os.path.lexists(copy) else ""


def read_status_now(rundir: str, *, is_copy: bool = False, unchanged_for: float | None = None) -> StoredStatus:
    """As `read_status_file`; the checkpoint of an ended run is left out if it is gone, and is said to be another run's
    if that is so."""
    stored = read_status_file(rundir, is_copy=is_copy, unchanged_for=unchanged_for)
    checkpoint = "" if is_copy or not stored.status.is_over else stored.status.checkpoint
    cwd = read_json(os.path.join(rundir, PLAN_FILE)).get("cwd") if checkpoint else None
    if not isinstance(cwd, str):
        return stored
    path = os.path.join(cwd, checkpoint)
    owner, written = FileOwner(rundir, os.path.dirname(path)), newest_write(path)
    later = owner.later_write(written)
    if (written and later is None) or owner.kept(path):
        return stored
    status = stored.status._replace(checkpoint=checkpoint if written else "", overwritten=later)
    more = {"checkpoint": status.checkpoint, "overwritten": later and later._asdict()}
    return stored._replace(status=status, document={**stored.document, **more})

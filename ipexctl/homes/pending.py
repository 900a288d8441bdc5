"""Mark runs that a call is starting, so that a killed call does not keep its lease on a synced tree."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from ipexctl.found_files import state_directory
from ipexctl.node.common.files import make_private_directory, write_json_atomically
from ipexctl.node.common.json_records import decode, read_json_file
from ipexctl.node.common.processes import ProcessIdentity, own_identity

_SUFFIX: Final = ".begins"
_NO_PROCESS: Final = ProcessIdentity(0)
_KEEP_SECONDS: Final = 3600.0
"""Markers are kept for this time; hosts drop the lease of a run that never started sooner."""


def runs_directory() -> Path:
    """Return the directory of this account's records and copies of runs."""
    return state_directory() / "runs"


def remove_record(directory: Path, run: str) -> None:
    """Remove the record of a run and its plan. A copy of its output stays."""
    from ipexctl.node.common.plan import PLAN_FILE  # slow to import

    (directory / f"{run}.json").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        (directory / run / PLAN_FILE).unlink(missing_ok=True)
        (directory / run).rmdir()  # unless there is a copy of its output


@contextlib.contextmanager
def mark_pending(directory: Path, run: str, unreached: Collection[str] = ()) -> Iterator[None]:
    """Mark the run as being started by this process.
    `unreached`: hosts that could not be cleaned up. If there are any at the end, the next sync cleans up.
    """
    with contextlib.suppress(OSError):  # on a full disk, the record of the run is refused later
        make_private_directory(directory)
        write_json_atomically(directory / f"{run}{_SUFFIX}", own_identity()._asdict(), durable=False)
    try:
        yield
    finally:
        clear_pending(directory, run)
        if unreached:
            with contextlib.suppress(OSError):
                write_json_atomically(directory / f"{run}{_SUFFIX}", _NO_PROCESS._asdict(), durable=False)


def clear_pending(directory: Path, run: str) -> None:
    """Remove the marker of a run that has started, or never will."""
    with contextlib.suppress(OSError):
        (directory / f"{run}{_SUFFIX}").unlink()


def abandoned_runs(directory: Path) -> tuple[str, ...]:
    """Return the runs that never started, because their call was killed or could not clean up a host. Their records are
    removed. A marker older than an hour is removed, and its run is not returned."""
    abandoned = []
    with contextlib.suppress(OSError):
        for path in sorted(directory.glob(f"*{_SUFFIX}")):
            if not _is_abandoned(path):
                continue
            run = path.name.removesuffix(_SUFFIX)
            if time.time() - path.stat().st_mtime > _KEEP_SECONDS:
                path.unlink()
            else:
                abandoned.append(run)
                remove_record(directory, run)
    return tuple(abandoned)


def starting_runs(directory: Path) -> tuple[str, ...]:
    """Return the runs that calls of this account are starting now, or may be on another machine."""
    with contextlib.suppress(OSError):
        markers = sorted(directory.glob(f"*{_SUFFIX}"))
        return tuple(path.name.removesuffix(_SUFFIX) for path in markers if not _is_abandoned(path))
    return ()


def _is_abandoned(marker: Path) -> bool:
    """Return True if the process that started the run is gone. False if it is on another machine, where we can't see
    it, or if the marker can't be read."""
    try:
        process = decode(ProcessIdentity, read_json_file(marker), "the file")
    except (OSError, ValueError):
        return False
    return process.is_gone

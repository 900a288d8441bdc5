"""Markers for runs that are still starting, so that a killed CLI does not keep its lease on the synced tree.

There is one marker a run, beside the records of the registry. It is removed when the run is started or refused.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Final

from ipexctl.node.common.processes import ProcessIdentity, own_identity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SUFFIX: Final = ".begins"
_KEEP_SECONDS: Final = 3600.0
"""Hosts drop the lease of a run that never started before this time is over."""


@contextlib.contextmanager
def mark_pending(directory: Path, run: str) -> Iterator[None]:
    """Mark the run as starting, by this process."""
    with contextlib.suppress(OSError):  # on a full disk, the record of the run is refused later
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        (directory / f"{run}{_SUFFIX}").write_text(json.dumps(own_identity()._asdict()))
    try:
        yield
    finally:
        clear_pending(directory, run)


def clear_pending(directory: Path, run: str) -> None:
    with contextlib.suppress(OSError):
        (directory / f"{run}{_SUFFIX}").unlink()


def abandoned_runs(directory: Path) -> tuple[str, ...]:
    """Runs whose CLI was killed before it started them. Their records are removed."""
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(directory.glob(f"*{_SUFFIX}")):
            if not _is_abandoned(path):
                continue
            run = path.name.removesuffix(_SUFFIX)
            if time.time() - path.stat().st_mtime > _KEEP_SECONDS:
                path.unlink()
            else:
                found.append(run)
                (directory / f"{run}.json").unlink(missing_ok=True)
    return tuple(found)


def _is_abandoned(marker: Path) -> bool:
    """False also for a process of another machine: whether it runs cannot be seen from here."""
    try:
        process = ProcessIdentity(**json.loads(marker.read_text()))
    except (OSError, ValueError, TypeError):
        return False
    return process.is_of_this_machine and not process.is_alive

"""Calls of run on this machine that have not begun their run yet: one that was killed there holds no tree.

A note a call, beside the register's records, gone before the run is told to go, or once it won't begin.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENDING: Final = ".begins"
_OLD: Final = 3600.0
"""Seconds until a note says nothing any more: hosts have long taken the run for one that never came."""


@contextlib.contextmanager
def mark_pending(directory: Path, run: str) -> Iterator[None]:
    """While inside, whoever looks knows which process is about to begin that run."""
    path = directory / f"{run}{_ENDING}"
    said = {"machine": socket.gethostname(), "pid": os.getpid(), "began": _began(os.getpid())}
    with contextlib.suppress(OSError):  # where there is no room, the run itself will say so
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(json.dumps(said))
    try:
        yield
    finally:
        pending_runs(directory, run)


def pending_runs(directory: Path, run: str) -> None:
    """The run is told to go: from now on its node0 knows what becomes of it."""
    with contextlib.suppress(OSError):
        (directory / f"{run}{_ENDING}").unlink()


def abandoned_runs(directory: Path) -> tuple[str, ...]:
    """Runs that nobody is going to begin any more: their call has died. They are no longer on record."""
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(directory.glob(f"*{_ENDING}")):
            run = path.name.removesuffix(_ENDING)
            if time.time() - path.stat().st_mtime > _OLD and _is_dead(path):
                path.unlink()
            elif _is_dead(path):
                found.append(run)
                (directory / f"{run}.json").unlink(missing_ok=True)
    return tuple(found)


def _is_dead(path: Path) -> bool:
    try:
        said = json.loads(path.read_text())
        machine, pid, began = said["machine"], int(said["pid"]), said["began"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if machine != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return bool(began is not None and _began(pid) != began)


def _began(pid: int) -> str | None:
    """When that process was started, by the kernel's count: a number that is used again is another's."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None

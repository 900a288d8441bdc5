"""Locks for changes to labs. The kernel releases a lock when its process ends, so none outlives a crash."""

from __future__ import annotations

import fcntl
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.lab.state import LABS

if TYPE_CHECKING:
    from collections.abc import Iterator

_MACHINE_LOCK: Final = Path("/run/ipexctl-lab.lock")
_TIMEOUT: Final = 30.0


@contextmanager
def machine_lock() -> Iterator[None]:
    """Held while a name and a block are chosen and recorded."""
    with _MACHINE_LOCK.open("w") as file:
        _acquire(file, "another lab is being planned, for too long now")
        yield


@contextmanager
def lab_lock(name: str) -> Iterator[None]:
    """Held while a lab is made, changed or removed; a lab without a directory needs no lock."""
    path = LABS / name / "lock"
    try:
        file = path.open("w")
    except FileNotFoundError:
        yield
        return
    with file:
        _acquire(file, f"someone else is at work on the lab {name!r}")
        yield


def _acquire(file: IO[str], message: str) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise UserError(message, fix="try again when that is done") from None
            time.sleep(0.05)

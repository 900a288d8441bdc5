"""Who may change a lab: one at a time. The kernel drops a lock with its process, so none outlives a crash."""

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

_MACHINE: Final = Path("/run/ipexctl-lab.lock")
_WAIT: Final = 30.0


@contextmanager
def machine_lock() -> Iterator[None]:
    """Held while a name and a block are chosen and written down."""
    with _MACHINE.open("w") as file:
        _take(file, "another lab is being planned, for too long now")
        yield


@contextmanager
def lab_lock(name: str) -> Iterator[None]:
    """Held while a lab is made, changed or removed; a lab without a directory needs none."""
    path = LABS / name / "lock"
    try:
        file = path.open("w")
    except FileNotFoundError:
        yield
        return
    with file:
        _take(file, f"someone else is at work on the lab {name!r}")
        yield


def _take(file: IO[str], refusal: str) -> None:
    deadline = time.monotonic() + _WAIT
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise UserError(refusal, fix="try again when that is done") from None
            time.sleep(0.05)

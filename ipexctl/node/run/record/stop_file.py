"""The file that says who stops a run: written before the signal, and read by the supervisor when it gets the signal."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Iterator

from ipexctl.node.common.files import read_json, remove_file, write_json_atomically
from ipexctl.node.common.json_records import decode
from ipexctl.node.common.plan import RunBy
from ipexctl.node.common.records import StopRecord

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

_RECENT = 10.0
"""Seconds after which a signal is another one than that of the file."""


def _path(rundir: str) -> str:
    return os.path.join(rundir, "stop.json")


@contextlib.contextmanager
def said(rundir: str, by: Json | None) -> Iterator[None]:
    """Say who sends the signal of the body. A disk without room for it only makes the sender unknown."""
    path = _path(rundir)
    if by is not None:
        with contextlib.suppress(OSError):
            write_json_atomically(path, by)
    try:
        yield
    except BaseException:
        remove_file(path)
        raise


def read_sender(rundir: str, now: float) -> StopRecord:
    """Return who sent the signal that has just arrived; nobody if the file is missing, or older than _RECENT
    seconds."""
    path = _path(rundir)
    try:
        if not 0 <= now - os.stat(path).st_mtime <= _RECENT:
            return StopRecord()
        by = decode(RunBy, read_json(path), "the sender of a stop")
    except (OSError, ValueError):
        return StopRecord()
    return StopRecord(by.user[:80], by.host[:80])

"""The last status of a run whose directory can't be changed any more: where it is written, and where it is found."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ipexctl.node.common.processes import ProcessIdentity
from ipexctl.node.common.records import RunStatus
from ipexctl.node.run.record import stored_status
from ipexctl.node.run.record.recorder import Recorder
from ipexctl.node.run.record.stored_status import read_status_file

DEAD = ProcessIdentity(2**22, start=1)
RUNNING = RunStatus("r-1", "running", world_size=2, supervisor=DEAD, node0="node1")


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize("is_full", [False, True])
def test_end_is_found_where_nothing_can_be_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    record = Recorder(str(tmp_path), RUNNING)
    record.save(10)
    assert (record.problem, record.is_unsaved) == ("", False)
    monkeypatch.setattr(os, "replace", refuse)
    if is_full:
        monkeypatch.setattr(os, "pwrite", refuse)
    record.status, record.is_unsaved = RUNNING._replace(state="failed", exit_code=7, ended=5.0), True
    record.save(20)
    assert (record.problem, record.is_unsaved) == ("Read-only file system", is_full)
    monkeypatch.setattr(stored_status, "write_json_atomically", refuse)
    found = read_status_file(str(tmp_path)).status
    assert (found.state, found.code) == (("lost", 1) if is_full else ("failed", 7))
    assert found.unrecorded == ("Read-only file system" if is_full else "")

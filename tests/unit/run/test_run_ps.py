"""ps queries each node0 once for all its runs; an unreachable host is tried once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ipexctl.api.known_runs import CallWatcher, note_end
from ipexctl.homes.local_copy import read_final_status, save_final_status
from ipexctl.homes.registry import RunRecord, RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.node.common.records import read_status
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.session import CommandEnd
from ipexctl.run.ps import query_runs, with_copies
from record_helpers import run_record


def test_50_runs_on_3_hosts_need_3_queries(tmp_path: Path) -> None:
    asked: list[str] = []

    class Session(LocalSession):
        def run(self, *args: Any, **more: Any) -> CommandEnd:
            asked.append(self.host.name)
            return super().run(*args, **more)

    records = []
    for number in range(50):
        name = f"node{number % 3}"
        status = {"state": "ok", "supervisor": {}, "ranks": [], "exit_code": 0}
        rundir = tmp_path / name / "runs" / f"r{number}"
        rundir.mkdir(parents=True)
        (rundir / "status.json").write_text(json.dumps(status))
        records.append(run_record(f"r{number}", Host(name, name), str(tmp_path / name), sys.executable))
    opened: list[str] = []

    def open_session(record: RunRecord) -> Session:
        opened.append(record.node0.name)
        return Session(record.node0)

    found = query_runs(records, open_session, Cancel())
    assert [run.record for run in found] == records
    assert {run.state for run in found} == {"ok"}
    assert sorted(asked) == sorted(opened) == ["node0", "node1", "node2"]


def test_final_state_of_a_followed_run_is_known_without_node0(tmp_path: Path) -> None:
    host = Host("node0", "node0")
    names = ("ended", "left", "never", "stopped")
    records = [run_record(name, host, "/home/me/.ipexctl", sys.executable) for name in names]
    save_final_status(tmp_path / "stopped", read_status({"state": "stopped", "exit_code": 143}))
    for name, state in (("ended", "failed"), ("left", "running")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "status.json").write_text(json.dumps({"state": state, "exit_code": 3}))

    def open_session(record: RunRecord) -> LocalSession:
        raise Unreachable(f"no answer from {record.node0.name}", "look")

    found = with_copies(query_runs(records, open_session, Cancel()), tmp_path)
    assert [run.state for run in found] == ["failed", "unknown", "unknown", "stopped"]
    assert not (tmp_path / "stopped" / "status.json").exists(), "it has no output"
    assert all("no answer" in run.reason for run in found)


def test_fix_names_no_option_that_ps_lacks() -> None:
    records = [run_record("a", Host("node0", "node0"), "/home/me/.ipexctl", sys.executable)]
    refused = Unreachable("REASON", "FIX?", option="--option gives it longer")

    def open_session(_: RunRecord) -> LocalSession:
        raise refused

    (run,) = query_runs(records, open_session, Cancel())
    assert run.fix == "FIX?"
    assert refused.fix == "FIX? --option gives it longer"


def test_the_end_of_a_run_that_no_call_followed_is_saved_for_its_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = dict[str, str | None]()
    for state in ("failed", "running"):
        document: dict[str, Any] = {
            "state": state,
            "supervisor": {},
            "ranks": [],
            "has_checkpoint": True,
            "exit_code": 3,
        }
        rundir = tmp_path / "home/runs" / state
        rundir.mkdir(parents=True)
        (rundir / "status.json").write_text(json.dumps(document))
        record = run_record(state, Host("localhost", "localhost"), str(tmp_path / "home"), sys.executable)
        note_end(record, CallWatcher(Cancel()))
        status = read_final_status(RunRegistry().directory / state)
        found[state] = status and status.state
        assert status is None or status.has_checkpoint
    away = run_record("away", Host("nowhere", "nowhere.invalid"), "/h", sys.executable)
    note_end(away, CallWatcher(Cancel()))
    assert found["failed"] == "failed"
    assert found["running"] != "running"

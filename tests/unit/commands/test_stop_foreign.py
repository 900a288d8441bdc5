"""What `stop` refuses: a run of someone else, and a last run of another project."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.api.known_runs import CallWatcher, stop
from ipexctl.commands.stop_command import refuse_last
from ipexctl.errors import UserError
from ipexctl.homes.registry import RunRecord, RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.node.common.plan import RunBy
from ipexctl.option_declaration import CallOptions
from ipexctl.remote.caller import caller_here, identify_caller
from ipexctl.remote.cancel import Cancel
from ipexctl.run.find_run import OwnRuns
from record_helpers import run_record

HERE, OTHER = caller_here(), RunBy("ann", "elsewhere")
RENAMED = HERE._replace(user="me-before", host="another-name")
RUN = run_record("train-1", Host("node1", "10.0.0.1"), "/h", "/usr/bin/python3", "train.py")


def record(by: RunBy | None, project: Path, *, is_kept: bool = True) -> RunRecord:
    plan = RUN.plan._replace(by=by)
    return replace(RUN, source=plan, project=str(project), is_kept=is_kept, options=CallOptions(" -H team"))


@pytest.mark.parametrize(
    ("by", "project", "word", "is_refused"),
    [
        (HERE, "p", "last", False),
        (None, "p", "last", False),  # IPEXCTL_ANONYMOUS=1, or a record of an older version
        (OTHER, "p", "last", False),  # machines with one home
        (RENAMED, "p", "last", False),
        (OTHER, "p", "train-1", False),
        (HERE, "q", "last:all", True),
        (HERE, "q", "train-1", False),
        (HERE, "p", "last:all", False),
    ],
)
def test_the_last_run_is_stopped_only_if_it_is_of_this_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: RunBy | None, project: str, word: str, is_refused: bool
) -> None:
    (tmp_path / "p").mkdir()
    monkeypatch.chdir(tmp_path / "p")
    found = record(by, tmp_path / project)
    assert found.is_own
    if not is_refused:
        refuse_last(found, word)
        return
    with pytest.raises(UserError) as caught:
        refuse_last(found, word)
    assert caught.value.fix == "ipexctl stop train-1"
    assert f"{tmp_path}/{project}" in caught.value.message


@pytest.mark.parametrize("by", [HERE, RENAMED])
def test_a_run_of_ones_records_is_ones_own_by_whatever_way_it_is_named(tmp_path: Path, by: RunBy) -> None:
    assert record(by, tmp_path, is_kept=False).is_own


@pytest.mark.parametrize("by", [OTHER, None])
def test_a_run_that_the_records_have_is_ones_own_on_its_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: RunBy | None
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    RunRegistry().save(record(by, tmp_path))
    assert record(by, tmp_path, is_kept=False).is_own


def test_the_records_keep_their_name_when_host_and_account_change_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = tmp_path / "machine-id"
    machine.write_text("3d12\n")
    monkeypatch.setattr("ipexctl.remote.caller._MACHINE_ID", str(machine))
    here = caller_here()
    monkeypatch.setenv("LOGNAME", "another")
    names = os.uname()
    monkeypatch.setattr("ipexctl.remote.caller.os.uname", lambda: os.uname_result(("Linux", "other", *names[2:])))
    assert caller_here() == here._replace(user="another", host="other")
    machine.write_text("9f3a\n")
    assert caller_here().records != here.records


@pytest.mark.parametrize("by", [HERE._replace(records="another"), OTHER, None])
def test_a_run_that_was_found_on_hosts_needs_force(tmp_path: Path, by: RunBy | None) -> None:
    found = record(by, tmp_path, is_kept=False)
    with pytest.raises(UserError) as caught:
        stop(found, CallWatcher(Cancel()))
    assert caught.value.fix == "ipexctl stop train-1 -H team --force"


def test_who_begins_a_run_is_kept_unless_the_caller_forbids_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann\x1b[1m")
    by = identify_caller({"IPEXCTL_ANONYMOUS": "0"})
    assert by is not None
    assert by.user == "ann\x1b[1m"
    assert identify_caller({"IPEXCTL_ANONYMOUS": "1"}) is None
    registry = RunRegistry(tmp_path)
    registry.save(record(by, tmp_path))
    assert "is_kept" not in json.loads((tmp_path / "train-1.json").read_text())
    assert OwnRuns.read(registry).records["train-1"].plan.by == by

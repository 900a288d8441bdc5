"""The run registry: lookup by id, prefix or `last`, private files, and damaged or foreign files."""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.errors import UserError
from ipexctl.hosts.host import Host
from ipexctl.run.registry import RunRecord, RunRegistry, new_id
from ipexctl.run.start.project import files_in_other_generations
from message_data import missing

NODE0 = Host("node1", "10.0.0.1", user="me", port=2222, internal="10.1.0.1", ssh_config=Path("/etc/cfg"))
RUN = RunRecord(
    "train-1", NODE0, "/home/me/.ipexctl", "/usr/bin/python3", "train.py", "default", 10.0, 4, ("node1", "b")
)
OTHER = Host("b", "10.0.0.2", identity=Path("/key"), proxy="jump")


@pytest.fixture
def register(tmp_path: Path) -> RunRegistry:
    return RunRegistry(tmp_path / "runs")


def test_record_is_read_back_and_its_file_is_private(register: RunRegistry, tmp_path: Path) -> None:
    register.save(RUN)
    assert register.find("train-1") == RUN
    register.save(replace(RUN, id="train-2", nodes=(NODE0, OTHER)))
    assert register.find("train-2") == replace(RUN, id="train-2", nodes=(NODE0, OTHER))
    path = tmp_path / "runs" / "train-1.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text(json.dumps({**json.loads(path.read_text()), "is_trial": True}))  # as 0.4 wrote a run of autotune
    assert register.find("train-1") == RUN


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_room_is_a_fix_only_where_it_is_used_up(
    number: int, register: RunRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("ipexctl.run.registry.write_atomically", fail)
    with pytest.raises(UserError) as caught:
        register.save(RUN)
    assert "XDG_STATE_HOME" in caught.value.fix
    assert ("room" in caught.value.fix) == (number in (errno.ENOSPC, errno.EDQUOT))


def test_node0_is_found_by_the_full_id_only(register: RunRegistry, tmp_path: Path) -> None:
    register.save(RUN)
    (tmp_path / "runs" / "copy.json").write_text((tmp_path / "runs" / "train-1.json").read_text())
    assert register.node0_of("train-1") == NODE0
    assert [register.node0_of(run) for run in ("train", "last", "copy", "nosuch")] == [None] * 4


def test_last_is_the_newest_run_and_prefixes_must_be_unique(register: RunRegistry) -> None:
    for number, started in ((12, 30.0), (2, 40.0), (1, 20.0)):
        register.save(replace(RUN, id=f"train-{number}", started=started))
    assert [record.id for record in register.all()] == ["train-1", "train-12", "train-2"]
    assert register.find("last").id == "train-2"
    assert register.find("train-1").id == "train-1"  # whole, although another begins so
    assert register.find("train-12").id == "train-12"
    with pytest.raises(UserError, match=r"3.*'tr'"):
        register.find("tr")
    with pytest.raises(UserError, match="'x'"):
        register.find("x")


def test_damaged_and_foreign_files_are_ignored(register: RunRegistry, tmp_path: Path) -> None:
    register.save(RUN)
    for name, text in (("a.json", "{"), ("b.json", "[]"), ("c.json", '{"schema": "ipexctl.record/1"}'), ("d.txt", "")):
        (tmp_path / "runs" / name).write_text(text)
    (tmp_path / "runs" / "copy.json").write_text((tmp_path / "runs" / "train-1.json").read_text())
    assert register.all() == [RUN]
    assert [each.id for each in register.read_records()[1]] == ["a", "b", "c"]


def test_lookup_of_a_run_with_a_damaged_record_is_an_error(register: RunRegistry, tmp_path: Path) -> None:
    register.save(RUN)
    (tmp_path / "runs" / "train-2.json").write_text("{")
    for word in ("last", "train-2", "train", "tr"):
        with pytest.raises(UserError, match=r"train-2.*train-2\.json: expecting") as caught:
            register.find(word)
        assert f"mv {tmp_path}" in caught.value.fix
        assert register.knows(word)
    assert register.find("train-1") == RUN
    assert not register.knows("x")


def test_ids_begin_with_the_script_name_and_are_unique() -> None:
    ids = {new_id("some dir/Träin it.py", 0.0) for _ in range(50)}
    assert len(ids) > 45
    assert all(each.startswith("Tr_in_it-") and each.replace("-", "").replace("_", "").isalnum() for each in ids)
    assert new_id("../..", 0.0).startswith("run-")


def test_note_names_files_in_another_generation_of_the_tree() -> None:
    code = "/home/me/.ipexctl/code"
    beside = replace(RUN, id="train-2", cwd=f"{code}/p-1.gen2/sub")
    said = files_in_other_generations(f"{code}/p-1", "sub", [RUN, beside])
    assert missing(said, f"{code}/p-1 train-2 {beside.cwd}") == []
    assert "ipexctl fetch train-2:. ." in said
    assert files_in_other_generations(f"{code}/p-1.gen2", "sub", [beside]) == ""
    assert files_in_other_generations(f"{code}/p-1.gen3", "sub", [beside]) == "", "sync says it when it goes beside"
    assert files_in_other_generations(f"{code}/p-2", "sub", [beside]) == "", "another project"
    assert files_in_other_generations(f"{code}/p-1", "sub", [beside, replace(beside, cwd=f"{code}/p-1/sub")]) == ""
    assert files_in_other_generations(f"{code}/p-1", ".", []) == ""

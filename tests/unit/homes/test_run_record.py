"""The run registry: lookup by id, prefix or `last`, private files, and damaged or foreign files."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.errors import UserError
from ipexctl.homes.registry import RunRecord, RunRegistry, new_id
from ipexctl.hosts.host import Host
from ipexctl.option_declaration import TypedCall
from ipexctl.projects.script_file import ProjectLocation
from ipexctl.run.find_run import OwnRuns
from ipexctl.run.start.start_project import files_in_other_generations
from message_data import missing
from record_helpers import run_record

NODE0 = Host("node1", "10.0.0.1", user="me", port=2222, internal="10.1.0.1", ssh_config=Path("/etc/cfg"))
RUN = run_record(
    *("train-1", NODE0, "/home/me/.ipexctl", "/usr/bin/python3", "train.py"),
    env="default",
    started=10.0,
    world_size=4,
    hosts=("node1", "b"),
    project="/p",
)
BELOW = ProjectLocation(Path("/p"), "sub", ())
OTHER = Host("b", "10.0.0.2", identity=Path("/key"), proxy="jump")


def find(register: RunRegistry, word: str) -> RunRecord:
    own = OwnRuns.read(register)
    if (record := own.choose(word)) is None:
        raise own.error(word, None, hosts_first=False)
    return record


def read(register: RunRegistry, run: str) -> RunRecord:
    """With the plan that its file has."""
    found = find(register, run)
    return replace(found, source=found.plan)


@pytest.fixture
def register(tmp_path: Path) -> RunRegistry:
    return RunRegistry(tmp_path / "runs")


def test_record_is_read_back_and_its_file_is_private(register: RunRegistry, tmp_path: Path) -> None:
    register.save(RUN)
    assert read(register, "train-1") == RUN
    more = replace(RUN, id="train-2", nodes=(NODE0, OTHER), typed=TypedCall(("-n", "4"), ("train.py",), "/p"))
    register.save(more)
    assert read(register, "train-2") == more
    for name in ("train-1.json", "train-1/plan.json"):
        assert stat.S_IMODE((tmp_path / "runs" / name).stat().st_mode) == 0o600
    register.remove("train-1")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["last-sequence", "train-2", "train-2.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"id": 3}'])
def test_a_damaged_plan_does_not_hide_its_run(register: RunRegistry, tmp_path: Path, text: str) -> None:
    register.save(RUN)
    (tmp_path / "runs/train-1/plan.json").write_text(text)
    found = find(register, "train-1")
    assert (found.node0, found.hosts, found.plan.world_size, found.leaders) == (NODE0, (), 0, ("node1",))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_space_is_a_fix_only_where_it_is_used_up(
    number: int, register: RunRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("ipexctl.homes.registry.write_atomically", fail)
    with pytest.raises(UserError) as caught:
        register.save(RUN)
    assert "XDG_STATE_HOME" in caught.value.fix
    assert ("free some space" in caught.value.fix) == (number in (errno.ENOSPC, errno.EDQUOT))


def test_node0_is_found_by_the_full_id_only(register: RunRegistry, tmp_path: Path) -> None:
    register.save(RUN)
    (tmp_path / "runs" / "copy.json").write_text((tmp_path / "runs" / "train-1.json").read_text())
    assert register.node0_of("train-1") == NODE0
    assert [register.node0_of(run) for run in ("train", "last", "copy", "nosuch")] == [None] * 4


def test_last_is_the_newest_run_and_parts_of_ids_must_be_unique(register: RunRegistry) -> None:
    for number in (1, 12, 2):
        register.save(replace(RUN, id=f"train-{number}"))
    assert [record.id for record in register.all()] == ["train-1", "train-12", "train-2"]
    assert find(register, "last:all").id == "train-2"
    assert find(register, "train-1").id == "train-1"  # whole, although another begins so
    assert find(register, "train-12").id == "train-12"
    with pytest.raises(UserError, match=r"3.*'tr'"):
        find(register, "tr")
    assert find(register, "n-2").id == "train-2"
    assert find(register, "train-2").id == "train-2"
    with pytest.raises(UserError, match="'x'"):
        find(register, "x")


def test_the_order_of_runs_does_not_depend_on_the_clock(register: RunRegistry, tmp_path: Path) -> None:
    """The clock was once ahead by a day, as after a boot without a network."""
    for run, started in (("train-1", 1e9 + 86400), ("train-2", 1e9), ("train-3", 1e9 + 60)):
        register.save(replace(RUN, id=run, started=started))
    assert [each.id for each in register.all()] == ["train-1", "train-2", "train-3"]
    assert find(register, "last:all").id == "train-3"
    register.save(replace(RUN, id="train-2", host_keys="off"))  # saved again
    assert find(register, "last:all").id == "train-3"
    register.remove("train-3")
    (tmp_path / "runs/last-sequence").unlink()
    register.save(replace(RUN, id="train-4", started=1.0))
    assert find(register, "last:all").id == "train-4"
    newest = tmp_path / "runs/train-4.json"
    newest.write_text("{")
    os.utime(newest, (1, 1))
    with pytest.raises(UserError, match="train-4"):
        find(register, "last:all")


@pytest.mark.parametrize(
    ("directory", "last"),
    [
        ("a", "a-2"),
        ("a/lib", "a-2"),  # below a marked directory
        ("a/own", None),  # a project of its own
        ("b", "b-1"),
        ("typed", "a-2"),  # the call was typed here
        ("other", None),
    ],
)
def test_last_is_the_last_run_of_the_project_here(
    register: RunRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str, last: str | None
) -> None:
    for name in ("a/lib", "a/own", "b/.git", "typed", "other"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("a", "a/own"):
        (tmp_path / name / "ipexctl.toml").touch()
    typed = TypedCall((), ("train.py",), str(tmp_path / "typed"))
    for run, project, started in (("a-1", "a", 1.0), ("a-2", "a", 3.0), ("b-1", "b", 2.0), ("c-1", "c", 4.0)):
        record = replace(RUN, id=run, project=str(tmp_path / project), started=started)
        register.save(replace(record, typed=typed) if run == "a-2" else record)
    monkeypatch.chdir(tmp_path / directory)
    assert find(register, "last:all").id == "c-1"
    if last is not None:
        assert find(register, "last").id == last
        return
    with pytest.raises(UserError) as caught:
        find(register, "last")
    assert "c-1" in caught.value.fix


def test_damaged_and_foreign_files_are_ignored(register: RunRegistry, tmp_path: Path) -> None:
    register.save(RUN)
    for name, text in (("a.json", "{"), ("b.json", "[]"), ("c.json", '{"schema": "ipexctl.record/1"}'), ("d.txt", "")):
        (tmp_path / "runs" / name).write_text(text)
    (tmp_path / "runs" / "copy.json").write_text((tmp_path / "runs" / "train-1.json").read_text())
    assert [each.id for each in register.all()] == [RUN.id]
    assert [each.id for each in register.read_records()[1]] == ["a", "b", "c"]


def test_lookup_of_a_run_with_a_damaged_record_is_an_error(register: RunRegistry, tmp_path: Path) -> None:
    register.save(RUN)
    (tmp_path / "runs" / "train-2.json").write_text("{")
    for word in ("last", "train-2", "n-2"):
        with pytest.raises(UserError, match=r"train-2.*train-2\.json: expecting") as caught:
            find(register, word)
        assert f"mv {tmp_path}" in caught.value.fix
    with pytest.raises(UserError, match="2 runs here have 'tr' in their id: train-1, train-2"):
        find(register, "tr")
    assert read(register, "train-1") == RUN


def test_ids_begin_with_the_script_name_and_are_unique() -> None:
    ids = {new_id("some dir/Träin it.py", 0.0) for _ in range(50)}
    assert len(ids) > 45
    assert all(each.startswith("Tr_in_it-") and each.replace("-", "").replace("_", "").isalnum() for each in ids)
    assert new_id("../..", 0.0).startswith("run-")


def test_note_names_files_in_another_generation_of_the_tree() -> None:
    code = "/home/me/.ipexctl/code"

    def run_in(cwd: str) -> RunRecord:
        return replace(RUN, id="train-2", source=RUN.plan._replace(cwd=cwd))

    beside = run_in(f"{code}/p-1.gen2/sub")
    said = files_in_other_generations(f"{code}/p-1", BELOW, [RUN, beside])
    assert missing(said, f"{code}/p-1 train-2 {beside.plan.cwd}") == []
    assert "ipexctl fetch train-2:. ." in said
    assert files_in_other_generations(f"{code}/p-1.gen2", BELOW, [beside]) == ""
    assert files_in_other_generations(f"{code}/p-1.gen3", BELOW, [beside]) == "", "sync says it when it goes beside"
    assert files_in_other_generations(f"{code}/p-2", BELOW, [beside]) == "", "another tree"
    assert files_in_other_generations(f"{code}/p-1", BELOW, [replace(beside, project="/q")]) == "", "another project"
    assert files_in_other_generations(f"{code}/p-1", BELOW, [beside, run_in(f"{code}/p-1/sub")]) == ""
    assert files_in_other_generations(f"{code}/p-1", replace(BELOW, subdirectory="."), []) == ""

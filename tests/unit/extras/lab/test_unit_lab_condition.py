"""The condition of a lab, and which labs `down` removes."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.extras.lab import state
from ipexctl.extras.lab.command import condition_text, show_labs
from ipexctl.extras.lab.plan import LabSpec, plan_lab
from ipexctl.extras.lab.state import FoundLab, Lab, from_json, labs_to_remove, to_json
from ipexctl.node.common.processes import ProcessIdentity, own_identity
from message_data import missing

down_module: Any = importlib.import_module("ipexctl.extras.lab.down")  # the package has a function of that name
MAKER = ProcessIdentity(4711, 1, "here", "boot")


def lab(name: str = "a", *, ready: bool = True, temporary: bool = False, maker: ProcessIdentity | None = MAKER) -> Lab:
    planned = plan_lab(LabSpec(hosts=2, temporary=temporary), name, 2)
    return replace(planned, ready=ready, maker=maker)


def found(name: str = "a", *, gone: bool = False, **fields: Any) -> FoundLab:
    return FoundLab(name, lab(name, **fields), gone)


UP = found("up", gone=True)
CONDITIONS = {
    "up": (UP, False, None),
    "up, made by an older version": (found(maker=None), False, None),
    "up, and its maker still runs": (found(), False, None),
    "busy": (found("busy", ready=False), False, 4711),
    "cut-short": (found("cut", ready=False, gone=True), True, None),
    "cut-short by an older version": (found(ready=False, maker=None), False, None),
    "up and temporary": (found("held", temporary=True), False, 4711),
    "abandoned": (found("lost", temporary=True, gone=True), True, None),
    "unreadable": (FoundLab("x", None), False, None),
}


@pytest.mark.parametrize("case", CONDITIONS)
def test_only_labs_whose_process_is_gone_are_remains(case: str) -> None:
    item, is_remains, holder = CONDITIONS[case]
    assert (item.condition, item.is_remains, item.holder) == (case.split(",")[0].split(" ")[0], is_remains, holder)


def named(*cases: str) -> list[FoundLab]:
    return [CONDITIONS[case][0] for case in cases]


@pytest.mark.parametrize(
    ("labs", "removed"),
    [
        ((), ()),
        (("up",), ("up",)),
        (("up", "cut-short", "abandoned"), ("cut", "lost", "up")),
        (("cut-short", "abandoned"), ("cut", "lost")),
        (("unreadable",), ("x",)),
    ],
)
def test_down_without_a_name_removes_the_only_lab_and_remains(labs: tuple[str, ...], removed: tuple[str, ...]) -> None:
    assert labs_to_remove(named(*labs), None, remove_all=False) == removed


def test_down_with_a_name_or_all() -> None:
    labs = named("up", "busy", "abandoned")
    assert labs_to_remove(labs, "busy", remove_all=False) == ("busy",)
    assert labs_to_remove(labs, None, remove_all=True) == ("busy", "lost", "up")


def test_record_keeps_the_maker_and_older_records_have_none() -> None:
    made = lab(temporary=True)
    assert from_json(to_json(made)) == made
    old = json.loads(to_json(made))
    del old["maker"], old["temporary"]
    assert from_json(json.dumps(old)) == replace(made, maker=None, temporary=False)
    with pytest.raises(ValueError, match="pid"):
        from_json(json.dumps({**old, "maker": {"pid": "1"}}))


@pytest.fixture
def labs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """A directory of labs without namespaces; a lab's record as given."""
    monkeypatch.setattr(state, "LABS", tmp_path)
    monkeypatch.setattr(down_module.system, "namespaces", lambda: ())
    monkeypatch.setattr(down_module.system, "links", lambda: ())
    monkeypatch.setattr(down_module.system, "require", lambda: None)

    def record(name: str, **fields: Any) -> Path:
        (tmp_path / name).mkdir()
        state.save(lab(name, **fields))
        return tmp_path / name

    return record


def test_labs_are_found_in_every_condition(labs: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    me = own_identity()
    labs("done", maker=me._replace(start=1))
    labs("mine", temporary=True, maker=me)
    labs("killed", ready=False, maker=me._replace(start=1))
    labs("rebooted", temporary=True, maker=me._replace(boot="another"))
    labs("remote", ready=False, maker=me._replace(machine="elsewhere", start=1))
    labs("damaged").joinpath(state.RECORD).write_text("{")
    by_name = {item.name: item for item in down_module.find_labs()}
    assert {name: item.condition for name, item in by_name.items()} == {
        "damaged": "unreadable",
        "done": "up",
        "killed": "cut-short",
        "mine": "up",
        "rebooted": "abandoned",
        "remote": "busy",
    }
    assert {name for name, item in by_name.items() if item.is_remains} == {"killed", "rebooted"}
    show_labs(list(by_name.values()), json=True)
    document = json.loads(capsys.readouterr().out)
    assert {item["name"]: item["process"] for item in document["labs"]} == {
        **dict.fromkeys(by_name), "mine": os.getpid(), "remote": os.getpid()
    }  # fmt: skip
    show_labs(list(by_name.values()), json=False)
    shown = capsys.readouterr()
    assert missing(shown.out, " ".join(by_name)) == []
    assert [name for name in ("killed", "rebooted", "damaged") if f"ipexctl lab down {name}" not in shown.err] == []


def test_only_temporary_labs_are_removed_unasked(labs: Callable[..., Path]) -> None:
    gone = own_identity()._replace(start=1)
    kept = [
        labs("killed", ready=False, maker=gone),
        labs("done", maker=gone),
        labs("mine", temporary=True, maker=own_identity()),
        labs("old", ready=False, maker=None),
    ]
    remains = [
        labs("half", temporary=True, ready=False, maker=gone),
        labs("lost", temporary=True, maker=gone),
    ]
    assert down_module.remove_abandoned().labs == ("half", "lost")
    assert [path.exists() for path in (*kept, *remains)] == [True] * 4 + [False] * 2


def test_new_lab_with_the_name_of_remains_is_not_removed(
    labs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the decision and the removal, somebody removes the remains and makes another lab of that name."""
    gone = own_identity()._replace(start=1)
    path = labs("lab", temporary=True, maker=gone)
    decided = down_module.find_labs()
    state.save(lab("lab", temporary=True, maker=own_identity()))
    monkeypatch.setattr(down_module, "find_labs", lambda: decided)
    assert down_module.remove_abandoned().labs == ()
    assert path.exists()


def test_interrupted_removal_stays_listed(labs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = labs("lab", maker=None)
    (path / "node1").mkdir()
    (path / "a-file").touch()

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(down_module.shutil, "rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        down_module.down("lab")
    (left,) = down_module.find_labs()
    assert (left.condition, left.holder) == ("busy", os.getpid()), "remains, once this process has ended"
    monkeypatch.undo()


def test_conditions_are_told_with_what_to_type() -> None:
    told = {case: condition_text(item) for case, (item, _, _) in CONDITIONS.items()}
    assert told["up"] == told["up, made by an older version"] == ("", "")
    for case in ("cut-short", "abandoned", "unreadable"):
        assert f"ipexctl lab down {CONDITIONS[case][0].name}" in told[case][1]
    assert {case for case, (_, fix) in told.items() if fix} == {
        "cut-short", "cut-short by an older version", "abandoned", "unreadable"
    }  # fmt: skip
    assert "4711" in told["busy"][0]
    assert "4711" in told["abandoned"][0]

"""What a line of trl lacks is said before its start: a model, data, a version that does what the line needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launch_helpers import STOCK, cpu, machine, plan, request

from ipexctl.node.common.plan import Plan
from ipexctl.node.hub.hub_check import FoundHub
from ipexctl.run.start.start_notes import DRY_RUN_NOTES, collect_notes, library_notes, missing_notes
from ipexctl.run.start.start_request import StartError
from message_data import missing

CUT_OFF = "no answer in 5 s"
NAMES = ("org/m", "./m", "/m", "data")
LACKS = FoundHub(CUT_OFF, lacking=NAMES)


def notes(options: dict[str, str], *hubs: FoundHub, argv: tuple[str, ...] = ()) -> list[str]:
    given: dict[str, Any] = {
        "kind": "module",
        "command": ("trl.scripts.sft", *argv),
        "hub": {f"node{at}": hub for at, hub in enumerate(hubs, 1)},
        "of_tool": options,
    }
    machines = [machine(cpu(8), at) for at in range(1, len(hubs) + 1)]
    return list(missing_notes(request(*machines, **given), plan(*machines, **given)))


@pytest.mark.parametrize(
    ("name", "hubs", "words"),
    [
        ("org/m", (LACKS, LACKS), "org/m model node[1-2] no answer in 5 s `ipexctl push hf:org/m`"),
        ("org/m", (FoundHub(CUT_OFF), LACKS), "node2 hf:org/m"),
        ("./m", (FoundHub(lacking=NAMES), LACKS), "./m model node[1-2] fails if it does not make it"),
        ("/m", (LACKS, LACKS), "/m node[1-2]"),  # in a file of settings
    ],
)
def test_a_model_that_is_nowhere_is_said_with_the_line_that_brings_it(
    name: str, hubs: tuple[FoundHub, ...], words: str
) -> None:
    (note,) = notes({"model_name_or_path": name}, *hubs)
    assert missing(note, words.replace("`", "")) == []


def test_a_model_outside_the_project_is_said_with_the_line_that_copies_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m").mkdir()
    monkeypatch.setattr("launch_helpers.ROOT", tmp_path / "p")
    (note,) = notes({"model_name_or_path": "../m"}, FoundHub(lacking=("../m",)))
    push = f"ipexctl push {tmp_path}/m /home/me/m; then: --model_name_or_path /home/me/m"
    assert push in note


def test_data_that_is_nowhere_is_said_with_both_ways() -> None:
    (note,) = notes({"dataset_name": "data"}, LACKS)
    assert missing(note, "data set node1 ipexctl push hf-dataset:data --dataset_name make data/ in the project") == []


@pytest.mark.parametrize(
    ("options", "hubs", "argv"),
    [
        ({}, (LACKS,), ()),
        ({"model_name_or_path": "org/m"}, (FoundHub(lacking=NAMES),), ()),  # the hub has it
        ({"model_name_or_path": "org/m"}, (FoundHub(CUT_OFF),), ()),
        ({"model_name_or_path": "/m"}, (LACKS,), ("--model_name_or_path", "/m")),  # `path_checks.py` says it
        ({"dataset_name": "other"}, (LACKS,), ()),
    ],
)
def test_what_is_there_or_said_elsewhere_is_not_said(
    options: dict[str, str], hubs: tuple[FoundHub, ...], argv: tuple[str, ...]
) -> None:
    assert notes(options, *hubs, argv=argv) == []


def planned(version: str, *words: str, **options: Any) -> tuple[Any, Plan]:
    env = replace(STOCK, packages={**STOCK.packages, "trl": version})
    given: dict[str, Any] = {"kind": "module", "command": ("trl.scripts.sft", *words), "env": env, **options}
    return request(machine(cpu(8)), **given), plan(machine(cpu(8)), **given)


SFT = ("--output_dir", "out", "--resume_from_checkpoint", "out")
RESUMED = {"resumed": ("sft-1",)}


@pytest.mark.parametrize(
    ("version", "words", "changes", "fix"),
    [
        ("0.22.2", ("--dtype", "bfloat16"), {}, "ipexctl install --with 'trl>=0.23'"),
        ("0.23.0", ("--dtype", "bfloat16"), {}, ""),
        ("0.20.0", ("--torch_dtype", "bfloat16"), {}, ""),
        ("", ("--dtype", "bfloat16"), {}, ""),
        ("1.14.0", SFT, RESUMED, "ipexctl install --with 'trl>=1.14.1'"),
        ("1.13.0", SFT, {**RESUMED, "python": "/v/bin/python"}, "/v/bin/python -m pip install 'trl>=1.14.1'"),
        ("1.14.1", SFT, RESUMED, ""),
        ("", SFT, RESUMED, ""),
        ("1.13.0", SFT[:2], RESUMED, ""),
        ("1.13.0", SFT, {}, ""),
    ],
)
def test_a_trl_that_would_fail_or_overwrite_is_refused(
    version: str, words: tuple[str, ...], changes: dict[str, Any], fix: str
) -> None:
    context, found = planned(version, *words, **changes)
    if not fix:
        assert list(library_notes(context, found)) == []
        return
    with pytest.raises(StartError) as refused:
        list(library_notes(context, found))
    assert refused.value.failure.fix == fix
    assert refused.value.failure.exit_code == 2
    assert version in refused.value.failure.reason


def test_a_trl_that_starts_over_is_told_where_a_checkpoint_is_to_be_resumed() -> None:
    def told(version: str, **options: Any) -> list[str]:
        return [note for note in collect_notes(DRY_RUN_NOTES, *planned(version, **options)) if "checkpoint" in note]

    (note,) = told("1.13.0", checkpoint="out")
    assert missing(note, "trl 1.13.0 starts over ipexctl install --with 'trl>=1.14.1'") == []
    assert told("1.16.0", checkpoint="out") == told("1.13.0") == told("", checkpoint="out") == []

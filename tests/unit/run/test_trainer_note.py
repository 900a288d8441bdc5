"""A note about the loss of a Trainer: for the versions, scripts and calls that it is true for, and no others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from case_table import case_table
from ipexctl.launch.run_context import RankEnv
from ipexctl.node.common.run_options import RunOptions
from ipexctl.projects.script_file import ProjectLocation, ScriptFile
from ipexctl.run.start.script_reading import read_script
from ipexctl.run.start.start_notes import DRY_RUN_NOTES, collect_notes, library_notes
from message_data import missing
from plan_helpers import spec_of

EXAMPLE = Path(__file__).parents[3] / "examples" / "trainer_bert.py"


@case_table
def test_scripts_with_a_trainer_and_without_the_setting_are_found(source: str, uses_it: bool) -> None:
    assert read_script("train.py", source.encode())[0].uses_trainer == uses_it


@case_table
def test_scripts_whose_ranks_meet_by_accelerate_are_found(source: str, uses_it: bool) -> None:
    assert read_script("train.py", source.encode())[0].uses_accelerate == uses_it


def test_the_example_of_the_trainer_gets_no_note() -> None:
    assert not read_script("trainer_bert.py", EXAMPLE.read_bytes())[0].uses_trainer


def note(version: str = "4.54.0", ranks: int = 2, *argv: str, uses_it: bool = True) -> str:
    packages = {"transformers": version} if version else {}
    asked, script = RunOptions(argv=("train.py", *argv)), ScriptFile("train.py", uses_trainer=uses_it)
    spec = SimpleNamespace(project=SimpleNamespace(script=script))
    context: Any = SimpleNamespace(asked=asked, spec=spec, env=RankEnv("python3", packages=packages))
    plan: Any = SimpleNamespace(world_size=ranks, first_world_size=ranks, backend="gloo", hosts=(), asked=RunOptions())
    return "".join(library_notes(context, plan))


@pytest.mark.parametrize("version", ["4.54.0", "4.56.2", "5.0.0", "5.23.0"])
def test_note_has_the_version_the_ranks_and_the_setting(version: str) -> None:
    assert missing(note(version, 8), f"{version} 8 average_tokens_across_devices=False") == []


def test_no_note_where_it_is_not_true() -> None:
    assert note("4.53.3") == ""
    assert note("4.46.3") == ""
    assert note("") == ""
    assert note(ranks=1) == ""
    assert note(uses_it=False) == ""
    assert note("5.23.0", 2, "--average_tokens_across_devices", "False") == ""
    assert note("5.23.0", 2, "--average_tokens_across_devices=True") == ""


@pytest.mark.parametrize(("is_installed", "ranks", "count"), [(True, 4, 1), (True, 1, 0), (False, 4, 1)])
def test_run_prints_one_note_for_an_environment_and_for_a_planned_one(
    *, is_installed: bool, ranks: int, count: int
) -> None:
    env = RankEnv("/e/bin/python", packages={"transformers": "5.23.0"}, is_installed=is_installed)
    plan: Any = SimpleNamespace(world_size=ranks, first_world_size=ranks, backend="gloo", hosts=(), asked=RunOptions())
    script = read_script("train.py", b"from transformers import Trainer")[0]
    project = ProjectLocation(Path("/p"), ".", ("train.py",), script)
    spec = spec_of(project=project)
    context: Any = SimpleNamespace(env=env, spec=spec, asked=spec.asked, hub={}, options={})
    assert len(list(collect_notes(DRY_RUN_NOTES, context, plan))) == count


@pytest.mark.parametrize(
    ("version", "ranks", "options", "is_told"),
    [
        ("5.17.0", 2, {"checkpoint": "out"}, True),
        ("5.17.0", 2, {"resumed": ("train-1",)}, True),
        ("5.17.0", 2, {}, False),
        ("5.17.0", 1, {"checkpoint": "out"}, False),
        ("5.18.0", 2, {"checkpoint": "out"}, False),
    ],
)
def test_a_trainer_that_cannot_resume_is_told_before_the_first_start(
    version: str, ranks: int, options: dict[str, Any], is_told: bool
) -> None:
    packages = {"transformers": version, "accelerate": "1.15.0"}
    env = RankEnv("/e/bin/python", packages=packages)
    plan = SimpleNamespace(world_size=ranks, first_world_size=ranks, backend="gloo", hosts=(), asked=RunOptions())
    script = read_script("train.py", b"import transformers\ntransformers.Trainer(average_tokens_across_devices=False)")[
        0
    ]
    spec = spec_of(project=ProjectLocation(Path("/p"), ".", ("train.py",), script), **options)
    context: Any = SimpleNamespace(env=env, spec=spec, asked=spec.asked, hub={}, options={})
    notes = collect_notes(DRY_RUN_NOTES, context, plan)  # type: ignore[arg-type]
    said = "transformers 5.17.0 cannot resume --with 'transformers>=5.18'"
    assert [missing(note, said) for note in notes] == ([[]] if is_told else [])

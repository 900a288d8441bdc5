"""Notes before a script resumes: hosts with different checkpoints, and versions that cannot load one."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from ipexctl.run.start.start_notes import (
    HostCheckpoints,
    ResumeFlag,
    find_resume_flag,
    parse_checkpoints,
    resume_note,
    search_script,
    trainer_resume_note,
)


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("--resume_from_checkpoint True", ResumeFlag("--resume_from_checkpoint")),
        ("--resume_from_checkpoint=out/checkpoint-60/", ResumeFlag("--resume_from_checkpoint", "out/checkpoint-60")),
        ("--resume-from-checkpoint latest --lr 1", ResumeFlag("--resume-from-checkpoint")),
        ("--lr 1 --resume --epochs 3", ResumeFlag("--resume")),
        ("--resume out/last.pt", ResumeFlag("--resume", "out/last.pt")),
        ("--auto-resume", ResumeFlag("--auto-resume")),
        ("--ckpt_path last", ResumeFlag("--ckpt_path")),
        ("--resume_from_checkpoint False", None),
        ("--resume=no", None),
        ("--no-resume", None),
        ("--resumes 1", None),
        ("resume", None),
        ("", None),
    ],
)
def test_flags_that_make_a_script_resume_are_found(words: str, flag: ResumeFlag | None) -> None:
    assert find_resume_flag(words.split()) == flag


def note(words: str, *hosts: str) -> str:
    """`hosts`: the directories of each; `=`: it has what the flag names."""
    flag = find_resume_flag(words.split())
    assert flag is not None
    found = {
        f"node{number}": HostCheckpoints(frozenset(each.replace("=", "").split()), "=" in each)
        for number, each in enumerate(hosts, 1)
    }
    return resume_note(flag, words.split(), found)


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("--resume", ("out/checkpoint-30 out/checkpoint-9", "out/checkpoint-30")),
        ("--resume", ("", "")),
        ("--resume --output_dir b", ("a/checkpoint-1 b/checkpoint-2", "b/checkpoint-2")),
        ("--resume out/checkpoint-30", ("= out/checkpoint-30 out/checkpoint-60", "= out/checkpoint-30")),
        ("--resume out/last.pt", ("out/checkpoint-30", "")),
    ],
)
def test_hosts_that_agree_get_no_note(words: str, hosts: tuple[str, ...]) -> None:
    assert note(words, *hosts) == ""


def test_search_finds_what_is_in_the_project_and_in_the_directories_of_the_arguments(tmp_path: Path) -> None:
    tree, other = tmp_path / "the tree", tmp_path / "other's"
    for path in ("out/checkpoint-30", "checkpoint-1", "deep/er/checkpoint-9", "named/er/step_2", "out/checkpoint-x"):
        (tree / path).mkdir(parents=True)
    (other / "epoch_3").mkdir(parents=True)
    (tree / "out/checkpoint-99").write_text("no directory")
    argv = ["--resume", "out/checkpoint-30", f"--output_dir={other}", "named/er", "-x", "--lr", "1e-3"]
    flag = find_resume_flag(argv)
    assert flag is not None

    def found(directory: Path) -> HostCheckpoints:
        script = search_script(flag, argv, str(directory))
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return parse_checkpoints(done.stdout)

    assert found(tree) == HostCheckpoints(
        frozenset({"out/checkpoint-30", "checkpoint-1", f"{other}/epoch_3", "named/er/step_2"}), has_path=True
    )
    assert found(tmp_path / "missing") == HostCheckpoints()


@pytest.mark.parametrize(
    ("transformers", "accelerate", "is_noted"),
    [
        ("5.17.0", "1.15.0", True),
        ("4.44.2", "0.32.1", True),
        ("5.17.0", "", True),
        ("5.18.0", "1.15.0", False),
        ("5.24.0", "1.15.0", False),
        ("4.29.2", "0.28.0", False),
        ("", "1.15.0", False),
    ],
)
def test_trainer_that_cannot_resume_on_several_ranks_is_noted(
    transformers: str, accelerate: str, *, is_noted: bool
) -> None:
    packages = {
        name: version for name, version in (("transformers", transformers), ("accelerate", accelerate)) if version
    }
    flag = ResumeFlag("--resume_from_checkpoint")
    said = trainer_resume_note(flag, has_trainer=True, packages=packages, ranks=2)
    assert bool(said) == is_noted
    assert trainer_resume_note(flag, has_trainer=True, packages=packages, ranks=1) == ""
    assert trainer_resume_note(flag, has_trainer=False, packages=packages, ranks=2) == ""
    assert trainer_resume_note(None, has_trainer=True, packages=packages, ranks=2) == ""


def test_search_quotes_what_the_arguments_have() -> None:
    flag = ResumeFlag("--resume", "a'b; touch x")
    script = search_script(flag, ["--resume", flag.path, "$(touch y)"], "/t'ree")
    assert shlex.quote(flag.path) in script
    assert shlex.quote("$(touch y)") in script

"""The help in groups, and the options of torchrun and accelerate."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any

import pytest

from forked_calls import forked_call
from ipexctl.cli.launch_options import PANELS, ScriptCommand
from ipexctl.commands.app import commands, groups, load_command

RUN: Any = load_command("run")
SUBMIT: Any = load_command("submit")
EXPORTS: Any = load_command("export")
PLANNERS = [command for command in EXPORTS.commands.values() if isinstance(command, ScriptCommand)]


def test_each_command_is_in_one_group() -> None:
    counts = Counter(name for commands in groups().values() for name in commands)
    assert set(counts.values()) == {1}
    assert counts.keys() == commands().keys()


def test_each_option_of_run_and_submit_is_in_one_panel() -> None:
    counts = Counter(name for names in PANELS.values() for name in names)
    assert set(counts.values()) == {1}
    assert {param.name for command in (RUN, SUBMIT) for param in command.params} == counts.keys()


@pytest.mark.parametrize("command", [RUN, SUBMIT, *PLANNERS], ids=lambda command: command.name)
def test_the_help_has_every_option(command: Any) -> None:
    text = command.get_full_help(command.make_context("x", ["--", "train.py"]))
    options = [option for param in command.params if param.name != "words" for option in param.opts]
    assert [option for option in options if option not in text] == []


def test_the_help_of_run_has_the_options_that_most_need_and_names_the_rest() -> None:
    context = RUN.make_context("ipexctl run", ["--", "train.py"])
    text, full = RUN.get_help(context), RUN.get_full_help(context)
    options = re.findall(r"^  (?:-\w, )?(--?\w[\w-]*)", text, re.MULTILINE)
    shown = [param.name for param in RUN.get_params(context) if max(param.opts, key=len) in options]
    assert {*shown} == RUN.most_used - {"words"}
    assert 20 <= len(shown) <= 30
    assert text.splitlines()[-1].endswith("ipexctl run --help-all")
    assert len(text.splitlines()) < 80 < len(full.splitlines())


@pytest.mark.parametrize("arguments", [["--help-all"], ["--ppn", "0", "--help-all", "--config", "missing.toml"]])
def test_help_all_shows_every_option_and_starts_nothing(arguments: list[str]) -> None:
    done = forked_call("run", *arguments, cwd=None, env=os.environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--host-keys" in done.stdout


@pytest.mark.parametrize("name", ["why", "run", "install", "lab"])
def test_the_help_has_no_placeholder(name: str) -> None:
    command: Any = load_command(name)
    texts = [command.help or "", *(getattr(param, "help", None) or "" for param in command.params)]
    assert [text for text in texts if "{" in text] == []


def test_help_hides_the_json_option_of_commands_without_json_output() -> None:
    def help_of_json(name: str) -> str:
        command: Any = load_command(name)
        param = next(param for param in command.params if param.name == "json")
        return "" if param.hidden else str(param.help)

    assert "--dry-run" in help_of_json("run")
    assert [help_of_json("stop"), help_of_json("attach")] == ["", ""]
    assert "--dry-run" not in help_of_json("why")


@pytest.mark.parametrize(
    ("argument", "name"),
    [("--nproc-per-node", "ppn"), ("--nproc_per_node", "ppn"), ("--num_processes", "n"), ("--num-processes", "n")],
)
def test_options_of_torchrun_and_accelerate_are_accepted(argument: str, name: str) -> None:
    for arguments in ([f"{argument}=3"], [argument, "3"], ["--ppn", "2", argument, "3"]):
        params = RUN.make_context("run", [*arguments, "train.py", argument, "5"]).params
        assert params[name] == 3
        assert list(params["words"]) == ["train.py", argument, "5"]

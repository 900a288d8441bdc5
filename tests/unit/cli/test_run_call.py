"""The call of `run`: options behind the script go to the script; a run that is interrupted early blames no host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from ipexctl.cli.app import app
from ipexctl.cli.interrupt import Interrupt
from ipexctl.cli.launch_options import note_on_arguments
from ipexctl.cli.run import RunCall
from ipexctl.jobs.submit.request import StartFailure
from message_data import missing

COMMANDS: Any = get_command(app)


@pytest.mark.parametrize(
    ("text", "words", "named"),
    [
        ("print(1)", ["--dry-run"], "--dry-run"),
        ("print(1)", ["--epochs", "3", "--ppn=2"], "--ppn=2"),
        ("parser.add_argument('--ppn')", ["--ppn", "2"], ""),
        ("print(1)", ["--epochs", "3"], ""),
        ("print(1)", [], ""),
    ],
)
def test_only_options_of_run_that_the_script_does_not_have_are_noted(
    tmp_path: Path, text: str, words: list[str], named: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert _note("script", str(script), *words).partition(" goes to ")[0] == named


def test_a_command_and_a_module_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    assert _note("command", str(tmp_path / "train.py"), "--dry-run") == ""
    assert _note("module", "train", "--dry-run") == ""


def _note(kind: Any, *argv: str) -> str:
    context = COMMANDS.make_context("ipexctl", ["run", "train.py"])
    run = COMMANDS.get_command(context, "run").make_context("run", ["train.py"], parent=context)
    return note_on_arguments(run, kind, argv)


def _interrupt(code: int | None) -> Interrupt:
    interrupt = Interrupt()
    interrupt.code = code
    return interrupt


HALTED = StartFailure("node1: REASON", "FIX: -l '!node1'", ("node1",))


def test_what_was_interrupted_before_it_began_says_that_and_nothing_of_hosts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert RunCall(True, None).not_started(HALTED, _interrupt(130)).exit_code == 130
    assert missing(capsys.readouterr().err, "node1") == ["node1"]


def test_a_refusal_nobody_interrupted_is_told_with_its_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert RunCall(True, None).not_started(HALTED, _interrupt(None)).exit_code == 1
    assert capsys.readouterr().err == "refused: node1: REASON\n  FIX: -l '!node1'\n"


def test_a_run_that_may_have_begun_is_told_of_also_where_it_was_interrupted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unsure = StartFailure("node1: REASON", "FIX: ipexctl ps", is_unsure=True)
    call = RunCall(True, None)
    assert call.not_started(unsure, _interrupt(130)).exit_code == 130
    assert not call.needs_note
    assert "FIX: ipexctl ps" in capsys.readouterr().err


def test_the_summary_of_an_earlier_run_is_replaced_if_the_install_fails(tmp_path: Path) -> None:
    summary = tmp_path / "s.json"
    summary.write_text('{"state": "ok", "exit_code": 0}')
    call = RunCall(True, summary)
    assert call.ended("the install failed", 3).exit_code == 3
    document = json.loads(summary.read_text())
    assert (document["id"], document["state"], document["exit_code"], call.reason) == (
        None,
        None,
        3,
        "the install failed",
    )

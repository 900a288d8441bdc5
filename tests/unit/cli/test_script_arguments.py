"""Options of `run` that stand behind the script go to the script, and a note says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from ipexctl.cli.app import app
from ipexctl.cli.launch_options import note_on_arguments

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

"""`ipexctl run`: notes about options after the script, and output of a run that was interrupted before its start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_cli import call
from typer.main import get_command

from ipexctl.commands.app import app
from ipexctl.commands.interrupt import Interrupt
from ipexctl.commands.run_call import CallOutcome, _noting_failed_call
from ipexctl.commands.run_command import merged
from ipexctl.commands.spec_of_call import note_on_arguments
from ipexctl.errors import CallError, IpexctlError, UserError
from ipexctl.homes.registry import RunRegistry, lacking_line, read_failed_call
from ipexctl.node.common.fix import Fix
from ipexctl.option_declaration import TypedCall
from ipexctl.run.start.start_request import StartFailure
from plan_helpers import spec_of

COMMANDS: Any = get_command(app)


@pytest.mark.parametrize(
    ("text", "words", "named"),
    [
        ("print(1)", ["--dry-run"], "--dry-run"),
        ("print(1)", ["--epochs", "3", "--ppn=2"], "--ppn=2"),
        ("parser.add_argument('--ppn')", ["--ppn", "2"], ""),
        ("parser.add_argument('-n', '--number')", ["-n", "2"], ""),
        ("parser.add_argument('--omp-places')", ["--omp", "1", "-n", "2", "-4"], "--omp, -n"),
        ('"""Usage: ipexctl run --omp 1 train.py"""', ["--omp", "1"], "--omp"),
        ("print(1)", ["--epochs", "3"], ""),
        ("print(1)", [], ""),
    ],
)
def test_note_names_options_of_run_that_the_script_does_not_define(
    tmp_path: Path, text: str, words: list[str], named: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert _note("script", str(script), *words).partition(" goes to ")[0] == named


def test_commands_and_modules_get_no_note_about_arguments(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    assert _note("command", str(tmp_path / "train.py"), "--dry-run") == ""
    assert _note("module", "train", "--dry-run") == ""


def _note(kind: Any, *argv: str) -> str:
    context = COMMANDS.make_context("ipexctl", ["run", "train.py"])
    run = COMMANDS.get_command(context, "run").make_context("run", ["train.py"], parent=context)
    return note_on_arguments(run, spec_of(kind, argv))


def call_of(**options: Any) -> Any:
    return SimpleNamespace(**{"module": None, "words": ("train.py",), "summary": None, "dry_run": False, **options})


START_FAILURE = StartFailure("node1: REASON", "FIX: -l '!node1'", ("node1",))


@pytest.mark.parametrize(
    ("failure", "signal_code", "code", "is_told"),
    [
        (START_FAILURE, None, 1, True),
        (START_FAILURE, 130, 130, False),
        (replace(START_FAILURE, is_unsure=True), 130, 130, True),
    ],
)
def test_a_run_that_did_not_start_says_why_unless_it_was_interrupted_before_it_can_have_begun(
    failure: StartFailure, signal_code: int | None, code: int, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    called, interrupt = CallOutcome(call_of(), True), Interrupt()
    interrupt.code = signal_code
    assert called.not_started(failure, interrupt).exit_code == code
    assert called.needs_note is not failure.is_unsure
    assert called.reason == (failure.reason if is_told else "interrupted")
    told = capsys.readouterr().err
    assert (told == "refused: node1: REASON\n  FIX: -l '!node1'\n") == ("node1" in told) == is_told


@pytest.mark.parametrize("error", [UserError("REASON", fix="FIX"), CallError("REASON", fix="FIX")])
def test_a_call_that_began_no_run_is_kept_with_its_reason(
    error: IpexctlError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    typed = TypedCall(("--ppn", "2"), ("python", "train.py", "--a b"))
    with pytest.raises(type(error)), _noting_failed_call(call_of(), typed):
        raise error
    failed = read_failed_call(RunRegistry().directory)
    assert failed is not None
    assert (failed.script, failed.reason, failed.fix) == ("train.py", "REASON", "FIX")
    assert lacking_line(failed.directory) == "", "an install changes nothing about it"


@pytest.mark.parametrize(
    ("failure", "is_typed_again"),
    [
        (replace(START_FAILURE, lacks_environment=True), True),
        (replace(START_FAILURE, fix=Fix("`ipexctl install --with tqdm`")), True),
        (replace(START_FAILURE, fix=Fix("`ipexctl doctor`")), False),
        (START_FAILURE, False),
    ],
)
def test_a_call_is_typed_again_after_an_install_only_if_that_is_what_it_lacked(
    failure: StartFailure, is_typed_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    typed = TypedCall(("--ppn", "2"), ("python", "train.py", "--a b"))
    with _noting_failed_call(call_of(), typed) as outcome:
        outcome.not_started(failure, Interrupt())
    failed = read_failed_call(RunRegistry().directory)
    assert failed is not None
    line = "ipexctl run --ppn 2 python train.py '--a b'" if is_typed_again else ""
    assert lacking_line(failed.directory) == line
    assert lacking_line("/another/project") == ""


def test_the_summary_of_an_earlier_run_is_replaced_if_the_install_fails(tmp_path: Path) -> None:
    summary = tmp_path / "s.json"
    summary.write_text('{"state": "ok", "exit_code": 0}')
    call = CallOutcome(call_of(summary=summary), True)
    assert call.ended("the install failed", 3).exit_code == 3
    document = json.loads(summary.read_text())
    assert [document["id"], document["state"], document["call"]["exit_code"]] == [None, None, 3]
    assert call.reason == "the install failed"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 0", "(exit code 0)"),
        ("echo; exit 3", "(exit code 3)"),
        ("echo first; echo it is broken; exit 1", "it is broken"),
    ],
)
def test_a_python_that_does_not_answer_is_refused_with_a_reason(tmp_path: Path, script: str, words: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    (tmp_path / "train.py").touch()
    home = str(tmp_path / "home")
    done = call("run", "--hosts", "localhost", "--home", home, "--python", str(python), "train.py", cwd=tmp_path)
    assert done.returncode == 1
    refused = next(line for line in done.stderr.splitlines() if line.startswith("refused: "))
    assert refused.startswith(f"refused: --python {python} on localhost: ")
    assert words in refused


def test_a_private_key_that_an_inventory_names_is_not_synced(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for name in ("train.py", "deploy_login", "other"):
        (project / name).write_text("x")
    (project / "hosts.ini").write_text(
        "[all]\nlocalhost ansible_connection=local ansible_ssh_private_key_file=deploy_login\n"
    )
    home = tmp_path / "home"
    done = call("sync", "-H", "hosts.ini", "--home", str(home), cwd=project)
    assert done.returncode == 0, done.stderr
    synced = {path.name for path in home.rglob("*") if path.is_file()}
    assert "other" in synced
    assert "deploy_login" not in synced
    assert "deploy_login" in next(line for line in done.stderr.splitlines() if "left out" in line)


def test_a_resumed_run_is_followed_unless_the_call_detaches_it() -> None:
    recorded, resumed = [("detach", ("--detach",)), ("ppn", ("--ppn", "2"))], ("resume_run", ("--resume", "last"))
    assert merged(recorded, [resumed]) == [("--ppn", "2"), ("--resume", "last")]
    again = ("detach", ("--detach",))
    assert merged(recorded, [resumed, again]) == [("--ppn", "2"), ("--resume", "last"), ("--detach",)]

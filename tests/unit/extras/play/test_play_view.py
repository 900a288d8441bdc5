"""The live output of a playbook: names of handlers, remaining retries, equal failures folded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ipexctl.extras.play.model import parts_of
from ipexctl.extras.play.modules.run import _TaskRun
from ipexctl.extras.play.result import PlayEvent, RunOutput, TaskDone, TaskStarted
from ipexctl.extras.play.view import PlayView
from ipexctl.node.common.frames import Chunk
from ipexctl.remote.progress import Notice
from message_data import missing
from playbook_helpers import book, play_of, run_playbook


def view_output(capsys: pytest.CaptureFixture[str], events: Sequence[PlayEvent]) -> tuple[str, str]:
    view = PlayView(no_color=True)
    for event in events:
        view.watch(event)
    shown = capsys.readouterr()
    return shown.out, shown.err


def test_handlers_are_shown_as_handler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = play_of("- {name: tell, debug: , changed_when: true, notify: restart}\n")
    _, events = run_playbook(tmp_path, text + "  handlers: [{name: restart, debug: }]\n")
    assert [event.handler for event in events if isinstance(event, TaskStarted)] == [False, True]
    out, _ = view_output(capsys, events)
    assert "TASK [tell]" in out
    assert "HANDLER [restart]" in out


def test_remaining_retries_are_shown(tmp_path: Path) -> None:
    text = play_of("- {name: poll, debug: , register: r, until: r is failed, retries: 2, delay: 0}\n")
    _, events = run_playbook(tmp_path, text)
    told = [event.text for event in events if isinstance(event, Notice)]
    assert [missing(text, f"node[1-3] poll until {left}") for text, left in zip(told, (2, 1), strict=True)] == [[], []]


def test_equal_failures_of_loop_items_are_folded_over_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, events = run_playbook(tmp_path, play_of("- {fail: {msg: no}, loop: [a, b], ignore_errors: true}\n"))
    assert any(isinstance(event, TaskDone) for event in events)
    _, err = view_output(capsys, events)
    assert [line for line in err.splitlines() if line.endswith(": no")] == [
        "node[1-3]: failed (a): no",
        "node[1-3]: failed (b): no",
    ]


def test_parts_of_names_the_part_of_the_block_of_each_task(tmp_path: Path) -> None:
    text = "- block: [{name: a, debug: }]\n  rescue: [{name: b, debug: }]\n  always: [{name: c, debug: }]\n"
    (play,) = book(tmp_path, play_of(text)).plays
    assert [(task.called, part) for task, part in parts_of(play.steps)] == [("a", ""), ("b", "rescue"), ("c", "always")]


def test_only_the_last_state_of_a_progress_bar_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = view_output(capsys, [RunOutput(3, "stdout", "1%\r50%\r100%\nend\n"), RunOutput(3, "stderr", "5%\r6%")])
    assert (out.strip().splitlines(), err) == (["[3] 100%", "[3] end"], "[3] 6%\n")


def test_task_header_is_written_before_stderr_of_ranks() -> None:
    code = """
from ipexctl.extras.play.result import PlayStarted, RunOutput, TaskStarted
from ipexctl.extras.play.view import PlayView
view = PlayView()
view.watch(TaskStarted("train", "run", "p.yml:3"))
view.watch(RunOutput(0, "stderr", "Traceback\\n"))
view.watch(RunOutput(0, "stdout", "step 1\\n"))
"""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    argv, pipe = [sys.executable, "-c", code], subprocess.PIPE
    done = subprocess.run(argv, stdout=pipe, stderr=subprocess.STDOUT, text=True, check=True, env=environ)
    assert done.stdout.split("\n") == ["", "TASK [train]", "[0] Traceback", "[0] step 1", ""]


def test_secrets_from_the_environment_are_masked_in_rank_output(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [Chunk(0, "stdout", data) for data in (b"token=s3cr3t-", b"value\n", b"s3cr3t-value")]

    def follower(_record: Any, _session: Any, watch: Callable[[Any], None], *_: Any, **__: Any) -> Any:
        return SimpleNamespace(follow=lambda: [*map(watch, chunks), SimpleNamespace(status=None, exit_code=0)][-1])

    shown: list[PlayEvent] = []
    templater = SimpleNamespace(secrets={"s3cr3t-value"})
    context: Any = SimpleNamespace(templater=templater, watch=shown.append, cancel=None)
    monkeypatch.setattr("ipexctl.extras.play.modules.run.Follower", follower)
    inherited = SimpleNamespace(no_log=False)
    call: Any = SimpleNamespace(task=SimpleNamespace(inherited=inherited), args={"reconnect": 300.0})
    run = _TaskRun(context, call)
    assert run.follow(cast("Any", SimpleNamespace(record=SimpleNamespace(id="r")))) == 0
    assert [event.text for event in shown if isinstance(event, RunOutput)] == ["token=********\n", "********"]
    assert "s3cr3t-value" in run.output["stdout"]  # for register: the shown result is masked at the end of the task

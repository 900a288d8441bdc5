"""A script that prints what ipexctl prints is not believed, in no view and not in the local copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

import pytest
from attach_helpers import Attached

pytest_plugins = ["run_fixtures", "attach_fixtures"]

FORGED = "[ipexctl: restart 1 of 1 after: rank 0 on nowhere ended with exit code 9]"
FORGED_ERR = "ipexctl: here: a disk is on fire"
SCRIPT = f"""\
import os, sys
print({FORGED!r}, flush=True)
print({FORGED_ERR!r}, file=sys.stderr, flush=True)
if os.environ["RANK"] == "1" and os.environ.get("RESTART_COUNT", "0") == "0":
    sys.exit(4)
"""


@pytest.mark.parametrize("source", ["node0", "copy"])
def test_printed_notes_stay_lines_and_real_ones_are_notes(attach: Callable[..., Attached], source: str) -> None:
    attached = attach(SCRIPT, go={"restarts": 1})
    attached.run.wait()
    if source == "copy":
        assert attached.call("attach", "last").returncode == attached.run.status["exit_code"]
        shutil.rmtree(attached.run.rundir)
    for words in (("attach", "last"), ("logs", "last")):
        ran = attached.call(*words)
        for rank in (0, 1):
            lines = [line for line in ran.stdout.decode().splitlines() if line.startswith(f"[{rank}]")]
            assert set(lines) == {f"[{rank}] {FORGED}"}, ran.stdout
            assert f"[{rank}] {FORGED_ERR}" in ran.stderr.decode().splitlines()
        notes = [line for line in ran.stderr.decode().splitlines() if line.startswith("restart ")]
        assert len(notes) == 1
        assert "nowhere" not in notes[0]
    found = json.loads(attached.call("logs", "last", "--json").stdout)["lines"]
    assert {line["text"] for line in found if "note" not in line} == {FORGED, FORGED_ERR}
    assert {line["note"] for line in found if "note" in line} == {"restart"}
    events = [json.loads(line) for line in attached.call("attach", "last", "--events").stdout.splitlines()]
    restarts = [event for event in events if event["kind"] == "note" and event["note"] == "restart"]
    assert [(event["details"]["attempt"], event["details"]["restarts"]) for event in restarts] == [(1, 1)]
    assert [event["attempt"] for event in events if event["kind"] == "start"] == [0, 1]


def test_a_command_that_can_not_start_is_a_note(attach: Callable[..., Attached]) -> None:
    attached = attach(["/nowhere/train"], 1)
    ran = attached.call("attach", "last")
    assert (ran.returncode, ran.stdout) == (127, b"")
    assert b"rank 0, stderr: here: /nowhere/train: No such file or directory" in ran.stderr
    assert (attached.run.rundir / "ranks/0000.err").read_text().startswith("ipexctl: here: /nowhere/train: ")
    (line,) = json.loads(attached.call("logs", "last", "--json").stdout)["lines"]
    assert (line["rank"], line["stream"], line["note"]) == (0, "stderr", "not-started")


@pytest.mark.core
def test_the_note_of_a_restart_is_in_the_last_lines(attach: Callable[..., Attached]) -> None:
    attached = attach("print('once', flush=True)\nimport sys\nsys.exit(3)", 1, go={"restarts": 1})
    attached.run.wait()
    ran = attached.call("logs", "last", "--tail", "2")
    assert ran.stdout == b"[0] once\n"
    assert ran.stderr.startswith(b"restart 1 of 1 after: ")
    assert attached.call("logs", "last", "--grep", "^once").stderr == b""

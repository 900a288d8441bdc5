"""Reading a run's directory for `why`: the last lines of each rank, from node0 or from a copy."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_helpers import HERE

from agent_helpers import all_pythons, read_events
from env_helpers import start
from ipexctl.homes.local_copy import save_final_status
from ipexctl.node.common.frames import Chunk, Note
from ipexctl.node.common.records import read_status
from ipexctl.node.run.record.output_notes import NotesWriter, note_line
from ipexctl.node.run.record.output_times import TimesWriter
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.session import Session
from ipexctl.run.why.diagnosis import Diagnosis
from ipexctl.run.why.read_snapshot import PrintedNumber, RunSnapshot, read_snapshot
from ipexctl.run.why.why import cause_from_copy, why
from message_data import missing
from record_helpers import run_record


def ask(home: Path, run: str, python: str = sys.executable, **more: Any) -> tuple[dict[str, Any], list[Chunk]]:
    with start(
        "run.run_snapshot", "read", {"home": str(home), "id": run, "copy": False, **more}, python=python
    ) as process:
        assert process.stdout is not None
        *chunks, answer = read_events(process.stdout.fileno())
    assert isinstance(answer, dict)
    return answer, [chunk for chunk in chunks if isinstance(chunk, Chunk)]


def directory(home: Path, files: dict[str, bytes], **status: Any) -> Path:
    """A run of two ranks of which the second failed."""
    rundir = home / "runs" / "run1"
    (rundir / "ranks").mkdir(parents=True)
    ranks = [{"rank": 0, "host": "a", "state": "stopped"}, {"rank": 1, "host": "b", "state": "failed", "exit_code": 1}]
    first = {"rank": 1, "host": "b", "exit_code": 1, "signal": None, "at": 12.0}
    document: dict[str, Any] = {"id": "run1", "state": "failed", "ranks": ranks, "supervisor": {}, "started": 10.0}
    document |= {"first_failure": first, **status}
    (rundir / "status.json").write_text(json.dumps(document))
    for name, content in files.items():
        (rundir / name).write_bytes(content)
    return rundir


def account(home: Path, **more: Any) -> RunSnapshot:
    return read_snapshot(*ask(home, "run1", **more), "node1")


def test_losses_are_read_where_the_output_is_kept(tmp_path: Path) -> None:
    rundir = directory(tmp_path, {"ranks/0000.out": b"loss 2.5\nval loss 9\nloss 1.5\n"})
    writer = TimesWriter(str(rundir / "output.times"))
    for at, end in ((10.0, 9), (11.0, 29)):
        writer.add(0, "stdout", end)
        writer.write_all(at)
    writer.close()
    assert account(tmp_path, losses=True).losses == (PrintedNumber(10.0, 2.5), PrintedNumber(11.0, 1.5))
    assert account(tmp_path).losses == ()
    answer, chunks = ask(tmp_path, "run1")
    damaged = {**answer, "losses": [[1.0, 2.0], [3.0], "x", [None, 1.0], [4.0, float("inf")]]}
    assert read_snapshot(damaged, chunks, "node1").losses == (PrintedNumber(1.0, 2.0),)


def test_output_is_split_into_lines_for_any_bytes(tmp_path: Path) -> None:
    bars = b"".join(b"\rstep %d/3000" % n for n in range(3000)) + b"\r\n"
    out = b"first\n" + b"x" * (1 << 20) + b"\n" + bars + b"\xff caf\xe9\nno end"
    directory(tmp_path, {"ranks/0001.out": out, "ranks/0001.err": b"", "ranks/0000.out": b"other\n"})
    first, endless, bar, odd, last = account(tmp_path).output_of(1).out
    assert first == "first"
    assert endless.startswith("xxxx")
    assert "bytes ...]" in endless
    assert len(endless) < 2100
    assert bar == "step 2999/3000"
    assert odd == "\N{REPLACEMENT CHARACTER} caf\N{REPLACEMENT CHARACTER}"
    assert last == "no end"


@pytest.mark.core
def test_only_the_end_of_a_large_log_is_read(tmp_path: Path) -> None:
    line = b"epoch 1 step 1: loss 0.5\n"
    directory(tmp_path, {"ranks/0001.out": line * 2_000_000, "ranks/0000.out": line * 100})
    began = time.monotonic()
    said = account(tmp_path)
    assert time.monotonic() - began < 10
    assert len(said.output_of(1).out) == 2000
    assert len(said.output_of(0).out) == 100


def test_equal_output_of_many_ranks_is_sent_once(tmp_path: Path) -> None:
    rows = [{"rank": rank, "host": "a", "state": "failed"} for rank in range(64)]
    files = {f"ranks/{rank:04}.err": os.urandom(300).hex().encode() if rank == 7 else b"same\n" for rank in range(64)}
    directory(tmp_path, files, ranks=rows)
    answer, chunks = ask(tmp_path, "run1")
    assert len(chunks) == 3
    assert read_snapshot(answer, chunks, "node1").output_of(63).err == ("same",)


def test_lines_of_an_earlier_attempt_are_told_by_the_note_of_the_restart(tmp_path: Path) -> None:
    fields = {"attempt": 1, "restarts": 1, "reason": "rank 1 on b ended with exit code 1"}
    line, printed = note_line("restart", fields), b"[ipexctl: restart 1 of 1 after: what a script prints]\n"
    out = b"first\n" + line + b"second\n" + printed + b"third\n"
    rundir = directory(tmp_path, {"ranks/0001.out": out})
    NotesWriter(str(rundir / "output.notes")).add(Note(1, "stdout", line, 6, None, "restart", fields))
    assert account(tmp_path).output_of(1).out == ("second", printed.decode().rstrip(), "third")


def test_missing_or_damaged_files_are_skipped(tmp_path: Path) -> None:
    rundir = directory(
        tmp_path, {"events.jsonl": b'{"event": "met"}\nhalf a li', "plan.json": b"[]", "mpirun.log": b"hm\n"}
    )
    answer, _ = ask(tmp_path, "run1")
    assert [each["event"] for each in answer["events"]] == ["met"]
    assert answer["plan"] == {}
    assert answer["mpirun"] == ["hm"]
    (rundir / "status.json").unlink()
    assert ask(tmp_path, "run1")[0]["event"] == "failed"


def test_running_state_of_a_copy_is_not_changed_to_lost(tmp_path: Path) -> None:
    supervisor = {"pid": 1, "start": 0}
    rundir = directory(tmp_path, {}, state="running", supervisor=supervisor)
    before = (rundir / "status.json").read_bytes()
    assert account(tmp_path, copy=True).status.state == "running"
    assert (rundir / "status.json").read_bytes() == before
    assert account(tmp_path).status.state == "lost"


@pytest.mark.parametrize("python", all_pythons())
def test_snapshot_is_read_by_every_python(tmp_path: Path, python: str) -> None:
    directory(tmp_path, {"ranks/0001.err": b"Traceback (most recent call last):\nValueError: x\n"})
    assert read_snapshot(*ask(tmp_path, "run1", python), "node1").output_of(1).exception == ("ValueError", "x")


def out_of_reach(_: object) -> Session:
    raise Unreachable("REASON", "FIX")


def test_local_copy_is_used_if_node0_is_unreachable(tmp_path: Path) -> None:
    state = tmp_path / "state"
    directory(state, {"ranks/0001.err": b"Traceback (most recent call last):\nMemoryError\n"}, ended=13.0)
    record = run_record("run1", HERE, "/nowhere", sys.executable, world_size=2)
    answer = why(record, out_of_reach, state / "runs", Cancel())
    assert answer.exit_code == 0
    assert answer.diagnosis.cause is not None
    assert answer.diagnosis.cause.id == "memory.refused"
    assert "REASON" in answer.diagnosis.notes[-1]
    cause = cause_from_copy(record, state / "runs")
    assert cause is not None
    assert cause.id == "memory.refused"


def test_unfinished_or_missing_copy_gives_state_unknown(tmp_path: Path) -> None:
    state = tmp_path / "state"
    record = run_record("run1", HERE, "/nowhere", sys.executable, script="train.py", started=1e9, world_size=2)
    nothing = why(record, out_of_reach, state / "runs", Cancel())
    directory(state, {}, state="running")
    half = why(record, out_of_reach, state / "runs", Cancel())
    assert nothing.exit_code == half.exit_code == 3
    assert nothing.diagnosis.state == half.diagnosis.state == "unknown"
    assert missing(nothing.diagnosis.notes[0], "train.py 2") == []
    assert any("running" in note for note in half.diagnosis.notes)
    for name in ("run1", "run2"):  # a stop or wait saw the end, which `ps` shows; with and without a copy
        save_final_status(state / "runs" / name, read_status({"id": name, "state": "ok", "started": 1e9, "ended": 2e9}))
        seen = why(replace(record, id=name), out_of_reach, state / "runs", Cancel())
        assert (seen.exit_code, seen.diagnosis.state) == (0, "ok")
    assert cause_from_copy(run_record("run3", HERE, "/nowhere", sys.executable), state / "runs") is None


def test_missing_record_on_node0_is_reported(tmp_path: Path) -> None:
    record = run_record("run1", HERE, str(tmp_path / "home"), sys.executable)
    forgotten = why(record, lambda _: LocalSession(HERE), tmp_path / "runs", Cancel())
    assert forgotten.exit_code == 1
    assert missing(forgotten.diagnosis.headline, "run1 localhost") == []
    directory(tmp_path, {}, ended=13.0)
    copied = why(record, lambda _: LocalSession(HERE), tmp_path / "runs", Cancel())
    assert copied.exit_code == 0
    assert copied.diagnosis.state == "failed"


@pytest.mark.parametrize("state", ["failed", "running"])
def test_output_that_the_record_lacks_is_read_from_a_complete_copy(tmp_path: Path, state: str) -> None:
    row = {"rank": 1, "host": "b", "state": "failed", "exit_code": 1, "lost": 99}
    directory(tmp_path / "home", {"ranks/0001.err": b"loading\n"}, ranks=[row])
    record = run_record("run1", HERE, str(tmp_path / "home"), sys.executable, world_size=2)
    runs = tmp_path / "state" / "runs"

    def diagnosis() -> Diagnosis:
        return why(record, lambda _: LocalSession(HERE), runs, Cancel()).diagnosis

    alone = diagnosis()
    error = b"loading\nTraceback (most recent call last):\nMemoryError\n"
    directory(tmp_path / "state", {"ranks/0001.err": error}, ranks=[row], state=state)
    copied = diagnosis()
    assert alone.cause is not None
    assert copied.cause is not None
    assert alone.cause.id == "run.output_lost"
    assert copied.cause.id == ("memory.refused" if state == "failed" else "run.output_lost")
    assert any(str(runs / "run1" / "ranks") in note for note in copied.notes) is (state == "failed")

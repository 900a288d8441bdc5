"""Parsing py-spy and faulthandler; ranks with equal stacks are folded, the odd ones come first."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeSession
from ipexctl.hosts.host import Host
from ipexctl.node.common.frames import FrameError
from ipexctl.node.common.records import RunStatus
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import Reply
from ipexctl.run.hang import dump_lines
from ipexctl.run.stack_dump import (
    Dump,
    DumpReceiver,
    Process,
    RankStacks,
    StackFrame,
    Thread,
    dump,
    read_dump,
    read_faulthandler,
    read_pyspy,
)
from ipexctl.ui.stacks_output import as_json, show_stacks
from message_data import missing
from record_helpers import run_record

RECORDED = Path(__file__).parent / "recorded"
FEED = ("feed", "prog.py", 5)
MODULE = ("<module>", "prog.py", 15)


def keys(thread: Thread) -> list[tuple[str, str, int | None]]:
    return [frame.key for frame in thread.frames]


@pytest.mark.parametrize("version", ["3.8", "3.11", "3.13"])
def test_faulthandlers_last_thread_is_the_main_one(version: str) -> None:
    main, feeder = read_faulthandler((RECORDED / f"faulthandler-{version}.txt").read_text())
    assert main.is_main
    assert keys(main) == [("forward", "prog.py", 10), MODULE]
    assert not feeder.is_main
    assert keys(feeder)[0] == FEED
    assert [(name, file) for name, file, _ in keys(feeder)[1:]] == [
        ("run", "threading.py"),
        ("_bootstrap_inner", "threading.py"),
        ("_bootstrap", "threading.py"),
    ]


def test_py_spy_gives_the_same_stacks_as_faulthandler() -> None:
    main, feeder = read_pyspy((RECORDED / "py-spy-0.4.3.json").read_text(), 4711)
    assert (main.is_main, main.name, feeder.name) == (True, "MainThread", "feeder")
    assert keys(main) == [("forward", "prog.py", 10), MODULE]
    same = read_faulthandler((RECORDED / "faulthandler-3.11.txt").read_text())
    assert [keys(thread) for thread in same] == [keys(main), keys(feeder)]


def test_threads_with_names_or_without_frames_are_parsed() -> None:
    text = (
        "Thread 0x00007f00 [pt_autograd_0] (most recent call first):\n  <no Python frame>\n\n"
        'Current thread 0x00007f01 [python] (most recent call first):\n  File "<string>", line ??? in f\n'
    )
    main, other = read_faulthandler(text)
    assert main.frames == (StackFrame("f", "<string>", None),)
    assert (other.name, other.frames) == ("pt_autograd_0", ())
    (named,) = read_faulthandler("Thread 0x00007f00 [load: [0] (a)] (most recent call first):\n")
    assert named.name == "load: [0] (a)"


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("/home/a/.ipexctl/envs/e/lib/python3.11/site-packages/torch/nn/module.py", "torch/nn/module.py"),
        ("/usr/lib/python3.13t/multiprocessing/queues.py", "multiprocessing/queues.py"),
        ("/scratch/x/code/proj-0a1b2c3d/pkg/train.py", "pkg/train.py"),
        ("/opt/site/train.py", "/opt/site/train.py"),
    ],
)
def test_file_paths_are_shortened(file: str, place: str) -> None:
    assert StackFrame("f", file, 1).place == place


def process(*frames: tuple[str, str, int], pid: int = 1, state: str = "S", why: str = "") -> Process:
    thread = Thread("MainThread", tuple(StackFrame(*frame) for frame in frames), is_main=True)
    return Process(pid, "python", state, "", "faulthandler" if frames else "", (thread,) if frames else (), why)


def rank(number: int, *frames: tuple[str, str, int], why: str = "") -> RankStacks:
    return RankStacks(number, f"node{number // 2 + 1}", "running", (process(*frames, why=why),))


REDUCE, LOAD, MAIN = (
    ("all_reduce", "/x/site-packages/torch/d.py", 7),
    ("load", "train.py", 3),
    ("<module>", "train.py", 9),
)


def test_smallest_group_of_ranks_comes_first() -> None:
    dump = Dump(0.0, (*(rank(number, REDUCE, MAIN) for number in range(3)), rank(3, LOAD, MAIN)))
    assert [[each.rank for each in group.ranks] for group in dump.groups] == [[3], [0, 1, 2]]
    assert dump.is_complete


def test_stacks_are_equal_across_different_homes() -> None:
    elsewhere = ("all_reduce", "/y/lib/python3.11/site-packages/torch/d.py", 7)
    by_spy = ("Work.all_reduce", "/x/site-packages/torch/d.py", 7)
    dump = Dump(0.0, (rank(0, REDUCE, MAIN), rank(1, elsewhere, MAIN), rank(2, by_spy, MAIN)))
    assert len(dump.groups) == 1


def test_inner_frame_skips_the_standard_library() -> None:
    waits = ("select", "/usr/lib/python3.11/selectors.py", 415)
    get = ("_try_get_data", "/x/lib/python3.11/site-packages/torch/dataloader.py", 1)
    (group,) = Dump(0.0, (rank(0, waits, get, LOAD, MAIN),)).groups
    assert group.inner.function == "_try_get_data"
    assert group.own == StackFrame(*LOAD)
    (alone,) = Dump(0.0, (rank(0, waits),)).groups
    assert (alone.inner.function, alone.own) == ("select", None)


def test_main_process_is_the_child_of_a_waiting_launcher() -> None:
    launcher, child = process(("wait", "/usr/lib/python3.11/subprocess.py", 1), MAIN), process(LOAD, MAIN, pid=2)
    there = RankStacks(0, "node1", "running", (launcher, child))
    assert there.main_process is child
    alone = RankStacks(0, "node1", "running", (launcher,))
    assert alone.main_process is launcher
    mute = RankStacks(0, "node1", "running", (process(why="no answer"), child))
    assert mute.main_process is None


def document(*rows: dict[str, Any]) -> Reply:
    ranks = [{"host": "node1", "state": "running", "why": "", **row} for row in rows]
    return Reply({"at": 1.0, "ranks": ranks})


def said(**more: Any) -> dict[str, Any]:
    return {"pid": 7, "name": "python", "state": "S", "wchan": "", "how": "", "text": "", "why": "", **more}


def test_unreadable_stacks_are_reported_for_their_rank_only() -> None:
    good = (RECORDED / "faulthandler-3.11.txt").read_text()
    dump = read_dump(
        document(
            {"rank": 0, "processes": [said(how="py-spy", text='[{"thread_name": null}]')]},
            {"rank": 1, "processes": [said(how="faulthandler", text=good)]},
            {"rank": 2, "processes": None, "why": "silent for 8 s", "last": {"process": "D", "waits_in": "nfs_wait"}},
            {"rank": 3, "processes": [], "state": "ok"},
        )
    )
    assert [each.rank for each in dump.mute] == [0, 2, 3]
    assert not dump.is_complete
    reasons = {row["rank"]: row["reason"] for row in as_json(dump, "run")["ranks"]}
    assert missing(reasons[0], "py-spy") == []
    assert reasons[1] == ""
    assert missing(reasons[2], "silent for 8 s nfs_wait") == []
    assert reasons[3]


@pytest.mark.parametrize("line", [[1], {"a": 1}, "7", 1.5, True, None])
def test_invalid_line_numbers_are_dropped(line: object) -> None:
    frames = [{"name": "f", "filename": "a.py", "line": line}]
    text = json.dumps([{"thread_name": "MainThread", "os_thread_id": 7, "frames": frames}])
    (group,) = read_dump(document({"rank": 0, "processes": [said(how="py-spy", text=text)]})).groups
    assert group.frames == (StackFrame("f", "a.py", None),)


@pytest.mark.parametrize("line", ["Thread 0x1 [" + "]" * 60_000, '  File "' + "/code" * 20_000 + '", line 7 in f'])
def test_a_host_cannot_make_the_parser_slow(line: str) -> None:
    began = time.monotonic()
    text = f"Thread 0x1 (most recent call first):\n{line}\n" * 2
    (stacks,) = read_dump(document({"rank": 0, "processes": [said(how="faulthandler", text=text)]})).ranks
    assert all(frame.place for frame in stacks.frames)
    assert time.monotonic() - began < 1


def test_parsed_part_of_a_long_text_is_limited() -> None:
    text = "Thread 0x1 (most recent call first):\n" + '  File "a.py", line 1 in f\n' * 100_000
    (rank_stacks,) = read_dump(document({"rank": 0, "processes": [said(how="faulthandler", text=text)]})).ranks
    assert 1000 < len(rank_stacks.frames) < 50_000


def test_invalid_time_is_shown_as_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    dump = Dump(1e18, (rank(0, MAIN),))
    show_stacks(dump, "train-1", quiet=True)
    assert "1 rank at ?," in capsys.readouterr().out
    assert "the ranks at ? " in dump_lines("train-1", dump)[0]


def test_a_dump_of_more_ranks_than_the_run_has_is_refused() -> None:
    receiver = DumpReceiver(2)
    part = {"at": 1.0, "of": 3, "stacks": {}}
    assert [receiver.add(part), receiver.add(part)] == [None, None]
    with pytest.raises(FrameError):
        receiver.add(part)


def test_deep_stack_is_shown_completely_with_everything(capsys: pytest.CaptureFixture[str]) -> None:
    deep = Dump(0.0, (rank(0, *((f"f{number}", "train.py", number) for number in range(60))),))
    show_stacks(deep, "train-1", everything=True)
    whole = capsys.readouterr().out
    assert all(f"f{number} " in whole for number in range(60))


def test_control_characters_of_function_names_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show_stacks(Dump(0.0, (rank(0, ("f\x1b]0;x\x07", "a.py", 1)),)), "train-1")
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("state", ["running", "ok"])
def test_missing_stacks_are_an_error_unless_the_run_has_ended(state: str) -> None:
    host = Host("node1", "10.0.0.1")
    reply = {"event": "done", "status": {"state": state}}
    session = FakeSession(host, stdout=json.dumps(reply).encode() + b"\n")
    record = run_record("train-1", host, "/h", "python3")
    if state == "ok":
        assert isinstance(dump(session, record, None), RunStatus)
        return
    with pytest.raises(HostError, match="no stacks"):
        dump(session, record, None)


def test_names_of_threads_are_kept_and_tell_the_main_one() -> None:
    frames = [{"name": "f", "filename": "a.py", "line": 1}]
    rows = [{"thread_name": name, "os_thread_id": None, "frames": frames} for name in ("loader", "MainThread", None)]
    threads = read_pyspy(json.dumps(rows), 7)
    assert [(thread.name, thread.is_main) for thread in threads] == [
        ("MainThread", True),
        ("loader", False),
        ("", False),
    ]

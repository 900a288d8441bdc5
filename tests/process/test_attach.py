"""Commands beside a run on this machine: attach, logs, wait, why; the local copy, events, notes and closed streams."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from attach_helpers import COUNT_SCRIPT, IPEXCTL, Attached

from agent_helpers import wait_until
from message_data import missing

pytest_plugins = ["run_fixtures", "attach_fixtures"]


def of_rank(out: bytes, rank: int) -> list[bytes]:
    prefix = b"[%d] " % rank
    return [line.removeprefix(prefix) for line in out.splitlines() if line.startswith(prefix)]


@pytest.mark.parametrize("is_freed", [False, True])
def test_output_that_the_disk_of_node0_has_no_room_for_is_shown_while_it_is_printed(
    attach: Callable[..., Attached], mounted: Callable[[str], Path], is_freed: bool
) -> None:
    place = mounted("size=1m")
    code = "import os, time\nprint('first', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
    code += "for number in range(30000): print('number', number, 'x' * 40)\nprint('last', flush=True)\n"
    code += "while not os.path.exists('end'): time.sleep(0.05)"
    attached = attach(code, 1, ranks_in=place)
    process = attached.begin("attach", "last")
    wait_until(lambda: (place / "0000.out").exists() and (place / "0000.out").stat().st_size == 6, 20)
    with contextlib.suppress(OSError), (place / "ballast").open("wb", buffering=0) as ballast:
        while ballast.write(b"\0" * 4096):
            pass
    (attached.run.home / "go").touch()
    assert process.stdout is not None
    shown = b""
    while not shown.endswith(b"last\n"):  # all of it is shown before the run ends
        line = process.stdout.readline()
        assert line, shown[-200:]
        shown += line
    if is_freed:
        subprocess.run(["mount", "-o", "remount,size=20m", str(place)], check=True)
    (attached.run.home / "end").touch()
    out, err = process.communicate(timeout=60)
    out = shown + out
    expected = [b"first", *(b"number %d %s" % (number, b"x" * 40) for number in range(30000)), b"last"]
    assert process.returncode == 0, err
    assert of_rank(out, 0) == expected
    why = json.loads(attached.call("why", "last", "--json").stdout)
    if is_freed:
        assert (place / "0000.out").read_bytes().splitlines() == expected
        assert why["run"]["output_lost"] is None
    else:
        assert b"here" in err.splitlines()[-1]
        logs = attached.call("logs", "last").stderr
        assert missing(logs.decode(), f"here {attached.copies / attached.run.id}/ranks") == []
        # The first bytes may still fit behind those that the file has.
        whole, kept = b"\n".join(expected) + b"\n", (place / "0000.out").read_bytes()
        assert whole.startswith(kept) and 6 <= len(kept) < 4096
        assert why["run"]["output_lost"] == {"bytes": len(whole) - len(kept), "host": "here", "ranks": [0]}


def test_copy_has_all_ranks_and_is_used_without_a_record_on_node0(
    attach: Callable[..., Attached],
) -> None:
    attached = attach("import sys\nprint('out \\xe9')\nprint('err', file=sys.stderr)", 3)
    few = attached.call("attach", "last", "--ranks", "2")
    assert (few.returncode, few.stdout.splitlines()) == (0, ["[2] out \xe9".encode()])
    before = attached.call("logs", "last")
    shutil.rmtree(attached.run.rundir)
    logs, errors = attached.call("logs", "last"), attached.call("logs", "last", "--stderr", "-r", "1")
    # Output that came within a tenth of a second has one time: the order of the ranks may differ, not that of a rank.
    assert logs.returncode == 0
    assert [of_rank(logs.stdout, rank) for rank in range(3)] == [of_rank(before.stdout, rank) for rank in range(3)]
    assert len(before.stdout.splitlines()) == 3
    assert b"no record of this run there (any more); from the copy on this machine\n" in logs.stderr
    assert errors.stdout == b"[1] err\n"
    again = attached.call("attach", "last")
    assert (again.returncode, sorted(again.stdout.splitlines())) == (0, sorted(before.stdout.splitlines()))
    assert b"the copy on this machine" in again.stderr
    assert b"succeeded" in again.stderr


def test_background_call_is_not_stopped_by_terminal_access(attach: Callable[..., Attached], tmp_path: Path) -> None:
    shell = attach("print('here')").show_shell()
    shell.type(f"{' '.join(IPEXCTL)} attach last >{tmp_path}/said 2>&1 &\n".encode())
    shell.type(b"wait %1; echo code=$?\n")
    assert shell.until_seen(b"code=0\r\n")
    assert "succeeded" in (tmp_path / "said").read_text()


def test_closed_stdout_does_not_stop_the_run(attach: Callable[..., Attached]) -> None:
    attached = attach(COUNT_SCRIPT.format(120, 0.05))
    process = attached.begin_and_read("attach", "last")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr is not None
    assert b"ipexctl attach" in process.stderr.read()
    assert attached.run.wait()["state"] == "ok"


def test_slow_reader_blocks_no_rank_and_gets_every_line(attach: Callable[..., Attached]) -> None:
    attached = attach(f"for i in range(60000):\n    print('number', i, {'x' * 200!r})")
    process = attached.begin("attach", "last")
    assert attached.run.wait(60)["state"] == "ok"
    assert process.poll() is None
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    for rank in (0, 1):
        assert [int(line.split()[1]) for line in of_rank(out, rank)] == list(range(60000))


@pytest.mark.core
def test_logs_filters_lines_as_text_or_json(attach: Callable[..., Attached]) -> None:
    attached = attach("print('one')\nprint('two')\nprint('three')", 2)
    attached.run.wait()
    assert attached.call("logs", "last", "--tail", "2", "-r", "1").stdout == b"[1] two\n[1] three\n"
    stamped = attached.call("logs", "last", "--grep", "^o", "-r", "0", "--timestamps").stdout.decode().split()
    assert (stamped[0], stamped[2]) == ("[0]", "one")
    assert abs(datetime.fromisoformat(stamped[1]).timestamp() - time.time()) < 60
    document = json.loads(attached.call("logs", "last", "--grep", "^t", "--json").stdout)
    assert (document["schema"], document["reason"]) == ("ipexctl.logs/1", "")
    assert sorted((line["rank"], line["text"]) for line in document["lines"]) == [
        (rank, text) for rank in (0, 1) for text in ("three", "two")
    ]
    assert {line["stream"] for line in document["lines"]} == {"stdout"}
    wrong = attached.call("logs", "last", "--grep", "(", "--json")
    assert wrong.returncode == 2
    assert json.loads(wrong.stdout)["schema"] == "ipexctl.logs/1"


HANG_SCRIPT = "import time\ndef wait_for_others():\n time.sleep(600)\nprint('here', flush=True)\nwait_for_others()"


def test_why_dumps_stacks_of_ranks_once(attach: Callable[..., Attached]) -> None:
    attached = attach(HANG_SCRIPT, 2)
    attached.run.wait_for_all(b"here")

    def places() -> list[list[int]]:
        others = json.loads(attached.call("why", "last", "--json").stdout)["others"]
        return [other["ranks"] for other in others if not missing(other["sentence"], "wait_for_others here 0-1")]

    assert places() == [[0, 1]]
    dumps = attached.run.rundir / "stacks"
    assert len(list(dumps.glob("dump-*"))) == 1
    assert places() == [[0, 1]]
    assert len(list(dumps.glob("dump-*"))) == 1
    assert attached.call("stop", "last").returncode == 0
    assert places() == [[0, 1]]


def read_events(out: bytes) -> list[dict[str, Any]]:
    assert out.endswith(b"\n")
    return [json.loads(line) for line in out.splitlines()]


def test_piped_events_have_every_line_and_the_end(attach: Callable[..., Attached]) -> None:
    attached = attach(COUNT_SCRIPT.format(20, 0.01))
    ran = attached.call("attach", "last", "--events")
    events = read_events(ran.stdout)
    for rank in (0, 1):
        texts = [event["text"] for event in events if event["kind"] == "line" and event["rank"] == rank]
        assert texts == [f"number {number}" for number in range(20)]
    assert [event["kind"] for event in events[:2]] == ["plan", "start"]
    assert (events[-1]["kind"], events[-1]["state"], events[-1]["call"]["exit_code"], ran.returncode) == (
        "end",
        "ok",
        0,
        0,
    )
    assert b"succeeded" in ran.stderr


@pytest.mark.parametrize("other", ["--plain", "--live", "--json"])
def test_events_exclude_other_views(attach: Callable[..., Attached], other: str) -> None:
    attached = attach("print('out')")
    ran = attached.call("attach", "last", "--events", other)
    assert ran.returncode == 2
    assert missing(ran.stderr.decode(), other) == []
    failure, end = (
        read_events(ran.stdout) if other != "--json" else ({"failure": "not-started"}, {"call": {"exit_code": 2}})
    )
    assert (failure["failure"], end["call"]["exit_code"]) == ("not-started", 2)


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
    attached = attach(SCRIPT, asked={"max_restarts": 1})
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
    attached = attach("print('once', flush=True)\nimport sys\nsys.exit(3)", 1, asked={"max_restarts": 1})
    attached.run.wait()
    ran = attached.call("logs", "last", "--tail", "2")
    assert ran.stdout == b"[0] once\n"
    assert ran.stderr.startswith(b"restart 1 of 1 after: ")
    assert attached.call("logs", "last", "--grep", "^once").stderr == b""


FAILS = "import sys, time\nprint('here', flush=True)\ntime.sleep(0.5)\nsys.exit(7)"


def test_exit_code_of_the_run_and_its_summary(attach: Callable[..., Attached]) -> None:
    attached = attach(FAILS, 1)
    summary = attached.run.home / "summary.json"
    done = attached.call("wait", "last", "--summary", str(summary))
    assert done.returncode == 7, done.stderr
    assert done.stdout == b""
    assert b"failed" in done.stderr
    document = json.loads(summary.read_text())
    assert (document["id"], document["state"], document["exit_code"]) == (attached.run.id, "failed", 7)
    again = attached.call("wait", attached.run.id, "--json")
    (run,) = json.loads(again.stdout)["runs"]
    assert (again.returncode, run["state"], run["exit_code"]) == (7, "failed", 7)


@pytest.mark.core
def test_run_that_ends_well_is_waited_for_to_its_end(attach: Callable[..., Attached]) -> None:
    attached = attach(COUNT_SCRIPT.format(20, 0.05), 1)
    done = attached.call("wait", "last")
    assert done.returncode == 0, done.stderr
    assert attached.run.status["state"] == "ok"
    assert attached.call("wait", "last", "-q").stderr == b""


def test_time_limit_has_its_own_exit_code_and_leaves_the_run_alone(attach: Callable[..., Attached]) -> None:
    attached = attach(COUNT_SCRIPT.format(100_000, 0.05), 1)
    started = time.monotonic()
    done = attached.call("wait", "last", "--timeout", "1.5")
    assert done.returncode == 124, done.stderr
    assert 1.4 < time.monotonic() - started < 15
    assert f"ipexctl wait {attached.run.id}".encode() in done.stderr
    assert attached.run.status["state"] == "running"
    assert json.loads(attached.call("wait", "last", "--timeout", "3", "--json").stdout)["runs"][0]["state"] == "running"


GROUPS = Path("/sys/fs/cgroup/memory")
LIMIT = 200 << 20
GROW = """
import os, sys, time
print("here", flush=True)
if os.environ["RANK"] == "1":
    with open(sys.argv[1] + "/cgroup.procs", "w") as file: file.write(str(os.getpid()))
    time.sleep(0.3)
    held = [b"x" * (1 << 20) for _ in range(2000)]
time.sleep(600)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    place = GROUPS / f"ipexctl-test-{os.getpid()}"
    try:
        place.mkdir()
    except OSError:
        pytest.skip("no memory cgroup of version 1 here that we may write to")
    (place / "memory.limit_in_bytes").write_text(str(LIMIT))
    yield place
    with contextlib.suppress(OSError):
        place.rmdir()


@pytest.mark.core
def test_limit_that_was_reached_and_memory_of_the_rank_are_named(
    attach: Callable[..., Attached], group: Path, tmp_path: Path
) -> None:
    script = tmp_path / "grow.py"
    script.write_text(GROW)
    attached = attach([sys.executable, str(script), str(group)])
    attached.run.wait()
    first = attached.run.status["first_failure"]
    assert (first["kind"], first["rank"], first["oom"]["by"], first["oom"]["limit"]) == ("oom", 1, "cgroup", LIMIT)
    assert LIMIT * 0.9 < first["oom"]["memory"] < LIMIT * 1.1
    why = json.loads(attached.call("why", "last", "--json").stdout)
    assert (why["cause"]["id"], why["cause"]["confidence"]) == ("memory.oom", "likely")
    assert missing(why["cause"]["sentence"], "rank 1 here cgroup reached its memory limit of 200 MB") == []
    assert why["run"]["first_failure"]["oom"]["memory"] == first["oom"]["memory"]
    assert "dmesg" not in json.dumps(why)

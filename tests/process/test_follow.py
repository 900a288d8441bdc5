"""Following a run: every byte is read once from any offset, also if the run was lost."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from run_helpers import SLEEP_FOREVER, Run

from agent_helpers import all_pythons, follow_request, read_events
from env_helpers import said, start
from ipexctl.node.common.fix import fix_from_json
from ipexctl.node.common.frames import (
    SUFFIXES,
    Chunk,
    CompressedFrameReader,
    CompressedFrameWriter,
    Note,
    OutputPart,
)
from ipexctl.node.common.processes import ProcessIdentity, read_stat
from ipexctl.node.run.follow import (
    CHUNK_SIZE,
    MAX_BYTES,
    RANK_INTERVAL,
    FollowedFile,
    OutputReader,
    OutputSender,
    StatusWatcher,
)
from ipexctl.node.run.output_filter import OutputFilter
from ipexctl.node.run.record.output_times import TimesReader
from ipexctl.node.run.record.stored_status import read_status_file
from ipexctl.node.run.record.unstored_output import UnstoredReader
from message_data import missing

pytest_plugins = ["run_fixtures"]


RUNS = {"size": 1}
SLOW = "import time\nfor i in range(300):\n    print('line', i, flush=True)\n    time.sleep(0.01)"


class Follow:
    def __init__(self, run: Run, python: str = sys.executable, **more: Any) -> None:
        self.events: list[OutputPart | dict[str, Any]] = []
        self.process = start("run.follow", "follow", follow_request(run.home, run.id, **more), python=python)

    def collect(self, until: Callable[[Follow], bool] = lambda _: False) -> Follow:
        """Collect events to the end, or until `until` is true; then kill the process as a lost connection does."""
        assert self.process.stdout is not None
        for event in read_events(self.process.stdout.fileno()):
            self.events.append(event)
            if until(self):
                self.process.kill()
                break
        self.process.stdout.close()
        self.process.wait(20)
        return self

    @property
    def chunks(self) -> list[Chunk]:
        """Notes are chunks, too, in the file."""
        return [Chunk(*event[:5]) for event in self.events if isinstance(event, (Chunk, Note))]

    def output(self, rank: int = 0, stream: str = "stdout") -> bytes:
        data, end = b"", None
        for chunk in self.chunks:
            if (chunk.rank, chunk.stream) == (rank, stream):
                assert end in (None, chunk.offset)
                data, end = data + chunk.data, chunk.end
        return data

    @property
    def offsets(self) -> dict[str, int]:
        return {f"{chunk.rank}.{SUFFIXES[chunk.stream]}": chunk.end for chunk in self.chunks}

    @property
    def last(self) -> dict[str, Any]:
        last = self.events[-1]
        assert isinstance(last, dict)
        return last


@pytest.mark.parametrize("python", all_pythons())
def test_run_is_followed_from_first_line_to_end(make: Callable[..., Run], python: str) -> None:
    run = make("import sys\nprint('out')\nprint('err', file=sys.stderr)", 2).start()
    followed = Follow(run, python).collect()
    assert [followed.output(rank) for rank in (0, 1)] == [b"out\n", b"out\n"]
    assert followed.output(1, "stderr") == b"err\n"
    assert followed.last["event"] == "done"
    assert followed.last["status"]["state"] == "ok"


def test_start_process_can_follow_its_run(make: Callable[..., Run]) -> None:
    run = make("print('out')", 2)
    run.listen()
    run.send_go(leave=False)
    assert run.process.stdin is not None
    assert run.process.stdout is not None
    run.process.stdin.write(json.dumps(follow_request(run.home, run.id)).encode() + b"\n")
    run.process.stdin.close()
    *events, last = read_events(run.process.stdout.fileno())
    chunks = [event for event in events if isinstance(event, Chunk)]
    assert [b"".join(chunk.data for chunk in chunks if chunk.rank == rank) for rank in (0, 1)] == [b"out\n", b"out\n"]
    assert isinstance(last, dict)
    assert (last["event"], last["status"]["state"]) == ("done", "ok")


def test_reconnected_follower_gets_every_byte_once(make: Callable[..., Run]) -> None:
    run = make(SLOW).start()
    offsets: dict[str, int] = {}
    followed = b""
    for more in (50, 120, 200):
        wanted = f"line {more}\n".encode()
        part = Follow(run, offsets=offsets).collect(lambda so_far, wanted=wanted: wanted in so_far.output())  # type: ignore[misc]
        followed += part.output()
        offsets |= part.offsets
    followed += Follow(run, offsets=offsets).collect().output()
    assert followed == b"".join(b"line %d\n" % i for i in range(300))


def test_tail_sends_last_lines_and_then_new_ones(make: Callable[..., Run]) -> None:
    run = make(SLOW, 1).start()
    run.wait_for(b"line 100\n")
    lines = Follow(run, tail=3).collect().output().splitlines()
    first = int(lines[0].split()[1])
    assert first >= 98
    assert lines == [b"line %d" % number for number in range(first, 300)]


def test_tail_after_reconnect_sends_no_older_lines(make: Callable[..., Run]) -> None:
    code = "import os, time\nprint('old ' * 9, flush=True)\nif os.environ['RANK'] == '1': time.sleep(600)\n"
    run = make(code + "for n in range(100):\n print(n, flush=True)\n time.sleep(0.02)\ntime.sleep(600)", 2).start()
    run.wait_for(b"99\n", 0)
    run.wait_for(b"old", 1)
    followed = Follow(run, tail=2).collect(lambda so_far: len(so_far.offsets) == 4)
    assert followed.output(0) == b"98\n99\n"
    assert followed.output(1) == b""
    assert followed.offsets["1.out"] == len("old " * 9) + 1


IN_TURNS = """\
import os, time
rank, turns = int(os.environ['RANK']), os.open('turns', os.O_RDWR | os.O_CREAT | os.O_APPEND)
for n in range(3):
    while os.fstat(turns).st_size < 2 * n + rank:
        time.sleep(0.05)
    time.sleep(0.5)
    os.write(1, b'%d %d\\n' % (rank, n))
    os.write(turns, b'x')
"""
"""Two ranks print in turns, each line in one write."""


def test_finished_output_is_read_in_order_of_time(make: Callable[..., Run]) -> None:
    run = make(IN_TURNS, 2).start()
    run.wait()
    followed = Follow(run).collect()
    times = [event["at"] for event in followed.events if isinstance(event, dict) and "at" in event]
    expected = [b"%d %d\n" % (rank, n) for n in range(3) for rank in range(2)]
    assert [chunk.data for chunk in followed.chunks] == expected
    assert len(times) == 6
    assert all(after - before > 0.1 for before, after in pairwise(times))
    tail = Follow(run, tail=3, follow=False).collect()
    assert [chunk.data for chunk in tail.chunks] == expected[-3:]
    found = Follow(run, grep=r"[01] 1$", follow=False).collect()
    assert [chunk.data for chunk in found.chunks] == expected[2:4]
    both = Follow(run, grep="^1", tail=1, ranks=[0, 1], follow=False).collect()
    assert [chunk.data for chunk in both.chunks] == [b"1 2\n"]


def test_output_without_times_is_read_rank_by_rank(make: Callable[..., Run]) -> None:
    run = make("print('one')\nprint('two')", 2).start()
    run.wait()
    (run.rundir / "output.times").unlink()
    followed = Follow(run).collect()
    assert [chunk.data for chunk in followed.chunks] == [b"one\ntwo\n"] * 2
    assert not [event for event in followed.events if isinstance(event, dict) and "at" in event]
    assert [chunk.data for chunk in Follow(run, tail=1, follow=False).collect().chunks] == [b"two\n"]


@pytest.mark.core
def test_only_requested_ranks_and_streams_are_sent(make: Callable[..., Run]) -> None:
    run = make(SLEEP_FOREVER, 3).start()
    run.wait_for_all(b"here")
    followed = Follow(run, ranks=[1], streams=["out"], follow=False).collect()
    assert {(chunk.rank, chunk.stream) for chunk in followed.chunks} == {(1, "stdout")}
    assert followed.last["status"]["state"] == "running"


def test_lines_are_sent_without_delay(make: Callable[..., Run]) -> None:
    run = make("import time\nfor i in range(40):\n    print(time.time(), flush=True)\n    time.sleep(0.07)").start()
    follow = Follow(run)
    delays: list[float] = []

    def note(so_far: Follow) -> bool:
        event = so_far.events[-1]
        if isinstance(event, Chunk):
            delays.extend(time.time() - float(line) for line in event.data.split())
        return False

    follow.collect(note)
    assert len(delays) == 40
    assert sorted(delays)[20] < 0.7  # some 60 ms where nothing else runs


def sending(
    *files: FollowedFile, is_live: bool = True, grep: str = ""
) -> tuple[OutputReader, OutputSender, list[bytes]]:
    """The output in these files, one of each rank, without times; what sends it, and what was sent."""
    output = OutputReader(
        {(rank, "stdout"): file for rank, file in enumerate(files)},
        TimesReader("/nowhere", len(files)),
        UnstoredReader(0, None),
        is_live=is_live,
    )
    received: list[bytes] = []
    return output, OutputSender(output, OutputFilter(grep, None), CompressedFrameWriter(received.append)), received


def test_remaining_output_of_a_pass_is_sent_without_waiting(tmp_path: Path) -> None:
    file = FollowedFile(str(tmp_path / "0000.out"), 0, "stdout", 0)
    _, sender, _ = sending(file)
    assert (sender.send_some(), sender.is_caught_up) == (False, True)
    (tmp_path / "0000.out").write_bytes(b"x" * 3 * MAX_BYTES)
    assert (sender.send_some(), sender.is_caught_up, file.offset < 2 * MAX_BYTES) == (True, False, True)
    while sender.send_some():
        assert sender.is_caught_up == (file.offset == 3 * MAX_BYTES)
    assert file.offset == 3 * MAX_BYTES


def test_output_written_while_sending_is_sent_after_the_end(tmp_path: Path) -> None:
    """A scan of the files ends exactly where a pass ends, and a file has grown since its scan."""
    chunks_of_a_pass = -(-MAX_BYTES // CHUNK_SIZE)
    streams = [FollowedFile(str(tmp_path / name), rank, "stdout", 0) for rank, name in enumerate(("a", "b"))]
    (tmp_path / "a").write_bytes(b"early\n")
    (tmp_path / "b").write_bytes(b"y" * (2 * chunks_of_a_pass * CHUNK_SIZE))
    output, sender, _ = sending(*streams)
    assert sender.send_some()
    with (tmp_path / "a").open("ab") as file:
        file.write(b"late\n")
    output.is_live = False
    while sender.send_some():
        pass
    assert [file.offset for file in streams] == [len(b"early\nlate\n"), 2 * chunks_of_a_pass * CHUNK_SIZE]


def test_search_without_matches_sends_keepalive_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that gets no frame for 30 seconds counts node0 as lost."""
    monkeypatch.setattr("ipexctl.node.run.follow.TICK_INTERVAL", 0.0)
    (tmp_path / "0000.out").write_bytes(b"x\n" * MAX_BYTES)
    file = FollowedFile(str(tmp_path / "0000.out"), 0, "stdout", 0)
    _, sender, received = sending(file, is_live=False, grep="never")
    sender.send_all(is_final=True)
    reader = CompressedFrameReader()
    frames = [list(reader.feed(data)) for data in received]
    assert len(frames) > MAX_BYTES // CHUNK_SIZE
    assert all((b"J", b"{}") in flushed for flushed in frames)


def test_few_statuses_are_sent_while_many_ranks_start(tmp_path: Path) -> None:
    """Each status names all ranks: 100 statuses of 100 ranks would take the control machine 0.3 s."""
    ranks, path, now, sent = 100, tmp_path / "status.json", 1e9, 0
    watcher, elsewhere = StatusWatcher(str(tmp_path), 2.0), {"pid": 1, "start": 0, "machine": "login7"}

    def is_sent(state: str, running: int) -> bool:
        nonlocal now
        now += 0.02
        states = [{"state": "running" if rank < running else "starting"} for rank in range(ranks)]
        path.write_text(json.dumps({"state": state, "supervisor": elsewhere, "ranks": states}))
        os.utime(path, ns=(0, int(now * 1e9)))
        return watcher.poll(now)[1]

    assert is_sent("starting", 0)
    for running in range(ranks):
        sent += is_sent("starting", running)
    assert sent == 3  # in 2 s
    assert is_sent("running", ranks)
    due = now + RANK_INTERVAL * ranks
    assert not is_sent("running", ranks - 1)
    assert watcher.due_at == pytest.approx(due)
    assert not watcher.poll(due - 0.1)[1]
    assert watcher.poll(due + 0.1)[1]
    assert watcher.due_at == math.inf
    assert is_sent("ok", ranks)


def test_unknown_run_is_reported(make: Callable[..., Run]) -> None:
    followed = Follow(make(SLEEP_FOREVER)).collect()
    assert followed.last["event"] == "failed"
    assert missing(followed.last["reason"], "record") == []
    assert missing(fix_from_json(followed.last["fix"]), "ipexctl ps") == []


def on_runs(run: Run, action: str, **more: Any) -> dict[str, Any]:
    return said(start("run.runs", action, {"home": str(run.home), "id": run.id, "signal": signal.SIGTERM, **more}))


def test_list_and_stop_report_the_state_of_runs(make: Callable[..., Run]) -> None:
    over, on = make("print(1)").start(), make(SLEEP_FOREVER, 2).start()
    over.wait()
    on.wait_for(b"here", 1)
    listed = on_runs(on, "list", ids=[over.id, on.id, "never"])["runs"]
    assert listed[over.id]["state"] == "ok"
    assert listed[on.id]["state"] in ("starting", "running")
    assert listed["never"] is None
    stopped = on_runs(on, "stop", wait=15)
    assert (stopped["was"], stopped["status"]["state"]) in (("running", "stopped"), ("starting", "stopped"))
    assert on.left() == []
    again = on_runs(on, "stop", wait=15)
    assert (again["was"], again["status"]["state"]) == ("stopped", "stopped")
    assert on_runs(over, "stop", wait=15)["was"] == "ok"


def test_process_with_pid_of_a_remote_supervisor_is_not_signalled(tmp_path: Path) -> None:
    run = Run(tmp_path, "")
    with subprocess.Popen(["sleep", "60"]) as process:
        supervisor = {"pid": process.pid, "start": 1, "machine": "login7"}
        run.rundir.mkdir(parents=True)
        (run.rundir / "status.json").write_text(json.dumps({"state": "running", "supervisor": supervisor, "ranks": []}))
        answer = on_runs(run, "stop", wait=0)
        is_alive = process.poll() is None
        process.kill()
    assert is_alive
    assert (answer["event"], "login7" in answer["reason"]) == ("failed", True)


def test_supervisor_that_makes_no_dump_is_waited_for_as_long_as_asked(tmp_path: Path) -> None:
    run = Run(tmp_path, "")
    code = "import signal, time\nsignal.signal(signal.SIGUSR1, lambda *_: None)\nprint(1, flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        supervisor = {"pid": process.pid, "start": read_stat(process.pid).start, "machine": os.uname().nodename}
        run.rundir.mkdir(parents=True)
        (run.rundir / "status.json").write_text(json.dumps({"state": "running", "supervisor": supervisor, "ranks": []}))
        answer = on_runs(run, "dump", ranks=None, wait=0.5)
        process.kill()
    assert (answer["event"], "doesn't answer" in answer["reason"]) == ("failed", True)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"state": "ok", "supervisor": null, "ranks": []}'])
def test_unreadable_record_is_reported(text: str, make: Callable[..., Run]) -> None:
    run = make("print(1)").start()
    run.wait()
    (run.home / "runs" / run.id / "status.json").write_text(text)
    listed = on_runs(run, "list", ids=[run.id, "never"])["runs"]
    assert f"{run.id}/status.json can't be read: " in listed[run.id]["unreadable"]
    assert listed["never"] is None
    assert "status.json can't be read: " in on_runs(run, "stop", wait=15)["reason"]


def ended_run(tmp_path: Path, size: int) -> Path:
    """An ended run with this number of ranks, each with a line."""
    rundir = tmp_path / "runs" / "r1"
    (rundir / "ranks").mkdir(parents=True)
    rows = [{"rank": rank, "state": "ok"} for rank in range(size)]
    status = {"state": "ok", "supervisor": {"pid": 1, "start": 0}, "ranks": rows, "world_size": size, "exit_code": 0}
    (rundir / "status.json").write_text(json.dumps(status))
    for rank in range(size):
        for stream in ("out", "err"):
            (rundir / "ranks" / f"{rank:04}.{stream}").write_text(f"{rank}\n")
    return rundir


def followed_with(tmp_path: Path, soft: int, hard: int) -> tuple[set[tuple[int, str]], dict[str, Any]]:
    """The streams that were sent with this limit of open files, and the last event."""
    limits: dict[str, Any] = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))}
    with start("run.follow", "follow", follow_request(tmp_path, "r1"), **limits) as process:
        assert process.stdout is not None
        *events, last = read_events(process.stdout.fileno())
    assert isinstance(last, dict)
    return {(event.rank, event.stream) for event in events if isinstance(event, Chunk)}, last


def test_run_with_more_ranks_than_open_files_limit_is_followed(tmp_path: Path) -> None:
    ended_run(tmp_path, 40)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    followed, last = followed_with(tmp_path, 32, hard)
    assert followed == {(rank, stream) for rank in range(40) for stream in ("stdout", "stderr")}
    assert last["event"] == "done"


def test_stream_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    ended_run(tmp_path, 40)
    _, last = followed_with(tmp_path, 32, 32)
    assert last["event"] == "failed"
    assert "Too many open files" in last["reason"]


def test_final_status_written_during_the_check_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rundir = ended_run(tmp_path, 1)
    final = (rundir / "status.json").read_text()
    (rundir / "status.json").write_text(json.dumps({**json.loads(final), "state": "running"}))

    def ends_meanwhile(_: object) -> bool:
        (rundir / "status.json").write_text(final)
        return False

    monkeypatch.setattr(ProcessIdentity, "is_alive", property(ends_meanwhile))
    assert read_status_file(str(rundir)).status.state == "ok"
    assert (rundir / "status.json").read_text() == final

"""The output of a run on a pipe: complete `[RANK] line` lines in order."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict

import pytest

from ipexctl.node.common.frames import Chunk, Note, StreamName
from ipexctl.node.common.records import Failure, RunStatus
from ipexctl.node.run.record.output_notes import note_line
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import Notice
from ipexctl.run.follow_run import RunEnded
from ipexctl.run.ranks import parse_ranks
from ipexctl.ui.run.plain import PlainRun
from message_data import missing

Captured = pytest.CaptureFixture[str]


def test_streams_are_separate_and_ipexctl_messages_have_no_rank(capfd: Captured) -> None:
    with PlainRun(Cancel()) as plain:
        plain.watch(Notice("a message"))
        plain.watch(Chunk(0, "stdout", b"epoch 1\nepo"))
        plain.watch(Chunk(1, "stderr", b"careful\n"))
        plain.watch(Chunk(0, "stdout", b"ch 2\nlast without an end"))
        plain.watch(Notice("WARNING", warning=True))
    out, err = capfd.readouterr()
    assert out == "[0] epoch 1\n[0] epoch 2\n[0] last without an end\n"
    assert err == "a message\n[1] careful\nwarning: WARNING\n"


def note(rank: int, stream: StreamName, kind: str, **fields: object) -> Note:
    return Note(rank, stream, note_line(kind, fields), 0, None, kind, fields)


def test_notes_are_on_stderr_and_a_line_in_the_same_words_is_the_ranks(capfd: Captured) -> None:
    reason = "rank 1 on node2 ended with exit code 5"
    with PlainRun(Cancel()) as plain:
        for rank in (0, 1):
            restart = note(rank, "stdout", "restart", attempt=1, restarts=2, reason=reason)
            plain.watch(Chunk(rank, "stdout", b"before\n" + restart.data))
            plain.watch(restart)
            plain.watch(Chunk(rank, "stderr", b"ipexctl: node1: mine\n"))
            plain.watch(restart._replace(stream="stderr"))
        plain.watch(note(0, "stdout", "gap", bytes=7, host="node2"))
        plain.watch(note(1, "stderr", "not-started", host="node2", reason="train: No such file\x1b[31m"))
    out, err = capfd.readouterr()
    each = ["[{}] before", f"[{{}}] [ipexctl: restart 1 of 2 after: {reason}]"]
    assert out.splitlines() == [line.format(rank) for rank in (0, 1) for line in each]
    assert err.splitlines() == [
        f"restart 1 of 2 after: {reason}",
        "[0] ipexctl: node1: mine",
        "[1] ipexctl: node1: mine",
        "rank 0, stdout: 7 bytes are missing here, because the disk of node2 was full",
        "rank 1, stderr: node2: train: No such file\ufffd[31m",
    ]


def test_timestamps_are_the_end_of_the_line_after_the_rank(capfd: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    with PlainRun(Cancel(), timestamps=True) as plain:
        plain.watch(Chunk(0, "stdout", b"begun", 0, 0.25))
        plain.watch(Chunk(0, "stdout", b" and ended\nnext\n", 5, 1.5))
        plain.watch(note(0, "stdout", "gap", bytes=7, host="n"))
        plain.watch(Chunk(1, "stdout", b"of an older version\n"))
        plain.watch(Chunk(2, "stdout", b"a forged time\n", 0, 1e300))
    out, err = capfd.readouterr()
    monkeypatch.undo()
    time.tzset()
    assert out.splitlines() == [
        "[0] 1970-01-01T09:00:01.500+09:00 begun and ended",
        "[0] 1970-01-01T09:00:01.500+09:00 next",
        "[1] - of an older version",
        "[2] - a forged time",
    ]
    assert missing(err, "rank 0 stdout 7 bytes") == []


def test_multiline_mpirun_message_keeps_its_lines(capfd: Captured) -> None:
    with PlainRun(Cancel()) as plain:
        plain.watch(Notice("mpirun ended\n  no such host\x1b[31m\n  bye", warning=True))
    assert capfd.readouterr().err == "warning: mpirun ended\n    no such host\ufffd[31m\n    bye\n"


def test_only_selected_ranks_are_shown(capfd: Captured) -> None:
    with PlainRun(Cancel(), ranks=parse_ranks("1-2")) as plain:
        for rank in range(4):
            plain.watch(Chunk(rank, "stdout", b"here\n"))
    assert capfd.readouterr().out == "[1] here\n[2] here\n"


def test_invalid_utf8_and_escape_sequences_pass_unchanged(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with PlainRun(Cancel()) as plain:
        plain.watch(Chunk(0, "stdout", b"\xff\x00\x1b[31mred\x1b[0m\n"))
    assert capfdbinary.readouterr().out == b"[0] \xff\x00\x1b[31mred\x1b[0m\n"


def test_summary_names_the_first_failure_and_the_logs_command(capfd: Captured) -> None:
    first, reason = Failure(3, "node2", None, 9), "rank 3 on node2 was killed by SIGKILL"
    status = RunStatus(
        "r7", "failed", nodes=2, world_size=4, started=0.5, ended=62, exit_code=137, first_failure=first, reason=reason
    )
    with PlainRun(Cancel()) as plain:
        plain.watch(Chunk(3, "stdout", b"half a li"))
        plain.watch(RunEnded(137, status))
    out, err = capfd.readouterr()
    assert out == "[3] half a li\n"
    assert missing(err, "r7 1:01 3 node2 SIGKILL ipexctl logs r7 -r 3") == []
    assert len(err.splitlines()) == 2


def test_quiet_shows_warnings_only(capfd: Captured) -> None:
    with PlainRun(Cancel(), quiet=True) as plain:
        plain.watch(Notice("fine"))
        plain.watch(Notice("not fine", warning=True))
        plain.watch(RunEnded(0, RunStatus("r7", "ok")))
    assert capfd.readouterr().err == "warning: not fine\n"


def test_output_of_many_ranks_is_complete_and_in_order(capfd: Captured) -> None:
    text = {rank: b"".join(b"%d says %d\n" % (rank, number) for number in range(2000)) for rank in range(8)}
    with PlainRun(Cancel()) as plain:
        for start in range(0, max(map(len, text.values())), 777):
            for rank, data in text.items():
                plain.watch(Chunk(rank, "stdout", data[start : start + 777]))
    seen: dict[str, list[str]] = defaultdict(list)
    for line in capfd.readouterr().out.splitlines():
        prefix, _, rest = line.partition(" ")
        seen[prefix].append(rest)
    assert seen == {f"[{rank}]": data.decode().splitlines() for rank, data in text.items()}


def stdout_without_reader(monkeypatch: pytest.MonkeyPatch) -> int:
    reader, writer = os.pipe()
    monkeypatch.setattr("sys.stdout", os.fdopen(writer, "w"))
    return reader


def test_cancel_ends_writes_to_a_blocked_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = stdout_without_reader(monkeypatch)
    cancel = Cancel()
    plain = PlainRun(cancel)
    threading.Timer(0.3, cancel.throw).start()
    began = time.monotonic()
    for _ in range(200):
        plain.watch(Chunk(0, "stdout", b"x" * 99_999 + b"\n"))
    plain.close()
    assert time.monotonic() - began < 5
    os.close(reader)


def test_closed_stdout_cancels_the_run_view(monkeypatch: pytest.MonkeyPatch) -> None:
    os.close(stdout_without_reader(monkeypatch))
    cancel = Cancel()
    with PlainRun(cancel) as plain:
        for _ in range(50):
            plain.watch(Chunk(0, "stdout", b"line\n"))
            time.sleep(0.001)
    assert cancel.thrown
    assert isinstance(plain.broken, BrokenPipeError)


TRACEBACK = b"""Traceback (most recent call last):
  File "/p/train.py", line 3, in <module>
    main()
FileNotFoundError: [Errno 2] No such file: 'data.bin'
"""
CHAINED = b"""
The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/p/train.py", line 5, in <module>
    raise RuntimeError("no data") from error
RuntimeError: no data
"""


@pytest.mark.parametrize("folds", [True, False])
def test_a_traceback_that_several_ranks_print_is_shown_once(capfd: Captured, folds: bool) -> None:
    text = TRACEBACK + CHAINED
    with PlainRun(Cancel(), folds=folds) as plain:
        for rank in (0, 1, 2):
            for at in range(0, len(text), 60 + rank):
                plain.watch(Chunk(rank, "stderr", text[at : at + 60 + rank]))
        plain.watch(Chunk(1, "stderr", b"of rank 1\n"))
    _, err = capfd.readouterr()
    lines = err.splitlines()
    assert [line for line in lines if line.startswith("[0] ")] == [f"[0] {line}" for line in text.decode().splitlines()]
    assert "[1] of rank 1" in lines
    said = [line for line in lines if "the same traceback" in line]
    shown = sum("Traceback" in line for line in lines)
    if folds:
        ends = ["FileNotFoundError: [Errno 2] No such file: 'data.bin'", "RuntimeError: no data"]
        folded = [f"[{rank}] the same traceback as rank 0: {end}" for rank in (1, 2) for end in ends]
        assert (said, shown) == (folded, 2)
    else:
        assert (said, shown) == ([], 6)


def test_tracebacks_of_torch_are_compared_without_its_prefix_and_others_are_shown(capfd: Captured) -> None:
    with PlainRun(Cancel(), folds=True) as plain:
        for rank in (0, 1):
            lines = TRACEBACK.splitlines(keepends=True)
            plain.watch(Chunk(rank, "stderr", b"".join(b"[rank%d]: " % rank + line for line in lines)))
        plain.watch(Chunk(2, "stderr", TRACEBACK.replace(b"data.bin", b"other.bin")))
        plain.watch(Chunk(3, "stderr", b"Traceback (most recent call last):\n  File 'cut short'\n"))
        plain.watch(RunEnded(1))
    _, err = capfd.readouterr()
    assert err.count("the same traceback as rank 0: FileNotFoundError: [Errno 2] No such file: 'data.bin'") == 1
    assert "[2] FileNotFoundError: [Errno 2] No such file: 'other.bin'" in err
    assert "[3]   File 'cut short'" in err


def test_a_traceback_is_shown_at_its_exception_and_an_unfinished_one_at_the_end(capfd: Captured) -> None:
    with PlainRun(Cancel(), folds=True) as plain:
        plain.watch(Chunk(0, "stderr", TRACEBACK[:60]))
        plain.watch(Notice("before"))
        plain.watch(Chunk(0, "stderr", TRACEBACK[60:]))
        plain.watch(Notice("after"))
        plain.watch(Chunk(0, "stderr", b"Traceback (most recent call last):\n  File\n"))
    found = [line.split()[0] for line in capfd.readouterr().err.splitlines()]
    assert found == ["before", *["[0]"] * 4, "after", *["[0]"] * 2]

"""Messages, frames and files between agent and control machine: checked and bounded."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import resource
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from agent_helpers import wait_until
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.frames import Chunk, CompressedFrameReader, CompressedFrameWriter, FrameError, encode_chunk
from ipexctl.node.common.liveness import RESERVED_FILE
from ipexctl.node.common.processes import has_exited, pid_scope, start_of
from ipexctl.node.common.records import Detail, RunStatus
from ipexctl.node.common.token_proof import MessageSocket, message
from ipexctl.node.files.file_stream import CHUNK, END, FilePart, WantedFile, header_line, read_files
from ipexctl.node.run.connection.messages import MAX_TEXT, BareMessage, Exit, read_message
from ipexctl.node.run.decisions.supervisor_state import Disconnected, WrapperProcess
from ipexctl.node.run.record.recorder import Recorder
from ipexctl.node.run.supervisor.host_calls import HostAnswer, HostCalls, gone_ranks
from ipexctl.node.run.supervisor.rank_connections import RankConnection, RankConnections


def exit_message(problem: object) -> bytes:
    return json.dumps({"t": "exit", "code": 127, "is_own": True, "problem": problem}).encode()


@pytest.mark.parametrize(("size", "kept"), [(MAX_TEXT, MAX_TEXT), (MAX_TEXT + 1, MAX_TEXT)])
def test_detail_of_a_rank_is_bounded(size: int, kept: int) -> None:
    fields = {f"field{number}": "x" * size for number in range(9)}
    message = read_message(exit_message({"kind": "k" * 99, "fields": fields}))
    assert isinstance(message, Exit)
    assert message.problem is not None
    assert len(message.problem.kind) == 40
    assert [len(text) for text in message.problem.fields.values()] == [kept] * 8


def test_detail_is_read_and_may_be_missing() -> None:
    problem = {"kind": "no-command", "fields": {"file": "x"}}
    assert read_message(exit_message(problem)) == Exit(127, True, problem=Detail("no-command", {"file": "x"}))
    assert read_message(exit_message(None)) == Exit(127, True)


@pytest.mark.parametrize("problem", ["text", {"fields": {}}, {"kind": "k", "fields": {"a": 1}}, {"kind": 7}])
def test_malformed_detail_is_refused(problem: object) -> None:
    with pytest.raises(FrameError):
        read_message(exit_message(problem))


MEBIBYTE = 1 << 20
"""The reader decompresses at most this many bytes at once."""


@pytest.mark.timeout(30)
@pytest.mark.parametrize("size", [MEBIBYTE - 18, MEBIBYTE - 17, MEBIBYTE, 2 * MEBIBYTE, 3 * MEBIBYTE - 5])
@pytest.mark.parametrize("seed", range(4))
def test_reader_decodes_a_stream_split_anywhere_and_stops_at_its_end(size: int, seed: int) -> None:
    received: list[bytes] = []
    writer = CompressedFrameWriter(received.append)
    sent = [Chunk(0, "stdout", bytes([65 + index]) * (size // 3), index) for index in range(3)]
    for chunk in sent:
        writer.send(encode_chunk(chunk))
    writer.close()
    stream, after = b"".join(received), b'{"event": "done"}\n'
    reader, cuts = CompressedFrameReader(), random.Random(seed)
    data, frames = stream + after, 0
    while not reader.is_over:
        piece, data = data[: (length := cuts.choice([1, 7, 100, 4096, 65536]))], data[length:]
        frames += sum(1 for _ in reader.feed(piece))
    assert frames == len(sent)
    assert reader.rest + data == after


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ({"size": 7}, (7, 0, 7)),
        ({"size": 7, "offset": 3}, (7, 3, 4)),
        ({"size": 7, "offset": 3, "length": 2}, (7, 3, 2)),
        ({"size": 7, "offset": 7}, (7, 7, 0)),
        ({"size": 0, "length": 0}, (0, 0, 0)),
    ],
)
def test_bytes_of_a_header_have_a_place_in_their_file(header: dict[str, Any], part: tuple[int, int, int]) -> None:
    assert FilePart.of(header) == part


@pytest.mark.parametrize(
    "header",
    [
        *({}, {"size": -1}, {"size": None}, {"size": True}, {"size": 7.0}, {"size": "7"}),
        *({"size": 7, "offset": 8}, {"size": 7, "offset": -1}, {"size": 7, "offset": None}, {"size": 7, "offset": [3]}),
        *({"size": 7, "length": 8}, {"size": 7, "offset": 3, "length": 5}, {"size": 7, "length": -1}),
    ],
)
def test_bytes_that_are_not_in_their_file_are_refused(header: dict[str, Any]) -> None:
    with pytest.raises(AgentError, match="header of a file"):
        FilePart.of(header)


@pytest.mark.parametrize("wanted", [WantedFile("a" * 64, 3), WantedFile(0), WantedFile(7, 5, "b" * 64)])
def test_request_for_a_file_comes_back_from_json(wanted: WantedFile) -> None:
    assert WantedFile.of(json.loads(json.dumps(wanted))) == wanted


@pytest.mark.parametrize(
    "row",
    [
        *(None, {}, [], [0], [0, 1], [0, 1, None, 2], "abc"),
        *([None, 0, None], [True, 0, None], [0, -1, None], [0, True, None], [0, 1.5, None], [0, 1, 2], [[0], 0, None]),
    ],
)
def test_malformed_request_for_a_file_is_refused(row: object) -> None:
    with pytest.raises(AgentError, match="request for a file"):
        WantedFile.of(row)


def test_content_is_read_only_with_its_hash() -> None:
    sha256 = hashlib.sha256(b"abc").hexdigest()
    header = header_line({"sha256": sha256, "size": 3})
    stream = io.BytesIO(header + b"abc" + header + b"abX" + END + b"not read")
    files = read_files(stream)
    assert next(files).content("REASON") == b"abc"
    with pytest.raises(AgentError, match="REASON"):
        next(files).content("REASON")
    assert list(files) == []
    assert stream.read() == b"not read"


def test_a_group_of_small_files_has_one_header_and_no_more_bytes_than_fit_into_memory() -> None:
    contents = [b"abc", b"", b"de"]
    rows = [[hashlib.sha256(content).hexdigest(), len(content)] for content in contents]
    stream = io.BytesIO(header_line({"many": rows}) + b"".join(contents) + END)
    assert [file.content("REASON") for file in read_files(stream)] == contents
    with pytest.raises(AgentError, match="broke off"):
        list(read_files(io.BytesIO(header_line({"many": rows}) + b"abcd")))


@pytest.mark.parametrize(
    "rows",
    [[["a" * 64, CHUNK], ["b" * 64, 1]], [["a" * 64, -1]], [["a" * 64]], [["a" * 64, "1"]], [1], "abc", None, {}, []],
)
def test_malformed_group_is_refused(rows: object) -> None:
    with pytest.raises(AgentError, match="other bytes"):
        list(read_files(io.BytesIO(header_line({"many": rows}) + END)))


class Heard:
    """The owner of the connections; it hears what is said."""

    is_disk_full = False

    def __init__(self) -> None:
        self.heard: list[object] = []

    def on_message(self, _: object, message: object) -> None:
        self.heard.append(message)

    def on_event(self, event: object) -> None:
        self.heard.append(event)


def test_an_announcement_counts_although_a_reset_followed_it(tmp_path: Path) -> None:
    """A rank that closes with unread bytes resets the connection, and node0 may notice that as it writes."""
    recorder, owner = Recorder(str(tmp_path), RunStatus("r", "running")), Heard()
    connections = RankConnections("t" * 64, [], owner, {})  # type: ignore[arg-type]
    peer = RankConnection(3, recorder.sinks(3, "node2"), recorder.windows(3))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as rank:
        peer.conn = conn = MessageSocket(server.accept()[0])
        connections._peers[conn] = peer
        connections.acknowledge(peer)
        conn.flush()
        rank.sendall(message("reconnecting"))
        time.sleep(0.1)
        rank.close()
        time.sleep(0.1)
        connections.acknowledge(peer)
        connections.handle_ready([], 1.0)
    assert [owner.heard[0], *map(type, owner.heard[1:])] == [BareMessage.RECONNECTING, Disconnected]


def test_a_host_says_which_wrappers_are_gone() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        here = WrapperProcess(process.pid, start_of(process.pid), pid_scope())
        reused, elsewhere = here._replace(start=here.start + 1), here._replace(start=1, scope="another-4026531836")
        wrappers = {3: here, 4: reused, 5: elsewhere, 6: here._replace(pid=1 << 30)}
        assert not has_exited(*here)
        assert not has_exited(*elsewhere), "nothing is known about another machine"
        assert has_exited(*reused)
        assert gone_of(wrappers) == (4, 6)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert gone_of(wrappers) == (3, 4, 6), "a zombie is gone, too"
        assert has_exited(*here)


def gone_of(wrappers: dict[int, WrapperProcess]) -> tuple[int, ...]:
    calls = HostCalls(SHELL, dict(os.environ), 1.0)
    calls.ask_wrappers("node2", "node2", wrappers)
    return gone_ranks(answer_to(calls, 20))


def test_ranks_are_read_only_from_an_answer() -> None:
    assert gone_ranks(HostAnswer("node2", "3 4 x", 75)) == (3, 4)
    assert gone_ranks(HostAnswer("node2", "3 4", 255)) == ()


FLOOD = "head -c 200000000 /dev/zero >&2; echo >&2; echo refused >&2; exit 1"
SHELL = ("sh", "-c", 'eval "$2"', "sh")


def answer_of(line: str, seconds: float, stdin: bytes = b"") -> HostAnswer:
    calls = HostCalls(SHELL, dict(os.environ), 1.0)
    calls.begin("node2", "node2", line, stdin, seconds)
    return answer_to(calls, seconds)


def answer_to(calls: HostCalls, seconds: float) -> HostAnswer:
    answers: list[HostAnswer] = []

    def is_answered() -> bool:
        answers.extend(calls.take())
        return calls.is_over

    wait_until(is_answered, seconds + 10)
    (answer,) = answers
    return answer


@pytest.mark.parametrize(
    ("line", "seconds", "problem", "code"),
    [
        ("cat >/dev/null", 20, "", 0),
        ("echo warning >&2", 20, "", 0),
        ("echo first >&2; echo; echo last >&2; exit 3", 20, "last", 3),
        ("exit 3", 20, "its shell ended with exit code 3", 3),
        ("sleep 30", 0.3, "no answer within 0.3 s", 0),
        ("yes >&2", 0.3, "no answer within 0.3 s", 0),
        ("sleep 30 & echo in the background >&2; exit 1", 20, "in the background", 1),
        (FLOOD, 60, "refused", 1),
    ],
)
def test_a_host_has_one_answer(line: str, seconds: float, problem: str, code: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert answer_of(line, seconds, b"x" * 1_000_000) == HostAnswer("node2", problem, code)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KB


def test_a_host_has_one_job_at_a_time_and_none_after_the_run(tmp_path: Path) -> None:
    """Each has the token of the run; a rank removes the one that it has read."""
    rundir, calls = tmp_path / "a run", HostCalls(SHELL, dict(os.environ), 1.0)
    rundir.mkdir()
    for name in ("agent.zip", "job.json", "job.1.json"):
        (rundir / name).write_text(name)
    calls.find("node2", "node2", str(rundir))
    assert answer_to(calls, 20) == HostAnswer("node2", "")
    calls.give_job("node2", "node2", str(rundir / "job.2.json"), "{}")
    assert answer_to(calls, 20) == HostAnswer("node2", "")
    assert {path.name for path in rundir.iterdir()} == {"agent.zip", RESERVED_FILE, "job.2.json"}
    assert (rundir / "job.2.json").stat().st_mode & 0o777 == 0o600
    calls.release("node2", "node2", str(rundir))
    assert answer_to(calls, 20) == HostAnswer("node2", "")
    assert [path.name for path in rundir.iterdir()] == ["agent.zip"]

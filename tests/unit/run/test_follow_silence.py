"""A node0 that falls silent or away: the follower says so, connects again for --reconnect seconds, and ends."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from fakes import FakeSession, Sink
from ipexctl.hosts.host import Host
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.frames import CompressedFrameWriter, encode_json
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.outcome import ChangedKey, HostError, Notice, Unreachable
from ipexctl.remote.reply import MalformedReply
from ipexctl.remote.session import CommandEnd, Readable, Session
from ipexctl.run import follow_run as follow
from ipexctl.run.follow_run import Follower, RunEnded, RunUpdate
from record_helpers import run_record

SILENCE = 0.3
HOST = Host("node1", "node1")
STATUS: dict[str, Any] = {"state": "running", "supervisor": {}, "ranks": [], "exit_code": None}
LAST = b'{"event": "done", "status": {"state": "ok", "supervisor": {}, "ranks": [], "exit_code": 0}}\n'


class Node0(FakeSession):
    """Sends frames with pauses between them; then the run is over, or nothing follows until the session is closed.

    A program that is killed ends at once.
    """

    def __init__(
        self, frames: list[dict[str, Any]], pause: float, *, is_over: bool, junk: bytes = b"", is_killed: bool = False
    ) -> None:
        super().__init__(HOST)
        self.frames, self.pause, self.is_over, self.junk, self.is_killed = frames, pause, is_over, junk, is_killed
        self.gone = threading.Event()

    def answer(self, command: Command, sink: Sink, stdin: Readable | None) -> CommandEnd:
        def write(data: bytes) -> None:
            sink("stdout", data)

        if self.frames or not self.is_killed:
            write(b'{"event": "frames"}\n')
        writer = CompressedFrameWriter(write)
        for frame in self.frames:
            if self.gone.wait(self.pause):
                raise Unreachable("the connection was lost")
            writer.send(encode_json(frame))
            writer.flush()
        if self.is_over:
            writer.close()
            write(LAST)
            return CommandEnd(0)
        if self.is_killed:
            sink("stderr", self.junk)
            return CommandEnd(137)
        while not self.gone.wait(0.05):
            sink("stderr", self.junk)
        raise Unreachable("the connection was lost")

    def close(self) -> None:
        self.gone.set()


@pytest.fixture(autouse=True)
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "NODE0_SILENCE", SILENCE)
    monkeypatch.setattr(follow, "RETRY_INTERVALS", (0.01,))


def follow_through(
    *sessions: Node0, blocked: float = 0, seconds: float = 60, last: Unreachable | None = None
) -> tuple[Follower, list[RunUpdate]]:
    """After the last session, node0 can't be reached."""
    left = iter(sessions)
    watched: list[RunUpdate] = []

    def open_session(cancel: Cancel) -> Session:
        del cancel
        if (session := next(left, None)) is None:
            raise last or Unreachable("no route to host")
        return session

    def watch(event: RunUpdate) -> None:
        time.sleep(blocked)
        watched.append(event)

    record = run_record("r1", HOST, "/home/me/.ipexctl", "python3", world_size=2)
    return Follower(record, open_session, watch, Cancel(), reconnect=seconds), watched


@pytest.mark.parametrize("junk", [b"", b"junk\n" * 100])
def test_a_node0_that_sends_nothing_is_unreachable(junk: bytes) -> None:
    follower, _ = follow_through(Node0([], 0, is_over=False, junk=junk))
    started = time.monotonic()
    with pytest.raises(Unreachable, match="nothing has come"):
        follower.follow()
    assert time.monotonic() - started < SILENCE + 2


def warnings(watched: list[RunUpdate]) -> list[str]:
    return [event.text for event in watched if isinstance(event, Notice) and event.warning]


def test_a_node0_that_sends_one_frame_and_falls_silent_again_and_again_holds_no_call_for_ever() -> None:
    silent = [Node0([{"status": STATUS}], 0, is_over=False) for _ in range(40)]
    follower, watched = follow_through(*silent, seconds=4.5 * SILENCE)
    with pytest.raises(Unreachable) as caught:
        follower.follow()
    assert 3 <= sum(session.gone.is_set() for session in silent) <= 6
    assert "ipexctl attach r1" in caught.value.fix
    assert "ipexctl why r1" in caught.value.fix
    assert all("node1" in text for text in warnings(watched))


def test_a_node0_that_is_away_ends_the_call_after_the_seconds_of_reconnect() -> None:
    follower, watched = follow_through(Node0([{"status": STATUS}], 0, is_over=False), seconds=2 * SILENCE)
    started = time.monotonic()
    with pytest.raises(Unreachable, match="no route to host"):
        follower.follow()
    assert 2 * SILENCE <= time.monotonic() - started < 2 * SILENCE + 2
    assert follower.unseen is not None and follower.unseen >= 2 * SILENCE
    assert len(warnings(watched)) == 1
    assert "--reconnect" in warnings(watched)[0]
    assert not any("continues" in text or "goes on" in text for text in warnings(watched))


def test_a_changed_host_key_ends_the_call_at_once_with_the_line_that_shows_the_key() -> None:
    changed = ChangedKey("its host key CHANGED", Fix("`ssh-keygen -lf k.pub` there shows it"))
    follower, _ = follow_through(Node0([{"status": STATUS}], 0, is_over=False), last=changed)
    started = time.monotonic()
    with pytest.raises(Unreachable, match="CHANGED; run r1 may still be running") as caught:
        follower.follow()
    assert time.monotonic() - started < SILENCE + 2
    assert caught.value.fix == "ssh-keygen -lf k.pub there shows it; then: ipexctl attach r1"


def test_without_seconds_to_reconnect_the_first_loss_ends_the_call() -> None:
    follower, watched = follow_through(Node0([{"status": STATUS}], 0, is_over=False), seconds=0)
    with pytest.raises(Unreachable):
        follower.follow()
    assert not warnings(watched)


def test_one_silence_is_a_lost_connection() -> None:
    follower, watched = follow_through(
        Node0([{"status": STATUS}], 0, is_over=False), Node0([{"status": STATUS}], 0, is_over=True)
    )
    assert follower.follow().exit_code == 0
    assert isinstance(watched[-1], RunEnded)


def test_a_run_without_output_is_followed_to_its_end() -> None:
    follower, watched = follow_through(Node0([{"status": STATUS}, *[{}] * 8], SILENCE / 3, is_over=True))
    assert follower.follow().exit_code == 0
    assert not [event for event in watched if isinstance(event, Notice)]


def test_blocked_terminal_does_not_count_as_silence_of_node0() -> None:
    follower, watched = follow_through(Node0([{"status": STATUS}] * 2, 0, is_over=True), blocked=2 * SILENCE)
    assert follower.follow().exit_code == 0
    assert not [event for event in watched if isinstance(event, Notice)]


@pytest.mark.parametrize("status", [[None], "running", None])
def test_a_status_that_is_no_object_is_refused(status: object) -> None:
    follower, _ = follow_through(Node0([{"status": status}], 0, is_over=True))
    with pytest.raises(MalformedReply):
        follower.follow()


@pytest.mark.parametrize("reconnect_for", [0, 60])
def test_a_program_that_is_killed_on_node0_is_started_again(reconnect_for: float) -> None:
    killed = [Node0([{"status": STATUS}], 0, is_over=False, is_killed=True) for _ in range(3)]
    follower, watched = follow_through(*killed, Node0([{"status": STATUS}], 0, is_over=True), seconds=reconnect_for)
    assert follower.follow().exit_code == 0
    assert [text.count("node1") for text in warnings(watched)] == [1, 1, 1]
    assert all("exit code 137" in text for text in warnings(watched))


@pytest.mark.parametrize("frames", [[], [{"status": STATUS}]])
def test_a_python_that_fails_at_each_start_ends_the_call(frames: list[dict[str, Any]]) -> None:
    broken = [Node0(frames, 0, is_over=False, is_killed=True, junk=b"Illegal instruction\n") for _ in range(50)]
    follower, watched = follow_through(Node0([{"status": STATUS}], 0, is_over=False), *broken)
    with pytest.raises(HostError) as caught:
        follower.follow()
    assert not isinstance(caught.value, Unreachable)
    assert "5 times" in caught.value.reason
    assert "Illegal instruction" in caught.value.reason
    assert "may still be running" in caught.value.reason
    assert "ipexctl attach r1" in caught.value.fix
    assert len(warnings(watched)) == 5  # the silence of the first program, and four starts


def test_an_end_of_a_program_that_has_followed_for_long_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "NODE0_STEADY", 0.0)
    killed = [Node0([{"status": STATUS}], 0, is_over=False, is_killed=True) for _ in range(12)]
    follower, _ = follow_through(*killed, Node0([{"status": STATUS}], 0, is_over=True))
    assert follower.follow().exit_code == 0


def test_a_program_that_was_never_heard_ends_the_call_at_once() -> None:
    follower, watched = follow_through(Node0([], 0, is_over=False, is_killed=True))
    with pytest.raises(HostError, match="exit code 137"):
        follower.follow()
    assert not watched

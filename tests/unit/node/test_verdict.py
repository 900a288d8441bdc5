"""The verdict of a run: the first rank that failed, the ranks that followed, lost nodes."""

from __future__ import annotations

import time
import types
from dataclasses import dataclass, field
from typing import Any

import pytest

from ipexctl.node.common.records import OutOfMemory, RankStatus, RunStatus
from ipexctl.node.run import verdict as module
from ipexctl.node.run.messages import Exit
from message_data import missing

NOW = 1000.0


@dataclass(eq=False)
class Peer:
    rank: int
    host: str
    quiet: float = 1.0
    instance: str | None = "x"
    exit: Exit | None = None
    outside_signal: int | None = None
    closed_by_peer: bool = False
    disconnected_at: float | None = None
    lost_at: float = 0.0
    status: RankStatus = field(default_factory=lambda: RankStatus(0, "", "running", 1))

    def seconds_silent(self, now: float) -> float:
        return self.quiet


def cluster(hosts: int = 3) -> list[Peer]:
    return [Peer(rank, f"node{rank // 2 + 1}") for rank in range(2 * hosts)]


class Record:
    """A recorder that writes no file."""

    def __init__(self) -> None:
        self.status = RunStatus("r", "running", node0="node1")
        self.ends = 0

    def end(self) -> None:
        self.ends += 1

    def event(self, name: str, **fields: Any) -> None: ...


def verdict() -> tuple[Any, Record]:
    record = Record()
    return module.RunVerdict(record, record.end), record  # type: ignore[arg-type]


def first_failure_fields(record: Record) -> tuple[Any, ...]:
    first = record.status.first_failure
    assert first is not None
    return first.kind, first.rank, first.host, list(first.ranks)


def test_first_failed_rank_gives_first_failure_and_exit_code() -> None:
    judge, record = verdict()
    peers = cluster()
    judge.on_exit(peers[3], Exit(3, True))
    judge.on_exit(peers[0], Exit(1, True))
    assert record.ends == 1
    assert first_failure_fields(record) == ("exit", 3, "node2", [3])
    assert (judge.ending.code, record.status.reason) == (3, "rank 3 on node2 ended with exit code 3")
    assert peers[0].status.state == "failed"


def test_oom_kill_reported_later_replaces_an_exception_as_first_failure() -> None:
    judge, record = verdict()
    peers = cluster()
    judge.on_exit(peers[0], Exit(1, True))
    judge.on_exit(peers[4], Exit(137, True, 9, OutOfMemory("cgroup", 2 << 30)))
    assert first_failure_fields(record) == ("oom", 4, "node3", [4])
    assert record.status.reason == "rank 4 on node3 was killed by the kernel: out of memory (limit 2.0 GB)"
    assert judge.ending.code == 137


def test_ranks_stopped_by_the_supervisor_are_not_the_first_failure() -> None:
    judge, record = verdict()
    peers = cluster()
    judge.on_exit(peers[0], Exit(1, True))
    judge.on_exit(peers[1], Exit(137, False, 9))
    assert first_failure_fields(record)[:2] == ("exit", 0)
    assert peers[1].status.state == "stopped"


@pytest.mark.parametrize("end", [Exit(143, False, 15), Exit(0, False)])
def test_a_rank_that_gave_up_a_suspended_supervisor_fails_the_run(end: Exit) -> None:
    """It ended its command, whatever that made of SIGTERM, before anything had ended the run."""
    judge, record = verdict()
    peers = cluster()
    judge.on_exit(peers[2], end)
    assert first_failure_fields(record) == ("lost", None, None, [2])
    assert (record.status.first_failure.detail.kind, judge.ending.code) == ("gave-up", 1)  # type: ignore[union-attr]
    assert peers[2].status.state == "stopped"


@pytest.mark.parametrize(
    ("quiet", "words", "first"),
    [
        ({2: 25.1, 3: 24}, "node2 (ranks 2-3)", ("lost", 2, "node2", [2, 3])),
        ({3: 25.1}, "rank 3 on node2", ("lost", 3, "node2", [3])),
        (
            {2: 25.1, 3: 24, 4: 23, 5: 25},
            "(ranks 2-5) node1",
            ("lost", None, None, []),
        ),
    ],
)
def test_silent_nodes_are_named_with_their_ranks(quiet: dict[int, float], words: str, first: tuple[Any, ...]) -> None:
    judge, record = verdict()
    peers = cluster()
    for rank, seconds in quiet.items():
        peers[rank].quiet = seconds
    lost = [peers[rank] for rank, seconds in quiet.items() if seconds > 25]
    judge.on_lost(lost, peers, NOW)
    assert record.ends == 1
    assert missing(record.status.reason, words) == []
    kind, rank, host, ranks = first_failure_fields(record)
    assert (kind, rank, host) == first[:3]
    assert ranks == sorted(quiet)
    assert {peer.rank for peer in peers if peer.status.state == "lost"} == set(quiet)


def test_first_rank_to_disconnect_is_the_first_failure() -> None:
    judge, record = verdict()
    peers = cluster()
    for rank, at in ((0, 995.3), (3, 995.0), (4, 995.2)):
        peers[rank].closed_by_peer, peers[rank].disconnected_at, peers[rank].lost_at = True, at, at
    judge.on_lost([peers[0], peers[3], peers[4]], peers, NOW)
    assert record.ends == 1
    assert missing(record.status.reason, "rank 3 node2") == []
    assert first_failure_fields(record)[1:] == (3, "node2", [3])


@pytest.mark.parametrize(
    ("report", "at", "first"),
    [
        ("=   RANK 3 PID 337 RUNNING AT 10.77.2.11", 995.02, (3, "node2", [3])),
        ("=   RANK 3 PID 337 RUNNING AT 10.77.2.11", 999.0, (0, "node1", [0])),  # long after the first one
        ("=   RANK 9 PID 337 RUNNING AT 10.77.2.11", 995.02, (0, "node1", [0])),
        ("no report", 995.02, (0, "node1", [0])),
    ],
)
def test_wrapper_that_mpirun_reports_as_killed_is_first_of_those_that_disconnect_at_once(
    report: str, at: float, first: tuple[Any, ...]
) -> None:
    judge, record = verdict()
    peers = cluster()
    for rank, closed in ((0, 995.0), (3, at)):
        peers[rank].closed_by_peer, peers[rank].disconnected_at, peers[rank].lost_at = True, closed, closed
    judge.on_lost([peers[0], peers[3]], peers, NOW, module.killed_rank(["=====", report, "=   KILLED BY SIGNAL: 9"]))
    assert first_failure_fields(record)[1:] == first


def test_sigterm_to_all_ranks_is_an_mpirun_failure_and_to_one_a_rank_failure() -> None:
    judge, record = verdict()
    peers = cluster()
    for peer in peers:
        judge.on_outside_signal(peer, 15)
        judge.on_exit(peer, Exit(143, False, 15))
        assert record.ends == 0
    assert judge.is_open
    judge.check_outside_signals(time.monotonic(), peers, True)
    assert record.ends == 1
    assert first_failure_fields(record)[:2] == ("mpirun", None)
    judge, record = verdict()
    peers = cluster()
    judge.on_outside_signal(peers[3], 15)
    judge.check_outside_signals(time.monotonic(), peers, False)
    assert record.ends == 0
    judge.check_outside_signals(time.monotonic() + 2, peers, False)
    assert record.ends == 1
    assert first_failure_fields(record) == ("signal", 3, "node2", [3])
    assert missing(record.status.reason, "rank 3 node2 SIGTERM") == []
    assert judge.ending.code == 143


@pytest.mark.parametrize(
    ("silent", "words"),
    [
        ((2, 3, 4, 5), "no other node responds (ranks 2-5): the link of node1 is down"),
        ((2, 3, 4), "node2 stopped responding (ranks 2-3)"),  # node3 still has a rank that sends
        ((0, 1, 2, 3, 4, 5), "node1 stopped responding (ranks 0-1)"),  # node0's too: it is not only the network
        ((0, 1), "node1 stopped responding (ranks 0-1)"),
    ],
)
def test_network_is_named_only_if_all_ranks_of_all_other_nodes_are_silent(silent: tuple[int, ...], words: str) -> None:
    judge, record = verdict()
    peers = cluster()
    for rank in silent:
        peers[rank].quiet = 26
    judge.on_lost([peers[rank] for rank in silent], peers, NOW)
    assert ("network" in record.status.reason) == ("no other node" in words)
    assert missing(record.status.reason, words) == []


def test_single_other_node_that_is_silent_is_no_fault_of_the_network() -> None:
    judge, record = verdict()
    peers = cluster(2)
    for peer in peers[2:]:
        peer.quiet = 26
    judge.on_lost(peers[2:], peers, NOW)
    assert first_failure_fields(record) == ("lost", 2, "node2", [2, 3])
    assert "network" not in record.status.reason


def test_wait_for_the_sender_of_a_signal_begins_with_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, record = verdict()
    peers = cluster()
    clock = types.SimpleNamespace(monotonic=lambda: NOW, time=time.time)
    monkeypatch.setattr(module, "time", clock)
    judge.check_outside_signals(NOW + 60, peers, False)
    assert (judge.is_open, record.ends) == (False, 0), "no signal came"
    judge.on_outside_signal(peers[3], 15)
    clock.monotonic = lambda: NOW + module.SIGNAL_TIME
    judge.on_outside_signal(peers[2], 15)  # a later one does not begin the wait again
    judge.check_outside_signals(NOW + module.SIGNAL_TIME, peers, False)
    assert record.ends == 0
    judge.check_outside_signals(NOW + module.SIGNAL_TIME + 0.1, peers, False)
    assert first_failure_fields(record)[:2] == ("signal", 2)


def test_signal_after_the_end_of_a_run_has_begun_is_not_waited_for() -> None:
    judge, record = verdict()
    peers = cluster()
    judge.on_exit(peers[0], Exit(1, True))
    judge.on_outside_signal(peers[3], 15)
    judge.check_outside_signals(time.monotonic() + 60, peers, False)
    assert (judge.is_open, record.ends) == (False, 1)
    assert first_failure_fields(record)[:2] == ("exit", 0)
    judge.restart()
    judge.check_outside_signals(time.monotonic() + 60, peers, False)
    assert not judge.is_open, "a signal of the attempt before does not count for the next"


def test_failure_before_the_sender_of_a_signal_is_known_stays_the_first() -> None:
    judge, record = verdict()
    peers = cluster()
    judge.on_outside_signal(peers[3], 15)
    judge.on_exit(peers[0], Exit(1, True))
    judge.check_outside_signals(time.monotonic() + 60, peers, False)
    assert first_failure_fields(record)[:2] == ("exit", 0)
    assert judge.ending.code == 1


@pytest.mark.parametrize(
    ("ended", "disconnected_before", "expected"),
    [
        (Exit(1, True), 0.1, ("lost", 4, "node3", [4])),  # the exception came of the lost rank
        (Exit(1, True), -0.1, ("exit", 0, "node1", [0])),  # the rank was lost after the failure
        (Exit(1, True), None, ("exit", 0, "node1", [0])),
        (Exit(137, True, 9, OutOfMemory("cgroup", 2 << 30)), 0.1, ("oom", 0, "node1", [0])),  # its own cause
    ],
)
def test_rank_that_was_lost_before_an_exception_elsewhere_is_the_first_failure(
    ended: Exit, disconnected_before: float | None, expected: tuple[Any, ...]
) -> None:
    judge, record = verdict()
    peers = cluster()
    judge.on_all_ended(peers)
    assert record.status.first_failure is None, "nothing has failed"
    judge.on_exit(peers[0], ended)
    if disconnected_before is not None:
        peers[4].closed_by_peer, peers[4].disconnected_at = True, judge.ending.at - disconnected_before
    peers[0].exit = ended
    judge.on_all_ended(peers)
    assert first_failure_fields(record) == expected


def test_rank_lost_before_mpirun_ended_is_the_cause_unless_mpirun_was_killed() -> None:
    judge, record = verdict()
    peers = cluster()
    peers[3].disconnected_at = 999.0
    mpirun = types.SimpleNamespace(was_killed=False, ended_at=999.5)
    assert judge.lost_before_mpirun(peers, mpirun) == [peers[3]]
    mpirun.was_killed = True
    assert judge.lost_before_mpirun(peers, mpirun) == []
    judge.on_mpirun_ended(peers, (137, 9))
    assert record.ends == 1
    assert record.status.reason == "mpirun was ended by SIGKILL while ranks 0-5 on node1, node2, node3 ran"


@pytest.mark.parametrize(
    ("kind", "pid", "allowed", "again"),
    [
        ("exit", 1, 1, True),
        ("lost", 1, 1, True),
        ("exit", 1, 0, False),
        ("exit", None, 1, False),
        ("time-limit", 1, 1, False),
        ("not-begun", 1, 1, False),
    ],
)
def test_restart_depends_on_failure_kind_started_ranks_and_limit(
    kind: str, pid: int | None, allowed: int, again: bool
) -> None:
    judge, _ = verdict()
    peers = cluster()
    for peer in peers:
        peer.status = peer.status._replace(pid=pid)
    judge.fail(kind, "why", peers=[peers[0]])
    assert judge.may_restart(peers, allowed) is again


def test_stop_while_a_failed_attempt_ends_takes_the_place_of_the_next_attempt() -> None:
    peers = cluster()
    decided, record = verdict()
    decided.fail("exit", "rank 0 ended", peers=[peers[0]], exit_code=3)
    decided.stop(143, peers, 2)
    assert (decided.ending.state, decided.ending.code, record.ends) == ("stopped", 143, 1)
    assert not decided.may_restart(peers, 2)
    assert record.status.first_failure is None
    assert "rank 0 ended" in record.status.reason


@pytest.mark.parametrize("restarts", [0, 1])
def test_stop_does_not_change_how_a_run_has_failed(restarts: int) -> None:
    decided, record = verdict()
    record.status = record.status._replace(attempt=restarts)
    decided.fail("exit", "rank 0 ended", peers=[cluster()[0]], exit_code=3)
    decided.stop(143, cluster(), restarts)
    assert (decided.ending.state, decided.ending.code) == ("failed", 3)
    assert record.status.reason == "rank 0 ended"


def test_stopped_runs_are_not_restarted() -> None:
    judge, _ = verdict()
    judge.end("stopped", 143, "it was stopped")
    assert not judge.may_restart(cluster(), 5)


def test_rank_that_ends_with_0_is_ok_and_ends_nothing() -> None:
    judge, record = verdict()
    peers = cluster()
    judge.on_exit(peers[0], Exit(0, True))
    assert (peers[0].status.state, peers[0].status.exit_code) == ("ok", 0)
    assert (record.ends, record.status.first_failure, judge.ending) == (0, None, None)


@pytest.mark.parametrize(
    ("size", "text"),
    [(1023, "1023 bytes"), (1024, "1 KB"), ((1 << 20) - 1, "1024 KB"), (1 << 20, "1 MB"), (1 << 30, "1.0 GB")],
)
def test_limit_of_memory_has_the_unit_that_fits(size: int, text: str) -> None:
    assert module.format_limit(size) == text

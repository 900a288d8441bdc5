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

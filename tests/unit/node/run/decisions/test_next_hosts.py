"""On which hosts a run goes on after a loss, as tables of events with times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from supervised_run import Supervised, closed_by_peer, exit_of

from ipexctl.node.common.node_limits import HOST_ANSWER, LOST_HOST_ANSWER, RANK_SILENCE, RANKS_BEGIN
from ipexctl.node.common.plan import LaunchFile
from ipexctl.node.run.connection import messages
from ipexctl.node.run.decisions import supervisor_machine
from ipexctl.node.run.decisions import supervisor_state as m
from ipexctl.node.run.decisions.next_hosts import ASK_INTERVAL, MISSING_AFTER
from message_data import missing

SSH = (LaunchFile("ssh.sh", 0o700, ""),)


def pooled(*, least: int = 2, **given: Any) -> Supervised:
    """Two ranks on each of node1 to node4."""
    return Supervised(8, min_hosts=least, **{"max_restarts": 3, **given})


def silent(*ranks: int) -> Callable[[Supervised], None]:
    return lambda run: run.silent_since.update(dict.fromkeys(ranks, run.clock))


def lose(run: Supervised, *hosts: int, at: float = 5.0) -> Supervised:
    """These hosts fall silent; the run is then about to end, and its other ranks have ended."""
    run.run_until(at)
    silent(*(rank for host in hosts for rank in (2 * host - 2, 2 * host - 1)))(run)
    run.run_until(at + RANK_SILENCE + 1)
    assert run.ending == ("failed", 1)
    return run.stopped_ranks_end(run.clock + 0.1)


def answer(run: Supervised, *hosts: int, problem: str = "") -> Supervised:
    return run.at(run.clock, *(m.HostAnswered(f"node{host}", problem) for host in hosts))


def hosts_of(run: Supervised) -> str:
    return "".join(dict.fromkeys(peer.host[-1] for peer in run.state.ranks.values()))


@pytest.mark.parametrize(
    ("lost", "answers", "hosts"),
    [
        ((3,), (2, 4), "124"),
        ((4,), (2, 3), "123"),
        ((3, 4), (2,), "12"),
        ((3,), (2, 3, 4), "1234"),  # it is back by then
    ],
)
def test_the_next_attempt_has_the_hosts_that_answer(
    lost: tuple[int, ...], answers: tuple[int, ...], hosts: str
) -> None:
    run = answer(lose(pooled().begin(), *lost), *answers)
    run.run_until(run.clock + LOST_HOST_ANSWER + 1)
    assert run.acts(m.SupervisorAct.PREPARE_HOSTS)
    assert (hosts_of(run), run.state.status.attempt, run.state.status.state) == (hosts, 1, "starting")
    status = run.state.status
    assert (status.world_size, status.nodes, len(run.state.plan.ranks)) == (2 * len(hosts), len(hosts), 2 * len(hosts))
    assert status.attempts[0].hosts == ()
    assert status.attempts[0].first_failure is not None
    assert status.attempts[0].first_failure.host == f"node{lost[0]}"
    assert run.state.plan.argv[1:3] == ("-n", str(2 * len(hosts)))
    run.at(run.clock, m.HostsPrepared())
    assert [start.after for start in run.done(m.StartAttempt)] == [status.attempts[0].reason]
    assert missing(status.attempts[0].reason, f"node{lost[0]} stopped responding") == []


@pytest.mark.parametrize(
    ("answered", "seconds", "is_known"),
    [
        ((2, 3, 4), 0.0, True),
        ((2, 4), LOST_HOST_ANSWER - 1, False),  # node3 was lost, and may answer again
        ((2, 4), LOST_HOST_ANSWER + 1, True),
        ((2,), LOST_HOST_ANSWER + 1, False),  # node4 was not lost
        ((2,), HOST_ANSWER - 1, False),
        ((2,), HOST_ANSWER + 1, True),
    ],
)
def test_a_host_that_was_lost_is_waited_for_shortly(answered: tuple[int, ...], seconds: float, is_known: bool) -> None:
    run = lose(pooled().begin(), 3)
    began = run.state.search.began_at if run.state.search is not None else 0.0
    answer(run, *answered)
    run.run_until(max(run.clock + supervisor_machine.CHECK_INTERVAL, began + seconds))
    assert bool(run.state.is_preparing) == is_known


def test_hosts_are_asked_as_soon_as_the_attempt_fails() -> None:
    run = pooled().begin().run_until(5)
    silent(4, 5)(run)
    asked: list[tuple[str, ...]] = []
    while run.clock < 5 + RANK_SILENCE + 1 and not asked:
        run.run_until(run.clock + 0.25)
        asked = run.of_hosts(m.HostAct.FIND)
    assert asked == [("node2", "node3", "node4")]


def test_a_run_ends_if_too_few_hosts_answer() -> None:
    run = answer(lose(pooled(least=3).begin(), 3, 4), 2)
    run.run_until(run.clock + HOST_ANSWER + 1)
    assert run.state.is_closing
    assert missing(run.reason, "node3 2 hosts --min-hosts 3") == []
    assert (run.ending, run.first.kind, run.first.host) == (("failed", 1), "lost", "node3")


def test_a_lost_host_that_answers_joins_at_the_next_restart() -> None:
    run = answer(lose(pooled().begin(), 3), 2, 4)
    run.run_until(run.clock + LOST_HOST_ANSWER + 1).at(run.clock, m.HostsPrepared()).connect()
    assert hosts_of(run) == "124"
    run.silent_since.clear()
    run.at(run.clock + 5, exit_of(1, 3)).run_until(run.clock + 1).stopped_ranks_end(run.clock + 0.1)
    answer(run, 2, 3, 4).run_until(run.clock + 1)
    assert (hosts_of(run), run.state.status.attempt, run.state.status.world_size) == ("1234", 2, 8)
    assert run.state.status.attempts[1].hosts == ("node1", "node2", "node4")


@pytest.mark.parametrize(
    ("failed", "hosts"),
    [({"node4": "no room"}, "12"), ({"node2": "no room"}, "14"), ({"node2": "a", "node4": "b"}, "")],
)
def test_a_host_that_refuses_its_job_is_left_out(failed: dict[str, str], hosts: str) -> None:
    run = answer(lose(pooled().begin(), 3), 2, 4)
    run.run_until(run.clock + LOST_HOST_ANSWER + 1).at(run.clock, m.HostsPrepared(failed))
    if hosts:
        assert (hosts_of(run), run.state.status.attempt) == (hosts, 1)
        assert run.acts(m.SupervisorAct.PREPARE_HOSTS)
        return
    run.run_until(run.clock + 1)
    assert run.state.is_closing
    assert missing(run.reason, "node2 a 1 host --min-hosts 2") == []


def test_node0_without_room_for_its_job_ends_the_run() -> None:
    run = answer(lose(pooled().begin(), 3), 2, 4)
    run.run_until(run.clock + LOST_HOST_ANSWER + 1).at(run.clock, m.HostsPrepared({"node1": "no room"}))
    run.run_until(run.clock + 1)
    assert run.state.is_closing
    assert missing(run.reason, "node1 no room") == []


@pytest.mark.parametrize(
    ("kind", "answers", "hosts", "blamed"),
    [
        ("not-begun", (2, 4), "124", "node3"),  # the others can be reached
        ("not-begun", (2, 3, 4), "124", "node3"),  # it refuses to start ranks
        ("checkpoint", (2, 4), "124", "node3"),
        ("checkpoint", (2, 3, 4), "124", "node3"),
        ("mpirun", (2, 4), "124", "node3"),
        ("mpirun", (2, 3, 4), "1234", None),
        ("exit", (2, 4), "124", "node3"),  # node2 missed node3 first
        ("exit", (2, 3, 4), "1234", "node2"),
    ],
)
def test_the_host_that_does_not_answer_is_to_blame(
    kind: str, answers: tuple[int, ...], hosts: str, blamed: str | None
) -> None:
    run = pooled(checkpoint="c" if kind == "checkpoint" else "")
    others = [rank for rank in range(8) if rank not in (4, 5)]
    if kind == "not-begun":
        run.begin(*others).run_until(RANKS_BEGIN + 1)
    elif kind == "checkpoint":
        run.begin(pids=False).at(5, m.ExchangeOver("node3: timed out", "node3"))
    elif kind == "mpirun":
        run.begin().at(5, m.LauncherExited(7)).run_until(8)
    else:
        run.begin().at(5, exit_of(2, 1))
    assert run.first.kind == kind
    for rank in others:
        if run.state.ranks[rank].exit is None:
            run._handle(exit_of(rank, 143, is_own=False, signal=15))
        run._handle(m.RankSent(rank, messages.End({})))
    if run.state.launcher is not None and run.state.launcher.ended_at is None:
        run._handle(m.LauncherExited(1))
    run.run_until(run.clock + 0.5)
    answer(run, *answers).run_until(run.clock + HOST_ANSWER + 15)
    first = run.state.status.attempts[0].first_failure
    assert first is not None
    assert (hosts_of(run), first.host) == (hosts, blamed)


@pytest.mark.parametrize("kind", ["not-begun", "checkpoint"])
def test_a_failure_that_other_hosts_do_not_change_ends_the_run(kind: str) -> None:
    run = pooled(checkpoint="c" if kind == "checkpoint" else "")
    if kind == "checkpoint":
        run.begin(pids=False).at(5, m.ExchangeOver("node1: no room", "node1"))
    else:
        run.at(0, m.Happened.BEGUN).run_until(RANKS_BEGIN + 1)
    run.stopped_ranks_end(run.clock + 0.1).run_until(run.clock + 1)
    answer(run, 2, 3, 4).run_until(run.clock + HOST_ANSWER)
    assert run.state.is_closing
    assert (run.first.kind, run.state.status.attempt) == (kind, 0)


def test_a_run_that_is_stopped_while_hosts_are_asked_or_prepared_ends() -> None:
    run = lose(pooled().begin(), 3).at(32, m.StopAsked(15)).run_until(34)
    assert (run.ending, run.state.is_closing) == (("stopped", 143), True)
    run = answer(lose(pooled().begin(), 3), 2, 4)
    run.run_until(run.clock + LOST_HOST_ANSWER + 1)
    assert run.state.is_preparing
    run.at(run.clock, m.StopAsked(15)).run_until(run.clock + 1)
    assert (run.ending, run.state.is_closing) == (("stopped", 143), True)
    run.at(run.clock, m.HostsPrepared())
    assert run.done(m.StartAttempt) == []


def test_a_rank_wrapper_that_was_started_for_other_hosts_gets_no_rank() -> None:
    run = pooled().begin()
    late = messages.Hello(2, "late", "node3")
    assert not supervisor_machine.may_connect(run.state, late), "another wrapper has the rank"
    answer(lose(run, 3), 2, 4).run_until(run.clock + LOST_HOST_ANSWER + 1).at(run.clock, m.HostsPrepared())
    assert not supervisor_machine.may_connect(run.state, late)
    assert not supervisor_machine.may_connect(run.state, late._replace(rank=7)), "there is no such rank now"
    assert not supervisor_machine.may_connect(run.state, late._replace(attempt=0))
    assert supervisor_machine.may_connect(run.state, late._replace(attempt=1))


@pytest.mark.parametrize(
    ("problem", "is_late", "blamed"),
    [("no route", False, "node4"), ("no route", True, None), ("", False, None)],
)
def test_host_that_is_lost_before_its_ranks_begin_is_asked_soon(
    problem: str, is_late: bool, blamed: str | None
) -> None:
    run = pooled(files=SSH).begin(0, 1, 2, 3, 4, 5)
    run.run_until(MISSING_AFTER - 1)
    assert run.of_hosts(m.HostAct.FIND) == []
    run.run_until(MISSING_AFTER + 1)
    assert run.of_hosts(m.HostAct.FIND) == [("node4",)]
    run.run_until(MISSING_AFTER + ASK_INTERVAL - 1)
    assert run.of_hosts(m.HostAct.FIND) == [], "its answer may take 10 s"
    if is_late:  # it begins before the answer
        run.connect(6, 7)
    answer(run, 4, problem=problem)
    assert (run.ending == ("failed", 1)) == bool(blamed)
    if not blamed:
        return
    assert (run.first.kind, run.first.host, run.first.ranks) == ("lost", "node4", (6, 7))
    assert missing(run.reason, "node4 6-7 no route") == []
    run.stopped_ranks_end(run.clock + 0.1).run_until(run.clock + 0.5)
    answer(answer(run, 2, 3), 4, problem=problem).run_until(run.clock + 1)
    assert (hosts_of(run), run.state.status.attempt) == ("123", 1)


def test_jobs_of_an_attempt_are_removed_once_they_are_read() -> None:
    run = pooled().begin()
    assert not run.state.keeps_jobs
    run.at(5, m.Disconnected(3, 5.0), m.RankSent(3, messages.Hello(3, "wrapper of 3", "node2", 1003)))
    assert run.sent("remove-job") == [3]


def test_a_starter_that_connects_again_is_an_answer() -> None:
    run = pooled(flavor="none", has_starters=True)
    run.at(0, *(m.StarterChanged(f"node{number}") for number in (2, 3, 4))).begin().run_until(5)
    run.at(6, closed_by_peer(5, 6.0)).run_until(10)
    assert run.ending is not None
    run.at(run.clock, m.StarterChanged("node2"))
    assert run.state.search is not None
    assert run.state.search.present == {"node2"}


def test_a_plan_without_a_pool_asks_nobody() -> None:
    run = Supervised(4, max_restarts=1).begin().at(5, exit_of(1, 3)).stopped_ranks_end(6).run_until(7)
    assert run.state.status.attempt == 1
    assert run.state.search is None

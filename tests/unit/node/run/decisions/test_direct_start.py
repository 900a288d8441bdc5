"""Ranks that are started directly: when their wrappers have ended, and what a lost starter means for a run."""

from __future__ import annotations

from typing import Any

import pytest
from supervised_run import Supervised, exit_of

from ipexctl.node.common.frames import FrameError
from ipexctl.node.common.node_limits import LAST_MESSAGES, LAUNCHER_EXIT, RANK_SILENCE, STARTER_CALL, STARTER_RECONNECT
from ipexctl.node.run.connection import messages
from ipexctl.node.run.decisions import direct_start, supervisor_machine
from ipexctl.node.run.decisions import supervisor_state as m
from message_data import missing


def direct(ranks: int = 4, *, connected: bool = True, **plan: Any) -> Supervised:
    """Two ranks on node1 beside the supervisor, and two on node2 with a starter."""
    run = Supervised(ranks, **{"flavor": "none", "has_starters": True, **plan})
    if connected:
        run.at(0, *(m.StarterChanged(host) for host in run.state.starters))
    return run


def wrappers(*codes: int, attempt: int = 0) -> list[m.Event]:
    return [m.WrapperExited(rank, code, attempt) for rank, code in enumerate(codes)]


def test_each_host_but_node0_has_a_starter_and_with_an_mpirun_none_has() -> None:
    assert set(direct(6).state.starters) == {"node2", "node3"}
    assert m.ranks_of_starters(direct(6).state) == {"node2": {2, 3}, "node3": {4, 5}}
    assert Supervised(6).state.starters == {}


def test_run_is_over_once_the_last_wrapper_has_ended() -> None:
    run = direct().begin().end(5)
    run.at(5.1, *wrappers(0, 0, 0))
    assert run.state.launcher is not None
    assert run.state.launcher.ended_at is None
    run.at(5.2, m.WrapperExited(3, 0, 0)).run_until(6)
    assert (run.ending, run.state.is_closing, run.state.status.mpirun.exit_code) == (None, True, 0)


def test_code_of_the_wrappers_is_that_of_the_first_that_failed() -> None:
    run = direct().begin().at(5, exit_of(2, 3)).at(5.6, *wrappers(0, 0, 3, 1))
    assert run.state.status.mpirun.exit_code == 3
    assert run.ending == ("failed", 3)


@pytest.mark.parametrize("attempt", [0, 2])
def test_end_of_a_wrapper_of_another_attempt_counts_for_nothing(attempt: int) -> None:
    run = direct(max_restarts=3).begin().at(5, exit_of(2, 3))
    run.stopped_ranks_end(5.5).at(5.6, *wrappers(0, 0, 3, 0)).run_until(8)
    assert run.state.status.attempt == 1
    run.at(9, *wrappers(0, 0, 0, 0, attempt=attempt))
    assert all(peer.wrapper_code is None for peer in run.state.ranks.values())


def test_starter_learns_at_its_connection_which_attempt_to_start() -> None:
    run = direct(connected=False, max_restarts=1)
    assert not supervisor_machine.is_attempt_on(run.state)
    run.begin(0, 1)
    assert supervisor_machine.is_attempt_on(run.state)
    run.at(5, exit_of(0, 3))
    assert not supervisor_machine.is_attempt_on(run.state)


def test_lost_starter_costs_no_rank_and_the_run_ends_well_without_it() -> None:
    run = direct().begin().at(3, m.StarterChanged("node2", is_connected=False)).run_until(3 + 3 * RANK_SILENCE)
    assert run.ending is None
    at = run.clock
    run.end(at).at(at, *wrappers(0, 0)).run_until(at + STARTER_RECONNECT + 1)
    assert (run.ending, run.state.is_closing) == (None, True)


@pytest.mark.parametrize(("back_at", "is_failed"), [(RANK_SILENCE - 2, False), (None, True)])
def test_ranks_wait_for_their_starter_to_connect_or_to_come_back(back_at: float | None, *, is_failed: bool) -> None:
    run = direct(connected=False).begin(0, 1)
    if back_at is not None:
        run.run_until(back_at).at(back_at, m.StarterChanged("node2")).connect(2, 3)
    run.run_until(RANK_SILENCE + 2)
    assert (run.ending is not None) == is_failed
    if is_failed:
        failure = run.state.status.first_failure
        assert failure is not None
        assert (failure.kind, failure.rank, failure.host, failure.ranks) == ("not-begun", 2, "node2", (2, 3))
        assert failure.detail is not None
        assert (failure.detail.kind, failure.detail.fields) == ("no-starter", {"place": "node2"})
        assert missing(run.state.status.reason, "2-3 node2 starter") == []


@pytest.mark.parametrize("plan", [{}, {"flavor": "mpich", "argv": ("/opt/mpirun",)}])
def test_restart_calls_a_starter_that_is_gone(plan: dict[str, Any]) -> None:
    run = direct(max_restarts=1, **plan).begin().at(5, m.StarterChanged("node2", is_connected=False), exit_of(2, 3))
    run.run_until(5 + 2 * STARTER_CALL)
    assert run.of_hosts(m.HostAct.CALL_STARTERS) == []  # while the attempt ends, its ranks need none
    run.stopped_ranks_end(run.clock).at(run.clock, *(wrappers(0, 0, 3, 0) if not plan else [m.LauncherExited(3)]))
    while run.state.status.attempt == 0 or run.state.launcher is None:
        run.run_until(run.clock + 0.25)
    run.run_until(run.clock + 1.5 * STARTER_CALL)
    assert run.of_hosts(m.HostAct.CALL_STARTERS) == [("node2",)] * 2
    run.at(run.clock, m.StarterChanged("node2")).run_until(run.clock + 2 * STARTER_CALL)
    assert run.of_hosts(m.HostAct.CALL_STARTERS) == []


def test_silent_starter_is_dropped_as_a_silent_rank_is() -> None:
    run = direct().begin()
    run.looks = {"starters": {"node2": 0.0}}
    run.run_until(RANK_SILENCE)
    assert run.state.starters["node2"].is_connected
    run.run_until(RANK_SILENCE + 2)
    assert run.of_hosts(m.HostAct.DROP_STARTERS) == [("node2",)]
    assert (run.state.starters["node2"].is_connected, run.ending) == (False, None)


def test_wrapper_that_ends_before_its_rank_has_begun_fails_the_run_soon() -> None:
    run = direct().begin(0, 1, 2).at(2, m.WrapperExited(3, 111, 0))
    run.looks = {"launcher_log": ("ipexctl: node2: no way back",)}
    assert supervisor_machine.needs_launcher_log(run.state)
    run.run_until(2 + LAST_MESSAGES + 1)
    assert run.ending == ("failed", 1)
    failure = run.state.status.first_failure
    assert failure is not None
    assert (failure.kind, failure.ranks) == ("not-begun", (3,))
    assert missing(run.state.status.reason, "111 rank 3 node2") == []
    assert run.state.status.mpirun.tail == ("ipexctl: node2: no way back",)


def test_killed_wrapper_is_the_loss_of_its_rank() -> None:
    run = direct().begin().at(4, m.Disconnected(3, 4.0, closed_by_peer=True), m.WrapperExited(3, -9, 0))
    run.run_until(4 + STARTER_RECONNECT + 1)
    failure = run.state.status.first_failure
    assert failure is not None
    assert (failure.kind, failure.rank, failure.host) == ("lost", 3, "node2")


@pytest.mark.parametrize(("apart", "is_lost"), [(0.5, True), (2.0, False)])
def test_host_that_closes_all_connections_at_once_has_ended(apart: float, is_lost: bool) -> None:
    run = direct().begin()
    run.at(1, *(m.StarterChanged(host) for host in run.state.starters)).run_until(4)
    run.alive = set(run.state.ranks)
    run.at(4, m.Disconnected(3, 4.0, closed_by_peer=True)).run_until(4 + apart).at(
        4 + apart, m.StarterChanged("node2", is_connected=False)
    )
    assert run.run_until(4 + apart + STARTER_RECONNECT).ending is None
    run.run_until(4 + apart + STARTER_RECONNECT + 1)
    assert (run.ending is not None) == is_lost


def test_wrappers_of_a_starter_that_answers_no_more_are_given_up() -> None:
    """They are told to end, then killed; where nothing says that they are, that is waited for no longer."""
    run = direct().begin().end(5).at(5.1, *wrappers(0, 0)).run_until(5 + LAUNCHER_EXIT + 8)
    assert run.state.is_closing


def test_messages_of_a_starter_are_checked() -> None:
    ended = messages.read_starter_message(b'{"t": "wrapper-ended", "rank": 2, "attempt": 0, "code": -9, "text": "x"}')
    assert ended == messages.WrapperEnded(2, 0, -9, "x")
    hello = messages.read_hello({"t": "hello", "starter": "node2", "instance": "a", "pid": 3})
    assert hello == messages.StarterHello("node2", "a")
    for wrong in (
        b'{"t": "wrapper-ended", "rank": 2, "attempt": 0, "code": 1000}',
        b'{"t": "wrapper-ended", "rank": "2", "attempt": 0, "code": 0}',
        b'{"t": "exit", "code": 0}',
        b"[]",
    ):
        with pytest.raises(FrameError):
            messages.read_starter_message(wrong)


def test_changed_answers_are_noted_and_end_the_run_after_some() -> None:
    run = direct().begin(0, 1)
    for count in range(1, direct_start.MOST_REFUSED + 1):
        assert run.ending is None
        run.at(count, m.StarterChanged("node2", is_connected=count == direct_start.MOST_REFUSED, refused=count))
        assert [note.fields for note in run.done(m.AddNote)] == [{"host": "node2"}]
    assert run.ending == ("failed", 3)
    assert missing(run.state.status.reason, "network node0 node2") == []


def test_a_starter_whose_connections_bring_no_answer_is_gone() -> None:
    """Something between the hosts lets each connection begin, and breaks it."""
    run = direct(connected=False).begin(0, 1)
    while run.clock < RANK_SILENCE + 1:
        run.at(run.clock + 0.5, m.StarterChanged("node2"))
        run.at(run.clock + 0.1, m.StarterChanged("node2", is_connected=False, was_heard=False)).run_until(
            run.clock + 0.3
        )
    assert run.ending is not None
    assert missing(run.state.status.reason, "2-3 node2 starter gone") == []

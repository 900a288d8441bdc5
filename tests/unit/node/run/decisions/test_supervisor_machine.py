"""A supervisor, as tables of events with times: when a run ends, with what, and what starts again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from supervised_run import EPOCH, Supervised, closed_by_peer, exit_of

from ipexctl.node.common.node_limits import (
    DUMP_REPLIES,
    FULL_DISK_FLUSH,
    FULL_DISK_ROOM,
    LAST_MESSAGES,
    LAUNCHER_EXIT,
    RANK_EXIT,
    RANK_SILENCE,
    RANKS_BEGIN,
    TERM_GRACE,
)
from ipexctl.node.common.records import Detail, SilentRank
from ipexctl.node.run.connection import messages
from ipexctl.node.run.decisions import supervisor_machine
from ipexctl.node.run.decisions import supervisor_state as m
from ipexctl.node.run.decisions.verdict import AT_ONCE, SIGNAL_TIME
from message_data import missing

SENT = m.RankSent


def silent(*ranks: int) -> Callable[[Supervised], None]:
    """They send nothing any more."""

    def begin(run: Supervised) -> None:
        run.silent_since.update(dict.fromkeys(ranks, run.clock))

    return begin


def quiet(run: Supervised) -> None:
    """No rank prints anything more."""
    run.quiet_since = run.clock


Happening = m.Event | Callable[[Supervised], None]


def play(run: Supervised, *happenings: tuple[float, Happening]) -> float | None:
    """Until a minute after the last one, or the end of the attempt begins: when it did."""
    for at, happening in happenings:
        while run.clock < at and run.ending is None:
            run.run_until(min(at, run.clock + 1.0))
        if callable(happening):
            happening(run)
        else:
            run.at(max(at, run.clock), happening)
    last = run.clock
    while run.ending is None and run.clock < last + 60 and not run.state.is_closing:
        run.run_until(run.clock + 1.0)
    return run.state.ending and run.state.ending.at


CHECK = supervisor_machine.RUNNING_INTERVAL
"""A moment that is found by looking is found so much later at most."""


@pytest.mark.parametrize(
    ("plan", "happenings", "ending", "blamed", "at", "words"),
    [
        ({}, [(5, exit_of(1, 3))], ("failed", 3), ("exit", 1), 5, "rank 1 node1 3"),
        ({}, [(5, exit_of(1, 137, signal=9))], ("failed", 137), ("signal", 1), 5, "rank 1 SIGKILL"),
        (
            {},
            [(5, m.TrainingFails(1, "nan", "rank 1 nan step 7 --on-nan"))],
            ("failed", 1),
            ("nan", 1),
            5,
            "rank 1 nan step 7 --on-nan",
        ),
        ({}, [(5, m.StopAsked(15))], ("stopped", 143), None, 5, "it was stopped"),
        ({}, [(5, m.StopAsked(2))], ("stopped", 130), None, 5, "it was stopped"),
        ({"time_limit": 7.0}, [], ("failed", 1), ("time-limit", None), 7, "7 s"),
        ({}, [(5, m.LauncherExited(7))], ("failed", 1), ("mpirun", None), 5 + LAST_MESSAGES, "mpirun 7 ranks 0-3"),
        ({}, [(5, m.LauncherExited(-9))], ("failed", 1), ("mpirun", None), 5 + LAST_MESSAGES, "mpirun SIGKILL 0-3"),
        ({}, [(5, closed_by_peer(1))], ("failed", 1), ("lost", 1), 5 + AT_ONCE, "rank 1 its wrapper process"),
        ({}, [(5, silent(2, 3))], ("failed", 1), ("lost", 2), 5 + RANK_SILENCE, "node2 stopped responding"),
        (
            {},
            [(5, SENT(3, messages.Signalled("outside-signal", 15)))],
            ("failed", 143),
            ("signal", 3),
            5 + SIGNAL_TIME,
            "rank 3 SIGTERM",
        ),
        (
            {},
            [(5, SENT(2, messages.Stuck(1, "raised ValueError: bad shape", 10.0)))],
            ("failed", 1),
            ("stuck", 2),
            5,
            "rank 2 raised ValueError: bad shape 10 s",
        ),
        (
            {},
            [(at, SENT(1, messages.Complaint("malformed", "no JSON"))) for at in (5, 6, 7)],
            ("failed", 1),
            ("lost", 1),
            7,
            "rank 1 no JSON",
        ),
        (
            {"hang_after": 9.0, "on_hang": "stop"},
            [(5, quiet)],
            ("failed", 1),
            ("hang", None),
            5 + 9 + DUMP_REPLIES,
            "9 s",
        ),
    ],
)
def test_a_run_ends(
    plan: dict[str, Any],
    happenings: list[tuple[float, Happening]],
    ending: tuple[str, int],
    blamed: tuple[str, int | None] | None,
    at: float,
    words: str,
) -> None:
    run = Supervised(4, **plan).begin()
    found = play(run, *happenings)
    assert run.ending == ending
    assert found is not None
    assert at <= found <= at + CHECK + supervisor_machine.CHECK_INTERVAL
    first = run.state.status.first_failure
    assert (first and (first.kind, first.rank)) == blamed
    assert missing(run.reason, words) == []


@pytest.mark.parametrize(
    ("plan", "happenings"),
    [
        ({}, []),
        ({"hang_after": 0.0}, [(5, quiet)]),
        ({}, [(5, lambda run: run.alive.add(1)), (5, closed_by_peer(1)), (29, lambda run: run.connect(1))]),
        (  # it is slow, and has said so
            {},
            [
                (5, SENT(1, messages.BareMessage.RECONNECTING)),
                (5, closed_by_peer(1)),
                (5 + RANK_SILENCE - 1, lambda run: run.connect(1)),
            ],
        ),
        ({}, [(5, silent(2, 3)), (5 + RANK_SILENCE - 1, lambda run: run.silent_since.clear())]),
        ({}, [(at, SENT(1, messages.Complaint("malformed", "no JSON"))) for at in (5, 6)]),
        ({}, [(5, exit_of(1, 0))]),
    ],
    ids=["nothing", "quiet", "reconnects", "leaves", "silent for a while", "malformed twice", "one is done"],
)
def test_a_run_goes_on(plan: dict[str, Any], happenings: list[tuple[float, Happening]]) -> None:
    run = Supervised(4, **plan).begin()
    last = happenings[-1][0] if happenings else 0.0
    for at, happening in happenings:
        play_until(run, at)
        if callable(happening):
            happening(run)
        else:
            run.at(run.clock, happening)
    play_until(run, last + 30)
    assert (run.ending, run.state.is_closing) == (None, False)


def play_until(run: Supervised, clock: float) -> None:
    run.run_until(clock)
    assert run.ending is None, run.reason


@pytest.mark.parametrize(("backend", "is_named"), [("gloo", False), ("none", False), ("ccl", True), ("mpi", True)])
def test_mpi_is_named_only_where_ranks_use_it(backend: str, *, is_named: bool) -> None:
    run = Supervised(2, backend=backend).begin().at(5, SENT(1, messages.Stuck(1, "raised ValueError", 10.0)))
    assert ("MPI_Finalize" in run.reason) == is_named


def test_a_run_ends_no_earlier_than_it_began_if_the_clock_was_set_back() -> None:
    run = Supervised(2, per_host=2).begin()
    started = run.now.epoch
    state = run.state._replace(status=run.state.status._replace(started=started))
    run.jump = -86400.0
    supervisor_machine.finish(turn := m.Transition(state, run.now))
    assert turn.state.status.ended == started


def test_the_day_may_jump() -> None:
    run = Supervised(2, time_limit=300.0, hang_after=30.0).begin()
    for second in range(200):
        run.jump = 86400.0 * (second % 3 - 1)
        run.run_until(float(second))
        assert (run.ending, run.done(m.CheckSilence)) == (None, [])


@pytest.mark.parametrize(("gap", "is_lost"), [(4.5, True), (5.5, False), (3600.0, False)])
def test_time_in_which_the_supervisor_was_suspended_is_no_silence(gap: float, is_lost: bool) -> None:
    run = Supervised(4).begin().run_until(10)
    run.silent_since = dict.fromkeys((0, 1, 2), 10.0)
    run.run_until(33).at(33, closed_by_peer(3)).at(33 + gap, run.tick())
    run.clock = 33 + gap
    run.at(run.clock, run.tick())
    assert (run.ending is not None) == is_lost
    if is_lost:
        return
    run.connect(3)
    silent_from = run.clock
    run.run_until(silent_from + RANK_SILENCE)
    assert run.ending is None
    run.silent_since[3] = silent_from
    run.run_until(silent_from + RANK_SILENCE + 2)
    assert run.blamed[:2] == ("lost", 0), "their silence began anew"


def test_a_busy_host_is_slow_and_not_gone() -> None:
    run = Supervised(4).begin(0, 1, 2)
    run.looks = {"starvation": 3.0}
    run.run_until(3 * RANKS_BEGIN)
    assert run.ending is None
    run.connect(3).silent_since = {3: run.clock}
    run.run_until(3 * RANKS_BEGIN + 3 * RANK_SILENCE)
    assert run.ending is None
    run.run_until(3 * RANKS_BEGIN + 3 * RANK_SILENCE + 2)
    assert run.blamed[0] == "lost"


# The begin


def test_ranks_that_do_not_begin_in_time_are_named() -> None:
    run = Supervised(4).begin(0, 1, 2).run_until(RANKS_BEGIN)
    assert run.ending is None
    run.run_until(RANKS_BEGIN + 0.5)
    assert run.blamed == ("not-begun", 3, "node2", [3])
    assert run.sent("stop") == [0, 1, 2, 3]


def test_mpirun_that_ends_before_any_rank_begins_is_shown_with_its_last_lines() -> None:
    run = Supervised(2).at(0, m.Happened.BEGUN).at(1, m.LauncherExited(255))
    run.looks = {"launcher_log": ("Error: Unable to run bstrap_proxy on node2",)}
    run.run_until(2 + LAST_MESSAGES)
    assert run.blamed == ("not-begun", None, None, [0, 1])
    assert missing(run.reason, "mpirun 255 0-1 node1") == []
    assert run.state.status.mpirun.tail == ("Error: Unable to run bstrap_proxy on node2",)
    assert run.done(m.Close)


def test_mpirun_that_cannot_start_ends_the_run_and_starts_no_command_of_notify() -> None:
    run = Supervised(2, notify="mail")
    state, _ = supervisor_machine.advance(
        run.state, m.StartFailed("mpirun can't be started", Detail("mpirun-not-started")), run.now
    )
    run.state = state
    run.run_until(1)
    assert run.done(m.Close)
    run.at(1, m.Closed())
    assert (run.state.status.state, run.reason) == ("failed", "mpirun can't be started")
    assert run.acts(m.SupervisorAct.FINISH) and not run.acts(m.SupervisorAct.NOTIFY)


@pytest.mark.parametrize(
    ("setup", "has_started", "limit"),
    [(None, False, RANK_SILENCE), ("/setvars.sh", False, RANKS_BEGIN), ("/setvars.sh", True, RANK_SILENCE)],
)
def test_a_rank_is_silent_for_longer_while_it_sources_a_file(
    setup: str | None, has_started: bool, limit: float
) -> None:
    run = Supervised(2, setup=setup).begin(pids=has_started).run_until(1)
    run.silent_since = {0: 1.0, 1: 1.0}
    run.run_until(1 + limit)
    assert run.ending is None
    run.run_until(2.5 + limit)
    assert run.blamed[:2] == ("lost", 0)


def test_commands_begin_when_all_hosts_have_the_checkpoint() -> None:
    run = Supervised(3, checkpoint="c.pt").begin(pids=False)
    assert supervisor_machine.check_interval(run.state) == supervisor_machine.CHECK_INTERVAL
    run.at(5, m.ExchangeOver())
    assert (run.sent("begin"), run.acts(m.SupervisorAct.END_EXCHANGE)) == ([0, 1, 2], [m.SupervisorAct.END_EXCHANGE])
    assert not run.at(6, m.ExchangeOver()).commands


def test_who_changes_the_lines_of_an_exchange_ends_the_run_as_with_changed_orders() -> None:
    run = Supervised(3, checkpoint="c.pt").begin(pids=False)
    run.at(5, m.ExchangeOver("node2: somebody changes what is sent", "node2", is_changed=True))
    assert run.blamed[:3] == ("changed-orders", 2, "node2")
    assert run.ending == ("failed", 3)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (m.ExchangeOver("node2: no room", "node2"), "node2: no room"),
        (SENT(2, messages.Complaint("checkpoint-failed", "no way there")), "node2: no way there"),
    ],
)
def test_a_checkpoint_that_cannot_be_brought_to_a_host_ends_the_run(event: m.Event, words: str) -> None:
    run = Supervised(3, checkpoint="c.pt").begin(pids=False).at(5, event)
    assert run.blamed[:3] == ("checkpoint", 2, "node2")
    assert missing(run.reason, words) == []
    assert run.acts(m.SupervisorAct.END_EXCHANGE)
    assert SENT(2, messages.Complaint("checkpoint-failed", "later")) and not run.at(6, event).acts(
        m.SupervisorAct.END_EXCHANGE
    )


@pytest.mark.parametrize(
    ("instance", "attempt", "before", "expected"),
    [
        ("wrapper of 1", 0, "connected", True),
        ("another", 0, "connected", False),
        ("another", 0, "broken", True),
        ("another", 0, "over", False),
        ("wrapper of 1", 0, "over", True),
        ("wrapper of 1", 1, "connected", False),
        ("wrapper of 1", None, "connected", True),
    ],
)
def test_a_wrapper_may_replace_its_own_connection_and_a_broken_one(
    instance: str, attempt: int | None, before: str, expected: bool
) -> None:
    run = Supervised(2).begin()
    if before != "connected":
        run.at(1, closed_by_peer(1))
    if before == "over":
        run.run_until(9)
    hello = messages.Hello(1, instance, "node1", 7, attempt)
    assert supervisor_machine.may_connect(run.state, hello) == expected


def test_a_rank_that_connects_while_the_run_ends_is_stopped() -> None:
    run = Supervised(2).begin(0).at(1, m.StopAsked(15))
    run.at(2)
    run.connect(1)
    assert run.sent("stop") == [1]


# Ranks and mpirun exit


def test_a_run_is_ok_when_all_ranks_and_mpirun_have_ended() -> None:
    run = Supervised(2, notify="mail").begin().end(5)
    assert (run.sent("release"), run.sent("remove-job")) == ([0, 1], [0, 1])
    run.run_until(6)
    assert not run.state.is_closing
    run.at(6, m.LauncherExited(0)).run_until(6.25)
    assert run.done(m.Close) == [m.Close(FULL_DISK_ROOM, keeps_connectivity=True, asks_job=False)]
    run.at(7, m.Closed())
    status = run.state.status
    assert (status.state, status.exit_code, status.reason, run.states()) == ("ok", 0, "", ["ok", "ok"])
    assert [event["state"] for event in run.logged("ended")] == ["ok"]
    assert run.acts(m.SupervisorAct.FINISH) and run.acts(m.SupervisorAct.NOTIFY)


@pytest.mark.parametrize(
    ("restarts", "events", "released"),
    [
        (0, [], [1]),  # the others go on
        (1, [], []),  # only the end of all decides whether the job file is kept
        (0, [SENT(0, messages.Signalled("outside-signal", 15))], []),  # mpirun may kill the others as soon as it exits
        (0, [exit_of(0, 1)], []),
    ],
)
def test_an_ended_rank_exits_when_no_other_one_suffers(
    restarts: int, events: list[m.Event], released: list[int]
) -> None:
    run = Supervised(3, max_restarts=restarts).begin().at(5, *events, exit_of(1, 0), SENT(1, messages.End({})))
    assert run.sent("release") == released


@pytest.mark.parametrize(("is_connected", "seconds"), [(False, LAST_MESSAGES), (True, TERM_GRACE + RANK_EXIT)])
def test_a_rank_without_an_end_is_given_up(is_connected: bool, seconds: float) -> None:
    run = Supervised(2).begin().at(5, exit_of(0, 3), SENT(0, messages.End({})))
    if not is_connected:
        run.at(5, m.Disconnected(1, 5.0))
    run.at(5, m.LauncherExited(1)).run_until(5 + seconds - 0.25)
    assert not run.state.is_closing
    run.run_until(5 + seconds + 0.5)
    assert (run.state.is_closing, run.states(), run.ending) == (True, ["failed", "lost"], ("failed", 3))


@pytest.mark.parametrize(
    ("program", "begun", "signals"),
    [
        ("mpirun", (0, 1), [(0.5, 15), (2.5, 9)]),
        ("mpiexec.hydra", (0, 1), [(0.5, 15), (2.5, 9)]),
        ("mpiexec.hydra", (0,), [(0.5, 9)]),  # SIGTERM would be endless
        ("mpirun", (0,), [(0.5, 15), (2.5, 9)]),
    ],
)
def test_an_mpirun_that_stays_behind_its_ranks_is_ended(
    program: str, begun: tuple[int, ...], signals: list[tuple[float, int]]
) -> None:
    run = Supervised(2, argv=(f"/opt/{program}",)).begin(*begun)
    run.at(5, m.StopAsked(15))
    for rank in begun:
        run.at(5, exit_of(rank, 143, is_own=False, signal=15), SENT(rank, messages.End({})))
    found: dict[int, float] = {}
    for turn in range(20):
        run.run_until(5 + turn * 0.25)
        for sent in run.done(m.SignalLauncher):
            found.setdefault(sent.signal, run.clock - 5)
    for after, number in signals:
        assert after <= found[number] <= after + 0.5
    assert set(found) == {number for _, number in signals}


def test_a_launcher_that_does_not_exit_is_signalled_by_the_clock() -> None:
    """Each acknowledgement of a starter wakes the supervisor: it would answer with the next signal."""
    run = Supervised(2).begin().at(5, m.StopAsked(15))
    for rank in (0, 1):
        run.at(5, exit_of(rank, 143, is_own=False, signal=15), SENT(rank, messages.End({})))
    sent = []
    for turn in range(5000):
        run.at(5.5 + turn / 1000, run.tick())
        sent += [each.signal for each in run.done(m.SignalLauncher)]
    assert {*sent} == {signal.SIGTERM, signal.SIGKILL}
    assert len(sent) <= 2 + 5 / supervisor_machine.CHECK_INTERVAL


def test_mpirun_has_time_to_exit_by_itself() -> None:
    run = Supervised(2).begin().end(5).run_until(5 + LAUNCHER_EXIT)
    assert not run.done(m.SignalLauncher)
    run.run_until(5.75 + LAUNCHER_EXIT)
    assert run.done(m.SignalLauncher)[0] == m.SignalLauncher(signal.SIGTERM)


def test_mpirun_is_ended_with_ranks_that_do_not_exit() -> None:
    run = Supervised(2).begin().at(5, m.StopAsked(15)).run_until(5 + TERM_GRACE + supervisor_machine.LAUNCHER_LATE)
    assert not run.done(m.SignalLauncher)
    run.run_until(run.clock + 0.5)
    assert {sent.signal for sent in run.done(m.SignalLauncher)} == {signal.SIGTERM}
    run.run_until(run.clock + supervisor_machine.LAUNCHER_KILLED)
    assert run.done(m.SignalLauncher)[-1].signal == signal.SIGKILL


# Restarts


def test_each_attempt_begins_anew_and_the_last_failure_counts() -> None:
    run = Supervised(2, max_restarts=1).begin().at(5, exit_of(1, 4)).stopped_ranks_end(6).run_until(6.25)
    assert run.done(m.StartAttempt) == [m.StartAttempt("rank 1 on node1 ended with exit code 4")]
    status = run.state.status
    assert (status.attempt, status.state, status.first_failure, run.states()) == (1, "starting", None, ["starting"] * 2)
    assert [(attempt.attempt, attempt.first_failure and attempt.first_failure.rank) for attempt in status.attempts] == [
        (0, 1)
    ]
    assert run.ending is None
    run.connect()
    run.end(8, launcher=0).run_until(8.25)
    assert run.done(m.Close)
    run.at(9, m.Closed())
    assert (run.state.status.state, run.state.status.attempt) == ("ok", 1)


def test_the_job_is_kept_while_a_rank_is_away_that_may_be_lost() -> None:
    """Its loss begins an attempt, which reads the job file on every host. If it comes back, the job goes at the end."""
    lost, back = (Supervised(2, max_restarts=1).begin().at(5, m.Disconnected(1, 5.0)) for _ in range(2))
    for run in (lost, back):
        run.end(6, 0)
        assert (run.sent("release"), run.sent("remove-job")) == ([], [])
    lost.run_until(5 + RANK_SILENCE + 2)
    assert (0 in lost.sent("release"), lost.sent("remove-job")) == (True, [])
    lost.at(lost.clock, m.LauncherExited(1)).run_until(lost.clock + 1)
    assert lost.done(m.StartAttempt)
    back.connect(1)
    back.end(8, 1)
    assert (back.sent("release"), back.sent("remove-job")) == ([0, 1], [0, 1])


def test_an_attempt_begins_when_all_ranks_of_the_one_before_have_ended() -> None:
    run = Supervised(2, max_restarts=1).begin().at(5, exit_of(1, 4), SENT(1, messages.End({})))
    assert not run.sent("release"), "mpirun may kill the other one then"
    run.run_until(8).at(8, exit_of(0, 0), SENT(0, messages.End({})))
    assert (run.sent("release"), run.sent("remove-job")) == ([0, 1], []), "the next attempt reads the job file"
    run.run_until(8.25)
    assert not run.done(m.StartAttempt)
    run.at(8.25, m.LauncherExited(4)).run_until(8.5)
    assert run.done(m.StartAttempt)


def test_an_attempt_that_hangs_is_followed_by_another() -> None:
    run = Supervised(2, max_restarts=1, hang_after=6.0, on_hang="stop").begin().at(1)
    run.quiet_since = 1.0
    run.run_until(7.25)
    assert run.sent("dump") == [0, 1]
    run.at(7.5, SENT(0, messages.Stacks("d1", ())), SENT(1, messages.Stacks("d1", ())))
    assert run.blamed == ("hang", None, None, [0, 1])
    run.stopped_ranks_end(8)
    run.quiet_since = None
    run.run_until(8.25)
    assert (run.state.status.attempt, run.state.status.silent) == (1, None)


def test_an_attempt_that_cannot_start_is_the_end() -> None:
    run = Supervised(2, max_restarts=3).begin().at(5, exit_of(1, 4)).stopped_ranks_end(6)
    run.clock = 6.25
    run.state, commands = supervisor_machine.advance(run.state, run.tick(), run.now)
    assert m.StartAttempt("rank 1 on node1 ended with exit code 4") in commands
    run.state, _ = supervisor_machine.advance(run.state, m.StartFailed("mpirun can't be started again: no"), run.now)
    run.run_until(7)
    assert run.done(m.Close)
    assert (run.ending, run.reason) == (("failed", 1), "mpirun can't be started again: no")


# A full disk


def test_output_that_a_full_disk_refused_is_asked_for_again() -> None:
    run = Supervised(2).begin().at(5, m.Happened.OUTPUT_REFUSED).run_until(60)
    looks = run.acts(m.SupervisorAct.CHECK_DISK)
    assert 27 <= len(looks) <= 56
    assert run.ending is None, "training goes on"
    run.at(60, m.Happened.DISK_HAS_ROOM)
    assert run.of_ranks(m.RankAct.REWIND) == [0, 1]
    assert not run.run_until(70).acts(m.SupervisorAct.CHECK_DISK)


def test_ranks_that_have_ended_wait_for_a_full_disk_for_a_while() -> None:
    run = Supervised(2).begin().at(5, m.Happened.OUTPUT_REFUSED, exit_of(0, 0)).run_until(30)
    assert not run.of_ranks(m.RankAct.END_OUTPUT), "one still runs"
    run.at(30, exit_of(1, 0)).run_until(30 + FULL_DISK_ROOM)
    assert not run.of_ranks(m.RankAct.END_OUTPUT)
    run.looks = {"written_at": run.clock}
    run.run_until(run.clock + FULL_DISK_ROOM - 1)
    assert not run.of_ranks(m.RankAct.END_OUTPUT), "some output has found room"
    run.run_until(run.clock + 3)
    assert run.of_ranks(m.RankAct.END_OUTPUT) == [0, 1]
    assert [event["rank"] for event in run.logged("output-lost")] == [0, 1]
    assert run.sent("release") == [0, 1]


def test_a_run_that_ends_on_a_full_disk_has_more_time() -> None:
    run = Supervised(2).begin().at(5, m.Happened.OUTPUT_REFUSED, m.StopAsked(15), m.LauncherExited(0))
    run.run_until(5 + FULL_DISK_FLUSH)
    assert not run.state.is_closing
    run.run_until(6 + FULL_DISK_FLUSH)
    assert run.state.is_closing


# Silence and stacks


@pytest.mark.parametrize(("on_hang", "is_removed"), [("report", True), ("dump", False)])
def test_a_run_that_is_silent_again_and_again_is_reported_each_time(on_hang: str, is_removed: bool) -> None:
    run = Supervised(2, hang_after=10.0, on_hang=on_hang).begin()
    removed: list[str] = []
    for number in (1, 2):
        began = run.clock
        run.quiet_since = began
        run.run_until(began + 9)
        assert not run.done(m.CheckSilence)
        run.run_until(began + 11)
        (look,) = run.done(m.CheckSilence)
        assert look.ranks == (0, 1)
        assert look.since == pytest.approx(EPOCH + began)
        (silence,) = run.silences()
        assert (silence.after, silence.on_hang, silence.dump) == (10.0, on_hang, "")
        assert silence.ranks == (SilentRank(0, "node1", "step 7"), SilentRank(1, "node1", "step 7"))
        assert run.sent("dump") == [0, 1]
        run.at(run.clock, *(SENT(rank, messages.Stacks(f"d{number}", ())) for rank in (0, 1)))
        removed += [dump.id for dump in run.done(m.RemoveDump)]
        assert [dump.id for dump in run.done(m.WriteDump)] == [f"d{number}"]
        assert ([silence.dump for silence in run.silences()], run.ending) == ([f"d{number}"], None)
        assert not run.run_until(run.clock + 20).done(m.CheckSilence), "once is enough"
        run.quiet_since = None
        run.run_until(run.clock + 2)
        assert (run.silences(), len(run.logged("output-resumed"))) == ([], 1)
    assert removed == (["d1"] if is_removed else [])


@pytest.mark.parametrize(
    ("cpu", "quiet", "stepped", "hang"),
    [
        (0.0, 30.0, 0.0, 600.0),
        (0.0, 30.0, 30.0, 600.0),
        (0.0, 30.0, 0.0, 0.0),
        (50.0, 30.0, 0.0, 600.0),
        (None, 30.0, 0.0, 600.0),
        (0.0, 85.0, 0.0, 600.0),
        (0.0, 30.0, 85.0, 600.0),
    ],
)
def test_ranks_that_stand_still_before_the_time_limit_are_asked_for_their_stacks(
    cpu: float | None, quiet: float, stepped: float, hang: float
) -> None:
    """Nobody prints, steps or computes for 20 s: more time would not help. The run ends at its limit all the same."""
    run = Supervised(2, time_limit=100.0, hang_after=hang).begin()
    run.quiet_since, run.cpu, run.looks["stepped_at"] = quiet, cpu, stepped
    run.run_until(99.0)
    is_still = cpu == 0.0 and max(quiet, stepped) < 70
    assert run.sent("dump") == ([0, 1] if is_still else [])
    assert [silence.after for silence in run.silences()] == ([pytest.approx(60.0, abs=2)] if is_still else [])
    run.run_until(102.0)
    assert run.ending is not None
    assert run.blamed[0] == "time-limit"


def test_a_hang_counts_also_if_the_disk_has_no_room_for_the_stacks() -> None:
    run = Supervised(2, hang_after=10.0, on_hang="stop").begin()
    run.quiet_since, run.has_room_for_dumps = 0.0, False
    run.run_until(11)
    assert run.blamed == ("hang", None, None, [0, 1])


def test_ranks_that_have_ended_are_not_silent() -> None:
    run = Supervised(2, hang_after=10.0).begin()
    run.quiet_since = 0.0
    assert not run.end(5).run_until(40).done(m.CheckSilence)


def test_a_dump_has_a_row_for_each_rank_with_the_reason_why_it_has_no_stacks() -> None:
    run = Supervised(5).begin(0, 1, 2).at(1, SENT(0, messages.Started(1)))
    run.connect(3)
    run.at(5, exit_of(1, 0), m.Disconnected(2, 5.0), m.ReportAsked("d"))
    assert run.sent("dump") == [0, 3]
    assert not run.done(m.WriteDump)
    run.at(6, SENT(0, messages.Stacks("d", ({"pid": 7},))), SENT(0, messages.Stacks("of another", ())))
    run.run_until(5 + DUMP_REPLIES)
    assert not run.done(m.WriteDump)
    run.state = run.state._replace(ending=m.Ending("failed", 1, 6.0))  # that does not matter
    run.run_until(5.5 + DUMP_REPLIES)
    (dump,) = run.done(m.WriteDump)
    assert [row["why"] for row in dump.rows] == [
        "",
        "it has ended with exit code 0",
        "it is reconnecting to the supervisor",
        f"its wrapper process didn't answer within {DUMP_REPLIES:g} s",
        "it has not started yet",
    ]
    assert (dump.rows[0]["processes"], dump.unanswered) == (({"pid": 7},), frozenset([3]))


def test_several_requests_for_stacks_are_open_at_once() -> None:
    run = Supervised(2).begin().at(5, m.ReportAsked("a", ranks=(0,)), m.ReportAsked("b", ranks=(0, 1)))
    assert (run.sent("dump"), supervisor_machine.check_interval(run.state)) == (
        [0, 0, 1],
        supervisor_machine.CHECK_INTERVAL,
    )
    run.at(6, SENT(0, messages.Stacks("b", ())), SENT(0, messages.Stacks("a", ())))
    assert [dump.id for dump in run.done(m.WriteDump)] == ["a"]
    run.at(7, SENT(1, messages.Stacks("b", ())))
    assert [(dump.id, len(dump.rows)) for dump in run.done(m.WriteDump)] == [("b", 2)]


# A job of Slurm


JOB = m.JobState("12")


def near_the_limit(run: Supervised) -> Supervised:
    """The job has a limit of an hour, and its notice is due."""
    run.run_until(1)
    run.at(1, m.TimeLeft(0.0, is_answer=True, seconds=3600)).run_until(3540.5)
    assert run.acts(m.SupervisorAct.ASK_TIME_LEFT)
    return run.at(3540.5, m.TimeLeft(3540.5, is_answer=True, seconds=59))


def test_ranks_hear_of_the_limit_before_the_run_is_stopped() -> None:
    run = near_the_limit(Supervised(2, hang_after=0.0, job=JOB).begin())
    assert (run.sent("notice"), run.state.is_limit_near) == ([0, 1], True)
    assert [note.kind for note in run.done(m.AddNote)] == ["job-limit"]
    assert not run.run_until(3585).sent("stop")
    run.at(3586, m.TimeLeft(3586.0, is_answer=True, seconds=14))
    assert run.ending == ("stopped", 143)
    run.stopped_ranks_end(3587).run_until(3588).at(3588, m.Closed())
    assert (run.state.status.state, run.state.status.job_end) == ("stopped", "LIMIT_NEAR")
    assert run.acts(m.SupervisorAct.FINISH) and not run.acts(m.SupervisorAct.NOTIFY)


def test_a_rank_that_ends_at_the_notice_leaves_the_others_time_to_save() -> None:
    run = near_the_limit(Supervised(2, hang_after=0.0, job=JOB).begin())
    run.at(3542, SENT(1, messages.Signalled("noticed", 10)), exit_of(1, 138), SENT(1, messages.End({})))
    assert (run.ending, run.sent("release"), run.states([1])) == (None, [], ["stopped"])
    run.run_until(3550)
    run.at(3550, exit_of(0, 1))  # it misses the other one
    assert (run.ending, run.states([0])) == (None, ["stopped"])
    run.at(3550, SENT(0, messages.End({})), m.LauncherExited(0)).run_until(3551)
    assert (run.ending, run.sent("release")) == (("stopped", 143), [])


def test_a_stop_by_a_user_near_the_limit_is_final() -> None:
    run = near_the_limit(Supervised(2, hang_after=0.0, job=JOB).begin()).at(3545, m.StopAsked(15))
    assert run.acts(m.SupervisorAct.ASK_JOB)
    run.stopped_ranks_end(3546).run_until(3547).at(3547, m.Closed())
    assert (run.state.status.state, run.state.status.job_end) == ("stopped", "")


def lose_node2(run: Supervised) -> Supervised:
    run.run_until(5)
    run.silent_since = {2: 5.0, 3: 5.0}
    run.run_until(7 + RANK_SILENCE)
    assert run.blamed[:2] == ("lost", 2)
    return run.stopped_ranks_end(40).run_until(41)


def test_a_lost_node_in_a_job_is_a_failure() -> None:
    run = lose_node2(Supervised(4, job=JOB).begin())
    run.at(42, m.Closed())
    assert run.state.status.state == "failed"


def test_a_failure_by_a_signal_is_what_slurm_did_and_slurm_is_asked() -> None:
    run = Supervised(2, job=JOB).begin().at(5, exit_of(1, 143, signal=15))
    run.stopped_ranks_end(6).run_until(7)
    assert [close.asks_job for close in run.done(m.Close)] == [True]
    run.at(8, m.Closed(is_step_cancelled=True))
    assert (run.state.status.state, run.state.status.job_end) == ("stopped", "STEP_CANCELLED")


def test_a_step_that_the_supervisor_has_ended_was_not_cancelled_by_slurm() -> None:
    run = Supervised(2, job=JOB).begin().at(5, exit_of(1, 143, signal=15), SENT(1, messages.End({})))
    run.at(5, exit_of(0, 143, is_own=False, signal=15), SENT(0, messages.End({}))).run_until(7)
    assert run.done(m.SignalLauncher)
    run.at(7, m.LauncherExited(-15)).run_until(8).at(8, m.Closed(is_step_cancelled=True))
    assert (run.state.status.state, run.state.status.job_end) == ("failed", "")


COPIES: dict[str, Any] = {
    "keep_going": True,
    "max_restarts": 2,
    "backend": "none",
    "flavor": "none",
    "has_starters": True,
}


def finish_copies(run: Supervised, clock: float) -> Supervised:
    for rank in run.state.ranks:
        run.at(clock, m.WrapperExited(rank, 0, 0))
    return run.run_until(clock + 1)


def test_a_copy_that_fails_does_not_end_the_others_and_its_code_is_the_runs() -> None:
    run = Supervised(3, **COPIES).begin()
    run.end(5.0, 1, code=4)
    assert (run.ending, run.sent("stop"), run.sent("release")) == (None, [], [1])
    run.end(9.0, 2, code=6)
    run.end(20.0, 0)
    finish_copies(run, 21.0)
    assert run.ending == ("failed", 4)
    assert run.blamed == ("exit", 1, "node1", [1])
    assert missing(run.reason, "1 node1 4 2 3") == []
    assert run.states() == ["ok", "failed", "failed"]
    assert run.done(m.StartAttempt) == [], "restarts are those of the copies"


def test_ranks_get_the_ports_of_all_once_each_has_chosen_one() -> None:
    run = Supervised(3).begin(0, 1, 2)
    run.at(1.0, SENT(2, messages.ChosenPort(5002)), SENT(0, messages.ChosenPort(5000)))
    assert run.sent("peers") == []
    run.at(2.0, SENT(1, messages.ChosenPort(5001)))
    assert run.sent("peers") == [0, 1, 2]
    assert {tuple(send.fields["ports"]) for send in run.done(m.Send) if send.kind == "peers"} == {(5000, 5001, 5002)}
    run.at(3.0, SENT(1, messages.ChosenPort(5001)))  # it has reconnected, and may have missed them
    assert 1 in run.sent("peers")


def test_a_copy_that_was_started_again_and_succeeds_is_no_failure() -> None:
    run = Supervised(2, **COPIES).begin()
    run.at(5.0, SENT(1, messages.Started(77, port=5001, restarts=1, exit_code=3)))
    assert [(note.rank, note.kind) for note in run.done(m.AddNote)] == [(1, "copy-restart")]
    assert [run.state.ranks[1].status.restarts, run.state.ranks[1].status.pid] == [1, 77]
    run.end(9.0)
    finish_copies(run, 10.0)
    assert run.state.status.first_failure is None
    assert run.states() == ["ok", "ok"]


def test_a_lost_host_does_not_end_the_copies_of_others() -> None:
    run = Supervised(4, **COPIES).begin()
    run.at(3.0, m.StarterChanged("node2", is_connected=False), m.Disconnected(2, 3.0), m.Disconnected(3, 3.0))
    run.run_until(3.0 + RANK_SILENCE + 1)
    assert (run.ending, run.states()) == (None, ["running", "running", "lost", "lost"])
    run.end(40.0, 0, 1)
    for rank in (0, 1):
        run.at(41.0, m.WrapperExited(rank, 0, 0))
    run.run_until(50.0)
    assert (run.ending, run.first.kind) == (("failed", 1), "lost")


def test_an_mpirun_gets_no_exit_of_a_copy_before_all_have_ended() -> None:
    run = Supervised(2, keep_going=True, max_restarts=0, backend="none").begin()
    run.end(5.0, 0, code=4)
    assert run.sent("release") == []
    run.end(9.0, 1)
    assert run.sent("release") == [0, 1]

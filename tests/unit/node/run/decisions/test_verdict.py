"""The verdict of a run: the first rank that failed, the ranks that followed, lost nodes."""

from __future__ import annotations

from typing import Any

import pytest
from supervised_run import Supervised, closed_by_peer, exit_of

from ipexctl.node.common.node_limits import RANK_SILENCE, WRAPPER_ASK
from ipexctl.node.common.plan import Plan
from ipexctl.node.common.records import Detail, OutOfMemory
from ipexctl.node.common.run_options import RunOptions
from ipexctl.node.common.training import RankProgress
from ipexctl.node.run.connection.messages import Left, Raised, Signalled
from ipexctl.node.run.decisions import supervisor_state as m
from ipexctl.node.run.decisions import verdict
from message_data import missing

LOST = verdict.AT_ONCE + 2.0
"""Seconds after which a rank is lost whose host says that its wrapper is gone; mpirun has a moment to end."""


def cluster(hosts: int = 3, **plan: Any) -> Supervised:
    return Supervised(2 * hosts, **plan).begin()


def test_first_failed_rank_gives_first_failure_and_exit_code() -> None:
    run = cluster().at(5, exit_of(3, 3), exit_of(0, 1))
    assert run.sent("stop") == [0, 1, 2, 4, 5]
    assert run.blamed == ("exit", 3, "node2", [3])
    assert (run.ending, run.reason) == (("failed", 3), "rank 3 on node2 ended with exit code 3")
    assert run.states([0]) == ["failed"]


@pytest.mark.parametrize(("later", "expected"), [(1.9, ("oom", 4)), (2.1, ("exit", 0))])
def test_oom_kill_reported_soon_after_replaces_an_exception_as_first_failure(
    later: float, expected: tuple[str, int]
) -> None:
    run = cluster().at(5, exit_of(0, 1))
    run.at(5 + later, exit_of(4, 137, signal=9, oom=OutOfMemory("cgroup", 2 << 30)))
    assert run.blamed[:2] == expected
    if expected[0] == "oom":
        assert run.reason == "rank 4 on node3 was killed by the kernel: out of memory (limit 2.0 GB)"
        assert run.ending == ("failed", 137)


@pytest.mark.parametrize(
    ("first", "own", "is_own", "blamed"),
    [
        ("RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:9138.", "", True, (0, 3)),
        ("DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.", "ValueError: x", True, (0, 3)),
        ("RuntimeError: Connection closed by peer", "RuntimeError: Connection closed by peer", True, (1, 1)),
        ("RuntimeError: Connection closed by peer", "", False, (1, 1)),  # its script ended because of the stop
        ("ValueError: y", "", True, (1, 1)),
    ],
)
def test_the_exit_that_made_another_rank_lose_its_connection_is_the_first_failure(
    first: str, own: str, is_own: bool, blamed: tuple[int, int]
) -> None:
    run = Supervised().begin().at(5, exit_of(1, 1, raised=Raised(first, "7 train.py:6")))
    run.at(9, exit_of(0, 3, is_own=is_own, raised=Raised(own, "8 train.py:5") if own else None))
    assert (run.first.rank, run.first.exit_code) == blamed
    assert run.ending == ("failed", blamed[1])


GONE = Raised("raised RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:9138.", "7 train.py:6")
REFUSED = Raised("raised ConnectionError: https://logs: Connection refused", "7 train.py:6")
KILLED = exit_of(0, 137, signal=9, is_own=False)
LEFT = m.RankSent(0, Left(21))


@pytest.mark.parametrize(
    ("events", "blamed"),
    [
        ([(4, LEFT), (5, exit_of(1, 1, raised=GONE)), (6, exit_of(0, 0))], ("left", 0)),
        (
            [(4, m.RankSent(0, Left())), (5, exit_of(1, 1, raised=GONE)), (9, KILLED)],
            ("left", 0),
        ),  # by mpirun, as the run was ending
        ([(4, exit_of(0, 0)), (5, exit_of(1, 1, raised=GONE))], ("left", 0)),  # os._exit(0)
        ([(5, exit_of(1, 1, raised=GONE)), (5.5, exit_of(0, 0))], ("left", 0)),  # reported late
        ([(5, exit_of(1, 1, raised=GONE)), (5.5, exit_of(0, 0, is_own=False))], ("exit", 1)),  # it handled SIGTERM
        ([(4, LEFT), (5, exit_of(1, 1, raised=GONE)), (6, exit_of(0, 3))], ("exit", 0)),  # raise SystemExit(3)
        ([(4, LEFT), (5, exit_of(1, 1, raised=GONE)), (6, exit_of(2, 139, signal=11))], ("left", 0)),
        ([(3, exit_of(2, 0)), (4, LEFT), (5, exit_of(1, 1, raised=GONE))], ("left", 2)),
        ([(4, LEFT), (5, exit_of(1, 1, raised=REFUSED))], ("exit", 1)),  # of another server
        ([(4, LEFT), (5, exit_of(1, 1))], ("exit", 1)),
    ],
)
def test_a_rank_that_left_before_another_one_that_needed_it_is_the_first_failure(
    events: list[tuple[float, Any]], blamed: tuple[str, int]
) -> None:
    run = cluster()
    for at, event in events:
        run.at(at, event)
    assert run.blamed[:2] == blamed
    if blamed == ("left", 0):
        assert missing(run.reason, "rank 0 ended first exit code 0 node1 rank 1 train.py:6") == []
        assert run.ending == ("failed", 1)


def test_ranks_stopped_by_the_supervisor_are_not_the_first_failure() -> None:
    run = cluster().at(5, exit_of(0, 1), exit_of(1, 137, is_own=False, signal=9))
    assert run.blamed[:2] == ("exit", 0)
    assert run.states([1]) == ["stopped"]


def test_rank_that_is_killed_after_a_stop_on_request_did_not_fail() -> None:
    run = cluster().at(5, m.StopAsked(2), exit_of(0, 137, signal=9), exit_of(1, 7))
    assert run.states([0, 1]) == ["stopped", "failed"]
    assert run.state.status.first_failure is None


@pytest.mark.parametrize(
    ("silent", "words", "first"),
    [
        ({2: 25.1, 3: 24}, "node2 (ranks 2-3)", ("lost", 2, "node2", [2, 3])),
        ({3: 25.1}, "rank 3 on node2", ("lost", 3, "node2", [3])),
        ({2: 25.1, 3: 24, 4: 23, 5: 25}, "(ranks 2-5) node1", ("lost", None, None, [2, 3, 4, 5])),
    ],
)
def test_silent_nodes_are_named_with_their_ranks(silent: dict[int, float], words: str, first: tuple[Any, ...]) -> None:
    run = cluster().run_until(100)
    run.silent_since = {rank: 100 - seconds for rank, seconds in silent.items()}
    run.at(100, run.tick())
    assert missing(run.reason, words) == []
    assert run.blamed == first
    assert [rank for rank in run.state.ranks if run.states([rank]) == ["lost"]] == sorted(silent)


@pytest.mark.parametrize(
    ("silent", "words"),
    [
        ((2, 3, 4, 5), "no other node responds (ranks 2-5): the network, or the link of node1, is down"),
        ((2, 3, 4), "node2 stopped responding (ranks 2-3)"),  # node3 still has a rank that sends
        ((0, 1, 2, 3, 4, 5), "node1 stopped responding (ranks 0-1)"),  # node0's too: it is not only the network
        ((0, 1), "node1 stopped responding (ranks 0-1)"),
    ],
)
def test_network_is_named_only_if_all_ranks_of_all_other_nodes_are_silent(silent: tuple[int, ...], words: str) -> None:
    run = cluster().run_until(100)
    run.silent_since = dict.fromkeys(silent, 100 - RANK_SILENCE - 1)
    run.at(100, run.tick())
    assert ("network" in run.reason) == ("no other node" in words)
    assert missing(run.reason, words) == []


def test_single_other_node_that_is_silent_is_no_fault_of_the_network() -> None:
    run = cluster(2).run_until(100)
    run.silent_since = dict.fromkeys((2, 3), 74)
    run.at(100, run.tick())
    assert run.blamed == ("lost", 2, "node2", [2, 3])
    assert "network" not in run.reason


def test_first_rank_to_disconnect_is_the_first_failure() -> None:
    run = cluster().run_until(5)
    for at, rank in ((5.0, 3), (5.2, 4), (5.3, 0)):
        run.at(at, closed_by_peer(rank))
    run.run_until(5.0 + LOST)
    assert missing(run.reason, "rank 3 node2") == []
    assert run.blamed == ("lost", 3, "node2", [3])


def test_rank_whose_host_says_that_the_wrapper_runs_has_the_time_of_a_silent_host_to_reconnect() -> None:
    run = cluster().run_until(5)
    run.alive = {3}
    asked = []
    run.at(5, closed_by_peer(3, 5.0))
    while run.clock < 5 + RANK_SILENCE:
        run.run_until(run.clock + 0.5)
        asked += [run.clock for command in run.done(m.AskWrappers) if list(command.wrappers) == [3]]
    assert run.ending is None
    assert len(asked) == RANK_SILENCE // WRAPPER_ASK + 1
    run.run_until(5 + RANK_SILENCE + 1)
    assert run.blamed == ("lost", 3, "node2", [3])
    assert run.first.detail == Detail("silent")


def test_answer_about_an_earlier_wrapper_counts_for_nothing() -> None:
    run = cluster().run_until(5)
    run.alive = {3}
    before = run.state.ranks[3].wrapper
    assert before is not None
    run.at(5, closed_by_peer(3)).connect(3)
    run.at(6, m.WrappersGone({3: before}), closed_by_peer(3), m.WrappersGone({3: before._replace(start=8), 99: before}))
    assert run.run_until(12).ending is None


@pytest.mark.parametrize(
    ("code", "kind"),
    [(137, "lost"), (-9, "mpirun")],
    ids=["it-has-ended", "it-was-killed"],
)
def test_mpirun_that_ends_after_a_closed_connection_says_that_the_wrapper_is_gone(code: int, kind: str) -> None:
    run = cluster().run_until(5)
    run.alive = set(run.state.ranks)
    run.at(5, closed_by_peer(3)).at(5.1, m.LauncherExited(code)).run_until(5.5)
    assert (run.ending is None) == (kind == "mpirun")
    run.run_until(8)
    assert run.first.kind == kind


@pytest.mark.parametrize(
    ("report", "after", "first"),
    [
        ("=   RANK 3 PID 337 RUNNING AT 10.77.2.11", 0.02, (3, "node2", [3])),
        ("=   RANK 3 PID 337 RUNNING AT 10.77.2.11", 1.5, (0, "node1", [0])),  # long after the first one
        ("=   RANK 9 PID 337 RUNNING AT 10.77.2.11", 0.02, (0, "node1", [0])),
        ("no report", 0.02, (0, "node1", [0])),
    ],
)
def test_wrapper_that_mpirun_reports_as_killed_is_first_of_those_that_disconnect_at_once(
    report: str, after: float, first: tuple[Any, ...]
) -> None:
    run = cluster().run_until(5).at(5, closed_by_peer(0)).at(5 + after, closed_by_peer(3))
    run.looks = {"launcher_log": ("=====", report, "=   KILLED BY SIGNAL: 9")}
    run.run_until(5.0 + LOST)
    assert run.blamed[1:] == first


@pytest.mark.parametrize(
    ("host", "after", "first"),
    [
        ("node2", 0.02, (2, "node2", [2, 3])),
        ("node2", 1.5, (0, "node1", [0])),  # long after the first one
        ("node9", 0.02, (0, "node1", [0])),
    ],
)
def test_host_that_mpirun_loses_first_is_first_of_those_that_disconnect_at_once(
    host: str, after: float, first: tuple[Any, ...]
) -> None:
    run = cluster().run_until(5).at(5, closed_by_peer(0))
    run.at(5 + after, closed_by_peer(3), closed_by_peer(2), closed_by_peer(4))
    run.looks = {"launcher_log": (f"[mpiexec@node1] Error: Downstream from host {host} exited abnormally",)}
    run.run_until(5.0 + LOST)
    assert run.blamed[1:] == first


@pytest.mark.parametrize(
    ("log", "code", "kind", "host"),
    [
        ("Downstream from host node2 exited abnormally", -13, "lost", "node2"),
        ("Downstream from host node2 exited abnormally", 255, "lost", "node2"),
        ("Downstream from host node9 exited abnormally", -13, "mpirun", None),
        ("", -9, "mpirun", None),
    ],
)
def test_host_that_mpirun_loses_is_the_cause_if_mpirun_dies_of_it(
    log: str, code: int, kind: str, host: str | None
) -> None:
    run = cluster().run_until(5).at(5, m.LauncherExited(code))
    run.at(5.1, *(closed_by_peer(rank) for rank in run.state.ranks))
    run.looks = {"launcher_log": (f"[mpiexec@node1] Error: {log}",)}
    run.run_until(5 + LOST)
    assert (run.first.kind, run.first.host) == (kind, host)


def test_sigterm_to_all_ranks_is_an_mpirun_failure() -> None:
    run = cluster()
    for rank in run.state.ranks:
        run.at(5, m.RankSent(rank, Signalled("outside-signal", 15)), exit_of(rank, 143, is_own=False, signal=15))
    assert (run.state.is_signal_open, run.ending) == (True, None)
    run.at(5, m.LauncherExited(143), run.tick())
    assert run.blamed[:2] == ("mpirun", None)


def test_sigterm_to_some_ranks_is_an_mpirun_failure_if_a_program_of_it_had_ended() -> None:
    part = "the remote shell to node2 (pid 31)"
    run = cluster().at(5, m.LauncherPartsEnded((part,)), m.RankSent(3, Signalled("outside-signal", 15)))
    run.at(6.1, run.tick())
    assert (run.blamed[:2], run.first.detail) == (("mpirun", None), Detail("mpirun-signalled", {"part": part}))
    assert missing(run.reason, f"mpirun {part} node1 3 node2") == []


def test_sigterm_to_one_rank_is_its_failure_when_no_other_got_one_within_a_second() -> None:
    run = cluster().run_until(5).at(5, m.RankSent(3, Signalled("outside-signal", 15)))
    run.at(6.0, m.RankSent(2, Signalled("outside-signal", 15)), run.tick())  # a later one does not begin the wait again
    assert run.ending is None
    run.at(6.1, run.tick())
    assert run.blamed == ("signal", 2, "node2", [2, 3])
    assert missing(run.reason, "ranks 2-3 node2 SIGTERM") == []
    assert run.ending == ("failed", 143)


def test_signal_after_the_end_of_a_run_has_begun_is_not_waited_for() -> None:
    run = cluster(max_restarts=1).at(5, exit_of(0, 1), m.RankSent(3, Signalled("outside-signal", 15)))
    assert not run.state.is_signal_open
    assert run.blamed[:2] == ("exit", 0)
    run.stopped_ranks_end(6).run_until(7)
    assert run.state.status.attempt == 1
    assert not run.state.is_signal_open, "a signal of the attempt before does not count for the next"


def test_failure_before_the_sender_of_a_signal_is_known_stays_the_first() -> None:
    run = cluster().at(5, m.RankSent(3, Signalled("outside-signal", 15)), exit_of(0, 1))
    run.run_until(8)
    assert (run.blamed[:2], run.ending) == (("exit", 0), ("failed", 1))


OOM = OutOfMemory("cgroup", 2 << 30)


@pytest.mark.parametrize(
    ("code", "more", "lost_at", "expected"),
    [
        (1, {}, 4.9, ("lost", 4, "node3", [4])),  # the exception came of the lost rank
        (1, {}, 5.1, ("exit", 0, "node1", [0])),  # the rank was lost after the failure
        (1, {}, None, ("exit", 0, "node1", [0])),
        (137, {"signal": 9, "oom": OOM}, 4.9, ("oom", 0, "node1", [0])),  # its own cause
    ],
)
def test_rank_that_was_lost_before_an_exception_elsewhere_is_the_first_failure(
    code: int, more: dict[str, Any], lost_at: float | None, expected: tuple[Any, ...]
) -> None:
    run = cluster().run_until(4.5)
    losses: list[tuple[float, m.Event]] = [] if lost_at is None else [(lost_at, closed_by_peer(4))]
    for at, event in sorted([*losses, (5.0, exit_of(0, code, **more))], key=lambda entry: entry[0]):
        run.at(at, event)
    run.stopped_ranks_end(5.2).run_until(10)
    assert run.done(m.Close)
    assert run.blamed == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [(1, ("lost", 3, "node2", [3])), (-9, ("mpirun", None, None, []))],
    ids=["it-has-ended", "it-was-killed"],
)
def test_rank_lost_before_mpirun_ended_is_the_cause_unless_mpirun_was_killed(
    code: int, expected: tuple[Any, ...]
) -> None:
    run = cluster().run_until(5).at(5, closed_by_peer(3)).at(5.5, m.LauncherExited(code)).run_until(8)
    assert run.blamed == expected
    if code == -9:
        assert run.reason == "mpirun was ended by SIGKILL while ranks 0-5 on node1, node2, node3 ran"


RAISED = Raised("raised TypeError: at 0x7f12", "77 train.py:3", 0)


@pytest.mark.parametrize(
    ("before", "now", "checkpoint", "is_over"),
    [
        (RAISED, RAISED, "last", True),
        (RAISED, RAISED._replace(text="raised TypeError: at 0x7f99"), "", True),
        (RAISED, RAISED._replace(text="raised TypeError: at 8"), "", False),
        (RAISED, RAISED._replace(place="78 train.py:3"), "", False),
        (RAISED, RAISED._replace(steps=3), "", False),
        (RAISED._replace(steps=3), RAISED._replace(steps=3), "", True),
        (RAISED._replace(steps=3), RAISED._replace(steps=3), "last", False),
        (RAISED._replace(steps=500), RAISED._replace(steps=505), "", True),
        (RAISED._replace(steps=500), RAISED._replace(steps=494), "", False),
        (RAISED._replace(steps=None), RAISED._replace(steps=None), "", False),
        (None, RAISED, "", False),
        (RAISED, None, "", False),
    ],
)
def test_second_identical_exception_without_a_step_further_ends_the_restarts(
    before: Raised | None, now: Raised | None, checkpoint: str, is_over: bool
) -> None:
    run = Supervised(2, max_restarts=5, checkpoint=checkpoint).begin()
    for at, raised in ((5, before), (10, now)):
        run.at(at, exit_of(1, 1, raised=raised)).stopped_ranks_end(at + 1).run_until(at + 3)
        if run.state.status.attempt < 2 and not run.state.is_closing:
            run.connect()
    assert (run.state.is_closing, run.state.status.attempt) == ((True, 1) if is_over else (False, 2))
    if is_over:
        assert (run.first.detail and run.first.detail.kind, run.ending) == ("repeated", ("failed", 1))
        assert missing(run.reason, "train.py:3 TypeError") == []


def test_other_end_between_two_identical_exceptions_goes_on() -> None:
    run = Supervised(2, max_restarts=5).begin()
    for at, raised in ((5, RAISED), (10, None), (15, RAISED)):
        run.at(at, exit_of(1, 1, raised=raised)).stopped_ranks_end(at + 1).run_until(at + 3).connect()
    assert run.state.status.attempt == 3


@pytest.mark.parametrize(
    ("kind", "has_started", "allowed", "again"),
    [
        ("exit", True, 1, True),
        ("lost", True, 1, True),
        ("exit", True, 0, False),
        ("exit", False, 1, False),
        ("time-limit", True, 1, False),
        ("not-begun", True, 1, False),
    ],
)
def test_restart_depends_on_failure_kind_started_ranks_and_limit(
    kind: str, has_started: bool, allowed: int, again: bool
) -> None:
    run = Supervised(6, max_restarts=allowed).begin(pids=has_started)
    t = m.Transition(run.state, run.now)
    verdict.fail(t, "why", verdict.failure_of(kind, [t.ranks[0]]))
    assert verdict.may_restart(t.state) is again


def test_stop_while_a_failed_attempt_ends_takes_the_place_of_the_next_attempt() -> None:
    run = cluster(max_restarts=2).at(5, exit_of(0, 3)).at(6, m.StopAsked(15))
    assert run.ending == ("stopped", 143)
    assert run.state.status.first_failure is None
    assert "rank 0 on node1 ended" in run.reason
    run.stopped_ranks_end(7).run_until(8)
    assert (len(run.done(m.Close)), run.state.status.attempt) == (1, 0)


@pytest.mark.parametrize("restarts", [0, 1])
def test_stop_does_not_change_how_a_run_has_failed(restarts: int) -> None:
    run = cluster(max_restarts=restarts)
    for attempt in range(restarts):
        run.at(5, exit_of(0, 3)).stopped_ranks_end(6).run_until(7)
        assert run.state.status.attempt == attempt + 1
        run.connect()
    run.at(10, exit_of(0, 3)).at(11, m.StopAsked(15))
    assert (run.ending, run.reason) == (("failed", 3), "rank 0 on node1 ended with exit code 3")


def test_rank_that_ends_with_0_is_ok_and_ends_nothing() -> None:
    run = cluster().at(5, exit_of(0, 0))
    assert (run.states([0]), run.state.ranks[0].status.exit_code) == (["ok"], 0)
    assert (run.commands[1:], run.state.status.first_failure, run.ending) == ([], None, None)


@pytest.mark.parametrize("end", [exit_of(2, 143, is_own=False, signal=15), exit_of(2, 0, is_own=False)])
def test_a_rank_that_gave_up_a_suspended_supervisor_fails_the_run(end: m.RankSent) -> None:
    """It ended its command, whatever that made of SIGTERM, before anything had ended the run."""
    run = cluster().at(5, end)
    assert (run.blamed, run.ending, run.states([2])) == (("lost", None, None, [2]), ("failed", 1), ["stopped"])
    assert run.first.detail == Detail("gave-up")
    assert missing(run.reason, "rank 2 node2 node0") == []


@pytest.mark.parametrize(
    ("size", "text"),
    [(1023, "1023 bytes"), (1024, "1 KB"), ((1 << 20) - 1, "1024 KB"), (1 << 20, "1 MB"), (1 << 30, "1.0 GB")],
)
def test_limit_of_memory_has_the_unit_that_fits(size: int, text: str) -> None:
    assert verdict.format_limit(size) == text


@pytest.mark.parametrize(
    ("progress", "is_attended", "resumes_from", "note", "ends"),
    [
        (RankProgress(step=1, began=1, is_of_trainer=True), False, "a-1:out/ck_5", "fetch a-1:out/ck_5 out/", True),
        (RankProgress(step=1, began=1, is_of_trainer=True), True, "a-1:out/ck_5", "train.py step 1 out/ck_5", False),
        (RankProgress(step=1, began=1), False, "a-1:out/ck_5", "the optimizer of train.py", False),
        (RankProgress(step=9, began=6, is_of_trainer=True), False, "a-1:out/ck_5", None, False),
        (RankProgress(step=1, began=0), False, "a-1:out/ck_5", None, False),
        (RankProgress(step=1, began=1, is_of_trainer=True), False, "", None, False),
    ],
)
def test_a_trainer_that_starts_over_ends_the_resumed_run_that_nobody_follows(
    progress: RankProgress, is_attended: bool, resumes_from: str, note: str | None, ends: bool
) -> None:
    asked = RunOptions(argv=("train.py",), is_attended=is_attended)
    seen = verdict.find_start_over(Plan("a-2", "/h", "node1", asked, resumes_from=resumes_from), progress)
    if note is None:
        assert seen is None
        return
    assert seen is not None
    assert missing(seen.note, note) == []
    assert bool(seen.reason) == ends

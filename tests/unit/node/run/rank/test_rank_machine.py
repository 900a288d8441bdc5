"""The decisions of a rank wrapper: tables of events with their times, and the commands that follow with theirs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ipexctl.node.common.node_limits import RANK_STUCK
from ipexctl.node.common.processes import ProcessIdentity
from ipexctl.node.common.records import Detail
from ipexctl.node.run.connection.supervisor_contact import SILENCE_LIMIT, Contact, Stage
from ipexctl.node.run.rank.rank_machine import (
    BONDS,
    NEVER,
    PHASES,
    Act,
    Bond,
    Command,
    ExplainExit,
    PassOn,
    Phase,
    Resume,
    SendReport,
    Step,
    Turn,
    WrapperState,
)

TERM, KILL, USR1, USR2 = signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1, signal.SIGUSR2
ROUTINE = (Act.SEND_BEAT, Act.SEND_WINDOWS, Act.CHECK_MEMORY, Act.READ_METER, Act.READ_HOST, Act.FINISH_METER)
"""What happens all the time."""
PYTHON = ProcessIdentity(4712, 1)
Event = Callable[[WrapperState, float], Step]


def welcome(**fields: object) -> Event:
    return lambda state, now: state.on_welcome({"attempt": 0, **fields}, now)


def sends(t: str) -> Event:
    """The supervisor sends it."""
    return lambda state, now: state.on_message(t, now)


def gets(number: int) -> Event:
    """The wrapper gets a signal."""
    return lambda state, now: state.on_signal(number, now)


def ends(code: int, by: int | None = None) -> Event:
    return lambda state, now: state.on_ended(code, by, 1 << 20, now)


def raises(process: ProcessIdentity = PYTHON) -> Event:
    return lambda state, now: state.on_raised(process, 1, "raised ValueError", "77 train.py:3", now, 10.0)


def exchange_ends(problem: str = "") -> Event:
    return lambda state, now: state.on_exchange_ended(problem)


def leaves(state: WrapperState, now: float) -> Step:
    return state.on_left(20)


def had_ended(state: WrapperState, now: float) -> Step:
    return state._replace(had_ended=True), ()


def nothing(state: WrapperState, now: float) -> Step:
    return state, ()


@dataclass
class Loop:
    """Has turns when the machine wants them, and acts as the wrapper does. `log` has all commands but the routine."""

    state: WrapperState = field(default_factory=lambda: WrapperState(is_lowest=True))
    silent_from: float = NEVER
    refused_from: float = NEVER
    """From then on the supervisor sends nothing, or its port is closed."""
    is_alive: bool = True
    """A process that has raised an exception."""
    can_start: bool = True
    held_open: bool = False
    """Another process keeps the output of the command open."""
    log: list[tuple[float, str]] = field(default_factory=list)
    routine: list[tuple[float, Act]] = field(default_factory=list)
    sent: list[SendReport] = field(default_factory=list)
    searched: list[ExplainExit] = field(default_factory=list)

    def play(self, *events: tuple[float, Event]) -> list[tuple[float, str]]:
        """The log after these events; the last may be `nothing`."""
        now = 0.0
        for at, event in events:
            while now < at and not self.state.is_over:
                self.apply(self.state.on_turn(self.turn(now), now), now)
                self.send_all(now)
                now = min(at, max(now + 0.001, self.state.next_turn(self.turn(now), now)))
            self.apply(event(self.state, now), now)
        self.apply(self.state.on_turn(self.turn(now), now), now)
        self.send_all(now)
        return self.log

    def turn(self, now: float) -> Turn:
        is_up = self.state.attempt is not None and now < min(self.refused_from, self.silent_from + SILENCE_LIMIT)
        stage = Stage.UP if is_up else Stage.NONE
        last_received = 0.0 if self.state.attempt is None else min(now, self.silent_from, self.refused_from)
        contact = Contact((), last_received, now, stage, "it broke")
        is_read = self.state.exit is not None and not self.held_open
        return Turn(contact._replace(is_refused=now >= self.refused_from), is_read=is_read)

    def send_all(self, now: float) -> None:
        if self.state.phase is Phase.DONE and now < self.refused_from:
            self.apply(self.state.on_all_sent({"out": 1, "err": 0}), now)

    def apply(self, step: Step, now: float) -> None:
        self.state, commands = step
        for command in commands:
            self.act(command, now)

    def act(self, command: Command, now: float) -> None:
        if isinstance(command, SendReport):
            self.sent.append(command)
        if command in ROUTINE:
            assert isinstance(command, Act)
            self.routine.append((round(now, 2), command))
        elif not isinstance(command, Resume):
            self.log.append((round(now, 2), words(command)))
        if command is Act.START_COMMAND and self.can_start:
            self.apply(self.state.on_started(4711, ("few cores",), now), now)
        elif command is Act.START_COMMAND:
            problem = Detail("no-command", {"file": "x"})
            self.apply(self.state.on_not_started("x: none", 127, problem, (), now), now)
        elif isinstance(command, ExplainExit):
            self.searched.append(command)
            self.apply(self.state.on_exit_explained(None, None), now)
        elif command is Act.CHECK_RAISED:
            self.apply(self.state.on_raised_checked(now, is_alive=self.is_alive), now)

    def fields(self, t: str) -> list[dict[str, Any]]:
        return [dict(message.fields) for message in self.sent if message.t == t]


def words(command: Command) -> str:
    if isinstance(command, Act):
        return command.name
    if isinstance(command, SendReport):
        return command.t
    if isinstance(command, PassOn):
        return f"PASS_ON {' '.join(str(int(number)) for number in command.signals)}"
    return type(command).__name__


STARTED = [(0.0, "START_COMMAND"), (0.0, "start"), (0.0, "mismatch")]
EXITED = ["ExplainExit", "exit"]


def at(now: float, *commands: str) -> list[tuple[float, str]]:
    return [(now, command) for command in commands]


@pytest.mark.parametrize(
    ("events", "after_start"),
    [
        pytest.param([(9.0, ends(0))], at(9.0, *EXITED, "CLEAN_UP", "end"), id="it ends well"),
        pytest.param([(9.0, ends(3))], at(9.0, *EXITED, "CLEAN_UP", "end"), id="it fails"),
        pytest.param(
            [(5.0, sends("stop")), (6.0, ends(143, TERM))],
            [(5.0, "TERMINATE"), *at(6.0, *EXITED, "CLEAN_UP", "end")],
            id="it is stopped",
        ),
        pytest.param(
            [(5.0, sends("stop")), (6.0, sends("stop")), (8.9, nothing)], at(5.0, "TERMINATE"), id="it is stopped twice"
        ),
        pytest.param(
            [(5.0, sends("stop")), (11.5, nothing)],
            [(5.0, "TERMINATE"), (9.0, "KILL"), (10.0, "KILL"), (11.0, "KILL")],
            id="it ignores SIGTERM",
        ),
        pytest.param([(5.0, gets(TERM))], at(5.0, "outside-signal", "TERMINATE"), id="mpirun ends it"),
        pytest.param(
            [(5.0, gets(signal.SIGINT)), (5.1, gets(TERM))], at(5.0, "outside-signal", "TERMINATE"), id="mpirun hurries"
        ),
        pytest.param(
            [(5.0, sends("stop")), (5.1, gets(TERM))], at(5.0, "TERMINATE"), id="mpirun ends it after the supervisor"
        ),
        pytest.param(
            [(5.0, gets(USR1)), (5.1, gets(USR2))], [(5.0, "PASS_ON 10"), (5.1, "PASS_ON 12")], id="USR1, USR2"
        ),
        pytest.param([(5.0, sends("notice"))], at(5.0, "PASS_ON 10 15"), id="its job is about to end"),
        pytest.param(
            [(5.0, sends("stop")), (5.1, sends("notice")), (5.2, gets(USR1))], at(5.0, "TERMINATE"), id="a late notice"
        ),
        pytest.param(
            [(5.0, sends("release")), (5.1, nothing)], at(5.0, "KILL"), id="the supervisor has waited long enough"
        ),
        pytest.param([(5.0, sends("no such message"))], [], id="a message of a later version"),
        pytest.param(
            [(5.0, welcome())],
            at(5.0, "start", "mismatch"),
            id="it reconnects",
        ),
        pytest.param(
            [(5.0, gets(TERM)), (5.5, welcome()), (6.0, ends(0)), (6.5, welcome())],
            [
                *at(5.0, "outside-signal", "TERMINATE"),
                *at(5.5, "start", "mismatch", "outside-signal"),
                *at(6.0, *EXITED, "CLEAN_UP", "end"),
                *at(6.5, "start", "mismatch", "outside-signal", "exit", "end"),
            ],
            id="each state is repeated",
        ),
        pytest.param([(5.0, welcome(attempt=1))], at(5.0, "TERMINATE"), id="the run was restarted without it"),
        pytest.param([(5.0, raises()), (14.9, nothing)], [], id="an exception has ten seconds"),
        pytest.param([(5.0, raises()), (15.0, nothing)], at(15.0, "CHECK_RAISED", "stuck"), id="it is stuck"),
        pytest.param(
            [(5.0, raises()), (9.0, raises(ProcessIdentity(1, 2))), (16.0, welcome())],
            [*at(15.0, "CHECK_RAISED", "stuck"), *at(16.0, "start", "mismatch", "stuck")],
            id="the first exception counts, and is repeated",
        ),
        pytest.param([(5.0, exchange_ends("no disk"))], [], id="an exchange that fails when it is over"),
    ],
)
def test_what_follows_a_start(events: list[tuple[float, Event]], after_start: list[tuple[float, str]]) -> None:
    assert Loop().play((0.0, welcome()), *events) == [*STARTED, *after_start]


@pytest.mark.parametrize(
    ("events", "log"),
    [
        pytest.param([(49.5, nothing)], [], id="no supervisor for 49 s"),
        pytest.param([(50.1, nothing)], [(at, "GIVE_UP_CONNECTING") for at in (50.0, 50.1)], id="no supervisor"),
        pytest.param(
            [(0.0, welcome(stop=True)), (0.5, nothing)],
            at(0.0, "END_EXCHANGE", *EXITED, "end"),
            id="the run has ended before",
        ),
        pytest.param(
            [(0.0, welcome()), (0.0, sends("stop"))],
            at(0.0, "TERMINATE", "END_EXCHANGE", *EXITED, "end"),
            id="it is stopped with the welcome",
        ),
        pytest.param(
            [(1.0, gets(TERM)), (7.0, welcome())],
            [*at(1.0, "outside-signal", "TERMINATE"), *at(7.0, "outside-signal", "END_EXCHANGE", *EXITED, "end")],
            id="mpirun ends it before it is connected",
        ),
        pytest.param([(0.0, welcome(checkpoint_port=7)), (900.0, nothing)], at(0.0, "START_EXCHANGE"), id="it waits"),
        pytest.param(
            [(0.0, welcome(checkpoint_port=7)), (9.0, exchange_ends()), (9.5, sends("begin"))],
            [(0.0, "START_EXCHANGE"), *at(9.5, "START_COMMAND", "start", "mismatch")],
            id="the exchange is over",
        ),
        pytest.param(
            [(0.0, welcome(checkpoint_port=7)), (9.0, welcome())],
            [(0.0, "START_EXCHANGE"), *at(9.0, "START_COMMAND", "start", "mismatch")],
            id="the exchange is over when it reconnects",
        ),
        pytest.param(
            [(0.0, welcome(checkpoint_port=7)), (9.0, exchange_ends("no disk")), (9.5, welcome(checkpoint_port=7))],
            [(0.0, "START_EXCHANGE"), (9.0, "checkpoint-failed"), (9.5, "checkpoint-failed")],
            id="the exchange has failed",
        ),
        pytest.param(
            [(0.0, welcome(checkpoint_port=7)), (9.0, sends("notice")), (9.5, sends("stop"))],
            [(0.0, "START_EXCHANGE"), *at(9.5, "END_EXCHANGE", *EXITED, "end")],
            id="it is stopped in the exchange",
        ),
    ],
)
def test_what_happens_before_a_start(events: list[tuple[float, Event]], log: list[tuple[float, str]]) -> None:
    assert Loop().play(*events) == log


def test_one_rank_of_a_store_exchanges_its_checkpoints() -> None:
    loop = Loop(WrapperState(is_lowest=False))
    assert loop.play((0.0, welcome(checkpoint_port=7)), (9.0, sends("begin"))) == at(
        9.0, "START_COMMAND", "start", "mismatch"
    )


def awaiting_peers(*events: tuple[float, Event]) -> Loop:
    loop = Loop(WrapperState(is_lowest=True, awaits_peers=True, port=20001))
    loop.play(*events)
    return loop


def test_a_command_with_the_ports_of_all_ranks_waits_for_them() -> None:
    waiting = awaiting_peers((0.0, welcome()), (900.0, nothing))
    assert (waiting.log, waiting.fields("port")) == ([(0.0, "port")], [{"port": 20001}])
    again = awaiting_peers((0.0, welcome()), (1.0, welcome()), (2.0, sends("peers")), (3.0, welcome()))
    assert again.log[:3] == [(0.0, "port"), (1.0, "port"), (2.0, "START_COMMAND")]
    assert len(again.fields("port")) == 2, "the supervisor is not told again once it has answered"
    both = awaiting_peers((0.0, welcome(checkpoint_port=7)), (1.0, sends("peers")), (9.0, sends("begin")))
    assert both.log[:3] == [(0.0, "port"), (0.0, "START_EXCHANGE"), (9.0, "START_COMMAND")]
    stopped = awaiting_peers((0.0, welcome()), (1.0, sends("stop")))
    assert stopped.log[1:] == at(1.0, "END_EXCHANGE", *EXITED, "end")


def test_a_command_that_can_not_be_started_is_reported_before_its_exit() -> None:
    loop = Loop(can_start=False)
    assert loop.play((0.0, welcome()), (1.0, nothing)) == [
        (0.0, "START_COMMAND"),
        *at(0.0, "not-started", *EXITED, "CLEAN_UP", "end"),
    ]
    (report,) = loop.fields("exit")
    assert (report["code"], report["is_own"], report["problem"]["kind"]) == (127, True, "no-command")


@pytest.mark.parametrize(
    ("silence", "events", "ends_at", "why"),
    [
        pytest.param({"silent_from": 10.0}, [], 60.0, "it broke", id="packets go nowhere"),
        pytest.param({"refused_from": 10.0}, [], 18.0, "it broke", id="its port is closed"),
        pytest.param({}, [(30.0, welcome(attempt=1))], 30.0, "restarted", id="the run goes on without it"),
    ],
)
@pytest.mark.parametrize("port", [None, 7])
def test_a_rank_without_a_supervisor_ends(
    silence: dict[str, float], events: list[tuple[float, Event]], ends_at: float, why: str, port: int | None
) -> None:
    loop = Loop(**silence)  # type: ignore[arg-type]
    loop.play((0.0, welcome(checkpoint_port=port)), *events, (70.0, nothing))
    begin, end = (("START_COMMAND", "TERMINATE"), ("START_EXCHANGE", "END_EXCHANGE"))[port is not None]
    times = {command: time for time, command in reversed(loop.log)}
    assert times[begin] == 0.0
    assert times[end] == pytest.approx(ends_at, abs=0.51)
    assert times.get("KILL") == (None if port else pytest.approx(times[end] + 4.0, abs=0.01))
    loop.play((70.0, ends(137, KILL) if not port else nothing), (71.0, nothing))
    assert (loop.state.is_over, loop.state.exit_code) == (True, 112)
    assert why in loop.state.lost_reason
    assert loop.state.owns_job_file is (why == "it broke")  # else it is that of the next attempt


@pytest.mark.parametrize(
    ("events", "expected", "searched"),
    [
        ([(5.0, ends(0))], (0, None, True), (False, False)),
        ([(5.0, ends(3))], (3, None, True), (False, True)),
        ([(5.0, ends(137, KILL))], (137, KILL, True), (True, True)),
        ([(5.0, ends(139, signal.SIGSEGV))], (139, signal.SIGSEGV, True), (False, True)),
        ([(4.0, sends("stop")), (5.0, ends(143, TERM))], (143, TERM, False), (False, False)),
        ([(4.0, sends("stop")), (5.0, ends(1))], (1, None, False), (False, False)),
        ([(3.0, leaves), (4.0, sends("stop")), (5.0, ends(3))], (3, None, True), (False, True)),
        ([(4.0, sends("stop")), (4.0, leaves), (5.0, ends(0))], (0, None, False), (False, False)),
        # What others send to a rank whose script has ended is not its end.
        ([(3.0, leaves), (4.0, sends("stop")), (8.1, ends(137, KILL))], (0, None, True), (False, False)),
        ([(3.0, leaves), (4.0, ends(137, KILL))], (137, KILL, True), (True, True)),
        ([(4.0, sends("stop")), (5.0, ends(137, KILL))], (137, KILL, False), (False, False)),
        ([(4.0, sends("stop")), (4.0, had_ended), (5.0, ends(137, KILL))], (137, KILL, True), (True, True)),
        ([(4.0, sends("stop")), (8.1, ends(137, KILL))], (137, KILL, False), (False, False)),
        # The exception is the cause, and not the signal that has ended its process.
        ([(1.0, raises()), (11.5, sends("stop")), (12.0, ends(143, TERM))], (1, None, False), (False, False)),
    ],
)
def test_what_is_reported_of_an_exit(
    events: list[tuple[float, Event]], expected: tuple[int, int | None, bool], searched: tuple[bool, bool]
) -> None:
    loop = Loop()
    loop.play((0.0, welcome()), *events)
    (report,) = loop.fields("exit")
    assert (report["code"], report["signal"], report["is_own"]) == expected
    assert [(command.was_killed, command.has_failed) for command in loop.searched] == [searched]
    assert (loop.state.exit_code, loop.state.is_over) == (expected[0], False)


@pytest.mark.parametrize(("before", "seconds"), [([], 2.0), ([(4.0, sends("stop"))], 0.3), ([(4.0, gets(TERM))], 0.3)])
def test_processes_that_keep_the_output_open_are_ended(before: list[tuple[float, Event]], seconds: float) -> None:
    loop = Loop(held_open=True)
    loop.play((0.0, welcome()), *before, (5.0, ends(0)), (9.0, nothing))
    assert (5.0 + seconds, "CLEAN_UP") in loop.log
    assert "KILL" not in [command for _, command in loop.log]


def test_an_exception_in_a_script_of_a_shell_may_be_followed_by_another() -> None:
    loop = Loop(is_alive=False)
    log = loop.play((0.0, welcome()), (5.0, raises()), (30.0, raises()), (41.0, nothing))
    assert log == [*STARTED, (15.0, "CHECK_RAISED"), (40.0, "CHECK_RAISED")]


def test_a_wrapper_is_over_when_its_command_is_and_the_supervisor_has_released_it() -> None:
    loop = Loop()
    loop.play((0.0, welcome()), (5.0, ends(4)), (9.0, nothing))
    assert not loop.state.is_over
    loop.play((9.0, sends("release")))
    assert (loop.state.is_over, loop.state.exit_code, loop.state.owns_job_file) == (True, 4, False)


def test_the_rank_reports_every_four_seconds() -> None:
    loop = Loop()
    loop.play((0.0, welcome()), (9.5, nothing))
    for act in (Act.SEND_BEAT, Act.READ_METER):
        assert [now for now, routine in loop.routine if routine is act] == [0.0, 4.0, 8.0]


def test_after_its_exit_the_rank_reports_every_second_and_measures_nothing() -> None:
    loop = Loop()
    loop.play((0.0, welcome()), (5.0, ends(0)), (8.5, nothing))
    later = [routine for routine in loop.routine if routine[0] > 5.0]
    assert later == [(6.0, Act.SEND_BEAT), (7.0, Act.SEND_BEAT), (8.0, Act.SEND_BEAT)]


def test_memory_is_looked_at_often_at_first() -> None:
    loop = Loop()
    loop.play((0.0, welcome()), (15.0, nothing))
    times = [now for now, routine in loop.routine if routine is Act.CHECK_MEMORY]
    assert times == [0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 10.3, 14.3]


def test_what_differs_from_the_plan_later_is_reported_at_once_and_to_each_supervisor() -> None:
    state, commands = WrapperState(attempt=0, phase=Phase.RUNNING, pid=5).on_mismatch("its memory is far")
    assert commands == (SendReport("mismatch", {"text": "its memory is far"}),)
    assert commands[0] in state.on_welcome({"attempt": 0}, 1.0)[1]


def test_the_meter_is_read_when_a_window_ends() -> None:
    state, _ = WrapperState().on_welcome({}, 0.0)
    state = state._replace(phase=Phase.RUNNING, pid=1, beat_at=9.0, poll_at=9.0, memory_at=9.0)
    contact = Contact((), 0.0, 0.0, Stage.UP)
    for turn in (Turn(contact, window_end=3.0), Turn(contact, next_read=3.0)):
        assert state.next_turn(turn, 1.0) == 3.0
        assert state.on_turn(turn, 2.9)[1] == ()
    assert state.on_turn(Turn(contact, window_end=3.0), 3.0)[1] == (Act.READ_METER,)
    assert state.on_turn(Turn(contact, next_read=3.0), 3.0)[1] == (Act.READ_HOST,)
    for turn in (Turn(contact, is_dumping=True), Turn(contact._replace(stage=Stage.NONE))):
        assert state.next_turn(turn, 1.0) == 1.5


def test_every_phase_leads_to_the_end_and_none_back() -> None:
    order = list(Phase)
    assert all(order.index(after) > order.index(phase) for phase, following in PHASES.items() for after in following)
    assert [phase for phase in order if not PHASES[phase]] == [Phase.DONE]
    assert set(PHASES) == set(order)


@pytest.mark.parametrize("phase", Phase)
def test_a_phase_that_can_not_follow_is_an_error(phase: Phase) -> None:
    state = WrapperState(phase=phase)
    for after in Phase:
        if after in PHASES[phase]:
            assert state.enter(after).phase is after
        else:
            with pytest.raises(AssertionError):
                state.enter(after)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((Bond.RELEASED,), Bond.RELEASED),
        ((Bond.RELEASED, Bond.LOST), Bond.LOST),
        ((Bond.LOST, Bond.RELEASED), Bond.LOST),
        ((Bond.LOST, Bond.REPLACED), Bond.REPLACED),
        ((Bond.REPLACED, Bond.LOST, Bond.RELEASED), Bond.REPLACED),
    ],
)
def test_a_lost_supervisor_releases_nobody(changes: tuple[Bond, ...], expected: Bond) -> None:
    state = WrapperState()
    for bond in changes:
        state = state.change_bond(bond)
    assert state.bond is expected
    assert set(BONDS) == set(Bond)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("bond", Bond)
def test_a_rank_is_over_when_its_command_is_and_no_one_waits_for_it(phase: Phase, bond: Bond) -> None:
    assert WrapperState(phase=phase, bond=bond).is_over == (phase is Phase.DONE and bond is not Bond.HELD)


def copy_loop(restarts: int) -> Loop:
    return Loop(WrapperState(is_lowest=True, keeps_going=True, restarts_left=restarts))


def test_a_copy_that_fails_is_started_again_as_often_as_asked() -> None:
    loop = copy_loop(2)
    log = loop.play((0.0, welcome()), (3.0, ends(7)), (5.0, ends(0, None)), (6.0, nothing))
    again = [*at(3.0, "ExplainExit", "CLEAN_UP", "START_COMMAND", "start", "mismatch")]
    assert log == [*STARTED, *again, *at(5.0, *EXITED, "CLEAN_UP", "end")]
    assert [(start["restarts"], start["exit_code"]) for start in loop.fields("start")] == [(0, None), (1, 7)]
    assert loop.state.exit_code == 0
    loop = copy_loop(1)
    loop.play((0.0, welcome()), (3.0, ends(7)), (5.0, ends(8)), (6.0, nothing))
    assert [ended["code"] for ended in loop.fields("exit")] == [8]


def test_a_copy_that_is_stopped_is_not_started_again() -> None:
    loop = copy_loop(3)
    loop.play((0.0, welcome()), (3.0, sends("stop")), (4.0, ends(143, TERM)), (5.0, nothing))
    assert len(loop.fields("start")) == 1
    loop = copy_loop(3)
    loop.held_open = True  # it has failed, and its output is read for a while
    log = loop.play((0.0, welcome()), (3.0, ends(7)), (3.1, sends("stop")), (9.0, nothing))
    assert log[len(STARTED) :] == [(3.0, "ExplainExit"), (3.1, "exit"), *at(log[-1][0], "CLEAN_UP", "end")]
    assert [ended["code"] for ended in loop.fields("exit")] == [7]


def test_a_copy_whose_interpreter_hangs_after_an_exception_is_ended_alone() -> None:
    loop = copy_loop(0)
    loop.play((0.0, welcome()), (3.0, raises()), (3.0 + RANK_STUCK + 0.5, ends(143, TERM)), (40.0, nothing))
    assert loop.fields("stuck") == []
    assert [ended["code"] for ended in loop.fields("exit")] == [1]
    assert "TERMINATE" in [command for _, command in loop.log]

"""The starter of a host: when it starts rank wrappers, when it ends them, and when it goes."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from ipexctl.node.common.node_limits import OUTPUT_DRAIN, SUPERVISOR_REFUSED, SUPERVISOR_SILENCE, TERM_GRACE
from ipexctl.node.run.connection.supervisor_contact import BEAT_INTERVAL, Contact
from ipexctl.node.run.host_starter.host_starter_machine import (
    EndShell,
    FindGoneWrappers,
    HostStarterState,
    SignalProcesses,
    StarterAct,
    StartShell,
    StartWrappers,
)

ADDRESS = (("10.0.0.1", 7),)
MET = HostStarterState(has_met=True)


def contact(last: float = 0.0, *, is_up: bool = False, is_refused: bool = False) -> Contact:
    made = Contact(ADDRESS, last_received=last, turned_at=last)
    return made.on_welcome(last) if is_up else made._replace(is_refused=is_refused)


@pytest.mark.parametrize(
    ("messages", "started"),
    [
        ([{"t": "start", "attempt": 0}], [0]),
        ([{"t": "start", "attempt": 0}, {"t": "start", "attempt": 0}], [0]),
        ([{"t": "start", "attempt": 0}, {"t": "start", "attempt": 1}], [0, 1]),
        ([{"t": "start", "attempt": 2}, {"t": "start", "attempt": 1}], [2]),
        ([{"t": "start"}, {"t": "start", "attempt": "1"}, {"t": "ack"}, {}], []),
    ],
)
def test_an_attempt_is_started_once(messages: list[dict[str, Any]], started: list[int]) -> None:
    state, found = MET, []
    for message in messages:
        state, commands = state.on_message(message)
        found += [command.attempt for command in commands if isinstance(command, StartWrappers)]
    assert found == started


@pytest.mark.parametrize(
    ("order", "before", "commands"),
    [
        (0, None, (StartWrappers(0, ()),)),
        (0, 0, ()),
        (1, 0, (StartWrappers(1, ()),)),
    ],
)
def test_a_starter_that_connects_late_or_again_starts_what_it_has_missed(
    order: int, before: int | None, commands: tuple[object, ...]
) -> None:
    state, found = HostStarterState(attempt=before, is_lost=True).on_welcome({})
    assert (found, state.has_met) == ((StarterAct.REPEAT_ENDS,), True)
    assert state.on_message({"t": "start", "attempt": order})[1] == commands


@pytest.mark.parametrize(
    ("state", "seen", "now", "is_lost"),
    [
        (HostStarterState(), contact(is_refused=True), 0.5, True),
        (HostStarterState(), contact(), 0.5, False),
        (MET, contact(is_refused=True), SUPERVISOR_REFUSED, False),
        (MET, contact(is_refused=True), SUPERVISOR_REFUSED + 0.1, True),
        (MET, contact(), SUPERVISOR_SILENCE, False),
        (MET, contact(), SUPERVISOR_SILENCE + 0.1, True),
        (MET, contact(is_up=True), 0.5, False),
    ],
)
def test_supervisor_is_lost_within_the_limits_of_a_rank(
    state: HostStarterState, seen: Contact, now: float, *, is_lost: bool
) -> None:
    after, commands = state.on_turn(seen, now, is_idle=False)
    assert after.is_lost == is_lost
    assert (SignalProcesses(signal.SIGTERM) in commands) == is_lost


def test_lost_starter_waits_for_its_wrappers_and_then_kills_them() -> None:
    lost, _ = MET.on_turn(contact(is_refused=True), 100.0, is_idle=False)
    limit = 100.0 + TERM_GRACE + OUTPUT_DRAIN
    for now, is_idle, is_over in ((101.0, False, False), (101.0, True, True), (limit, False, True)):
        assert lost.on_turn(contact(), now, is_idle=is_idle)[0].is_over == is_over
    assert lost.on_message({"t": "start", "attempt": 5})[1] == ()


def test_starter_exits_if_its_host_has_one() -> None:
    assert HostStarterState().on_welcome({"is_taken": True})[0].is_over
    assert not HostStarterState().on_welcome({})[0].is_over


def test_signals_and_the_end_come_from_the_supervisor() -> None:
    assert MET.on_message({"t": "signal", "number": 9})[1] == (SignalProcesses(9),)
    assert MET.on_message({"t": "signal"})[1] == ()
    assert MET.on_message({"t": "ask", "wrappers": [[2, 7, 8, "here"]]})[1] == (FindGoneWrappers(((2, 7, 8, "here"),)),)
    assert MET.on_message({"t": "dismiss"})[0].is_over


def test_line_of_mpirun_is_run_once() -> None:
    state, commands = MET.on_message({"t": "shell", "id": 2, "line": "true"})
    assert commands == (StartShell(2, "true"),)
    assert state.on_message({"t": "shell", "id": 2, "line": "true"})[1] == ()
    assert state.on_message({"t": "shell", "id": 1, "line": "true"})[1] == (StartShell(1, "true"),)
    assert state.on_message({"t": "end-shell", "id": 2})[1] == (EndShell(2),)
    lost = MET._replace(is_lost=True)
    assert lost.on_message({"t": "shell", "id": 2, "line": "true"})[1] == ()


def test_it_shows_that_it_lives_as_often_as_a_rank() -> None:
    seen = contact(10.0, is_up=True)
    state, commands = MET.on_turn(seen, 10.0, is_idle=True)
    assert commands == (StarterAct.SEND_BEAT,)
    assert state.seconds_to_turn(seen, 10.0) == BEAT_INTERVAL
    assert state.on_turn(seen, 10.0 + BEAT_INTERVAL - 0.1, is_idle=True)[1] == ()
    assert state.on_turn(seen, 10.0 + BEAT_INTERVAL, is_idle=True)[1] == (StarterAct.SEND_BEAT,)

"""A rank and its supervisor: when it connects, leaves a silent one, and takes it for lost: events with their times."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from ipexctl.node.common.frames import FrameReader, decode_json
from ipexctl.node.common.token_proof import MessageSocket
from ipexctl.node.common.token_proof import message as message_bytes
from ipexctl.node.run.connection.supervisor_client import SupervisorClient
from ipexctl.node.run.connection.supervisor_contact import MOST_BREAKS, SILENCE_LIMIT, Contact, Due, Stage

LOCAL, FAR = ("@socket", 0), ("node0", 4711)
Event = Callable[[Contact, float], Contact]


def connecting(contact: Contact, now: float) -> Contact:
    return contact.on_connecting(now)


def taken(contact: Contact, now: float) -> Contact:
    return contact.on_taken()


def welcome(contact: Contact, now: float) -> Contact:
    return contact.on_welcome(now)


def message(contact: Contact, now: float) -> Contact:
    return contact.on_message(now)


def stranger(contact: Contact, now: float) -> Contact:
    return contact.on_stranger()


def broken(contact: Contact, now: float) -> Contact:
    return contact.on_break("it broke", now)


def refused(contact: Contact, now: float) -> Contact:
    return contact.on_break("Connection refused", now, is_refused=True)


def worked(contact: Contact, now: float) -> Contact:
    return contact.after_work(now)


def after(*events: tuple[float, Event], turns: float = 0.5, until: float = 0.0, local: bool = False) -> Contact:
    """The contact after these events, with a turn of the loop every so many seconds between them, until that time."""
    contact = Contact((LOCAL, FAR) if local else (FAR,), last_received=0.0, turned_at=0.0)
    now = 0.0
    for at, event in (*events, (until, None)):
        while turns and now + turns < at:
            now += turns
            contact = contact.on_turn(now)
        now = max(now, at)
        contact = event(contact, at) if event is not None else contact
    return contact


UP = ((0.0, connecting), (0.1, taken), (0.2, welcome))
REFUSED_FROM_10 = ((10.0, message), *((10.0 + 0.5 * n, refused) for n in range(40)))


@pytest.mark.parametrize(
    ("events", "local", "dues"),
    [
        ((), False, {0.0: Due.CONNECT}),
        (((0.0, refused),), False, {0.4: Due.NOTHING, 0.5: Due.CONNECT}),
        (((0.0, connecting),), False, {4.9: Due.NOTHING, 5.1: Due.DROP}),
        # At the only address a port that has taken it may answer late; at the local one, the other may be better.
        (((0.0, connecting), (1.0, taken)), False, {5.1: Due.NOTHING, 179.0: Due.NOTHING, 180.1: Due.DROP}),
        (((0.0, connecting), (1.0, taken)), True, {4.9: Due.NOTHING, 5.1: Due.DROP}),
        (UP, False, {12.1: Due.NOTHING, 12.3: Due.LEAVE}),
        ((*UP, (9.0, message)), False, {20.9: Due.NOTHING, 21.1: Due.LEAVE}),
        ((*UP, (3.0, broken)), False, {3.4: Due.NOTHING, 3.5: Due.CONNECT}),
    ],
)
def test_when_a_connection_is_made_and_left(
    events: tuple[tuple[float, Event], ...], local: bool, dues: dict[float, Due]
) -> None:
    contact = after(*events, local=local)
    assert {at: contact.due(at) for at in dues} == dues


@pytest.mark.parametrize(
    ("events", "lost_at"),
    [
        (UP, 50.2),  # packets go nowhere
        ((*UP, (30.0, message)), 80.0),
        ((*UP, (12.2, broken), (12.7, connecting)), 50.2),
        # Its port takes connections, as that of a suspended supervisor or one that waits for NFS.
        ((*UP, (12.3, broken), (12.8, connecting), (12.9, taken)), 180.2),
        ((*UP, *REFUSED_FROM_10), 18.0),  # it was killed
        ((*UP, (12.3, broken), (12.8, connecting), (12.9, taken), (14.0, stranger), (14.0, broken)), 50.2),
    ],
)
def test_when_a_supervisor_is_lost(events: tuple[tuple[float, Event], ...], lost_at: float) -> None:
    assert not after(*events, until=lost_at - 0.1).is_lost(lost_at - 0.1)
    assert after(*events, until=lost_at + 0.1).is_lost(lost_at + 0.1)


@pytest.mark.parametrize(("gap", "is_lost"), [(7.9, True), (8.1, False), (3600.0, False)])
def test_time_in_which_the_rank_was_suspended_is_no_silence(gap: float, is_lost: bool) -> None:
    contact = after(*UP, until=45.0)
    now = contact.turned_at + gap
    assert contact.on_turn(now).is_lost(now) is is_lost


def test_a_slow_setup_file_is_no_silence() -> None:
    contact = after(*UP, (60.0, worked), turns=0.0)
    assert not contact.is_lost(61.0)
    assert contact.due(61.0) is Due.NOTHING


def test_the_local_address_is_tried_again_only_if_it_is_the_supervisors() -> None:
    assert after((0.0, refused), local=True).addresses == (LOCAL, FAR)  # of none of them there was a connection
    assert after(*UP, (3.0, broken), local=True).addresses == (LOCAL, FAR)
    assert after((0.0, connecting), (0.1, taken), (0.2, broken), local=True).addresses == (FAR,)
    assert after((0.0, connecting), (0.1, refused)).addresses == (FAR,)


def test_each_stage_can_be_reached() -> None:
    events = ((0.0, broken), *UP)
    assert [after(*events[: count + 1]).stage for count in range(len(events))] == list(Stage)


def test_client_announces_a_reconnect_before_it_disconnects_from_a_silent_supervisor() -> None:
    client = SupervisorClient([("127.0.0.1", 1)], "t", {"rank": 0}, lambda _: None, 100.0)
    own, other = socket.socketpair()
    client._conn, client.contact = MessageSocket(own), client.contact.on_welcome(100.0)
    client.step(100.0 + SILENCE_LIMIT - 1)
    client.step(100.0 + SILENCE_LIMIT + 1)
    with other:
        received = b"".join(iter(lambda: other.recv(4096), b""))
    assert client.readers() == []
    assert [decode_json(payload)["t"] for _, payload in FrameReader().feed(received)] == ["reconnecting"]


def test_client_that_was_slow_reads_what_has_arrived_before_it_takes_the_supervisor_for_silent() -> None:
    """To close a connection with unread bytes resets it, and a reset may swallow the announcement."""
    client = SupervisorClient([("127.0.0.1", 1)], "t", {"rank": 0}, lambda _: None, 100.0)
    own, other = socket.socketpair()
    client._conn, client.contact = MessageSocket(own), client.contact.on_welcome(100.0)
    late = 100.0 + SILENCE_LIMIT + 1
    with own, other:
        other.sendall(message_bytes("ack", out=1))
        client.step(late)
        assert [received["t"] for received in client.exchange(client.readers(), [], late)] == ["ack"]
        client.step(late)
        assert client.contact.is_up


@pytest.mark.parametrize(("length", "is_lost"), [(0.5, True), (SILENCE_LIMIT - 1, True), (SILENCE_LIMIT + 1, False)])
def test_a_supervisor_whose_connections_never_last_is_lost(length: float, *, is_lost: bool) -> None:
    contact, now = after(*UP), 0.2
    for number in range(MOST_BREAKS + 1):
        assert not contact.is_lost(now), number
        contact = contact.on_message(now + length).on_break("it broke", now + length)
        now += length + 1
        contact = contact if number == MOST_BREAKS else contact.on_connecting(now).on_taken().on_welcome(now)
    assert contact.is_lost(now) is is_lost

"""The connection of a rank wrapper to its supervisor."""

from __future__ import annotations

import socket

from ipexctl.node.common.frames import FrameReader, decode_json
from ipexctl.node.common.link import Link
from ipexctl.node.run.supervisor_client import SupervisorClient
from ipexctl.node.run.supervisor_contact import SILENCE_LIMIT


def test_client_announces_a_reconnect_before_it_disconnects_from_a_silent_supervisor() -> None:
    client = SupervisorClient([("127.0.0.1", 1)], "t", {"rank": 0}, lambda _: None, 100.0)
    own, other = socket.socketpair()
    client._link, client.contact = Link(own), client.contact.on_welcome(100.0)
    client.step(100.0 + SILENCE_LIMIT - 1)
    client.step(100.0 + SILENCE_LIMIT + 1)
    with other:
        received = b"".join(iter(lambda: other.recv(4096), b""))
    assert client.readers() == []
    assert [decode_json(payload)["t"] for _, payload in FrameReader().feed(received)] == ["reconnecting"]

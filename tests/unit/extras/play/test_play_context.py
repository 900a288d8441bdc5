"""Sessions that PlayContext lends to a follower or a fetch: reused while they work, replaced once they are lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes import FakeSession
from ipexctl.extras.play.play_context import Options, PlayContext
from ipexctl.extras.play.templater import Templater
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.connector import Connector
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.session import capture
from ipexctl.remote.session_pool import SessionPool

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE = Host("node1", "10.0.0.1")


class _RecordingConnector(Connector):
    """Opens sessions that print their number."""

    def __init__(self) -> None:
        self.sessions: list[FakeSession] = []

    def open(self, host: Host, cancel: Cancel) -> FakeSession:
        self.sessions.append(FakeSession(host, stdout=b"%d" % len(self.sessions)))
        return self.sessions[-1]


@pytest.fixture
def recording_connector() -> _RecordingConnector:
    return _RecordingConnector()


@pytest.fixture
def context(recording_connector: _RecordingConnector) -> Iterator[PlayContext]:
    with SessionPool(recording_connector, Cancel(), forks=1) as pool:
        yield PlayContext(pool, Templater(), Options(), lambda _: None, [NODE], [NODE], Path())


def test_working_lent_session_returns_to_the_pool(
    context: PlayContext, recording_connector: _RecordingConnector
) -> None:
    context.pool.session(NODE)
    for _ in range(2):
        lent = context.pool.lend(NODE, Cancel())
        assert capture(lent, Command.argv("true")).stdout == b"0"
        lent.close()
    assert context.pool.session(NODE) is recording_connector.sessions[0]
    assert [session.closed for session in recording_connector.sessions] == [False]


def test_lost_lent_session_is_closed_and_replaced(
    context: PlayContext, recording_connector: _RecordingConnector
) -> None:
    context.pool.session(NODE)
    recording_connector.sessions[0].error = Unreachable("the connection was lost")
    lent = context.pool.lend(NODE, Cancel())
    with pytest.raises(Unreachable):
        capture(lent, Command.argv("true"))
    lent.close()
    lent = context.pool.lend(NODE, Cancel())
    assert capture(lent, Command.argv("true")).stdout == b"1"
    lent.close()
    assert context.pool.session(NODE) is recording_connector.sessions[1]
    assert [session.closed for session in recording_connector.sessions] == [True, False]

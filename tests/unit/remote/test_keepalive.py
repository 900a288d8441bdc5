"""A silent connection: its host is asked, and lost only if it had time to answer."""

from __future__ import annotations

import threading
from typing import Any, cast

import paramiko
import pytest

from agent_helpers import wait_until
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.ssh import _Keepalive


class Transport:
    def __init__(self) -> None:
        self.requests = 0
        self.answer = threading.Event()

    def global_request(self, kind: str, **_: Any) -> None:
        assert kind == "keepalive@openssh.com"
        self.requests += 1
        self.answer.wait(10)


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
def keepalive(transport: Transport) -> _Keepalive:
    return _Keepalive(cast("paramiko.Transport", transport))


def test_a_host_without_an_answer_is_lost_at_the_third_check(keepalive: _Keepalive, transport: Transport) -> None:
    keepalive.check()
    keepalive.check()
    with pytest.raises(Unreachable):
        keepalive.check()
    transport.answer.set()


def test_a_host_that_answers_before_the_third_check_is_asked_again(keepalive: _Keepalive, transport: Transport) -> None:
    """However late that check comes, as after this program stood still."""
    for _ in range(2):
        keepalive.check()
    transport.answer.set()
    wait_until(keepalive._answered.is_set, 5)
    for count in (2, 3):
        keepalive.check()
        wait_until(keepalive._answered.is_set, 5)
        assert transport.requests == count

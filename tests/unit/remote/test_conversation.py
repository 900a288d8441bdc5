"""A call that answers several requests: in order, and with the error by which it has ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ipexctl.remote.node_call import Conversation
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ipexctl.remote.session import Readable


def _agent(stdin: Readable, on_event: Callable[[Reply], None]) -> Reply:
    """Answers with what it reads; `fail` ends the call."""
    while data := stdin.read():
        text = data.decode().strip()
        if json.loads(text) == {"n": "fail"}:
            raise HostError("the disk is full")
        on_event(Reply(event="answer", text=text))
    return Reply(event="done", text="end")


def test_requests_are_answered_in_order_until_the_call_ends() -> None:
    conversation = Conversation(_agent, [b'{"n": 0}'])
    assert conversation.answer().text("text") == '{"n": 0}'
    assert conversation.ask({"n": 1}, []).text("text") == '{"n": 1}'
    assert conversation.sent_bytes == len('{"n": 0}{"n": 1}\n')
    conversation.close()
    assert conversation.answer().text("text") == "end"
    assert not conversation.is_open
    with pytest.raises(HostError, match="ended already"):
        conversation.ask({"n": 2}, [])


def test_the_error_that_ends_the_call_is_raised_each_time() -> None:
    conversation = Conversation(_agent, [b'{"n": 0}'])
    conversation.answer()
    for _ in range(2):
        with pytest.raises(HostError, match="disk is full"):
            conversation.ask({"n": "fail"}, [])


def test_contents_that_cannot_be_read_are_the_reason_why_the_host_gave_up() -> None:
    def contents() -> Iterator[bytes]:
        yield b'{"n": 1}'
        raise HostError("a file changed")

    def agent(stdin: Readable, on_event: Callable[[Reply], None]) -> Reply:
        _agent(stdin, on_event)
        raise HostError("the connection broke off")

    conversation = Conversation(agent, contents())
    assert conversation.answer().text("text") == '{"n": 1}'
    with pytest.raises(HostError, match="a file changed"):
        conversation.answer()

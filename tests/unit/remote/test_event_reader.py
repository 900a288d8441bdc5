"""Output of a program on a host: the same events and raw bytes however it is cut into blocks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import DEFAULT_LIMITS, EventReader, MalformedReply, RawReader, Reply

OUTPUT = b"""\
Welcome to node2
{"event": "piece", "n": 7}
one
two{"event": "piece", "n": 0}
[1, 2]
{"event": "done"} and more
{"event": "piece", "n": 4}
\xff\n{}{"event": "done"}
"""


class Pieces:
    """Collects events, and as many raw bytes as each announces."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.raw = b""

    def on_event(self, event: Reply) -> RawReader | None:
        self.events.append(event["event"])
        left = event.get("n")

        def read(data: memoryview) -> int | None:
            nonlocal left
            assert left is not None
            part = bytes(data[:left])
            self.raw += part
            left -= len(part)
            return None if left else len(part)

        return read if left is not None else None


@given(st.lists(st.integers(0, len(OUTPUT))))
def test_events_and_raw_bytes_are_read_however_they_are_cut(cuts: list[int]) -> None:
    pieces = Pieces()
    reader = EventReader(pieces.on_event)
    for start, end in itertools.pairwise([0, *sorted(cuts), len(OUTPUT)]):
        reader.sink("stdout", OUTPUT[start:end])
    assert pieces.events == ["piece", "piece", "piece", "done"]
    assert pieces.raw == b"one\ntwo\xff\n{}"


@pytest.mark.parametrize(
    "line", [b"Welcome\n", b"[]\n", b"\n", b"\xff\n", b'{"event": "done"} x\n', b"[" * 10**5 + b"\n"]
)
def test_only_events_may_come_where_nothing_else_is_allowed(line: bytes) -> None:
    reader = EventReader(lambda _: None, DEFAULT_LIMITS._replace(events_only=True))
    reader.sink("stdout", b'{"event": "entry"}\n')
    with pytest.raises(MalformedReply):
        reader.sink("stdout", line + b"\n")


@pytest.mark.parametrize(("output", "reason"), [(b"x" * 101, "without an end"), (b"x" * 90 + b"\n", "answer takes")])
def test_a_host_that_sends_too_much_is_cut_off(output: bytes, reason: str) -> None:
    reader = EventReader(lambda _: None, DEFAULT_LIMITS._replace(line=100, total=1000))
    with pytest.raises(HostError, match=reason):
        for _ in range(12):
            reader.sink("stdout", output)

"""Lines out of bytes: nothing lost, in order, wherever the bytes were cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ipexctl.node.common.frames import last_state
from ipexctl.ui.run.lines import NewestLines, PrefixedLines

PIECES = st.lists(
    st.one_of(
        st.binary(max_size=12), st.sampled_from([b"\n", b"\r", b"\r\n", b" 50%\r", b"\r 60%", b"x" * 20, b"   "])
    ),
    max_size=12,
).map(b"".join)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def shown(chunks: list[bytes], longest: int, *, keep_states: bool = False) -> bytes:
    lines = PrefixedLines(b"> ", longest, keep_states=keep_states)
    return b"".join(lines.feed(chunk) for chunk in chunks) + lines.flush()


@given(PIECES, st.lists(st.integers(0, 400), max_size=8), st.sampled_from([1, 2, 7, 1 << 20]))
@example(b"xxxxxxxxx\r\ny", [9, 10], 7)
@example(b"\r\r\r   ", [1, 2], 7)
def test_the_same_bytes_are_the_same_lines_wherever_they_are_cut(data: bytes, places: list[int], longest: int) -> None:
    assert shown(cut(data, places), longest) == shown([data], longest)


@given(PIECES.map(lambda data: data.replace(b"\r", b"")), st.lists(st.integers(0, 400), max_size=8), st.booleans())
def test_without_bars_every_line_has_the_prefix_once_and_no_byte_is_lost(
    data: bytes, places: list[int], keep_states: bool
) -> None:
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    joined = b"".join(b"> " + line + b"\n" for line in lines)
    assert shown(cut(data, places), 1 << 20, keep_states=keep_states) == joined


@pytest.mark.parametrize("keep_states", [False, True])
def test_only_whole_lines_leave_until_the_flush(keep_states: bool) -> None:
    lines = PrefixedLines(b"> ", keep_states=keep_states)
    assert [lines.feed(b"abc"), lines.feed(b"def\nghi")] == [b"", b"> abcdef\n"]
    assert [lines.flush(), lines.flush()] == [b"> ghi\n", b""]


@given(PIECES.map(lambda data: data.replace(b"\r", b"")), st.integers(1, 9))
def test_a_long_line_comes_in_pieces_that_make_the_line(data: bytes, longest: int) -> None:
    out = shown([data], longest).split(b"\n")[:-1]
    assert all(line.startswith(b"> ") and len(line) <= longest + 2 for line in out)
    assert b"".join(line[2:] for line in out) == data.replace(b"\n", b"")


def test_of_a_bar_the_last_state_is_the_line() -> None:
    assert shown([b"\r 10%|#  |", b"\r 50%|## |", b"\r100%|###|\nnext\n"], 99) == b"> 100%|###|\n> next\n"
    assert shown([b"10%\r", b"50%\r", b"done\r\n"], 99) == b"> done\n"
    assert shown([b"dos\r\nlines\r", b"\n"], 99) == b"> dos\n> lines\n"


def test_a_bar_that_never_ended_is_shown_at_the_end_unless_it_wiped_itself_away() -> None:
    assert shown([b"\r 10%", b"\r 50%"], 99) == b">  50%\n"
    assert shown([b" 10%\r", b" 50%\r"], 99) == b">  50%\n"
    assert shown([b"\r 10%", b"\r      \r"], 99) == b""
    assert shown([b"   "], 99) == b">    \n"


def test_a_bar_that_runs_for_days_is_not_held_in_memory() -> None:
    lines = PrefixedLines(b"> ")
    for step in range(5000):
        assert lines.feed(b"\r%d " % step + b"#" * 1000) == b""
    assert lines.flush() == b"> 4999 " + b"#" * 1000 + b"\n"


@pytest.mark.parametrize("keep_states", [False, True])
def test_a_line_without_an_end_does_not_fill_the_memory(keep_states: bool) -> None:
    lines = PrefixedLines(b"> ", 100_000, keep_states=keep_states)
    out = b"".join(lines.feed(b"x" * 65536) for _ in range(40))
    assert out.count(b"x") > 40 * 65536 - 200_000
    assert out.count(b"x") + lines.flush().count(b"x") == 40 * 65536


@given(st.lists(PIECES, max_size=8), st.integers(0, 5))
def test_the_view_counts_every_line_and_takes_the_newest(chunks: list[bytes], most: int) -> None:
    newest = NewestLines()
    whole, unseen = [], 0
    for chunk in chunks:
        newest.feed(chunk)
        lines, more, _ = newest.take(most)
        whole += lines
        unseen += more
        assert len(lines) <= most
    data = b"".join(chunks)
    assert newest.lines == data.count(b"\n") == len(whole) + unseen
    if not unseen:
        assert whole == [last_state(line) for line in data.split(b"\n")[:-1]]


def test_the_view_sees_the_newest_state_of_a_bar() -> None:
    newest = NewestLines()
    newest.feed(b"begin\n\r 10%\r 20%")
    assert newest.take(9) == ([b"begin"], 0, b" 20%")
    newest.feed(b"\r 30%")
    assert newest.take(9) == ([], 0, b" 30%")
    newest.feed(b"\n 1%\r")
    assert newest.take(9) == ([b" 30%"], 0, b" 1%")
    newest.feed(b" 2%\r")
    assert newest.take(9) == ([], 0, b" 2%")


def test_a_flood_is_counted_and_its_end_is_kept() -> None:
    newest = NewestLines()
    for start in range(0, 200_000, 1000):
        newest.feed(b"".join(b"line %d\n" % number for number in range(start, start + 1000)))
    lines, more, rest = newest.take(3)
    assert (lines, more, rest) == ([b"line 199997", b"line 199998", b"line 199999"], 199_997, b"")

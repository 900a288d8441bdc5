"""Splitting of output bytes into lines: complete, in order, with any chunk boundaries."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ipexctl.node.common.frames import last_state
from ipexctl.ui.safe_output import NewestLines, PrefixedLines

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
def test_lines_do_not_depend_on_chunk_boundaries(data: bytes, places: list[int], longest: int) -> None:
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
def test_only_complete_lines_are_returned_before_flush(keep_states: bool) -> None:
    lines = PrefixedLines(b"> ", keep_states=keep_states)
    assert [lines.feed(b"abc"), lines.feed(b"def\nghi")] == [b"", b"> abcdef\n"]
    assert [lines.flush(), lines.flush()] == [b"> ghi\n", b""]


@given(PIECES.map(lambda data: data.replace(b"\r", b"")), st.integers(1, 9))
def test_long_lines_are_split_into_prefixed_pieces(data: bytes, longest: int) -> None:
    out = shown([data], longest).split(b"\n")[:-1]
    assert all(line.startswith(b"> ") and len(line) <= longest + 2 for line in out)
    assert b"".join(line[2:] for line in out) == data.replace(b"\n", b"")


def test_last_state_of_a_progress_bar_is_its_line() -> None:
    assert shown([b"\r 10%|#  |", b"\r 50%|## |", b"\r100%|###|\nnext\n"], 99) == b"> 100%|###|\n> next\n"
    assert shown([b"10%\r", b"50%\r", b"done\r\n"], 99) == b"> done\n"
    assert shown([b"dos\r\nlines\r", b"\n"], 99) == b"> dos\n> lines\n"


def test_unfinished_progress_bar_is_flushed_unless_it_was_erased() -> None:
    assert shown([b"\r 10%", b"\r 50%"], 99) == b">  50%\n"
    assert shown([b" 10%\r", b" 50%\r"], 99) == b">  50%\n"
    assert shown([b"\r 10%", b"\r      \r"], 99) == b""
    assert shown([b"   "], 99) == b">    \n"


def test_long_progress_bar_is_not_kept_in_memory() -> None:
    lines = PrefixedLines(b"> ")
    for step in range(5000):
        assert lines.feed(b"\r%d " % step + b"#" * 1000) == b""
    assert lines.flush() == b"> 4999 " + b"#" * 1000 + b"\n"


@pytest.mark.parametrize("keep_states", [False, True])
def test_endless_line_is_not_kept_in_memory(keep_states: bool) -> None:
    lines = PrefixedLines(b"> ", 100_000, keep_states=keep_states)
    out = b"".join(lines.feed(b"x" * 65536) for _ in range(40))
    assert out.count(b"x") > 40 * 65536 - 200_000
    assert out.count(b"x") + lines.flush().count(b"x") == 40 * 65536


@given(st.lists(PIECES, max_size=8), st.integers(0, 5))
def test_newest_lines_counts_all_lines_and_returns_the_newest(chunks: list[bytes], maximum: int) -> None:
    newest = NewestLines()
    whole, unseen = [], 0
    for chunk in chunks:
        newest.feed(chunk)
        lines, more, _ = newest.take(maximum)
        whole += lines
        unseen += more
        assert len(lines) <= maximum
    data = b"".join(chunks)
    assert newest.lines == data.count(b"\n") == len(whole) + unseen
    if not unseen:
        assert whole == [last_state(line) for line in data.split(b"\n")[:-1]]


def test_newest_lines_returns_the_newest_state_of_a_progress_bar() -> None:
    newest = NewestLines()
    newest.feed(b"begin\n\r 10%\r 20%")
    assert newest.take(9) == ([b"begin"], 0, b" 20%")
    newest.feed(b"\r 30%")
    assert newest.take(9) == ([], 0, b" 30%")
    newest.feed(b"\n 1%\r")
    assert newest.take(9) == ([b" 30%"], 0, b" 1%")
    newest.feed(b" 2%\r")
    assert newest.take(9) == ([], 0, b" 2%")


def test_newest_lines_counts_a_flood_and_keeps_its_end() -> None:
    newest = NewestLines()
    for start in range(0, 200_000, 1000):
        newest.feed(b"".join(b"line %d\n" % number for number in range(start, start + 1000)))
    lines, more, rest = newest.take(3)
    assert (lines, more, rest) == ([b"line 199997", b"line 199998", b"line 199999"], 199_997, b"")

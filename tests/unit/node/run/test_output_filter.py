"""The filters of output on node0: a regular expression, and the last N lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.frames import Chunk
from ipexctl.node.run import output_filter
from ipexctl.node.run.output_filter import OutputFilter, start_of_last_lines
from ipexctl.node.run.record.output_times import WRITE_INTERVAL, TimesReader, TimesWriter

TEXT = b"epoch 1\nloss 0.5\nepoch 2\nloss 0.25\nloss 0.125"


def filter_output(text: bytes, pattern: str = "", tail: int | None = None, *, size: int = 7) -> bytes:
    lines = OutputFilter(pattern, tail)
    pieces = [Chunk(0, "stdout", text[start : start + size], start, 1.0) for start in range(0, len(text), size)]
    found = [chunk for piece in pieces for chunk in lines.feed(piece)]
    found += lines.caught_up(is_final=True)
    assert all(text[chunk.offset : chunk.end] == chunk.data for chunk in found)
    return b"".join(chunk.data for chunk in found)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_lines_are_filtered_by_pattern_and_tail_with_any_chunk_size(size: int) -> None:
    assert filter_output(TEXT, size=size) == TEXT
    assert filter_output(TEXT, "^loss", size=size) == b"loss 0.5\nloss 0.25\nloss 0.125"
    assert filter_output(TEXT, "^loss", 2, size=size) == b"loss 0.25\nloss 0.125"
    assert filter_output(TEXT, tail=3, size=size) == b"epoch 2\nloss 0.25\nloss 0.125"
    assert filter_output(TEXT, "nothing", size=size) == b""


def test_only_the_last_state_of_a_progress_bar_is_searched() -> None:
    bar = b"10% done\r50% done\r99% done\nnext\n"
    assert filter_output(bar, "10%") == b""
    assert filter_output(bar, "^99%") == bar[: bar.index(b"next")]


def test_long_lines_are_filtered_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_filter, "MAX_LINE", 100)
    assert filter_output(b"x" * 1000, "x", 1) == b"x" * len(filter_output(b"x" * 1000, "x", 1))
    assert 0 < len(filter_output(b"x" * 1000, "x", 1)) <= 107


def test_slow_and_invalid_regular_expressions_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_filter, "GREP_SEARCH", 0.2)
    with pytest.raises(AgentError, match="regular expression"):
        filter_output(b"a" * 60 + b"b\n", "(a+)+$")
    with pytest.raises(AgentError, match="regular expression"):
        filter_output(b"", "(")


@pytest.mark.parametrize("text", [b"", b"a", b"a\n", TEXT, TEXT + b"\n", b"line\n" * 40000])
@pytest.mark.parametrize("count", [1, 2, 5, 30000])
def test_start_of_last_lines_finds_the_offset_of_the_tail(tmp_path: Path, text: bytes, count: int) -> None:
    path = tmp_path / "0000.out"
    path.write_bytes(text)
    assert text[start_of_last_lines(str(path), count) :] == b"".join(text.splitlines(keepends=True)[-count:])


def test_output_times_are_read_in_order_and_merged_when_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "output.times")
    writer, reader = TimesWriter(path), TimesReader(path, 2)
    for second in range(100):
        writer.add(second % 2, "stdout", second + 1)
        writer.write_all(1000.0 + second)
    assert [(at, key[0], end) for at, key, end in reader.entries()] == [(1000.0 + n, n % 2, n + 1) for n in range(100)]
    writer.add(7, "stderr", 5)
    writer.write_all(1100.0)
    assert [entry.key for entry in reader.entries()] == [(7, "stderr")]
    monkeypatch.setattr("ipexctl.node.run.record.output_times.MAX_FRAMES", 20)
    few = list(TimesReader(path, 2, exact=False).entries())
    assert 10 <= len(few) <= 30
    assert max(end for _, key, end in few if key[0] == 1) == 100
    assert len(list(TimesReader(path, 2, exact=True).entries())) == 101


def test_truncated_output_times_are_read_up_to_the_last_complete_entry(tmp_path: Path) -> None:
    path = tmp_path / "output.times"
    writer = TimesWriter(str(path))
    for rank in range(3):
        writer.add(rank, "stdout", 1)
    writer.write_all(5.0)
    path.write_bytes(path.read_bytes()[:-3])
    assert [entry.key[0] for entry in TimesReader(str(path), 3).entries()] == [0, 1]


def test_output_times_are_written_at_most_once_per_interval(tmp_path: Path) -> None:
    writer = TimesWriter(str(tmp_path / "output.times"))
    assert writer.seconds_left(100.0) == float("inf")
    writer.add(0, "stdout", 1)
    assert writer.seconds_left(100.0) == 0
    writer.write(100.0, 1000.0)
    writer.add(0, "stdout", 2)
    assert writer.seconds_left(100.04) == pytest.approx(WRITE_INTERVAL - 0.04)

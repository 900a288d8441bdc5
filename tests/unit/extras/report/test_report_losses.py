"""The loss that a script prints."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ipexctl.extras.report.report import find_losses, read_losses, timed_lines
from ipexctl.node.run.output_times import TimesWriter


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("loss: 0.25", 0.25),
        ("{'loss': '2.068', 'grad_norm': '0.58', 'epoch': '0.0128'}", 2.068),
        ("step 10 | train_loss 4", 4.0),
        ("Training loss: .5", 0.5),
        ("\x1b[32mLoss\x1b[0m: 1.5", 1.5),
        ("val loss: 0.3", None),
        ("validation: loss 0.3", None),
        ("loss: nan", None),
        ("loss of connection 3", None),
        ("loss: 12 %", 12.0),
        ("loss: 12%", None),
        ("loss: 1.2.3", None),
        ("no number: loss", None),
    ],
)
def test_a_line_with_a_loss(line: str, value: float | None) -> None:
    assert [found for _, found in find_losses([(1.0, line)])] == ([] if value is None else [value])


def test_a_line_that_is_made_to_take_long_does_not() -> None:
    begin = time.process_time()
    find_losses([(0.0, "loss " * 400_000), (0.0, "loss" + " " * 100_000), (0.0, "loss: " + "1" * 100_000)] * 20)
    assert time.process_time() - begin < 1.0


def test_a_line_has_the_time_at_which_its_end_arrived() -> None:
    data = b"one\ntwo\rthree\nfour"
    assert list(timed_lines(data, [(1.0, 2), (2.0, 8), (3.0, 14), (4.0, 18)])) == [
        (2.0, "one"),
        (2.0, "two"),
        (3.0, "three"),
    ]


def test_the_losses_of_a_copy(tmp_path: Path) -> None:
    assert read_losses(tmp_path) == ()
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks/0000.out").write_bytes(b"loss: 2\nloss: 1\n")
    writer = TimesWriter(str(tmp_path / "output.times"))
    for at, rank, end in ((10.0, 0, 8), (11.0, 1, 100), (12.0, 0, 16)):
        writer.add(rank, "stdout", end)
        writer.write_all(at)
    writer.close()
    assert read_losses(tmp_path) == ((10.0, 2.0), (12.0, 1.0))


def test_a_copy_without_the_file_of_output_has_no_losses(tmp_path: Path) -> None:
    writer = TimesWriter(str(tmp_path / "output.times"))
    writer.add(0, "stdout", 8)
    writer.write_all(10.0)
    writer.close()
    assert read_losses(tmp_path) == ()

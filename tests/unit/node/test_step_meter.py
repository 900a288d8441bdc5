"""The step meter between a rank's command and the supervisor: values in the output, and what is sent when."""

from __future__ import annotations

import json
import os

import pytest

from ipexctl.inrank.meter_ring import RingWriter, Totals
from ipexctl.node.common.frames import FrameError
from ipexctl.node.run import messages, meter_reader
from ipexctl.node.run.step_meter import MOST_UNSENT, VARIABLE, MetricReader, StepMeter
from ipexctl.node.run.step_windows import RECENT, StepWindow

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("pieces", "values"),
    [
        ([b"samples/s: 410.5\n"], [410.5]),
        ([b"samples/s: 41", b"0.5\nsamples/s: 7"], [None, 410.5]),
        ([b"samples/s: 1\nsamples/s: 2\nother\n"], [2.0]),
        ([b" 5%|# | samples/s: 3\r 6%|# | samples/s: 4\r"], [4.0]),
        ([b"samples/s: 1,234.5\n"], [1234.5]),
        ([b"samples/s: fast\n", b"samples/s: nan\n", b"samples/s: -1\n", b"samples/s: inf\n"], [None] * 4),
        ([b"\xffsamples/s: 5\n"], [5.0]),
        ([b"x" * 10_000, b"samples/s: 5\n"], [None, None]),
    ],
)
def test_metric_is_the_newest_value_in_whole_lines(pieces: list[bytes], values: list[float | None]) -> None:
    reader = MetricReader(r"samples/s: (\S+)")
    assert [reader.read(piece) for piece in pieces] == values


def test_a_metric_that_matches_nothing_in_its_group_is_none() -> None:
    assert MetricReader(r"samples/s: (\d+)?").read(b"samples/s: \n") is None


def write_steps(environ: dict[str, str], seconds: int) -> None:
    writer = RingWriter(environ[VARIABLE])
    for number in range(seconds + 1):
        writer.write(Totals((1000 + number) * SECOND, number * SECOND, number + 1, 4 * number, 0))
    writer.close()


def test_windows_are_sent_once_and_those_of_the_last_minute_again_after_a_reconnect() -> None:
    meter = StepMeter(is_on=True)
    write_steps(meter.prepare({"A": "1"}), 100)
    meter.poll(1095.0)
    assert [fields["number"] for fields in meter.take()] == list(range(9))
    assert meter.take() == []
    meter.poll(1100.0)
    meter.rewind()
    assert [fields["number"] for fields in meter.take()] == list(range(9 - RECENT, 10))
    meter.finish(1101.0)
    assert meter.take() == []


def test_windows_are_held_while_the_supervisor_cannot_be_reached() -> None:
    meter = StepMeter(is_on=True)
    write_steps(meter.prepare({}), 1)
    for now in range(1000, 1000 + 10 * (MOST_UNSENT + 5), 10):
        meter.poll(now + 10.0)
    assert [fields["number"] for fields in meter.take()] == list(range(5, MOST_UNSENT + 5))


def test_without_the_meter_nothing_is_made() -> None:
    before = os.listdir("/proc/self/fd")
    meter = StepMeter(is_on=False)
    assert meter.prepare({"A": "1"}) == {"A": "1"}
    meter.poll(1e6)
    meter.finish(1e6)
    assert meter.take() == []
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_metric_needs_no_meter() -> None:
    meter = StepMeter(is_on=False, metric=r"speed (\d+)")
    meter.read_output("out", b"speed 50\n", 1000.0)
    meter.read_output("err", b"speed 70\n", 1004.0)
    meter.poll(1010.0)
    (fields,) = meter.take()
    assert (fields["samples"], fields["by_metric"]) == (700.0, True)


def test_a_window_is_a_message() -> None:
    window = StepWindow(3, 10.0, 20, 160.0, 0.2, 3.0)
    assert messages.read_message(json.dumps({"t": "steps", **window._asdict()}).encode()) == window
    assert window.is_possible


@pytest.mark.parametrize(
    "change",
    [{"number": -1}, {"steps": 1.5}, {"seconds": "x"}, {"samples": float("nan")}, {"cores": -1.0}, {"number": None}],
)
def test_a_malformed_window_is_refused(change: dict[str, object]) -> None:
    fields = {**StepWindow(3, 10.0, 20)._asdict(), **change}
    with pytest.raises(FrameError):
        messages.read_message(json.dumps({"t": "steps", **fields}).encode())


@pytest.mark.parametrize(("seconds", "is_possible"), [(0.0, False), (0.001, True), (20.0, True), (20.1, False)])
def test_a_window_has_a_possible_length(seconds: float, is_possible: bool) -> None:
    assert StepWindow(0, seconds, 1).is_possible == is_possible


def test_layout_of_the_ring_is_the_same_on_both_sides() -> None:
    from ipexctl.inrank import meter_ring

    for name in ("SLOTS", "RECORD_SIZE", "RING_SIZE", "SALT"):
        assert getattr(meter_ring, name) == getattr(meter_reader, name)
    assert meter_ring.Totals._fields == meter_reader.StepRecord._fields

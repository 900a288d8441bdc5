"""The step meter between a rank's command and the supervisor: values in the output, and what is sent when."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from ipexctl.inrank.meter import RingWriter, Totals
from ipexctl.node.common.frames import FrameError
from ipexctl.node.common.json_records import encode
from ipexctl.node.run.connection import messages
from ipexctl.node.run.meter import meter_reader
from ipexctl.node.run.meter.host_notes import HostNotes
from ipexctl.node.run.meter.rank_meter import MOST_UNSENT, VARIABLE, MeteredHost, RankMeter
from ipexctl.node.run.meter.rank_notes import RankNotes
from ipexctl.node.run.meter.rank_profile import StepCount
from ipexctl.node.run.meter.rates import HostRates
from ipexctl.node.run.meter.step_windows import RECENT, StepWindow

SECOND = 1_000_000_000


def write_steps(environ: dict[str, str], seconds: int) -> None:
    writer = RingWriter(environ[VARIABLE])
    for number in range(seconds + 1):
        writer.write(Totals((1000 + number) * SECOND, number + 1, 4 * number))
    writer.close()


PIDS = [os.getpid()]


def started(*, is_on: bool = True, host: MeteredHost | None = None, seconds: int = 0) -> RankMeter:
    meter = RankMeter(is_on=is_on, host=host)
    environ = meter.prepare({"A": "1"})
    if seconds:
        write_steps(environ, seconds)
    meter.start(1000.0)
    return meter


def numbers(meter: RankMeter, kind: str = "window") -> list[int]:
    return [fields["number"] for found, fields in meter.take() if found == kind]


def test_windows_are_sent_once_and_those_of_the_last_minute_again_after_a_reconnect() -> None:
    meter = started(seconds=100)
    meter.poll(PIDS, 1095.0)
    assert numbers(meter) == list(range(9))
    assert meter.take() == []
    meter.poll(PIDS, 1100.0)
    meter.rewind()
    assert numbers(meter) == list(range(9 - RECENT, 10))
    meter.finish(1101.0)
    assert numbers(meter) == [10]


def test_windows_are_held_while_the_supervisor_cannot_be_reached() -> None:
    meter = started(seconds=1)
    for now in range(1000, 1000 + 10 * (MOST_UNSENT + 5), 10):
        meter.poll(PIDS, now + 10.0)
    assert numbers(meter) == list(range(5, MOST_UNSENT + 5))


def test_without_the_meter_nothing_is_made() -> None:
    before = os.listdir("/proc/self/fd")
    meter = started(is_on=False, host=MeteredHost((), ""))
    assert meter.prepare({"A": "1"}) == {"A": "1"}
    meter.poll(PIDS, 1e6)
    meter.finish(1e6)
    assert (meter.take(), meter.next_end) == ([], float("inf"))
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_command_without_steps_has_windows_with_notes() -> None:
    meter = started()
    meter.poll(PIDS, 1004.0)
    assert meter.take() == []
    assert meter.next_end == 1010.0
    meter.poll(PIDS, 1010.0)
    ((_, fields),) = meter.take()
    assert (fields["steps"], fields["step_seconds"]) == (0, 0.0)
    assert fields["notes"]["rss"] > 1e6
    assert fields["notes"]["cpu"] is None


def test_a_short_command_has_the_notes_of_its_last_reading() -> None:
    meter = started()
    meter.poll(PIDS, 1004.0)
    meter.finish(1006.0)
    ((_, fields),) = meter.take()
    assert (fields["seconds"], fields["notes"]["rss"] > 0) == (6.0, True)


def test_one_rank_of_a_host_makes_its_notes() -> None:
    meter = started(host=MeteredHost((0,), "lo"))
    time.sleep(0.1)  # the kernel counts processor time in hundredths of a second
    meter.poll(PIDS, 1010.0)
    (fields,) = [fields for kind, fields in meter.take() if kind == "host"]
    assert (fields["number"], fields["iface"]) == (0, "lo")
    assert fields["rates"]["sent_per_s"] >= 0


WINDOW = StepWindow(3, 10.0, 20, 10.0, 160.0, 0.2, 0.1, notes=RankNotes(rss=3.0))
HOST = HostNotes(3, 10.0, HostRates(sent_per_s=5.0, mhz=2900.0), "eth0")


@pytest.mark.parametrize(("kind", "window"), [("window", WINDOW), ("host", HOST)])
def test_a_window_is_a_message(kind: str, window: StepWindow | HostNotes) -> None:
    assert messages.read_message(json.dumps({"t": kind, **encode(window)}).encode()) == window
    assert window.is_possible


@pytest.mark.parametrize(
    "change",
    [
        {"number": -1},
        {"steps": 1.5},
        {"seconds": "x"},
        {"samples": float("nan")},
        {"number": None},
        {"notes": {"rss": -1.0}},
        {"notes": [1.0]},
    ],
)
def test_a_malformed_window_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(FrameError):
        messages.read_message(json.dumps({"t": "window", **encode(WINDOW), **change}).encode())


@pytest.mark.parametrize(
    ("seconds", "step_seconds", "is_possible"),
    [(0.0, 0.0, False), (0.001, 0.0, True), (20.0, 20.0, True), (20.1, 0.0, False), (10.0, 10.1, False)],
)
def test_a_window_has_a_possible_length(seconds: float, step_seconds: float, is_possible: bool) -> None:
    assert StepWindow(0, seconds, 1, step_seconds).is_possible == is_possible


def test_layout_of_the_ring_is_the_same_on_both_sides() -> None:
    from ipexctl.inrank import meter

    for name in ("SLOTS", "RECORD_SIZE", "RING_SIZE", "DOCUMENT", "FILE_SIZE", "SALT"):
        assert getattr(meter, name) == getattr(meter_reader, name)
    assert meter.Totals._fields == meter_reader.StepRecord._fields


def test_a_request_for_a_profile_reaches_the_process_that_trains(tmp_path: Path) -> None:
    meter = RankMeter(is_on=True)
    environ, path = meter.prepare({}), str(tmp_path / "0000.profile")
    assert environ.keys() == {VARIABLE}
    meter.start(1000.0)
    assert meter.count_steps("a", 1000.0) == StepCount("a")
    writer = RingWriter(environ[VARIABLE])
    for number in range(3):
        writer.write(Totals((1000 + number) * SECOND, number + 1))
        assert writer.exchange_steps(number + 1) == 0
    assert meter.count_steps("a", 1009.0) == StepCount("a", 3, 1.0, 7.0)
    meter.ask_for_profile(path, 0, 1, 7)
    assert (writer.exchange_steps(4), writer.profile_path()) == (7, path)
    writer.close()
    after = RingWriter(environ[VARIABLE])
    assert after.exchange_steps(0) == 0, "the request was for the process before"
    meter.ask_for_profile(path, 1, 2, 9)
    assert (after.exchange_steps(1), meter.count_steps("b", 1003.0).steps) == (9, 1)
    (tmp_path / "0000.profile").write_text('{"note": "no"}')
    meter.poll([], 1003.0)
    sent = [(kind, fields["attempt"], fields["request"]) for kind, fields in meter.take()]
    assert sent == [("profile", 1, 2)]
    after.close()


def test_a_rank_without_a_meter_has_no_steps_to_profile() -> None:
    meter = RankMeter(is_on=False)
    meter.start(0.0)
    assert meter.count_steps("a", 1.0) == StepCount("a")
    meter.ask_for_profile("/nowhere", 0, 1, 7)
    assert meter.take() == []

"""The step meter of a real rank: from its ring and its output to the record on node0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from run_helpers import Run

import ipexctl
from agent_helpers import follow_request
from env_helpers import start
from ipexctl.node.common.frames import WINDOWS, CompressedFrameReader, decode_windows
from ipexctl.node.run.window_file import decode_host_windows, decode_rank_windows

pytest_plugins = ["run_fixtures"]
RUNS = {"size": 1, "go": {"by_mpirun": False}}
TRAIN = f"""
import os, sys, threading, time
sys.path.insert(0, {str(Path(ipexctl.__file__).parents[1])!r})
from ipexctl.inrank.meter import RingWriter, Totals
thread = threading.get_native_id() << 32
ring, begun = RingWriter(os.environ["IPEXCTL_METER"]), time.monotonic_ns()
for step in range(1, 22):
    ring.write(Totals(begun + step * 50_000_000, step, 8 * step, step * 5_000_000, step * 10_000_000, thread))
print("samples/s: 77", flush=True)
time.sleep(1.1)
"""


def test_steps_of_a_rank_are_in_status_and_record(make: Callable[..., Run]) -> None:
    run = make(TRAIN, job={"meter": True}).start()
    status = run.wait()
    assert (status["state"], run.output(0, "err")) == ("ok", b"")
    assert status["throughput"] == status["ranks"][0]["throughput"]
    assert status["throughput"] == {
        "steps_per_s": pytest.approx(20.0),
        "samples_per_s": pytest.approx(160.0),
        "data_wait": pytest.approx(0.1),
        "source": "dataloader",
    }
    record = decode_rank_windows((run.rundir / "ranks/0000.meter").read_bytes())
    assert record is not None
    (window,) = record.windows
    assert window is not None
    assert window.data_wait == pytest.approx(0.1)
    assert decode_host_windows((run.rundir / "ranks/0000.host").read_bytes()) is not None


@pytest.mark.core
def test_windows_are_sent_to_a_follower_and_on_request(make: Callable[..., Run]) -> None:
    run = make(TRAIN, job={"meter": True}).start()
    run.wait()
    request = {"home": str(run.home), "id": run.id}
    follow = {**follow_request(run.home, run.id), "windows": True}
    for command, action, asked in (("run.window_file", "read", request), ("run.follow", "follow", follow)):
        with start(command, action, asked) as process:
            assert process.stdout is not None
            data = process.stdout.read()
        stream = CompressedFrameReader()
        files = [decode_windows(payload) for kind, payload in stream.feed(data.partition(b"\n")[2]) if kind == WINDOWS]
        assert [(file.rank, file.suffix) for file in files] == [(0, ".host"), (0, ".meter")]
        assert files[1].data == (run.rundir / "ranks/0000.meter").read_bytes()


def test_metric_is_read_from_the_output_without_the_meter(make: Callable[..., Run]) -> None:
    script = "import os\nprint('samples/s: 77', 'IPEXCTL_METER' in os.environ)"
    status = make(script, job={"metric": r"samples/s: (\S+)"}).start().wait()
    assert (status["throughput"]["samples_per_s"], status["throughput"]["source"]) == (pytest.approx(77.0), "metric")


def test_without_both_nothing_is_measured(make: Callable[..., Run]) -> None:
    run = make("import os\nprint('samples/s: 77', 'IPEXCTL_METER' in os.environ)").start()
    assert run.wait()["throughput"] is None
    assert run.output() == b"samples/s: 77 False\n"
    assert sorted(path.suffix for path in (run.rundir / "ranks").iterdir()) == [".err", ".out"]

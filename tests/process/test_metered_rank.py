"""The step meter of a real rank: from its ring and its output to the record on node0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_helpers import Run, runs_in

import ipexctl
from ipexctl.node.run.steps_file import read_steps

TRAIN = f"""
import os, sys, time
sys.path.insert(0, {str(Path(ipexctl.__file__).parents[1])!r})
from ipexctl.inrank.meter_ring import RingWriter, Totals
ring, begun = RingWriter(os.environ["IPEXCTL_METER"]), time.monotonic_ns()
for step in range(1, 22):
    ring.write(Totals(begun + step * 50_000_000, step * 100_000_000, step, 8 * step, step * 5_000_000))
print("samples/s: 77", flush=True)
time.sleep(1.1)
"""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    with runs_in(tmp_path, size=1) as make_run:
        yield lambda command, **job: make_run(command, go={"by_mpirun": False}, job=job)


def test_steps_of_a_rank_are_in_status_and_record(make: Callable[..., Run]) -> None:
    run = make(TRAIN, meter=True).start()
    status = run.wait()
    assert (status["state"], run.output(0, "err")) == ("ok", b"")
    assert status["throughput"] == status["ranks"][0]["throughput"]
    assert status["throughput"] == {
        "steps_per_s": pytest.approx(20.0),
        "samples_per_s": pytest.approx(160.0),
        "data_wait": pytest.approx(0.1),
        "source": "dataloader",
    }
    record = read_steps(str(run.rundir / "ranks/0000.steps"))
    assert record is not None
    assert [window and window.cores for window in record.windows] == [pytest.approx(2.0, rel=1e-3)]


def test_metric_is_read_from_the_output_without_the_meter(make: Callable[..., Run]) -> None:
    script = "import os\nprint('samples/s: 77', 'IPEXCTL_METER' in os.environ)"
    status = make(script, metric=r"samples/s: (\S+)").start().wait()
    assert (status["throughput"]["samples_per_s"], status["throughput"]["source"]) == (pytest.approx(77.0), "metric")


def test_without_both_nothing_is_measured(make: Callable[..., Run]) -> None:
    run = make("import os\nprint('samples/s: 77', 'IPEXCTL_METER' in os.environ)").start()
    assert run.wait()["throughput"] is None
    assert run.output() == b"samples/s: 77 False\n"
    assert not list((run.rundir / "ranks").glob("*.steps"))

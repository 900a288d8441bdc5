"""The same under the real mpiexec.hydra, where IPEXCTL_TEST_ENV names an environment of ours that has one."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from run_helpers import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENV = Path(os.environ.get("IPEXCTL_TEST_ENV", "/nowhere"))
HYDRA = ENV / "bin" / "mpiexec.hydra"
pytestmark = pytest.mark.skipif(not HYDRA.exists(), reason="IPEXCTL_TEST_ENV names no environment with Intel MPI")
FOR_EVER = "import time\nprint('here', flush=True)\ntime.sleep(600)"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def make_run(command: list[str] | str, size: int = 2, **more: Any) -> Run:
        launch = [str(HYDRA), "-n", str(size), "-ppn", str(size)]
        go = {
            "environ": {"PATH": f"{ENV}/bin:/usr/bin:/bin", "I_MPI_ROOT": str(ENV), "I_MPI_HYDRA_BOOTSTRAP": "fork"},
            **more.pop("go", {}),
        }
        run = Run(tmp_path, command, size, id=f"run{len(made)}", launch=launch, go=go, **more)
        made.append(run)
        return run

    yield make_run
    for run in made:
        run.close()


def both_here(run: Run) -> None:
    run.wait_for(b"here", 0)
    run.wait_for(b"here", 1)


def gone(run: Run, within: float) -> None:
    began = time.monotonic()
    while run.left():
        assert time.monotonic() - began < within, run.left()
        time.sleep(0.05)


def test_ranks_print_in_order_and_mpirun_prints_nothing(make: Callable[..., Run]) -> None:
    run = make("import os\nfor i in range(1000): print(os.environ['RANK'], i)", 4).start()
    status = run.wait()
    assert (status["state"], status["mpirun"]["exit_code"]) == ("ok", 0)
    for rank in range(4):
        assert run.output(rank) == b"".join(b"%d %d\n" % (rank, i) for i in range(1000))
    assert run.said("mpirun.log") == ""
    gone(run, 2)


def test_a_failing_rank_ends_the_job(make: Callable[..., Run]) -> None:
    run = make("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(600)", 3).start()
    status = run.wait()
    assert (status["state"], status["exit_code"], status["first_failure"]["rank"]) == ("failed", 3, 1)
    assert status["ended"] - status["first_failure"]["at"] < 5
    gone(run, 2)


@pytest.mark.parametrize("whom", ["pid", "wrapper"])
def test_a_killed_rank_or_wrapper_ends_the_job(make: Callable[..., Run], whom: str) -> None:
    run = make(FOR_EVER).start()
    both_here(run)
    os.kill(run.status["ranks"][1][whom], signal.SIGKILL)
    status = run.wait()
    assert status["state"] == "failed"
    assert status["first_failure"]["rank"] == 1
    assert status["ended"] - status["first_failure"]["at"] < 5
    gone(run, 2)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("whom", ["mpirun", "supervisor"])
def test_mpirun_or_the_supervisor_gone_leaves_no_rank(make: Callable[..., Run], whom: str, number: int) -> None:
    run = make(FOR_EVER).start()
    both_here(run)
    os.kill(run.status[whom]["pid"], number)
    gone(run, 10)
    if whom == "mpirun":
        assert run.wait()["state"] == "failed"
    elif number == signal.SIGTERM:
        assert run.wait()["state"] == "stopped"


TORCH = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(4) * (dist.get_rank() + 1)
dist.all_reduce(x)
print(x.tolist())
if len(sys.argv) > 1 and dist.get_rank() == 1:
    raise RuntimeError("on purpose")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("fails", [False, True])
def test_torch_ranks_meet_over_gloo(make: Callable[..., Run], fails: bool) -> None:
    python = str(ENV / "bin" / "python")
    run = make([python, "-u", "-c", TORCH, *(["fail"] if fails else [])], python=python).start()
    status = run.wait(60)
    assert run.output(0) == b"[3.0, 3.0, 3.0, 3.0]\n", run.output(0, "err")
    if not fails:
        assert status["state"] == "ok"
    else:
        assert status["state"] == "failed"
        assert b"on purpose" in run.output(1, "err")
    gone(run, 2)


def test_the_mpi_library_works_in_a_rank(make: Callable[..., Run], tmp_path: Path) -> None:
    """It finds the descriptors that hydra has opened for it, through the wrapper."""
    code = """
import ctypes, os
lib = ctypes.CDLL(os.environ["I_MPI_ROOT"] + "/lib/libmpi.so.12", mode=ctypes.RTLD_GLOBAL)
lib.MPI_Init(None, None)
rank, size = ctypes.c_int(), ctypes.c_int()
lib.MPI_Comm_rank(0x44000000, ctypes.byref(rank))
lib.MPI_Comm_size(0x44000000, ctypes.byref(size))
print(rank.value, size.value, flush=True)
lib.MPI_Finalize()
"""
    run = make([sys.executable, "-c", code], 2, go={}).start()
    status = run.wait(60)
    assert status["state"] == "ok", (run.output(0, "err"), run.said("mpirun.log"))
    assert [run.output(rank) for rank in (0, 1)] == [b"0 2\n", b"1 2\n"]

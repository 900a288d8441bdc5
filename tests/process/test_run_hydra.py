"""A run as node0 sees it, under the real mpiexec.hydra."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_helpers import Run, runs_in

from lab_run_helpers import IMPI, wheels_from_pypi


@pytest.fixture(scope="module")
def intel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Intel MPI lies."""
    base = tmp_path_factory.mktemp("intel")
    wheels = wheels_from_pypi(base, IMPI)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--prefix", str(base / "there"), *wheels.glob("*.whl")], check=True)
    return base / "there"


@pytest.fixture
def make(tmp_path: Path, intel: Path) -> Iterator[Callable[..., Run]]:
    place = {"PATH": f"{intel}/bin:/usr/bin:/bin", "I_MPI_ROOT": str(intel), "I_MPI_HYDRA_BOOTSTRAP": "fork"}

    with runs_in(tmp_path, go={"variables": place}) as make_run:
        yield lambda command, ranks=2: make_run(
            command, ranks, launch=[f"{intel}/bin/mpiexec.hydra", "-n", str(ranks), "-ppn", str(ranks)]
        )


@pytest.mark.core
def test_mpi_library_works_in_a_rank(make: Callable[..., Run]) -> None:
    """The wrapper passes on the file descriptors that hydra has opened for it."""
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
    run = make([sys.executable, "-c", code]).start()
    status = run.wait(60)
    assert (status["state"], status["mpirun"]["exit_code"]) == ("ok", 0), run.output(0, "err")
    assert [run.output(rank) for rank in (0, 1)] == [b"0 2\n", b"1 2\n"]
    assert run.said("mpirun.log") == ""
    run.wait_until(lambda: run.left() == [], 2)

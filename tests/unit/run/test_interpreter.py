"""What the hosts report about the Python of --python, and the environment made of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ipexctl.hosts.host import Host
from ipexctl.run.start.path_checks import evaluate_paths, parse_paths

SCRIPT = Path("ipexctl/node/run/interpreter.py").resolve()
PACKAGES = {"torch": "2.13.0", "impi-rt": "2021.18.1", "mpich": "4.3.2"}


@pytest.mark.parametrize(
    ("program", "is_intel"),
    [("HYDRA build details:", False), ("\0Intel(R) MPI Library for %s OS, Version %s\0", True), (None, False)],
)
def test_hydra_of_mpich_is_not_intel_mpi(tmp_path: Path, program: str | None, is_intel: bool) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    if program is not None:
        (tmp_path / "bin/mpiexec.hydra").write_text(program)
    done = subprocess.run([tmp_path / "bin/python", "-IS", SCRIPT], capture_output=True, check=True, text=True)
    said = {**json.loads(done.stdout), "packages": PACKAGES, "version": "3.11.2"}
    assert (said["mpi"], said["prefix"]) == (is_intel, str(tmp_path))
    found = {name: parse_paths(f"found {json.dumps(said)}\n") for name in ("a", "b")}
    env = evaluate_paths(found, "/v/bin/python", [Host(name, name) for name in found], {}, {}).env
    assert env is not None
    assert env.variables.get("I_MPI_ROOT") == (str(tmp_path) if is_intel else None)
    # The wheel installed last owns mpiexec.hydra.
    assert set(env.packages) == (set(PACKAGES) if is_intel else {"torch", "mpich"})

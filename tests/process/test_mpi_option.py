"""Paths that a call names: the mpirun inside the oneCCL bindings, and directories that another account can change."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.session_pool import SessionPool
from ipexctl.run.start.preflight.paths import CheckedPaths, check_paths
from ipexctl.spec import RunSpec


@pytest.fixture
def bindings(tmp_path: Path) -> Path:
    """The package of the bindings with its MPI, below a path with a space."""
    package = tmp_path / "my env" / "oneccl_bindings_for_pytorch"
    programs = package / "opt" / "mpi" / "bin"
    programs.mkdir(parents=True)
    (package / "env").mkdir()
    (package / "env" / "setvars.sh").write_text("export CCL_ROOT=x\n")
    (programs / "mpirun").write_text('#!/bin/sh\nfor _ in 1 2 3; do [ -f $0 ]; done\nmpiexec.hydra "$@"\n')
    version = "Intel(R) MPI Library for Linux* OS, Version 2021.15 Build 20250213"
    (programs / "mpiexec.hydra").write_text(f"#!/bin/sh\n[ $1 = --version ] && echo '{version}'\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    return package


def checked(mpi: Path | str = "auto", unsynced: str = "", **options: Any) -> CheckedPaths:
    request = RunSpec("script", ("train.py",), mpi=str(mpi), **options)
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=2) as pool:
        found = check_paths([Host("localhost", "localhost")], request, pool, unsynced)
    assert isinstance(found, CheckedPaths), found
    return found


@pytest.mark.parametrize("path", ["opt/mpi/bin/mpirun", "opt/mpi/bin", "opt/mpi"])
def test_bundled_mpirun_is_found_with_setvars_of_its_bindings(bindings: Path, path: str) -> None:
    found = checked(bindings / path)
    assert found.mpi is not None
    assert found.mpi.path == str(bindings / "opt" / "mpi" / "bin" / "mpirun")
    assert (found.mpi.flavor, found.mpi.version) == ("intel", "2021.15")
    assert found.setvars == str(bindings / "env" / "setvars.sh")


def test_setvars_is_none_without_the_script_or_for_other_mpis(bindings: Path) -> None:
    (bindings / "env" / "setvars.sh").unlink()
    assert checked(bindings / "opt" / "mpi").setvars is None
    elsewhere = bindings.parent / "mpi"
    (bindings / "opt" / "mpi").rename(elsewhere)
    found = checked(elsewhere)
    assert found.mpi is not None
    assert (found.mpi.version, found.setvars) == ("2021.15", None)


@pytest.mark.skipif(os.geteuid() != 0, reason="directories of another account need root")
@pytest.mark.parametrize(
    "is_others", [pytest.param(True, marks=pytest.mark.core), False], ids=["of-another", "for-all"]
)
def test_what_ranks_execute_below_a_directory_of_others_is_noted(tmp_path: Path, *, is_others: bool) -> None:
    """A user's own environment may lie in a tree that a team shares, so it is no refusal."""
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        place.chmod(0o755)
        shared = place / "shared"
        (shared / "project").mkdir(parents=True)
        (shared / "python").symlink_to(sys.executable)
        (shared / "setup.sh").touch()
        named: dict[str, Any] = {"python": f"{shared}/python", "setup": f"{shared}/setup.sh"}
        assert checked(unsynced=f"{shared}/project", **named).notes == ()
        os.chown(shared, 47001 if is_others else 0, 0)
        shared.chmod(0o755 if is_others else 0o777)
        notes = checked(unsynced=f"{shared}/project", **named).notes
        assert [note.partition(" on localhost: ")[0] for note in notes] == [
            f"--no-sync {shared}/project",
            f"--setup {shared}/setup.sh",
            f"--python {shared}/python",
        ]
        assert all(str(shared) in note and "another account" in note for note in notes)
        shared.chmod(0o1777)
        os.chown(shared, 0, 0)
        assert checked(unsynced=f"{shared}/project", **named).notes == ()
    finally:
        shutil.rmtree(place)

"""A wheelhouse to install from: the tests' stand-ins for a stack, as heavy as asked with bytes that don't compress."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .harness import Failed
from .rig import Rig, prepare

_IMPI = "impi-rt==2021.18.0"
_SHARES = {"torch": 0.60, "ipex": 0.25, "impi": 0.15}


@dataclass(frozen=True, slots=True)
class Wheelhouse:
    """A directory of wheels that belong together."""

    path: Path

    @property
    def versions(self) -> list[tuple[str, str]]:
        """Name and version of every wheel."""
        parts = [wheel.name.split("-") for wheel in sorted(self.path.glob("*.whl"))]
        return [(name.replace("_", "-"), version) for name, version, *_ in parts]

    @property
    def pins(self) -> list[str]:
        return [f"{name}=={version}" for name, version in self.versions]

    @property
    def size(self) -> int:
        return sum(wheel.stat().st_size for wheel in self.path.glob("*.whl"))


def make_wheelhouse(path: Path, size: int) -> Wheelhouse:
    """The stack of torch 2.8, its bytes on the three wheels that are heavy in earnest."""
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    from tiny_wheels import write_impi, write_ipex, write_torch, write_wheel

    write_torch(path, "2.8.0", pad=int(size * _SHARES["torch"]))
    write_ipex(path, "2.8.0", pad=int(size * _SHARES["ipex"]))
    write_impi(path, "2021.15.0", pad=int(size * _SHARES["impi"]))
    write_wheel(path, "typing_extensions", "4.15.0")
    write_wheel(path, "psutil", "7.1.0")
    write_wheel(path, "intel_openmp", "2024.1.2", data={"lib/libiomp5.so": "no library\n"})
    return Wheelhouse(path)


def install_mpi(rig: Rig, *where: str) -> None:
    """A real Intel MPI from PyPI beside a torch that is small: what starts ranks is real, what they compute isn't."""
    wheels = rig.scratch / "mpi-wheelhouse"
    if not wheels.exists():  # another part of the same call may have made it
        _write_mpi_wheels(wheels)
    prepare(rig, "install", *where, "--wheelhouse", wheels, "--offline", "--stack", "torch")


def _write_mpi_wheels(path: Path) -> None:
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    from tiny_wheels import write_stack

    path.mkdir()
    argv = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(path), _IMPI]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{_IMPI} can't be had from PyPI: {done.stderr.strip()[-200:]}")
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    write_stack(path, torch="2.13.0", ipex=None, impi=None, python=python)

"""Software on a host that matters for a stack: Pythons, environments, MPIs, libraries. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Flavor = Literal["intel", "openmpi", "mpich", "mvapich", "unknown"]


@dataclass(frozen=True, slots=True)
class Python:
    """A Python interpreter on the host."""

    path: str
    version: str | None = None
    """`3.11.2`; None: it doesn't run."""
    arch: str | None = None
    """The architecture it was built for: `x86_64`; None if unknown."""
    libc: Literal["glibc", "musl"] | None = None
    venv: bool | None = None
    """Whether `-m venv` can create an environment with pip."""

    @property
    def minor(self) -> tuple[int, int] | None:
        """(3, 11)."""
        parts = (self.version or "").split(".")
        if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
            return None
        return int(parts[0]), int(parts[1])


@dataclass(frozen=True, slots=True)
class Env:
    """An environment installed by ipexctl."""

    name: str
    path: str
    python: str | None = None
    """`3.11`, from the path of its packages."""
    runs: bool = False
    """Whether its interpreter still exists."""
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Normalised name → version, of the packages of a stack."""
    record: str = ""
    """The text of its env.json; empty if it has none."""
    names: tuple[str, ...] = ()
    """Its other names: links to it."""

    def version(self, package: str) -> str | None:
        return self.packages.get(package)

    @property
    def torch(self) -> str | None:
        return self.version("torch")

    @property
    def ipex(self) -> str | None:
        return self.version("intel-extension-for-pytorch")

    @property
    def oneccl_bindings(self) -> str | None:
        return self.version("oneccl-bind-pt")

    @property
    def oneccl(self) -> str | None:
        return self.version("oneccl")

    @property
    def mpi(self) -> str | None:
        return self.version("impi-rt")


@dataclass(frozen=True, slots=True)
class Mpi:
    """An `mpirun` on the host."""

    path: str
    flavor: Flavor = "unknown"
    version: str | None = None
    on_path: bool = False
    """Whether a command over ssh finds it in PATH."""


@dataclass(frozen=True, slots=True)
class Software:
    pythons: tuple[Python, ...] = ()
    """Those in PATH first."""
    envs: tuple[Env, ...] = ()
    mpis: tuple[Mpi, ...] = ()
    """Those in PATH first."""
    libraries: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """libgomp, libiomp5, libtcmalloc, libjemalloc → paths."""
    conda: str | None = None

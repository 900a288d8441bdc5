"""What is installed on a host that a stack could use, or trip over. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Flavor = Literal["intel", "openmpi", "mpich", "mvapich", "unknown"]


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter that was started and said its version."""

    path: str
    version: str | None = None
    """`3.11.2`; None: it is there and doesn't run."""
    arch: str | None = None
    """What it was built for: `x86_64`; None where its files don't say."""
    libc: Literal["glibc", "musl"] | None = None
    venv: bool | None = None
    """Whether it has what `-m venv` needs to make an environment with pip in it."""

    @property
    def minor(self) -> tuple[int, int] | None:
        """(3, 11)."""
        parts = (self.version or "").split(".")
        if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
            return None
        return int(parts[0]), int(parts[1])


@dataclass(frozen=True, slots=True)
class Env:
    """An environment of ours."""

    name: str
    path: str
    python: str | None = None
    """`3.11`, from where its packages are."""
    runs: bool = False
    """Whether its interpreter is still there."""
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Name as pip normalises it → version, of those that make a stack."""
    record: str = ""
    """Its env.json, as text; empty where there is none."""
    names: tuple[str, ...] = ()
    """The other names it goes by: links to it."""

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
    """An mpirun."""

    path: str
    flavor: Flavor = "unknown"
    version: str | None = None
    on_path: bool = False
    """Whether a command run over ssh finds it."""


@dataclass(frozen=True, slots=True)
class Software:
    pythons: tuple[Python, ...] = ()
    """PATH's first."""
    envs: tuple[Env, ...] = ()
    mpis: tuple[Mpi, ...] = ()
    """PATH's first."""
    libraries: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """libgomp, libiomp5, libtcmalloc, libjemalloc → where."""
    conda: str | None = None

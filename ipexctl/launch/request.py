"""What a plan is made from: the hosts as they are, the environment, and the user's wishes. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.facts.facts import Facts
    from ipexctl.facts.software import Mpi
    from ipexctl.hosts.host import Host
    from ipexctl.launch.plan import Setting

Bind = Literal["auto", "socket", "numa", "cores", "none"]
CommandKind = Literal["script", "module", "command"]


class Record(Protocol):
    """What an environment of ours says of itself in its env.json."""

    @property
    def name(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def module(self) -> str | None: ...
    @property
    def packages(self) -> dict[str, str]: ...
    @property
    def variables(self) -> dict[str, str]: ...
    @property
    def prepended(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class RankEnv:
    """The Python environment the ranks run in: at the same path on every host."""

    python: str
    prefix: str | None = None
    """Its directory; None where only an interpreter is known."""
    name: str | None = None
    """Its name among ours; None for one of the user's."""
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    prepended: tuple[str, ...] = ()
    ccl: bool = False
    """Whether it has oneCCL bindings."""
    mpi_backend: bool | None = False
    """Whether its torch was built with MPI; no wheel is. None: nobody has looked."""

    @classmethod
    def of(cls, record: Record, prefix: str) -> RankEnv:
        """An environment of ours, at that path."""
        return cls(
            python=f"{prefix}/bin/python",
            prefix=prefix,
            name=record.name,
            packages=record.packages,
            variables=record.variables,
            prepended=record.prepended,
            ccl=record.backend == "ccl",
        )


@dataclass(frozen=True, slots=True)
class Export:
    """A variable the user hands to the ranks. Its value is never shown where it was kept off the command line."""

    name: str
    value: str = field(repr=False)
    secret: bool = False
    said: str = "-x"
    """Where: `-x`, `--env-file secrets.env`."""


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What the user asked for, beside the defaults."""

    n: int | None = None
    ppn: int | None = None
    backend: Literal["auto", "ccl", "gloo", "mpi"] = "auto"
    mpi: str = "auto"
    """auto, intel, openmpi, mpich, or the path of an mpirun."""
    bind: Bind = "auto"
    omp: int | None = None
    ccl_workers: int | None = None
    master_port: int | None = None
    time_limit: float | None = None
    exports: tuple[Export, ...] = ()
    given: tuple[Setting, ...] = ()
    """What a configuration of the user's says (accelerate's): it wins over our defaults, `exports` win over it."""
    said: Mapping[str, str] = field(default_factory=dict, hash=False)
    """`ranks`, `omp`, `master_port` → who asked for it, where it wasn't the option of ours."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Everything `plan_launch` looks at."""

    hosts: tuple[Host, ...]
    """In the order of the file; the first is node0."""
    facts: Mapping[str, Facts] = field(hash=False)
    internal: Mapping[str, str] = field(hash=False)
    """Host → the address the others reach it by."""
    env: RankEnv
    command: tuple[str, ...]
    """The script, the module, or the command, and its arguments."""
    kind: CommandKind
    cwd: str
    rundir: str
    """The run's directory, the same on every host."""
    words: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Host → what node0 calls it when it hands it to ssh; else its name."""
    ssh_config: str | None = None
    """On node0, as `trust` made it; None: node0's own ssh finds the way."""
    options: LaunchOptions = field(default_factory=LaunchOptions)
    mpi_seen: Mpi | None = None
    """What `--mpi PATH` said of itself, where facts don't have it."""

    @property
    def node0(self) -> Host:
        return self.hosts[0]

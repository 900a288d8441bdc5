"""The input of a plan: facts of the hosts, the environment, and the user's options. Values only.

`jobs/submit/pipeline.py` makes a `LaunchRequest`. Its `LaunchOptions` are the declared options (`options.py`) and those
that are made from other words of a call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ipexctl.launch.options import RankOptions
from ipexctl.starters.mpirun import OVER_SSH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.facts.facts import Facts
    from ipexctl.facts.software import Mpi
    from ipexctl.hosts.host import Host
    from ipexctl.launch.memory import EarlierMemory
    from ipexctl.launch.plan import Setting
    from ipexctl.launch.stated_backend import StatedBackend
    from ipexctl.starters.starter import Starter

Bind = Literal["auto", "socket", "numa", "cores", "none"]
CommandKind = Literal["script", "module", "command"]
Allocator = Literal["auto", "default", "tcmalloc", "jemalloc"]
OpenMp = Literal["auto", "default", "intel"]


@dataclass(frozen=True, slots=True)
class RankEnv:
    """The Python environment the ranks run in: at the same path on every host."""

    python: str
    prefix: str | None = None
    """Its directory; None if only the interpreter is known."""
    name: str | None = None
    """Its name if ipexctl installed it; None for an environment of the user."""
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    prepended: tuple[str, ...] = ()
    ccl: bool = False
    """True if it has oneCCL bindings."""
    is_installed: bool = True
    """False for a plan with the environment that install would make."""
    stacks: tuple[str, ...] = ()
    """Its stack, or those among which the indexes decide; empty for an environment of the user."""
    version: str = ""
    """Its Python, such as `3.11`; empty if it is not known."""
    mpi_backend: bool | None = False
    """True if its torch was built with MPI; no wheel is. None: not known."""


@dataclass(frozen=True, slots=True)
class Export:
    """A variable the user sets for the ranks. The value of a secret is never shown."""

    name: str
    value: str = field(repr=False)
    secret: bool = False
    source: str = "-x"
    """The option that sets it: `-x`, `--env-file secrets.env`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions(RankOptions):
    """The user's options for a launch: those that are declared, and what is made from others."""

    exports: tuple[Export, ...] = ()
    given: tuple[Setting, ...] = ()
    """Settings of a configuration file (accelerate's): they override planned ones, and `exports` override them."""
    master_addr: str | None = None
    """The address that a pasted line gives rank 0; it is only compared with node0's."""
    allocator: Allocator = "auto"
    """Of a pasted line of ipexrun, as is the next; `default`: malloc."""
    openmp: OpenMp = "auto"
    """`default`: the OpenMP that torch brings."""
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    """`ranks`, `omp`, `master_port`, `master_addr`, `backend` → what set it, if not the option of `ipexctl run`."""
    stated: StatedBackend | None = None
    """The backend that the script's arguments or accelerate's file name; it decides under `auto`."""
    uses_accelerate: bool = False
    """Whether the script is known to join its ranks by accelerate, as the Trainer does."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """The input of `plan_launch`."""

    hosts: tuple[Host, ...]
    """In the order of the hostfile; the first is node0."""
    facts: Mapping[str, Facts] = field(hash=False)
    internal: Mapping[str, str] = field(hash=False)
    """Host → the address that other hosts reach it by, of every host where there are several."""
    env: RankEnv
    command: tuple[str, ...]
    """The script, the module, or the command, and its arguments."""
    kind: CommandKind
    cwd: str
    rundir: str
    """The run's directory, the same on every host."""
    ssh_names: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Host → the name node0 uses for it with ssh; without an entry its own name."""
    ssh_config: str | None = None
    """The ssh config of `trust` on node0; None: that of the account."""
    options: LaunchOptions = field(default_factory=LaunchOptions)
    mpi_seen: Mpi | None = None
    """The MPI at `--mpi PATH`, if the facts don't have it."""
    starter: Starter = OVER_SSH
    """The way from node0 to the other hosts."""
    earlier_memory: EarlierMemory | None = None

    @property
    def node0(self) -> Host:
        return self.hosts[0]

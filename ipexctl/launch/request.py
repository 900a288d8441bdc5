"""The input of a plan: the spec of the run, facts of the hosts, the environment. Values only.

`run/start/pipeline.py: make_plan` makes a `LaunchRequest`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ipexctl.launch.hub import NO_HUB
from ipexctl.starters.mpirun import OVER_SSH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.facts.facts import Facts
    from ipexctl.facts.software import Mpi
    from ipexctl.hosts.host import Host
    from ipexctl.launch.hub import Hub
    from ipexctl.launch.memory import EarlierMemory
    from ipexctl.launch.stated_backend import StatedBackend
    from ipexctl.node.common.plan import Setting
    from ipexctl.spec import RunSpec
    from ipexctl.starters.starter import Starter


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


MPI_MODULES: Final = frozenset({"mpi4py", "horovod"})
"""Python modules whose ranks are numbered by mpirun: started without it, each is rank 0 of 1."""


class MpiImport(NamedTuple):
    """An import of one of `MPI_MODULES`."""

    module: str
    place: str
    """`train.py, line 3`."""
    is_certain: bool
    """False in a function, an `if` or a `try`."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """The input of `plan_launch`."""

    spec: RunSpec
    hosts: tuple[Host, ...]
    """In the order of the hostfile; the first is node0."""
    facts: Mapping[str, Facts] = field(hash=False)
    internal: Mapping[str, str] = field(hash=False)
    """Host → the address that other hosts reach it by, of every host where there are several."""
    env: RankEnv
    command: tuple[str, ...]
    """What each rank executes: the script, relative to its directory, the module or the command, and its arguments."""
    cwd: str
    rundir: str
    """The run's directory, the same on every host."""
    ssh_names: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Host → the name node0 uses for it with ssh; without an entry its own name."""
    ssh_config: str | None = None
    """The ssh config of `trust` on node0; None: that of the account."""
    mpi_seen: Mpi | None = None
    """The MPI at `--mpi PATH`, if the facts don't have it."""
    starter: Starter = OVER_SSH
    """The way from node0 to the other hosts."""
    no_logins: str = ""
    """Why mpirun could not reach the other hosts, as far as that is known before the plan; else empty."""
    earlier_memory: EarlierMemory | None = None
    given: tuple[Setting, ...] = ()
    """Settings of a configuration file (accelerate's): they override planned ones, and exports override them."""
    stated: StatedBackend | None = None
    """The backend that the script's arguments or accelerate's file name; it decides under `auto`."""
    hub: Hub = NO_HUB
    """What the script needs of a hub, and what the hosts have of it."""
    uses_accelerate: bool = False
    """Whether the script is known to join its ranks by accelerate, as the Trainer does."""
    mpi_import: MpiImport | None = None
    """The script's first import of a module that needs mpirun."""

    @property
    def node0(self) -> Host:
        return self.hosts[0]

"""The input of a plan: the spec of the run, and what was gathered from the hosts. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ipexctl.facts.facts import Facts
from ipexctl.facts.software import Mpi
from ipexctl.hosts.host import Host
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.asked import Asked
from ipexctl.node.common.job import ConnectivityRecord
from ipexctl.transports import OVER_SSH, Transport

if TYPE_CHECKING:
    from ipexctl.node.hub.hub_check import FoundHub


@dataclass(frozen=True, slots=True)
class RankEnv:
    python: str
    prefix: str | None = None
    """None if only the interpreter is known."""
    name: str | None = None
    """None for a user's environment."""
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    prepended: tuple[str, ...] = ()
    ccl: bool = False
    is_installed: bool = True
    """False for the environment that install would make."""
    stacks: tuple[str, ...] = ()
    """Stacks that the indexes decide between; empty for a user's environment."""
    version: str = ""
    lists: tuple[str, ...] = ()
    """As in `EnvRequest`."""
    mpi_backend: bool | None = False
    """True for a torch built with MPI, which no wheel is. None: unknown."""


MPI_MODULES: Final = frozenset({"mpi4py", "horovod"})
"""Python modules that get their rank from mpirun: started without it, each is rank 0 of 1."""


@dataclass(frozen=True, slots=True)
class EarlierCheck:
    """What node0 knows of an earlier check of the connections."""

    passed: ConnectivityRecord | None = None
    uptime: float = 0.0
    """Node0's uptime in seconds when the record was read; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class EarlierMemory:
    size: int
    run: str
    ppn: int = 0
    """Highest number of ranks on one host; 0 if the earlier run's record does not say."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """The hosts of a run as they are now (`run/start/context.py: gather`), for its spec."""

    spec: RunSpec
    facts: Mapping[str, Facts] = field(hash=False)
    addresses: Mapping[str, str] = field(hash=False)
    """Host → its address for the others; empty for a single host."""
    home: str
    env: RankEnv
    mpi: Mpi | None = None
    """The MPI at `--mpi PATH`, if the facts don't have it."""
    setup: str | None = None
    """File that the launcher and the ranks source."""
    notes: tuple[str, ...] = ()
    earlier_check: EarlierCheck = field(default_factory=EarlierCheck)
    transport: Transport = OVER_SSH
    hub: Mapping[str, FoundHub] = field(default_factory=dict, hash=False)
    """Empty if the script imports no library of a hub."""
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Options of the line and of its file of settings, if a tool reads them with HfArgumentParser."""
    job: str = ""
    job_seconds: int | None = None
    earlier_memory: EarlierMemory | None = None

    @property
    def asked(self) -> Asked:
        return self.spec.asked

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Hosts in the order of the hostfile; the first is node0."""
        return self.spec.hosts

    @property
    def probe_python(self) -> str:
        """A Python for checks on the hosts; empty if the environment is not installed and the hosts share none."""
        return self.env.python if self.env.is_installed else common_python(self.facts)


def common_python(facts: Mapping[str, Facts]) -> str:
    """A Python that can run the agent, at the same path on every host; or empty."""
    paths = [host.software.agent_pythons for host in facts.values()]
    return next((path for path in paths[0] if all(path in others for others in paths)), "")

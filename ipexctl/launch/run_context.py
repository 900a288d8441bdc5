"""Define the input of a plan: the spec of the run, and what was gathered from the hosts.

`run/start/context.py: gather_context` makes these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ipexctl.facts.facts import Facts
from ipexctl.facts.software import Mpi
from ipexctl.hosts.host import Host
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.job import ConnectivityRecord
from ipexctl.node.common.run_options import RunOptions
from ipexctl.transports import OVER_SSH, Transport

if TYPE_CHECKING:
    from ipexctl.node.hub.hub_check import FoundHub


@dataclass(frozen=True, slots=True)
class RankEnv:
    """The Python environment in which the ranks run."""

    python: str
    """Absolute path of Python on the hosts."""
    prefix: str | None = None
    """Directory of the environment; None if only the interpreter is known."""
    name: str | None = None
    """Name of an environment that ipexctl installs; None for a user's own environment."""
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Normalized name → version, empty for versions that are not known."""
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Variables that `env.json` of the environment sets."""
    prepended: tuple[str, ...] = ()
    """Variables among `variables` whose value goes before the host's own value, as for search paths."""
    ccl: bool = False
    """True if oneCCL's bindings for torch are installed."""
    is_installed: bool = True
    """False for an environment that does not exist yet: the values are what install would make."""
    stacks: tuple[str, ...] = ()
    """The stack; several if only the indexes will decide between them; empty for a user's environment."""
    version: str = ""
    """Version of Python; empty if unknown."""
    lists: tuple[str, ...] = ()
    """As `EnvRequest.lists`."""
    mpi_backend: bool | None = False
    """True if torch was built with MPI, which no wheel is; None if unknown."""


MPI_MODULES: Final = frozenset({"mpi4py", "horovod"})
"""Python modules that get their rank from mpirun. If another launcher starts them, each is rank 0 of 1."""


@dataclass(frozen=True, slots=True)
class EarlierCheck:
    """What node0 knows of an earlier check of the connections between the hosts."""

    passed: ConnectivityRecord | None = None
    """The record of the check; None if node0 has none, or a doubtful one."""
    uptime: float = 0.0
    """Uptime of node0 in seconds when the record was read; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class EarlierMemory:
    """The memory of the ranks in an earlier run of the same script."""

    size: int
    """Bytes of the largest rank."""
    run: str
    """ID of that run."""
    ppn: int = 0
    """Highest number of ranks on one host; 0 if the record of that run does not say."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run's spec, and its hosts as they are now."""

    spec: RunSpec
    facts: Mapping[str, Facts] = field(hash=False)
    """Host → its facts."""
    addresses: Mapping[str, str] = field(hash=False)
    """Host → its address for the other hosts; empty for a single host."""
    home: str
    """The ipexctl home on the hosts."""
    env: RankEnv
    mpi: Mpi | None = None
    """The MPI at `--mpi PATH`, if the facts do not have it; else None."""
    setup: str | None = None
    """File that the launcher and the ranks source; None without one."""
    notes: tuple[str, ...] = ()
    earlier_check: EarlierCheck = field(default_factory=EarlierCheck)
    transport: Transport = OVER_SSH
    hub: Mapping[str, FoundHub] = field(default_factory=dict, hash=False)
    """Host → what is known of the hub and its cache there. Empty if the script imports no library of a hub."""
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Options of the command line and of its settings file, if a tool reads them with HfArgumentParser."""
    job: str = ""
    """ID of the scheduler's job that has the hosts; empty without one."""
    job_seconds: int | None = None
    """Seconds until that job ends; None if there is none, or its end is unknown."""
    earlier_memory: EarlierMemory | None = None
    """None if no earlier run tells the memory of a rank."""

    @property
    def asked(self) -> RunOptions:
        """The options of the run."""
        return self.spec.asked

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Hosts in the order of the hostfile; the first is node0."""
        return self.spec.hosts

    @property
    def probe_python(self) -> str:
        """A Python for checks on the hosts; empty if the environment is not installed and the hosts share no Python."""
        return self.env.python if self.env.is_installed else common_python(self.facts)


def common_python(facts: Mapping[str, Facts]) -> str:
    """Return a Python that can run the agent and has the same path on every host; empty if there is none."""
    paths = [host.software.agent_pythons for host in facts.values()]
    return next((path for path in paths[0] if all(path in others for others in paths)), "")

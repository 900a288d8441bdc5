"""The input of a plan: the spec of the run, and what was gathered from the hosts. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ipexctl.facts.facts import Facts
from ipexctl.facts.software import Mpi
from ipexctl.hosts.host import Host
from ipexctl.launch.hub_settings import NO_HUB, Hub
from ipexctl.node.common.job import ConnectivityRecord
from ipexctl.spec import RunSpec
from ipexctl.transports import OVER_SSH, Transport

if TYPE_CHECKING:
    from ipexctl.launch.rank_distribution import EarlierMemory
    from ipexctl.node.common.plan import Plan


@dataclass(frozen=True, slots=True)
class RankEnv:
    """The Python environment the ranks run in: at the same path on every host."""

    python: str
    prefix: str | None = None
    """Its directory; None if only the interpreter is known."""
    name: str | None = None
    """Its name if ipexctl installed it; None for a user's environment."""
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    prepended: tuple[str, ...] = ()
    ccl: bool = False
    is_installed: bool = True
    """False for a plan with the environment that install would make."""
    stacks: tuple[str, ...] = ()
    """Its stack, or those that the indexes decide between; empty for a user's environment."""
    version: str = ""
    mpi_backend: bool | None = False
    """Its torch was built with MPI; no wheel is. None: unknown."""


MPI_MODULES: Final = frozenset({"mpi4py", "horovod"})
"""Python modules that get their rank from mpirun: started without it, each is rank 0 of 1."""


class MpiImport(NamedTuple):
    module: str
    place: str
    """`train.py, line 3`."""
    is_certain: bool
    """False in a function, an `if` or a `try`."""


@dataclass(frozen=True, slots=True)
class Node0Files:
    """Files of an earlier `trust` and an earlier run on node0."""

    ssh_config: str = ""
    """Text of trust's ssh config; or empty."""
    connectivity: ConnectivityRecord | None = None
    """A check that passed, or found no logins, in the last hours."""
    uptime: float = 0.0
    """Node0's uptime in seconds when these files were read; 0 if unknown."""
    no_logins: str = ""
    """Why node0 cannot log in to the hosts of this run, so that its ranks are started without; empty if unknown."""
    logins_tried: float = 0.0
    """When that was found, in seconds since node0's boot."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """The hosts of a run as they are now (`run/start/context.py: gather`), for its spec."""

    spec: RunSpec
    facts: Mapping[str, Facts] = field(hash=False)
    addresses: Mapping[str, str] = field(hash=False)
    """Host → its address for the others; empty for a single host."""
    home: str
    """Absolute, the same on every host."""
    env: RankEnv
    mpi: Mpi | None = None
    """The MPI at `--mpi PATH`, if the facts don't have it."""
    setup: str | None = None
    """The file that the launcher and the ranks source."""
    ssh_config: str | None = None
    """Path of trust's ssh config on node0, if it has all hosts; None: the account's own config."""
    ssh_names: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Host → its name for node0's ssh; without an entry its own name."""
    notes: tuple[str, ...] = ()
    node0: Node0Files = field(default_factory=Node0Files)
    transport: Transport = OVER_SSH
    """The way to the hosts, and from node0 to the others."""
    hub: Hub = NO_HUB
    job: str = ""
    """Number of the scheduler's job that the hosts belong to, if known; empty outside one."""
    job_seconds: int | None = None
    earlier_memory: EarlierMemory | None = None

    @property
    def hosts(self) -> tuple[Host, ...]:
        """In the order of the hostfile; the first is node0."""
        return self.spec.hosts

    @property
    def first_hosts(self) -> tuple[Host, ...]:
        return first_hosts(self.spec.hosts, self.spec)

    def nodes_of(self, plan: Plan) -> tuple[Host, ...]:
        """Node0, which may be without ranks, and the hosts with ranks in some attempt."""
        return tuple(host for host in self.hosts if host.name in plan.names)

    @property
    def probe_python(self) -> str:
        """A Python for checks on the hosts; empty if the environment is not installed and the hosts share none."""
        return self.env.python if self.env.is_installed else common_python(self.facts)


def common_python(facts: Mapping[str, Facts]) -> str:
    """A Python that can run the agent, at the same path on every host; or empty."""
    paths = [host.software.agent_pythons for host in facts.values()]
    return next((path for path in paths[0] if all(path in others for others in paths)), "")


def first_hosts(hosts: Sequence[Host], spec: RunSpec) -> tuple[Host, ...]:
    """The hosts of the first attempt; the others wait as spares."""
    return tuple(hosts[: len(hosts) - spec.spares])

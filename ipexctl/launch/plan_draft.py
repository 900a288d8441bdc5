"""Hold what is decided before the parts of a plan are made: ranks of each node, their cores, backend and launcher.

`planner.py: lay_out` makes a `PlanDraft`. Its `plan` grows from part to part, so a later part can read what an earlier
one has decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from ipexctl.facts.facts import Facts
from ipexctl.launch.overrides import requested_number
from ipexctl.launch.run_context import RunContext
from ipexctl.launch.topology import Binding, Cores
from ipexctl.node.common.mpi import MpiRow, MpirunLine, mpi_named
from ipexctl.node.common.plan import LauncherMode, Plan, Setting
from ipexctl.transports import LaunchFlavor, launcher_of


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """A host that gets ranks."""

    name: str
    facts: Facts
    address: str
    """Address for the other nodes; `127.0.0.1` if the run has one node."""
    word: str
    """The node's name in mpirun's list of hosts."""
    first: int
    """Number of the node's first rank."""
    cores: Cores
    binding: Binding
    iface: str | None = None
    """Network interface with the address; None on a single node, or if no interface has the address."""

    @property
    def count(self) -> int:
        """The number of ranks of the node."""
        return len(self.binding.slots)


@dataclass(frozen=True, slots=True)
class RankDistribution:
    """How many ranks each host gets, and why."""

    counts: tuple[int, ...]
    """Ranks of each host, in hostfile order; 0 for a host that is left out."""
    reason: str
    notes: tuple[str, ...] = ()
    by_default: bool = False
    """True if neither the command nor the hostfile says how many ranks there are."""


@dataclass(frozen=True, slots=True)
class LauncherProgram:
    """The program that starts the ranks."""

    flavor: LaunchFlavor
    path: str
    """Path of mpirun; of another launcher, the program that starts the ranks."""
    of_env: bool
    """True if the launcher needs no note: it came with the environment, or is no MPI."""
    reason: str
    version: str | None = None
    """Version of the MPI; None if it is not known."""

    @property
    def mode(self) -> LauncherMode:
        """`mpirun` for every MPI, `direct` for a launcher without MPI."""
        return "mpirun" if launcher_of(self.flavor) is None else "direct"

    @property
    def root(self) -> str:
        """The directory of the MPI, above `bin/`."""
        return str(PurePosixPath(self.path).parent.parent)


ChosenValue = tuple[str | None, str]
"""The value of a variable (None removes it) and the reason."""


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """What the parts of a plan are decided from.

    `planner.py: PLAN_STEPS` has the parts; each returns the plan with more fields.
    """

    context: RunContext
    plan: Plan
    """What is decided so far."""
    nodes: tuple[NodeLayout, ...]
    """The hosts that get ranks, in hostfile order."""
    workers: int
    """oneCCL workers of each rank."""
    distribution: RankDistribution
    program: LauncherProgram
    wanted: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Name → value of variables that the user, or an accelerate config, sets.

    Rules that depend on a variable read it here.
    """
    bound_by_mpi: bool = False
    """True if the user's variables make Intel MPI bind the ranks to cores."""

    def with_plan(self, **decided: Any) -> PlanDraft:
        """Return the draft with fields of the plan replaced."""
        return replace(self, plan=self.plan._replace(**decided))

    @property
    def mpi(self) -> MpiRow | None:
        """The MPI whose mpirun starts the ranks; None if another launcher starts them."""
        return mpi_named(self.program.flavor)

    @property
    def mpirun_line(self) -> MpirunLine:
        """What the options of an mpirun depend on."""
        rundir = self.plan.rundir
        return MpirunLine(
            hosts=len(self.nodes),
            hostfile=f"{rundir}/hostfile",
            ssh=f"{rundir}/ssh.sh",
            iface=self.common_iface,
            address=self.nodes[0].address,
            root=self.program.root,
            version=self.program.version or "",
            by_starters=not self.context.transport.remote_shell,
            is_binding=self.bound_by_mpi,
            wanted=self.wanted,
        )

    @property
    def common_iface(self) -> str | None:
        """The network interface that the nodes use, if its name is the same on all; else None."""
        names = {node.iface for node in self.nodes}
        return names.pop() if len(names) == 1 else None

    @property
    def alone(self) -> bool:
        """True if the run has one node."""
        return len(self.nodes) == 1

    @property
    def omp(self) -> int | None:
        """OpenMP threads of a rank, as a variable or --omp asks for; None if the cores decide."""
        return requested_number(self.wanted, "OMP_NUM_THREADS") or self.context.asked.omp

    @property
    def ranks_per_host(self) -> dict[str, int]:
        """Host → its number of ranks."""
        return {node.name: node.count for node in self.nodes}

    @property
    def world_size(self) -> int:
        """The number of ranks of the run."""
        return sum(node.count for node in self.nodes)

    def per_node(self, name: str, choose: Callable[[NodeLayout], ChosenValue | None]) -> list[Setting]:
        """Return a setting for each node, or a single one if value and reason are the same on all nodes.

        `choose` returns None if a node gets no setting.
        """
        choices = {node.name: choose(node) for node in self.nodes}
        different = set(choices.values())
        if len(different) == 1:
            common = different.pop()
            return [] if common is None else [Setting(name, *common)]
        return [Setting(name, *choice, host=host) for host, choice in choices.items() if choice is not None]

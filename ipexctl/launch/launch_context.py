"""The decisions of a plan that its variables depend on: nodes, ranks and their cores, backend, MPI."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from ipexctl.facts.facts import Facts
from ipexctl.launch.overrides import requested_number
from ipexctl.launch.request import Gathered
from ipexctl.launch.topology import Binding, Cores
from ipexctl.node.common.mpi import MpiRow, MpirunLine, mpi_named
from ipexctl.node.common.plan import LauncherMode, Plan, Setting
from ipexctl.transports import LaunchFlavor, launcher_of


@dataclass(frozen=True, slots=True)
class NodeLayout:
    name: str
    facts: Facts
    address: str
    word: str
    """Name in mpirun's list of hosts."""
    first: int
    cores: Cores
    binding: Binding
    iface: str | None = None

    @property
    def count(self) -> int:
        return len(self.binding.slots)


@dataclass(frozen=True, slots=True)
class RankDistribution:
    counts: tuple[int, ...]
    """Ranks of each host, in hostfile order."""
    reason: str
    notes: tuple[str, ...] = ()
    by_default: bool = False
    """True if neither the call nor the hostfile says how many."""


@dataclass(frozen=True, slots=True)
class LauncherProgram:
    flavor: LaunchFlavor
    path: str
    of_env: bool
    reason: str
    version: str | None = None

    @property
    def mode(self) -> LauncherMode:
        return "mpirun" if launcher_of(self.flavor) is None else "direct"

    @property
    def root(self) -> str:
        return str(PurePosixPath(self.path).parent.parent)


ChosenValue = tuple[str | None, str]


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What the parts of a plan are decided from. `planner.py: PARTS` has the parts; each returns the plan with more."""

    gathered: Gathered
    plan: Plan
    """What is decided so far."""
    nodes: tuple[NodeLayout, ...]
    workers: int
    """oneCCL's workers of each rank."""
    distribution: RankDistribution
    program: LauncherProgram
    wanted: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Variables that the user sets. Rules that depend on a variable read it here."""
    bound_by_mpi: bool = False
    """True if the user's variables make Intel MPI bind the ranks to cores."""

    def with_plan(self, **decided: Any) -> LaunchContext:
        return replace(self, plan=self.plan._replace(**decided))

    @property
    def mpi(self) -> MpiRow | None:
        """None if another launcher than an mpirun starts the ranks."""
        return mpi_named(self.program.flavor)

    @property
    def mpirun_line(self) -> MpirunLine:
        rundir = self.plan.rundir
        return MpirunLine(
            hosts=len(self.nodes),
            hostfile=f"{rundir}/hostfile",
            ssh=f"{rundir}/ssh.sh",
            iface=self.common_iface,
            address=self.nodes[0].address,
            root=self.program.root,
            version=self.program.version or "",
            by_starters=not self.gathered.transport.remote_shell,
            is_binding=self.bound_by_mpi,
            wanted=self.wanted,
        )

    @property
    def common_iface(self) -> str | None:
        """The network interface that the nodes use, if its name is the same on all."""
        names = {node.iface for node in self.nodes}
        return names.pop() if len(names) == 1 else None

    @property
    def alone(self) -> bool:
        return len(self.nodes) == 1

    @property
    def omp(self) -> int | None:
        return requested_number(self.wanted, "OMP_NUM_THREADS") or self.gathered.asked.omp

    @property
    def ranks_per_host(self) -> dict[str, int]:
        return {node.name: node.count for node in self.nodes}

    @property
    def world_size(self) -> int:
        return sum(node.count for node in self.nodes)

    def per_node(self, name: str, choose: Callable[[NodeLayout], ChosenValue | None]) -> list[Setting]:
        """One setting per node, or a single one if value and reason are the same on all."""
        choices = {node.name: choose(node) for node in self.nodes}
        different = set(choices.values())
        if len(different) == 1:
            common = different.pop()
            return [] if common is None else [Setting(name, *common)]
        return [Setting(name, *choice, host=host) for host, choice in choices.items() if choice is not None]

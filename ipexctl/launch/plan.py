"""The plan of one run: ranks, cores, variables with their reasons, the mpirun line. Values and their JSON only.

How a plan is made lives in `planner`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Flavor = Literal["intel", "openmpi", "mpich"]
Backend = Literal["ccl", "gloo", "mpi"]

SCHEMA: Final = "ipexctl.run/1"


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable and why it has its value."""

    name: str
    value: str | None
    """None: it is removed, whoever set it."""
    reason: str
    host: str | None = None
    """None: the same on every host."""
    rank: int | None = None
    prepend: bool = False
    """Whether it goes in front of what the host has, with a colon between."""
    secret: bool = False
    """Whether the value travels apart: then it is empty here."""


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One rank's place."""

    rank: int
    local_rank: int
    host: str
    cores: tuple[int, ...]
    """The logical CPUs it is bound to, one a core; empty: it isn't bound."""
    omp: int
    ccl_cores: tuple[int, ...] = ()
    """Where oneCCL's workers of this rank run, beside `cores`; empty: wherever oneCCL puts them."""
    memory: tuple[int, ...] = ()
    """The NUMA nodes whose memory it prefers; empty: all alike."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """One host's part."""

    name: str
    address: str
    """The one the other hosts reach it by."""
    word: str
    """What mpirun is told: a name node0's ssh knows, or the address."""
    ranks: tuple[RankPlan, ...]
    iface: str | None
    """The interface that carries the address; None where we can't see one."""
    tier: str | None = None
    """What its processor can do."""


@dataclass(frozen=True, slots=True)
class LaunchFile:
    """A file that mpirun needs beside it in node0's run directory."""

    name: str
    mode: int
    text: str


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """All that has to be known before a run can start. Holds no secret."""

    flavor: Flavor
    launcher: str
    argv: tuple[str, ...]
    """The whole mpirun line."""
    launcher_env: tuple[Setting, ...]
    """What mpirun itself gets; the ranks' variables travel in the job file."""
    world_size: int
    hosts: tuple[HostPlan, ...]
    """Those with ranks, in the order of their ranks."""
    settings: tuple[Setting, ...]
    """What the ranks get."""
    master_addr: str
    master_port: int | None
    """None: node0 picks a free one as the run starts."""
    backend: Backend
    dtype_hint: str
    python: str
    env: str | None
    command: tuple[str, ...]
    """What a rank executes."""
    cwd: str
    hostfile: str
    files: tuple[LaunchFile, ...]
    """The hostfile is among them."""
    notes: tuple[str, ...] = ()
    time_limit: float | None = None

    @property
    def ranks(self) -> tuple[RankPlan, ...]:
        return tuple(rank for host in self.hosts for rank in host.ranks)

    def settings_of(self, rank: RankPlan) -> tuple[Setting, ...]:
        """What one rank gets, in the order of the plan."""
        return tuple(
            setting
            for setting in self.settings
            if setting.host in (None, rank.host) and setting.rank in (None, rank.rank)
        )


@dataclass(frozen=True, slots=True)
class LaunchRefusal:
    """Why there is no plan, and what to do."""

    reason: str
    fix: str = ""
    hosts: tuple[str, ...] = ()


def to_json(plan: LaunchPlan) -> dict[str, Any]:
    """The plan as JSON's own types: what `plan.json` holds and `--dry-run` prints."""
    return {"schema": SCHEMA, **asdict(plan)}

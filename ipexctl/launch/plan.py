"""The plan of one run: ranks, cores, variables with reasons, the mpirun line, and its JSON. Pure.

Values only. `planner.py` makes a `LaunchPlan`; `run --dry-run`, `export` and the job files are made from it, so that
what is shown is what starts. Every variable (`Setting`) carries the reason for its value. A plan contains no secret:
those travel apart, and their value here is empty. `LaunchFlavor` names the kinds of MPI. `to_json` writes the fields
under their names, which programs read: a field may be added, none renamed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from ipexctl.launch.other_runs import OtherRun, other_runs_json
from ipexctl.starters.choice import rank_starter_of
from ipexctl.starters.direct import RankFlavor
from ipexctl.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.starters.starter import RankStarter

LaunchFlavor = Literal["intel", "openmpi", "mpich", RankFlavor]
"""An MPI, or what starts the ranks without one."""
Backend = Literal["ccl", "gloo", "mpi", "none"]
"""`none`: independent copies of the command, without rank variables and without an address to meet at."""

AllReduceReason = Literal[
    "asked", "possible", "no-process-group", "other-backend", "one-rank-a-host",
    "unequal-hosts", "hooks-off", "torch-unknown", "torch-too-old", "other-processor", "more-ranks-than-cores",
]  # fmt: skip
"""`asked`: --allreduce names this mode. `allreduce.py` has the sentences."""

WireMode = Literal["fp32", "bf16", "int8"]
WireReason = Literal["default", "one-host", "backend-asked", AllReduceReason]

SCHEMA: Final = "ipexctl.run/1"
RANK_NAMES: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""Variables that the rank wrapper sets for each rank; nothing else may set them."""
ELASTIC_NAMES: Final = (
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"),
)
"""What torchrun sets besides."""
WRAPPER_NAMES: Final = (*RANK_NAMES, *ELASTIC_NAMES)
ALLREDUCE: Final = "IPEXCTL_ALLREDUCE"
"""The variable by which the hooks of a rank know that gradients are added up in shared memory; only a plan sets it."""
WIRE: Final = "IPEXCTL_WIRE"
"""Likewise: that they go between hosts in fewer bytes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable and the reason for its value."""

    name: str
    value: str | None
    """None: the variable is removed."""
    reason: str
    host: str | None = None
    """None: the same on every host."""
    rank: int | None = None
    prepend: bool = False
    """True if it is put before the value of the host, separated by a colon."""
    secret: bool = False
    """True if the value is sent separately; it is empty here."""


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One rank with its cores."""

    rank: int
    local_rank: int
    host: str
    cores: tuple[int, ...]
    """The logical CPUs it is bound to, one per core; empty: it isn't bound."""
    omp: int
    ccl_cores: tuple[int, ...] = ()
    """The CPUs of its oneCCL workers, not among `cores`; empty: chosen by oneCCL."""
    memory: tuple[int, ...] = ()
    """The NUMA nodes whose memory it prefers; empty: any."""
    batch: bool = False
    """True if the kernel schedules it by SCHED_BATCH: a thread that wakes up does not interrupt the one that runs."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """One host's part of the plan."""

    name: str
    address: str
    """The address that other hosts reach it by."""
    word: str
    """Its name in the hostfile of mpirun: one that node0's ssh knows, or the address."""
    ranks: tuple[RankPlan, ...]
    iface: str | None
    """The interface with the address; None if none is known."""
    tier: str | None = None
    """The tier of its instruction set."""
    cores: int = 0
    """The cores that its ranks share; 0: not known."""


@dataclass(frozen=True, slots=True)
class AllReduce:
    """How the ranks add gradients up: in shared memory on each host, or as the backend does."""

    mode: Literal["shared", "backend"]
    reason: AllReduceReason
    hosts: tuple[str, ...] = ()
    """Those at fault, if the reason is one of some hosts."""


AS_BACKEND: Final = AllReduce("backend", "asked")


@dataclass(frozen=True, slots=True)
class Wire:
    """As what gradients go between hosts: as they are, or in fewer bytes."""

    mode: WireMode
    reason: WireReason
    hosts: tuple[str, ...] = ()
    """Those at fault, if the reason is one of some hosts."""


AS_THEY_ARE: Final = Wire("fp32", "default")


@dataclass(frozen=True, slots=True)
class LauncherChoice:
    """What starts the ranks: an mpirun on node0, or what needs none."""

    mode: Literal["mpirun", "direct"]
    reason: str
    path: str
    """The program that node0 starts; of ranks that ipexctl starts itself, their Python."""


@dataclass(frozen=True, slots=True)
class LaunchFile:
    """A file that mpirun needs in node0's run directory."""

    name: str
    mode: int
    text: str
    is_everywhere: bool = False
    """Needed in the run directory of each host."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that is decided before a run starts. It contains no secret."""

    flavor: LaunchFlavor
    launcher: LauncherChoice
    argv: tuple[str, ...]
    """The whole mpirun line; without an mpirun that of the rank wrapper."""
    launcher_env: tuple[Setting, ...]
    """Variables of mpirun itself; those of the ranks are in the job file."""
    world_size: int
    hosts: tuple[HostPlan, ...]
    """The hosts with ranks, in the order of their ranks."""
    settings: tuple[Setting, ...]
    """Variables of the ranks."""
    master_addr: str
    master_port: int | None
    """None: node0 chooses a free port when the run starts."""
    backend: Backend
    backend_reason: str
    """Why it was chosen; empty if the call names it."""
    dtype_hint: str
    python: str
    env: str | None
    stack: str | None
    """The stack of the environment; None for an environment of the user, and if `candidates` has several."""
    candidates: tuple[str, ...]
    """The stacks among which the indexes decide when the environment is installed; the plan is for the last one."""
    command: tuple[str, ...]
    """What a rank executes."""
    cwd: str
    hostfile: str
    files: tuple[LaunchFile, ...]
    """The hostfile is among them."""
    notes: tuple[str, ...] = ()
    """What the user should know before the run."""
    choices: tuple[str, ...] = ()
    """The reasons of choices that were made without the user, for --dry-run and -v."""
    time_limit: float | None = None
    allreduce: AllReduce = AS_BACKEND
    wire: Wire = AS_THEY_ARE
    rank_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Options that the rank wrapper applies, by name."""
    other_runs: tuple[OtherRun, ...] = field(default=(), hash=False)
    """Runs that are alive on the same hosts."""

    @property
    def adds_up(self) -> bool:
        """Whether the ranks add gradients up with the code of `inrank/`."""
        return self.allreduce.mode == "shared" or self.wire.mode != "fp32"

    @property
    def starter(self) -> RankStarter | None:
        """What starts the ranks without an MPI; None: an mpirun does."""
        return rank_starter_of(self.flavor)

    @property
    def has_starters(self) -> bool:
        """Whether ipexctl itself starts the ranks: the supervisor those of node0, a starter those of another host."""
        return self.starter is not None and self.starter.has_starters

    @property
    def size(self) -> str:
        """`8 ranks on 2 hosts`."""
        return f"{counted(self.world_size, 'rank')} on {counted(len(self.hosts), 'host')}"

    @property
    def connection(self) -> str:
        """How the ranks are connected, for messages: `over gloo`."""
        return f"over {self.backend}" if self.backend != "none" else "without a process group"

    @property
    def ranks(self) -> tuple[RankPlan, ...]:
        """In the order of their numbers."""
        return tuple(rank for host in self.hosts for rank in host.ranks)


def to_json(plan: LaunchPlan) -> dict[str, Any]:
    """The plan as in `plan.json` and in `run --dry-run --json`."""
    return {"schema": SCHEMA, **asdict(replace(plan, other_runs=())), "other_runs": other_runs_json(plan.other_runs)}

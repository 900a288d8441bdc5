"""The plan of one run: ranks, cores, variables with reasons, the mpirun line, and its JSON. Pure.

`launch/planner.py` makes a `Plan`; `run --dry-run`, plan.json and job files are made from it, so what is shown is what
starts. A plan contains no secret: their value is empty here. Programs read the fields of `to_json`: a field may be
added, none renamed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, Mapping, NamedTuple

from ipexctl.node.common.json_records import FieldDecoder, as_json, check_type

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

Backend = Literal["ccl", "gloo", "mpi", "none"]
"""`none`: independent copies of the command, without rank variables and rendezvous."""

AllReduceReason = Literal[
    "asked", "possible", "no-process-group", "other-backend", "one-rank-a-host",
    "unequal-hosts", "hooks-off", "torch-unknown", "torch-too-old", "other-processor", "more-ranks-than-cores",
]  # fmt: skip
"""`asked`: --allreduce names this mode. `allreduce.py` has the sentences."""
WireReason = Literal["default", "one-host", "backend-asked", AllReduceReason]
LauncherMode = Literal["mpirun", "direct"]

SCHEMA = "ipexctl.run/1"
RANK_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""Set by the rank wrapper for each rank; nothing else may set them."""
ELASTIC_NAMES = (
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"),
)
"""What torchrun sets besides."""
WRAPPER_NAMES = (*RANK_NAMES, *ELASTIC_NAMES)
ALLREDUCE = "IPEXCTL_ALLREDUCE"
"""Tells a rank's hooks to sum gradients in shared memory; only a plan sets it."""
WIRE = "IPEXCTL_WIRE"
"""The same for gradients sent between hosts in fewer bytes."""


class Setting(NamedTuple):
    name: str
    value: str | None
    """None: the variable is removed."""
    reason: str
    host: str | None = None
    """None: the same on every host."""
    rank: int | None = None
    prepend: bool = False
    """True to put it before the host's value, separated by a colon."""
    secret: bool = False
    """True if the value is sent separately; it is empty here."""


class RankPlan(NamedTuple):
    rank: int
    local_rank: int
    host: str
    cores: tuple[int, ...]
    """Logical CPUs it is bound to, one per core; empty if unbound."""
    omp: int
    ccl_cores: tuple[int, ...] = ()
    """CPUs of its oneCCL workers, not among `cores`; empty if oneCCL chooses."""
    memory: tuple[int, ...] = ()
    """Preferred NUMA nodes for memory; empty for any."""
    batch: bool = False
    """True for SCHED_BATCH: a waking thread does not interrupt the running one."""


class HostPlan(NamedTuple):
    name: str
    address: str
    """Address for other hosts."""
    word: str
    """Name in mpirun's hostfile: one that node0's ssh knows, or the address."""
    ranks: tuple[RankPlan, ...]
    iface: str | None
    """Interface with the address; None if unknown."""
    tier: str | None = None
    cores: int = 0
    """Cores its ranks share; 0 if unknown."""


class Choice(NamedTuple):
    mode: str
    reason: WireReason
    hosts: tuple[str, ...] = ()
    """Hosts that the reason is about."""


AS_BACKEND = Choice("backend", "asked")
"""The backend sums gradients; the other mode is `shared`, in shared memory on each host."""
AS_THEY_ARE = Choice("fp32", "default")
"""Gradients go between hosts unchanged; the other modes are `bf16` and `int8`."""


class LauncherChoice(NamedTuple):
    """What starts the ranks: an mpirun on node0, or ipexctl itself."""

    mode: LauncherMode
    reason: str
    path: str
    """Program that node0 starts; the ranks' Python if ipexctl starts them."""


class LaunchFile(NamedTuple):
    name: str
    mode: int
    text: str
    is_everywhere: bool = False


class OtherRun(NamedTuple):
    id: str
    account: str
    state: str
    """`running`, or `starting` while its call starts it."""
    hosts: tuple[str, ...]
    cores: Mapping[str, str]
    """Host → cores of its ranks, such as `0-3`, if known."""
    shared_cores: Mapping[str, str]
    """Host → its cores that are also planned for this run."""
    since: float | None = None
    """Seconds since 1970."""


class Commit(NamedTuple):
    hash: str
    branch: str = ""
    """Empty if no branch is checked out."""


class Plan(NamedTuple):
    id: str
    home: str
    """Absolute, the same on every host."""
    node0: str
    """The supervisor's host, possibly without ranks."""
    asked: Json
    """Option → value, as typed or by default."""
    flavor: str
    """A `LaunchFlavor`: what starts the ranks."""
    launcher: LauncherChoice
    argv: tuple[str, ...]
    """The mpirun line; without mpirun, the rank wrapper's."""
    launcher_env: tuple[Setting, ...]
    """mpirun's own variables; the ranks' are in the job file."""
    hosts: tuple[HostPlan, ...]
    settings: tuple[Setting, ...]
    master_addr: str
    master_port: int | None
    """None: node0 chooses a free port when the run starts."""
    backend: Backend
    backend_reason: str
    """Empty if the call names the backend."""
    dtype_hint: str
    python: str
    env: str | None
    stack: str | None
    """Stack of the environment; None for a user's environment, or with several `candidates`."""
    candidates: tuple[str, ...]
    """Stacks among which the indexes decide at install; the plan is for the last."""
    command: tuple[str, ...]
    cwd: str
    """The home until the project's tree on the hosts is known."""
    files: tuple[LaunchFile, ...]
    """Includes the hostfile."""
    has_starters: bool
    """True if ipexctl starts the ranks: the supervisor on node0, starters elsewhere."""
    stores: Mapping[str, str]
    """Host → first host that shares its home."""
    notes: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    """Reasons of choices made without the user, for --dry-run and -v."""
    allreduce: Choice = AS_BACKEND
    wire: Choice = AS_THEY_ARE
    other_runs: tuple[OtherRun, ...] = ()
    """Live runs on the same hosts."""
    install: str = ""
    """Command that rebuilds the environment; empty for a user's own."""
    packages: tuple[str, ...] = ()
    install_by_run: str = ""
    """The call that also installs `project_packages`; empty if it would not."""
    project_packages: tuple[str, ...] = ()
    """Named in the project's requirements file."""
    hub: tuple[str, ...] = ()
    """What the script needs of a hub."""
    commit: Commit | None = None
    """None until the project is sent."""
    before_start: Mapping[str, float] = {}
    """Seconds of each step before the start."""

    @property
    def rundir(self) -> str:
        """The same on every host."""
        return f"{self.home}/runs/{self.id}"

    @property
    def world_size(self) -> int:
        return sum(len(host.ranks) for host in self.hosts)

    @property
    def time_limit(self) -> float | None:
        return self.asked.get("time_limit")

    @property
    def ranks(self) -> tuple[RankPlan, ...]:
        """In rank order."""
        return tuple(rank for host in self.hosts for rank in host.ranks)

    @property
    def adds_up(self) -> bool:
        """True if ranks sum gradients with the code of `inrank/`."""
        return self.allreduce.mode == "shared" or self.wire.mode != "fp32"

    @property
    def size(self) -> str:
        """`8 ranks on 2 hosts`."""
        ranks, hosts = self.world_size, len(self.hosts)
        return f"{ranks:,} rank{'s' * (ranks != 1)} on {hosts:,} host{'s' * (hosts != 1)}"

    @property
    def connection(self) -> str:
        """For messages: `over gloo`."""
        return f"over {self.backend}" if self.backend != "none" else "without a process group"

    @property
    def hostfile(self) -> str:
        """Text of its file, or what an mpirun would read."""
        texts = [file.text for file in self.files if file.name == "hostfile"]
        return texts[0] if texts else "".join(f"{host.word}:{len(host.ranks)}\n" for host in self.hosts)


def to_json(plan: Plan) -> Json:
    """As in plan.json and `run --dry-run --json`: the fields, and what programs read besides."""
    return {
        "schema": SCHEMA,
        **as_json(plan),
        "world_size": plan.world_size,
        "hostfile": plan.hostfile,
        "time_limit": plan.time_limit,
        "rank_options": {"nice": plan.asked.get("nice", 0)},
    }


FIELD_DECODERS: dict[str, FieldDecoder] = dict.fromkeys(
    ("Backend", "WireReason", "LauncherMode"), partial(check_type, str)
)

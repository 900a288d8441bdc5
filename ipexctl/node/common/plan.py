"""The plan of one run: ranks, cores, variables with reasons, the mpirun line, and its JSON. Pure.

Values only. `launch/planner.py` makes a `Plan`; `run --dry-run`, `export`, plan.json and job files are made from it, so
that what is shown is what starts. Every variable (`Setting`) carries the reason for its value. A plan contains no
secret: those travel apart, and their value here is empty. `to_json` writes the fields under their names, which programs
read: a field may be added, none renamed. `decode(Plan, document)` reads them back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, Mapping, NamedTuple

from ipexctl.node.common.json_records import FieldDecoder, as_json, check_type

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

Backend = Literal["ccl", "gloo", "mpi", "none"]
"""`none`: independent copies of the command, without rank variables and without an address to meet at."""

AllReduceReason = Literal[
    "asked", "possible", "no-process-group", "other-backend", "one-rank-a-host",
    "unequal-hosts", "hooks-off", "torch-unknown", "torch-too-old", "other-processor", "more-ranks-than-cores",
]  # fmt: skip
"""`asked`: --allreduce names this mode. `allreduce.py` has the sentences."""
WireReason = Literal["default", "one-host", "backend-asked", AllReduceReason]
LauncherMode = Literal["mpirun", "direct"]

SCHEMA = "ipexctl.run/1"
RANK_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""Variables that the rank wrapper sets for each rank; nothing else may set them."""
ELASTIC_NAMES = (
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"),
)
"""What torchrun sets besides."""
WRAPPER_NAMES = (*RANK_NAMES, *ELASTIC_NAMES)
ALLREDUCE = "IPEXCTL_ALLREDUCE"
"""The variable by which the hooks of a rank know that gradients are added up in shared memory; only a plan sets it."""
WIRE = "IPEXCTL_WIRE"
"""Likewise: that they go between hosts in fewer bytes."""


class Setting(NamedTuple):
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


class RankPlan(NamedTuple):
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


class HostPlan(NamedTuple):
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


class Choice(NamedTuple):
    """How ranks do something that depends on their hosts, and why."""

    mode: str
    reason: WireReason
    hosts: tuple[str, ...] = ()
    """The hosts at fault, if the reason is about some of them."""


AS_BACKEND = Choice("backend", "asked")
"""Gradients are added up as the backend does; the other mode is `shared`, in shared memory on each host."""
AS_THEY_ARE = Choice("fp32", "default")
"""Gradients go between hosts unchanged; the other modes are `bf16` and `int8`."""


class LauncherChoice(NamedTuple):
    """What starts the ranks: an mpirun on node0, or what needs none."""

    mode: LauncherMode
    reason: str
    path: str
    """The program that node0 starts; of ranks that ipexctl starts itself, their Python."""


class LaunchFile(NamedTuple):
    """A file that mpirun needs in node0's run directory."""

    name: str
    mode: int
    text: str
    is_everywhere: bool = False
    """Needed in the run directory of each host."""


class OtherRun(NamedTuple):
    """Another run on the hosts of this one."""

    id: str
    account: str
    state: str
    """`running`, or `starting` while its call starts it."""
    hosts: tuple[str, ...]
    """The hosts of this run that it uses, too."""
    cores: Mapping[str, str]
    """Host → the cores of its ranks, such as `0-3`, where they are known."""
    shared_cores: Mapping[str, str]
    """Host → the cores of its ranks that are planned for ranks of this run, too."""
    since: float | None = None
    """Seconds since 1970."""


class Commit(NamedTuple):
    hash: str
    branch: str = ""
    """Empty if no branch is checked out."""


class Plan(NamedTuple):
    """Everything that is decided before a run starts. It contains no secret."""

    id: str
    home: str
    """Absolute, the same on every host."""
    node0: str
    """The supervisor's host, which may be without ranks."""
    asked: Json
    """Option → value, as typed or by default."""
    flavor: str
    """What starts the ranks, a `LaunchFlavor`."""
    launcher: LauncherChoice
    argv: tuple[str, ...]
    """The whole mpirun line; without an mpirun that of the rank wrapper."""
    launcher_env: tuple[Setting, ...]
    """Variables of mpirun itself; those of the ranks are in the job file."""
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
    """The home until the tree of the project on the hosts is known."""
    files: tuple[LaunchFile, ...]
    """The hostfile is among them."""
    has_starters: bool
    """Whether ipexctl itself starts the ranks: the supervisor those of node0, a starter those of another host."""
    stores: Mapping[str, str]
    """Host → the first host that shares its home."""
    notes: tuple[str, ...] = ()
    """What the user should know before the run."""
    choices: tuple[str, ...] = ()
    """The reasons of choices that were made without the user, for --dry-run and -v."""
    allreduce: Choice = AS_BACKEND
    wire: Choice = AS_THEY_ARE
    other_runs: tuple[OtherRun, ...] = ()
    """Runs that are alive on the same hosts."""
    install: str = ""
    """The command that builds the environment again; empty for an environment of the user."""
    packages: tuple[str, ...] = ()
    """The names of its packages."""
    install_by_run: str = ""
    """The call again, which installs `project_packages`; empty where it would not."""
    project_packages: tuple[str, ...] = ()
    """What the project's own file of requirements names."""
    hub: tuple[str, ...] = ()
    """What the script needs of a hub."""
    commit: Commit | None = None
    """Of the project; None until it is sent."""
    before_start: Mapping[str, float] = {}
    """Seconds that each step before the start took."""

    @property
    def rundir(self) -> str:
        """The run's directory, the same on every host."""
        return f"{self.home}/runs/{self.id}"

    @property
    def world_size(self) -> int:
        return sum(len(host.ranks) for host in self.hosts)

    @property
    def time_limit(self) -> float | None:
        return self.asked.get("time_limit")

    @property
    def ranks(self) -> tuple[RankPlan, ...]:
        """In the order of their numbers."""
        return tuple(rank for host in self.hosts for rank in host.ranks)

    @property
    def adds_up(self) -> bool:
        """Whether the ranks add gradients up with the code of `inrank/`."""
        return self.allreduce.mode == "shared" or self.wire.mode != "fp32"

    @property
    def size(self) -> str:
        """`8 ranks on 2 hosts`."""
        ranks, hosts = self.world_size, len(self.hosts)
        return f"{ranks:,} rank{'s' * (ranks != 1)} on {hosts:,} host{'s' * (hosts != 1)}"

    @property
    def connection(self) -> str:
        """How the ranks are connected, for messages: `over gloo`."""
        return f"over {self.backend}" if self.backend != "none" else "without a process group"

    @property
    def hostfile(self) -> str:
        """The text of its file, or what an mpirun would read."""
        texts = [file.text for file in self.files if file.name == "hostfile"]
        return texts[0] if texts else "".join(f"{host.word}:{len(host.ranks)}\n" for host in self.hosts)


def to_json(plan: Plan) -> Json:
    """The plan as in `plan.json` and in `run --dry-run --json`: its fields, and what programs read beside them."""
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

"""The spec of a run: one frozen value, from the words of the call to the plan. `run/start/request.py: run_spec` makes
it. The plan keeps the fields that hosts may know (`asked_of`); the others never leave this machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from ipexctl.hosts.host import Host
from ipexctl.node.common.asked import Asked, AskedExport
from ipexctl.option_declaration import DEFAULT_ENV, DEFAULT_HOME, NO_OPTIONS, PROJECT, CallOptions, SyncOptions, declare
from ipexctl.projects.layout import NO_LAYOUT, ProjectLayout
from ipexctl.projects.requirement_files import RequirementFiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import TypedDict

    from ipexctl.launch.request import MpiImport
    from ipexctl.run.start.script_imports import ScriptFile

CommandKind = Literal["script", "module", "command"]
Bind = Literal["auto", "socket", "numa", "cores", "none"]
Allocator = Literal["auto", "default", "tcmalloc", "jemalloc"]
OpenMp = Literal["auto", "default", "intel"]
_MOST_RANKS: Final = 100_000
CCL_WORKERS: Final = 1
"""Per rank over ccl, unless the call, an accelerate config or a variable says otherwise."""
_RANKS, _COMMUNICATION, _ENVIRONMENT = "Ranks and cores", "Communication", "Environment"
_WATCHING, _ENDING = "Watching", "Ending"
_EVERY_EXPORT = ("accelerate", "mpijob", "shell", "slurm")


# Without eq and repr, which the spec has: it is made at each start.
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RankOptions:
    n: int | None = declare(
        "-n N",
        "Ranks in total, spread evenly over the hosts (default: --ppn on every host).",
        panel=_RANKS,
        minimum=1,
        maximum=_MOST_RANKS,
    )
    ppn: int | None = declare(
        "--ppn N",
        "Ranks per host (default: hostfile slots, else one per NUMA node).",
        panel=_RANKS,
        minimum=1,
        maximum=_MOST_RANKS,
    )
    oversubscribe: bool = declare(
        "--oversubscribe",
        "Allow more ranks than a host has cores or memory for.",
        False,
        panel=_RANKS,
    )
    bind: Bind = declare("--bind", "Binding of ranks to cores (default: {default}).", "auto", panel=_RANKS)
    omp: int | None = declare(
        "--omp N",
        "OMP_NUM_THREADS of a rank (default: its cores minus oneCCL workers).",
        panel=_RANKS,
        minimum=1,
        maximum=_MOST_RANKS,
    )
    ccl_workers: int | None = declare(
        "--ccl-workers N",
        f"oneCCL worker threads per rank; 0 for none (default: {CCL_WORKERS}).",
        panel=_RANKS,
        minimum=0,
        maximum=_MOST_RANKS,
    )
    nice: int = declare(
        "--nice N",
        "Niceness of the ranks, 0 to 19, for machines that others use (default: {default}).",
        0,
        panel=_RANKS,
        minimum=0,
        maximum=19,
        in_sh="nice -n {}",
        lost_in=("accelerate", "mpijob"),
        consequence="the ranks have the usual priority",
    )
    backend: Literal["auto", "ccl", "gloo", "mpi", "none"] = declare(
        "--backend",
        "Backend of torch.distributed; none for independent copies (default: {default}).",
        "auto",
        panel=_COMMUNICATION,
    )
    allreduce: Literal["auto", "shared", "backend"] = declare(
        "--allreduce",
        "Add up gradients in shared memory on each host, or with the backend (default: {default}).",
        "auto",
        panel=_COMMUNICATION,
    )
    wire: Literal["fp32", "bf16", "int8"] = declare(
        "--wire",
        "Send gradients between hosts as they are, or rounded to half or a quarter of the bytes (default: {default}).",
        "fp32",
        panel=_COMMUNICATION,
        lost_in=_EVERY_EXPORT,
        consequence="gradients go between hosts as they are",
    )
    fp32_math: Literal["fp32", "bf16"] = declare(
        "--fp32-math",
        "Multiply fp32 matrices as they are, or with inputs rounded to bf16, for AMX (default: {default}).",
        "fp32",
        panel=_RANKS,
        lost_in=_EVERY_EXPORT,
        consequence="fp32 matrices are multiplied as they are",
    )
    mpi: str = declare(
        "--mpi NAME|PATH",
        "MPI: auto, intel, openmpi, mpich, or the path of an mpirun (default: {default}).",
        "auto",
        panel=_COMMUNICATION,
    )
    master_port: int | None = declare(
        "--master-port P",
        "MASTER_PORT of the ranks (default: a free port).",
        panel=_COMMUNICATION,
        minimum=1,
        maximum=(1 << 16) - 1,
    )
    time_limit: float | None = declare(
        "--time-limit S",
        "Stop the run after S seconds (default: no limit).",
        panel=_ENDING,
        minimum=1,
        lost_in=("accelerate", "shell"),
        consequence="nothing ends it",
    )


# Without eq and repr, which the spec has: it is made at each start.
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StartOptions:
    launcher: Literal["auto", "mpirun", "direct"] = declare(
        "--launcher",
        "Start the ranks with mpirun on node0, or direct: without MPI and logins between nodes (default: {default}).",
        "auto",
        panel=_COMMUNICATION,
    )


# Without eq and repr, which the spec has: it is made at each start.
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunOptions(SyncOptions):
    env: str = declare(
        "--env NAME", "Environment of the ranks (default: {default}).", DEFAULT_ENV, panel=_ENVIRONMENT, kind="env"
    )
    python: str | None = declare(
        "--python PATH", "Python on every host, instead of an environment.", panel=_ENVIRONMENT, kind="path"
    )
    setup: str | None = declare(
        "--setup FILE",
        "File on every host to source in bash; ranks keep its variables, ulimit and umask.",
        panel=_ENVIRONMENT,
        kind="path",
        lost_in=("accelerate", "mpijob"),
        consequence="source it before",
    )
    offline_hub: bool = declare(
        "--offline-hub",
        "Keep the ranks off the Hugging Face Hub (default: if a host cannot reach it).",
        False,
        panel=_ENVIRONMENT,
    )
    cwd: Path | None = declare("--cwd DIR", "Project directory (default: found from SCRIPT upward).", panel=PROJECT)
    sync: bool = declare(
        "--sync/--no-sync", "Sync the project to the hosts before the launch (default: --sync).", True, panel=PROJECT
    )
    max_restarts: int = declare(
        "--max-restarts N",
        "Restart the run up to N times after a rank failed (default: {default}).",
        0,
        panel=_ENDING,
        minimum=0,
        lost_in=("accelerate", "shell", "slurm"),
        consequence="nothing begins it again",
    )
    keep_going: bool = declare(
        "--keep-going",
        "Let the other copies of --backend none run on if one fails; --max-restarts then counts for each copy.",
        False,
        panel=_ENDING,
        lost_in=_EVERY_EXPORT,
        consequence="a copy that fails may end the others",
    )
    checkpoint: str | None = declare(
        "--checkpoint PATH",
        "File or directory; before each start, every host gets its newest copy (default: none).",
        panel=_ENDING,
        lost_in=_EVERY_EXPORT,
        consequence="only files on a shared disk are on all hosts",
    )
    min_hosts: int | None = declare(
        "--min-hosts N",
        "After a loss, restart on the hosts that answer, at least N (default: on all).",
        panel=_ENDING,
        minimum=1,
        maximum=_MOST_RANKS,
        lost_in=_EVERY_EXPORT,
        consequence="it needs all its hosts",
    )
    spares: int = declare(
        "--spares N",
        "Keep the last N hosts waiting to replace lost ones (default: {default}).",
        0,
        panel=_ENDING,
        minimum=0,
        maximum=_MOST_RANKS,
        lost_in=_EVERY_EXPORT,
        consequence="no host waits",
    )
    hang_after: float = declare(
        "--hang-after S",
        "Report a hang after S seconds without output, 0 for never (default: {default}).",
        600.0,
        panel=_ENDING,
        minimum=0,
        lost_in=_EVERY_EXPORT,
        consequence="nothing reports a hang",
    )
    exclusive: bool = declare(
        "--exclusive",
        "Start only if no other run of ipexctl, of any account, is on the hosts.",
        False,
        panel=_RANKS,
        lost_in=_EVERY_EXPORT,
        consequence="nothing looks for other runs",
    )
    wait: float | None = declare(
        "--wait S",
        "Wait up to S seconds until no other run is on the hosts (default: start anyway).",
        panel=_RANKS,
        minimum=0,
        lost_in=_EVERY_EXPORT,
        consequence="nothing looks for other runs",
    )
    on_hang: Literal["report", "dump", "stop"] = declare(
        "--on-hang",
        "What to do when a run hangs: report it, dump all stacks, or dump them and stop (default: {default}).",
        "report",
        panel=_ENDING,
        lost_in=_EVERY_EXPORT,
        consequence="nothing reports a hang",
    )
    meter: bool = declare(
        "--meter/--no-meter",
        "Count optimizer steps and samples in the ranks (default: --meter).",
        True,
        panel=_WATCHING,
    )
    profile: bool = declare(
        "--profile",
        "Profile two optimizer steps of each rank: where their time goes, and what the cores could do.",
        False,
        panel=_WATCHING,
        lost_in=_EVERY_EXPORT,
        consequence="no step is profiled",
    )
    tag: str | None = declare(
        "--tag TEXT",
        "Text that ipexctl ps shows for the run.",
        panel=_WATCHING,
        lost_in=_EVERY_EXPORT,
        consequence="ipexctl ps does not show it",
    )
    metric: str | None = declare(
        "--metric RE",
        "Regular expression for the output; its first group is samples per second. For scripts without a DataLoader.",
        panel=_WATCHING,
        lost_in=_EVERY_EXPORT,
        consequence="nothing reads it from the output",
    )


if TYPE_CHECKING:

    class RunKeywords(TypedDict, total=False):
        """The options above as keywords of `Cluster.run`, for type checkers: `IPEXCTL_GOLDEN=write` writes them."""

        n: int | None
        ppn: int | None
        oversubscribe: bool
        bind: Bind
        omp: int | None
        ccl_workers: int | None
        nice: int
        backend: Literal["auto", "ccl", "gloo", "mpi", "none"]
        allreduce: Literal["auto", "shared", "backend"]
        wire: Literal["fp32", "bf16", "int8"]
        fp32_math: Literal["fp32", "bf16"]
        mpi: str
        master_port: int | None
        time_limit: float | None
        launcher: Literal["auto", "mpirun", "direct"]
        env: str
        python: str | None
        setup: str | None
        offline_hub: bool
        cwd: str | Path | None
        sync: bool
        max_restarts: int
        keep_going: bool
        checkpoint: str | None
        min_hosts: int | None
        spares: int
        hang_after: float
        exclusive: bool
        wait: float | None
        on_hang: Literal["report", "dump", "stop"]
        meter: bool
        profile: bool
        tag: str | None
        metric: str | None
        exclude: Sequence[str]
        include: Sequence[str]
        data: Sequence[str]
        allow_big: bool


@dataclass(frozen=True, slots=True)
class Export:
    """A variable the user sets for the ranks. A secret's value is never shown."""

    name: str
    value: str = field(repr=False)
    secret: bool = False
    source: str = "-x"
    """The option that sets it: `-x`, `--env-file secrets.env`."""


@dataclass(frozen=True, slots=True)
class AccelerateConfig:
    """The keys of an accelerate config that matter for CPU ranks."""

    path: str
    hostfile: str | None = None
    hostfile_found: bool = False
    """True if only accelerate's default configuration names the hostfile."""
    processes: int | None = None
    machines: int = 1
    is_distributed: bool = True
    """False with `distributed_type: 'NO'`: accelerate then starts its one process without a process group."""
    main_ip: str | None = None
    main_port: int | None = None
    ccl_workers: int | None = None
    mixed_precision: str = "no"
    ipex: bool | None = None
    """None: not in the file, so accelerate uses IPEX if it is installed."""
    ipex_enabled: bool | None = None
    debug: bool = False
    dynamo: Mapping[str, str] = field(default_factory=dict, hash=False)
    """`backend`, `mode`, `use_fullgraph` …"""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProjectLocation:
    root: Path
    subdirectory: str
    """The ranks' working directory, relative to the root."""
    command: tuple[str, ...]
    """A script is relative to the working directory."""
    script: ScriptFile | None = None
    """None if nothing is known of the command."""
    layout: ProjectLayout = field(default=NO_LAYOUT, hash=False)
    requirements: RequirementFiles = RequirementFiles()
    entry: str = ""
    """The `module:function` of a console script of the project."""
    hint: str = ""
    """How to make the current directory the project, if it holds the script, and the project has no mark."""

    @property
    def mpi_import(self) -> MpiImport | None:
        return self.script.mpi_import if self.script is not None else None

    @property
    def needs_mpirun(self) -> bool:
        """True if the script fails, or computes something else, without an mpirun."""
        return self.mpi_import is not None and self.mpi_import.is_certain


_NO_PROJECT: Final = ProjectLocation(Path(), ".", ())


class TypedCall(NamedTuple):
    """The words of a call of `ipexctl run`, for `ipexctl run --resume`."""

    options: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """The words after the options: the script and its arguments."""
    directory: str = ""
    """Empty if no `ipexctl run` began the run."""


NOT_TYPED: Final = TypedCall()


@dataclass(frozen=True, slots=True)
class RunSpec(RankOptions, StartOptions, RunOptions):
    kind: CommandKind
    argv: tuple[str, ...]
    home: str = DEFAULT_HOME
    iface: str | None = None
    exports: tuple[Export, ...] = ()
    secret_files: tuple[Path, ...] = ()
    """Files that are not synced: those of --env-file (their variables are in `exports`) and the hosts' private keys."""
    timeout: float | None = None
    checkpoint_is_found: bool = False
    """Set by a project's file."""
    stack: str | None = None
    torch: str | None = None
    """With `stack`: the environment to install where it is missing."""
    install: bool = False
    """Install the environment on hosts that lack it, with these packages and requirements."""
    packages: tuple[str, ...] = ()
    requirements: tuple[Path, ...] = ()
    takes_own_requirements: bool = False
    """An install without packages and requirements takes the project's own requirement files, if it has some."""
    extra: tuple[str, ...] = ()
    """Extras of the project's own packages to install; with `group`, its dependency groups."""
    group: tuple[str, ...] = ()
    accelerate: AccelerateConfig | None = None
    """Its ranks and ports are already in the options."""
    first_world_size: int = 0
    """Ranks of the first run, if this one resumes another; else 0."""
    master_addr: str | None = None
    """From a pasted line; only compared with node0's address."""
    local_rank: str = ""
    """The option by which a pasted launcher gives each rank its local rank."""
    allocator: Allocator = "auto"
    """From a pasted line of ipexrun, as is `openmp`. `default`: malloc."""
    openmp: OpenMp = "auto"
    """`default`: the OpenMP that torch brings."""
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    """`ranks`, `omp`, `master_port`, `master_addr`, `backend` → what set it, if not the option of `ipexctl run`."""
    notify: str = field(default="", repr=False)
    is_followed: bool = True
    repeats_notes: bool = False
    """Show the notes on files left out of the project again."""
    hosts: tuple[Host, ...] = ()
    hosts_from: str = ""
    """Source of the hosts, for the message that names the project."""
    project: ProjectLocation = _NO_PROJECT
    options: CallOptions = NO_OPTIONS
    typed: TypedCall = NOT_TYPED
    resumed: tuple[str, ...] = ()
    """The chain of resumed runs, that of --resume last. They no longer use a tree."""

    @property
    def script(self) -> str:
        """The script, module or command; the run's id begins with its name."""
        return self.argv[0]

    @property
    def has_pool(self) -> bool:
        return self.min_hosts is not None or self.spares > 0

    @property
    def executed_path(self) -> str:
        """The path that hosts must have if the project is not synced: the script, else the working directory."""
        if self.sync:
            return ""
        cwd = self.project.root / self.project.subdirectory
        is_file = self.kind == "script" and not self.project.entry
        return os.path.normpath(cwd / self.project.command[0] if is_file else cwd)

    @property
    def work_path(self) -> str:
        """The ranks' directory: below their tree, or this machine's if the project is not synced."""
        subdirectory = self.project.subdirectory
        return subdirectory if self.sync else os.path.normpath(self.project.root / subdirectory)

    @property
    def is_exclusive(self) -> bool:
        return self.exclusive or self.wait is not None


def asked_of(spec: RunSpec) -> Asked:
    """What the plan keeps of the spec. Without the values of secrets; a field that Asked lacks stays here."""
    values = {name: _plain(getattr(spec, name)) for name in Asked._fields if name != "exports"}
    exports = (AskedExport(each.name, each.source, None if each.secret else each.value) for each in spec.exports)
    return Asked(**values, exports=tuple(exports))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return str(value) if isinstance(value, Path) else value

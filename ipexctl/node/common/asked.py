"""What was asked of a run: every option of the call that hosts may know, typed or default. Pure. It is the plan's own
field; the rest of the spec (`ipexctl/launch/spec.py`) stays on the control machine. `ipexctl/launch/run_options.py` has
the words, help and limits of the options.
"""

from __future__ import annotations

from typing import Literal, Mapping, NamedTuple

CommandKind = Literal["script", "module", "command"]
Bind = Literal["auto", "socket", "numa", "cores", "none"]
Allocator = Literal["auto", "default", "tcmalloc", "jemalloc"]
OpenMp = Literal["auto", "default", "intel"]
AskedLauncher = Literal["auto", "mpirun", "direct"]
AskedBackend = Literal["auto", "ccl", "gloo", "mpi", "none"]
AskedAllReduce = Literal["auto", "shared", "backend"]
Wire = Literal["fp32", "bf16", "int8"]
Fp32Math = Literal["fp32", "bf16"]
ShareWeights = Literal["auto", "off"]
Autocast = Literal["auto", "off", "bf16"]
OnHang = Literal["report", "dump", "stop"]
OnNan = Literal["report", "stop"]


class Export(NamedTuple):
    """A variable the user sets for the ranks."""

    name: str
    source: str
    """The option that sets it: `-x`, `--env-file secrets.env`."""
    value: str | None
    """None: a secret, whose value only the control machine and job.json have."""


class Asked(NamedTuple):
    kind: CommandKind = "script"
    argv: tuple[str, ...] = ()
    n: int | None = None
    ppn: int | None = None
    oversubscribe: bool = False
    bind: Bind = "auto"
    omp: int | None = None
    ccl_workers: int | None = None
    backend: AskedBackend = "auto"
    allreduce: AskedAllReduce = "auto"
    wire: Wire = "fp32"
    fp32_math: Fp32Math = "fp32"
    share_weights: ShareWeights = "auto"
    mpi: str = "auto"
    master_port: int | None = None
    time_limit: float | None = None
    launcher: AskedLauncher = "auto"
    env: str = "default"
    python: str | None = None
    setup: str | None = None
    cwd: str | None = None
    sync: bool = True
    max_restarts: int = 0
    checkpoint: str | None = None
    min_hosts: int | None = None
    hang_after: float = 600.0
    """Seconds without output from any rank until the silence is reported; 0 for never."""
    exclusive: bool = False
    wait: float | None = None
    on_nan: OnNan = "report"
    on_hang: OnHang = "report"
    """`report`; `dump` also dumps all stacks; `stop` also stops the run after that."""
    meter: bool = True
    tag: str | None = None
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    allow_big: bool = False
    home: str = "~/.ipexctl"
    iface: str | None = None
    exports: tuple[Export, ...] = ()
    checkpoint_is_found: bool = False
    """True if the path is from a project file; no link may then lead it out of the project."""
    stack: str | None = None
    torch: str | None = None
    """With `stack`: the environment to install where it is missing."""
    install: bool = False
    """Install the environment on hosts that lack it, with these packages and requirements."""
    packages: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    takes_own_requirements: bool = False
    """An install without packages and requirements takes the project's own requirement files, if it has some."""
    first_world_size: int = 0
    """Ranks of the first run, if this one resumes another; else 0."""
    master_addr: str | None = None
    """From a pasted line; only compared with node0's address."""
    local_rank: str = ""
    """How a pasted launcher tells each rank its local rank: the option's name."""
    allocator: Allocator = "auto"
    """From a pasted line of ipexrun, as is `openmp`. `default`: malloc."""
    openmp: OpenMp = "auto"
    """`default`: the OpenMP that torch brings."""
    sources: Mapping[str, str] = {}
    """`ranks`, `omp`, `master_port`, `master_addr`, `backend` → what set it, if not the option of `ipexctl run`."""
    is_followed: bool = True
    is_attended: bool = True
    """False if nobody can press Ctrl-C."""
    resumed: tuple[str, ...] = ()
    """The runs that this one continues, that of --resume last. None of them uses a tree any more."""
    extra: tuple[str, ...] = ()
    """Extras of the project's own packages to install; with `group`, its dependency groups."""
    group: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()
    """Packages without a wheel that an install builds from source."""
    profile: bool = False
    slurm_env: bool = False
    """Ranks also get Slurm's variables, for scripts that read no others."""
    keep_going: bool = False
    """True if copies end, and start again, on their own."""
    fast: bool = False
    autocast: Autocast = "auto"
    """`auto`: only with `fast`, and only if all processors multiply in bf16."""
    fused_optimizer: bool = False
    python_flags: tuple[str, ...] = ()
    """Flags of Python before a script or module, as `-O`."""
    in_front: tuple[str, ...] = ()
    """The program that starts the rank's own, as `nice -n 10`."""
    is_behind_dashes: bool = False
    """Behind `--`: placeholders are replaced, and a whole shell file runs in each rank."""

    @property
    def has_pool(self) -> bool:
        return self.min_hosts is not None

    @property
    def script(self) -> str:
        """The script, module or command; the run's id begins with its name."""
        return self.argv[0] if self.argv else ""

    @property
    def program(self) -> tuple[str, ...]:
        """The words after the options of `ipexctl run`: `-m` before a module, `--` before what would be read as a
        script."""
        module = ("-m",) if self.kind == "module" else ()
        front = (*self.in_front, *(("python", *self.python_flags) if self.kind != "command" else ()))
        if self.is_behind_dashes or len(front) > 1 or (self.kind == "command" and "/" in self.script):
            return ("--", *front, *module, *self.argv)
        return (*module, *self.argv)

    @property
    def is_exclusive(self) -> bool:
        return self.exclusive or self.wait is not None

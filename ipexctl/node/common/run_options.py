"""The options of a run: all that was asked of it and that its hosts may know, typed or default. Pure.

They are a field of the plan, `asked`. The rest of the spec (`ipexctl/launch/spec.py`) stays on the control machine.
`ipexctl/launch/run_declarations.py` has the words, help and limits of the options.
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
GpuCode = Literal["auto", "assume", "off"]
Autocast = Literal["auto", "off", "bf16"]
HalfMath = Literal["auto", "own"]
OnHang = Literal["report", "dump", "stop"]
OnNan = Literal["report", "stop"]


class Export(NamedTuple):
    """A variable the user sets for the ranks."""

    name: str
    source: str
    """The option that sets it: `-x`, `--env-file secrets.env`."""
    value: str | None
    """None: a secret, whose value only the control machine and job.json have."""


class RunOptions(NamedTuple):
    """The call's options set all fields, unless a field says otherwise; a pasted launcher line sets the same ones."""

    kind: CommandKind = "script"
    """What the user started; the launchers' lines decide it, too."""
    argv: tuple[str, ...] = ()
    """The script, module or command, and its own arguments."""
    n: int | None = None
    """Ranks in total. None: `ppn` on every host."""
    ppn: int | None = None
    """Ranks per host. None: the slots of the hostfile, else one per NUMA node."""
    oversubscribe: bool = False
    """Neither cores nor memory limit the ranks of a host."""
    bind: Bind = "auto"
    omp: int | None = None
    """Threads of a rank. None: as many as it has cores, without those of oneCCL's workers."""
    ccl_workers: int | None = None
    """oneCCL's worker threads per rank. None: one."""
    backend: AskedBackend = "auto"
    allreduce: AskedAllReduce = "auto"
    """`auto` uses shared memory where each rank has a core."""
    wire: Wire = "fp32"
    """Numbers in which gradients cross the network."""
    fp32_math: Fp32Math = "fp32"
    """`bf16` rounds the inputs of fp32 products."""
    half_math: HalfMath = "auto"
    """`auto`: ranks multiply bf16 and fp16 in fp32 where they measure that it is faster. `own`: torch multiplies."""
    share_weights: ShareWeights = "auto"
    """`auto`: frozen parameters are one copy a host."""
    gpu_code: GpuCode = "auto"
    """`auto`: what the script places on GPUs is on the CPU; `assume`: its files are also told that there are GPUs."""
    mpi: str = "auto"
    """`auto`, a flavor of `node/common/mpi.py`, or the path of an mpirun on every host."""
    master_port: int | None = None
    """None: node0 chooses a free port when the run starts."""
    time_limit: float | None = None
    """Seconds from the start of the run until it is stopped. None: never."""
    launcher: AskedLauncher = "auto"
    """`auto`: mpirun, unless no MPI is there or needed."""
    env: str = "default"
    """Name of the environment; without effect if `python` is set."""
    python: str | None = None
    """The user's own Python, a path on every host. None: that of `env`."""
    setup: str | None = None
    """File on every host that is sourced before each rank. None: none."""
    cwd: str | None = None
    """Project directory on the control machine. None: found from the script upward."""
    sync: bool = True
    """False: the hosts have the project at the same path already."""
    max_restarts: int = 0
    """Starts after the first; with `keep_going`, of each copy."""
    checkpoint: str | None = None
    """Path on the hosts, exchanged before each start. None: nothing is exchanged."""
    min_hosts: int | None = None
    """Fewest hosts of a restart. None: a restart needs all of them."""
    hang_after: float = 600.0
    """Seconds without output from any rank until the silence is reported; 0 for never."""
    exclusive: bool = False
    """The start is refused while another run is on the hosts."""
    wait: float | None = None
    """Seconds to wait until no other run is on the hosts; implies `exclusive`. None: do not wait."""
    on_nan: OnNan = "report"
    """`stop` ends the run at the first loss that is nan."""
    on_hang: OnHang = "report"
    """`report`; `dump` also dumps all stacks; `stop` also stops the run after that."""
    meter: bool = True
    """Count the optimizer steps and samples of ranks."""
    tag: str | None = None
    """The user's own word for the run, which lists show."""
    exclude: tuple[str, ...] = ()
    """Patterns as in .gitignore that keep files from being sent."""
    include: tuple[str, ...] = ()
    """Patterns of files that are sent although credentials and the like are not."""
    data: tuple[str, ...] = ()
    """Absolute paths that every host already has; checked, not sent."""
    allow_big: bool = False
    """A project may have more than 1 GB or 20,000 files."""
    home: str = "~/.ipexctl"
    """ipexctl home of all hosts; `~` is the account's home directory there."""
    iface: str | None = None
    """Name or CIDR of the network between the hosts. None: detected."""
    exports: tuple[Export, ...] = ()
    """The last of a name counts."""
    checkpoint_is_found: bool = False
    """True if the path is from a project file; no link may then lead it out of the project."""
    stack: str | None = None
    """Stack that an install would take. None: chosen by `torch`, or the newest."""
    torch: str | None = None
    """With `stack`: the environment to install where it is missing."""
    install: bool = False
    """Install the environment on hosts that lack it, with these packages and requirements."""
    packages: tuple[str, ...] = ()
    """Requirements of --with."""
    requirements: tuple[str, ...] = ()
    """Files of -r, as typed."""
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
    """False with --detach: nobody reads the output while it runs."""
    is_attended: bool = True
    """False if nobody can press Ctrl-C."""
    resumed: tuple[str, ...] = ()
    """The runs that this one continues, that of --resume last. None of them uses a tree any more."""
    extra: tuple[str, ...] = ()
    """Extras of the project's own packages to install."""
    group: tuple[str, ...] = ()
    """Dependency groups of the project to install."""
    builds: tuple[str, ...] = ()
    """Packages without a wheel that an install builds from source."""
    profile: bool = False
    """Trace two optimizer steps of each rank."""
    slurm_env: bool = False
    """Ranks also get Slurm's variables, for scripts that read no others."""
    keep_going: bool = False
    """True if copies end, and start again, on their own."""
    fast: bool = False
    """Asks for autocast and fused optimizers where the call says nothing of them."""
    autocast: Autocast = "auto"
    """`auto`: only with `fast`, and only if all processors multiply in bf16."""
    fused_optimizer: bool = False
    """Step optimizers with one kernel, unless the script says otherwise."""
    python_flags: tuple[str, ...] = ()
    """Flags of Python before a script or module, as `-O`."""
    in_front: tuple[str, ...] = ()
    """The program that starts the rank's own, as `nice -n 10`."""
    is_behind_dashes: bool = False
    """Behind `--`: placeholders are replaced, and a whole shell file runs in each rank."""

    @property
    def has_pool(self) -> bool:
        """True if a restart may leave out hosts that do not answer."""
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
        """True if the run does not start beside another run on its hosts."""
        return self.exclusive or self.wait is not None

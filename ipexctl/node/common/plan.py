"""The plan of one run: ranks, cores, variables with reasons, the launcher's line, and its JSON. Pure.

`run --dry-run` prints it, and the supervisor and each rank read it from plan.json, so what is shown is what starts. A
plan contains no secrets. Other programs read the JSON: a field may be added, but never renamed.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Collection, Literal, Mapping, NamedTuple, Sequence

from ipexctl.node.common.json_records import check_type, decode, decode_valid, encode
from ipexctl.node.common.mpi import MPIS
from ipexctl.node.common.placeholders import NAMES, fill
from ipexctl.node.common.rank_options import (
    ALL_OFF,
    ALLREDUCE,
    AUTOCAST,
    FP32_MATH,
    FUSED_OPTIMIZER,
    RANK_OPTIONS,
    WIRE,
    Choice,
    RankOption,
)
from ipexctl.node.common.run_options import RunOptions  # `decode` looks it up

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

Backend = Literal["ccl", "gloo", "mpi", "none", ""]
"""`none`: independent copies of the command, without rank variables or a rendezvous."""

LauncherMode = Literal["mpirun", "direct"]

SCHEMA = "ipexctl.plan/1"
PLAN_FILE = "plan.json"
RANK_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""Variables that only the rank wrapper may set."""
ELASTIC_NAMES = (
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"),
)
"""Set by torchrun in addition."""
WRAPPER_NAMES = (*RANK_NAMES, *ELASTIC_NAMES)
RANK_WORDS = 5
"""Words at the end of `argv` that start the rank wrapper; the last is the path of its job."""
LONGEST_COMMAND = 10_000
"""Characters of a command line in lists and pages."""
COMPILER = "compiler/c++"
"""Path in an environment that has ziglang and intel-openmp (`node/env/build.py`)."""


class Setting(NamedTuple):
    name: str
    value: str | None
    """None removes the variable."""
    reason: str
    host: str | None = None
    """None: the same on every host."""
    rank: int | None = None
    prepend: bool = False
    append: bool = False
    """True if the value goes behind one that another setting, a setup file or a login gives."""
    secret: bool = False
    """True if the value is empty here because `HomeJob.secrets` has it."""


class RankPlan(NamedTuple):
    rank: int
    local_rank: int
    host: str
    cores: tuple[int, ...]
    """Logical CPUs that the rank is bound to, one per core; empty if unbound."""
    omp: int
    ccl_cores: tuple[int, ...] = ()
    """CPUs of the rank's oneCCL workers, not among `cores`; empty if oneCCL chooses."""
    memory: tuple[int, ...] = ()
    """Preferred NUMA nodes for memory; empty for any."""
    batch: bool = False
    """True for SCHED_BATCH: a waking thread does not interrupt the running one."""


class HostPlan(NamedTuple):
    name: str
    address: str
    word: str
    """Name in mpirun's hostfile: a name that node0's ssh knows, or the address."""
    ranks: tuple[RankPlan, ...]
    iface: str | None
    tier: str | None = None
    cores: int = 0
    """Cores that the host's ranks share; 0 if unknown."""
    hardware: str = ""
    """Tells the machine from others of this name, also after a reboot; empty if unknown."""


class FastChoices(NamedTuple):
    """What `--fast` and its parts do, as other programs read it."""

    autocast: str
    """`bf16`, or `off`."""
    fused_optimizer: bool
    reasons: Mapping[str, str]
    """Option → why it is on or off."""
    hosts: tuple[str, ...]
    """Hosts without bf16 instructions, if autocast was asked for."""


class TrainingMemory(NamedTuple):
    """Bytes that fine-tuning will take, estimated before the start."""

    model: str
    parameters: int
    trained: int
    once: Mapping[str, int]
    """What the ranks of a host share: `base`, the model's weights."""
    each: Mapping[str, int]
    hosts: Mapping[str, int] = {}
    fits: Mapping[str, int] = {}
    """Host → ranks that its free memory holds, with batches of the longest sequences."""

    def of(self, ranks: int, without: str = "") -> int:
        """Return the bytes that so many ranks take on one host. `without`: a part in `each` that does not count."""
        return sum(self.once.values()) + ranks * sum(size for name, size in self.each.items() if name != without)


class LauncherChoice(NamedTuple):
    mode: LauncherMode
    reason: str
    path: str
    """Program that node0 starts; the ranks' Python if ipexctl starts the ranks."""


class LaunchFile(NamedTuple):
    name: str
    mode: int
    text: str
    is_everywhere: bool = False


class RunBy(NamedTuple):
    """Who began a run: account and name of the control machine. No more than that is ever kept."""

    user: str
    host: str
    records: str = ""
    """Hash that names the caller's records; it differs for another $HOME of the same account. It alone says whose a run
    is."""


class OtherRun(NamedTuple):
    id: str
    account: str
    state: str
    """`running`, `starting`, or `waiting` for hosts (`--wait`)."""
    hosts: tuple[str, ...]
    cores: Mapping[str, str]
    """Host → cores of that run's ranks, such as `0-3`."""
    shared_cores: Mapping[str, str]
    """Host → cores of that run's ranks that are also planned for this run."""
    since: float | None = None
    until: float | None = None
    """When the other run's time limit or `--wait` ends, in seconds since 1970; None if unknown or unlimited."""
    by: RunBy | None = None
    """None if unknown, as for a run of another account. So are `script` and `tag`."""
    script: str = ""
    tag: str = ""


class PlannedProject(NamedTuple):
    """What the plan knows of the project."""

    root: str = ""
    """On the control machine."""
    own: tuple[str, ...] = ()
    """Names of its own packages."""
    paths: tuple[str, ...] = ()
    """Directories that ranks import from, relative to the root."""
    requirements: tuple[str, ...] = ()
    """Files that `run --install` takes, relative to the root."""
    left_out: tuple[str, ...] = ()
    """Their lines that hosts cannot install, and those that do not count, if a dry run with `--install` read them."""


class ApartHosts(NamedTuple):
    """Hosts with different checkpoints before the start."""

    what: str
    place: str
    """What `--checkpoint` should name."""


class Commit(NamedTuple):
    hash: str
    branch: str = ""


class Plan(NamedTuple):
    """What was decided. `asked` has what was asked: of a field that both have, this one is what runs."""

    id: str
    home: str
    """Absolute path, the same on every host."""
    node0: str
    """The supervisor's host, possibly without ranks."""
    asked: RunOptions
    flavor: str = ""
    """A `LaunchFlavor`: what starts the ranks."""
    launcher: LauncherChoice = LauncherChoice("mpirun", "", "")
    """Which one starts the ranks, and why; an empty path until it is chosen."""
    argv: tuple[str, ...] = ()
    """The launcher's command line; without a launcher, the rank wrapper's."""
    launcher_env: tuple[Setting, ...] = ()
    """Variables of the launcher itself. The ranks' variables are in `settings`."""
    hosts: tuple[HostPlan, ...] = ()
    """Hosts with ranks, in hostfile order."""
    settings: tuple[Setting, ...] = ()
    """Variables of the ranks, each with its reason."""
    master_addr: str = ""
    """Address where the ranks meet: node0, unless the user sets MASTER_ADDR."""
    master_port: int | None = None
    """None if node0 chooses a free port when the run starts."""
    backend: Backend = ""
    """Of torch.distributed; empty until it is chosen."""
    backend_reason: str = ""
    """Empty if the call names the backend."""
    python: str = ""
    """Path of the ranks' Python, the same on every host."""
    env: str | None = None
    """None for the user's own Python."""
    stack: str | None = None
    """Stack of the environment; None for a user's environment, or with several `candidates`."""
    candidates: tuple[str, ...] = ()
    """Stacks from which install takes the first that the indexes have; the plan is for the last."""
    command: tuple[str, ...] = ()
    """Words that start a rank, without the launcher."""
    cwd: str = ""
    """The home until it is known where the project is on the hosts."""
    files: tuple[LaunchFile, ...] = ()
    """Files to write before the start, such as the hostfile."""
    has_starters: bool = False
    """True if each host but node0 has a host starter. It starts the ranks, or what mpirun starts there."""
    stores: Mapping[str, str] = {}
    """Host → first host with the same home."""
    spares: tuple[HostPlan, ...] = ()
    """Hosts of the first attempt that this one lacks; they may be in a later one."""
    setup: str | None = None
    """File that is sourced before the launcher and before each rank."""
    job: str = ""
    """Number of the Slurm job that the hosts belong to; empty outside a job."""
    python_version: str = ""
    """The ranks' Python, such as `3.11`; empty if unknown."""
    local_rank: str = ""
    """Option that passes the local rank to the script, before the script's own arguments; or empty."""
    first_world_size: int = 0
    """World size of the first attempt of the run that this one resumes, directly or through other runs."""
    ends_at_logout: tuple[str, ...] = ()
    """Hosts where logind kills an account's processes when the account logs out."""
    notes: tuple[str, ...] = ()
    """What the user should know before the start, in the order in which it is shown."""
    choices: tuple[str, ...] = ()
    """Why ipexctl chose what the user did not; shown by -v."""
    rank_options: Mapping[str, Choice] = ALL_OFF
    """Name in `RANK_OPTIONS` → what was chosen; read by `choice`. In the JSON, each is a key of the plan."""
    memory: TrainingMemory | None = None
    """None if the line names no model that node0 has."""
    other_runs: tuple[OtherRun, ...] = ()
    install: str = ""
    """Command that makes the environment again; empty for the user's own Python."""
    packages: tuple[str, ...] = ()
    """Names in the environment, normalized."""
    install_by_run: str = ""
    """Command that also installs `project_packages`; empty if none would."""
    project_packages: tuple[str, ...] = ()
    """Names and pins of the project's requirements."""
    project: PlannedProject = PlannedProject()
    versions: Mapping[str, str] = {}
    """Packages of the environment."""
    commit: Commit | None = None
    """Commit of the project; None until the project is sent."""
    before_start: Mapping[str, float] = {}
    """Step of the start → its seconds, set once the project is sent."""
    apart: ApartHosts | None = None
    """None if the hosts have the same checkpoints."""
    resumes_from: str = ""
    """RUN:PATH of the checkpoint that was there before the start; empty if none was found, or for a new run."""
    by: RunBy | None = None
    """None until the start, and with IPEXCTL_ANONYMOUS=1."""

    @property
    def is_direct(self) -> bool:
        """True if ipexctl starts the ranks: the supervisor does on node0, a host starter on each other host."""
        return self.has_starters and self.flavor == "none"

    @property
    def has_own_python(self) -> bool:
        """True if the ranks' Python is the user's, into which ipexctl installs nothing."""
        return self.env is None and bool(self.python)

    @property
    def rundir(self) -> str:
        """The run's directory, the same path on every host."""
        return f"{self.home}/runs/{self.id}"

    @property
    def world_size(self) -> int:
        """Ranks of the attempt."""
        return sum(len(host.ranks) for host in self.hosts)

    @property
    def all_hosts(self) -> tuple[HostPlan, ...]:
        """Hosts with ranks, then those that may be in a later attempt."""
        return (*self.hosts, *self.spares)

    @property
    def names(self) -> tuple[str, ...]:
        """Node0, `hosts` and `spares`."""
        return tuple(dict.fromkeys((self.node0, *(host.name for host in self.all_hosts))))

    @property
    def leaders(self) -> tuple[str, ...]:
        """The first host of each home; node0 is one of them."""
        firsts: dict[str, str] = {}
        for name in self.names:
            firsts.setdefault(self.stores[name], name)
        return tuple(firsts.values())

    @property
    def script(self) -> str:
        """The complete command line; a longer one than any person types ends with `…`."""
        line = " ".join(self.asked.argv)
        return line if len(line) <= LONGEST_COMMAND else f"{line[: LONGEST_COMMAND - 1]}…"

    @property
    def first_run(self) -> str:
        """The id that stands for `{run}`: of the first run of those that resume one another."""
        return (*self.asked.resumed, self.id)[0]

    @property
    def environment(self) -> str:
        """Name of the environment, or the path of the user's own Python."""
        return self.env or self.python

    @property
    def exchanged(self) -> str:
        """Checkpoint path that all hosts exchange before an attempt, absolute or relative to `cwd`; or empty."""
        has_several = len({self.stores[host.name] for host in self.all_hosts}) > 1
        return self.asked.checkpoint or "" if has_several else ""

    @property
    def has_pool(self) -> bool:
        """True if a later attempt may leave out hosts, as `--min-hosts` allows."""
        return self.asked.has_pool and len(self.all_hosts) > 1

    @property
    def shell(self) -> tuple[str, ...]:
        """Command of a shell on another host, to be followed by host and command line; empty if hosts have starters."""
        if self.has_starters:
            return ()
        return (f"{self.rundir}/ssh.sh",) if any(file.name == "ssh.sh" for file in self.files) else ()

    @property
    def ranks(self) -> tuple[RankPlan, ...]:
        """All ranks of the attempt in their order."""
        return tuple(sorted(rank for host in self.hosts for rank in host.ranks))

    @property
    def rank_hosts(self) -> tuple[str, ...]:
        """The host of each rank, in the order of the ranks."""
        return tuple(rank.host for rank in self.ranks)

    def choice(self, option: RankOption) -> Choice:
        """Return what was chosen for an option of the ranks; if the plan has nothing, that it is off."""
        return self.rank_options.get(option.name, option.off)

    def uses(self, option: RankOption) -> bool:
        """Return True if an option of the ranks is not off."""
        return self.choice(option).mode != option.off.mode

    @property
    def adds_up(self) -> bool:
        """True if `inrank/` sums the gradients."""
        return self.uses(ALLREDUCE) or self.uses(WIRE)

    @property
    def may_send_less(self) -> bool:
        """True if hosts exchange gradients unchanged only by default."""
        return self.choice(WIRE)[:2] == WIRE.off[:2]

    @property
    def amx_hosts(self) -> dict[str, str]:
        """Hosts with AMX, which fp32 would leave idle, and their hardware; none with --fp32-math or --autocast."""
        is_used = self.uses(FP32_MATH) or self.uses(AUTOCAST)
        return {} if is_used else {host.name: host.hardware for host in self.all_hosts if host.tier == "amx"}

    @property
    def size(self) -> str:
        """As in `8 ranks on 2 hosts`."""
        ranks, hosts = self.world_size, len(self.hosts)
        return f"{ranks:,} rank{'s' * (ranks != 1)} on {hosts:,} host{'s' * (hosts != 1)}"

    @property
    def connection(self) -> str:
        """As in `over gloo`."""
        return f"over {self.backend}" if self.backend != "none" else "without a process group"

    @property
    def hostfile(self) -> str:
        """Text of the run's hostfile; if it has none, the text that mpirun would need."""
        texts = [file.text for file in self.files if file.name == "hostfile"]
        return texts[0] if texts else "".join(f"{host.word}:{len(host.ranks)}\n" for host in self.hosts)


NO_PLAN = Plan("", "", "", RunOptions())


def to_json(plan: Plan) -> Json:
    """Return the plan as in plan.json, with fields that only other programs read: `schema`, `world_size`, `hostfile`
    and `fast`."""
    head = {"schema": SCHEMA, "world_size": plan.world_size, "hostfile": plan.hostfile}
    choices = {name: encode(plan.choice(option)) for name, option in RANK_OPTIONS.items()}
    return {**head, **encode(plan, without=("rank_options",)), **choices, "fast": encode(_of_fast(plan))}


def _of_fast(plan: Plan) -> FastChoices:
    autocast, fused = plan.choice(AUTOCAST), plan.choice(FUSED_OPTIMIZER)
    reasons = {AUTOCAST.name: autocast.reason, FUSED_OPTIMIZER.name: fused.reason}
    return FastChoices(autocast.mode, plan.uses(FUSED_OPTIMIZER), reasons, autocast.hosts)


def _with_choices(document: Json) -> Json:
    return {**document, "rank_options": {name: document[name] for name in RANK_OPTIONS if name in document}}


def plan_text(plan: Plan) -> str:
    """Return the text of plan.json."""
    return json.dumps(to_json(plan), indent=1)


def read_plan(document: object, here: Collection[str] = ()) -> Plan:
    """Decode a plan; raises a ValueError.

    `here`: decode cores and settings of these hosts only, because decoding thousands of ranks takes 20 ms.
    """
    document = _with_choices(check_type(dict, document, "the plan"))
    settings, _ = (check_type(list, document.get(name), name) for name in ("settings", "hosts"))
    if not here:
        return decode(Plan, document, "the plan")
    own = [setting for setting in settings if check_type(dict, setting, "a setting").get("host") in (None, *here)]
    hosts = {name: _hosts(document.get(name), name, here) for name in ("hosts", "spares")}
    return decode(Plan, {**document, "settings": own}, "the plan", hosts)


def read_valid_plan(document: object) -> Plan:
    """Decode the plan of a run of any version. What is missing or damaged gets its default."""
    return decode_valid(Plan, _with_choices(document) if isinstance(document, dict) else {})


def _hosts(documents: object, name: str, here: Collection[str]) -> tuple[HostPlan, ...]:
    return tuple(_host(check_type(dict, host, "a host"), here) for host in check_type(list, documents, name))


def _host(document: Json, here: Collection[str]) -> HostPlan:
    if document.get("name") in here:
        return decode(HostPlan, document, "a host")
    ranks = check_type(list, document.get("ranks"), "ranks")
    numbers = [check_type(int, check_type(dict, rank, "a rank").get("rank"), "rank") for rank in ranks]
    host = decode(HostPlan, {**document, "ranks": []}, "a host")
    return host._replace(ranks=tuple(RankPlan(number, at, host.name, (), 0) for at, number in enumerate(numbers)))


def read_outline(document: object) -> Plan:
    """Decode only the hosts and the numbers of their ranks, for lists of many runs. Raises a ValueError."""
    document = check_type(dict, document, "the plan")
    return read_plan({**document, "settings": [], "launcher_env": [], "files": []}, here=("",))


def for_hosts(plan: Plan, names: Collection[str]) -> Plan:
    """Return the plan for some of the run's hosts. Each host keeps its number of ranks, their cores and variables.

    Backend, instruction set and all-reduce stay as chosen for all hosts, so that results are rounded the same way and a
    host can come back.
    """
    all_hosts = plan.all_hosts
    chosen = [host for host in all_hosts if host.name in names]
    others = [host for host in all_hosts if host.name not in names]
    numbers: dict[int, int] = {}
    hosts = [_renumbered(host, numbers) for host in (*chosen, *others)]
    first = tuple(hosts[: len(chosen)])
    size = sum(len(host.ranks) for host in first)
    return plan._replace(
        hosts=first,
        spares=tuple(hosts[len(chosen) :]),
        settings=_settings_with(plan, numbers, hosts, len(first), size),
        argv=_argv_with(plan.argv, len(first), size),
        files=tuple(
            file._replace(text=hostfile_text(plan.flavor, first)) if file.name == "hostfile" else file
            for file in plan.files
        ),
    )


def _renumbered(host: HostPlan, numbers: dict[int, int]) -> HostPlan:
    """Return the host with new numbers for its ranks, which are added to `numbers` (old rank → new rank)."""
    for rank in host.ranks:
        numbers[rank.rank] = len(numbers)
    return host._replace(ranks=tuple(rank._replace(rank=numbers[rank.rank]) for rank in host.ranks))


def _settings_with(
    plan: Plan, numbers: Mapping[int, int], hosts: Sequence[HostPlan], count: int, size: int
) -> tuple[Setting, ...]:
    """Return the settings, with new values where they number ranks or hosts."""
    before, after = (
        {host.name: at for at, host in enumerate(plan.all_hosts)},
        {h.name: at for at, h in enumerate(hosts)},
    )
    sizes = dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE", "IPEXCTL_WORLD_SIZE"), (plan.world_size, size))
    sizes["GROUP_WORLD_SIZE"] = (len(plan.hosts), count)
    changed = []
    for setting in plan.settings:
        pair, number = sizes.get(setting.name), setting.rank
        if number is not None:
            number, host = numbers[number], setting.host or ""
            if setting.name in ("RANK", "ROLE_RANK", "IPEXCTL_RANK"):
                pair = (setting.rank or 0, number)
            elif setting.name in ("GROUP_RANK", "NODE_RANK"):
                pair = (before[host], after[host])
        is_planned = pair is not None and setting.value == str(pair[0])  # else the user set it
        value = str(pair[1]) if pair is not None and is_planned else setting.value
        changed.append(setting._replace(rank=number, value=value))
    return tuple(changed)


def _argv_with(argv: Sequence[str], hosts: int, ranks: int) -> tuple[str, ...]:
    """Return the launcher's line with new counts: mpirun's `-n RANKS`, srun's `--nodes=` and `--ntasks=`."""
    line = [f"--nodes={hosts}" if word.startswith("--nodes=") else word for word in argv]
    line = [f"--ntasks={ranks}" if word.startswith("--ntasks=") else word for word in line]
    at = len(line) - RANK_WORDS - 1
    if at > 0 and line[at - 1] == "-n":
        line[at] = str(ranks)
    return tuple(line)


_HOSTFILES: Mapping[str, str] = {"none": "", "srun": "{ranks}", **{mpi.flavor: mpi.hostfile for mpi in MPIS}}
"""Launch flavor → lines of a host in the hostfile. srun's has a line for each rank."""


def hostfile_text(flavor: str, hosts: Sequence[HostPlan]) -> str:
    """Return the text of a hostfile for this launcher; empty if ipexctl starts the ranks itself."""
    form = _HOSTFILES.get(flavor, MPIS[0].hostfile)
    counts = [(host, len(host.ranks)) for host in hosts]
    return "".join(form.format(word=host.word, count=n, ranks=f"{host.name}\n" * n) for host, n in counts)


def host_of(plan: Plan, rank: int) -> HostPlan:
    """Return the host of a rank, which must be one of the attempt."""
    return next(host for host in plan.hosts if any(planned.rank == rank for planned in host.ranks))


class RankVariables(NamedTuple):
    values: Mapping[str, str | None]
    prepended: Collection[str]
    """Names whose value goes before an existing one."""
    appended: Mapping[str, str]
    """Values that go behind existing ones."""


def variables_of(plan: Plan, rank: int, secrets: Mapping[str, str]) -> RankVariables:
    """Return a rank's variables. A rank's setting wins over its host's.

    A missing secret raises a KeyError, so that it never reaches a rank empty.
    """
    host = host_of(plan, rank).name
    own = {export.name for export in plan.asked.exports if export.value is not None}
    settings = [setting for setting in plan.settings if setting.host in (None, host) and setting.rank in (None, rank)]
    settings = [setting for setting in settings if setting.name not in WRAPPER_NAMES or setting.name in own]
    settings.sort(key=lambda setting: (setting.rank is not None, setting.host is not None))
    appended = {setting.name: setting.value or "" for setting in settings if setting.append}
    settings = [setting for setting in settings if not setting.append]
    variables = {setting.name: secrets[setting.name] if setting.secret else setting.value for setting in settings}
    return RankVariables(variables, {setting.name for setting in settings if setting.prepend}, appended)


def command_of(
    plan: Plan, rank: RankPlan, port: int | None, node0_port: int, ports: Sequence[int] = ()
) -> tuple[str, ...]:
    """Return the command of one rank. `port`: for `{port}`; `ports`: of all ranks, for `{peers}`."""
    command = plan.command
    if plan.asked.is_behind_dashes:
        host, local_rank = host_of(plan, rank.rank), rank.local_rank
        addresses = [planned.address for planned in plan.hosts]
        peers = ",".join(
            f"{in_brackets(host_of(plan, number).address)}:{port_of}" for number, port_of in enumerate(ports)
        )
        of_rank = (rank.rank, local_rank, host.address, addresses[0], ",".join(addresses), port, node0_port, peers)
        values = (*of_rank, plan.first_run)
        command = fill(command, {name: str(value) for name, value in zip(NAMES, values)})
    if not plan.local_rank:
        return command
    at = len(command) - len(plan.asked.argv[1:])
    return (*command[:at], f"{plan.local_rank}={rank.local_rank}", *command[at:])


def in_brackets(address: str) -> str:
    """Return the address as it is before a colon and a port: IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


def program_line(plan: Plan, program: str, host: str, *words: str) -> str:
    """Return a sh line that execs a program of the run's agent, so that it survives the end of the login session."""
    argv = shlex.join([plan.python, "-IS", f"{plan.rundir}/agent.zip", program, *words])
    if host not in plan.ends_at_logout:
        return f"exec {argv}"
    scope = "systemd-run --user --scope --quiet"
    return f"if {scope} true </dev/null >/dev/null 2>&1; then exec {scope} {argv}; fi; exec {argv}"

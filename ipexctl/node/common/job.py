"""The records that start a run: `job.json` for the ranks of a host, two requests for the supervisor, and one for the
starter of a host.

The control machine makes them (`run/start/begin.py`); the rank wrapper and the supervisor read them, perhaps with a
later version of the records, so each is checked by its types. A job has the token of the run and secrets: its file has
mode 0600, and its repr shows the id alone.

It is apart from the other records because each rank imports it, and theirs take 5 ms to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, NamedTuple, Optional

from ipexctl.node.common.json_records import decode

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

Variables = Mapping[str, Optional[str]]
"""Name → value, or None for a variable to unset."""


class Master(NamedTuple):
    """The rendezvous address of the ranks: MASTER_ADDR and MASTER_PORT."""

    addr: str
    port: int | None = None
    """None until the supervisor has picked one."""


class RankJob(NamedTuple):
    host: str
    local_rank: int
    local_size: int
    cores: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()
    """The NUMA nodes whose memory it prefers."""
    variables: Mapping[str, str | None] = {}
    """They override the variables of the job."""
    batch: bool = False
    """True for SCHED_BATCH: a thread that wakes up does not interrupt the one that runs."""


class ProcessOptions(NamedTuple):
    """Options of the call that each rank's wrapper applies as they are; `spec.py` declares them."""

    nice: int = 0


class JobRecord(NamedTuple):
    """The job of one host, or of all hosts that share a home. The file has mode 0600: it has the token and secrets."""

    world_size: int
    master: Master
    command: tuple[str, ...]
    cwd: str
    ranks: Mapping[int, RankJob]
    variables: Mapping[str, str | None] = {}
    prepended: tuple[str, ...] = ()
    """Variables whose value goes before the existing one."""
    setup: str | None = None
    """A file that bash sources first."""
    id: str = ""
    rundir: str = ""
    token: str = ""
    """64 hex digits; rank wrapper and supervisor authenticate each other with it."""
    checkpoint: str = ""
    """The path of a file or directory, absolute or relative to `cwd`, that all hosts have the same of before an attempt
    begins."""
    checkpoint_is_found: bool = False
    """A project's file set that path, which nobody named in the call: it may not lead out of the project by a link."""
    has_rendezvous: bool = True
    """False for independent copies, which get no RANK, no MASTER_ADDR, and no variables of mpirun."""
    bytecode: str = ""
    """The path at which the run leaves its agent with bytecode, so that later runs start faster."""
    options: ProcessOptions = ProcessOptions()
    meter: bool = False
    """Whether steps and samples are counted in the ranks' processes."""
    metric: str = ""
    """A regular expression, whose first group is samples a second in a line of output; empty for none."""
    hosts: tuple[str, ...] = ()
    """Those with ranks, in the order of the ranks."""
    first_world_size: int = 0
    """That of the first attempt: one with fewer hosts has fewer ranks."""
    restarts: int = 0
    """How many attempts may follow the first one."""
    local_rank: str = ""
    """An option that the script gets with its local rank, before its own arguments."""
    attempt: int | None = None
    """The attempt that the job is for; None: it is for all, which have the same ranks."""

    def __repr__(self) -> str:
        return f"JobRecord({self.id!r})"  # no secrets in logs

    def command_of(self, rank: int) -> tuple[str, ...]:
        """What a rank executes."""
        if not self.local_rank:
            return self.command
        at = 3 if self.command[1] == "-m" else 2
        return (*self.command[:at], f"{self.local_rank}={self.ranks[rank].local_rank}", *self.command[at:])

    def to_json(self) -> Json:
        # Not by `as_json`, which would look at every variable of thousands of ranks.
        ranks = {str(rank): job._asdict() for rank, job in self.ranks.items()}
        return {**self._asdict(), "master": self.master._asdict(), "ranks": ranks, "options": self.options._asdict()}


class SupervisorRequest(NamedTuple):
    """The supervisor's first line of stdin. It answers once it listens."""

    id: str
    rundir: str
    bind: str
    """The address to listen on."""
    token: str
    host: str
    """Node0, as named in the hostfile."""


class RankPlacement(NamedTuple):
    rank: int
    host: str
    store: str
    """Hosts with the same store share a job file."""
    word: str = ""
    """Its host's name for mpirun."""


class PoolHost(NamedTuple):
    """A host that a run may use, in the plan of all of them."""

    host: str
    store: str
    ranks: int
    word: str = ""
    """Its name for the shell of the pool."""
    line: str = ""
    """Its lines in the hostfile of what starts the ranks; empty if that has none."""


class HostPool(NamedTuple):
    """The hosts of a run that goes on with those that answer (`run --min-hosts`); the first one is node0."""

    hosts: tuple[PoolHost, ...]
    wanted: int
    """Hosts of an attempt, if as many answer; the others are spares."""
    least: int
    job: str
    """The text of a job of all ranks on all hosts, which each attempt's jobs are made of."""
    shell: tuple[str, ...] = ()
    """Words before a host and a line for its sh, by which node0 reaches the host; empty: by the host's starter."""

    def __repr__(self) -> str:
        return f"HostPool({len(self.hosts)} hosts)"  # no secrets in logs


class ConnectivityRecord(NamedTuple):
    """A check of the connections between the nodes that passed; in `runs/` on node0 after a run that ended well."""

    key: str
    """A digest of what was checked."""
    checked: float
    """In seconds since the boot of node0."""
    no_logins: str = ""
    """Why node0 could not log in to the others, so that the ranks were started without logins."""
    logins_tried: float = 0.0
    """When that was found, also since the boot."""


class Notification(NamedTuple):
    """The command of `run --notify`, for a run whose call does not see its end (`run/notify.py`)."""

    command: str
    """A line for sh; it may have a token."""
    hosts: tuple[str, ...]
    """For the summary."""
    claim_after: float
    """Seconds after the end in which the call may claim the command; 0 for a call that does not follow."""
    timeout: float

    def __repr__(self) -> str:
        return "Notification(…)"  # no secrets in logs


CONNECTIVITY_FILE = ".connectivity.json"


class StarterCall(NamedTuple):
    """How node0 begins the starter of another host again, as after a reboot, by the login that `trust` has set up."""

    host: str
    word: str
    """Its name for ssh."""
    line: str
    """For its shell; a `HostStarterRequest` is its stdin."""


class StartRequest(NamedTuple):
    """The supervisor's second line of stdin: mpirun and the limits of the run."""

    argv: tuple[str, ...]
    """The mpirun line, or that of a rank wrapper; the supervisor appends its addresses."""
    ranks: tuple[RankPlacement, ...]
    world_size: int
    nodes: int
    master: Master
    hang_after: float
    """Seconds without output of any rank until that is reported; 0 for never."""
    on_hang: str
    """Then also `dump` all stacks, or dump them and `stop` the run."""
    script: str = ""
    env: str = ""
    by_mpirun: bool = True
    """False for ranks that are started directly: those of node0 by the supervisor, those of another host by a starter
    there. `argv` is the line of a rank wrapper then."""
    by_slurm: bool = False
    """Whether it starts other hosts' ranks through a batch system, and so needs the variables of the job."""
    variables: Mapping[str, str | None] = {}
    """Of mpirun."""
    setup: str | None = None
    """A file that bash sources before mpirun."""
    addresses: tuple[str, ...] = ()
    """Of the planned hosts: the supervisor accepts their connections before others."""
    time_limit: float | None = None
    restarts: int = 0
    checkpoint: str = ""
    """As in the job, like the next."""
    checkpoint_is_found: bool = False
    connectivity: ConnectivityRecord | None = None
    starter_calls: tuple[StarterCall, ...] = ()
    """Empty where node0 logs in nowhere."""
    notify: Notification | None = None
    job: str = ""
    """The text of node0's job.json, which the supervisor writes; empty if no rank has its store."""
    plan: str = ""
    """The text of plan.json."""
    pool: HostPool | None = None
    """None: each attempt has the same hosts."""

    def __repr__(self) -> str:
        return f"StartRequest({self.world_size} ranks)"  # no secrets in logs


class HostStarterRequest(NamedTuple):
    """The starter's line of stdin (`run/host_starter.py`)."""

    rundir: str
    host: str
    """Its own, as named in the hostfile."""
    ranks: tuple[int, ...]
    argv: tuple[str, ...]
    """The line of a rank wrapper, without addresses."""
    token: str
    local: str
    address: str
    """Of the supervisor, for the starter and its ranks; `local` is for ranks on node0."""
    port: int
    rejoins: bool = False
    """Whether it waits for a supervisor that it has lost: the host may join the run again."""

    def __repr__(self) -> str:
        return f"HostStarterRequest({self.host})"  # no secrets in logs


def job_file(attempt: int) -> str:
    """The name of a host's job in the run's directory. A late rank wrapper of an attempt removes that one's alone."""
    return f"job.{attempt}.json" if attempt else "job.json"


def read_job(document: object) -> JobRecord:
    """Raises a ValueError for a document that is no job."""
    job = decode(JobRecord, document, "the job")
    if not (job.id and job.rundir and job.token):
        raise ValueError("the job has no id, rundir or token")
    return job

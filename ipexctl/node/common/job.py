"""The records that start a run: `job.json` for a host's ranks, two requests for the supervisor, one for host starters.

The control machine makes them (`run/start/begin.py`). Readers may be a later version, so each is checked by its types.
A job has the run's token and secrets: its file has mode 0600, and its repr shows only the id. This is a module of its
own because each rank imports it, and the other records take 5 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, NamedTuple, Optional

from ipexctl.node.common.json_records import decode

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

Variables = Mapping[str, Optional[str]]


class Master(NamedTuple):
    """MASTER_ADDR and MASTER_PORT of the ranks."""

    addr: str
    port: int | None = None
    """None until the supervisor picks one."""


class RankJob(NamedTuple):
    host: str
    local_rank: int
    local_size: int
    cores: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()
    """Preferred NUMA nodes for memory."""
    variables: Mapping[str, str | None] = {}
    """They override the job's variables."""
    batch: bool = False
    """True for SCHED_BATCH: a waking thread does not interrupt the running one."""


class ProcessOptions(NamedTuple):
    """Options that each rank's wrapper applies; `spec.py` declares them."""

    nice: int = 0


class JobRecord(NamedTuple):
    world_size: int
    master: Master
    command: tuple[str, ...]
    cwd: str
    ranks: Mapping[int, RankJob]
    variables: Mapping[str, str | None] = {}
    prepended: tuple[str, ...] = ()
    """Variables with a value to put before the existing one."""
    setup: str | None = None
    """Sourced by bash first."""
    id: str = ""
    rundir: str = ""
    token: str = ""
    """64 hex digits; rank wrapper and supervisor authenticate each other with it."""
    checkpoint: str = ""
    """Path, absolute or relative to `cwd`, that is made equal on all hosts before an attempt."""
    checkpoint_is_found: bool = False
    """True if a project's file set the path: no link may lead it out of the project."""
    has_rendezvous: bool = True
    """False for independent copies, without RANK, MASTER_ADDR and mpirun's variables."""
    bytecode: str = ""
    """Where the run leaves its agent with bytecode, for faster starts later."""
    options: ProcessOptions = ProcessOptions()
    meter: bool = False
    metric: str = ""
    """Regular expression whose first group is samples/s in a line of output; empty for none."""
    hosts: tuple[str, ...] = ()
    first_world_size: int = 0
    restarts: int = 0
    """Maximum number of further attempts."""
    local_rank: str = ""
    """Option for the script's local rank, before its own arguments."""
    attempt: int | None = None
    """Attempt of this job; None if all attempts have the same ranks."""

    def __repr__(self) -> str:
        return f"JobRecord({self.id!r})"  # no secrets in logs

    def command_of(self, rank: int) -> tuple[str, ...]:
        if not self.local_rank:
            return self.command
        at = 3 if self.command[1] == "-m" else 2
        return (*self.command[:at], f"{self.local_rank}={self.ranks[rank].local_rank}", *self.command[at:])

    def to_json(self) -> Json:
        # `as_json` would visit every variable of thousands of ranks.
        ranks = {str(rank): job._asdict() for rank, job in self.ranks.items()}
        return {**self._asdict(), "master": self.master._asdict(), "ranks": ranks, "options": self.options._asdict()}


class SupervisorRequest(NamedTuple):
    """The supervisor's first line of stdin. It answers once it listens."""

    id: str
    rundir: str
    bind: str
    token: str
    host: str


class RankPlacement(NamedTuple):
    rank: int
    host: str
    store: str
    """Hosts with the same store share a job file."""
    word: str = ""
    """Its host's name for mpirun."""


class PoolHost(NamedTuple):
    host: str
    store: str
    ranks: int
    word: str = ""
    """Name for the pool's shell."""
    line: str = ""
    """Lines in the launcher's hostfile; empty if it has none."""


class HostPool(NamedTuple):
    """Hosts of a run with `--min-hosts`; the first is node0."""

    hosts: tuple[PoolHost, ...]
    wanted: int
    least: int
    job: str
    """Text of a job with all ranks on all hosts; each attempt's jobs are made from it."""
    shell: tuple[str, ...] = ()
    """Words before host and command line by which node0 reaches a shell there; empty to use the host's starter."""

    def __repr__(self) -> str:
        return f"HostPool({len(self.hosts)} hosts)"  # no secrets in logs


class ConnectivityRecord(NamedTuple):
    """A passed check of the connections between nodes; on node0 in `runs/` after a successful run."""

    key: str
    checked: float
    no_logins: str = ""
    """Why node0 could not log in to the others; the ranks were then started without logins."""
    logins_tried: float = 0.0
    """When that was found, in seconds since the boot."""


class Notification(NamedTuple):
    """Command of `run --notify`, for a run that no call follows to its end (`run/notify.py`)."""

    command: str
    """Line for sh; may have a token."""
    hosts: tuple[str, ...]
    claim_after: float
    """Seconds after the end in which the call may claim the command; 0 if none follows."""
    timeout: float

    def __repr__(self) -> str:
        return "Notification(…)"  # no secrets in logs


CONNECTIVITY_FILE = ".connectivity.json"


class StarterCall(NamedTuple):
    """How node0 restarts another host's starter, as after a reboot, using `trust`'s login."""

    host: str
    word: str
    """Name for ssh."""
    line: str
    """Command line; its stdin is a `HostStarterRequest`."""


class StartRequest(NamedTuple):
    """The supervisor's second line of stdin: mpirun and the run's limits."""

    argv: tuple[str, ...]
    ranks: tuple[RankPlacement, ...]
    world_size: int
    nodes: int
    master: Master
    hang_after: float
    """Seconds without output of any rank until it is reported; 0 for never."""
    on_hang: str
    """`dump` also dumps all stacks, `stop` then also stops the run."""
    script: str = ""
    env: str = ""
    by_mpirun: bool = True
    """False if ranks are started directly, by the supervisor on node0 and by starters elsewhere, with `argv`."""
    by_slurm: bool = False
    """True if a batch system starts the other hosts' ranks, which needs the job's variables."""
    variables: Mapping[str, str | None] = {}
    setup: str | None = None
    addresses: tuple[str, ...] = ()
    """Planned hosts, accepted by the supervisor before others."""
    time_limit: float | None = None
    restarts: int = 0
    checkpoint: str = ""
    checkpoint_is_found: bool = False
    connectivity: ConnectivityRecord | None = None
    starter_calls: tuple[StarterCall, ...] = ()
    """Empty if node0 logs in nowhere."""
    notify: Notification | None = None
    job: str = ""
    plan: str = ""
    pool: HostPool | None = None
    """None if each attempt has the same hosts."""

    def __repr__(self) -> str:
        return f"StartRequest({self.world_size} ranks)"  # no secrets in logs


class HostStarterRequest(NamedTuple):
    """A host starter's line of stdin (`run/host_starter.py`)."""

    rundir: str
    host: str
    ranks: tuple[int, ...]
    argv: tuple[str, ...]
    token: str
    local: str
    address: str
    """The supervisor's address for the starter and its ranks; `local` is for ranks on node0."""
    port: int
    rejoins: bool = False
    """True to wait for a lost supervisor: the host may rejoin the run."""

    def __repr__(self) -> str:
        return f"HostStarterRequest({self.host})"  # no secrets in logs


def job_file(attempt: int) -> str:
    """Name of an attempt's job file. A late rank wrapper removes only its own attempt's."""
    return f"job.{attempt}.json" if attempt else "job.json"


def read_job(document: object) -> JobRecord:
    job = decode(JobRecord, document, "the job")
    if not (job.id and job.rundir and job.token):
        raise ValueError("the job has no id, rundir or token")
    return job

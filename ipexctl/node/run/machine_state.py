"""The values of the supervisor's decisions: the state of a run, what happens to it, and what is to be done. Pure.

`machine.py` takes a state, an event and the time, and returns the next state with commands; `loop.py` makes the events
and carries out the commands. All of them are frozen, so that a test writes a run as a list of events with times. A
state has what decisions need; figures, such as a rank's memory or its steps, are added when the record is written.

`Transition` is one step while it is computed. It is thrown away after that, and so may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Union

from ipexctl.node.common.limits import RANK_SILENCE, RANKS_BEGIN
from ipexctl.node.common.records import RankStatus, RunStatus, State
from ipexctl.node.run.job_limit import JobLimit

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.job import Master, StartRequest
    from ipexctl.node.common.records import Detail, SilentRank
    from ipexctl.node.run.messages import Exit, Message
    from ipexctl.node.run.mpirun import NodeStarter


class Moment(NamedTuple):
    """The time of an event."""

    clock: float
    """Of the monotonic clock, by which all waits are measured."""
    epoch: float
    """Seconds since the epoch, for the record."""


# The state


class Ending(NamedTuple):
    """How the attempt ends, or the run."""

    state: State
    code: int
    at: float = 0.0
    """By the monotonic clock, like all times of the state."""


class RankState(NamedTuple):
    """One rank in this attempt."""

    rank: int
    host: str
    store: str
    status: RankStatus
    instance: str | None = None
    """Of its wrapper, once that has connected."""
    is_connected: bool = False
    received_at: float = 0.0
    """When it had sent last as its connection broke."""
    disconnected_at: float | None = None
    closed_by_peer: bool = False
    """The host still answers: it closed the connection, so the wrapper ended, not the machine."""
    is_leaving: bool = False
    """It has announced that it closes its connection, and connects again."""
    lost_at: float = 0.0
    outside_signal: int | None = None
    """A signal that its wrapper got, and that the supervisor did not send."""
    is_start_failure_noted: bool = False
    """Its output has the note that its command could not be started."""
    exit: Exit | None = None
    malformed: int = 0
    """Messages that could not be read."""
    is_over: bool = False
    """Its exit is known and all its output has arrived, or it is lost."""
    is_released: bool = False
    """It was told that it may exit."""
    wrapper_code: int | None = None
    """With which its wrapper has ended, if no mpirun starts the ranks."""
    wrapper_ended_at: float | None = None

    @property
    def has_begun(self) -> bool:
        return self.instance is not None

    @property
    def is_done(self) -> bool:
        return self.is_over or self.status.state == "lost"


class MpirunState(NamedTuple):
    """The program that starts the ranks, in this attempt."""

    started_at: float
    ended_at: float | None = None
    code: int | None = None
    """As `Popen.returncode`: -N when signal N has ended it."""
    ranks_ended_at: float | None = None
    was_told_to_end: bool = False
    """By the supervisor, while it ran."""
    killed_at: float | None = None

    @property
    def was_killed(self) -> bool:
        """By a signal that it could not or did not catch."""
        return (self.code or 0) < 0

    @property
    def ended_by(self) -> tuple[int | None, int | None]:
        """Its exit code, 128+N when signal N ended it, and that signal."""
        code = self.code
        return (code, None) if code is None or code >= 0 else (128 - code, -code)


class StarterState(NamedTuple):
    """The starter of a host that is not node0, if no mpirun starts the ranks."""

    is_connected: bool = False
    away_since: float = 0.0
    called_at: float = float("-inf")
    """When node0 last tried to begin it again."""


class HostSearch(NamedTuple):
    """Which hosts of the pool can be in the next attempt, while that is found out."""

    began_at: float
    waiting: frozenset[str]
    """Those that have not answered yet."""
    present: frozenset[str] = frozenset()
    absent: Mapping[str, str] = {}
    """Those that can't be reached → why."""


class DiskState(NamedTuple):
    """The disk of the record: ranks keep output that it has no room for."""

    is_full: bool = False
    since: float = 0.0
    """When nothing had hindered the ranks' output last."""
    looked_at: float = 0.0
    room_at: float = float("-inf")


class JobState(NamedTuple):
    """The job of a queue that the supervisor runs in."""

    number: str
    may_requeue: bool = False
    restarts: int = 0
    """The earlier starts of the job."""
    is_requeued: bool = False
    """By this supervisor."""


class PendingDump(NamedTuple):
    """A stack dump whose ranks have not all replied."""

    id: str
    is_own: bool
    """Taken because the run hangs."""
    until: float
    rows: Mapping[int, Json]
    waiting: frozenset[int]


class SupervisorState(NamedTuple):
    """A run, from before the start of mpirun to the end of the last process."""

    plan: StartRequest
    """With the ranks of this attempt."""
    starter: NodeStarter
    status: RunStatus
    """Without its ranks, and without figures."""
    ranks: Mapping[int, RankState]
    created_at: float
    checked_at: float
    """The last `Tick`."""
    resumed_at: float = 0.0
    """When this process ran again after it was suspended: an earlier time of a rank counts as this one."""
    mpirun: MpirunState | None = None
    starters: Mapping[str, StarterState] = {}
    """Host → its starter."""
    ending: Ending | None = None
    signalled_at: float | None = None
    """The first signal to a wrapper that the supervisor did not send."""
    is_exchanging: bool = False
    """Checkpoints are exchanged, before the commands of the attempt start."""
    first_attempt: int = 0
    """Of this supervisor: a job that begins again has earlier ones."""
    search: HostSearch | None = None
    """Between two attempts of a run with a pool of hosts."""
    asked_at: float = 0.0
    """When hosts without a rank that has begun were asked last."""
    is_preparing: bool = False
    """The hosts of the attempt get their jobs, before mpirun starts."""
    disk: DiskState = DiskState()
    dumps: tuple[PendingDump, ...] = ()
    stall_dump: str = ""
    """The id of the last dump that was taken without being asked for."""
    job: JobState | None = None
    limit: JobLimit | None = None
    is_limit_near: bool = False
    """The ranks have got the notice that the job of the run is about to end."""
    has_left_at_notice: bool = False
    """A rank has ended itself then; others may still save, or fail as they miss it."""
    has_noticed: bool = False
    """A rank has handled the notice."""
    is_asked_to_stop: bool = False
    """By a signal: of ipexctl stop, of the call, or of the queue."""
    is_closing: bool = False
    """No attempt follows, unless the queue refuses to take the job again."""
    closed: Closed | None = None
    """What the queue showed, while it is asked to take the job again."""

    @property
    def is_signal_open(self) -> bool:
        """Ranks got a signal to end, and its sender is not known yet."""
        return self.signalled_at is not None and self.ending is None

    @property
    def restarts_left(self) -> int:
        return self.plan.restarts - self.status.attempt

    @property
    def keeps_jobs(self) -> bool:
        """Whether the job files stay for another attempt; with a pool of hosts, each attempt has its own."""
        return self.restarts_left > 0 and self.plan.pool is None

    @property
    def setup_time(self) -> float:
        """Like RANK_SILENCE, before the command has started: while a rank sources a setup file it sends nothing."""
        return RANKS_BEGIN if self.plan.setup else RANK_SILENCE


def first_state(
    plan: StartRequest, starter: NodeStarter, status: RunStatus, now: Moment, job: JobState | None = None
) -> SupervisorState:
    limit = JobLimit() if job is not None and job.number else None
    hosts = plan.ranks if plan.pool is None else plan.pool.hosts
    others = {placement.host for placement in hosts} - {status.node0} if starter.is_direct else ()
    starters = {host: StarterState(away_since=now.clock) for host in others}
    state = SupervisorState(
        plan, starter, status, first_ranks(plan), now.clock, now.clock, now.clock, starters=starters
    )
    return state._replace(job=job, limit=limit, first_attempt=status.attempt)


def first_ranks(plan: StartRequest) -> dict[int, RankState]:
    return {at.rank: RankState(at.rank, at.host, at.store, first_rank_status(at.rank, at.host)) for at in plan.ranks}


def ranks_of_starters(state: SupervisorState) -> dict[str, frozenset[int]]:
    """The hosts that have a starter, with their ranks."""
    ranks = state.ranks.values()
    return {host: frozenset(peer.rank for peer in ranks if peer.host == host) for host in state.starters}


def first_rank_status(rank: int, host: str) -> RankStatus:
    return RankStatus(rank, host, cpu=0.0, rss=0, out_lines=0, err_lines=0)


# What happens


class Begin(NamedTuple):
    """The caller has sent its requests, and all hosts have their job files."""


class Tick(NamedTuple):
    """It is time to check everything, with what can only be seen by looking."""

    received: Mapping[int, float] = {}
    """When each connected rank has sent last."""
    printed_at: float = 0.0
    """When any rank has printed something last, in this attempt."""
    written_at: float = 0.0
    """When output was written last."""
    mpirun_log: tuple[str, ...] = ()
    """The last lines of mpirun, if a rank is not connected or mpirun has ended."""
    starters: Mapping[str, float] = {}
    """When the starter of each host has sent last, if it is connected."""


class RankSent(NamedTuple):
    """A message of a rank. `End` comes once all its output is written."""

    rank: int
    message: Message


class Disconnected(NamedTuple):
    rank: int
    received_at: float
    closed_by_peer: bool = False


class AttemptStarted(NamedTuple):
    pid: int
    master: Master
    is_exchanging: bool = False


class StartFailed(NamedTuple):
    """mpirun could not be started."""

    reason: str
    detail: Detail | None = None


class MpirunEnded(NamedTuple):
    code: int
    """As `Popen.returncode`."""


class WrapperExited(NamedTuple):
    """A rank wrapper has ended that no mpirun has started."""

    rank: int
    code: int
    """As `Popen.returncode`."""
    attempt: int


class StarterConnected(NamedTuple):
    host: str


class StarterLost(NamedTuple):
    """Its connection has broken."""

    host: str


class HostAnswered(NamedTuple):
    """An answer to `FindHosts`: the host can be reached, or why not."""

    host: str
    problem: str = ""


class HostsPrepared(NamedTuple):
    """The answer to `PrepareHosts`: all hosts have their jobs, or which refused it, and why."""

    failed: Mapping[str, str] = {}


class StopAsked(NamedTuple):
    """By a signal to the supervisor."""

    signal: int


class ExchangeOver(NamedTuple):
    """All hosts have the same checkpoint, or why not, and the host that could not do its part."""

    failure: str = ""
    host: str = ""


class OutputRefused(NamedTuple):
    """Neither the disk nor the memory had room for a chunk of output, which its rank keeps."""


class DiskHasRoom(NamedTuple):
    """The answer to `LookAtDisk`, if it has."""


class SilenceSeen(NamedTuple):
    """The answer to `LookAtSilence`."""

    since: float
    ranks: tuple[SilentRank, ...]


class DumpAsked(NamedTuple):
    """A user asks for the stacks of these ranks (None: of all), or it is the answer to `TakeDump`."""

    id: str
    """Empty: the disk has no room for a dump."""
    ranks: tuple[int, ...] | None = None
    is_own: bool = False


class TimeLeft(NamedTuple):
    """The answer to `AskTimeLeft`."""

    asked_at: float
    is_answer: bool
    """The queue has answered in time."""
    seconds: int | None = None
    """None: the job has no limit."""


class Closed(NamedTuple):
    """All output is written or given up, with what the queue shows of the job, if that was asked."""

    job_shown: str = ""
    is_step_cancelled: bool = False


class Requeued(NamedTuple):
    """The answer to `Requeue`: whether the queue does it."""

    is_done: bool


Event = Union[
    Begin,
    Tick,
    RankSent,
    Disconnected,
    AttemptStarted,
    StartFailed,
    MpirunEnded,
    WrapperExited,
    StarterConnected,
    StarterLost,
    HostAnswered,
    HostsPrepared,
    StopAsked,
    ExchangeOver,
    OutputRefused,
    DiskHasRoom,
    SilenceSeen,
    DumpAsked,
    TimeLeft,
    Closed,
    Requeued,
]

# What is to be done


class StartAttempt(NamedTuple):
    """End what is left of the attempt before, and start mpirun; AttemptStarted or StartFailed follows."""

    after: str = ""
    """Why the attempt before has ended."""


class FindHosts(NamedTuple):
    """Find out in the background which of these hosts can be reached; HostAnswered follows for each, or nothing."""

    hosts: tuple[str, ...]


class PrepareHosts(NamedTuple):
    """Write the jobs of the planned attempt on its hosts, in the background; HostsPrepared follows."""


class Send(NamedTuple):
    """Send a message of `messages.py` to a rank, if it is connected."""

    rank: int
    kind: str
    fields: Mapping[str, str] = {}


class Drop(NamedTuple):
    """Close the connection of a rank."""

    rank: int


class DropStarter(NamedTuple):
    """Close the connection of the starter of a host."""

    host: str


class CallStarters(NamedTuple):
    """Begin the starters of these hosts again, by logins of node0."""

    hosts: tuple[str, ...]


class Rewind(NamedTuple):
    """Ask a rank for the output that was refused, if any was."""

    rank: int


class EndOutput(NamedTuple):
    """What a rank still holds of its output is lost."""

    rank: int


class SignalMpirun(NamedTuple):
    """Signal the whole group of mpirun; without one, the rank wrappers."""

    signal: int


class EndExchange(NamedTuple):
    """End the exchange of checkpoints, or what is left of it."""


class LogEvent(NamedTuple):
    """Write an event of the record."""

    name: str
    fields: Mapping[str, Any]


class AddNote(NamedTuple):
    """Write a note into what a rank prints on stderr."""

    rank: int
    kind: str
    fields: Mapping[str, Any]


class LookAtDisk(NamedTuple):
    """Find out whether the full disk has room again; DiskHasRoom follows if it has."""


class LookAtSilence(NamedTuple):
    """Find out what these ranks printed last; SilenceSeen follows."""

    since: float
    ranks: tuple[int, ...]


class TakeDump(NamedTuple):
    """Make an id for a dump of all stacks; DumpAsked follows."""


class WriteDump(NamedTuple):
    id: str
    rows: tuple[Json, ...]
    unanswered: frozenset[int]


class RemoveDump(NamedTuple):
    id: str


class AskTimeLeft(NamedTuple):
    """Ask the queue in the background how long the job may run; TimeLeft follows."""


class AskJob(NamedTuple):
    """Begin to ask the queue how the job is, while the ranks end: it may be the queue that ends them."""


class Requeue(NamedTuple):
    """Put the job into the queue again, which ends all processes of this start; Requeued follows."""


class Close(NamedTuple):
    """Write all output and close its files; Closed follows."""

    patience: float
    """Seconds for a full disk to have room."""
    keeps_connectivity: bool
    """The connections between the nodes have worked."""
    asks_job: bool
    """How the job is decides what the end means."""


class EndJob(NamedTuple):
    """Leave the files of the job as its script and other calls need them."""

    state: State


class Finish(NamedTuple):
    """Write the last status; the supervisor exits then."""

    notifies: bool
    """Start the command of `--notify`."""


Action = Union[
    StartAttempt,
    FindHosts,
    PrepareHosts,
    Send,
    Drop,
    DropStarter,
    CallStarters,
    Rewind,
    EndOutput,
    SignalMpirun,
    EndExchange,
    LogEvent,
    AddNote,
    LookAtDisk,
    LookAtSilence,
    TakeDump,
    WriteDump,
    RemoveDump,
    AskTimeLeft,
    AskJob,
    Requeue,
    Close,
    EndJob,
    Finish,
]


class Transition:
    """One step while it is computed: the state so far, and the commands so far."""

    def __init__(self, state: SupervisorState, now: Moment) -> None:
        self.state, self.now = state, now
        self.commands: list[Action] = []
        self._ranks: dict[int, RankState] | None = None
        """A copy, once a rank has changed."""

    @property
    def ranks(self) -> list[RankState]:
        return list(self.state.ranks.values())

    def set(self, **fields: Any) -> None:
        self.state = self.state._replace(**fields)

    def set_status(self, **fields: Any) -> None:
        self.set(status=self.state.status._replace(**fields))

    def set_mpirun(self, **fields: Any) -> None:
        assert self.state.mpirun is not None, "mpirun is not started"
        self.set(mpirun=self.state.mpirun._replace(**fields))

    def set_rank(self, rank: int, **fields: Any) -> RankState:
        if self._ranks is None or self.state.ranks is not self._ranks:
            self._ranks = dict(self.state.ranks)
            self.set(ranks=self._ranks)
        self._ranks[rank] = self._ranks[rank]._replace(**fields)
        return self._ranks[rank]

    def set_rank_status(self, rank: int, **fields: Any) -> RankState:
        return self.set_rank(rank, status=self.state.ranks[rank].status._replace(**fields))

    def do(self, command: Action) -> None:
        self.commands.append(command)

    def send(self, rank: int, kind: str, **fields: str) -> None:
        self.do(Send(rank, kind, fields))

    def log(self, name: str, **fields: Any) -> None:
        self.do(LogEvent(name, fields))

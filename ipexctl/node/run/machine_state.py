"""The values of the supervisor's decisions: the state of a run, its events, its commands. Pure.

`machine.py` takes a state, an event and the time, and returns the next state with commands; `loop.py` makes the events
and carries out the commands. All are frozen, so that a test writes a run as a list of events with times. Figures, such
as a rank's memory, are not in the state. `Transition` is one step in progress; it is mutable and thrown away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Union

from ipexctl.node.common.limits import RANK_SILENCE, RANKS_BEGIN
from ipexctl.node.common.records import RankStatus, RunStatus, State
from ipexctl.node.run.job_limit import JobLimit

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.job import Master, Start
    from ipexctl.node.common.plan import AgentOptions, Plan
    from ipexctl.node.common.records import Detail, SilentRank
    from ipexctl.node.run.messages import Exit, Message
    from ipexctl.node.run.mpirun import NodeStarter


class Moment(NamedTuple):
    clock: float
    """Monotonic; all waits are measured by it."""
    epoch: float
    """Seconds since the epoch, for the record."""


# The state


class Ending(NamedTuple):
    state: State
    code: int
    at: float = 0.0
    """Monotonic, like all times of the state."""


class RankState(NamedTuple):
    rank: int
    host: str
    status: RankStatus
    instance: str | None = None
    is_connected: bool = False
    received_at: float = 0.0
    """When it last sent something before its connection broke."""
    disconnected_at: float | None = None
    closed_by_peer: bool = False
    """True if the host closed the connection: the wrapper ended, not the machine."""
    is_leaving: bool = False
    """It announced that it will close its connection and reconnect."""
    lost_at: float = 0.0
    outside_signal: int | None = None
    """A signal that its wrapper received and the supervisor did not send."""
    is_start_failure_noted: bool = False
    exit: Exit | None = None
    malformed: int = 0
    is_over: bool = False
    """Its exit is known and all its output has arrived, or it is lost."""
    is_released: bool = False
    wrapper_code: int | None = None
    wrapper_ended_at: float | None = None

    @property
    def has_begun(self) -> bool:
        return self.instance is not None

    @property
    def is_done(self) -> bool:
        return self.is_over or self.status.state == "lost"


class MpirunState(NamedTuple):
    started_at: float
    ended_at: float | None = None
    code: int | None = None
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
        """Its exit code (128+N after signal N) and that signal."""
        code = self.code
        return (code, None) if code is None or code >= 0 else (128 - code, -code)


class StarterState(NamedTuple):
    is_connected: bool = False
    away_since: float = 0.0
    called_at: float = float("-inf")


class HostSearch(NamedTuple):
    """The search for hosts of the pool that can be in the next attempt."""

    began_at: float
    waiting: frozenset[str]
    present: frozenset[str] = frozenset()
    absent: Mapping[str, str] = {}


class DiskState(NamedTuple):
    """The disk of the record: ranks keep output that it has no room for."""

    is_full: bool = False
    since: float = 0.0
    """Last time that nothing hindered the ranks' output."""
    looked_at: float = 0.0
    room_at: float = float("-inf")


class JobState(NamedTuple):
    number: str
    may_requeue: bool = False
    restarts: int = 0
    is_requeued: bool = False
    """By this supervisor."""


class PendingDump(NamedTuple):
    id: str
    is_own: bool
    until: float
    rows: Mapping[int, Json]
    waiting: frozenset[int]


class SupervisorState(NamedTuple):
    """A run, from before the start of mpirun to the exit of the last process."""

    start: Start
    plan: Plan
    """Of this attempt; the one of `start` is of all hosts."""
    options: AgentOptions
    starter: NodeStarter
    status: RunStatus
    """Without its ranks, and without figures."""
    ranks: Mapping[int, RankState]
    created_at: float
    checked_at: float
    resumed_at: float = 0.0
    """When this process resumed after a suspension; earlier times of a rank count as this one."""
    mpirun: MpirunState | None = None
    starters: Mapping[str, StarterState] = {}
    ending: Ending | None = None
    signalled_at: float | None = None
    """First signal to a wrapper that the supervisor did not send."""
    is_exchanging: bool = False
    """Checkpoints are being exchanged, before the commands of the attempt start."""
    first_attempt: int = 0
    """First attempt of this supervisor: a job that begins again has earlier ones."""
    search: HostSearch | None = None
    """Between two attempts of a run with a pool of hosts."""
    asked_at: float = 0.0
    """When hosts without a started rank were last asked."""
    is_preparing: bool = False
    """The hosts of the attempt are getting their jobs, before mpirun starts."""
    disk: DiskState = DiskState()
    dumps: tuple[PendingDump, ...] = ()
    stall_dump: str = ""
    """Id of the last dump taken unasked."""
    job: JobState | None = None
    limit: JobLimit | None = None
    is_limit_near: bool = False
    """The ranks have received the notice that the job is about to end."""
    has_left_at_notice: bool = False
    """A rank exited after the notice. Others may still be saving, or fail because it is gone."""
    has_noticed: bool = False
    """A rank handled the notice."""
    is_asked_to_stop: bool = False
    """By a signal: from ipexctl stop, the call, or the queue."""
    is_closing: bool = False
    """No attempt follows, unless the queue refuses to requeue the job."""
    closed: Closed | None = None
    """What the queue showed, while it is asked to requeue the job."""

    @property
    def is_signal_open(self) -> bool:
        """Ranks received a signal to end, and its sender is not known yet."""
        return self.signalled_at is not None and self.ending is None

    @property
    def restarts_left(self) -> int:
        return self.status.restarts - self.status.attempt

    @property
    def has_pool(self) -> bool:
        """True if each attempt may have other hosts."""
        return self.options.has_pool and len(self.plan.everyone) > 1

    @property
    def shell(self) -> tuple[str, ...]:
        """Words before host and command line by which node0 reaches a shell there; empty to use the host's starter."""
        return () if self.plan.has_starters else self.plan.shell

    @property
    def keeps_jobs(self) -> bool:
        """Job files stay for another attempt; with a pool of hosts, each attempt has its own."""
        return self.restarts_left > 0 and not self.has_pool

    @property
    def setup_time(self) -> float:
        """Like RANK_SILENCE, before the command starts: a rank sends nothing while it sources a setup file."""
        return RANKS_BEGIN if self.plan.setup else RANK_SILENCE


def first_state(
    start: Start, starter: NodeStarter, status: RunStatus, now: Moment, job: JobState | None = None
) -> SupervisorState:
    limit = JobLimit() if job is not None and job.number else None
    plan = start.plan
    others = {host.name for host in plan.everyone} - {status.node0} if starter.is_direct else ()
    starters = {host: StarterState(away_since=now.clock) for host in others}
    ranks, options = first_ranks(plan), plan.options
    state = SupervisorState(start, plan, options, starter, status, ranks, now.clock, now.clock, now.clock)
    return state._replace(starters=starters, job=job, limit=limit, first_attempt=status.attempt)


def first_ranks(plan: Plan) -> dict[int, RankState]:
    return {at.rank: RankState(at.rank, at.host, first_rank_status(at.rank, at.host)) for at in plan.ranks}


def ranks_of_starters(state: SupervisorState) -> dict[str, frozenset[int]]:
    ranks = state.ranks.values()
    return {host: frozenset(peer.rank for peer in ranks if peer.host == host) for host in state.starters}


def first_rank_status(rank: int, host: str) -> RankStatus:
    return RankStatus(rank, host, cpu=0.0, rss=0, out_lines=0, err_lines=0)


# What happens


class Begin(NamedTuple):
    """The caller sent its requests, and all hosts have their job files."""


class Tick(NamedTuple):
    received: Mapping[int, float] = {}
    printed_at: float = 0.0
    """When any rank last printed something in this attempt."""
    written_at: float = 0.0
    mpirun_log: tuple[str, ...] = ()
    """Last lines of mpirun, if a rank is not connected or mpirun has exited."""
    starters: Mapping[str, float] = {}
    """When each connected starter last sent something."""


class RankSent(NamedTuple):
    """A message from a rank. `End` comes once all its output is written."""

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
    reason: str
    detail: Detail | None = None


class MpirunEnded(NamedTuple):
    code: int


class WrapperExited(NamedTuple):
    """A rank wrapper exited that no mpirun started."""

    rank: int
    code: int
    attempt: int


class StarterConnected(NamedTuple):
    host: str


class StarterLost(NamedTuple):
    host: str


class HostAnswered(NamedTuple):
    host: str
    problem: str = ""


class HostsPrepared(NamedTuple):
    """Answer to `PrepareHosts`: all hosts have their jobs, or which refused and why."""

    failed: Mapping[str, str] = {}


class StopAsked(NamedTuple):
    """By a signal to the supervisor."""

    signal: int


class ExchangeOver(NamedTuple):
    """All hosts have the same checkpoint, or why not, and the host that failed."""

    failure: str = ""
    host: str = ""


class OutputRefused(NamedTuple):
    """Neither disk nor memory had room for a chunk of output; its rank keeps it."""


class DiskHasRoom(NamedTuple):
    """Answer to `LookAtDisk`, if there is room."""


class SilenceSeen(NamedTuple):
    since: float
    ranks: tuple[SilentRank, ...]


class DumpAsked(NamedTuple):
    """A user asks for the stacks of these ranks (None: of all), or the answer to `TakeDump`."""

    id: str
    """Empty: the disk has no room for a dump."""
    ranks: tuple[int, ...] | None = None
    is_own: bool = False


class TimeLeft(NamedTuple):
    asked_at: float
    is_answer: bool
    seconds: int | None = None
    """None: the job has no limit."""


class Closed(NamedTuple):
    """All output is written or given up; has the queue's view of the job, if it was asked."""

    job_shown: str = ""
    is_step_cancelled: bool = False


class Requeued(NamedTuple):
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
    """End what is left of the last attempt, and start mpirun; AttemptStarted or StartFailed follows."""

    after: str = ""


class FindHosts(NamedTuple):
    """Find out in the background which of these hosts can be reached; HostAnswered may follow for each."""

    hosts: tuple[str, ...]


class PrepareHosts(NamedTuple):
    """Write the jobs of the planned attempt to its hosts, in the background; HostsPrepared follows."""


class Send(NamedTuple):
    """Send a message of `messages.py` to a rank, if it is connected."""

    rank: int
    kind: str
    fields: Mapping[str, str] = {}


class Drop(NamedTuple):
    rank: int


class DropStarter(NamedTuple):
    host: str


class CallStarters(NamedTuple):
    """Begin the starters of these hosts again, by logins from node0."""

    hosts: tuple[str, ...]


class Rewind(NamedTuple):
    """Ask a rank for refused output, if any was."""

    rank: int


class EndOutput(NamedTuple):
    rank: int


class SignalMpirun(NamedTuple):
    """Signal mpirun's whole group; without mpirun, the rank wrappers."""

    signal: int


class EndExchange(NamedTuple):
    """End what is left of the exchange of checkpoints."""


class LogEvent(NamedTuple):
    name: str
    fields: Mapping[str, Any]


class AddNote(NamedTuple):
    rank: int
    kind: str
    fields: Mapping[str, Any]


class LookAtDisk(NamedTuple):
    """Check whether the full disk has room again; DiskHasRoom follows if so."""


class LookAtSilence(NamedTuple):
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
    """Begin to ask the queue about the job while the ranks end: the queue itself may be ending them."""


class Requeue(NamedTuple):
    """Requeue the job, which ends all processes of this start; Requeued follows."""


class Close(NamedTuple):
    """Write all output and close its files; Closed follows."""

    patience: float
    """Seconds for a full disk to get room."""
    keeps_connectivity: bool
    """The connections between the nodes worked."""
    asks_job: bool
    """The state of the job decides what the end means."""


class EndJob(NamedTuple):
    state: State


class Finish(NamedTuple):
    """Write the last status; then the supervisor exits."""

    notifies: bool


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

"""State, events and commands of the supervisor: frozen, so that a test can write a run as a list of events with times.

Figures, such as a rank's memory, are not in the state. A `Transition` is one step in progress; it is mutable.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Union

from ipexctl.node.common.node_limits import RANK_SILENCE, RANKS_BEGIN
from ipexctl.node.common.records import RankFigures, RankStatus, RunStatus, State, StopRecord
from ipexctl.node.run.decisions.job_end import JobLimit

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.job import Master, Start
    from ipexctl.node.common.plan import Plan
    from ipexctl.node.common.records import Detail, SilentRank
    from ipexctl.node.common.run_options import RunOptions
    from ipexctl.node.run.connection.messages import Exit, Left, Message, Raised
    from ipexctl.node.run.decisions.launcher_kind import LauncherKind
    from ipexctl.node.run.meter.rank_profile import StepCount


class Moment(NamedTuple):
    clock: float
    epoch: float
    """Seconds since 1970, for the record."""


# The state


class Ending(NamedTuple):
    state: State
    code: int
    at: float = 0.0
    """Monotonic, as are all times in the state."""


class WrapperProcess(NamedTuple):
    pid: int
    start: int
    """Start of the process, because pids are reused (`processes.start_of`)."""
    scope: str
    """Where the pid is valid (`processes.pid_scope`)."""


class RankState(NamedTuple):
    rank: int
    host: str
    status: RankStatus
    instance: str | None = None
    is_connected: bool = False
    received_at: float = 0.0
    disconnected_at: float | None = None
    closed_by_peer: bool = False
    """True if the rank's host closed the connection unannounced: the wrapper exited, or was slow and will reconnect."""
    wrapper: WrapperProcess | None = None
    asked_at: float = float("-inf")
    """When the host was last asked whether the wrapper is gone."""
    gone_at: float | None = None
    """When the host said so."""
    is_leaving: bool = False
    """True if the rank has announced that it will reconnect."""
    lost_at: float = 0.0
    outside_signal: int | None = None
    """Signal that the wrapper got from another process than the supervisor."""
    is_start_failure_noted: bool = False
    exit: Exit | None = None
    left: Left | None = None
    malformed: int = 0
    is_over: bool = False
    """True if all its output has arrived, or the rank is lost."""
    is_released: bool = False
    wrapper_code: int | None = None
    wrapper_ended_at: float | None = None

    @property
    def is_wrapper_gone(self) -> bool:
        """True if the rank's host says that the wrapper has exited."""
        return self.gone_at is not None or self.wrapper_code is not None

    @property
    def has_begun(self) -> bool:
        """True once the rank's wrapper has connected."""
        return self.instance is not None

    @property
    def is_done(self) -> bool:
        """True if nothing more is expected of the rank."""
        return self.is_over or self.status.state == "lost"


class LauncherState(NamedTuple):
    started_at: float
    ended_at: float | None = None
    code: int | None = None
    ranks_ended_at: float | None = None
    was_told_to_end: bool = False
    signalled_at: float = 0.0
    killed_at: float | None = None
    ended_parts: tuple[str, ...] = ()
    """Programs of it that had ended when a wrapper first got a signal that the supervisor did not send."""

    @property
    def was_killed(self) -> bool:
        """True if a signal ended the launcher."""
        return (self.code or 0) < 0

    @property
    def ended_by(self) -> tuple[int | None, int | None]:
        """The launcher's exit code (128+N after signal N) and the signal, or None."""
        code = self.code
        return (code, None) if code is None or code >= 0 else (128 - code, -code)


class StarterState(NamedTuple):
    is_connected: bool = False
    away_since: float = 0.0
    called_at: float = float("-inf")


class HostSearch(NamedTuple):
    began_at: float
    waiting: frozenset[str]
    present: frozenset[str] = frozenset()
    absent: Mapping[str, str] = {}


class DiskState(NamedTuple):
    """The disk with the run's record. If it is full, output stays with the ranks."""

    is_full: bool = False
    since: float = 0.0
    looked_at: float = 0.0
    room_at: float = float("-inf")


class JobState(NamedTuple):
    number: str
    restarts: int = 0
    """How often Slurm requeued the job before."""


class PendingDump(NamedTuple):
    id: str
    is_own: bool
    until: float
    rows: Mapping[int, Json]
    waiting: frozenset[int]


class PendingProfile(NamedTuple):
    """First the ranks count their steps, then they profile the same ones."""

    ids: tuple[str, ...]
    """The request, and those that were made while it was pending, which get the same answer."""
    number: int
    rows: Mapping[int, Json]
    waiting: frozenset[int]
    until: float
    counts: Mapping[int, StepCount] = {}
    seconds: float = 0.0
    """For the steps; 0 until all ranks have counted theirs."""


class SupervisorState(NamedTuple):
    start: Start
    plan: Plan
    """The plan of this attempt; `start.plan` has all hosts."""
    asked: RunOptions
    launcher_kind: LauncherKind
    status: RunStatus
    """The status without ranks and figures."""
    ranks: Mapping[int, RankState]
    created_at: float
    """Start of the supervisor; the time limit counts from here."""
    checked_at: float
    """Last tick."""
    resumed_at: float = 0.0
    """Last resumption of this process after a suspension. The ranks' silence counts from here at the earliest."""
    starvation: float = 1.0
    """How many times as long as on an idle machine the busiest host takes; limits are stretched by it."""
    launcher: LauncherState | None = None
    """None before the first start."""
    starters: Mapping[str, StarterState] = {}
    """Host → its starter; empty if mpirun reaches the hosts by ssh."""
    ending: Ending | None = None
    """None while the attempt goes on."""
    raised_before: Raised | None = None
    """What ended the attempt before, if that was an exception."""
    signalled_at: float | None = None
    """When a wrapper first got a signal that the supervisor did not send."""
    is_exchanging: bool = False
    """True while ranks wait for the checkpoint exchange."""
    search: HostSearch | None = None
    """Set between two attempts of a run with a pool of hosts."""
    asked_at: float = 0.0
    """When hosts were last asked whether they are there."""
    is_preparing: bool = False
    """True while hosts are sent their jobs, before the launcher starts."""
    disk: DiskState = DiskState()
    dumps: tuple[PendingDump, ...] = ()
    stall_dump: str = ""
    """Id of the dump that was taken because all ranks were silent; or empty."""
    profile: PendingProfile | None = None
    """None unless a profile was asked for and ranks have not answered."""
    profiles: int = 0
    """Profiles that were requested so far."""
    job: JobState | None = None
    """None outside of Slurm."""
    limit: JobLimit | None = None
    """What Slurm says of the time left; None outside of a job."""
    is_limit_near: bool = False
    """True once the ranks were told that the job is about to end."""
    has_left_at_notice: bool = False
    """True once a rank has exited after the notice. Others may still be saving, or fail because it is gone."""
    has_noticed: bool = False
    """True once a wrapper has got the notice of a queue."""
    is_asked_to_stop: bool = False
    """True after a signal from ipexctl stop, the call, or the queue."""
    is_closing: bool = False
    """True if no attempt follows."""

    @property
    def is_signal_open(self) -> bool:
        """True while nobody knows yet who sent the ranks a signal that ends them."""
        return self.signalled_at is not None and self.ending is None

    @property
    def restarts_left(self) -> int:
        """Further attempts of the whole run. Copies that go on alone are started again by their wrappers."""
        return 0 if self.asked.keep_going else self.status.restarts - self.status.attempt

    @property
    def has_pool(self) -> bool:
        """True if an attempt may leave out hosts that do not answer."""
        return self.asked.has_pool and len(self.plan.all_hosts) > 1

    @property
    def shell(self) -> tuple[str, ...]:
        """As `Plan.shell`; empty if node0 reaches hosts through their starters."""
        return () if self.plan.has_starters else self.plan.shell

    @property
    def keeps_jobs(self) -> bool:
        """True if job files are kept for another attempt. With a pool of hosts, each attempt has its own files."""
        return self.restarts_left > 0 and not self.has_pool

    @property
    def setup_time(self) -> float:
        """RANK_SILENCE before the command starts. A rank sends nothing while it sources a setup file."""
        return self.patience(RANKS_BEGIN if self.plan.setup else RANK_SILENCE)

    def patience(self, seconds: float) -> float:
        """A limit after which something counts as gone: a busy host is slow."""
        return seconds * self.starvation


def first_state(
    start: Start, launcher_kind: LauncherKind, status: RunStatus, now: Moment, job: JobState | None = None
) -> SupervisorState:
    """Return the state before the first event."""
    limit = JobLimit() if job is not None and job.number else None
    plan = start.plan
    others = {host.name for host in plan.all_hosts} - {status.node0} if plan.has_starters else ()
    starters = {host: StarterState(away_since=now.clock) for host in others}
    ranks, asked = first_ranks(plan), plan.asked
    state = SupervisorState(start, plan, asked, launcher_kind, status, ranks, now.clock, now.clock, now.clock)
    return state._replace(starters=starters, job=job, limit=limit)


def first_ranks(plan: Plan) -> dict[int, RankState]:
    """Return the ranks of an attempt, of which nothing is known yet."""
    return {at.rank: RankState(at.rank, at.host, first_rank_status(at.rank, at.host)) for at in plan.ranks}


def ranks_of_starters(state: SupervisorState) -> dict[str, frozenset[int]]:
    """Return host → the ranks that its starter starts."""
    ranks = state.ranks.values()
    return {host: frozenset(peer.rank for peer in ranks if peer.host == host) for host in state.starters}


def first_rank_status(rank: int, host: str) -> RankStatus:
    """Return the status of a rank before it begins."""
    return RankStatus(rank, host, figures=RankFigures(cpu=0.0, rss=0, out_lines=0, err_lines=0))


# What happens


class Happened(Enum):
    BEGUN = "the caller has sent both requests, and all hosts have their job files"
    OUTPUT_REFUSED = "neither disk nor memory had room for a chunk of output, which stays with its rank"
    DISK_HAS_ROOM = "answer to CHECK_DISK, if the disk has room"


class Tick(NamedTuple):
    received: Mapping[int, float] = {}
    printed_at: float = 0.0
    """When any rank last printed something in this attempt."""
    stepped_at: float = 0.0
    """When the last optimizer step was reported; 0 without one."""
    written_at: float = 0.0
    launcher_log: tuple[str, ...] = ()
    starters: Mapping[str, float] = {}
    starvation: float = 1.0
    """Of the busiest host of the run."""


class RankSent(NamedTuple):
    """`End` comes once all output of the rank is written."""

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
    fix: str = ""


class LauncherExited(NamedTuple):
    code: int


class LauncherPartsEnded(NamedTuple):
    parts: tuple[str, ...]


class WrapperExited(NamedTuple):
    rank: int
    code: int
    attempt: int


class StarterChanged(NamedTuple):
    """A host's starter has connected, or was lost."""

    host: str
    is_connected: bool = True
    refused: int = 0
    """Changed orders, as in `messages.StarterHello`, or changed answers of the last minute."""
    was_heard: bool = True
    """True if the lost connection had brought an answer that was not changed."""


class WrappersGone(NamedTuple):
    """A host's answer to `AskWrappers`: the wrappers of these ranks have exited."""

    wrappers: Mapping[int, WrapperProcess]


class HostAnswered(NamedTuple):
    host: str
    problem: str = ""


class HostsPrepared(NamedTuple):
    failed: Mapping[str, str] = {}
    """Host → reason."""


class StopAsked(NamedTuple):
    signal: int
    stopped: StopRecord = StopRecord()
    """Who asked."""


class ExchangeOver(NamedTuple):
    failure: str = ""
    host: str = ""
    is_changed: bool = False
    """True if somebody on the network changes what is sent."""


class SilenceSeen(NamedTuple):
    since: float
    ranks: tuple[SilentRank, ...]


class TrainingFails(NamedTuple):
    """What a rank trains is to end the run."""

    rank: int
    kind: str
    reason: str
    detail: Detail | None = None


class ReportAsked(NamedTuple):
    """A user asks for the stacks of these ranks (None for all), or for a profile of all. Also follows TAKE_DUMP."""

    id: str
    kind: str = "dump"
    """`dump` or `profile`."""
    ranks: tuple[int, ...] | None = None
    is_own: bool = False


class TimeLeft(NamedTuple):
    asked_at: float
    is_answer: bool
    seconds: int | None = None


class Closed(NamedTuple):
    """All output is written or given up."""

    job_shown: str = ""
    is_step_cancelled: bool = False


Event = Union[
    Happened,
    Tick,
    RankSent,
    Disconnected,
    AttemptStarted,
    StartFailed,
    LauncherExited,
    LauncherPartsEnded,
    WrapperExited,
    WrappersGone,
    StarterChanged,
    HostAnswered,
    HostsPrepared,
    StopAsked,
    ExchangeOver,
    SilenceSeen,
    TrainingFails,
    ReportAsked,
    TimeLeft,
    Closed,
]

# What is to be done


class SupervisorAct(Enum):
    PREPARE_HOSTS = "write the hosts' jobs in the background; HostsPrepared follows"
    END_EXCHANGE = "end the checkpoint exchange, if it is running"
    CHECK_DISK = "check the disk; DISK_HAS_ROOM may follow"
    TAKE_DUMP = "prepare a dump of all stacks; ReportAsked follows"
    ASK_TIME_LEFT = "ask the queue in the background; TimeLeft follows"
    FINISH = "save the record for the last time"
    NOTIFY = "start the command of --notify"
    RELEASE_WAITING = "remove the reservations of the pool's hosts without ranks"
    ASK_JOB = "ask the queue while the ranks end, because the queue may be what ends them"


class StartAttempt(NamedTuple):
    """Start an attempt, after killing processes of the last one; AttemptStarted or StartFailed follows."""

    after: str = ""


class RankAct(Enum):
    DROP = "close the rank's connection"
    REWIND = "ask the rank to send refused output again, if some was refused"
    END_OUTPUT = "count the rest of the rank's output as lost"


class OnRank(NamedTuple):
    act: RankAct
    rank: int


class HostAct(Enum):
    FIND = "check the hosts in the background; HostAnswered may follow for each"
    CALL_STARTERS = "have the hosts' starters begun again"
    DROP_STARTERS = "close the connections of the hosts' starters"


class OnHosts(NamedTuple):
    act: HostAct
    hosts: tuple[str, ...]


class AskWrappers(NamedTuple):
    """Ask a host in the background whether these wrappers have exited; WrappersGone may follow."""

    host: str
    wrappers: Mapping[int, WrapperProcess]


class Send(NamedTuple):
    """Send a message to a rank, if it is connected."""

    rank: int
    kind: str
    fields: Mapping[str, Any] = {}


class SignalLauncher(NamedTuple):
    """Signal the launcher, or the rank wrappers if there is none."""

    signal: int


class LogEvent(NamedTuple):
    name: str
    fields: Mapping[str, Any]


class AddNote(NamedTuple):
    rank: int
    kind: str
    fields: Mapping[str, Any]


class CheckSilence(NamedTuple):
    since: float
    ranks: tuple[int, ...]


class WriteDump(NamedTuple):
    id: str
    rows: tuple[Json, ...]
    unanswered: frozenset[int] = frozenset()
    kind: str = "dump"


class RemoveDump(NamedTuple):
    id: str


class Close(NamedTuple):
    timeout: float
    """Seconds for a full disk to get room."""
    keeps_connectivity: bool
    asks_job: bool


Action = Union[
    SupervisorAct,
    StartAttempt,
    OnRank,
    OnHosts,
    AskWrappers,
    Send,
    SignalLauncher,
    LogEvent,
    AddNote,
    CheckSilence,
    WriteDump,
    RemoveDump,
    Close,
]


class Transition:
    def __init__(self, state: SupervisorState, now: Moment) -> None:
        self.state, self.now = state, now
        self.commands: list[Action] = []
        self._ranks: dict[int, RankState] | None = None

    @property
    def ranks(self) -> list[RankState]:
        """The ranks as they are now."""
        return list(self.state.ranks.values())

    def set(self, **fields: Any) -> None:
        """Change fields of the state."""
        self.state = self.state._replace(**fields)

    def set_status(self, **fields: Any) -> None:
        """Change fields of the run's status."""
        self.set(status=self.state.status._replace(**fields))

    def set_launcher(self, **fields: Any) -> None:
        """Change fields of the launcher, which must have been started."""
        assert self.state.launcher is not None, "the launcher is not started"
        self.set(launcher=self.state.launcher._replace(**fields))

    def set_rank(self, rank: int, **fields: Any) -> RankState:
        """Change fields of a rank, and return it as it is then."""
        if self._ranks is None or self.state.ranks is not self._ranks:
            self._ranks = dict(self.state.ranks)
            self.set(ranks=self._ranks)
        self._ranks[rank] = self._ranks[rank]._replace(**fields)
        return self._ranks[rank]

    def set_rank_status(self, rank: int, **fields: Any) -> RankState:
        """Change fields of a rank's status, and return the rank as it is then."""
        return self.set_rank(rank, status=self.state.ranks[rank].status._replace(**fields))

    def do(self, command: Action) -> None:
        """Add an action for the supervisor, after those that were added before."""
        self.commands.append(command)

    def send(self, rank: int, kind: str, **fields: Any) -> None:
        """Add a message to a rank."""
        self.do(Send(rank, kind, fields))

    def log(self, name: str, **fields: Any) -> None:
        """Add an event to events.jsonl."""
        self.do(LogEvent(name, fields))

    def log_of(self, peer: RankState, name: str, **fields: Any) -> None:
        """Add an event of a rank to events.jsonl."""
        self.do(LogEvent(name, {"rank": peer.rank, "host": peer.host, **fields}))

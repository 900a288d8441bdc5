"""A run as its supervisor sees it: events with times go in, and the machine's state and commands are looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ipexctl.node.common.job import HomeJob, Master, Start
from ipexctl.node.common.processes import ProcessIdentity
from ipexctl.node.common.records import Failure, RunStatus, Silence, SilentRank
from ipexctl.node.run.connection import messages
from ipexctl.node.run.decisions import supervisor_machine
from ipexctl.node.run.decisions import supervisor_state as m
from ipexctl.node.run.supervisor.launcher import launcher_kind_of
from plan_helpers import small_plan

EPOCH = 1_700_000_000.0
Kind = TypeVar("Kind")

_ASKED = (
    *("time_limit", "max_restarts", "min_hosts", "checkpoint", "checkpoint_is_found", "hang_after"),
    *("on_hang", "meter", "is_followed", "keep_going"),
)
"""The plan has a field with the same name as some other options."""


class Supervised:
    """`ranks` ranks, two on each of node1, node2 …; the supervisor is on node1. The clock begins at 0."""

    def __init__(
        self,
        ranks: int = 2,
        *,
        per_host: int = 2,
        job: m.JobState | None = None,
        notify: str = "",
        **given: Any,
    ) -> None:
        """`given`: options of the call, and fields of the plan."""
        hosts = [f"node{rank // per_host + 1}" for rank in range(ranks)]
        asked = {name: given.pop(name) for name in _ASKED if name in given}
        plan = small_plan(hosts, asked=asked, **given)
        start = Start(plan, HomeJob(plan.rundir, "t" * 64), notify=notify)
        status = RunStatus(
            "r", "starting", node0="node1", restarts=plan.asked.max_restarts, supervisor=ProcessIdentity(1)
        )
        self.clock = 0.0
        self.jump = 0.0
        """By which the time of day differs."""
        self.state = m.first_state(start, launcher_kind_of(plan), status, self.now, job)
        self.commands: list[m.Action] = []
        """Since `at` or `run_until` was called last."""
        self.silent_since: dict[int, float] = {}
        """Rank → when it has sent something last, if that is not now."""
        self.cpu: float | None = None
        self.quiet_since: float | None = None
        """When a rank has printed something last, if that is not now."""
        self.alive: set[int] = set()
        """Ranks whose hosts say that the wrapper runs; the others say that it is gone."""
        self.dumps = 0
        """That were taken without being asked for: d1, d2 …"""
        self.has_room_for_dumps = True
        self.looks: dict[str, Any] = {}
        """What else each tick sees."""

    @property
    def now(self) -> m.Moment:
        return m.Moment(self.clock, EPOCH + self.clock + self.jump)

    def at(self, clock: float, *events: m.Event) -> Supervised:
        """Handle events at that time. What can be done at once, such as the start of mpirun, is done at once."""
        self.clock, self.commands = clock, []
        for event in events:
            self._handle(event)
        return self

    def _handle(self, event: m.Event) -> None:
        self.state, commands = supervisor_machine.advance(self.state, event, self.now)
        self.commands += commands
        for command in commands:
            if isinstance(command, m.StartAttempt):
                is_exchanging = bool(self.state.plan.exchanged)
                self._handle(m.AttemptStarted(100, Master("node1", 1234), is_exchanging))
            elif isinstance(command, m.CheckSilence):
                hosts = {rank: self.state.ranks[rank].host for rank in command.ranks}
                rows = tuple(SilentRank(rank, host, "step 7", self.cpu) for rank, host in hosts.items())
                self._handle(m.SilenceSeen(command.since, rows))
            elif isinstance(command, m.AskWrappers):
                gone = {rank: each for rank, each in command.wrappers.items() if rank not in self.alive}
                self._handle(m.WrappersGone(gone))
            elif command is m.SupervisorAct.TAKE_DUMP:
                self.dumps += self.has_room_for_dumps
                self._handle(m.ReportAsked(f"d{self.dumps}" if self.has_room_for_dumps else "", is_own=True))

    def run_until(self, clock: float) -> Supervised:
        """Look at everything as often as the supervisor does, until that time."""
        self.commands = []
        while self.clock < clock:
            self.clock = min(clock, self.clock + supervisor_machine.check_interval(self.state))
            self._handle(self.tick())
        return self

    def tick(self) -> m.Tick:
        received = {
            peer.rank: self.silent_since.get(peer.rank, self.clock)
            for peer in self.state.ranks.values()
            if peer.is_connected
        }
        printed_at = self.clock if self.quiet_since is None else self.quiet_since
        return m.Tick(received, printed_at, **self.looks)

    def begin(self, *ranks: int, pids: bool = True) -> Supervised:
        """mpirun starts, and these ranks (all by default) connect and start their commands."""
        self.at(self.clock, m.Happened.BEGUN)
        return self.connect(*ranks, pids=pids)

    def connect(self, *ranks: int, pids: bool = True) -> Supervised:
        for rank in ranks or self.state.ranks:
            self._handle(
                m.RankSent(rank, messages.Hello(rank, f"wrapper of {rank}", "node", 1000 + rank, None, 7, "scope"))
            )
            if pids:
                self._handle(m.RankSent(rank, messages.Started(2000 + rank)))
        return self

    def end(self, clock: float, *ranks: int, code: int = 0, launcher: int | None = None) -> Supervised:
        """These ranks (all by default) exit and have sent all output; with `launcher`, that ends with this code."""
        self.at(clock)
        for rank in ranks or self.state.ranks:
            self._handle(exit_of(rank, code))
            self._handle(m.RankSent(rank, messages.End({})))
        if launcher is not None:
            self._handle(m.LauncherExited(launcher))
        return self

    def stopped_ranks_end(self, clock: float, launcher: int = 1) -> Supervised:
        """The ranks that still run end by SIGTERM, all output arrives, and the launcher exits after them."""
        self.at(clock)
        for peer in list(self.state.ranks.values()):
            if peer.exit is None and peer.is_connected:
                self._handle(exit_of(peer.rank, 143, is_own=False, signal=15))
            if not peer.is_over and peer.is_connected:
                self._handle(m.RankSent(peer.rank, messages.End({})))
        self._handle(m.LauncherExited(launcher))
        return self

    # What came of it

    def done(self, kind: type[Kind]) -> list[Kind]:
        return [command for command in self.commands if isinstance(command, kind)]

    def acts(self, act: m.SupervisorAct) -> list[m.SupervisorAct]:
        return [act for command in self.commands if command is act]

    def of_ranks(self, act: m.RankAct) -> list[int]:
        return [command.rank for command in self.done(m.OnRank) if command.act is act]

    def of_hosts(self, act: m.HostAct) -> list[tuple[str, ...]]:
        return [command.hosts for command in self.done(m.OnHosts) if command.act is act]

    def sent(self, kind: str) -> list[int]:
        return [send.rank for send in self.done(m.Send) if send.kind == kind]

    def logged(self, name: str) -> list[Mapping[str, Any]]:
        return [event.fields for event in self.done(m.LogEvent) if event.name == name]

    @property
    def ending(self) -> tuple[str, int] | None:
        return self.state.ending and (self.state.ending.state, self.state.ending.code)

    def silences(self) -> list[Silence]:
        """The one of the status, if it has one."""
        silent = self.state.status.silent
        return [] if silent is None else [silent]

    @property
    def reason(self) -> str:
        return self.state.status.reason

    @property
    def first(self) -> Failure:
        first = self.state.status.first_failure
        assert first is not None
        return first

    @property
    def blamed(self) -> tuple[str, int | None, str | None, list[int]]:
        return self.first.kind, self.first.rank, self.first.host, list(self.first.ranks)

    def states(self, ranks: Iterable[int] = ()) -> list[str]:
        return [self.state.ranks[rank].status.state for rank in ranks or self.state.ranks]


def exit_of(rank: int, code: int, *, is_own: bool = True, **more: Any) -> m.RankSent:
    return m.RankSent(rank, messages.Exit(code, is_own, **more))


def closed_by_peer(rank: int, received_at: float = 0.0) -> m.Disconnected:
    return m.Disconnected(rank, received_at, closed_by_peer=True)

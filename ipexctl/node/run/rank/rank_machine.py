"""Decides what a rank wrapper does. Pure; `__main__.py` acts.

The wrapper never exits before its command. The supervisor decides when the wrapper may exit, unless the supervisor is
lost. After a reconnect, everything is reported again.
"""

from __future__ import annotations

import signal
from enum import Enum
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence, Tuple, Union

from ipexctl.node.common.node_limits import OUTPUT_DRAIN, TERM_GRACE
from ipexctl.node.run.connection.supervisor_contact import BEAT_INTERVAL

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.processes import ProcessIdentity
    from ipexctl.node.common.records import Detail
    from ipexctl.node.run.connection.supervisor_contact import Contact

NEVER = float("inf")
EXITED_BEAT_INTERVAL = 1.0
"""Seconds between two beats once the command has exited, so that the rank gives up soon if the supervisor is silent."""
FIRST_MEMORY_INTERVAL = 0.1
"""Seconds from the command's start until its cgroups are first read; doubles each time. A script that starts a program
in another cgroup does so soon."""
STOPPED_DRAIN = 0.3
"""Replaces OUTPUT_DRAIN if the command was stopped, because its remaining processes already got SIGTERM."""
KILL_INTERVAL = 1.0
"""Seconds between two SIGKILLs, because a process may have started others in between."""
CONNECT_TURN, BUSY_TURN = 0.2, 0.5
"""Seconds between two turns: before the first welcome, and while a connection, a dump or an exit is pending."""
_OF_ONE_START = (
    *("pid", "mismatches", "not_started", "raised", "raised_at", "raised_code", "raised_text", "stuck", "exit"),
    *("kill_at", "drain_until", "memory_at", "memory_interval", "has_killed", "had_ended", "left"),
)
"""Fields that begin anew when a copy is started again."""
NOTICE_SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
"""Signals for a job that is about to end. The command is sent the first one that it handles."""
SUPERVISOR_LOST = 112


class Phase(Enum):
    CONNECTING = "the supervisor has not decided yet whether to start the command"
    WAITING = "the command waits for the end of the checkpoint exchange, or for the ports of all ranks"
    RUNNING = "the command is started, or about to be"
    STOPPING = "the command was told to exit, and is killed after the grace period; it may never have been started"
    EXITED = "the command has exited, and its output is read to the end"
    DONE = "no process of the command is left; the rest of its output is sent"


PHASES = {
    Phase.CONNECTING: (Phase.WAITING, Phase.RUNNING, Phase.STOPPING),
    Phase.WAITING: (Phase.RUNNING, Phase.STOPPING),
    Phase.RUNNING: (Phase.STOPPING, Phase.EXITED),
    Phase.STOPPING: (Phase.EXITED,),
    Phase.EXITED: (Phase.DONE,),
    Phase.DONE: (),
}


class Bond(Enum):
    HELD = "the supervisor takes the output, now or after a reconnect"
    RELEASED = "the supervisor has everything: the rank may exit"
    LOST = "the supervisor is gone: the rank ends its command and exits"
    REPLACED = "the run was restarted without this rank: as LOST, but the job file is the next attempt's"


BONDS = {
    Bond.HELD: (Bond.RELEASED, Bond.LOST, Bond.REPLACED),
    Bond.RELEASED: (Bond.LOST, Bond.REPLACED),
    Bond.LOST: (Bond.REPLACED,),
    Bond.REPLACED: (),
}


class Act(Enum):
    START_COMMAND = "start the command; calls `on_started` or `on_not_started`"
    START_EXCHANGE = "start the checkpoint-exchange process"
    END_EXCHANGE = "end the checkpoint-exchange process, if it is running"
    GIVE_UP_CONNECTING = "exit, because the supervisor can't be reached"
    TERMINATE = "send SIGTERM to the command"
    KILL = "send SIGKILL to all processes of the command"
    CLEAN_UP = "kill the command's remaining processes, and read its output to the end"
    SEND_BEAT = "send CPU and memory figures of the command's processes"
    SEND_WINDOWS = "send the meter's windows"
    CHECK_MEMORY = "read the command's cgroups, and on which NUMA nodes its memory is"
    READ_HOST = "read the host's network interface"
    READ_METER = "read the meter, and send its windows"
    FINISH_METER = "read the meter for the last time"
    CHECK_RAISED = "check whether the process that raised an exception has exited; calls `on_raised_checked`"


class SendReport(NamedTuple):
    """A message for the supervisor. Dropped without a connection, because a reconnect reports the state again."""

    t: str
    fields: Mapping[str, Any]


class Resume(NamedTuple):
    welcome: Json


class PassOn(NamedTuple):
    """Send the command the first of these signals that it handles."""

    signals: tuple[int, ...]
    is_notice: bool = False


class ExplainExit(NamedTuple):
    was_killed: bool
    """True if SIGKILL ended it."""
    has_failed: bool
    memory: int


Command = Union[Act, SendReport, Resume, PassOn, ExplainExit]
Step = Tuple["WrapperState", Tuple[Command, ...]]


class Turn(NamedTuple):
    contact: Contact
    window_end: float = NEVER
    next_read: float = NEVER
    is_read: bool = False
    is_dumping: bool = False


class WrapperState(NamedTuple):
    is_lowest: bool = False
    """True for the rank that takes part in the checkpoint exchange for all ranks of its home."""
    phase: Phase = Phase.CONNECTING
    bond: Bond = Bond.HELD
    lost_reason: str = ""
    """Why the supervisor is lost; empty while it is not."""
    attempt: int | None = None
    """None until the supervisor's first welcome."""
    exchange_port: int | None = None
    """Port of the checkpoint exchange; None without one, and once it is over."""
    exchange_problem: str = ""
    """Why the checkpoint exchange failed on this host, which ends the run."""
    keeps_going: bool = False
    """True if the command is a copy that ends, and starts again, without the others."""
    restarts_left: int = 0
    """Of a copy that keeps going."""
    restarts: int = 0
    """How often the copy was started again."""
    will_restart: bool = False
    """True once a copy has failed, until it is started again."""
    last_code: int | None = None
    """Exit code of the command before, if it was started again."""
    port: int | None = None
    """What `{port}` in the command stands for; None without one."""
    awaits_peers: bool = False
    """True if the command has `{peers}`, until the supervisor sends the ports of all ranks."""
    pid: int | None = None
    """The command's; None until it is started."""
    mismatches: tuple[str, ...] = ()
    """Sentences that say where cores and memory differ from the plan."""
    not_started: str = ""
    """Why the command could not be started; or empty."""
    raised: ProcessIdentity | None = None
    """The process of the command that raised an exception and has not exited; or None."""
    raised_at: float = NEVER
    patience: float = 0.0
    """Seconds for that process to exit."""
    raised_code: int = 0
    raised_text: str = ""
    raised_place: str = ""
    """File and line of that exception."""
    stuck: Json | None = None
    """Report that this process did not exit in time, sent again after a reconnect."""
    exit: Json | None = None
    """Report of the end of the command; None until then."""
    kill_at: float = NEVER
    """Monotonic, as are all times here: when SIGKILL follows."""
    drain_until: float = NEVER
    """When the rest of the output is given up, after the end of the command."""
    beat_at: float = 0.0
    poll_at: float = 0.0
    memory_at: float = NEVER
    memory_interval: float = FIRST_MEMORY_INTERVAL
    has_killed: bool = False
    had_ended: bool = False
    """True if the command had exited when it was told to."""
    left: Json | None = None
    """Set once its script has ended without an exception, before it was told to: rank 0 keeps its TCP store then."""
    end_sent: bool = False
    """True once the supervisor was told that all output is sent, on this connection."""
    outside_signal: int | None = None
    """The first signal that ends the wrapper, from any process but the supervisor, if the command was running."""

    @property
    def is_lost(self) -> bool:
        """True if nobody takes the rank's output any more, so the rank ends its command."""
        return self.bond in (Bond.LOST, Bond.REPLACED)

    @property
    def may_run(self) -> bool:
        """True until the command is told to exit or has exited; it may not be started yet."""
        return self.phase in (Phase.CONNECTING, Phase.WAITING, Phase.RUNNING)

    @property
    def is_over(self) -> bool:
        """True if the wrapper may exit: no process of the command is left, and the supervisor has everything or is
        lost."""
        return self.phase is Phase.DONE and self.bond is not Bond.HELD

    @property
    def exit_code(self) -> int:
        """The wrapper's exit code: the command's, or SUPERVISOR_LOST."""
        if self.is_lost:
            return SUPERVISOR_LOST
        return int(self.exit["code"]) if self.exit is not None else 0

    @property
    def owns_job_file(self) -> bool:
        """True if the wrapper removes the job file at its end. Otherwise the supervisor says when."""
        return self.bond is Bond.LOST

    def enter(self, phase: Phase) -> WrapperState:
        """Return the state in the next phase, which must be one that PHASES allows."""
        assert phase in PHASES[self.phase], f"{self.phase.name} does not become {phase.name}"
        return self._replace(phase=phase)

    def change_bond(self, bond: Bond) -> WrapperState:
        """Return the state with another bond; unchanged if BONDS does not allow that."""
        return self._replace(bond=bond) if bond in BONDS[self.bond] else self

    # The supervisor

    def on_welcome(self, welcome: Json, now: float) -> Step:
        """Handle the first welcome, or one after a reconnect: all that was reported is reported again.

        A welcome of another attempt means that the run goes on without this rank.
        """
        attempt = int(welcome.get("attempt") or 0)
        if self.attempt not in (None, attempt):
            return self._lose(Bond.REPLACED, "the run was restarted without it", now)
        port = welcome.get("checkpoint_port")
        state = self._replace(attempt=attempt, exchange_port=port if isinstance(port, int) else None, end_sent=False)
        if self.attempt is None and self.phase is Phase.CONNECTING and welcome.get("stop"):
            state = state.enter(Phase.STOPPING)  # the run ended before this rank connected
        reports: list[Command] = []
        if state.awaits_peers:
            reports.append(SendReport("port", {"port": state.port}))
        if state.pid is not None or state.not_started:
            reports += state._start_reports()
        if state.left is not None:
            reports.append(SendReport("left", state.left))
        if state.stuck is not None:
            reports.append(SendReport("stuck", state.stuck))
        if state.outside_signal is not None:
            reports.append(SendReport("outside-signal", {"signal": state.outside_signal}))
        if state.exchange_problem:
            reports.append(SendReport("checkpoint-failed", {"reason": state.exchange_problem}))
        has_ended = state.exit is not None and not state.will_restart
        exit_report = [SendReport("exit", state.exit or {})] if has_ended else []
        return state, (Resume(welcome), *reports, Act.SEND_WINDOWS, *exit_report)

    def on_message(self, t: str, now: float) -> Step:
        """Handle a message of the supervisor by its type. Other types change nothing."""
        if t == "stop":
            return self._stop(now)
        if t == "begin":
            return self._replace(exchange_port=None), ()
        if t == "peers":
            return self._replace(awaits_peers=False), ()
        if t == "notice":
            return self, (PassOn(NOTICE_SIGNALS, is_notice=True),) if self._can_be_signalled else ()
        if t == "release":
            state = self.change_bond(Bond.RELEASED)
            # The supervisor has waited long enough for a command that has not exited.
            return (state if self.exit is not None else state._replace(kill_at=now)), ()
        return self, ()

    def on_all_sent(self, ends: Json) -> Step:
        """Report the end of the output, once on each connection. `ends`: stream → bytes. While a process may still
        print, do nothing."""
        if self.phase is not Phase.DONE or self.end_sent:
            return self, ()
        return self._replace(end_sent=True), (SendReport("end", {"ends": ends}),)

    # The command

    def on_started(self, pid: int, mismatches: tuple[str, ...], now: float, port: int | None = None) -> Step:
        """Report that the command was started, with what differs from the plan."""
        state = self._replace(pid=pid, mismatches=mismatches, poll_at=self.beat_at, port=port)
        state = state._replace(memory_at=now + FIRST_MEMORY_INTERVAL)
        return state, (*state._start_reports(), Act.READ_METER)

    def on_mismatch(self, text: str) -> Step:
        """Report something more that differs from the plan."""
        return self._replace(mismatches=(*self.mismatches, text)), (SendReport("mismatch", {"text": text}),)

    def on_not_started(
        self, reason: str, code: int, problem: Detail | None, mismatches: tuple[str, ...], now: float
    ) -> Step:
        """End without a command. The supervisor writes `reason` into the rank's stderr, where users look."""
        state = self._replace(not_started=reason, mismatches=mismatches)
        reports = state._start_reports()
        state, commands = state._end(code, None, now, problem=problem)
        return state, (*reports, *commands)

    def on_ended(self, code: int, by: int | None, memory: int, now: float) -> Step:
        """Note that the command exited. `by`: the signal that ended it; `memory`: its peak in bytes."""
        if self.exit is not None:
            return self, ()
        return self._end(code, by, now, memory=memory)

    def on_exit_explained(
        self,
        oom: Json | None,
        disk: Json | None,
        steps: int | None = None,
        problem: Detail | None = None,
        evidence: Sequence[Json] = (),
    ) -> Step:
        """Report the command's exit with its explanation. The exit of a copy that is started again is not reported.

        `steps`: optimizer steps, None if not counted. `problem`: replaces the report's problem, unless None.
        """
        assert self.exit is not None
        report = {**self.exit, "oom": oom, "disk": disk, "evidence": list(evidence)}
        if self.raised is not None and self.raised_place and self.exit["code"] == self.raised_code:
            report["raised"] = {"text": self.raised_text, "place": self.raised_place, "steps": steps}
        if problem is not None:
            report["problem"] = problem._asdict()
        read = (Act.FINISH_METER, Act.SEND_WINDOWS)
        ended = () if self.will_restart else (SendReport("exit", report),)
        return self._replace(exit=report), (*read, *ended)

    def on_left(self, steps: int | None) -> Step:
        """Note that the command's script has ended; its process may still be needed."""
        if self.phase is not Phase.RUNNING:
            return self, ()
        left = {"steps": steps}
        return self._replace(left=left), (SendReport("left", left),)

    def on_raised(
        self, process: ProcessIdentity, code: int, text: str, place: str, now: float, patience: float
    ) -> Step:
        """Note an uncaught exception that is ending a process; only the first one counts. `patience`:
        seconds for it to exit."""
        if self.raised is not None:
            return self, ()
        state = self._replace(raised=process, raised_at=now, patience=patience, raised_code=code, raised_text=text)
        return state._replace(raised_place=place), ()

    def on_raised_checked(self, now: float, *, is_alive: bool) -> Step:
        """Decide about the process that raised an exception, once its time to exit is over.

        If it still exists, it is reported as stuck, or ended if it is a copy. If it is gone, the exception is
        forgotten: a shell script continues without it.
        """
        if not is_alive:  # a shell script continues without it
            return self._replace(raised=None, raised_at=NEVER), ()
        stuck = {"code": self.raised_code, "text": self.raised_text, "seconds": round(self.patience)}
        if self.keeps_going:  # the others run on, so the supervisor ends nothing
            return self._replace(stuck=stuck, kill_at=now + TERM_GRACE), (Act.TERMINATE,)
        return self._replace(stuck=stuck), (SendReport("stuck", stuck),)

    def on_exchange_ended(self, problem: str) -> Step:
        """Note that the exchange process exited. `problem`: why it failed, unless it told the supervisor itself."""
        if not problem or self.phase is not Phase.WAITING:
            return self, ()
        return self._replace(exchange_problem=problem), (SendReport("checkpoint-failed", {"reason": problem}),)

    def on_signal(self, number: int, now: float) -> Step:
        """Pass SIGUSR1 and SIGUSR2 to the command; any other signal ends it."""
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            return self, (PassOn((number,)),) if self._can_be_signalled else ()
        state, commands = self._stop(now)
        if not self.may_run or self.is_lost:
            return state, commands
        return state._replace(outside_signal=number), (SendReport("outside-signal", {"signal": number}), *commands)

    # The time

    def on_turn(self, turn: Turn, now: float) -> Step:
        """Decide what time alone makes due: a lost supervisor, the start, beats, measurements, SIGKILL and the end."""
        if self.attempt is None:
            return self, (Act.GIVE_UP_CONNECTING,) if turn.contact.is_lost(now) else ()
        state, on_loss = self._check_supervisor(turn, now)
        state, to_begin = state._begin(now)
        state, beat = state._beat(now)
        state, figures = state._measure(turn, now)
        state, check = state._check_raised(now)
        state, kill = state._kill(now)
        state, clean_up = state._clean_up(turn, now)
        return state, (*on_loss, *to_begin, *beat, *figures, *check, *kill, *clean_up)

    def next_turn(self, turn: Turn, now: float) -> float:
        """Return the monotonic time at which the next turn is due."""
        if self.attempt is None:
            return now + CONNECT_TURN
        if self.phase is Phase.EXITED and turn.is_read:
            return now
        is_quiet = turn.contact.is_up and self.exit is None and not turn.is_dumping
        times = [self.kill_at, self.drain_until, self.beat_at]
        if self._is_measured:
            times.append(self.memory_at)
        if self.stuck is None:
            times.append(self.raised_at + self.patience)
        return min(*times, *((turn.window_end, turn.next_read) if is_quiet else (now + BUSY_TURN,)))

    def _check_supervisor(self, turn: Turn, now: float) -> Step:
        if self.is_lost or not turn.contact.is_lost(now):
            return self, ()
        return self._lose(Bond.LOST, turn.contact.reason, now)

    def _begin(self, now: float) -> Step:
        if self.phase is Phase.STOPPING and self.pid is None and self.exit is None:
            return self._end_without_command(now)
        if self.phase not in (Phase.CONNECTING, Phase.WAITING):
            return self, ()
        if self.exchange_port is None and not self.awaits_peers:
            return self.enter(Phase.RUNNING), (Act.START_COMMAND,)
        if self.phase is Phase.WAITING:
            return self, ()
        begins_exchange = self.is_lowest and self.exchange_port is not None
        return self.enter(Phase.WAITING), (Act.START_EXCHANGE,) if begins_exchange else ()

    def _beat(self, now: float) -> Step:
        if now < self.beat_at:
            return self, ()
        interval = BEAT_INTERVAL if self.exit is None else EXITED_BEAT_INTERVAL
        return self._replace(beat_at=now + interval), (Act.SEND_BEAT,)

    def _measure(self, turn: Turn, now: float) -> Step:
        if not self._is_measured:
            return self, ()
        state = self
        acts: list[Act] = []
        if now >= self.memory_at:
            interval = min(2 * self.memory_interval, BEAT_INTERVAL)
            state = state._replace(memory_at=now + interval, memory_interval=interval)
            acts.append(Act.CHECK_MEMORY)
        if now >= turn.next_read:
            acts.append(Act.READ_HOST)
        if now >= min(self.poll_at, turn.window_end):
            state = state._replace(poll_at=now + BEAT_INTERVAL)
            acts.append(Act.READ_METER)
        return state, tuple(acts)

    def _check_raised(self, now: float) -> Step:
        is_due = self.stuck is None and now >= self.raised_at + self.patience
        return self, (Act.CHECK_RAISED,) if is_due else ()

    def _kill(self, now: float) -> Step:
        if now < self.kill_at:
            return self, ()
        return self._replace(kill_at=now + KILL_INTERVAL, has_killed=True), (Act.KILL,)

    def _clean_up(self, turn: Turn, now: float) -> Step:
        if self.phase is not Phase.EXITED or not (turn.is_read or now >= self.drain_until):
            return self, ()
        if self.will_restart:
            again = self._replace(
                phase=Phase.RUNNING,
                will_restart=False,
                restarts_left=self.restarts_left - 1,
                restarts=self.restarts + 1,
                last_code=self.exit["code"] if self.exit is not None else None,
                **{name: WrapperState._field_defaults[name] for name in _OF_ONE_START},
            )
            return again, (Act.CLEAN_UP, Act.START_COMMAND)
        return self.enter(Phase.DONE)._replace(kill_at=NEVER, drain_until=NEVER), (Act.CLEAN_UP,)

    @property
    def _is_measured(self) -> bool:
        return self.pid is not None and self.exit is None

    @property
    def _can_be_signalled(self) -> bool:
        return self.phase is Phase.RUNNING and self.pid is not None

    def _start_reports(self) -> list[Command]:
        fields = {"pid": self.pid, "port": self.port, "restarts": self.restarts, "exit_code": self.last_code}
        start = SendReport("start", fields) if self.pid is not None else None
        start = start or SendReport("not-started", {"reason": self.not_started})
        return [start, *(SendReport("mismatch", {"text": text}) for text in self.mismatches)]

    def _lose(self, bond: Bond, reason: str, now: float) -> Step:
        return self.change_bond(bond)._replace(lost_reason=reason)._stop(now)

    def _stop(self, now: float) -> Step:
        if self.phase is Phase.WAITING:
            return self._end_without_command(now)
        if self.will_restart:  # between two starts of a copy
            return self._replace(will_restart=False), (SendReport("exit", self.exit or {}),)
        if not self.may_run:
            return self, ()
        return self.enter(Phase.STOPPING)._replace(kill_at=now + TERM_GRACE), (Act.TERMINATE,)

    def _end_without_command(self, now: float) -> Step:
        state = self if self.phase is Phase.STOPPING else self.enter(Phase.STOPPING)
        state, commands = state._end(128 + signal.SIGTERM, signal.SIGTERM, now)
        return state.enter(Phase.DONE)._replace(kill_at=NEVER, drain_until=NEVER), (Act.END_EXCHANGE, *commands)

    def _end(self, code: int, by: int | None, now: float, *, memory: int = 0, problem: Detail | None = None) -> Step:
        if self.stuck is not None:  # the exception is the cause, not the signal that ended the process
            code, by = self.stuck["code"], None
        was_stopped = self.phase is Phase.STOPPING
        if was_stopped and self.left is not None and by in (signal.SIGKILL, signal.SIGTERM):
            code, by = 0, None
        is_own = not was_stopped or self.left is not None or self.had_ended
        report = {
            "code": code,
            "signal": by,
            "is_own": is_own,
            "oom": None,
            "problem": problem._asdict() if problem is not None else None,
            "disk": None,
        }
        state = self.enter(Phase.EXITED)._replace(
            exit=report,
            will_restart=bool(code) and is_own and self.restarts_left > 0 and self.pid is not None,
            beat_at=min(self.beat_at, now + EXITED_BEAT_INTERVAL),
            drain_until=now + (STOPPED_DRAIN if was_stopped else OUTPUT_DRAIN),
        )
        return state, (ExplainExit(is_own and by == signal.SIGKILL, bool(code) and is_own, memory),)

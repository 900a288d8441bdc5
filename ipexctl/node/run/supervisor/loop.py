"""The supervisor of a run on node0: it owns sockets, files, signals, processes and the clock.

Whatever happens becomes an event. `supervisor_machine.py` decides: it turns an event into actions, and `self.actions`
has the method for each. Output goes from its connection to its file without an event, and so do figures, because
neither changes what the supervisor does. A nan loss, a resumed run that starts over, and output that a full disk
refuses do change that, so they become events. SIGTERM stops the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import threading
import time
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, Callable, Collection, Iterable, Literal, Mapping, Sequence

from ipexctl.node.common import listener
from ipexctl.node.common.clock import MOST_STARVATION, starvation
from ipexctl.node.common.environ import SetupError
from ipexctl.node.common.files import (
    make_private_directory,
    read_json,
    remove_file,
    write_atomically,
    write_json_atomically,
)
from ipexctl.node.common.fix import Fix, fix_to_json
from ipexctl.node.common.home_entries import drop_kept_copies
from ipexctl.node.common.job import (
    CONNECTIVITY_FILE,
    STARTERS_FILE,
    Listen,
    Master,
    Start,
    StarterContact,
    job_file,
    jobs_of,
    starter_request,
)
from ipexctl.node.common.node_limits import FULL_DISK_FLUSH, NOTIFY, NOTIFY_CLAIM, STARTER_CALL
from ipexctl.node.common.plan import program_line
from ipexctl.node.common.processes import has_exited
from ipexctl.node.common.records import (
    Detail,
    RunStatus,
    SilentRank,
    Untrained,
    describe_apart,
    has_gone_on,
    read_status,
)
from ipexctl.node.common.token_proof import SHELL, derive_token, ready, wake_on_signal
from ipexctl.node.common.training import RankTraining
from ipexctl.node.run.connection import messages
from ipexctl.node.run.connection.master_port import PortError, check_master_port
from ipexctl.node.run.decisions import supervisor_machine, verdict
from ipexctl.node.run.decisions import supervisor_state as m
from ipexctl.node.run.decisions.job_end import is_step_cancelled
from ipexctl.node.run.host_starter.remote_shell import SHELL_FILE
from ipexctl.node.run.meter.rank_profile import RankProfile
from ipexctl.node.run.meter.step_windows import StepWindow
from ipexctl.node.run.record import recorder, stack_dumps, stop_file
from ipexctl.node.run.supervisor.figures import UNHEARD, RunFigures
from ipexctl.node.run.supervisor.host_calls import HostCalls, gone_ranks
from ipexctl.node.run.supervisor.launcher import LaunchLog, launcher_kind_of, shell_environment, start_attempt
from ipexctl.node.run.supervisor.rank_connections import RankConnection, RankConnections
from ipexctl.node.run.supervisor.run_job import RunJob
from ipexctl.node.run.supervisor.shell_connections import ShellConnections

if TYPE_CHECKING:
    import socket

    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.plan import HostPlan, Plan
    from ipexctl.node.common.training import RankProgress
    from ipexctl.node.run.supervisor.checkpoint_exchange import CheckpointExchange
    from ipexctl.node.run.supervisor.host_calls import HostAnswer
    from ipexctl.node.run.supervisor.launcher import AttemptProcesses

MINIMUM_TURN = 0.01
"""Shortest turn in seconds while output arrives, so that many small chunks are handled together."""


CHECKPOINT_INTERVAL = 5.0
STARTER_HEARD = 6.0
"""A host starter is running if it sent a message within this many seconds. It sends one every four."""


BY_OWN_KEYS = ("ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={STARTER_CALL:.0f}")
MOST_OF_LINE = 200
CallKind = Literal["wrappers", "starters", "hosts"]
_GPU = re.compile(r"\b(?:gpus?|cuda|nccl|accelerators?)\b", re.IGNORECASE)


def now() -> m.Moment:
    """Return the present moment by both clocks: the monotonic one for waits, seconds since the epoch for the record."""
    return m.Moment(time.monotonic(), time.time())


class SupervisorLoop:
    def __init__(
        self, request: Listen, start: Start, listeners: list[socket.socket], addresses: tuple[str, str, str]
    ) -> None:
        """`addresses`: this supervisor's address for ranks on node0, its address for other hosts, and its port."""
        self.request, self.rundir, self.addresses = request, request.rundir, addresses
        launcher_kind = launcher_kind_of(start.plan)
        self.job = RunJob() if launcher_kind.in_job else None
        began = now()
        status = recorder.first_status(start.plan, began.epoch)
        self.record = recorder.Recorder(request.rundir, status)
        self.record.complete = self.complete_status
        self.began, self.elapsed, self.is_over = began.clock, 0.0, False
        self.state = m.first_state(
            start, launcher_kind, status, began, self.job.state if self.job is not None else None
        )
        self.connections = RankConnections(request.token, listeners, self, m.ranks_of_starters(self.state))
        self.shells = self.open_shells(start.plan) if start.plan.has_starters and not start.plan.is_direct else None
        self.ports: list[RankConnections | ShellConnections] = [self.connections]
        self.ports += [] if self.shells is None else [self.shells]
        self.place_ranks()
        self.connections.listener.addresses.update(host.address for host in start.plan.all_hosts)
        self.figures = RunFigures(self.hosts_of_ranks(), start.plan)
        self.calls: dict[CallKind, HostCalls] = {}
        self.answers: Mapping[CallKind, Callable[[HostAnswer], None]] = {
            "wrappers": lambda answer: self.on_wrappers_gone(answer.host, gone_ranks(answer)),
            "starters": lambda answer: self.log("starter-called", {"host": answer.host, "problem": answer.problem}),
            "hosts": self.on_host_answer,
        }
        self.asked_wrappers: dict[str, Mapping[int, m.WrapperProcess]] = {}
        """Host → wrappers that it is asked about."""
        self.jobs: Mapping[str, str] = {}
        """Store → text of its job in this attempt; empty unless the run has a pool of hosts."""
        self.process: AttemptProcesses | None = None
        self.exchange: CheckpointExchange | None = None
        self.has_checkpoint = False
        self.checkpoint = ""
        self.has_noted_group = self.has_noted_start = self.has_noted_problem = False
        self.fix = ""
        self.is_finished = False
        self.events: deque[m.Event] = deque()
        self.actions: Mapping[object, Callable[[Any], None]] = {
            m.StartAttempt: self.start_attempt,
            m.HostAct.FIND: self.find_hosts,
            m.SupervisorAct.PREPARE_HOSTS: self.prepare_hosts,
            m.AskWrappers: self.ask_wrappers,
            m.Send: lambda send: self.send(send.rank, send.kind, send.fields),
            m.RankAct.DROP: lambda on: self.connections.drop(self.peer(on.rank)),
            m.RankAct.REWIND: lambda on: self.connections.rewind(self.peer(on.rank)),
            m.RankAct.END_OUTPUT: self.end_output,
            m.HostAct.CALL_STARTERS: lambda on: self.call_starters(on.hosts),
            m.HostAct.DROP_STARTERS: lambda on: self.connections.starters.drop(on.hosts),
            m.SignalLauncher: self.signal_launcher,
            m.SupervisorAct.END_EXCHANGE: self.end_exchange,
            m.LogEvent: lambda event: self.log(event.name, event.fields),
            m.AddNote: self.add_note,
            m.SupervisorAct.CHECK_DISK: self.check_disk,
            m.CheckSilence: self.check_silence,
            m.SupervisorAct.TAKE_DUMP: self.take_dump,
            m.WriteDump: self.write_dump,
            m.RemoveDump: lambda dump: stack_dumps.remove_dump(self.dumps, dump.id),
            m.SupervisorAct.ASK_TIME_LEFT: self.ask_time_left,
            m.SupervisorAct.ASK_JOB: self.ask_job,
            m.Close: self.close,
            m.SupervisorAct.FINISH: self.finish,
            m.SupervisorAct.NOTIFY: self.start_notify,
            m.SupervisorAct.RELEASE_WAITING: self.release_waiting,
        }
        self.signals: list[int] = []
        self.wake = self.catch_signals()

    def open_shells(self, plan: Plan) -> ShellConnections:
        """Listen for mpirun's calls of `remote_shell.py`, and write how these reach the supervisor. Raises an OSError
        if nothing can listen or be written."""
        address, port = f"{listener.LOCAL}ipexctl-{os.urandom(16).hex()}", 0
        try:
            listening = listener.listen(address)
        except OSError:  # a sandbox without Unix sockets
            address = "127.0.0.1"
            listening = listener.listen(address)
            port = listening.getsockname()[1]
        token, names = derive_token(self.request.token, SHELL), {}
        for host in plan.all_hosts:
            names.update(dict.fromkeys((host.word, host.address, host.name), host.name))
        node0 = [word for word, name in names.items() if name == plan.node0]
        contact = {"address": address, "port": port, "token": token, "node0": node0}
        write_json_atomically(self.record.path(SHELL_FILE), contact, durable=False)
        return ShellConnections(listening, token, names, self.connections.starters, setup=plan.setup)

    def catch_signals(self) -> int:
        """Collect signals from now on; returns a descriptor that becomes readable on a signal."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda number, _: self.signals.append(number))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return wake_on_signal()

    # Events

    def start(self) -> Json:
        """Begin the run, and return the reply to the caller: `started`, or `failed` if the launcher could not be
        started."""
        self.on_event(m.Happened.BEGUN)
        self.record.save(time.monotonic())
        status = self.state.status
        if self.process is None:
            return {"event": "failed", "reason": status.reason, "fix": fix_to_json(self.fix)}
        pids = {"mpirun": self.process.pid, "master_port": status.master.port}
        return {"event": "started", **status.supervisor._asdict(), **pids}

    def run(self) -> None:
        """Take turns until the run is over and its record is saved."""
        while not self.is_finished:
            self.turn()

    def turn(self) -> None:
        """Wait for sockets, signals or the time of the next check, and handle what has come.

        After output, a turn lasts MINIMUM_TURN at least, so that small chunks are written together.
        """
        began = time.monotonic()
        interval = supervisor_machine.check_interval(self.state)
        if supervisor_machine.is_ending(self.state) or began - self.state.checked_at >= interval:
            self.check(began)
            if self.is_finished:
                return
        wait = min(interval, self.record.times.seconds_left(began))
        readers = [reader for port in self.ports for reader in port.readers()]
        writers = [writer for port in self.ports for writer in port.writers()]
        readable, _ = ready([self.wake, *readers], writers, wait)
        if self.wake in readable:
            os.read(self.wake, 4096)
        self.handle_signals()
        has_output = [port.handle_ready(readable, time.monotonic()) for port in self.ports]
        if any(has_output) and (rest := MINIMUM_TURN - (time.monotonic() - began)) > 0:
            time.sleep(rest)
        self.record.times.write(*now())
        self.record.save(time.monotonic())
        if self.record.problem and not self.has_noted_problem:
            self.has_noted_problem = True
            fields = {"host": self.state.status.node0, "path": self.rundir, "reason": self.record.problem}
            self.add_note(m.AddNote(next(iter(self.connections.all)), "unrecorded", fields))

    def on_event(self, event: m.Event) -> None:
        """Handle an event. An event from within an action is handled later."""
        self.events.append(event)
        if len(self.events) == 1:
            self.handle_events()

    def handle_events(self) -> None:
        """Handle the queued events in order, with those that their actions add. Only `on_event` calls it."""
        while self.events:
            self.take(*supervisor_machine.advance(self.state, self.events[0], now()))
            self.events.popleft()

    def take(self, state: m.SupervisorState, commands: Iterable[m.Action]) -> None:
        """Take over the state after an event, and do its actions."""
        if state.status is not self.state.status or state.ranks is not self.state.ranks:
            self.record.is_unsaved = True
        self.state, self.record.status = state, state.status
        for command in commands:
            named = command.act if isinstance(command, (m.OnRank, m.OnHosts)) else command
            self.actions[named if isinstance(named, Enum) else type(named)](command)

    def on_message(self, peer: RankConnection, message: messages.Message) -> None:
        """Handle a message of a rank: acknowledge, count figures, and hand the rest to the machine as an event."""
        if isinstance(message, (messages.Beat, messages.Exit)):
            if isinstance(message, messages.Beat):
                peer.ends, peer.starvation = message.ends, min(message.starvation, MOST_STARVATION)
            else:
                peer.has_exited = True
            self.connections.acknowledge(peer)
        elif isinstance(message, messages.End):
            if peer.is_refused:  # the rank sends it again after the refused output
                return
            peer.end_output(message.ends)
        elif isinstance(message, messages.Signalled) and self.process is not None and self.state.signalled_at is None:
            self.on_event(m.LauncherPartsEnded(self.process.ended_parts()))  # mpirun ends the ranks once it lost one
        is_figure = self.figures.add(peer.rank, message, peer.windows, now())
        if is_figure:
            self.record.is_unsaved = True
            if isinstance(message, messages.Mismatch):
                self.log("mismatch", {"rank": peer.rank, "host": peer.host, "text": message.text})
            elif isinstance(message, RankTraining):
                self.check_start(peer.rank, message.progress)
            elif isinstance(message, StepWindow):
                self.note_group(peer.rank)
                self.check_loss()
        if not is_figure or isinstance(message, RankProfile):
            self.on_event(m.RankSent(peer.rank, message))

    def note_group(self, rank: int) -> None:
        """Say once that ranks do not train together."""
        group = self.figures.group
        text = describe_apart(group)
        if group is not None and text and not self.has_noted_group:
            self.has_noted_group = True
            self.log("group", group._asdict())
            self.add_note(m.AddNote(rank, "group", {**group._asdict(), "text": text}))

    def check_loss(self) -> None:
        """End the run if a rank's loss is nan and the user asked for that with `--on-nan stop`."""
        if self.state.asked.on_nan == "stop" and (nan := self.figures.nan) is not None:
            reason = f"{nan.sentence}, and --on-nan stop has ended the run"
            self.on_event(m.TrainingFails(nan.rank, "nan", reason, Detail("nan", {"step": str(nan.step)})))

    def check_start(self, rank: int, progress: RankProgress) -> None:
        """Say once that a resumed run begins at step 1, and end it if nobody follows it."""
        if self.has_noted_start or (seen := verdict.find_start_over(self.state.plan, progress)) is None:
            return
        self.has_noted_start = True
        self.log("starts-over", {"rank": rank})
        self.add_note(m.AddNote(rank, "checkpoint", {"text": seen.note}))
        if seen.reason:
            self.on_event(m.TrainingFails(rank, "starts-over", seen.reason))

    def handle_signals(self) -> None:
        """Turn the signals that have come into events: SIGUSR1 announces requests for dumps or profiles, SIGCHLD that a
        child has exited; any other asks to stop."""
        while self.signals:
            number = self.signals.pop(0)
            if number == signal.SIGUSR1:
                for asked, kind, ranks in stack_dumps.take_requests(self.dumps):
                    self.on_event(m.ReportAsked(asked, kind, ranks))
            elif number != signal.SIGCHLD:
                self.on_event(m.StopAsked(number, stop_file.read_sender(self.rundir, now().epoch)))
            elif self.process is not None and self.state.launcher is not None and self.state.launcher.ended_at is None:
                for event in self.process.take_events():
                    self.on_event(event)

    def check(self, clock: float) -> None:
        """Look at what only time shows, such as late connections, answers of hosts and a full disk, and give the
        machine its tick. `clock`: the monotonic clock."""
        for port in self.ports:
            port.listener.drop_late(clock)
        if "starters" in self.calls and all(starter.is_connected for starter in self.state.starters.values()):
            remove_file(self.record.path(STARTERS_FILE))
        if self.shells is not None and all(peer.is_over for peer in self.state.ranks.values()):
            self.shells.end_lost()
        self.check_exchange()
        self.take_answers()
        if self.job is not None and (left := self.job.time_left(clock)) is not None:
            self.on_event(left)
        if self.record.holds_output and self.record.has_room():
            self.record.store_held()
        if min(self.connections.received().values(), default=clock) < clock - UNHEARD:
            self.record.is_unsaved = True  # ages grow, though no message changes a figure
        if self.process is not None and supervisor_machine.is_running_well(self.state):
            self.process.ended_parts()  # the first call lists them
        tail: Iterable[str] = ()
        if self.process is not None and supervisor_machine.needs_launcher_log(self.state):
            tail = self.record.tail("mpirun.log", begin=self.process.log_begin)
        self.on_event(
            m.Tick(
                self.connections.received(),
                self.connections.printed_at(),
                self.figures.stepped_at,
                self.connections.written_at,
                tuple(tail),
                self.connections.starters.received(),
                max([starvation(), *(peer.starvation for peer in self.connections.all.values())]),
            )
        )

    def check_exchange(self) -> None:
        """Show what the checkpoint exchange reports, and tell the machine once it is over. Does nothing without an
        exchange."""
        exchange = self.exchange
        if exchange is None:
            return
        is_over = exchange.is_over
        while not exchange.notes.empty():
            fields = {"text": exchange.notes.get()}
            self.log("checkpoint", fields)
            self.add_note(m.AddNote(next(iter(self.connections.all)), "checkpoint", fields))
        if is_over:
            self.on_event(m.ExchangeOver(exchange.failure, exchange.failed_host, exchange.is_changed))

    # What the connections need to know

    def may_connect(self, hello: messages.Hello) -> bool:
        """Return whether the wrapper that says hello may connect as its rank."""
        return supervisor_machine.may_connect(self.state, hello)

    def welcome(self) -> Json:
        """Return the fields of a rank's welcome that are the same for all ranks. `stop` tells a rank that connects late
        to end."""
        return {
            "attempt": self.state.status.attempt,
            "master": self.state.status.master._asdict(),
            "stop": self.state.ending is not None,
            "checkpoint_port": self.exchange.port if self.exchange is not None else None,
        }

    def orders_of_starter(self, host: str) -> list[Json]:
        """Return the orders for a starter that has just connected: the order that begins the attempt, while that is on,
        and lines of mpirun."""
        orders = self.start_orders() if supervisor_machine.is_attempt_on(self.state) else {}
        shells = self.shells.orders_of(host) if self.shells is not None else []
        return [*([orders[host]] if host in orders else []), *shells]

    def log_of_wrappers(self, text: str) -> None:
        """Add what rank wrappers of another host printed to mpirun.log. A full disk only loses it."""
        with contextlib.suppress(OSError):
            LaunchLog(self.rundir).append(text)

    @property
    def is_disk_full(self) -> bool:
        """True while the ranks keep their output, because there is no room for it here."""
        return self.state.disk.is_full

    # The record

    @property
    def dumps(self) -> str:
        """The directory of requests, stack dumps and answers about profiles."""
        return self.record.path("stacks")

    def peer(self, rank: int) -> RankConnection:
        """Return the connection and files of a rank."""
        return self.connections.all[rank]

    def send(self, rank: int, kind: str, fields: Mapping[str, str]) -> None:
        """Send a message to a rank. It is lost if the rank is not connected."""
        self.connections.send_message(self.peer(rank), kind, **fields)

    def log(self, name: str, fields: Mapping[str, Any]) -> None:
        """Add an event to events.jsonl."""
        self.record.event(time.time(), name, fields)

    def add_note(self, note: m.AddNote) -> None:
        """Write a note into the rank's stderr, even if the rank has printed nothing."""
        self.peer(note.rank).sinks["err"].note(note.kind, dict(note.fields), is_first=True)

    def complete_status(self, status: RunStatus) -> RunStatus:
        """Return the status with all that is not decided from: figures, ranks, checkpoint and time. The recorder calls
        it before each write.

        The first call after the end also looks for the newest checkpoint, and drops the kept copies of runs that this
        one resumed, if it has a checkpoint of its own and made more steps than they had.
        """
        now, received = time.monotonic(), self.connections.received()
        self.figures.read_printed({rank: peer.sinks for rank, peer in self.connections.all.items()})
        ranks = [
            self.figures.rank_status(peer, self.peer(peer.rank).sinks, now - received.get(peer.rank, peer.received_at))
            for peer in self.state.ranks.values()
        ]
        has_checkpoint = status.has_checkpoint or self.has_checkpoint
        is_untrained = status.state == "ok" and self.figures.is_untrained
        untrained = find_gpu_line(self.record, self.state.ranks) if is_untrained else None
        was_over = self.is_over
        if not was_over:  # the last status may be written long after the end, if the disk was full
            self.elapsed, self.is_over = round(now - self.began, 3), status.ended is not None
            if self.is_over:
                # Only the end of a run needs it.
                from ipexctl.node.run.record.newest_checkpoint import newest_checkpoint

                plan = self.state.plan
                self.checkpoint = newest_checkpoint(plan.cwd, plan.asked.checkpoint or "", self.rundir)
        raised = verdict.first_exception(self.state)
        complete = self.figures.run_status(status, ranks, now)._replace(
            has_checkpoint=has_checkpoint,
            untrained=untrained,
            elapsed=self.elapsed,
            raised=raised.text.partition(" ")[2] if raised is not None else "",
            checkpoint=self.checkpoint,
        )
        for run in self.state.asked.resumed if self.is_over and not was_over else ():
            rundir = os.path.join(os.path.dirname(self.rundir), run)
            if has_gone_on(complete, read_status(read_json(os.path.join(rundir, "status.json")))):
                drop_kept_copies(rundir)
        return complete

    def end_output(self, command: m.OnRank) -> None:
        """Count what is missing of a rank's output as lost, because it can't come any more."""
        peer = self.peer(command.rank)
        peer.accept_output()
        peer.end_output(peer.ends)

    def check_disk(self, _: m.SupervisorAct) -> None:
        """Tell the machine if the disk, which was full, has room again."""
        if self.record.has_room():
            self.on_event(m.Happened.DISK_HAS_ROOM)

    def check_silence(self, command: m.CheckSilence) -> None:
        """Tell the machine what the silent ranks printed last and what they are doing."""
        ranks = tuple(map(self.silent_rank, command.ranks))
        self.on_event(m.SilenceSeen(command.since, ranks))

    def silent_rank(self, rank: int) -> SilentRank:
        """Return a rank's last line on the stream that it printed to last, its CPU use, and where it waits.

        Line and stream are None if it has printed nothing in this attempt.
        """
        peer = self.peer(rank)
        figures = self.figures.rank_status(self.state.ranks[rank], peer.sinks).figures
        stream = max(peer.printed_at, key=lambda name: peer.printed_at[name], default=None)
        lines = self.record.tail(f"ranks/{rank:04}.{stream}", 1) if stream else []
        last = lines[-1][:400] if lines else None
        return SilentRank(rank, peer.host, last, figures.cpu, figures.process, figures.waits_in, stream)

    def take_dump(self, _: m.SupervisorAct) -> None:
        """Ask for a stack dump of all ranks in the supervisor's own name. If the disk is full, the dump's id is
        empty."""
        dump_id = stack_dumps.new_dump_id(time.time())
        try:
            make_private_directory(self.dumps)
        except OSError:  # the disk is full
            dump_id = ""
        self.on_event(m.ReportAsked(dump_id, is_own=True))

    def write_dump(self, command: m.WriteDump) -> None:
        """Write a dump. Ranks that did not answer get a row from their last beat."""
        rows = []
        for row in command.rows:
            if row["rank"] in command.unanswered:
                beat = self.figures.of(row["rank"]).beat
                last = {"process": beat and beat.figures.process, "waits_in": beat and beat.figures.waits_in}
                row = {**row, "last": last}
            rows.append(row)
        stack_dumps.write_dump(self.dumps, command.id, time.time(), rows, command.kind)

    # The launcher

    def start_attempt(self, command: m.StartAttempt) -> None:
        """Start the ranks, after what remained of the attempt before is killed. `command.after`: why that attempt
        ended, empty for the first."""
        self.leave_attempt()
        if command.after:
            status = self.state.status
            note = {"attempt": status.attempt, "restarts": status.restarts, "reason": command.after}
            for peer in self.connections.all.values():
                for name, sink in peer.sinks.items():  # a reader of all ranks' output needs the note only once
                    sink.note("restart", note, is_first=not peer.rank and name == "err")
        for peer in self.connections.all.values():
            peer.reset()
        self.figures.begin_attempt(self.hosts_of_ranks())
        self.record.times.write_all(time.time())  # sourcing a setup file may be slow
        try:
            self.on_event(self.start_launcher())
        except OSError as error:
            is_first = self.process is None
            failed = describe_start_failure(error, self.state, is_first=is_first)
            self.fix = failed.fix
            self.on_event(failed)

    def start_launcher(self) -> m.AttemptStarted:
        """Choose the master port, begin the checkpoint exchange if the plan has one, and start the launcher.

        Raises an OSError if the port is taken, the setup file fails, or the launcher can't be started.
        """
        plan, attempt = self.state.plan, self.state.status.attempt
        master = Master(plan.master_addr, plan.master_port)
        if master.port and not attempt:  # a later attempt uses the same port
            check_master_port(master.addr, master.port)
        master = master._replace(port=master.port or listener.free_port(master.addr))
        if plan.exchanged:
            self.exchange = self.begin_exchange(plan)
            if not self.has_checkpoint:
                path = os.path.join(plan.cwd, plan.exchanged)
                threading.Thread(target=self.watch_checkpoint, args=(path,), daemon=True).start()
        remove_file(self.connectivity_path)
        job = self.record.path(job_file(attempt)) if self.jobs else plan.argv[-1]
        argv = (*plan.argv[:-1], job, *self.addresses)
        self.process = start_attempt(plan, argv, attempt, self.connections.starters, self.start_orders())
        return m.AttemptStarted(self.process.pid, master, is_exchanging=self.exchange is not None)

    def begin_exchange(self, plan: Plan) -> CheckpointExchange:
        """Start the checkpoint exchange between the lowest ranks of the homes. All ranks wait for its end."""
        from ipexctl.node.run.supervisor.checkpoint_exchange import (
            CheckpointExchange,  # few runs need it, and its imports
        )

        firsts = {plan.stores[host.name]: host for host in reversed(plan.hosts)}
        hosts = {host.ranks[0].rank: host.name for host in plan.hosts if host is firsts[plan.stores[host.name]]}
        addresses = self.connections.listener.addresses
        return CheckpointExchange(
            plan.exchanged,
            hosts,
            self.request.bind,
            self.request.token,
            addresses,
            is_restart=bool(self.state.status.attempt),
        )

    def watch_checkpoint(self, path: str) -> None:
        """Set `has_checkpoint` once there is one. Runs in its own thread, because the disk may be slow."""
        from ipexctl.node.run.supervisor.checkpoint_exchange import has_file

        while not self.has_checkpoint:
            self.has_checkpoint = has_file(path)
            time.sleep(CHECKPOINT_INTERVAL)

    def end_exchange(self, _: m.SupervisorAct) -> None:
        """Close the checkpoint exchange, if there is one."""
        if self.exchange is not None:
            self.exchange.close()
            self.exchange = None

    def signal_launcher(self, command: m.SignalLauncher) -> None:
        """Send a signal to the launcher, or to the rank wrappers of a run without one."""
        if self.process is not None:
            self.process.signal(command.signal)

    @property
    def connectivity_path(self) -> str:
        """The file below HOME/runs in which later runs find that the hosts have reached each other."""
        return os.path.join(os.path.dirname(self.rundir), CONNECTIVITY_FILE)

    # The hosts of an attempt

    def hosts_of_ranks(self) -> dict[int, str]:
        """Return rank → host of this attempt."""
        return {peer.rank: peer.host for peer in self.state.ranks.values()}

    def leave_attempt(self) -> None:
        """Kill what remains of the attempt before, drop its connections, and place the ranks anew. Does nothing before
        the first attempt."""
        if self.process is not None:
            self.process.kill_leftovers()
            if self.shells is not None:
                self.shells.end_all()
            self.connections.drop_all()
            self.place_ranks()
            self.figures.begin_attempt(self.hosts_of_ranks())

    def place_ranks(self) -> None:
        """Give each rank of the attempt a connection with its output files, made once, and its present host."""
        for rank, host in self.hosts_of_ranks().items():
            if rank not in self.connections.all:
                self.connections.add(RankConnection(rank, self.record.sinks(rank, host), self.record.windows(rank)))
            self.peer(rank).place(host)
        self.connections.starters.set_ranks(m.ranks_of_starters(self.state))

    def start_orders(self) -> dict[str, Json]:
        """Return host → the order that begins this attempt. It names no ranks if mpirun starts them: a starter that
        connects late would start them once more."""
        plan = self.state.plan
        orders: dict[str, Json] = {}
        for host, ranks in m.ranks_of_starters(self.state).items():
            if not ranks:
                continue
            orders[host] = {
                "t": "start",
                "attempt": self.state.status.attempt,
                "ranks": sorted(ranks) if plan.is_direct else [],
            }
            if self.jobs:
                orders[host]["job"] = self.jobs[plan.stores[host]]
        return orders

    def call_starters(self, names: tuple[str, ...]) -> None:
        """Have host starters begun again, which then connect to this supervisor: by calls that follow the run, and by
        ssh from here, which works where the account's own keys do."""
        plan = self.state.plan
        local, _, port = self.addresses
        contact = StarterContact(self.request.token, local, int(port), names)
        with contextlib.suppress(OSError):
            write_json_atomically(self.record.path(STARTERS_FILE), contact._asdict(), durable=False)
        calls = self.calls.setdefault("starters", self.host_calls(BY_OWN_KEYS))
        for host in self.hosts_named(names):
            stdin = json.dumps(starter_request(plan, host.name, contact)).encode() + b"\n"
            line = program_line(plan, "run.host_starter", host.name)
            calls.begin(host.name, host.word, line, stdin, STARTER_CALL)

    def hosts_named(self, names: Collection[str]) -> list[HostPlan]:
        """Return the plan of each of these hosts, spare ones included, in the plan's order."""
        return [host for host in self.state.plan.all_hosts if host.name in names]

    def find_hosts(self, command: m.OnHosts) -> None:
        """Find out which of these hosts answer; each answer becomes an event.

        Without logins between nodes, a starter that was heard lately is an answer, and lost starters are called.
        """
        if not self.state.shell:
            last = self.connections.starters.received()
            for host in command.hosts:
                if time.monotonic() - last.get(host, float("-inf")) < STARTER_HEARD:
                    self.on_event(m.HostAnswered(host))
            away = tuple(host for host, starter in self.state.starters.items() if not starter.is_connected)
            self.call_starters(tuple(set(command.hosts) & set(away)))
            return
        calls = self.calls["hosts"] = self.host_calls(self.state.shell)
        for planned in self.hosts_named(command.hosts):
            calls.find(planned.name, planned.word, self.rundir)

    def prepare_hosts(self, _: m.SupervisorAct) -> None:
        """Write the hostfile and node0's job file, and send other homes their jobs. Without logins, `start_orders`
        carries them."""
        self.leave_attempt()
        plan, attempt = self.state.plan, self.state.status.attempt
        names = tuple(host.name for host in plan.hosts)
        jobs = jobs_of(plan, self.state.start.job._replace(hosts=names, attempt=attempt))
        self.jobs = {home: json.dumps(job._asdict()) for home, job in jobs.items()}
        own, path = plan.stores[plan.node0], self.record.path(job_file(attempt))
        try:
            write_atomically(path, self.jobs[own].encode(), durable=False)
            for file in plan.files:
                if file.name == "hostfile":
                    write_atomically(self.record.path(file.name), file.text.encode(), durable=False)
        except OSError as error:
            self.on_event(m.HostsPrepared({plan.node0: f"{error.filename or path}: {error.strerror or error}"}))
            return
        calls = self.calls["hosts"] = self.host_calls(self.state.shell)
        firsts = {plan.stores[host.name]: host for host in reversed(plan.hosts)}
        for home, first in firsts.items() if self.state.shell else ():
            if home != own:
                calls.give_job(first.name, first.word, path, self.jobs[home])
        self.refused: dict[str, str] = {}
        self.take_answers()

    def ask_wrappers(self, command: m.AskWrappers) -> None:
        """Find out which of these wrappers are gone: by /proc on node0, elsewhere by the host's starter or by a login.
        Nothing is asked where there is neither."""
        plan = self.state.plan
        if command.host == plan.node0:
            self.on_event(
                m.WrappersGone({rank: wrapper for rank, wrapper in command.wrappers.items() if has_exited(*wrapper)})
            )
        elif plan.has_starters:
            self.asked_wrappers[command.host] = command.wrappers
            rows = [(rank, *wrapper) for rank, wrapper in command.wrappers.items()]
            self.connections.starters.send(command.host, {"t": "ask", "wrappers": rows})
        elif plan.shell and command.host not in self.asked_wrappers:
            self.asked_wrappers[command.host] = command.wrappers
            calls = self.calls.setdefault("wrappers", self.host_calls(plan.shell))
            for host in self.hosts_named((command.host,)):
                calls.ask_wrappers(host.name, host.word, command.wrappers)

    def on_shell(self, host: str, received: messages.ShellOutput | messages.ShellEnded) -> None:
        """Pass what a starter reports about a line of mpirun on to mpirun."""
        if self.shells is not None:
            self.shells.on_shell(host, received)

    def on_wrappers_gone(self, host: str, ranks: Iterable[int]) -> None:
        """Handle a host's answer to `ask_wrappers`. Ranks that it was not asked about are ignored."""
        asked = self.asked_wrappers.pop(host, {})
        self.on_event(m.WrappersGone({rank: asked[rank] for rank in ranks if rank in asked}))

    def take_answers(self) -> None:
        """Handle answers of hosts. Once all have answered whether they have their job, tell the machine which have
        not."""
        for kind, calls in list(self.calls.items()):
            for answer in calls.take():
                self.answers[kind](answer)
        if (last := self.calls.get("hosts")) is not None and last.is_over:
            del self.calls["hosts"]
            if self.state.is_preparing:
                self.on_event(m.HostsPrepared(self.refused))

    def on_host_answer(self, answer: HostAnswer) -> None:
        """Handle a host's answer to `find_hosts`, or the outcome of sending its job."""
        if not self.state.is_preparing:
            self.on_event(m.HostAnswered(answer.host, answer.problem))
        elif answer.problem:
            self.refused[answer.host] = answer.problem

    def host_calls(self, shell: Sequence[str]) -> HostCalls:
        """Return a new set of calls to hosts. `shell`: command of a shell on another host, to which host and line are
        added."""
        return HostCalls(shell, shell_environment(self.state.plan), self.state.starvation)

    # The job of Slurm

    def ask_time_left(self, _: m.SupervisorAct) -> None:
        """Ask Slurm in the background how long its job may still run. Outside a job, do nothing."""
        if self.job is not None:
            self.job.ask_time_left(time.monotonic())

    def ask_job(self, _: m.SupervisorAct) -> None:
        """Ask Slurm in the background about the job's state. Outside a job, do nothing."""
        if self.job is not None:
            self.job.begin_query()

    # The end

    def close(self, command: m.Close) -> None:
        """Close the run: write held output, kill leftovers, dismiss the ranks, and remove files with secrets. `Closed`
        follows."""
        self.wait_for_room(command.timeout)
        self.figures.read_printed({rank: peer.sinks for rank, peer in self.connections.all.items()})
        for peer in self.connections.all.values():
            for name, reason in peer.close_files().items():
                self.log("output-lost", {"rank": peer.rank, "host": peer.host, "stream": name, "reason": reason})
        self.record.times.write_all(time.time())
        self.record.times.close()
        self.record.notes.close()
        log = ""
        if self.process is not None:
            self.process.kill_leftovers()
            log = self.process.read_log() if self.job is not None else ""
        if self.shells is not None:
            self.shells.close()
            remove_file(self.record.path(SHELL_FILE))
        remove_file(self.record.path(STARTERS_FILE))
        self.connections.dismiss()
        for attempt in range(self.state.status.attempt + 1):
            remove_file(self.record.path(job_file(attempt)))
        connectivity = self.state.start.connectivity
        if command.keeps_connectivity and connectivity is not None:
            with contextlib.suppress(OSError):
                write_json_atomically(self.connectivity_path, connectivity._asdict(), durable=False)
        shown = ""
        if self.job is not None:
            self.job.close()
            if command.asks_job:
                self.job.begin_query()
            shown = self.job.shown()
        self.on_event(m.Closed(shown, is_step_cancelled(log)))

    def wait_for_room(self, timeout: float) -> None:
        """Wait until held output is written. After `timeout` seconds, the rest counts as lost."""
        until = time.monotonic() + timeout
        while not self.record.store_held() and time.monotonic() < until:
            time.sleep(0.2)
        for peer in self.connections.all.values():
            if any(sink.held for sink in peer.sinks.values()):
                self.log("output-lost", {"rank": peer.rank, "host": self.record.status.node0})
        self.record.give_up_held()

    def finish(self, _: m.SupervisorAct) -> None:
        """Save the last status, which a full disk may delay for FULL_DISK_FLUSH seconds, and end the loop."""
        self.is_finished = True
        until = time.monotonic() + FULL_DISK_FLUSH
        self.record.save(time.monotonic())
        while self.record.is_unsaved and time.monotonic() < until:
            time.sleep(1.0)
            self.record.save(time.monotonic())

    def release_waiting(self, _: m.SupervisorAct) -> None:
        """Remove the reservations of spare hosts, and wait until each has answered. Does nothing without a pool or
        logins."""
        if not self.state.has_pool or not self.state.shell:
            return
        calls = self.host_calls(self.state.shell)
        for host in self.state.plan.spares:
            calls.release(host.name, host.word, self.rundir)
        while not calls.is_over:
            calls.take()
            time.sleep(0.1)

    def start_notify(self, _: m.SupervisorAct) -> None:
        """Start the program that runs the command of `--notify`. If a call follows the run, the program lets that call
        do it first."""
        from ipexctl.node.run import notify  # few runs have --notify
        from ipexctl.node.run.record import run_document  # few runs have --notify

        status = self.record.full_status()
        text = run_document.run_text(run_document.document_of_run(self.state.start.plan, status))
        claim_after = NOTIFY_CLAIM if self.state.asked.is_followed else 0.0
        command = self.state.start.notify
        try:
            notify.start_notify(notify.NotifyRequest(self.rundir, command, text, claim_after, NOTIFY))
        except OSError as error:
            self.log("not-notified", {"reason": error.strerror or str(error)})


def find_gpu_line(record: recorder.Recorder, ranks: Iterable[int]) -> Untrained:
    """Return the last line about GPUs near the end of a rank's output, of the lowest rank that printed one; empty if
    none did. `ranks`: in ascending order."""
    for rank in ranks:
        lines = [*record.tail(f"ranks/{rank:04}.out"), *record.tail(f"ranks/{rank:04}.err")]
        if of_gpus := [line for line in lines if _GPU.search(line)]:
            return Untrained(rank, of_gpus[-1].strip()[:MOST_OF_LINE])
    return Untrained()


def describe_start_failure(error: OSError, state: m.SupervisorState, *, is_first: bool) -> m.StartFailed:
    """Explain why the launcher could not be started. `is_first`: none was started before in this run; only then is
    there a fix."""
    plan, kind = state.plan, state.launcher_kind
    if not is_first:
        problem = str(error.strerror or error)
        reason = f"{kind.program} can't be started again: {problem}"
        return m.StartFailed(reason, Detail(kind.failure, {"why": problem}))
    if isinstance(error, SetupError):
        fields = {"place": plan.node0, "file": plan.setup or "", "what": str(error.strerror)}
        command = ("bash", "-c", f". {shlex.quote(plan.setup or '')}")
        fix = Fix("correct that file; to see its errors on every host: `ipexctl exec -- {*argv}`", argv=command)
        return m.StartFailed(fields["what"], Detail("setup-failed", fields), fix)
    if isinstance(error, PortError):
        return m.StartFailed(str(error.strerror), fix=error.fix)
    problem = f"{error.filename or plan.argv[0]}: {error.strerror}" if error.errno else str(error.strerror)
    reason = f"{kind.program} can't be started: {problem}"
    return m.StartFailed(reason, Detail(kind.failure, {"why": problem}), kind.fix)

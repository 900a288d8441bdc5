"""The supervisor of a run on node0: starts mpirun, follows the ranks, keeps the record, ends all ranks when one fails.

It is started as `PYTHON -IS RUNDIR/agent.zip run.supervisor`. It reads lines of JSON from stdin, and answers the first
two with one line each, or with `{"event": "failed", "reason", "fix"}`. `node/common/job.py` has both requests.

    SupervisorRequest  → {"event": "listening", "local", "port"}
    StartRequest       → {"event": "started", "pid", "start", "mpirun", "master_port"}
    a request of `follow.py`, or the end of stdin → {"event": "done"}, after the frames of the run

The second one is sent when all hosts have their job files. After that the supervisor runs in a session of its own, and
its caller may exit; the process that has started it follows the run. SIGTERM to the supervisor stops the run.

In come the ranks' messages (`rank_connections.py`), signals, the end of mpirun and the time; out go messages to the
ranks and the record. `verdict.py` decides why the run ends; this module decides when it is over, and whether it starts
again. A run whose Slurm job is put into the queue again is not over: the supervisor of the job's next start goes on
with the same record. The rules: no rank outlives the others; no output is dropped while its rank can send it; each wait
has an end.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Sequence

from ipexctl.node.common import slurm, sockets
from ipexctl.node.common.answer import AgentError, Json, emit
from ipexctl.node.common.environ import SetupError
from ipexctl.node.common.files import read_json, remove_file, write_atomically, write_json_atomically
from ipexctl.node.common.job import CONNECTIVITY_FILE, StartRequest, SupervisorRequest
from ipexctl.node.common.json_parser import parse_json
from ipexctl.node.common.json_records import decode
from ipexctl.node.common.limits import (
    FULL_DISK_FLUSH,
    FULL_DISK_ROOM,
    LAST_MESSAGES,
    RANK_EXIT,
    RANK_SILENCE,
    RANKS_BEGIN,
    TERM_GRACE,
)
from ipexctl.node.common.link import ready
from ipexctl.node.common.processes import allow_many_files
from ipexctl.node.common.records import FINAL, Detail, Mpirun, TrialFigures, split_details
from ipexctl.node.run import job_end, messages, recorder, stack_dumps, stall_detector, verdict
from ipexctl.node.run.caller_watch import CallerWatch
from ipexctl.node.run.host_notes import HostNotes
from ipexctl.node.run.job_end import RunEnd, RunJob
from ipexctl.node.run.job_limit import JobLimit
from ipexctl.node.run.master_port import PortError, check_master_port
from ipexctl.node.run.mpirun import MpirunProcess, NodeStarter, node_starter
from ipexctl.node.run.network_watch import NetworkWatch
from ipexctl.node.run.own_time import waiting_of
from ipexctl.node.run.rank_connections import RankConnection, RankConnections
from ipexctl.node.run.slow_rank import is_wire_possible, plan_fields
from ipexctl.node.run.slow_watch import SlowWatch
from ipexctl.node.run.status_file import StoredStatus, read_document
from ipexctl.node.run.step_windows import StepWindow

if TYPE_CHECKING:
    import socket
    from io import BufferedReader

    from ipexctl.node.common.job import Notification
    from ipexctl.node.run.checkpoint_exchange import CheckpointExchange

MINIMUM_TURN = 0.01
"""Minimum seconds of one loop iteration while output arrives, so that many small chunks are handled together."""
CHECK_INTERVAL = 0.25
"""Seconds between two checks of all ranks for timeouts, while the run starts or ends."""
UNRECORDED = 20.0
"""Seconds for which the status may not be written in a trial: its call sees the steps in no other way."""
RUNNING_INTERVAL = 1.0
"""While all is well: each check takes time from the ranks of this node."""
MAX_MALFORMED = 3
"""Malformed messages of a rank until it counts as lost."""
MAX_MISMATCHES = 64


def watches_of(rundir: str, ranks: Sequence[RankConnection]) -> tuple[SlowWatch, NetworkWatch]:
    hosts = {peer.rank: peer.host for peer in ranks}
    plan = read_json(os.path.join(rundir, "plan.json"))
    fields = plan_fields(plan)
    waiting = waiting_of(fields["backend"], fields["allreduce"], len(set(hosts.values())))
    is_shared = fields["allreduce"] == "shared"
    network = NetworkWatch(hosts, waiting, is_wire_possible=is_wire_possible(plan), shared=is_shared)
    return SlowWatch(hosts, waiting), network


class Supervisor:
    """One run, from the start of mpirun to the end of the last process."""

    def __init__(self, request: SupervisorRequest, start: StartRequest, listeners: list[socket.socket]) -> None:
        self.request, self.rundir, self.plan = request, request.rundir, start
        self.connectivity_path = os.path.join(os.path.dirname(request.rundir), CONNECTIVITY_FILE)
        self.created_at = time.monotonic()
        self.checked_at = 0.0
        self.caller = CallerWatch(request.rundir, start.caller_silence, self.created_at)
        self.job = RunJob(request.rundir) if node_starter(start).in_job else None
        before = self.earlier_start()
        status = recorder.first_status(request, start)
        if before is not None:
            status = recorder.continued_status(before.status, status, ended=before.written)
            self.plan = start._replace(restarts=status.restarts)
        self.record = recorder.Recorder(request.rundir, status, is_continued=before is not None)
        self.verdict = verdict.RunVerdict(self.record, self.stop_all, node_starter(start).name)
        self.peers = RankConnections(request.token, listeners, self.on_message)
        self.peers.attempt = status.attempt
        self.peers.setup_time = RANKS_BEGIN if start.setup else RANK_SILENCE
        self.peers.welcome = lambda: {
            "master": self.record.status.master._asdict(),
            "stop": self.verdict.ending is not None,
            "checkpoint_port": self.exchange.port if self.exchange is not None else None,
        }
        self.exchange: CheckpointExchange | None = None
        """Runs before the commands of an attempt start."""
        for placement in start.ranks:
            sinks = self.record.sinks(placement.rank, placement.host)
            self.peers.add(RankConnection(placement, sinks, self.record.windows(placement.rank)))
        self.ranks = list(self.peers.all.values())
        self.record.ranks = lambda: [peer.count() for peer in self.ranks]
        if before is not None:
            after = status.attempts[-1].reason
            self.record.event("restart", attempt=status.attempt, after=after)
            self.note_restart(after)
        self.watch, self.network = watches_of(self.rundir, self.ranks)
        self.dumps = stack_dumps.StackDumps(self.record.path("stacks"), self.peers)
        self.stall_dump = ""
        """The id of the last dump that was taken without being asked for."""
        self.handlers: dict[type, Callable[[RankConnection, Any], None]] = {
            messages.Beat: self.on_beat,
            messages.Connected: self.on_connected,
            messages.CheckpointFailed: self.on_checkpoint_failed,
            messages.Started: self.on_start,
            messages.NotStarted: self.on_not_started,
            messages.Mismatch: self.on_mismatch,
            messages.Noticed: self.on_noticed,
            messages.OutsideSignal: lambda peer, message: self.verdict.on_outside_signal(peer, message.signal),
            messages.Exit: self.on_exit,
            messages.Stuck: self.on_stuck,
            messages.Stacks: self.dumps.on_message,
            messages.End: lambda peer, message: self.on_end(peer, message.ends),
            messages.Malformed: self.on_malformed,
            StepWindow: self.on_window,
            HostNotes: self.on_host_window,
            TrialFigures: self.on_trial,
        }
        self.process: MpirunProcess | None = None
        self.job_limit = JobLimit(self.job.number) if self.job is not None and self.job.number else None
        self.is_asked_to_stop = False
        """By a signal: of ipexctl stop, of the call, or of Slurm."""
        self.has_noticed = False
        """A rank has heard that the job is about to end."""
        self.signals: list[int] = []
        self.peers.listener.addresses.update(start.addresses)
        self.wake, wakeup = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wakeup, False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda number, _: self.signals.append(number))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def earlier_start(self) -> StoredStatus | None:
        """The status that an earlier start of the same job has left; None in its first start."""
        if self.job is None or not self.job.may_requeue or not self.job.restarts:
            return None
        with contextlib.suppress(AgentError):
            return read_document(self.rundir + "/status.json")
        return None

    def note_restart(self, after: str) -> None:
        """Note the next attempt in the output of each rank."""
        status = self.record.status
        note = {"attempt": status.attempt, "restarts": status.restarts, "reason": after}
        for peer in self.ranks:
            for sink in peer.sinks.values():
                sink.note("restart", note)

    @property
    def mpirun(self) -> MpirunProcess:
        assert self.process is not None, "mpirun is not started"
        return self.process

    def start(self) -> None:
        """Start mpirun; raises an OSError when it can't be started."""
        limit, master = self.plan.time_limit, self.plan.master
        if master.port and not self.record.status.attempt:  # an earlier attempt has used it
            check_master_port(master.addr, master.port)
        master = master._replace(port=master.port or sockets.free_port(master.addr))
        if self.plan.checkpoint:
            self.exchange = self.exchange_checkpoint()
        remove_file(self.connectivity_path)
        self.process = MpirunProcess(self.plan, self.rundir)
        now = time.monotonic()
        self.mpirun_started_at = now
        self.end_at = self.created_at + limit if limit else None
        self.record.status = self.record.status._replace(mpirun=Mpirun(self.mpirun.pid), master=master)
        self.record.event("mpirun", pid=self.mpirun.pid, attempt=self.record.status.attempt, master_port=master.port)
        self.record.save(now)

    def exchange_checkpoint(self) -> CheckpointExchange:
        """Begin the exchange among the lowest ranks of the stores, for which all ranks wait."""
        from ipexctl.node.run.checkpoint_exchange import CheckpointExchange  # few runs need it, and its imports

        first_of_store = {peer.store: peer for peer in reversed(self.ranks)}
        hosts = {peer.rank: peer.host for peer in self.ranks if first_of_store[peer.store] is peer}
        addresses = self.peers.listener.addresses
        return CheckpointExchange(self.plan.checkpoint, hosts, self.request.bind, self.request.token, addresses)

    def start_and_reply(self) -> Json:
        """Start mpirun; returns the reply to the StartRequest."""
        try:
            self.start()
        except SetupError as error:
            fields = {"place": self.request.host, "file": self.plan.setup or "", "what": str(error.strerror)}
            self.verdict.fail("mpirun", fields["what"], detail=Detail("setup-failed", fields))
            command = shlex.join(["bash", "-c", f". {shlex.quote(self.plan.setup or '')}"])
            fix = f"mend that file; to see its errors on every host: ipexctl exec -- {command}"
            return {"event": "failed", "reason": self.record.status.reason, "fix": fix}
        except PortError as error:
            self.verdict.fail("mpirun", str(error.strerror))
            return {"event": "failed", "reason": self.record.status.reason, "fix": error.fix}
        except OSError as error:
            why = f"{error.filename or self.plan.argv[0]}: {error.strerror}" if error.errno else str(error.strerror)
            self.fail_start(f"{self.starter.program} can't be started: {why}", why)
            return {"event": "failed", "reason": self.record.status.reason, "fix": self.starter.fix}
        status = self.record.status
        return {
            "event": "started",
            **status.supervisor._asdict(),
            "mpirun": self.mpirun.pid,
            "master_port": status.master.port,
        }

    def fail_start(self, reason: str, why: str) -> None:
        self.verdict.fail("mpirun", reason, detail=Detail(self.starter.failure, {"why": why}))

    @property
    def starter(self) -> NodeStarter:
        return node_starter(self.plan)

    def run(self) -> None:
        while True:
            while not self.is_finished():
                self.step()
            self.verdict.on_all_ended(self.ranks)
            if not self.restart():
                break
        self.close()

    def step(self) -> None:
        began = time.monotonic()
        is_ending = self.verdict.ending is not None or self.mpirun.ended_at is not None
        interval = CHECK_INTERVAL if is_ending or not self.is_running_well() else RUNNING_INTERVAL
        if is_ending or began - self.checked_at >= interval:
            self.checked_at = began
            self.check_timeouts(began)
        wait = min(interval, self.record.times.seconds_left(began))
        readable, _ = ready([self.wake, *self.peers.readers()], self.peers.writers(), wait)
        if self.wake in readable:
            os.read(self.wake, 4096)
        self.handle_signals()
        if self.peers.handle_ready([reader for reader in readable if reader != self.wake]):
            rest = MINIMUM_TURN - (time.monotonic() - began)
            if rest > 0:
                time.sleep(rest)
        self.record.times.write(time.monotonic())
        self.record.save(time.monotonic())

    def is_running_well(self) -> bool:
        """Whether every rank runs and is connected, and nothing waits for an answer or a decision."""
        is_undecided = self.verdict.is_open or self.dumps.is_busy or self.exchange is not None
        return not is_undecided and all(peer.status.state == "running" and peer.link is not None for peer in self.ranks)

    def on_message(self, peer: RankConnection, message: messages.Message) -> None:
        if handle := self.handlers.get(type(message)):
            handle(peer, message)

    def on_beat(self, peer: RankConnection, message: messages.Beat) -> None:
        peer.status = peer.status._replace(
            cpu=message.cpu, rss=message.rss, process=message.process, waits_in=message.waits_in
        )
        peer.ends = message.ends
        self.peers.acknowledge(peer)
        self.record.is_unsaved = True

    def on_window(self, peer: RankConnection, window: StepWindow) -> None:
        if window.is_possible:
            peer.throughput.add(window)
            rates = window.rates()
            peer.windows.of_rank.add(window.number, rates, time.monotonic(), time.time())
            self.watch.add(peer.rank, window.number, rates, window.seconds)
            self.network.add(peer.rank, window.number, rates, window.seconds, window.gradients)
            self.record.status = self.record.status._replace(slow=self.watch.slow, network=self.network.network)
            self.record.is_unsaved = True

    def on_host_window(self, peer: RankConnection, window: HostNotes) -> None:
        if window.is_possible:
            self.network.add_host(peer.host, window.number, window.rates, window.seconds, window.iface)
            peer.windows.of_host.add(window.number, window.rates, time.monotonic(), time.time(), window.iface)

    def on_trial(self, peer: RankConnection, figures: TrialFigures) -> None:
        peer.status = peer.status._replace(trial=figures)
        self.record.is_unsaved = True

    def on_connected(self, peer: RankConnection, message: messages.Connected) -> None:
        event = "connected" if message.is_new else "reconnected"
        self.record.event(event, rank=peer.rank, host=peer.host, node=message.node, wrapper=peer.status.wrapper)
        if not self.restarts_left() and self.is_job_file_read(peer.store):
            self.peers.send_message(peer, "remove-job")
        if self.verdict.ending is not None:
            self.stop_rank(peer)

    def on_start(self, peer: RankConnection, message: messages.Started) -> None:
        if peer.status.state != "starting":
            return
        peer.status = peer.status._replace(pid=message.pid, state="running")
        self.record.event("start", rank=peer.rank, host=peer.host, pid=peer.status.pid)
        if all(rank.status.state != "starting" for rank in self.ranks):
            self.record.status = self.record.status._replace(state="running")

    def on_not_started(self, peer: RankConnection, message: messages.NotStarted) -> None:
        if not peer.is_start_failure_noted:  # it is repeated after a reconnect
            peer.is_start_failure_noted = True
            fields = {"host": peer.host, "reason": message.reason}
            peer.sinks["err"].note("not-started", fields, is_first=True)

    def on_mismatch(self, peer: RankConnection, message: messages.Mismatch) -> None:
        known = peer.status.mismatch
        if message.text not in known and len(known) < MAX_MISMATCHES:
            peer.status = peer.status._replace(mismatch=(*known, message.text))
            self.record.event("mismatch", rank=peer.rank, host=peer.host, text=message.text)

    def on_exit(self, peer: RankConnection, message: messages.Exit) -> None:
        self.peers.acknowledge(peer)
        if peer.exit is None:
            self.verdict.on_exit(peer, message)

    def on_stuck(self, peer: RankConnection, message: messages.Stuck) -> None:
        """A rank has printed and reported its exception, but its process has not exited."""
        duration = f"its interpreter didn't end for {message.seconds:g} s"
        reason = f"rank {peer.rank} on {peer.host} {message.text}, and {duration}"
        reason += " (with oneCCL that is MPI_Finalize waiting for the others)"
        self.verdict.fail("stuck", reason, peers=[peer], exit_code=message.code)

    def on_malformed(self, peer: RankConnection, message: messages.Malformed) -> None:
        """Its connection was dropped. It reconnects; a rank that can't do better is lost."""
        self.record.event("malformed", rank=peer.rank, host=peer.host, reason=message.reason)
        if peer.malformed >= MAX_MALFORMED:
            reason = f"rank {peer.rank} on {peer.host} sends messages that can't be read: {message.reason}"
            self.verdict.fail("lost", reason, peers=[peer], detail=Detail("unreadable"))

    def on_noticed(self, peer: RankConnection, message: messages.Noticed) -> None:
        """The script saves what it has now, and may end itself then, as with exit code 0."""
        self.has_noticed = True
        self.record.event("noticed", rank=peer.rank, host=peer.host, signal=message.signal)

    def on_end(self, peer: RankConnection, ends: messages.Ends) -> None:
        """The rank has sent all its output; it may exit unless some of it is not written yet."""
        if any(sink.full for sink in peer.sinks.values()):
            return
        for name, sink in peer.sinks.items():
            sink.end(ends.get(name, 0))
        peer.is_over = True
        is_going_on = self.verdict.ending is None and not self.verdict.is_open and not self.verdict.has_left_at_notice
        if is_going_on and not self.restarts_left():
            self.release(peer)
        else:
            self.release_all()

    def release_all(self) -> None:
        """Release the ended ranks together, once every connected rank has ended.

        While a run is ending, or may be after a signal from outside, mpirun may kill the other ranks as soon as one
        exits, and their output would be lost.
        When a restart is possible, only the end of all ranks decides whether the job file is kept.
        """
        if not any(peer.link is not None and not peer.is_done for peer in self.ranks):
            for peer in self.ranks:
                if peer.is_over and not peer.is_released:
                    self.release(peer)

    def release(self, peer: RankConnection) -> None:
        peer.is_released = True
        if self.verdict.ending is not None:
            is_unneeded = not self.verdict.may_restart(self.ranks, self.plan.restarts)
        else:
            is_unneeded = self.is_job_file_read(peer.store)
        if is_unneeded:
            self.peers.send_message(peer, "remove-job")
        self.peers.send_message(peer, "release")

    def check_exchange(self) -> None:
        """Print what the exchange of checkpoints does, and start the commands when it is over."""
        exchange = self.exchange
        if exchange is None:
            return
        is_over = exchange.is_over
        while not exchange.notes.empty():
            note = exchange.notes.get()
            self.record.event("checkpoint", text=note)
            self.ranks[0].sinks["err"].note("checkpoint", {"text": note}, is_first=True)
        if not is_over:
            return
        if exchange.failure:
            peers = [peer for peer in self.ranks if peer.host == exchange.failed_host][:1]
            self.fail_checkpoint(exchange.failure, peers)
            return
        self.end_exchange()
        for peer in self.ranks:
            self.peers.send_message(peer, "begin")

    def on_checkpoint_failed(self, peer: RankConnection, message: messages.CheckpointFailed) -> None:
        """A host could not take part in the exchange, and could not report it there."""
        self.record.event("checkpoint-failed", rank=peer.rank, host=peer.host, reason=message.reason)
        if self.exchange is not None:
            self.fail_checkpoint(f"{peer.host}: {message.reason}", [peer])

    def fail_checkpoint(self, reason: str, peers: list[RankConnection]) -> None:
        self.verdict.fail("checkpoint", f"the checkpoint could not be brought to all hosts: {reason}", peers=peers)

    def end_exchange(self) -> None:
        if self.exchange is not None:
            self.exchange.close()
            self.exchange = None

    def stop_all(self) -> None:
        self.end_exchange()  # the ranks end their parts of it
        for peer in self.ranks:
            self.stop_rank(peer)
        self.release_all()

    def stop_rank(self, peer: RankConnection) -> None:
        if peer.exit is None:
            self.peers.send_message(peer, "stop")

    def check_timeouts(self, now: float) -> None:
        self.on_lost(self.peers.drop_silent(now), now)
        if self.verdict.ending is not None:
            self.release_all()
        missing = [peer for peer in self.ranks if peer.instance is None]
        if missing and now - self.mpirun_started_at > RANKS_BEGIN:
            self.verdict.on_not_started(missing, RANKS_BEGIN)
        if self.end_at is not None and now > self.end_at:
            self.verdict.fail("time-limit", f"the time limit of {self.plan.time_limit:g} s is over")
        if self.job_limit is not None and self.verdict.ending is None:
            self.check_job_limit(self.job_limit, now)
        if self.caller.is_gone(now):
            reason = f"the call that watched it was gone for {self.plan.caller_silence:g} s"
            self.verdict.end("stopped", 128 + signal.SIGHUP, reason)
        if self.plan.caller_silence and now - (self.record.refused_at or now) > UNRECORDED:
            reason = f"nothing could be recorded for {UNRECORDED:g} s: the disk of {self.record.status.node0} is full"
            self.verdict.end("failed", 1, f"{reason}, or a quota is used up")
        self.verdict.check_outside_signals(now, self.ranks, self.mpirun.ended_at is not None)
        if self.record.holds_output and self.record.has_room():
            self.record.store_held()
        for peer in self.peers.check_disk(now, self.record.has_room, FULL_DISK_ROOM):
            self.record.event("output-lost", rank=peer.rank, host=peer.host)
            self.on_end(peer, peer.ends)
        self.check_exchange()
        self.dumps.check_answers(now)
        stall = (self.record, self.plan.hang_after, self.plan.on_hang, now, self.mpirun_started_at, self.ranks)
        if self.verdict.ending is None and stall_detector.check_stall(*stall):
            self.on_stall()
        self.check_mpirun(now)

    def check_job_limit(self, limit: JobLimit, now: float) -> None:
        for step in limit.check(now):
            seconds = round(limit.left(now))
            self.record.event("job-limit", step=step, job=limit.job, seconds=seconds)
            if step == "stop":
                self.verdict.stop(128 + signal.SIGTERM, self.ranks, self.plan.restarts)
                return
            self.verdict.is_limit_near = True
            self.ranks[0].sinks["err"].note("job-limit", {"job": limit.job, "seconds": seconds}, is_first=True)
            for peer in self.ranks:
                self.peers.send_message(peer, "notice")

    def on_stall(self) -> None:
        """Keep the stacks with the run, also if they are not shown: they explain the hang when the run is over."""
        try:
            self.dumps.take(self.on_stall_dumped)
        except OSError:  # the disk is full
            self.on_stall_dumped("")

    def on_stall_dumped(self, dump_id: str) -> None:
        status = self.record.status
        if self.plan.on_hang == "report":  # one is enough: a script may be silent again and again
            self.dumps.remove(self.stall_dump)
            self.stall_dump = dump_id
        if status.silent is None or self.verdict.ending is not None:  # it has printed something, or has ended
            return
        self.record.status = status._replace(silent=status.silent._replace(dump=dump_id))
        self.record.event("dumped", dump=dump_id)
        if self.plan.on_hang == "stop":
            ranks = [peer.rank for peer in self.ranks if peer.exit is None]
            self.verdict.fail("hang", f"no rank printed anything for {self.plan.hang_after:g} s", ranks=ranks)

    def on_lost(self, lost: list[RankConnection], now: float) -> None:
        """Handle lost ranks. An exit that a rank has reported stays; without one, the loss ends the run."""
        without_exit = [peer for peer in lost if peer.exit is None]
        was_ending = self.verdict.ending is not None
        killed = verdict.killed_rank(self.record.tail("mpirun.log")) if without_exit else None
        self.verdict.on_lost(without_exit, self.ranks, now, killed)
        also_lost = [peer for peer in self.ranks if peer.status.state == "lost" and not peer.is_over]
        for peer in {peer.rank: peer for peer in (*lost, *also_lost)}.values():
            peer.is_over = True
            if peer.exit is None:
                is_lost = peer.status.state == "lost" or not was_ending
                peer.status = peer.status._replace(state="lost" if is_lost else "stopped", cpu=0.0, rss=0)
                self.record.event("lost", rank=peer.rank, host=peer.host)

    def check_mpirun(self, now: float) -> None:
        """End mpirun behind its ranks; if it has ended before them, find out what that means for the run."""
        if self.mpirun.ended_at is None:
            self.end_mpirun(now)
        elif self.verdict.ending is None and now - self.mpirun.ended_at > LAST_MESSAGES:
            self.check_left_behind(now)

    def end_mpirun(self, now: float) -> None:
        """Let mpirun exit by itself, and end it if it does not: it may wait for a rank that can't be reached."""
        ending = self.verdict.ending
        waiting = [peer for peer in self.ranks if not peer.is_done and peer.instance is not None]
        is_over = all(peer.is_done for peer in self.ranks) or (ending is not None and not waiting)
        end_by = ending.at + self.exit_time(now) if ending is not None else None
        have_begun = all(peer.instance is not None for peer in self.ranks)
        self.mpirun.end_after_ranks(now, end_by, is_over=is_over, have_begun=have_begun)

    def check_left_behind(self, now: float) -> None:
        """mpirun has ended, and no failure explains it: ranks without an exit are lost with it, or because of it."""
        left = [peer for peer in self.ranks if not peer.is_done and peer.exit is None]
        if not left:
            return
        self._update_mpirun(tail=tuple(split_details(self.record.tail("mpirun.log"))[0]))
        lost = self.verdict.lost_before_mpirun(left, self.mpirun)
        self.on_lost(lost, now)
        if not lost:
            self.verdict.on_mpirun_ended(left, self.mpirun.ended_by)

    def exit_time(self, now: float, spare: float = 0.0) -> float:
        """Seconds from the run's ending for what still runs to exit."""
        return FULL_DISK_FLUSH if self.peers.is_behind(now) else TERM_GRACE + spare

    def is_finished(self) -> bool:
        """Whether mpirun has exited, and every rank has, or had time enough for it."""
        now, ended_at, ending = time.monotonic(), self.mpirun.ended_at, self.verdict.ending
        if ended_at is None or self.verdict.is_open:
            return False
        waiting = [peer for peer in self.ranks if not peer.is_done]
        if not waiting:
            return True
        if ending is None:  # `check_left_behind` decides about these
            return False
        all_has_arrived = now - ended_at > LAST_MESSAGES
        if all(peer.instance is None or (peer.link is None and all_has_arrived) for peer in waiting):
            return True
        return all_has_arrived and now - ending.at > self.exit_time(now, spare=RANK_EXIT)

    def handle_signals(self) -> None:
        while self.signals:
            number = self.signals.pop(0)
            if number == signal.SIGUSR1:
                self.dumps.handle_requests()
            elif number != signal.SIGCHLD:
                self.is_asked_to_stop = True
                if self.job is not None:
                    self.job.begin_query()
                self.verdict.stop(128 + number, self.ranks, self.plan.restarts)
            elif self.mpirun.ended_at is None and self.mpirun.has_ended():
                code = self.mpirun.ended_by[0]
                self._update_mpirun(exit_code=code)
                self.record.event("mpirun-ended", exit_code=code)

    def _update_mpirun(self, **fields: Any) -> None:
        status = self.record.status
        self.record.status = status._replace(mpirun=status.mpirun._replace(**fields))

    def is_job_file_read(self, store: str) -> bool:
        """Whether all ranks of a store have read its job file. A short rank may have ended by then."""
        return all(peer.instance is not None for peer in self.ranks if peer.store == store)

    def restarts_left(self) -> int:
        return self.plan.restarts - self.record.status.attempt

    def wait_for_room(self, patience: float) -> None:
        """Wait until the output that is held in memory is written; what is left then counts as lost."""
        until = time.monotonic() + patience
        while not self.record.store_held() and time.monotonic() < until:
            time.sleep(0.2)
        for peer in self.ranks:
            if any(sink.held for sink in peer.sinks.values()):
                self.record.event("output-lost", rank=peer.rank, host=self.record.status.node0)
        self.record.give_up_held()

    def restart(self) -> bool:
        """Start the next attempt, if one is allowed; the script continues from its checkpoint."""
        if not self.verdict.may_restart(self.ranks, self.plan.restarts):
            return False
        if self.job is not None and self.job.may_requeue:
            end = self.run_end()
            if end.has_lost_node and job_end.should_requeue(end, "") and self.job.requeue():
                return False  # another start of the job has other nodes
        self.mpirun.kill_leftovers()
        after = self.verdict.restart()
        self.peers.attempt = self.record.status.attempt
        self.peers.drop_all()
        self.note_restart(after)
        for peer in self.ranks:
            peer.reset()
        self.watch.begin_attempt()
        self.network.begin_attempt()
        self.record.times.write_all(time.time())  # a setup file may take long to source
        try:
            self.start()
        except OSError as error:
            why = str(error.strerror or error)
            self.fail_start(f"{self.starter.program} can't be started again: {why}", why)
            return False
        return True

    def close(self) -> None:
        ending = self.verdict.ending or verdict.Ending("ok", 0)
        self.wait_for_room(FULL_DISK_ROOM if ending.state != "stopped" else TERM_GRACE)
        for peer in self.ranks:
            if peer.status.state not in FINAL:
                is_lost = peer.instance is not None and ending.state != "stopped"
                peer.status = peer.status._replace(state="lost" if is_lost else "stopped")
            for name, sink in peer.sinks.items():
                try:
                    sink.close()
                except OSError as error:  # NFS may report only here that the disk or the quota is full
                    reason = error.strerror or str(error)
                    self.record.event("output-lost", rank=peer.rank, host=peer.host, stream=name, reason=reason)
            peer.windows.close()
        self.record.times.close()
        self.record.notes.close()
        if self.process is not None:
            self.process.kill_leftovers()
        if self.job_limit is not None:
            self.job_limit.close()
        self.peers.dismiss()
        remove_file(self.record.path("job.json"))
        if ending.state == "ok" and self.plan.connectivity is not None:
            with contextlib.suppress(OSError):
                write_json_atomically(self.connectivity_path, self.plan.connectivity._asdict(), durable=False)
        if self.job is not None:
            ending = self.with_job_end(ending, self.job)
            self.job.end(ending.state)
        final: Json = {"exit_code": ending.code, "ended": time.time()} if ending.state != "queued" else {}
        self.record.status = self.record.status._replace(state=ending.state, **final)
        self.record.event("ended", state=ending.state, exit_code=ending.code)
        until = time.monotonic() + FULL_DISK_FLUSH
        self.record.save(time.monotonic())
        while self.record.is_unsaved and time.monotonic() < until:
            time.sleep(1.0)
            self.record.save(time.monotonic())
        has_run = self.process is not None  # else the call says that nothing runs
        if self.plan.notify is not None and has_run and ending.state != "queued":
            self.start_notify(self.plan.notify)

    def run_end(self, ending: verdict.Ending | None = None) -> RunEnd:
        status, ending = self.record.status, ending or self.verdict.ending or verdict.Ending("ok", 0)
        return RunEnd(
            ending.state,
            ending.code,
            status.reason,
            status.first_failure,
            status.attempts,
            is_limit_near=self.verdict.is_limit_near,
            has_noticed=self.has_noticed,
            is_asked_to_stop=self.is_asked_to_stop,
            is_silent=status.silent is not None,
        )

    def with_job_end(self, ending: verdict.Ending, job: RunJob) -> verdict.Ending:
        """What Slurm did to the run, or does now: it stopped the run, or lets it go on in another start of the job."""
        end = self.run_end(ending)
        if end.is_by_signal:
            job.begin_query()
        word = job_end.find_word(end, job.shown(), job.restarts, is_step_cancelled=self.is_step_cancelled())
        begins_again = job.may_requeue and (
            job.is_requeued
            or word in (slurm.REQUEUED, slurm.PREEMPTED)
            or (job_end.should_requeue(end, word) and job.requeue())
        )
        judged = job_end.judge(end, word, begins_again=begins_again)
        self.record.status = self.record.status._replace(
            reason=judged.reason, first_failure=judged.first, job_end=judged.word
        )
        return ending._replace(state=judged.state, code=judged.code)

    def is_step_cancelled(self) -> bool:
        """Whether Slurm has cancelled the step of the ranks, without the supervisor's doing."""
        if self.process is None or self.process.was_told_to_end:
            return False
        return slurm.is_step_cancelled(self.process.read_log())

    def start_notify(self, notification: Notification) -> None:
        from ipexctl.node.run import notify, summary  # few runs have a command

        status = self.record.status._replace(ranks=tuple(self.record.ranks()))
        code = 0 if status.state == "ok" else status.exit_code or 1
        fields = summary.summary_fields(
            status.id,
            status,
            world_size=status.world_size,
            hosts=notification.hosts,
            exit_code=code,
            seconds=(status.ended or 0.0) - (status.started or 0.0),
        )
        text, (command, _, claim_after, timeout) = summary.summary_text(fields), notification
        try:
            notify.start_notify(notify.NotifyRequest(self.rundir, command, text, claim_after, timeout))
        except OSError as error:
            self.record.event("not-notified", reason=error.strerror or str(error))


def daemonize(log_path: str) -> Callable[[Json], None] | str:
    """Detach from the caller: a session of its own, no terminal, stderr in a file.

    Returns a function that sends the one reply to the caller, in the detached process, and that reply in the original.
    """
    reader, writer = os.pipe()
    if session_leader := os.fork():
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as pipe:
            line = pipe.read()
        os.waitpid(session_leader, 0)
        return line or json.dumps({"event": "failed", "reason": "the supervisor died at its start"}) + "\n"
    os.setsid()
    if os.fork():
        os._exit(0)
    devnull = os.open(os.devnull, os.O_RDWR)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, target in ((0, devnull), (1, devnull), (2, log)):
        os.dup2(target, number)

    def send_reply(line: Json) -> None:
        os.write(writer, json.dumps(line).encode() + b"\n")
        os.close(writer)

    return send_reply


def reply_and_follow(reply: str, stdin: BufferedReader) -> int:
    """Pass on the supervisor's reply; if it has started the run, follow it unless stdin ends."""
    sys.stdout.write(reply)
    sys.stdout.flush()
    if parse_json(reply)["event"] == "failed":
        return 0
    if stdin.peek(1):
        from ipexctl.node.run import follow  # imported while mpirun starts

        if slurm.own_job():  # it signals all processes of a job; this one tells how the run ends
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        return follow.main("follow", stdin)
    emit("done")
    return 0


def main(action: str) -> int:  # noqa: ARG001
    stdin = open(0, "rb", closefd=False)  # noqa: SIM115
    request = decode(SupervisorRequest, parse_json(stdin.readline()), "the request")
    allow_many_files(1 << 20)
    local = f"{sockets.LOCAL}ipexctl-{os.urandom(16).hex()}"
    try:
        listeners = [sockets.listen(request.bind)]
    except OSError as error:
        emit("failed", reason=f"nothing can listen on {request.bind}: {error.strerror or error}", fix="")
        return 1
    port = listeners[0].getsockname()[1]
    with contextlib.suppress(OSError):  # a sandbox without Unix sockets: node0's ranks are refused there and use TCP
        listeners.append(sockets.listen(local))
    emit("listening", local=local, port=port)
    line = stdin.readline()
    if not line.endswith(b"\n"):  # the caller has exited
        return 1
    send_reply = daemonize(f"{request.rundir}/supervise.log")
    if isinstance(send_reply, str):
        for listener in listeners:  # they close with the supervisor
            listener.close()
        return reply_and_follow(send_reply, stdin)
    try:
        start = decode(StartRequest, parse_json(line), "the request")
        start = start._replace(argv=(*start.argv, local, request.bind, str(port)))
        for name, text in (("job.json", start.job), ("plan.json", start.plan)):
            if text:
                write_atomically(os.path.join(request.rundir, name), text.encode(), durable=False)
        supervisor = Supervisor(request, start, listeners)
    except ValueError as error:
        send_reply({"event": "failed", "reason": f"the request to start the run can't be read: {error}"})
        os._exit(1)
    except OSError as error:
        why = f"the run's record can't be begun: {error.filename or request.rundir}: {error.strerror or error}"
        send_reply({"event": "failed", "reason": why, "fix": "df and ulimit -n there say what is short"})
        os._exit(1)
    send_reply(supervisor.start_and_reply())
    if supervisor.process is not None:
        supervisor.run()
    else:
        supervisor.close()
    os._exit(0)

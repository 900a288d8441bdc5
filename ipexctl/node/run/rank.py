"""The rank wrapper: sets the planned variables and cores, starts the command, and sends its output to the supervisor.

mpirun starts it as `PYTHON -IS RUNDIR/agent.zip run.rank RUNDIR/job.json LOCAL ADDRESS PORT`, with the record of
`node/common/job.py` and two addresses of the supervisor, the first for ranks on node0. In come the messages of the
supervisor (`messages.py`), signals of mpirun, and the command's output; out go that output and messages of its own
(`messages.py`).

It decides two things: what becomes of the command (`Phase`) and whether there is still a supervisor to report to
(`Bond`). `PHASES` and `BONDS` are all changes that can happen; everything else follows from these two. The rules: the
command ends with the wrapper, and the wrapper never before it; no byte is dropped while there is a supervisor to take
it; the supervisor decides when the rank may exit, unless it is lost.

The exit code is that of the command (128+N for signal N), 111 when the rank can't start, 112 when the supervisor is
lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from enum import Enum
from typing import IO, TYPE_CHECKING, Collection, Sequence

from ipexctl.node.common import frames
from ipexctl.node.common.environ import SetupError
from ipexctl.node.common.files import make_private_directory, remove_file
from ipexctl.node.common.job import JobRecord, Master, read_job
from ipexctl.node.common.json_parser import read_json_file
from ipexctl.node.common.limits import (
    OUTPUT_DRAIN,
    SUPERVISOR_AT_EXIT,
    SUPERVISOR_BUSY,
    SUPERVISOR_CONNECT,
    SUPERVISOR_REFUSED,
    SUPERVISOR_SILENCE,
    TERM_GRACE,
)
from ipexctl.node.common.link import ready
from ipexctl.node.common.records import DETAIL_MARK, Detail
from ipexctl.node.run import output_buffer, process_stacks, processes, rank_env, supervisor_client
from ipexctl.node.run.oom import OutOfMemoryWatch
from ipexctl.node.run.rank_meter import MeteredHost, RankMeter

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.link import Pollable
    from ipexctl.node.run.rank_checkpoint import CheckpointProcess

BEAT_INTERVAL = 4.0
"""Seconds between two messages with figures, which the supervisor answers: by these it sees that the rank lives."""
TRIAL_BEAT_INTERVAL = 1.0
"""The same in a trial of `autotune`, which ends as soon as enough is measured."""
FIRST_MEMORY_INTERVAL = 0.1
"""Seconds from the start of the command to the first look at its cgroup; each later one has twice as long."""
EXITED_BEAT_INTERVAL = 1.0
"""The same once the command has ended: a rank then soon gives up a supervisor that does not answer."""

STOPPED_DRAIN = 0.3
"""In place of OUTPUT_DRAIN if the command was stopped: what is left of it has had its SIGTERM."""
KILL_INTERVAL = 1.0
"""Seconds between two SIGKILLs: a process may have started others meanwhile."""
NOT_STARTED, SUPERVISOR_LOST = 111, 112


class Phase(Enum):
    """What becomes of the command."""

    CONNECTING = "the supervisor has not said yet whether to start it"
    WAITING = "it waits for the end of the exchange of checkpoints"
    RUNNING = "it is started, or about to be"
    STOPPING = "it was told to end, and is killed after the grace period; it may never have been started"
    EXITED = "its exit is known, and its output is read to the end"
    DONE = "no process of it is left; the rest of its output is sent"


PHASES = {
    Phase.CONNECTING: (Phase.WAITING, Phase.RUNNING, Phase.STOPPING),
    Phase.WAITING: (Phase.RUNNING, Phase.STOPPING),
    Phase.RUNNING: (Phase.STOPPING, Phase.EXITED),
    Phase.STOPPING: (Phase.EXITED,),
    Phase.EXITED: (Phase.DONE,),
    Phase.DONE: (),
}
"""What may follow each phase."""


class Bond(Enum):
    """Whether there is a supervisor to report to."""

    HELD = "it takes the output, or will after a reconnect"
    RELEASED = "it has all it wants: the rank may exit"
    LOST = "it is gone: the rank ends its command and exits"
    REPLACED = "as LOST, since the run was restarted without this rank: the job file is that of the next attempt"


BONDS = {
    Bond.HELD: (Bond.RELEASED, Bond.LOST, Bond.REPLACED),
    Bond.RELEASED: (Bond.LOST, Bond.REPLACED),
    Bond.LOST: (Bond.REPLACED,),
    Bond.REPLACED: (),
}
"""What may follow each bond; what else happens to it changes nothing."""


class CommandWatch:
    """What is seen of the processes of a running command: their figures, their files, and how memory ran out."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._usage = processes.Usage(pid)
        self._openmp_files = processes.OpenmpFiles()
        self._openmp_files.update(self._usage.pids)
        self._oom = OutOfMemoryWatch(pid)
        self._interval = FIRST_MEMORY_INTERVAL
        self.memory_at = time.monotonic() + self._interval
        """When to look at its cgroup next."""
        self._memory = 0
        """Of the command and its processes, when they were measured last."""

    @property
    def pids(self) -> list[int]:
        """The processes of the command that were measured last, and first itself."""
        return [self._pid, *(self._usage.pids - {self._pid})]

    def measure(self) -> tuple[float, int]:
        """CPU and memory."""
        figures = self._usage.now()
        self._memory = figures[1]
        self._openmp_files.update(self._usage.pids)
        return figures

    def check_memory(self, now: float) -> None:
        """Often at first: a script that starts a program in another cgroup does that soon."""
        self._oom.update(now)
        self._interval = min(2 * self._interval, BEAT_INTERVAL)
        self.memory_at = now + self._interval

    def find_kill(self, memory: int) -> Json | None:
        """The kernel's kill for lack of memory, if there was one; `memory` is the most that the command itself had."""
        kill = self._oom.find_kill()
        return kill and {**kill, "memory": max(memory, self._memory) or None}

    def remove_files(self, ended: Collection[int]) -> None:
        """Remove files of these processes, then of all that have ended."""
        self._openmp_files.update(ended)
        self._openmp_files.update(())


class Rank:
    """One rank: connects, starts the command, forwards its output, and ends when all of it is acknowledged."""

    def __init__(self, job: JobRecord, path: str, rank: int, addresses: Sequence[tuple[str, int]]) -> None:
        self.job, self.path, self.rank = job, path, rank
        self.plan = job.ranks[rank]
        self.supervisor_address = addresses[-1]
        self.guard = processes.Guard()
        self.stacks = process_stacks.ProcessStacks(job.rundir, job.command)
        self.meter = RankMeter(is_on=job.meter, metric=job.metric, host=host_plan(job, rank), is_trial=job.trial)
        process = {"rank": rank, "host": socket.gethostname(), "pid": os.getpid(), "instance": os.urandom(16).hex()}
        self.identity: Json = {**process, "attempt": None}
        self.client = supervisor_client.SupervisorClient(addresses, job.token, self.identity, self.resume)
        self.welcome: Json = {}
        self.streams: list[supervisor_client.CommandStream] = []
        self.phase = Phase.CONNECTING
        self.bond = Bond.HELD
        self.checkpoint: CheckpointProcess | None = None
        """The exchange of checkpoints, in which the lowest rank of a store takes part."""
        self.checkpoint_problem = ""
        """Why that exchange failed on this host: the supervisor ends the run then."""
        self.child: subprocess.Popen[bytes] | None = None
        self.watch: CommandWatch | None = None
        self.mismatches: list[str] = []
        self.not_started = ""
        """Why the command could not be started."""
        self.exit: Json | None = None
        """The message about its exit, from the phase EXITED on."""
        self.kill_at = self.drain_until = float("inf")
        self.beat_at = self.poll_at = 0.0
        self.has_killed = False
        """The wrapper has sent SIGKILL."""
        self.end_sent = False
        """Over this connection, the supervisor was told that all output is sent."""
        self.is_signalled = False
        """mpirun, or another process than the supervisor, has sent a signal."""
        self.outside_signal: int | None = None
        """The first of them, if the command ran then."""
        self._signals: list[int] = []

    def enter(self, phase: Phase) -> None:
        assert phase in PHASES[self.phase], f"{self.phase.name} does not become {phase.name}"
        self.phase = phase

    def change_bond(self, bond: Bond) -> None:
        if bond in BONDS[self.bond]:
            self.bond = bond

    @property
    def is_lost(self) -> bool:
        return self.bond in (Bond.LOST, Bond.REPLACED)

    @property
    def may_run(self) -> bool:
        """Whether the command runs, or may still be started."""
        return self.phase in (Phase.CONNECTING, Phase.WAITING, Phase.RUNNING)

    def run(self) -> int:
        wake, wakeup = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(wakeup, False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(number, lambda number, _: self._signals.append(number))
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        self.connect(wake)
        # The run may have ended before or while this rank connected.
        if self.welcome.get("stop") or self.phase is Phase.STOPPING:
            self.end_without_command()
        elif self.checkpoint_port is not None:
            self.enter(Phase.WAITING)
            if self.rank == min(self.job.ranks):
                from ipexctl.node.run.rank_checkpoint import CheckpointProcess  # few runs need it

                self.checkpoint = CheckpointProcess(
                    self.job, self.rank, self.supervisor_address[0], self.checkpoint_port
                )
        else:
            self.start_command()
        while not self.is_over:
            self.step(wake)
        self.guard.dismiss()
        for stream in self.streams:
            stream.buffer.close()
        if self.is_lost:
            if self.bond is not Bond.REPLACED:
                remove_file(self.path)
            print_error(f"the supervisor was lost ({self.client.why}), so rank {self.rank} was ended")
            return SUPERVISOR_LOST
        if self.job.bytecode and self.rank == min(self.job.ranks) and not os.path.exists(self.job.bytecode):
            from ipexctl.node.common.archive import save_bytecode  # only the first run of a version needs it

            save_bytecode(self.job.bytecode)
        return int(self.exit["code"]) if self.exit is not None else 0

    @property
    def is_over(self) -> bool:
        return self.phase is Phase.DONE and self.bond is not Bond.HELD

    def connect(self, wake: int) -> None:
        until = time.monotonic() + SUPERVISOR_CONNECT
        while not self.client.is_up:
            if time.monotonic() > until or (self._signals and self._signals[-1] != signal.SIGCHLD):
                remove_file(self.path)
                address, port = self.supervisor_address
                raise rank_env.RankStartError(
                    f"the supervisor at {address}:{port} can't be reached from here: {self.client.why}; "
                    "is the port open between the nodes? ipexctl doctor checks that",
                    Detail("no-way-back", {"place": f"{address}:{port}", "why": self.client.why}),
                )
            self.exchange(wake, 0.2)

    @property
    def checkpoint_port(self) -> int | None:
        """The port of the exchange of checkpoints; None when it is over."""
        port = self.welcome.get("checkpoint_port")
        return port if isinstance(port, int) else None

    def on_checkpoint_exit(self, checkpoint: CheckpointProcess, status: int) -> None:
        """Report an exchange of checkpoints that ended without telling the supervisor why."""
        self.checkpoint = None
        problem = checkpoint.read_problem(status)
        if problem and self.phase is Phase.WAITING:
            self.checkpoint_problem = problem
            self.client.send_message("checkpoint-failed", reason=problem)

    def end_without_command(self) -> None:
        """End before the command was started."""
        if self.phase is not Phase.STOPPING:
            self.enter(Phase.STOPPING)
        if self.checkpoint is not None:
            self.checkpoint.end()
        self.on_exit(128 + signal.SIGTERM, signal.SIGTERM)
        self.enter(Phase.DONE)

    def start_command(self) -> None:
        """Start the command. If that fails, the supervisor notes why in the rank's stderr, where users look for it."""
        self.enter(Phase.RUNNING)
        out, err = self.output_buffer("stdout"), self.output_buffer("stderr")
        code, why, problem, file = 127, "", "", ""
        try:
            master = Master(**self.welcome["master"]) if "master" in self.welcome else self.job.master
            attempt = int(self.identity["attempt"] or 0)
            setup = rank_env.environment(self.job, self.rank, master, attempt)
            self.mismatches += setup.refused
            environ = self.meter.prepare(self.stacks.prepare(setup.environ))
            with contextlib.suppress(OSError):  # a full disk is no reason not to start; a script that needs it says so
                make_private_directory(rank_env.results_directory(self.job))
            self.client.last_received = time.monotonic()  # a setup file takes time, in which nothing is read
            with processes.bound(self.plan, self.mismatches):
                self.child = subprocess.Popen(
                    self.job.command,
                    cwd=self.job.cwd,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    close_fds=False,  # the MPI library looks for descriptors mpirun has opened for it
                    start_new_session=True,
                    preexec_fn=processes.prepare_child(self.job.options, setup.process),
                )
        except rank_env.RankStartError as error:
            code, why = NOT_STARTED, str(error)
        except SetupError as error:
            why, problem, file = str(error.strerror), "setup-failed", self.job.setup or ""
        except OSError as error:
            missing = error.filename == self.job.cwd
            code = 126 if isinstance(error, PermissionError) else 127
            file = str(error.filename or self.job.command[0])
            why = f"{file}: {error.strerror}" if error.errno else str(error.strerror)
            problem = "no-directory" if missing else "no-command"
        if self.child is not None:
            self.guard.watch(self.child.pid)
            self.stacks.watch(self.child.pid)
            self.watch = CommandWatch(self.child.pid)
            self.meter.start(self.child.pid, time.monotonic())
            assert self.child.stdout is not None
            assert self.child.stderr is not None
            pipes: list[IO[bytes]] = [self.child.stdout, self.child.stderr]
        else:
            advice = "; is the project synced to this path? (ipexctl sync)" if problem == "no-directory" else ""
            self.not_started = f"{why}{advice}"
            pipes = [open(os.devnull, "rb"), open(os.devnull, "rb")]  # noqa: SIM115
        read_metric = self.meter.read_output if self.job.metric else None
        self.streams = [
            supervisor_client.CommandStream(pipe, buffer, read_metric) for pipe, buffer in zip(pipes, (out, err))
        ]
        if self.child is None:
            fields = {"place": self.plan.host, "file": file, "what": why}
            self.on_exit(code, None, Detail(problem, fields) if problem else None)
        self.resume({})

    def output_buffer(self, stream: frames.StreamName) -> output_buffer.OutputBuffer:
        name = frames.SUFFIXES[stream]
        spill = os.path.join(self.job.rundir, "spill", f"{self.rank:04}.{name}")
        return output_buffer.OutputBuffer(spill, self.rank, stream, int(self.welcome.get(name) or 0))

    def resume(self, welcome: Json) -> None:
        """After a reconnect: repeat all state messages, and send output from where the supervisor has it."""
        if welcome and self.identity["attempt"] not in (None, welcome.get("attempt", 0)):
            self.change_bond(Bond.REPLACED)
            self.give_up("the run was restarted without it")
            return
        if welcome:
            self.welcome = welcome
            self.identity["attempt"] = welcome.get("attempt", 0)
            for stream in self.streams:
                stream.buffer.rewind(int(welcome.get(stream.name) or 0))
        self.end_sent = False
        if self.child is not None:
            self.client.send_message("start", pid=self.child.pid)
        if self.not_started:
            self.client.send_message("not-started", reason=self.not_started)
        for text in self.mismatches if self.streams else ():
            self.client.send_message("mismatch", text=text)
        if self.stacks.stuck is not None:
            self.client.send_message("stuck", **self.stacks.stuck)
        if self.outside_signal is not None:
            self.client.send_message("outside-signal", signal=self.outside_signal)
        if self.checkpoint_problem:
            self.client.send_message("checkpoint-failed", reason=self.checkpoint_problem)
        if welcome:
            self.meter.rewind()
        self.send_windows()
        if self.exit is not None:
            self.client.send_message("exit", **self.exit)

    def send_windows(self) -> None:
        """Send what the meter has measured, before the exit: it belongs to this attempt."""
        if self.client.is_up:
            for kind, fields in self.meter.take():
                self.client.send_message(kind, **fields)
            trial = self.meter.trial_figures(time.monotonic())
            if trial is not None:
                self.client.send_message("trial", **trial)

    def step(self, wake: int) -> None:
        now = time.monotonic()
        self.client.notice_suspension(now)
        self.check_timeouts(now)
        if self.is_over:
            return
        is_quiet = self.client.is_up and self.exit is None and not self.stacks.is_busy
        latest = min(self.beat_at, self.meter.next_end, self.meter.next_look) if is_quiet else now + 0.5
        if self.watch is not None and self.exit is None:
            latest = min(latest, self.watch.memory_at)
        wait = min(max(0.0, at - now) for at in (self.kill_at, self.drain_until, self.beat_at, latest))
        waits = [stream.read_at - now for stream in self.streams if stream.open]
        self.exchange(wake, max(0.0, min([wait, *(seconds for seconds in waits if seconds > 0)])))

    def exchange(self, wake: int, wait: float) -> None:
        now = time.monotonic()
        self.client.step(now)
        open_streams = {stream.number: stream for stream in self.streams if stream.open and stream.read_at <= now}
        readers: list[Pollable] = [wake, self.stacks.reader, *open_streams, *self.client.readers()]
        readable, writable = ready(readers, self.client.writers(), wait)
        if wake in readable:
            os.read(wake, 4096)
        now = time.monotonic()
        for number in readable:
            if isinstance(number, int) and number in open_streams:
                open_streams[number].read_output(now)
        for message in self.client.exchange(readable, writable):
            self.handle_message(message)
        self.handle_signals()
        self.forward_output()

    def forward_output(self) -> None:
        for stream in self.streams:
            chunks = stream.buffer.take()
            while self.client.room > 0:
                chunk = next(chunks, None)
                if chunk is None:
                    break
                self.client.send(frames.encode_chunk(chunk))
        is_complete = self.phase is Phase.DONE and not any(
            stream.open or not stream.buffer.is_empty for stream in self.streams
        )
        if is_complete and self.client.is_up and not self.end_sent:
            self.client.send_message("end", ends=self.ends())
            self.end_sent = True
        self.client.exchange([], [])

    def ends(self) -> Json:
        return {stream.name: stream.buffer.end for stream in self.streams}

    @property
    def beat_interval(self) -> float:
        return TRIAL_BEAT_INTERVAL if self.job.trial else BEAT_INTERVAL

    def check_timeouts(self, now: float) -> None:
        if now >= self.beat_at:
            self.beat_at = now + (self.beat_interval if self.exit is None else EXITED_BEAT_INTERVAL)
            cpu, rss = self.measure()
            state, waits = processes.process_state(self.child.pid) if self.child and self.exit is None else (None, None)
            figures = {"cpu": round(cpu, 1), "rss": rss, "process": state, "waits_in": waits}
            self.client.send_message("beat", ends=self.ends(), **figures)
        if self.watch is not None and self.exit is None and now >= self.watch.memory_at:
            self.watch.check_memory(now)
        if self.exit is None and now >= self.meter.next_look:
            self.meter.look(now)
        if self.watch is not None and self.exit is None and now >= min(self.poll_at, self.meter.next_end):
            self.poll_at = now + self.beat_interval
            self.meter.poll(self.watch.pids, now)
            self.send_windows()
        if now - self.client.last_received > self.patience(now) and not self.is_lost:
            self.give_up(self.client.why)
        if self.phase is Phase.WAITING and self.checkpoint_port is None:
            self.start_command()
        if now >= self.kill_at:
            self.kill_at = now + KILL_INTERVAL
            self.has_killed = True
            processes.signal_descendants(signal.SIGKILL, self.guard.pid)
        is_drained = now >= self.drain_until or not any(stream.open for stream in self.streams)
        if self.phase is Phase.EXITED and is_drained:
            self.clean_up()
            self.forward_output()
        for t, fields in self.stacks.poll(now):
            self.client.send_message(t, **fields)

    def patience(self, now: float) -> float:
        """Seconds without a message after which the supervisor counts as lost."""
        if self.phase is Phase.DONE and self.is_signalled:
            return SUPERVISOR_AT_EXIT
        if self.client.is_refused:
            return SUPERVISOR_REFUSED
        return SUPERVISOR_BUSY if now - self.client.connected_at < SUPERVISOR_SILENCE else SUPERVISOR_SILENCE

    def measure(self) -> tuple[float, int]:
        """CPU and memory of the command and its processes."""
        return (0.0, 0) if self.watch is None or self.exit is not None else self.watch.measure()

    def give_up(self, why: str) -> None:
        """Stop the command, because there is no supervisor any more."""
        self.change_bond(Bond.LOST)
        self.client.why = why
        self.stop()

    def clean_up(self) -> None:
        """End the remaining processes of the command, then read its streams to the end."""
        ended = processes.end_descendants(self.guard.pid)
        if self.watch is not None:
            self.watch.remove_files(ended)
        for stream in self.streams:
            for _ in range(64):
                if stream.open:
                    stream.read_output(0.0)
            stream.close()
        self.enter(Phase.DONE)
        self.kill_at = self.drain_until = float("inf")

    def handle_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if number == signal.SIGCHLD:
                for pid, status, memory in processes.reap():
                    if self.child is not None and pid == self.child.pid and self.exit is None:
                        self.child.returncode = 0  # it is reaped here, not by subprocess
                        by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
                        self.on_exit(128 + by if by else os.WEXITSTATUS(status), by, memory=memory)
                    elif self.checkpoint is not None and pid == self.checkpoint.pid:
                        self.on_checkpoint_exit(self.checkpoint, status)
            elif number in (signal.SIGUSR1, signal.SIGUSR2):
                self.signal_handlers(number)
            else:
                self.is_signalled = True
                if self.may_run and not self.is_lost:
                    self.outside_signal = number
                    self.client.send_message("outside-signal", signal=number)
                self.stop()

    def on_exit(self, code: int, by: int | None, problem: Detail | None = None, *, memory: int = 0) -> None:
        """`memory`: the most bytes that the command had."""
        if self.stacks.stuck is not None:  # the exception is the cause, not the signal that ended the process
            code, by = self.stacks.stuck["code"], None
        was_stopped = self.phase is Phase.STOPPING
        self.enter(Phase.EXITED)
        is_own = not was_stopped or (by == signal.SIGKILL and not self.has_killed)
        oom = self.watch.find_kill(memory) if self.watch is not None and is_own and by == signal.SIGKILL else None
        self.exit = {"code": code, "signal": by, "is_own": is_own, "oom": oom}
        self.exit["problem"] = problem._asdict() if problem is not None else None
        disk = rank_env.find_full_disk(self.job, self.rank) if code and is_own else None
        self.exit["disk"] = disk._asdict() if disk is not None else None
        self.beat_at = min(self.beat_at, time.monotonic() + EXITED_BEAT_INTERVAL)
        self.drain_until = time.monotonic() + (STOPPED_DRAIN if was_stopped else OUTPUT_DRAIN)
        self.meter.finish(time.monotonic())
        self.send_windows()
        self.client.send_message("exit", **self.exit)

    def handle_message(self, message: Json) -> None:
        kind = message.get("t")
        if kind == "ack":
            for stream in self.streams:
                stream.buffer.acknowledge(int(message.get(stream.name) or 0))
        elif kind == "rewind":
            self.client.send_message("rewound")
            for stream in self.streams:
                stream.buffer.rewind(int(message.get(stream.name) or 0))
        elif kind == "stop":
            self.stop()
        elif kind == "notice":
            self.on_notice()
        elif kind == "begin":
            self.welcome["checkpoint_port"] = None
        elif kind == "dump":
            self.stacks.dump(str(message.get("id")))
        elif kind == "remove-job":
            remove_file(self.path)
        elif kind == "release":
            self.change_bond(Bond.RELEASED)
            if self.exit is None:  # the supervisor has waited long enough
                self.kill_at = 0.0

    def on_notice(self) -> None:
        """Pass the notice on by the first signal that the command handles; without one, it has nothing to save."""
        for number in (signal.SIGUSR1, signal.SIGTERM):
            if self.signal_handlers(number):
                self.client.send_message("noticed", signal=number)
                return

    def stop(self) -> None:
        if self.phase is Phase.WAITING:
            self.end_without_command()
        elif self.may_run:
            self.enter(Phase.STOPPING)
            self.kill_at = time.monotonic() + TERM_GRACE
            self.signal_child(signal.SIGTERM)

    def signal_handlers(self, number: int) -> bool:
        """Send a signal to the command only if it handles that; whether it does."""
        if self.child is None or self.phase is not Phase.RUNNING:
            return False
        return processes.signal_handlers(self.child.pid, number)

    def signal_child(self, number: int) -> None:
        if self.child is not None and self.exit is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child.pid, number)


def host_plan(job: JobRecord, rank: int) -> MeteredHost | None:
    """For the lowest rank of its host, which makes the notes of that host."""
    host = job.ranks[rank].host
    ranks = {number: plan for number, plan in job.ranks.items() if plan.host == host}
    if rank != min(ranks):
        return None
    variables = {**job.variables, **job.ranks[rank].variables}
    cores = sorted({core for plan in ranks.values() for core in plan.cores})
    return MeteredHost(cores, variables.get("GLOO_SOCKET_IFNAME") or "")


def print_error(text: str, detail: Detail | None = None) -> None:
    """Write to stderr, which is mpirun's log: the only way to report anything before the supervisor is connected."""
    sys.stderr.write(f"ipexctl: {socket.gethostname()}: {text}\n")
    if detail is not None:
        sys.stderr.write(f"{DETAIL_MARK}{json.dumps(detail._asdict())}\n")
    sys.stderr.flush()


def main(path: str) -> int:
    try:
        job = read_job(read_json_file(path))
        local, address, port = sys.argv[-3:]
        code = Rank(job, path, rank_env.find_rank(job), ((local, 0), (address, int(port)))).run()
    except (OSError, ValueError) as error:
        print_error(f"{path} can't be read: {getattr(error, 'strerror', None) or error}")
        code = NOT_STARTED
    except rank_env.RankStartError as error:
        print_error(str(error), error.detail)
        code = NOT_STARTED
    return code

"""The rank wrapper: sets the planned variables and cores, starts the command, and sends its output to the supervisor.

Started as `PYTHON -IS RUNDIR/agent.zip run.rank RUNDIR/job.json [RANK] LOCAL ADDRESS PORT`; LOCAL is the supervisor's
address for ranks on node0, RANK is given without mpirun. `rank_machine.py` decides. Exit code: the command's (128+N for
signal N), 111 if the rank can't start, 112 if the supervisor is lost.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING, Callable, Collection, Mapping, Sequence

from ipexctl.node.common import frames
from ipexctl.node.common.clock import starvation
from ipexctl.node.common.environ import SetupError
from ipexctl.node.common.files import make_private_directory, remove_file
from ipexctl.node.common.job import HomeJob, Master, read_job
from ipexctl.node.common.json_records import encode, read_json_file
from ipexctl.node.common.listener import is_of_this_machine, own_port
from ipexctl.node.common.liveness import RESERVED_FILE
from ipexctl.node.common.node_limits import RANK_STUCK
from ipexctl.node.common.placeholders import used_names
from ipexctl.node.common.plan import Plan, command_of, for_hosts, host_of, read_plan, variables_of
from ipexctl.node.common.processes import pid_scope, start_of
from ipexctl.node.common.records import DETAIL_MARK, Detail, RankFigures
from ipexctl.node.common.token_proof import ready, wake_on_signal
from ipexctl.node.run.connection import master_port, output_buffer, supervisor_client
from ipexctl.node.run.connection.spill_file import SpillFile
from ipexctl.node.run.meter.rank_meter import MeteredHost, RankMeter
from ipexctl.node.run.meter.rank_profile import SUFFIX
from ipexctl.node.run.rank import process_stacks, rank_env
from ipexctl.node.run.rank import rank_processes as processes
from ipexctl.node.run.rank.oom import OutOfMemoryWatch
from ipexctl.node.run.rank.rank_limits import RankLimits, describe_gpus, describe_notes, last_exception
from ipexctl.node.run.rank.rank_machine import Act, ExplainExit, PassOn, SendReport, Turn, WrapperState
from ipexctl.node.run.record.file_owner import separate
from ipexctl.node.run.record.run_files import HostRank

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.token_proof import Pollable
    from ipexctl.node.run.rank.rank_checkpoint import CheckpointProcess
    from ipexctl.node.run.rank.rank_machine import Step

NOT_STARTED = 111


class CommandWatch:
    def __init__(self, pid: int, sharers: int) -> None:
        self._pid = pid
        self._usage = processes.Usage(pid, sharers)
        self._openmp_files = processes.OpenmpFiles()
        self._openmp_files.update(self._usage.pids)
        self._oom = OutOfMemoryWatch(pid, time.monotonic())
        self._memory = 0
        self._begun, self._next_check = time.monotonic(), 2.0
        """Second in which the place of its memory is checked next; infinite once it was wrong."""

    @property
    def pids(self) -> list[int]:
        """The command, then its other processes at the last measurement."""
        return [self._pid, *(self._usage.pids - {self._pid})]

    def measure(self) -> RankFigures:
        """Return CPU use since the last call, and present memory and state of the command's processes."""
        cpu, self._memory = self._usage.now()
        figures = RankFigures(round(cpu, 1), self._memory, *processes.process_state(self._pid))
        self._openmp_files.update(self._usage.pids)
        return figures

    def check_memory(self, now: float, nodes: Collection[int]) -> str:
        """Note out-of-memory counters, and return where the command's memory is, if that is not on the planned NUMA
        nodes; else empty.

        The place is looked at less and less often: 100 GB take a second.
        """
        self._oom.update(now)
        if not nodes or now - self._begun < self._next_check:
            return ""
        text = processes.describe_far_memory(self.pids, nodes)
        self._next_check = math.inf if text else 2 * self._next_check
        return text

    def find_kill(self, memory: int, *, was_killed: bool) -> tuple[Json | None, list[Json]]:
        """Return the kernel's out-of-memory kill, if SIGKILL ended the command and that kill is certain, else None; and
        what was measured. `memory`: the command's own peak, in bytes."""
        count = self._oom.find_kill(time.monotonic(), reads_log=was_killed)
        proofs = self._oom.describe(count)
        measured = [proof._asdict() for proof in proofs]
        if not was_killed or proofs[0].kind != "oom-counted":
            return None, measured
        return {"by": count.by, "limit": count.limit, "memory": max(memory, self._memory) or None}, measured

    def remove_files(self, ended: Collection[int]) -> None:
        """Remove what the OpenMP runtime left in /dev/shm, also of these processes, which were killed after the
        command's exit."""
        self._openmp_files.update(ended)
        self._openmp_files.update(())


class Rank:
    def __init__(self, plan: Plan, job: HomeJob, path: str, rank: int, addresses: Sequence[tuple[str, int]]) -> None:
        self.plan, self.job, self.path, self.rank = plan, job, path, rank
        self.host, options = host_of(plan, rank), plan.asked
        self.own = next(planned for planned in self.host.ranks if planned.rank == rank)
        self.supervisor_address = addresses[-1]
        self.guard = processes.Guard()
        self.stacks = process_stacks.ProcessStacks(plan.rundir, plan.command)
        host = host_to_meter(plan, rank, job.secrets)
        self.files = HostRank(plan.rundir)
        self.profile = os.path.join(plan.rundir, "spill", f"{rank:04}{SUFFIX}")
        profile = self.profile if options.profile else ""
        self.meter = RankMeter(is_on=options.meter, host=host, profile=profile, sharers=len(self.host.ranks))
        process = {"rank": rank, "host": socket.gethostname(), "pid": os.getpid(), "instance": os.urandom(16).hex()}
        started = {"start": start_of(os.getpid()), "scope": pid_scope()}
        self.identity: Json = {**process, **started, "attempt": job.attempt}
        self.client = supervisor_client.SupervisorClient(
            addresses, job.token, self.identity, self.on_welcome, time.monotonic()
        )
        self.welcome: Json = {}
        self.streams: list[supervisor_client.CommandStream] = []
        self.is_lowest = rank == min(rank_env.ranks_here(plan, job))
        keeps_going, restarts = options.keep_going, options.max_restarts if options.keep_going else 0
        placeholders = used_names(plan.command) if options.is_behind_dashes else frozenset()
        self.state = WrapperState(
            is_lowest=self.is_lowest,
            keeps_going=keeps_going,
            restarts_left=restarts,
            awaits_peers="peers" in placeholders,
        )
        self.needs_port = not placeholders.isdisjoint(("port", "peers"))
        self.port: int | None = None
        self.ports: tuple[int, ...] = ()
        """Ports of all ranks, for `{peers}`."""
        self.exchange_process: CheckpointProcess | None = None
        self.child: subprocess.Popen[bytes] | None = None
        self.watch: CommandWatch | None = None
        self.limits: RankLimits | None = None
        self.notes: list[str] = []
        self.seconds = 0.0
        """Processor time of the command, once it has exited."""
        self._signals: list[int] = []
        self._acts: Mapping[Act, Callable[[], None]] = {
            Act.START_COMMAND: self.start_command,
            Act.START_EXCHANGE: self.start_exchange,
            Act.END_EXCHANGE: self.end_exchange,
            Act.GIVE_UP_CONNECTING: self.give_up_connecting,
            Act.TERMINATE: self.terminate,
            Act.KILL: self.kill,
            Act.CLEAN_UP: self.clean_up,
            Act.SEND_BEAT: self.send_beat,
            Act.SEND_WINDOWS: self.send_windows,
            Act.CHECK_MEMORY: self.check_memory,
            Act.READ_HOST: lambda: self.meter.read_host(time.monotonic()),
            Act.READ_METER: self.read_meter,
            Act.FINISH_METER: lambda: self.meter.finish(time.monotonic()),
            Act.CHECK_RAISED: self.check_raised,
        }

    def run(self) -> int:
        """Take turns until the wrapper may exit, and return its exit code.

        The job file is removed here only if the supervisor is lost. Else the supervisor says when.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(number, lambda number, _: self._signals.append(number))
        wake = wake_on_signal()
        while not self.state.is_over:
            self.step(wake)
        self.guard.dismiss()
        for stream in self.streams:
            stream.buffer.close()
        if self.state.owns_job_file:
            remove_file(self.path)
        if self.state.is_lost:
            print_error(f"the supervisor was lost ({self.state.lost_reason}), so rank {self.rank} was ended")
        elif self.job.bytecode and self.is_lowest and not os.path.exists(self.job.bytecode):
            from ipexctl.node.common.agent_copy import save_bytecode  # only the first run of a version needs it

            save_bytecode(self.job.bytecode)
        return self.state.exit_code

    def apply(self, step: Step) -> None:
        """Take over the state of a decision, and carry out its commands in order."""
        self.state, commands = step
        for command in commands:
            if isinstance(command, Act):
                self._acts[command]()
            elif isinstance(command, SendReport):
                self.client.send_message(command.t, **command.fields)
            elif isinstance(command, PassOn):
                self.pass_on(command)
            elif isinstance(command, ExplainExit):
                self.explain_exit(command)
            else:
                self.resume(command.welcome)

    def step(self, wake: int) -> None:
        """Take one turn: let time decide, then wait for the supervisor, output and signals."""
        now = time.monotonic()
        self.client.contact = self.client.contact.on_turn(now)
        self.apply(self.state.on_turn(self.turn(), now))
        self.report_stacks()
        if self.state.is_over:
            return
        wait = self.state.next_turn(self.turn(), now) - now
        waits = [stream.read_at - now for stream in self.streams if stream.open]
        self.exchange(wake, max(0.0, min([wait, *(seconds for seconds in waits if seconds > 0)])))

    def turn(self) -> Turn:
        """Return what `WrapperState` must know of this moment."""
        return Turn(
            self.client.contact,
            window_end=self.meter.next_end,
            next_read=self.meter.next_read,
            is_read=not any(stream.open for stream in self.streams),
            is_dumping=self.stacks.is_dumping,
        )

    def exchange(self, wake: int, wait: float) -> None:
        """Wait for at most `wait` seconds, then handle messages, output and signals. `wake`: a descriptor that signals
        make readable."""
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
        for message in self.client.exchange(readable, writable, now):
            self.handle_message(message)
        self.handle_signals()
        self.forward_output()

    # What has happened

    def on_welcome(self, welcome: Json) -> None:
        """Handle the supervisor's welcome, the first or after a reconnect.

        The rank's port is chosen before, because the answer to the welcome carries it if the command has `{peers}`.
        """
        if self.state.awaits_peers:
            self.choose_port(self.master_of(welcome))
            self.state = self.state._replace(port=self.port)
        self.apply(self.state.on_welcome(welcome, time.monotonic()))

    def handle_message(self, message: Json) -> None:
        """Handle a message of the supervisor. What changes no decision, such as an acknowledgement, is done here."""
        kind = message.get("t")
        if kind == "ack":
            for stream in self.streams:
                stream.buffer.acknowledge(int(message.get(stream.name) or 0))
        elif kind == "rewind":
            self.client.send_message("rewound")
            self.rewind_output(message)
        elif kind == "dump":
            self.stacks.dump(str(message.get("id")))
        elif kind == "count-steps":
            steps = self.meter.count_steps(str(message.get("id")), time.monotonic())
            self.client.send_message("steps", **steps._asdict())
        elif kind == "profile":
            numbers = (int(message[name]) for name in ("attempt", "request", "after_step"))
            self.meter.ask_for_profile(self.profile, *numbers)
        elif kind == "peers":
            self.ports = tuple(int(port) for port in message["ports"])
            self.apply(self.state.on_message(kind, time.monotonic()))
        elif kind == "remove-job":
            remove_file(self.path)
            remove_file(os.path.join(os.path.dirname(self.path), RESERVED_FILE))
        else:
            self.apply(self.state.on_message(str(kind), time.monotonic()))

    def handle_signals(self) -> None:
        """Handle the signals that have come: SIGCHLD means that a child has exited, the others are decided about."""
        while self._signals:
            number = self._signals.pop(0)
            if number == signal.SIGCHLD:
                self.reap()
            else:
                self.apply(self.state.on_signal(number, time.monotonic()))

    def reap(self) -> None:
        """Take the exit codes of exited children: of the command, the checkpoint exchange, and adopted orphans."""
        self.report_stacks()  # the command may have noted the exception that ended it
        for pid, status, memory, seconds in processes.reap():
            if self.child is not None and pid == self.child.pid:
                self.seconds = seconds
                self.child.returncode = 0  # it is reaped here, not by subprocess
                by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
                code = 128 + by if by else os.WEXITSTATUS(status)
                self.apply(self.state.on_ended(code, by, memory, time.monotonic()))
            elif self.exchange_process is not None and pid == self.exchange_process.pid:
                problem = self.exchange_process.read_problem(status)
                self.exchange_process = None
                self.apply(self.state.on_exchange_ended(problem))

    def report_stacks(self) -> None:
        """Send stack dumps that are ready, and handle what the command's Pythons have noted about their end."""
        messages, raised = self.stacks.poll()
        for fields in messages:
            self.client.send_message("stacks", **fields)
        for process, code, text, place in raised:
            if text.startswith(("child ", "fact ", "gpu-")):
                self.notes.append(text)
                continue
            if not code:
                self.apply(self.state.on_left(self.meter.steps()))
                continue
            self.apply(self.state.on_raised(process, code, text, place, time.monotonic(), RANK_STUCK * starvation()))

    def forward_output(self) -> None:
        """Send as much output as the connection takes. Once all is sent after the command's end, say so."""
        for stream in self.streams:
            chunks = stream.buffer.take()
            while self.client.room > 0:
                chunk = next(chunks, None)
                if chunk is None:
                    break
                self.client.send(frames.encode_chunk(chunk))
        is_all_sent = not any(stream.open or not stream.buffer.is_empty for stream in self.streams)
        if is_all_sent and self.client.contact.is_up:
            self.apply(self.state.on_all_sent(self.stream_end_offsets()))
        self.client.exchange([], [], time.monotonic())

    def stream_end_offsets(self) -> Json:
        """Return stream → bytes that were read of the command's output so far."""
        return {stream.name: stream.buffer.end for stream in self.streams}

    # Commands

    def resume(self, welcome: Json) -> None:
        """Continue on a new connection: send the output that the supervisor lacks, and the meter's last windows again.
        `welcome`: its message."""
        self.welcome = welcome
        self.identity["attempt"] = self.state.attempt
        self.rewind_output(welcome)
        self.meter.rewind()

    def rewind_output(self, offsets: Json) -> None:
        """Send each stream again from the offset that the supervisor names for it."""
        for stream in self.streams:
            stream.buffer.rewind(int(offsets.get(stream.name) or 0))

    def give_up_connecting(self) -> None:
        """Remove the job file, and raise the RankStartError that says why the supervisor can't be reached."""
        remove_file(self.path)
        (address, port), reason = self.supervisor_address, self.client.contact.reason
        raise rank_env.RankStartError(
            f"the supervisor at {address}:{port} can't be reached from here: {reason}; "
            "is the port open between the nodes? ipexctl doctor checks that",
            Detail("no-way-back", {"place": f"{address}:{port}", "why": reason}),
        )

    def start_exchange(self) -> None:
        """Start the process that exchanges the checkpoint for all ranks of this home."""
        from ipexctl.node.run.rank.rank_checkpoint import CheckpointProcess  # few runs need it

        assert self.state.exchange_port is not None
        address, port = self.supervisor_address[0], self.state.exchange_port
        self.exchange_process = CheckpointProcess(self.plan, self.rank, address, port, self.job.token)

    def end_exchange(self) -> None:
        """End the process of the checkpoint exchange, if it is running."""
        if self.exchange_process is not None:
            self.exchange_process.end()

    def start_command(self) -> None:
        """Start the command, and report its start, or why it could not be started.

        A copy that is started again comes here too: its output goes on, and its meter begins anew.
        """
        if self.streams:  # the command is started again
            out, err = (stream.buffer for stream in self.streams)
            meter = self.meter
            self.meter = RankMeter(
                is_on=meter.is_on, host=meter.host, profile=meter.profile, sharers=len(self.host.ranks)
            )
        else:
            out, err = self.output_buffer("stdout"), self.output_buffer("stderr")
        with contextlib.suppress(OSError):  # a full disk: whose the files are stays unknown
            self.files.begin(self.plan.cwd, self.plan.asked.checkpoint or "")
        mismatches: list[str] = []
        code, reason, problem = 127, "", None
        try:
            self.child = self.start_child(mismatches)
        except rank_env.RankStartError as error:
            code, reason = NOT_STARTED, str(error)
        except SetupError as error:
            reason = str(error.strerror)
            problem = self.start_problem("setup-failed", self.plan.setup or "", reason)
        except OSError as error:
            code = 126 if isinstance(error, PermissionError) else 127
            file = str(error.filename or self.plan.command[0])
            reason = f"{file}: {error.strerror}" if error.errno else str(error.strerror)
            is_directory = error.filename == self.plan.cwd
            problem = self.start_problem("no-directory" if is_directory else "no-command", file, reason)
            if interpreter := processes.lacking_interpreter(os.path.join(self.plan.cwd, file)):
                reason = f"{file}: {interpreter!r} of its first line does not exist"
                problem = self.start_problem("no-interpreter", file, repr(interpreter)[1:-1])
            reason += "; is the project synced to this path? (ipexctl sync)" if is_directory else ""
        pipes: list[IO[bytes]]
        if self.child is None:
            pipes = [open(os.devnull, "rb"), open(os.devnull, "rb")]  # noqa: SIM115
        else:
            assert self.child.stdout is not None
            assert self.child.stderr is not None
            pipes = [self.child.stdout, self.child.stderr]
        self.streams = [supervisor_client.CommandStream(pipe, buffer) for pipe, buffer in zip(pipes, (out, err))]
        now = time.monotonic()
        if self.child is None:
            self.apply(self.state.on_not_started(reason, code, problem, tuple(mismatches), now))
            return
        self.guard.watch(self.child.pid)
        self.stacks.set_pid(self.child.pid)
        self.watch = CommandWatch(self.child.pid, len(self.host.ranks))
        self.meter.start(now)
        self.apply(self.state.on_started(self.child.pid, tuple(mismatches), now, self.port))

    def start_child(self, mismatches: list[str]) -> subprocess.Popen[bytes]:
        """Start the command. Raises a RankStartError, a SetupError or another OSError."""
        master = self.master_of(self.welcome)
        attempt = (self.state.attempt or 0) + self.state.restarts
        setup = rank_env.environment(self.plan, self.rank, self.job.secrets, master, attempt)
        mismatches += setup.refused
        environ = self.meter.prepare(self.stacks.prepare(setup.environ))
        with contextlib.suppress(OSError):  # on a full disk, the command starts anyway
            make_private_directory(rank_env.results_directory(self.plan))
        self.client.contact = self.client.contact.after_work(time.monotonic())  # sourcing a setup file takes time
        self.choose_port(master)
        with processes.bind_as_planned(self.own, mismatches):
            child = subprocess.Popen(
                command_of(self.plan, self.own, self.port, master.port or 0, self.ports),
                cwd=self.plan.cwd,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                close_fds=False,  # the MPI library uses descriptors that mpirun opened
                start_new_session=True,
                preexec_fn=processes.prepare_child(setup.process),
            )
        self.limits = RankLimits(child.pid, self.plan.setup or "", frozenset(setup.process.limits))
        return child

    def master_of(self, welcome: Json) -> Master:
        """Return the address and port of rank 0 as the welcome has them, else as planned."""
        planned = Master(self.plan.master_addr, self.plan.master_port)
        return Master(**welcome["master"]) if "master" in welcome else planned

    def choose_port(self, master: Master) -> None:
        """Choose this rank's port, if the command needs one. It stays the same when the command starts again."""
        if self.needs_port and self.port is None:
            self.port = own_port(self.host.address, self.own.local_rank, len(self.host.ranks), master.port or 0)

    def start_problem(self, kind: str, file: str, reason: str) -> Detail:
        """Return why the command could not be started, as facts for programs."""
        return Detail(kind, {"place": self.host.name, "file": file, "what": reason})

    def output_buffer(self, stream: frames.StreamName) -> output_buffer.OutputBuffer:
        """Return a buffer for a stream of the command, which begins where the supervisor's output ends."""
        name = frames.SUFFIXES[stream]
        spill = SpillFile(os.path.join(self.plan.rundir, "spill", f"{self.rank:04}.{name}"))
        return output_buffer.OutputBuffer(spill, self.rank, stream, int(self.welcome.get(name) or 0))

    def terminate(self) -> None:
        """Send SIGTERM to the command, unless its exit was taken already. Note whether it had exited before."""
        if self.child is not None and self.state.exit is None:
            had_ended = processes.process_state(self.child.pid)[0] in (None, "Z", "X")
            self.state = self.state._replace(had_ended=had_ended or self.state.had_ended)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to all processes of the command."""
        processes.signal_descendants(signal.SIGKILL, self.guard.pid)

    def pass_on(self, command: PassOn) -> None:
        """Send the first of the signals for which the command, or a process below it, has a handler. Without a handler,
        nothing is sent."""
        for number in command.signals:
            if self.child is not None and processes.signal_handlers(self.child.pid, number):
                if command.is_notice:
                    self.client.send_message("noticed", signal=number)
                return

    def explain_exit(self, command: ExplainExit) -> None:
        """Collect what explains the command's exit, such as memory, disks, limits and notes of its Python, for the
        report of the exit."""
        oom: Json | None = None
        evidence: list[Json] = []
        self.read_rest()
        if self.watch is not None and command.has_failed:
            oom, evidence = self.watch.find_kill(command.memory, was_killed=command.was_killed)
            own = self.limits.describe(self.seconds) if self.limits is not None else ()
            evidence += [each._asdict() for each in (*own, *describe_notes(self.notes))]
        elif self.child is not None and self.state.exit is not None and self.state.exit["code"] == 0:
            left = processes.daemons(self.child.pid, self.guard.pid)
            said = (last_exception(stream.tail) for stream in self.streams if stream.name == "err")
            evidence = [{"kind": "daemon", "text": each} for each in left]
            evidence += [{"kind": "exception", "text": each} for each in said if each]
        evidence += [each._asdict() for each in describe_gpus(self.notes)]
        disk = rank_env.find_full_disk(self.plan, self.rank, self.job.secrets) if command.has_failed else None
        steps = self.meter.steps()
        holder = master_port.find_holder(*(stream.tail for stream in self.streams if command.has_failed))
        full = disk._asdict() if disk is not None else None
        self.apply(self.state.on_exit_explained(oom, full, steps, holder, evidence))

    def clean_up(self) -> None:
        """End processes that the command left, make the record of files if this rank is the host's last, and read the
        output to its end."""
        ended = processes.end_descendants(self.guard.pid)
        with contextlib.suppress(OSError):
            if self.files.end():
                separate(self.plan.rundir)
        if self.watch is not None:
            self.watch.remove_files(ended)
        self.read_rest()
        for stream in self.streams:
            stream.close()
        self.forward_output()

    def read_rest(self) -> None:
        """Read what the pipes have."""
        for stream in self.streams:
            for _ in range(64):
                if stream.open:
                    stream.read_output(0.0)

    def send_beat(self) -> None:
        """Send a sign of life with the command's CPU, memory and steps, and how much output there is."""
        is_running = self.state.exit is None
        figures = self.watch.measure() if self.watch is not None and is_running else RankFigures(0.0, 0)
        figures = figures._replace(stepping=self.meter.stepping(time.monotonic()))
        ends, starved = self.stream_end_offsets(), starvation()
        self.client.send_message("beat", ends=ends, figures=encode(figures), starvation=starved)

    def send_windows(self) -> None:
        """Send the meter's new windows; while there is no connection, they wait."""
        if self.client.contact.is_up:
            for kind, fields in self.meter.take():
                self.client.send_message(kind, **fields)

    def check_memory(self) -> None:
        """Note out-of-memory counters, and report memory that lies on other NUMA nodes than planned."""
        if self.watch is not None and (text := self.watch.check_memory(time.monotonic(), self.own.memory)):
            self.apply(self.state.on_mismatch(text))

    def read_meter(self) -> None:
        """Read the meter of the running command, and send what is new."""
        if self.watch is not None:
            self.meter.poll(self.watch.pids, time.monotonic())
            self.send_windows()

    def check_raised(self) -> None:
        """Find out whether the process that raised an exception still exists, after its time to exit."""
        process = self.state.raised
        is_alive = process is not None and process.is_alive
        self.apply(self.state.on_raised_checked(time.monotonic(), is_alive=is_alive))


def host_to_meter(plan: Plan, rank: int, secrets: Mapping[str, str]) -> MeteredHost | None:
    """Return what the meter reads of the host: cores and network interface. None for all but the host's first rank, so
    that one rank measures it."""
    host = host_of(plan, rank)
    if rank != host.ranks[0].rank:
        return None
    cores = sorted({core for rank_plan in host.ranks for core in rank_plan.cores})
    return MeteredHost(cores, variables_of(plan, rank, secrets)[0].get("GLOO_SOCKET_IFNAME") or "")


def print_error(text: str, detail: Detail | None = None) -> None:
    """Write to stderr, which is mpirun's log."""
    sys.stderr.write(f"ipexctl: {socket.gethostname()}: {text}\n")
    if detail is not None:
        sys.stderr.write(f"{DETAIL_MARK}{json.dumps(detail._asdict())}\n")
    sys.stderr.flush()


def main(path: str) -> int:
    """Run the rank of the job file at this path, and return the wrapper's exit code.

    If a file can't be read or the rank can't start, stderr says why. It is mpirun's log.
    """
    try:
        job = read_job(read_json_file(path))
        plan = read_plan(read_json_file(f"{job.rundir}/plan.json"), job.here)
        plan = for_hosts(plan, job.hosts) if job.hosts else plan
        *number, local, address, port = sys.argv[3:]
        # Only on node0: elsewhere, another account could listen at the local name.
        addresses = [(local, 0)] if is_of_this_machine(address) else []
        rank = rank_env.find_rank(plan, job, *number)
        code = Rank(plan, job, path, rank, (*addresses, (address, int(port)))).run()
    except (OSError, ValueError) as error:
        print_error(
            f"{getattr(error, 'filename', None) or path} can't be read: {getattr(error, 'strerror', None) or error}"
        )
        code = NOT_STARTED
    except rank_env.RankStartError as error:
        print_error(str(error), error.detail)
        code = NOT_STARTED
    return code

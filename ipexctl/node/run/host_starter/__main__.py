"""A host's starter: starts the host's rank wrappers for each attempt, or runs the lines by which mpirun starts them.

The control machine starts it over its own session, with a `HostStarterRequest` on stdin. It detaches and connects to
the supervisor as a rank does, so a restart needs neither the control machine nor logins between nodes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import Any, Callable, Mapping

from ipexctl.node.common.answer import Json, emit
from ipexctl.node.common.files import write_atomically
from ipexctl.node.common.job import HostStarterRequest, job_file
from ipexctl.node.common.json_records import decode, parse_json
from ipexctl.node.common.processes import has_exited
from ipexctl.node.common.token_proof import ready, wake_on_signal
from ipexctl.node.run.connection.messages import MAX_TEXT
from ipexctl.node.run.connection.supervisor_client import SupervisorClient
from ipexctl.node.run.host_starter import host_starter_machine as machine
from ipexctl.node.run.host_starter.daemonize import daemonize
from ipexctl.node.run.host_starter.host_shells import HostShells
from ipexctl.node.run.host_starter.rank_wrappers import RankWrappers, minimal_environment

WRAPPER_NOT_STARTED = 127


class HostStarter:
    def __init__(self, request: HostStarterRequest) -> None:
        self.request = request
        identity: Json = {"starter": request.host, "instance": os.urandom(16).hex()}
        address = (request.address, request.contact.port)
        self.client = SupervisorClient(
            [address], request.contact.token, identity, self.on_welcome, time.monotonic(), takes_orders=True
        )
        self.wrappers = RankWrappers()
        self.shells = HostShells(self.send_output)
        self.state = machine.HostStarterState(rejoins=request.rejoins)
        self.ends: list[Json] = []
        """Messages about wrappers and lines that exited in this attempt."""
        self.log, self._log_end = os.pipe()
        for number in (self.log, self._log_end):
            os.set_blocking(number, False)
        self.actions: Mapping[object, Callable[[Any], None]] = {
            machine.StartWrappers: self.start_wrappers,
            machine.SignalProcesses: self.signal_processes,
            machine.StarterAct.KILL_PROCESSES: lambda _: self.kill_processes(),
            machine.StartShell: self.start_shell,
            machine.EndShell: lambda command: self.shells.end(command.id),
            machine.FindGoneWrappers: self.find_gone_wrappers,
            machine.StarterAct.SEND_BEAT: lambda _: self.client.send_message("beat"),
            machine.StarterAct.REPEAT_ENDS: self.repeat_ends,
        }

    def run(self) -> None:
        """Take turns until the run is over or the supervisor is lost for good; then kill what is left."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        wake = wake_on_signal()
        while not self.state.is_over:
            self.turn(wake)
        self.kill_processes()

    def turn(self, wake: int) -> None:
        """Take one turn: decide, wait, and handle messages, exits and output. `wake`: a descriptor that signals make
        readable."""
        now = time.monotonic()
        self.client.contact = self.client.contact.on_turn(now)
        self.client.step(now)
        is_idle = self.wrappers.is_empty and self.shells.is_empty
        self.apply(self.state.on_turn(self.client.contact, now, is_idle=is_idle))
        self.client.exchange([], [], now)
        wait = self.state.seconds_to_turn(self.client.contact, now)
        shells = self.shells.readers() if self.client.room > 0 else []
        readable, writable = ready([wake, *self.client.readers(), *shells], self.client.writers(), wait)
        if wake in readable:
            os.read(wake, 4096)
        for message in self.client.exchange(readable, writable, time.monotonic()):
            self.apply(self.state.on_message(message))
        for rank, code in self.wrappers.take_ended().items():
            self.report_wrapper(rank, code, self.read_log())
        if self.client.room > 0:  # else output would be lost
            self.shells.read_output()
            for number, code in self.shells.take_ended().items():
                self.report({"t": "shell-ended", "id": number, "code": code})

    def apply(self, step: machine.Step) -> None:
        """Take over the state of a decision, and carry out its commands in order."""
        self.state, commands = step
        for command in commands:
            self.actions[command if isinstance(command, machine.StarterAct) else type(command)](command)

    def on_welcome(self, welcome: Json) -> None:
        """Handle the supervisor's welcome, the first or after a reconnect."""
        self.apply(self.state.on_welcome(welcome))

    def find_gone_wrappers(self, command: machine.FindGoneWrappers) -> None:
        """Report which of these wrappers have exited. Without one, nothing is sent."""
        gone = [rank for rank, pid, start, scope in command.wrappers if has_exited(pid, start, scope)]
        if gone:
            self.client.send_message("gone", ranks=gone)

    def signal_processes(self, command: machine.SignalProcesses) -> None:
        """Send a signal to the wrappers and lines of the attempt."""
        self.wrappers.signal(command.number)
        self.shells.signal(command.number)

    def kill_processes(self) -> None:
        """Kill the wrappers and lines of the attempt, and wait for their ends."""
        self.wrappers.kill()
        self.shells.kill()

    def start_shell(self, command: machine.StartShell) -> None:
        """Run a line of mpirun. If it can't be started, mpirun gets the reason and an exit code, as of a shell."""
        try:
            self.shells.start(command.id, command.line, minimal_environment(), self.request.rundir)
        except OSError as error:
            self.send_output(command.id, "err", f"{self.request.host}: {error.strerror or error}\n".encode())
            self.report({"t": "shell-ended", "id": command.id, "code": WRAPPER_NOT_STARTED})

    def send_output(self, number: int, stream: str, data: bytes) -> None:
        """Send a piece of a line's output. `stream`: `out` or `err`."""
        self.client.send_message("shell-output", id=number, stream=stream, text=data.decode("latin-1"))

    def start_wrappers(self, command: machine.StartWrappers) -> None:
        """Begin an attempt: kill what is left of the one before, write the job file if the attempt has its own, and
        start the ranks.

        With mpirun, no rank is started here: its lines do that. A wrapper that can't be started is reported as ended.
        """
        self.kill_processes()
        self.read_log()
        self.ends.clear()
        request = self.request
        path = f"{request.rundir}/{job_file(command.attempt)}" if command.job else request.argv[-1]
        argv = [*request.argv[:-1], path, request.contact.local, request.address, str(request.contact.port)]
        environ = minimal_environment()
        if command.job and not command.ranks:
            with contextlib.suppress(OSError):  # the wrapper that finds no job says so
                write_atomically(path, command.job.encode(), durable=False)
        for rank in command.ranks:
            try:
                if command.job:
                    write_atomically(path, command.job.encode(), durable=False)
                self.wrappers.start([rank], argv, environ=environ, log=self._log_end, cwd=request.rundir)
            except OSError as error:
                reason = f"{error.filename or request.argv[0]}: {error.strerror or error}"
                self.report_wrapper(rank, WRAPPER_NOT_STARTED, f"ipexctl: {request.host}: {reason}\n")

    def report_wrapper(self, rank: int, code: int, text: str) -> None:
        """Report that a wrapper has ended. `text`: what the host's wrappers printed."""
        attempt = self.state.attempt
        self.report({"t": "wrapper-ended", "rank": rank, "attempt": attempt, "code": code, "text": text})

    def report(self, end: Json) -> None:
        """Report an end, and keep the report until the next attempt, for `repeat_ends`."""
        self.ends.append(end)
        self.client.send_message(**end)

    def repeat_ends(self, _: machine.StarterAct) -> None:
        """Report all ends of this attempt again, after a reconnect."""
        for end in self.ends:
            self.client.send_message(**end)

    def read_log(self) -> str:
        """Return what the wrappers have printed since the last call, at most MAX_TEXT bytes; empty without any."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self.log, MAX_TEXT).decode(errors="replace")
        return ""


def main(_: str) -> int:
    """Read the request, and start the host's starter in a process of its own.

    Only the caller's process returns from here: with 0 once it has passed on the starter's reply, even if that is a
    failure; with 1 if the request can't be read.
    """
    line = sys.stdin.readline()
    try:
        request = decode(HostStarterRequest, parse_json(line), "the request")
    except ValueError as error:
        emit("failed", reason=f"the request to the starter can't be read: {error}", fix="")
        return 1
    send_reply = daemonize("starter", os.path.join(request.rundir, "starter.log"))
    if isinstance(send_reply, str):
        sys.stdout.write(send_reply)
        sys.stdout.flush()
        return 0
    send_reply({"event": "done", "pid": os.getpid()})
    HostStarter(request).run()
    os._exit(0)

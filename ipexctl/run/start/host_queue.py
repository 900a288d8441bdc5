"""The places of a waiting call in the queues of its hosts: first come, first served, over all accounts. A place is a
process on the host (`facts/probe/host_wait.sh`) that ends with its call's connection; its start, as the kernel knows
it, is the order. There is no file that another account could spoil. A call takes the entry locks of all its hosts in
the order of the machines before its places begin, so no two calls wait for each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import wait
from typing import Final

from ipexctl.facts.live_runs import Look, WaitingCall
from ipexctl.facts.probe import wait_command
from ipexctl.hosts.host import Host
from ipexctl.limits import RUNS_LOOK
from ipexctl.node.common.frames import StreamName
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import Ended, OutputCollector, Session, StdinQueue
from ipexctl.remote.session_pool import SessionPool

STILL_HERE: Final = b"still here\n"
"""Renews a place, or a lock, whose script ends a while after the last line."""
_END_SECONDS: Final = 3.0


class HeldProcess:
    """A program on a host that holds something until its stdin ends."""

    def __init__(self, session: Session, command: Command, cancel: Cancel) -> None:
        self._stdin, self._output, self._news = StdinQueue(), OutputCollector(), threading.Event()

        def sink(stream: StreamName, data: bytes) -> None:
            self._output.sink(stream, data)
            self._news.set()

        def hold() -> Ended:
            try:
                return session.run(command, sink, stdin=self._stdin, cancel=cancel)
            finally:
                self.is_over = True
                self._news.set()

        self.is_over = False
        self.process = run_in_background(hold, command.label)

    def wait_for(self, line: bytes, seconds: float) -> bool:
        """True once it has printed this line; False after `seconds`, or if it ended."""
        deadline = time.monotonic() + seconds
        while not (found := line in self._output.stdout) and not self.is_over:
            if not self._news.wait(max(0.0, deadline - time.monotonic())):
                return False
            self._news.clear()
        return found

    @property
    def ended(self) -> Ended | None:
        """None while it runs. Raises the HostError of a lost connection."""
        return self.process.result() if self.is_over else None

    def send(self, line: bytes) -> None:
        self._stdin.send(line)

    def end(self) -> None:
        self._stdin.end()


def end_all(processes: Iterable[HeldProcess]) -> None:
    processes = list(processes)
    for process in processes:
        process.end()
    wait([process.process for process in processes], _END_SECONDS)


class HostQueue:
    def __init__(self, hosts: Sequence[Host], run: str, pool: SessionPool) -> None:
        self._hosts, self._run, self._pool = hosts, run, pool
        self._processes: list[HeldProcess] = []

    def places(self, looks: Mapping[str, Look]) -> dict[str, WaitingCall | None]:
        """This call's own place on each host. Another account may use the id of this run."""
        return {
            name: next((call for call in look.runs.waiting if (call.run, call.uid) == (self._run, look.uid)), None)
            for name, look in looks.items()
        }

    def holds(self, looks: Mapping[str, Look]) -> bool:
        """True if it has a place on all these hosts, and it keeps them for another minute."""
        for process in self._processes:
            process.send(STILL_HERE)
        return bool(self._processes) and None not in self.places(looks).values()

    def enter(self, looks: Mapping[str, Look], seconds: float) -> None:
        """Take a place on every host, at the end of its queue, for at most `seconds`; none if some host is away."""
        self.leave()
        if any(host.name not in looks for host in self._hosts):
            return
        machines = {looks[host.name].machine: host for host in self._hosts}
        try:
            for _, host in sorted(machines.items()):
                process = HeldProcess(self._pool.session(host), wait_command(self._run, seconds), self._pool.cancel)
                self._processes.append(process)
                if not process.wait_for(b"entered\n", RUNS_LOOK):
                    break
            else:
                for process in self._processes:
                    process.send(b"all entered\n")
                if all(process.wait_for(b"placed\n", RUNS_LOOK) for process in self._processes):
                    return
        except HostError:
            pass
        self.leave()

    def leave(self) -> None:
        end_all(self._processes)
        self._processes = []

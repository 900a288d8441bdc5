"""`ipexctl exec`: one command on every host, with live output and one result per host."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from ipexctl.remote.fanout import fan_out
from ipexctl.remote.outcome import HostError, exit_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.command import Command
    from ipexctl.remote.connector import Connector
    from ipexctl.remote.outcome import Status
    from ipexctl.remote.session import Ended, Stream


@dataclass(frozen=True, slots=True)
class HostExec:
    """The command's result on one host."""

    host: Host
    status: Status
    rc: int | None
    seconds: float
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class ExecReport:
    """The results of all hosts, in the order of the hostfile."""

    hosts: tuple[HostExec, ...]
    seconds: float

    @property
    def exit_code(self) -> int:
        return exit_code([host.status for host in self.hosts])


def _ignore_step(host: Host, step: str, seconds: float) -> None:
    """The default of `on_step`."""


def execute(
    hosts: Sequence[Host],
    command: Command,
    *,
    connector: Connector,
    cancel: Cancel,
    sink_for: Callable[[Host], Callable[[Stream, bytes], None]],
    forks: int = 32,
    timeout: float | None = None,
    stdin_for: Callable[[], BinaryIO] | None = None,
    on_step: Callable[[Host, str, float], None] = _ignore_step,
) -> Iterator[HostExec]:
    """Run the command on every host and yield results as they come. `timeout` limits the whole step on one host."""

    def work(host: Host) -> HostExec:
        started = time.monotonic()
        try:
            ended = run_on(host)
        except HostError as error:
            return HostExec(host, error.status, None, time.monotonic() - started, error.reason, error.fix)
        seconds = time.monotonic() - started
        if ended.ok:
            return HostExec(host, "ok", ended.code, seconds)
        return HostExec(host, "failed", ended.code, seconds, str(ended), command.hint(ended.code))

    def run_on(host: Host) -> Ended:
        connecting_at = time.monotonic()
        session = connector.open(host, cancel)
        try:
            connected_at = time.monotonic()
            on_step(host, "connected", connected_at - connecting_at)
            stdin = stdin_for() if stdin_for else None
            ended = session.run(command, sink_for(host), stdin=stdin, timeout=timeout, cancel=cancel)
            on_step(host, f"ran {command.label}", time.monotonic() - connected_at)
            return ended
        finally:
            session.close()

    for outcome in fan_out(hosts, work, forks=forks, cancel=cancel):
        if outcome.result is not None:
            yield outcome.result
        elif outcome.error is not None:
            yield HostExec(outcome.host, outcome.error.status, None, 0.0, outcome.error.reason, outcome.error.fix)

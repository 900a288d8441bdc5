"""The verb behind `ipexctl exec`: one command on every host, its output handed on live, its end as a value."""

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
    """How the command went on one host."""

    host: Host
    status: Status
    rc: int | None
    seconds: float
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class ExecReport:
    """How it went everywhere, in the hosts' own order."""

    hosts: tuple[HostExec, ...]
    seconds: float

    @property
    def exit_code(self) -> int:
        return exit_code([host.status for host in self.hosts])


def _ignore_step(host: Host, step: str, seconds: float) -> None:
    """Nobody asked to see the steps."""


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
    """Run the command on every host, yielding each host's end as it comes. `timeout` is for a host's whole step."""

    def work(host: Host) -> HostExec:
        started = time.monotonic()
        try:
            ended = on_one(host)
        except HostError as error:
            return HostExec(host, error.status, None, time.monotonic() - started, error.reason, error.fix)
        seconds = time.monotonic() - started
        if ended.ok:
            return HostExec(host, "ok", ended.code, seconds)
        return HostExec(host, "failed", ended.code, seconds, str(ended), command.hint(ended.code))

    def on_one(host: Host) -> Ended:
        opening = time.monotonic()
        session = connector.open(host, cancel)
        try:
            began = time.monotonic()
            on_step(host, "connected", began - opening)
            stdin = stdin_for() if stdin_for else None
            ended = session.run(command, sink_for(host), stdin=stdin, timeout=timeout, cancel=cancel)
            on_step(host, f"ran {command.label}", time.monotonic() - began)
            return ended
        finally:
            session.close()

    for done in fan_out(hosts, work, forks=forks, cancel=cancel):
        if done.result is not None:
            yield done.result
        elif done.error is not None:
            yield HostExec(done.host, done.error.status, None, 0.0, done.error.reason, done.error.fix)

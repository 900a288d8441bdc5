"""`ipexctl exec`: one command on every host, with live output and one result per host."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from ipexctl.remote.fanout import fan_out
from ipexctl.remote.outcome import HostError, HostResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.command import Command
    from ipexctl.remote.connector import Connector
    from ipexctl.remote.session import Ended, Session, Stream


@dataclass(frozen=True, slots=True)
class ExecResult(HostResult):
    """The command's result on one host."""

    rc: int | None = None


def _ignore_step(host: Host, step: str, seconds: float) -> None:
    """The default of `on_step`."""


def _do_nothing(host: Host, session: Session) -> None:
    """The default of `before`."""


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
    before: Callable[[Host, Session], None] = _do_nothing,
) -> Iterator[ExecResult]:
    """Run the command on every host and yield results as they come. `timeout` limits the whole step on one host.

    `before` is called with the host's session before the command.
    """

    def work(host: Host) -> ExecResult:
        started = time.monotonic()
        try:
            ended = run_on(host)
        except HostError as error:
            return ExecResult(host, error.status, error.reason, error.fix, time.monotonic() - started)
        seconds = time.monotonic() - started
        if ended.ok:
            return ExecResult(host, "ok", seconds=seconds, rc=ended.code)
        return ExecResult(host, "failed", str(ended), command.hint(ended.code), seconds, ended.code)

    def run_on(host: Host) -> Ended:
        connecting_at = time.monotonic()
        with closing(connector.open(host, cancel)) as session:
            connected_at = time.monotonic()
            on_step(host, "connected", connected_at - connecting_at)
            before(host, session)
            stdin = stdin_for() if stdin_for else None
            ended = session.run(command, sink_for(host), stdin=stdin, timeout=timeout, cancel=cancel)
            on_step(host, f"ran {command.label}", time.monotonic() - connected_at)
            return ended

    for outcome in fan_out(hosts, work, forks=forks, cancel=cancel):
        if outcome.result is not None:
            yield outcome.result
        elif outcome.error is not None:
            yield ExecResult(outcome.host, outcome.error.status, outcome.error.reason, outcome.error.fix)

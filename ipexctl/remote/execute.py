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
    from ipexctl.node.common.frames import StreamName
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.command import Command
    from ipexctl.remote.connector import Connector


@dataclass(frozen=True, slots=True)
class ExecResult(HostResult):
    rc: int | None = None


def execute(
    hosts: Sequence[Host],
    command: Command,
    *,
    connector: Connector,
    cancel: Cancel,
    sink_for: Callable[[Host], Callable[[StreamName, bytes], None]],
    forks: int,
    timeout: float | None,
    stdin_for: Callable[[], BinaryIO] | None,
) -> Iterator[ExecResult]:
    """Run the command on every host; yields results as they come. `timeout` applies per host."""

    def work(host: Host) -> ExecResult:
        started = time.monotonic()
        try:
            with closing(connector.open(host, cancel)) as session:
                stdin = stdin_for() if stdin_for else None
                ended = session.run(command, sink_for(host), stdin=stdin, timeout=timeout, cancel=cancel)
        except HostError as error:
            return ExecResult.of_error(host, error, seconds=time.monotonic() - started)
        seconds = time.monotonic() - started
        if ended.ok:
            return ExecResult(host, "ok", seconds=seconds, rc=ended.code)
        return ExecResult(host, "failed", str(ended), command.hint(ended.code), seconds, ended.code)

    for outcome in fan_out(hosts, work, forks=forks, cancel=cancel):
        yield outcome.result_or(ExecResult.of_error)

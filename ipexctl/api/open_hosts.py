"""The sessions of a call, and one command on each host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from ipexctl.hosts.host import Host
from ipexctl.node.common.frames import StreamName
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.connector import ConnectOptions, Connector, OpenHosts, SessionPool
from ipexctl.remote.fanout import ExecResult
from ipexctl.remote.fanout import execute as execute_on_hosts
from ipexctl.remote.outcome import Report, ignore_event


@contextmanager
def open_sessions(options: ConnectOptions, cancel: Cancel, *, forks: int = 1) -> Iterator[SessionPool]:
    """Open a session pool. It closes all sessions at the end."""
    with Connector(options) as connector, SessionPool(connector, cancel, forks=forks) as pool:
        yield pool


def execute(
    opened: OpenHosts,
    command: Command,
    sink_for: Callable[[Host], Callable[[StreamName, bytes], None]],
    *,
    on_done: Callable[[ExecResult], object] = ignore_event,
    stdin_for: Callable[[], BinaryIO] | None = None,
) -> Report[ExecResult]:
    """Run a command on every host. `sink_for`: returns the function that takes the output of a host.

    `on_done` gets each result as it comes. `stdin_for`: opens what the command reads, once per host; None for no stdin.
    """
    began, results, pool = time.monotonic(), dict[str, ExecResult](), opened.pool
    for done in execute_on_hosts(
        opened.hosts,
        command,
        open_session=pool.connector.open,
        cancel=pool.cancel,
        sink_for=sink_for,
        forks=pool.forks,
        timeout=opened.timeout,
        stdin_for=stdin_for,
    ):
        results[done.host.name] = done
        on_done(done)
    return Report(tuple(results[host.name] for host in opened.hosts), time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class HostOutput(ExecResult):
    """The result of a command on a host, with its output."""

    stdout: str = ""
    stderr: str = ""


def execute_quietly(opened: OpenHosts, command: Command) -> Report[HostOutput]:
    """Run a command on every host; its output is in the report."""
    printed: dict[str, dict[StreamName, bytearray]] = {
        host.name: {"stdout": bytearray(), "stderr": bytearray()} for host in opened.hosts
    }
    report = execute(opened, command, lambda host: lambda stream, data: printed[host.name][stream].extend(data))
    hosts = []
    for done in report.hosts:
        stdout, stderr = (bytes(data).decode(errors="replace") for data in printed[done.host.name].values())
        hosts.append(HostOutput(done.host, done.status, done.reason, done.fix, done.seconds, done.rc, stdout, stderr))
    return opened.options.in_report(Report(tuple(hosts), report.seconds))

"""Connects to node0 of a known run, for every command that takes RUN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.outcome import HostError, Unreachable
from ipexctl.ui.messages import print_message

if TYPE_CHECKING:
    from ipexctl.cli.options import Output
    from ipexctl.jobs.registry import RunRecord


def connector_of(record: RunRecord, output: Output | None = None) -> Connector:
    """A connector with the options of the run's start; with `output`, remote steps are printed for -v."""
    from ipexctl.cli.hosts import step_printer

    policy: Any = record.host_keys
    return Connector(ConnectOptions(record.connect_timeout, policy, step_printer(output), print_message))


def report_host_error(record: RunRecord, error: HostError) -> int:
    """Print the error of node0, and return the exit code: 3 if it is unreachable, else 1."""
    print_message(f"{record.node0.name}: {error.reason}" + (f"\n  {error.advice}" if error.advice else ""))
    return 3 if isinstance(error, Unreachable) else 1

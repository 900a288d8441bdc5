"""Reaching the node0 of a run that is in the register, for every command that takes a RUN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.outcome import HostError, Unreachable
from ipexctl.ui.messages import print_message

if TYPE_CHECKING:
    from ipexctl.cli.options import Output
    from ipexctl.jobs.registry import RunRecord


def connector_of(record: RunRecord, output: Output | None = None) -> Connector:
    """By the way it was reached when it was started; with `output`, each step is told where it asks for that."""
    from ipexctl.cli.hosts import steps

    policy: Any = record.host_keys
    return Connector(ConnectOptions(record.connect_timeout, policy, steps(output)))


def host_failed(record: RunRecord, error: HostError) -> int:
    """Say what node0 could not do, and return the contract's exit code."""
    print_message(f"{record.node0.name}: {error.reason}" + (f"\n  {error.advice}" if error.advice else ""))
    return 3 if isinstance(error, Unreachable) else 1

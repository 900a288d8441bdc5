"""Reaching the node0 of a run that is in the register, for every command that takes a RUN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipexctl.remote.outcome import HostError, Unreachable
from ipexctl.remote.reach import Reach, ReachOptions
from ipexctl.ui.say import say

if TYPE_CHECKING:
    from ipexctl.cli.options import Output
    from ipexctl.jobs.record import RunRecord


def reach_of(record: RunRecord, output: Output | None = None) -> Reach:
    """By the way it was reached when it was started; with `output`, each step is told where it asks for that."""
    from ipexctl.cli.hosts import steps

    policy: Any = record.host_keys
    return Reach(ReachOptions(record.connect_timeout, policy, steps(output)))


def host_failed(record: RunRecord, error: HostError) -> int:
    """Say what node0 could not do, and return the contract's exit code."""
    say(f"{record.node0.name}: {error.reason}" + (f"\n  {error.advice}" if error.advice else ""))
    return 3 if isinstance(error, Unreachable) else 1

"""Reaching the node0 of a run that is in the register, for every command that takes a RUN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipexctl.remote.outcome import HostError, Unreachable
from ipexctl.remote.reach import Reach, ReachOptions
from ipexctl.ui.say import say

if TYPE_CHECKING:
    from ipexctl.jobs.record import RunRecord


def reach_of(record: RunRecord) -> Reach:
    """By the way it was reached when it was started."""
    policy: Any = record.host_keys
    return Reach(ReachOptions(connect_timeout=record.connect_timeout, host_keys=policy))


def host_failed(record: RunRecord, error: HostError) -> int:
    """Say what node0 could not do, and return the contract's exit code."""
    say(f"{record.node0.name}: {error.reason}" + (f"\n  {error.advice}" if error.advice else ""))
    return 3 if isinstance(error, Unreachable) else 1

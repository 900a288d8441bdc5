"""Returned by a planner, a choice or a start instead of a result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no plan or choice, and how to get one."""

    reason: str
    """Names the hosts and the broken rule."""
    fix: str = ""
    hosts: tuple[str, ...] = ()
    """The hosts at fault; empty if the request or the indexes are."""
    exit_code: int = 1
    """2 if the request names something that does not exist, 3 if a host is unreachable."""

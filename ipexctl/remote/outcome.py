"""Outcomes of hosts: statuses, errors and the exit code. Errors become values in the fan-out."""

from __future__ import annotations

from typing import Literal

Status = Literal["ok", "changed", "failed", "unreachable"]


class HostError(Exception):
    """The failure of one host. `reason` is a sentence without the host's name, `fix` the next thing to type.

    `fix` joins `advice`, which fits every command, and `option`, which only fits commands with connection options.
    Raised and caught inside one host's work only; the fan-out turns it into an outcome.
    """

    status: Status = "failed"

    def __init__(self, reason: str, advice: str = "", *, option: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice
        self.option = option

    @property
    def fix(self) -> str:
        return (" " if self.advice.endswith("?") else "; ").join(filter(None, (self.advice, self.option)))


class Unreachable(HostError):
    """The host couldn't be reached, or the connection to it was lost."""

    status: Status = "unreachable"


class TimedOut(HostError):
    """The step exceeded its time limit on this host; its processes there were ended."""


class Cancelled(HostError):
    """The command was cancelled; its processes on the host were ended."""


def exit_code(statuses: list[Status]) -> int:
    """The exit code for the statuses of all hosts: unreachable (3) wins over failed (1)."""
    if "unreachable" in statuses:
        return 3
    return 1 if "failed" in statuses else 0

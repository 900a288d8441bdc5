"""How things went on one host, as a value: outcomes are collected and summed, never thrown across rooms."""

from __future__ import annotations

from typing import Literal

Status = Literal["ok", "changed", "failed", "unreachable"]


class HostError(Exception):
    """A host could not do its part. `reason` is a sentence without the host's name, `fix` what to type next.

    `advice` is what of it holds for every command, `option` what only one with the options about hosts can do.
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
    """The step took longer on this host than it was given; its processes there were ended."""


class Cancelled(HostError):
    """We were told to stop; what ran on the host was ended."""


def exit_code(statuses: list[Status]) -> int:
    """The contract's exit code for what became of all hosts: unreachable wins over failed."""
    if "unreachable" in statuses:
        return 3
    return 1 if "failed" in statuses else 0

"""The result of a host, the report of a call, and the errors of a host, which the fan-out turns into results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.hosts.host import Host

HostStatus = Literal["ok", "changed", "failed", "unreachable"]


class HostError(Exception):
    """The failure of one host. `reason` is a sentence without the host's name, `fix` the next thing to type.

    `fix` joins `advice`, which fits every command, and `option`, which only fits commands with connection options.
    Raised and caught inside one host's work only; the fan-out turns it into an outcome.
    """

    status: HostStatus = "failed"
    left_running = False
    """Processes of the command may still be running on the host."""

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

    status: HostStatus = "unreachable"


class TimedOut(HostError):
    """The step exceeded its time limit on this host; its processes there were ended."""


class Cancelled(HostError):
    """The command was cancelled; its processes on the host were ended."""


class AgentEnded(HostError):
    """The agent's program ended on the host before its answer, `how`: it was killed there, or its Python has failed."""

    def __init__(self, reason: str, advice: str = "", *, how: str = "") -> None:
        super().__init__(reason, advice)
        self.how = how


@dataclass(frozen=True, slots=True)
class HostResult:
    """The result of a command on one host. A command with more to report adds its fields in a subclass."""

    host: Host
    status: HostStatus
    reason: str = ""
    """Why it failed, or a remark; a sentence without the host's name."""
    fix: str = ""
    seconds: float = 0.0

    @classmethod
    def of_error(cls: type[R], host: Host, error: HostError, **fields: Any) -> R:
        """The result of a host that failed; `fields` are further ones of this class."""
        return cls(host, error.status, error.reason, error.fix, **fields)

    @property
    def exit_code(self) -> int:
        return exit_code([self.status])


R = TypeVar("R", bound=HostResult)
AnyResult = TypeVar("AnyResult", bound=HostResult, covariant=True)


@dataclass(frozen=True, slots=True)
class Report(Generic[AnyResult]):
    """The results of all hosts of a call, in the order of the hostfile."""

    hosts: Sequence[AnyResult]
    seconds: float

    @property
    def exit_code(self) -> int:
        return exit_code([result.status for result in self.hosts])


def exit_code(statuses: Sequence[HostStatus]) -> int:
    """The exit code for the statuses of all hosts: unreachable (3) wins over failed (1)."""
    if "unreachable" in statuses:
        return 3
    return 1 if "failed" in statuses else 0

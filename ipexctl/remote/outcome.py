"""Define results and errors of a host, the report of a call, and progress events of a long step. All are plain
values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, Literal, TypeVar

from ipexctl.hosts.host import Host
from ipexctl.node.common.fix import join_fixes


@dataclass(frozen=True, slots=True)
class Notice:
    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class BytesMoved:
    host: str
    what: str
    """`downloading`, `receiving`, or a file's name."""
    done: int
    total: int | None


@dataclass(frozen=True, slots=True)
class StepStarted:
    host: str
    what: str


@dataclass(frozen=True, slots=True)
class StepTimed:
    host: str
    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HostFinished:
    host: str
    what: str
    ok: bool


ProgressEvent = Notice | BytesMoved | StepStarted | StepTimed | HostFinished
Watch = Callable[[ProgressEvent], None]


def ignore_event(*_: object) -> None:
    """Do nothing. The default of `watch` and of other callbacks."""


HostStatus = Literal["ok", "changed", "failed", "unreachable"]
_STATUSES: Final = ("ok", "changed", "failed", "unreachable")


class SharedReason(str):
    """A reason that many hosts can have at once, so that a report shows it once: `plural` is about all of them, `own`
    is what differs from host to host."""

    plural: str
    own: str

    @classmethod
    def of(cls, text: str, plural: str, own: str) -> SharedReason:
        """Return the reason with its form for many hosts."""
        reason = cls(text)
        reason.plural, reason.own = plural, own
        return reason


class HostError(Exception):
    """Failure of one host. `reason` is a sentence without the host's name, `fix` the next thing to type: it joins
    `advice`, which fits every command, and `option`, which fits commands with connection options."""

    status: HostStatus = "failed"
    left_running = False
    has_answered = False
    """True if the host's port has answered, and only the rest is late."""

    def __init__(self, reason: str, advice: str = "", *, option: str = "", kind: str = "") -> None:
        """Set the texts of the error. `kind`: as in the agent's `AgentError`."""
        super().__init__(reason)
        self.reason = reason
        self.advice = advice
        self.kind = kind
        self.option = option

    @property
    def fix(self) -> str:
        """What to type next; empty if nothing is known to help."""
        return join_fixes((self.advice, self.option), " " if self.advice.endswith("?") else "; ")


class Unreachable(HostError):
    status: HostStatus = "unreachable"


class ChangedKey(Unreachable):
    """Another machine may be answering: no retry helps before a person has compared the keys."""


class LoginRefused(Unreachable):
    """This login failed; the user's ssh program may know another one."""


IF_KEY_IS_THERE = "; if the key is there already: chmod go-w ~ ~/.ssh on that host, as sshd accepts no key otherwise"
"""sshd's StrictModes: the answer to a client is the same as for a missing key."""


class UnknownKey(LoginRefused):
    """Nobody vouches for the host key but perhaps a certificate or, with `accept-new`, the user."""

    shown: frozenset[tuple[str, str]] = frozenset()
    """Type and fingerprint of each host key that the ssh program saw."""


class TimedOut(HostError):
    """The step exceeded its time limit; its processes were ended."""

    has_answered = True


class Cancelled(HostError):
    """The command was cancelled; its processes were ended."""


class NotStarted(Cancelled):
    """The command was cancelled before this step of it began."""


class AgentEnded(HostError):
    """The agent exited before its answer; `how` says whether it was killed or its Python failed."""

    def __init__(self, reason: str, advice: str = "", *, how: str = "") -> None:
        super().__init__(reason, advice)
        self.how = how


@dataclass(frozen=True, slots=True)
class HostResult:
    host: Host
    status: HostStatus
    reason: str = ""
    """Why the host failed; else empty, or what was done."""
    fix: str = ""
    seconds: float = 0.0

    @classmethod
    def of_error(cls: type[R], host: Host, error: HostError, **fields: Any) -> R:
        """Return the result of a host that failed with this error."""
        return cls(host, error.status, error.reason, error.fix, **fields)

    name = property(attrgetter("host.name"))
    address = property(attrgetter("host.address"))

    @property
    def exit_code(self) -> int:
        """The exit code of a command on this host alone."""
        return exit_code([self.status])


R = TypeVar("R", bound=HostResult)
AnyResult = TypeVar("AnyResult", bound=HostResult, covariant=True)


@dataclass(frozen=True, slots=True)
class Report(Generic[AnyResult]):
    hosts: Sequence[AnyResult]
    seconds: float

    @property
    def exit_code(self) -> int:
        """The exit code of the command on all hosts."""
        return exit_code([result.status for result in self.hosts])

    @property
    def summary(self) -> dict[str, int]:
        """How many hosts have each status."""
        return {status: sum(result.status == status for result in self.hosts) for status in _STATUSES}


def exit_code(statuses: Sequence[HostStatus]) -> int:
    """Return the exit code for these statuses: 3 if any is unreachable, else 1 if any failed, else 0."""
    if "unreachable" in statuses:
        return 3
    return 1 if "failed" in statuses else 0

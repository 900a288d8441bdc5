"""Messages of a rank, as the supervisor reads them: checked values, so that a malformed one changes nothing.

The kinds of message are the `t` of their JSON; `rank.py` sends them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Union

from ipexctl.node.common.frames import FrameError, decode_json
from ipexctl.node.common.records import OutOfMemory, read_oom

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

MAX_TEXT = 4096
"""Characters of a text that are kept."""
_MAX_INTEGER = (1 << 63) - 1
Ends = Dict[str, int]
"""`out` and `err` → the bytes printed so far."""


class Hello(NamedTuple):
    """A connection that claims to be a rank; `proof` shows it."""

    rank: int
    nonce: str
    proof: str
    life: str
    """Differs for each start of a rank wrapper."""
    pid: int | None
    host: str
    attempt: int | None


class Connected(NamedTuple):
    """Not sent: a rank has authenticated, for the first time or again."""

    node: str
    is_new: bool


class Malformed(NamedTuple):
    """Not sent: a rank has sent what can't be read, and its connection was dropped."""

    reason: str


class Beat(NamedTuple):
    cpu: float
    rss: int
    process: str | None
    waits_in: str | None
    ends: Ends


class Started(NamedTuple):
    pid: int


class Mismatch(NamedTuple):
    text: str


class OutsideSignal(NamedTuple):
    """The rank wrapper got a signal that the supervisor did not send."""

    signal: int


class Exit(NamedTuple):
    code: int
    signal: int | None
    is_own: bool
    """Whether neither the supervisor nor the rank wrapper ended it."""
    oom: OutOfMemory | None = None


class Stuck(NamedTuple):
    """The command has printed its exception, but its process does not exit."""

    code: int
    text: str
    seconds: float


class Stacks(NamedTuple):
    """The reply to a request for stacks."""

    id: str
    processes: list[Json]


class Rewound(NamedTuple):
    """The output that follows was sent before, and was refused."""


class Reconnecting(NamedTuple):
    """The rank closes a connection that works, because the supervisor is too slow, and will connect again."""


class End(NamedTuple):
    """All output has been sent."""

    ends: Ends


Message = Union[
    Connected, Malformed, Beat, Started, Mismatch, OutsideSignal, Exit, Stuck, Stacks, Rewound, Reconnecting, End
]


def read_hello(payload: bytes) -> Hello:
    fields = decode_json(payload)
    pid, attempt = (_optional(fields, name, _integer) for name in ("pid", "attempt"))
    rank, host = _integer(fields, "rank"), _text(fields, "host")
    return Hello(rank, _text(fields, "nonce"), _text(fields, "proof"), _text(fields, "life"), pid, host, attempt)


def read_message(payload: bytes) -> Message:
    """Raises a FrameError."""
    fields = decode_json(payload)
    read = _READERS.get(_text(fields, "t"))
    if read is None:
        raise FrameError(f"an unknown message {_text(fields, 't')[:40]!r}")
    return read(fields)


def _beat(fields: Json) -> Beat:
    process, waits = _optional(fields, "process", _text), _optional(fields, "waits", _text)
    return Beat(_number(fields, "cpu"), _integer(fields, "rss"), process, waits, _ends(fields))


def _exit(fields: Json) -> Exit:
    number = _optional(fields, "signal", _signal)
    own = fields.get("own")
    if not isinstance(own, bool):
        raise _error("own")
    return Exit(_integer(fields, "code"), number, own, read_oom(fields.get("oom")))


def _stuck(fields: Json) -> Stuck:
    return Stuck(_integer(fields, "code"), _text(fields, "message"), _number(fields, "seconds"))


def _stacks(fields: Json) -> Stacks:
    processes = fields.get("processes")
    if not isinstance(processes, list) or not all(isinstance(process, dict) for process in processes):
        raise _error("processes")
    return Stacks(_text(fields, "id"), processes)


_READERS: dict[str, Callable[[Json], Message]] = {
    "beat": _beat,
    "start": lambda fields: Started(_integer(fields, "pid")),
    "mismatch": lambda fields: Mismatch(_text(fields, "text")),
    "told": lambda fields: OutsideSignal(_signal(fields, "signal")),
    "exit": _exit,
    "stuck": _stuck,
    "stacks": _stacks,
    "rewound": lambda _: Rewound(),
    "leave": lambda _: Reconnecting(),
    "end": lambda fields: End(_ends(fields)),
}


def _error(name: str) -> FrameError:
    return FrameError(f"a message without a valid {name!r}")


def _number(fields: Json, name: str) -> float:
    value = fields.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= _MAX_INTEGER:
        raise _error(name)  # as for NaN
    return float(value)


def _integer(fields: Json, name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_INTEGER:
        raise _error(name)
    return value


def _signal(fields: Json, name: str) -> int:
    value = _integer(fields, name)
    if not 0 < value <= 64:
        raise _error(name)
    return value


def _text(fields: Json, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise _error(name)
    return value[:MAX_TEXT]


def _optional(fields: Json, name: str, read: Callable[[Json, str], Any]) -> Any:
    return None if fields.get(name) is None else read(fields, name)


def _ends(fields: Json) -> Ends:
    return {name: _optional(fields, name, _integer) or 0 for name in ("out", "err")}

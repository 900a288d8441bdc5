"""Messages between ranks and supervisor; those of a rank as checked values, so that a malformed one changes nothing.

A message is a JSON frame whose `t` is its type; output of the command has frames of its own (`common/frames.py`). A
connection begins with the handshake of `common/handshake.py`, whose `hello` and `welcome` have the rank's identity and
the state of the run. `MESSAGES` has what a rank sends then, and its types. The supervisor sends:

    ack             how many bytes of each stream are written
    rewind          send the output again from these offsets: the disk was full
    begin           the exchange of checkpoints is over: start the command
    notice          the time limit of the job is near: tell the command, if it handles such a signal
    stop            end the command
    dump            report the stacks of the command
    remove-job      the job file is not needed any more
    release         all output has arrived: the rank wrapper may exit

The starter of a host (`host_starter.py`) has a connection of the same kind, whose hello names the host in place of a
rank. `STARTER_MESSAGES` has what it sends; the supervisor sends `ack`, and

    start           start the rank wrappers of the attempt
    signal          send a signal to the rank wrappers
    dismiss         the run is over

In comes the JSON of a rank's frame, from another host; out comes a named tuple of its fields, or a FrameError with the
reason. The rule: a text is cut, a number has its range, and a field that is not known is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, Mapping, NamedTuple, TypeVar, Union

from ipexctl.node.common.frames import FrameError, decode_json
from ipexctl.node.common.json_records import NATURAL, FieldDecoder, check_type, decode, decode_natural
from ipexctl.node.common.records import Detail, FullDisk, OutOfMemory
from ipexctl.node.run.host_notes import HostNotes
from ipexctl.node.run.step_windows import StepWindow

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

MAX_TEXT = 4096
"""Characters of a text that are kept."""
_MAX_NAME, _MAX_FIELDS = 40, 8
Ends = Dict[str, int]
"""`out` and `err` → the bytes printed so far."""
Signal = int
Code = int
"""As `Popen.returncode`: -N when signal N has ended the process."""
Value = TypeVar("Value")


class Hello(NamedTuple):
    """A rank that has proven the run's token."""

    rank: int
    instance: str
    """Differs for each start of a rank wrapper."""
    host: str
    pid: int | None = None
    attempt: int | None = None


class StarterHello(NamedTuple):
    """The starter of a host, which has proven the run's token."""

    starter: str
    """The host, as named in the hostfile."""
    instance: str


class Connected(NamedTuple):
    """Not sent: a rank has authenticated, for the first time or again."""

    node: str
    instance: str
    wrapper: int | None = None
    """The process id of the rank wrapper."""


class Malformed(NamedTuple):
    """Not sent: a rank has sent what can't be read, and its connection was dropped."""

    reason: str


class Beat(NamedTuple):
    cpu: float
    rss: int
    ends: Ends
    process: str | None = None
    waits_in: str | None = None


class CheckpointFailed(NamedTuple):
    """The rank could not take part in the exchange of checkpoints; its command is not started."""

    reason: str


class Started(NamedTuple):
    pid: int


class NotStarted(NamedTuple):
    """The command could not be started; its exit follows."""

    reason: str


class Mismatch(NamedTuple):
    text: str


class Noticed(NamedTuple):
    """The command handles a signal which tells it that the job is about to end."""

    signal: Signal


class OutsideSignal(NamedTuple):
    """The rank wrapper got a signal that the supervisor did not send."""

    signal: Signal


class Exit(NamedTuple):
    code: int
    is_own: bool
    """Whether neither the supervisor nor the rank wrapper ended it."""
    signal: Signal | None = None
    oom: OutOfMemory | None = None
    problem: Detail | None = None
    """Why the command could not be started."""
    disk: FullDisk | None = None
    """A disk of the host that was full then."""


class Stuck(NamedTuple):
    """The command has printed its exception, but its process does not exit."""

    code: int
    text: str
    seconds: float


class Stacks(NamedTuple):
    """The reply to a request for stacks."""

    id: str
    processes: tuple[Json, ...]


class Rewound(NamedTuple):
    """The output that follows was sent before, and was refused."""


class Reconnecting(NamedTuple):
    """The rank closes a connection that works, because the supervisor is too slow, and will connect again."""


class End(NamedTuple):
    """All output has been sent."""

    ends: Ends


class StarterBeat(NamedTuple):
    """The starter of a host lives."""


class WrapperEnded(NamedTuple):
    """The wrapper of a rank has ended; repeated after a reconnect."""

    rank: int
    attempt: int
    code: Code
    text: str = ""
    """What the wrappers of that host have printed themselves."""


StarterMessage = Union[StarterBeat, WrapperEnded]
Message = Union[
    Connected,
    Malformed,
    Beat,
    CheckpointFailed,
    Started,
    NotStarted,
    Mismatch,
    Noticed,
    OutsideSignal,
    Exit,
    Stuck,
    Stacks,
    Rewound,
    Reconnecting,
    End,
    StepWindow,
    HostNotes,
]


MESSAGES: Mapping[str, Callable[..., Message]] = {
    "beat": Beat,
    "checkpoint-failed": CheckpointFailed,
    "start": Started,
    "not-started": NotStarted,
    "mismatch": Mismatch,
    "noticed": Noticed,
    "outside-signal": OutsideSignal,
    "exit": Exit,
    "stuck": Stuck,
    "stacks": Stacks,
    "rewound": Rewound,
    "reconnecting": Reconnecting,
    "end": End,
    "window": StepWindow,
    "host": HostNotes,
}


STARTER_MESSAGES: Mapping[str, Callable[..., StarterMessage]] = {"beat": StarterBeat, "wrapper-ended": WrapperEnded}


def read_hello(fields: Json) -> Hello | StarterHello:
    """Raises a FrameError."""
    return decode_fields(StarterHello, fields) if "starter" in fields else decode_fields(Hello, fields)


def read_starter_message(payload: bytes) -> StarterMessage:
    """Raises a FrameError."""
    fields = decode_json(payload)
    kind = STARTER_MESSAGES.get(str(fields.get("t")))
    if kind is None:
        raise FrameError(f"an unknown message {str(fields.get('t'))[:40]!r}")
    return decode_fields(kind, fields)


def read_message(payload: bytes) -> Message:
    """Raises a FrameError."""
    fields = decode_json(payload)
    kind = MESSAGES.get(str(fields.get("t")))
    if kind is None:
        raise FrameError(f"an unknown message {str(fields.get('t'))[:40]!r}")
    return decode_fields(kind, fields)


def decode_fields(kind: Callable[..., Value], fields: Json) -> Value:
    try:
        return decode(kind, fields, "a message")
    except ValueError as error:
        raise FrameError(f"a message that is malformed: {error}") from None


def _text(value: object, field: str) -> str:
    return check_type(str, value, field)[:MAX_TEXT]


def _signal(value: object, field: str) -> int:
    number = check_type(int, value, field)
    if not 0 < number <= 64:
        raise ValueError(f"{field} is no signal")
    return number


def _code(value: object, field: str) -> int:
    code = check_type(int, value, field)
    if not -64 <= code < 256:
        raise ValueError(f"{field} is no exit code")
    return code


def _ends(value: object, field: str) -> Ends:
    ends = check_type(dict, value, field)
    return {name: decode_natural(ends.get(name, 0), name) for name in ("out", "err")}


def _detail(value: object, field: str) -> Detail | None:
    """Bounded, as it goes into status.json."""
    if value is None:
        return None
    detail = decode(Detail, value, field)
    fields = {name[:_MAX_NAME]: text[:MAX_TEXT] for name, text in list(detail.fields.items())[:_MAX_FIELDS]}
    return Detail(detail.kind[:_MAX_NAME], fields)


FIELD_DECODERS: dict[str, FieldDecoder] = {
    "Detail | None": _detail,
    **NATURAL,
    "str": _text,
    "Signal": _signal,
    "Code": _code,
    "Ends": _ends,
}

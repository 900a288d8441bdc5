"""Messages between ranks and supervisor. What a rank sends is checked when it is decoded.

A message is a JSON frame with its type in `t`; output has its own frames (`common/frames.py`). A connection begins with
a handshake (`common/token_proof.py`): `hello` carries the rank's identity, `welcome` the state of the run. Then the
rank sends `MESSAGES`, and the supervisor:

ack             how many bytes of each stream are written
rewind          send the output again from these offsets, because the disk was full
begin           the checkpoint exchange is over: start the command
peers           the ports that all ranks have chosen: start the command
notice          the job's time limit is near: tell the command, if it handles such a signal
stop            end the command
dump            report the stacks of the command
count-steps     report the optimizer steps of the command
profile         profile the command after this step
remove-job      remove the job file
release         all output has arrived: the rank wrapper may exit

A host's starter (`host_starter/`) connects in the same way; its hello names the host. It sends `STARTER_MESSAGES`,
and the supervisor sends it `ack` and the following. Each message has a proof (`token_proof.OrderProof`):

start           start the rank wrappers of the attempt
signal          send a signal to the rank wrappers
ask             report which of these rank wrappers are gone
shell           run a line of mpirun
end-shell       end such a line
dismiss         the run is over
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, NamedTuple, TypeVar, Union

from ipexctl.node.common.frames import FrameError, decode_json
from ipexctl.node.common.json_records import NATURAL, FieldDecoder, check_type, decode, decode_natural
from ipexctl.node.common.records import Detail, FullDisk, OutOfMemory, Proof, RankFigures
from ipexctl.node.common.training import RankTraining
from ipexctl.node.run.meter.host_notes import HostNotes
from ipexctl.node.run.meter.rank_profile import RankProfile, StepCount
from ipexctl.node.run.meter.step_windows import StepWindow

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

MAX_TEXT = 4096
_MAX_NAME, _MAX_FIELDS = 40, 8
Ends = Dict[str, int]
"""`out` and `err` → number of bytes printed so far."""
Signal = int
Code = int
Value = TypeVar("Value")


class Hello(NamedTuple):
    rank: int
    instance: str
    """Differs for each start of a rank wrapper."""
    host: str
    pid: int | None = None
    attempt: int | None = None
    start: int | None = None
    """Start of the wrapper process, as in `processes.start_of`."""
    scope: str = ""
    """Where its pid is valid, as in `processes.pid_scope`."""


class StarterHello(NamedTuple):
    starter: str
    instance: str
    refused: int = 0
    """Orders of the last minute that somebody had changed, so that they were not obeyed."""


class Beat(NamedTuple):
    figures: RankFigures
    ends: Ends
    starvation: float = 1.0
    """Of the rank's host."""


class Complaint(NamedTuple):
    t: str
    """`checkpoint-failed`, `not-started`; `malformed`: made by the supervisor when it drops a rank's connection because
    of an unreadable message."""
    reason: str


class ChosenPort(NamedTuple):
    """Sent before the command starts, and again after a reconnect, if the command has `{peers}`."""

    port: int


class Started(NamedTuple):
    pid: int
    port: int | None = None
    restarts: int = 0
    """How often the wrapper has started the command again."""
    exit_code: int | None = None
    """Of the command before, if it was started again."""


class Mismatch(NamedTuple):
    text: str


class Signalled(NamedTuple):
    t: str
    """`noticed`: the command was told that its job ends soon; `outside-signal`: the wrapper got a signal from another
    process than the supervisor."""
    signal: Signal


class Raised(NamedTuple):
    """The uncaught exception that ended a command."""

    text: str
    place: str
    """A number for the whole stack, and a line to show."""
    steps: int | None = None
    """Optimizer steps in the attempt; None if they are not counted."""


class Exit(NamedTuple):
    code: int
    is_own: bool
    signal: Signal | None = None
    oom: OutOfMemory | None = None
    problem: Detail | None = None
    disk: FullDisk | None = None
    """A disk that was full when the command exited."""
    evidence: tuple[Proof, ...] = ()
    """Without host and time, which the supervisor adds."""
    raised: Raised | None = None


class Left(NamedTuple):
    """The script has ended without an exception; the process may still be needed."""

    steps: int | None = None
    """Optimizer steps in the attempt; None if they are not counted."""


class Stuck(NamedTuple):
    code: int
    text: str
    seconds: float


class Stacks(NamedTuple):
    id: str
    processes: tuple[Json, ...]


class BareMessage(Enum):
    REWOUND = "rewound"
    """The rank sends refused output again from here on."""
    RECONNECTING = "reconnecting"
    """The rank is about to close its connection, because the supervisor is silent, and reconnect."""
    BEAT = "starter-beat"
    """A sign of life from a host's starter."""


class End(NamedTuple):
    ends: Ends


class WrapperEnded(NamedTuple):
    """Sent again after a reconnect."""

    rank: int
    attempt: int
    code: Code
    text: str = ""
    """What the host's wrappers themselves printed."""


class ShellOutput(NamedTuple):
    """Output of a line that the starter runs for mpirun."""

    id: int
    stream: str
    text: str
    """The bytes as Latin-1."""


class ShellEnded(NamedTuple):
    """Sent again after a reconnect."""

    id: int
    code: Code


class GoneWrappers(NamedTuple):
    """Answer to `ask`; sent only if one is gone."""

    ranks: tuple[int, ...]


StarterMessage = Union[BareMessage, WrapperEnded, ShellOutput, ShellEnded, GoneWrappers]
Message = Union[
    Hello,
    Beat,
    Complaint,
    ChosenPort,
    Started,
    Mismatch,
    Signalled,
    Exit,
    Left,
    Stuck,
    Stacks,
    StepCount,
    BareMessage,
    End,
    StepWindow,
    HostNotes,
    RankProfile,
    RankTraining,
]


MESSAGES: Mapping[str, Callable[..., Message] | BareMessage] = {
    "beat": Beat,
    "checkpoint-failed": Complaint,
    "port": ChosenPort,
    "start": Started,
    "not-started": Complaint,
    "mismatch": Mismatch,
    "noticed": Signalled,
    "outside-signal": Signalled,
    "exit": Exit,
    "left": Left,
    "stuck": Stuck,
    "stacks": Stacks,
    "steps": StepCount,
    "rewound": BareMessage.REWOUND,
    "reconnecting": BareMessage.RECONNECTING,
    "end": End,
    "window": StepWindow,
    "host": HostNotes,
    "profile": RankProfile,
    "training": RankTraining,
}


STARTER_MESSAGES: Mapping[str, Callable[..., StarterMessage] | BareMessage] = {
    "beat": BareMessage.BEAT,
    "wrapper-ended": WrapperEnded,
    "shell-output": ShellOutput,
    "shell-ended": ShellEnded,
    "gone": GoneWrappers,
}


def read_hello(fields: Json) -> Hello | StarterHello:
    """Return a rank's or a host starter's hello, whose handshake is checked already. Raises a FrameError if it is
    malformed."""
    return decode_fields(StarterHello, fields) if "starter" in fields else decode_fields(Hello, fields)


def read_starter_message(payload: bytes) -> StarterMessage:
    """Return a message of a host starter. Raises a FrameError if it is malformed or of an unknown type."""
    message: StarterMessage = _read_kind(STARTER_MESSAGES, payload)
    return message


def read_message(payload: bytes) -> Message:
    """Return a message of a rank. Raises a FrameError if it is malformed or of an unknown type."""
    message: Message = _read_kind(MESSAGES, payload)
    return message


def _read_kind(kinds: Mapping[str, Callable[..., Any] | BareMessage], payload: bytes) -> Any:
    fields = decode_json(payload)
    kind = kinds.get(str(fields.get("t")))
    if kind is None:
        raise FrameError(f"an unknown message {str(fields.get('t'))[:40]!r}")
    return kind if isinstance(kind, BareMessage) else decode_fields(kind, fields)


def decode_fields(kind: Callable[..., Value], fields: Json) -> Value:
    """Return the fields as a record of this kind. Raises a FrameError if one is missing or not valid."""
    try:
        return decode(kind, fields, "a message")
    except ValueError as error:
        raise FrameError(f"a malformed message: {error}") from None


def _text(value: object, field: str) -> str:
    return check_type(str, value, field)[:MAX_TEXT]


def _signal(value: object, field: str) -> int:
    number = check_type(int, value, field)
    if not 0 < number <= 64:
        raise ValueError(f"{field} is not a signal")
    return number


def _code(value: object, field: str) -> int:
    code = check_type(int, value, field)
    if not -64 <= code < 256:
        raise ValueError(f"{field} is not an exit code")
    return code


def _ends(value: object, field: str) -> Ends:
    ends = check_type(dict, value, field)
    return {name: decode_natural(ends.get(name, 0), name) for name in ("out", "err")}


def _detail(value: object, field: str) -> Detail | None:
    """Decode and shorten a detail, because status.json stores it."""
    if value is None:
        return None
    detail = decode(Detail, value, field)
    fields = {name[:_MAX_NAME]: text[:MAX_TEXT] for name, text in list(detail.fields.items())[:_MAX_FIELDS]}
    return Detail(detail.kind[:_MAX_NAME], fields)


def _evidence(value: object, field: str) -> tuple[Proof, ...]:
    """Decode and shorten what a host measured, because status.json stores it."""
    proofs = (decode(Proof, proof, field) for proof in check_type(list, value, field)[:_MAX_FIELDS])
    return tuple(Proof(proof.kind[:_MAX_NAME], proof.text[:MAX_TEXT]) for proof in proofs)


FIELD_DECODERS: dict[str, FieldDecoder] = {
    "tuple[Proof, ...]": _evidence,
    "Detail | None": _detail,
    **NATURAL,
    "str": _text,
    "Signal": _signal,
    "Code": _code,
    "Ends": _ends,
}

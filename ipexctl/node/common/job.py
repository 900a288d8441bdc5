"""The records that start a run: `job.json` for the ranks of a host, and two requests for the supervisor.

It is apart from the other records because each rank imports it, and theirs take 5 ms to import.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Optional, TypeVar

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

Variables = Mapping[str, Optional[str]]
"""Name → value, or None for a variable to unset."""
Value = TypeVar("Value")
Number = TypeVar("Number", int, float)
_MAX_NUMBER = (1 << 63) - 1


class Master(NamedTuple):
    """The rendezvous address of the ranks: MASTER_ADDR and MASTER_PORT."""

    addr: str
    port: int | None = None
    """None until the supervisor has picked one."""


class RankJob(NamedTuple):
    """One rank's part of a job."""

    host: str
    local_rank: int
    local_size: int
    cores: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()
    """The NUMA nodes whose memory it prefers."""
    variables: Mapping[str, str | None] = {}
    """They override the variables of the job."""
    batch: bool = False
    """True for SCHED_BATCH: a thread that wakes up does not interrupt the one that runs."""


class JobRecord(NamedTuple):
    """The job of one host, or of all hosts that share a home. The file has mode 0600: it has the token and secrets."""

    world_size: int
    master: Master
    command: tuple[str, ...]
    cwd: str
    ranks: Mapping[int, RankJob]
    variables: Mapping[str, str | None] = {}
    prepended: tuple[str, ...] = ()
    """Variables whose value goes before the existing one."""
    setup: str | None = None
    """A file that bash sources first."""
    id: str = ""
    rundir: str = ""
    token: str = ""
    """64 hex digits; rank wrapper and supervisor authenticate each other with it."""
    checkpoint: str = ""
    """The path of a file or directory, relative to `cwd`, that all hosts have the same of before an attempt begins."""
    bytecode: str = ""
    """The path at which the run leaves its agent with bytecode, so that later runs start faster."""

    def __repr__(self) -> str:
        return f"JobRecord({self.id!r})"  # no secrets in logs

    def to_json(self) -> Json:
        # Not by `as_json`, which would look at every variable of thousands of ranks.
        ranks = {str(rank): job._asdict() for rank, job in self.ranks.items()}
        return {**self._asdict(), "master": self.master._asdict(), "ranks": ranks}


class SupervisorRequest(NamedTuple):
    """The supervisor's first line of stdin. It answers once it listens."""

    id: str
    rundir: str
    bind: str
    """The address to listen on."""
    token: str
    host: str
    """Node0, as named in the hostfile."""


class RankPlacement(NamedTuple):
    rank: int
    host: str
    store: str
    """Hosts with the same store share a job file."""


class ConnectivityRecord(NamedTuple):
    """A check of the connections between the nodes that passed; in `runs/` on node0 after a run that ended well."""

    key: str
    """A digest of what was checked."""
    checked: float
    """In seconds since the boot of node0."""


CONNECTIVITY_FILE = ".connectivity.json"


class StartRequest(NamedTuple):
    """The supervisor's second line of stdin: mpirun and the limits of the run."""

    argv: tuple[str, ...]
    """The mpirun line, or that of a single rank; the supervisor appends its addresses."""
    ranks: tuple[RankPlacement, ...]
    world_size: int
    nodes: int
    master: Master
    script: str = ""
    env: str = ""
    by_mpirun: bool = True
    """False for a single rank whose wrapper the supervisor starts itself."""
    variables: Mapping[str, str | None] = {}
    """Of mpirun."""
    setup: str | None = None
    """A file that bash sources before mpirun."""
    addresses: tuple[str, ...] = ()
    """Of the planned hosts: the supervisor accepts their connections before others."""
    time_limit: float | None = None
    restarts: int = 0
    hang_after: float = 600.0
    """Seconds without output of any rank until that is reported; 0 for never."""
    on_hang: str = "report"
    """Then also `dump` all stacks, or dump them and `stop` the run."""
    checkpoint: str = ""
    """As in the job."""
    connectivity: ConnectivityRecord | None = None
    job: str = ""
    """The text of node0's job.json, which the supervisor writes; empty if no rank has its store."""
    plan: str = ""
    """The text of plan.json."""

    def __repr__(self) -> str:
        return f"StartRequest({self.world_size} ranks)"  # no secrets in logs


def as_json(value: Any) -> Any:
    """A record, or a value of one, for JSON: the records in it become objects, also those in a tuple."""
    if hasattr(value, "_asdict"):
        return {name: as_json(item) for name, item in value._asdict().items()}
    is_of_records = isinstance(value, tuple) and value and isinstance(value[0], tuple)
    return [as_json(item) for item in value] if is_of_records else value


def read_job(document: object) -> JobRecord:
    """Raises a ValueError for a document that is no job, like the functions below."""
    job = read_record(JobRecord, document, "the job")
    if not (job.id and job.rundir and job.token):
        raise ValueError("the job has no id, rundir or token")
    return job


@lru_cache(maxsize=None)
def field_types(kind: Any) -> dict[str, str]:
    """The fields of a named tuple, and their types as they are written."""
    return {name: getattr(type_, "__forward_arg__", type_) for name, type_ in kind.__annotations__.items()}


def read_record(
    kind: Callable[..., Value],
    document: object,
    name: str,
    readers: Mapping[str, Callable[[Any, str], Any]] | None = None,
) -> Value:
    """A named tuple. A field that is missing or null has its default; `readers` are for types that `READERS` lacks."""
    if not isinstance(document, dict):
        raise ValueError(f"{name} is not a JSON object")
    readers = readers or READERS
    types = field_types(kind).items()
    values = {
        field: readers[type_](document[field], field) for field, type_ in types if document.get(field) is not None
    }
    try:
        return kind(**values)
    except TypeError as error:  # a field without a default is missing
        raise ValueError(f"{name}: {error}") from None


def check_type(kind: type[Value], value: object, field: str) -> Value:
    if type(value) is not kind:
        raise ValueError(f"{field} is not of type {kind.__name__}")
    return value


def _integer(value: object, field: str) -> int:
    return _in_range(check_type(int, value, field), field)


def _float(value: object, field: str) -> float:
    return float(_in_range(value if type(value) is int else check_type(float, value, field), field))


def _in_range(number: Number, field: str) -> Number:
    if not 0 <= number <= _MAX_NUMBER:  # as for NaN
        raise ValueError(f"{field} is out of range")
    return number


def tuple_of(read: Callable[[Any, str], Value], value: object, field: str) -> tuple[Value, ...]:
    return tuple(read(item, f"an item of {field}") for item in check_type(list, value, field))


def _variables(value: object, field: str) -> Variables:
    variables = check_type(dict, value, field)
    if not all(item is None or isinstance(item, str) for item in variables.values()):
        raise ValueError(f"a value of {field} is not of type str")
    return variables


def _ranks(value: object, field: str) -> dict[int, RankJob]:
    plans = check_type(dict, value, field)
    return {int(rank): read_record(RankJob, plan, f"rank {rank}") for rank, plan in plans.items()}


_string = partial(check_type, str)
READERS: dict[str, Callable[[Any, str], Any]] = {
    "bool": partial(check_type, bool),
    "float": _float,
    "float | None": _float,
    "int": _integer,
    "int | None": _integer,
    "str": _string,
    "str | None": _string,
    "tuple[int, ...]": partial(tuple_of, _integer),
    "tuple[str, ...]": partial(tuple_of, _string),
    "tuple[RankPlacement, ...]": partial(tuple_of, partial(read_record, RankPlacement)),
    "Mapping[str, str | None]": _variables,
    "Mapping[int, RankJob]": _ranks,
    "Master": partial(read_record, Master),
    "ConnectivityRecord | None": partial(read_record, ConnectivityRecord),
}
"""The type of a field → the function that checks its value."""

"""The records that start a run: `job.json` for the ranks of a host, and two requests for the supervisor.

It is apart from the other records because each rank imports it, and theirs take 5 ms to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, NamedTuple, Optional, TypeVar

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

Variables = Mapping[str, Optional[str]]
"""Name → value, or None for a variable to unset."""
Value = TypeVar("Value")


class Master(NamedTuple):
    """The rendezvous address of the ranks: MASTER_ADDR and MASTER_PORT."""

    addr: str = ""
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
        return {
            **self._asdict(),
            "master": self.master._asdict(),
            "ranks": {str(rank): job._asdict() for rank, job in self.ranks.items()},
        }


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
    grace: float = 4.0
    """Seconds for ranks to exit after SIGTERM."""
    begin_within: float = 120.0
    """Seconds for every rank to connect."""
    checkpoint: str = ""
    """As in the job."""
    connectivity: ConnectivityRecord | None = None

    def to_json(self) -> Json:
        ranks = [placement._asdict() for placement in self.ranks]
        connectivity = self.connectivity._asdict() if self.connectivity is not None else None
        return {**self._asdict(), "master": self.master._asdict(), "ranks": ranks, "connectivity": connectivity}


def read_supervisor_request(document: object) -> SupervisorRequest:
    """Raises a ValueError for a document that is not such a request, like the functions below."""
    request = _object(document, "the request")
    return SupervisorRequest(*(_value(request, name, str) for name in SupervisorRequest._fields))


def read_start_request(document: object) -> StartRequest:
    start = _object(document, "the request")
    ranks = (_object(entry, "a rank") for entry in _value(start, "ranks", list))
    return StartRequest(
        argv=_items(start, "argv", str),
        ranks=tuple(
            RankPlacement(_value(rank, "rank", int), _value(rank, "host", str), _value(rank, "store", str))
            for rank in ranks
        ),
        world_size=_value(start, "world_size", int),
        nodes=_value(start, "nodes", int),
        master=_master(start),
        script=_value(start, "script", str),
        env=_value(start, "env", str),
        by_mpirun=_optional(start, "by_mpirun", bool) is not False,
        variables=_variables(start),
        setup=_optional(start, "setup", str),
        addresses=_items(start, "addresses", str),
        time_limit=_seconds(start, "time_limit"),
        restarts=_optional(start, "restarts", int) or 0,
        on_hang=_optional(start, "on_hang", str) or "report",
        checkpoint=_optional(start, "checkpoint", str) or "",
        connectivity=_connectivity(start.get("connectivity")),
        **{name: limit for name in _LIMITS if (limit := _seconds(start, name)) is not None},
    )


_LIMITS = ("hang_after", "grace", "begin_within")


def read_job(document: object) -> JobRecord:
    job = _object(document, "the job")
    return JobRecord(
        world_size=_value(job, "world_size", int),
        master=_master(job),
        command=_items(job, "command", str),
        cwd=_value(job, "cwd", str),
        ranks={int(rank): _rank(_object(plan, f"rank {rank}")) for rank, plan in _value(job, "ranks", dict).items()},
        variables=_variables(job),
        prepended=_items(job, "prepended", str),
        setup=_optional(job, "setup", str),
        id=_value(job, "id", str),
        rundir=_value(job, "rundir", str),
        token=_value(job, "token", str),
        checkpoint=_optional(job, "checkpoint", str) or "",
        bytecode=_optional(job, "bytecode", str) or "",
    )


def _rank(plan: Json) -> RankJob:
    return RankJob(
        _value(plan, "host", str),
        _value(plan, "local_rank", int),
        _value(plan, "local_size", int),
        _items(plan, "cores", int),
        _items(plan, "memory", int),
        _variables(plan),
    )


def _master(document: Json) -> Master:
    master = _object(document.get("master"), "master")
    return Master(_value(master, "addr", str), _optional(master, "port", int))


def _connectivity(document: object) -> ConnectivityRecord | None:
    if document is None:
        return None
    connectivity = _object(document, "connectivity")
    return ConnectivityRecord(_value(connectivity, "key", str), _value(connectivity, "checked", float))


def _object(document: object, name: str) -> Json:
    if not isinstance(document, dict):
        raise ValueError(f"{name} is not a JSON object")
    return document


def _value(document: Json, field: str, kind: type[Value]) -> Value:
    value = _optional(document, field, kind)
    if value is None:
        raise ValueError(f"{field} is missing")
    return value


def _optional(document: Json, field: str, kind: type[Value]) -> Value | None:
    value = document.get(field)
    if value is not None and type(value) is not kind:
        raise ValueError(f"{field} is not of type {kind.__name__}")
    return value


def _seconds(document: Json, field: str) -> float | None:
    value = document.get(field)
    return float(value) if type(value) is int else _optional(document, field, float)


def _items(document: Json, field: str, kind: type[Value]) -> tuple[Value, ...]:
    """Empty when the field is missing."""
    items = _optional(document, field, list) or []
    if not all(type(item) is kind for item in items):
        raise ValueError(f"an item of {field} is not of type {kind.__name__}")
    return tuple(items)


def _variables(document: Json) -> Variables:
    variables = _optional(document, "variables", dict) or {}
    if not all(value is None or isinstance(value, str) for value in variables.values()):
        raise ValueError("a value of variables is not of type str")
    return variables

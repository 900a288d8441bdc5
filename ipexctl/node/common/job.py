"""The record `job.json`: what the ranks of one host run. It is written by `jobs/submit` and read by the rank wrapper.

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


class SupervisorAddress(NamedTuple):
    address: str = ""
    port: int = 0


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
    supervisor: SupervisorAddress = SupervisorAddress()
    token: str = ""
    """64 hex digits; rank wrapper and supervisor authenticate each other with it."""

    def __repr__(self) -> str:
        return f"JobRecord({self.id!r})"  # no secrets in logs

    def to_json(self) -> Json:
        return {
            **self._asdict(),
            "master": self.master._asdict(),
            "supervisor": self.supervisor._asdict(),
            "ranks": {str(rank): job._asdict() for rank, job in self.ranks.items()},
        }


def read_job(document: object) -> JobRecord:
    """Raises a ValueError for a document that is not a job."""
    job = _object(document, "the job")
    master, supervisor = _object(job.get("master"), "master"), _object(job.get("supervisor"), "supervisor")
    return JobRecord(
        world_size=_value(job, "world_size", int),
        master=Master(_value(master, "addr", str), _optional(master, "port", int)),
        command=_items(job, "command", str),
        cwd=_value(job, "cwd", str),
        ranks={int(rank): _rank(_object(plan, f"rank {rank}")) for rank, plan in _value(job, "ranks", dict).items()},
        variables=_variables(job),
        prepended=_items(job, "prepended", str),
        setup=_optional(job, "setup", str),
        id=_value(job, "id", str),
        rundir=_value(job, "rundir", str),
        supervisor=SupervisorAddress(_value(supervisor, "address", str), _value(supervisor, "port", int)),
        token=_value(job, "token", str),
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

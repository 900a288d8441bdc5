"""The record of an environment (env.json), its names, and the search for one that answers a request. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted
from ipexctl.text import is_variable_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ipexctl.facts.facts import Facts
    from ipexctl.facts.software import Env


DEFAULT: Final = "default"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_MADE: Final = re.compile(r".*-[0-9a-f]{8}")


def env_directory(row: str, digest: str) -> str:
    """The directory of an environment, by its row and lock: `ipex-2.8-1a2b3c4d`."""
    return f"{row}-{digest[:8]}"


def check_env_name(name: str) -> str:
    """Return a valid name. Raises a UserError."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{quoted(name)} is not a valid name of an environment",
            fix="use up to 64 letters, digits, dots, dashes and underscores, with a letter or digit first",
        )
    if _MADE.fullmatch(name):
        raise UserError(
            f"{quoted(name)} looks like the directory of an environment, whose name is made from its content",
            fix="choose another name, such as --env finetune",
        )
    return name


SCHEMA: Final = "ipexctl.env/1"


@dataclass(frozen=True, slots=True)
class EnvFields:
    """The fields of env.json that are the same on every host; the agent adds the others."""

    row: str
    python: str
    requests: tuple[dict[str, Any], ...]
    backend: str
    module: str | None
    retired: bool
    mpi: str | None
    why: str
    installer: dict[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self), "requests": list(self.requests)}


@dataclass(frozen=True, slots=True)
class EnvRecord:
    """The content of env.json."""

    name: str
    row: str
    python: str
    interpreter: str
    digest: str
    backend: str
    requests: tuple[dict[str, Any], ...]
    packages: dict[str, str]
    variables: dict[str, str]
    prepended: tuple[str, ...]
    module: str | None = None
    why: str = ""
    mpi: str | None = None
    installer: dict[str, Any] | None = None


def read_record(text: str) -> EnvRecord | None:
    """The record; None if the text is not a valid record."""
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            return None
        variables = dict(data["variables"])
        if not all(is_variable_name(name) and isinstance(value, str) for name, value in variables.items()):
            return None
        return EnvRecord(
            name=data["name"],
            row=data["row"],
            python=data["python"],
            interpreter=data["interpreter"],
            digest=data["digest"],
            backend=data["backend"],
            requests=tuple(data["requests"]),
            packages=dict(data["packages"]),
            variables=variables,
            prepended=tuple(data["prepended"]),
            module=data.get("module"),
            why=data.get("why", ""),
            mpi=data.get("mpi"),
            installer=data.get("installer"),
        )
    except (ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class Existing:
    """An environment made for an equal request, and the hosts that have it."""

    record: EnvRecord
    hosts: tuple[str, ...]
    """The hosts that have its directory."""
    named: tuple[str, ...]
    """The hosts where the requested name points at it."""


def records_of(facts: Facts) -> Iterator[tuple[Env, EnvRecord]]:
    for env in facts.software.envs:
        record = read_record(env.record)
        if record is not None and record.name == env.name:
            yield env, record


def find_existing(request: Mapping[str, Any], name: str, hosts: Mapping[str, Facts]) -> Existing | None:
    """The environment made for this request that has the requested name on most hosts, then the one on most hosts."""
    records: dict[str, EnvRecord] = {}
    having: dict[str, list[str]] = {}
    named: dict[str, list[str]] = {}
    for host, facts in hosts.items():
        for env, record in records_of(facts):
            if request not in record.requests:
                continue
            records.setdefault(record.name, record)
            having.setdefault(record.name, []).append(host)
            if name in env.names:
                named.setdefault(record.name, []).append(host)
    if not records:
        return None
    best = max(records, key=lambda each: (len(named.get(each, ())), len(having[each]), each))
    return Existing(records[best], tuple(having[best]), tuple(named.get(best, ())))

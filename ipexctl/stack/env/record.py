"""The record of an environment (env.json), its names, and the search for one that answers a request. Pure.

In come texts from hosts and names from the user; out come an `EnvRecord` and, of several environments, the one to
reuse. Both are untrusted: a record of which any value is malformed is none, since its requirements become lines of a
requirements file, where any other text may be an option; a name becomes a path and part of messages, so it has a fixed
alphabet, and is checked before a host is contacted. Names like `ipex-2.8-1a2b3c4d` are those of directories, which no
user can give.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Final

from packaging.version import VERSION_PATTERN

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted
from ipexctl.node.common.json_parser import parse_object
from ipexctl.node.common.json_records import decode
from ipexctl.node.env.replies import EnvRecord
from ipexctl.text import is_variable_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ipexctl.facts.facts import Facts
    from ipexctl.facts.software import Env


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_MADE: Final = re.compile(r".*-[0-9a-f]{8}")
_PACKAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION: Final = re.compile(VERSION_PATTERN, re.VERBOSE | re.IGNORECASE | re.ASCII)


def env_directory(row: str, digest: str) -> str:
    """The directory of an environment, by its row and lock: `ipex-2.8-1a2b3c4d`."""
    return f"{row}-{digest[:8]}"


def check_env_name(name: str) -> str:
    """Return the name, or the directory, that a call gives for an environment. Raises a UserError for any other text.

    Every command and task calls this before a host is contacted: the name becomes a path and part of messages there.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{quoted(name)} is not a valid name of an environment",
            fix="use up to 64 letters, digits, dots, dashes and underscores, with a letter or digit first",
        )
    return name


def check_new_env_name(name: str) -> str:
    """Return a valid name for an environment that is made or named. Raises a UserError."""
    if _MADE.fullmatch(check_env_name(name)):
        raise UserError(
            f"{quoted(name)} looks like the directory of an environment, whose name is made from its content",
            fix="choose another name, such as --env finetune",
        )
    return name


SCHEMA: Final = "ipexctl.env/1"


def read_record(text: str) -> EnvRecord | None:
    """The record; None if the text, which comes from a host, is not a valid record."""
    try:
        data = parse_object(text)
        requests = tuple(request for request in data["requests"] if _is_request(request))
        installer = data["installer"] if isinstance(data.get("installer"), dict) else None
        record = decode(EnvRecord, data, "the record", {"requests": requests, "installer": installer})
    except (KeyError, ValueError, TypeError):
        return None
    if None in (data.get("variables"), data.get("prepended")):  # here they have no default
        return None
    if record.schema != SCHEMA or not all(map(is_variable_name, record.variables)):
        return None
    # They become lines of a requirements file, where any other text may be an option or a second line.
    are_lines = all(map(_PACKAGE.fullmatch, record.packages)) and all(map(_VERSION.fullmatch, record.packages.values()))
    return record if are_lines else None


def _is_request(value: object) -> bool:
    """Whether `EnvRequest.from_json` can read it, and its requirements can be lines of a requirements file."""
    if not isinstance(value, dict):
        return False
    lists = [value.get(name) or [] for name in ("extras", "constraints")]
    return all(isinstance(lines, list) and all(map(_is_requirement, lines)) for lines in lists) and all(
        isinstance(value.get(name), (str, NoneType)) for name in ("torch", "stack", "ipex", "oneccl", "python")
    )


def _is_requirement(line: object) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement  # slow to import, and seldom needed

    if not isinstance(line, str) or not line.isprintable():
        return False
    try:
        Requirement(line)
    except InvalidRequirement:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Existing:
    """An environment that answers a request, and the hosts that have it."""

    record: EnvRecord
    hosts: tuple[str, ...]


def records_of(facts: Facts) -> Iterator[tuple[Env, EnvRecord]]:
    for env in facts.software.envs:
        record = read_record(env.record)
        if record is not None and record.name == env.name:
            yield env, record


def find_existing(hosts: Mapping[str, Facts], name: str, answers: Callable[[Env, EnvRecord], bool]) -> Existing | None:
    """Of the environments that answer, the one that has the name on most hosts, then the one that is on most hosts."""
    records: dict[str, EnvRecord] = {}
    having: dict[str, list[str]] = {}
    named: Counter[str] = Counter()
    for host, facts in hosts.items():
        for env, record in records_of(facts):
            if answers(env, record):
                records.setdefault(record.name, record)
                having.setdefault(record.name, []).append(host)
                named[record.name] += name in (env.name, *env.names)
    if not records:
        return None
    best = max(records, key=lambda env_name: (named[env_name], len(having[env_name]), env_name))
    return Existing(records[best], tuple(having[best]))

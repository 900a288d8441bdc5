"""Read the record of an environment (env.json), check names, and find an environment for a request. Pure.

A record from a host is untrusted: one malformed value makes it count as missing, because its requirements become lines
of a requirements file, where other text may be an option. A name becomes a path and part of messages, so its alphabet
is fixed. Names like `ipex-2.8-1a2b3c4d` are directories, and users can't choose them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Final

from packaging.version import VERSION_PATTERN

from ipexctl.errors import UserError
from ipexctl.facts.facts import Facts
from ipexctl.facts.software import Env
from ipexctl.hosts.host import quote
from ipexctl.node.common.json_records import decode, parse_object
from ipexctl.node.env.env_replies import EnvRecord
from ipexctl.text import is_variable_name

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_MADE: Final = re.compile(r".*-[0-9a-f]{8}")
_PACKAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION: Final = re.compile(VERSION_PATTERN, re.VERBOSE | re.IGNORECASE | re.ASCII)


def env_directory(row: str, digest: str) -> str:
    """Return the directory name of an environment, such as `ipex-2.8-1a2b3c4d`: the row and the beginning of the lock's
    digest."""
    return f"{row}-{digest[:8]}"


def check_env_name(name: str) -> str:
    """Return the name or directory of an environment. Raises a UserError for any other text.

    Every command calls this before it contacts a host, because the name becomes a path there.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{quote(name)} is not a valid name of an environment",
            fix="use up to 64 letters, digits, dots, dashes and underscores, with a letter or digit first",
        )
    return name


def check_new_env_name(name: str) -> str:
    """Return the name that a user chose for an environment. Raises a UserError if it is invalid, or looks like a
    directory that ipexctl names itself."""
    if _MADE.fullmatch(check_env_name(name)):
        raise UserError(
            f"{quote(name)} looks like the directory of an environment, whose name is made from its content",
            fix="choose another name, such as --env finetune",
        )
    return name


SCHEMA: Final = "ipexctl.env/1"


def read_record(text: str) -> EnvRecord | None:
    """Return the record in the text of env.json; None if a value is malformed or unsafe, or the schema is another."""
    try:
        data = parse_object(text)
        requests = tuple(request for request in data["requests"] if _is_request(request))
        installer = data["installer"] if isinstance(data.get("installer"), dict) else None
        record = decode(EnvRecord, data, "the record", {"requests": requests, "installer": installer})
    except (KeyError, ValueError, TypeError):
        return None
    if None in (data.get("variables"), data.get("prepended")):  # no default here
        return None
    if record.schema != SCHEMA or not all(map(is_variable_name, record.variables)):
        return None
    # Requirements files have one per line: other text could be an option or a second line.
    are_lines = all(map(_PACKAGE.fullmatch, record.packages)) and all(map(_VERSION.fullmatch, record.packages.values()))
    return record if are_lines else None


def _is_request(value: object) -> bool:
    """True if `EnvRequest.from_json` can read it and its requirements are safe in a requirements file."""
    if not isinstance(value, dict):
        return False
    lists = [value.get(name) or [] for name in ("extras", "constraints", "lists")]
    return all(isinstance(lines, list) and all(map(is_requirement, lines)) for lines in lists) and all(
        isinstance(value.get(name), (str, NoneType)) for name in ("torch", "stack", "ipex", "oneccl", "python")
    )


def is_requirement(line: object) -> bool:
    """True if the value is one line with a valid requirement, such as `peft>=0.17`, and not an option or a path."""
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
    """An environment that exists on some hosts, and these hosts."""

    record: EnvRecord
    hosts: tuple[str, ...]


def records_of(facts: Facts) -> Iterator[tuple[Env, EnvRecord]]:
    """Yield each environment of a host that has a readable record of the same name, together with the record."""
    for env in facts.software.envs:
        record = read_record(env.record)
        if record is not None and record.name == env.name:
            yield env, record


def find_existing(hosts: Mapping[str, Facts], name: str, answers: Callable[[Env, EnvRecord], bool]) -> Existing | None:
    """Return an environment for which `answers` is true, with the hosts that have it; None if there is none. The
    environment that has the name on most hosts is preferred, then the one that most hosts have."""
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

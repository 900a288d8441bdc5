"""Read hostfiles of mpirun, DeepSpeed and schedulers, and --hosts. Each line has a host or node set, with attributes.

Slots of repeated lines add up, as in Open MPI; contradicting values are an error. A file that the user did not name may
set no attribute that runs a program or trusts a key (`source.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from ipexctl.errors import UserError
from ipexctl.hosts.host import IPV4, MAX_PORT, Host, WordError, check_user, did_you_mean, quote, read_at
from ipexctl.hosts.nodeset import expand, split_specs
from ipexctl.hosts.source import REFUSED_KEYS, SourceFile
from ipexctl.hosts.words import HostWord, Pair, Word, read_address, read_host_word, split_pairs, split_words

Value = TypeVar("Value")
MAX_ENTRIES: Final = 200_000
_SINGLE_KEYS: Final = ("user", "port", "identity", "known_hosts", "ssh_config")


class RosterError(UserError):
    """Two lines contradict each other; `line` is the number of the second."""

    def __init__(self, message: str, *, line: int, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.line = line


class Roster:
    def __init__(self) -> None:
        self._lines: dict[str, list[tuple[int, Host]]] = {}
        self._entries = 0

    def add(self, host: Host, line: int) -> None:
        """Take a host of this line. Raises a RosterError for too many."""
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise RosterError(
                f"more than {MAX_ENTRIES:,} hosts in one file", line=line, fix="look for a digit too many"
            )
        self._lines.setdefault(host.name, []).append((line, host))

    def hosts(self) -> tuple[Host, ...]:
        """Return the hosts in the order of the file; those that are named several times once."""
        if len(self._lines) == self._entries:
            return tuple(lines[0][1] for lines in self._lines.values())
        has_slots = any(host.slots is not None for lines in self._lines.values() for _, host in lines)
        # Repeated hosts and no slots at all: the file is a $PBS_NODEFILE, where every line is one slot.
        return tuple(
            _merge(lines) if len(lines) > 1 or not has_slots else lines[0][1] for lines in self._lines.values()
        )


def _merge(lines: Sequence[tuple[int, Host]]) -> Host:
    """Return one host for all lines that name it. Raises a RosterError if they contradict each other."""
    values: dict[str, tuple[Any, int]] = {}
    for line, host in lines:
        for key in ("internal", *_SINGLE_KEYS, "address"):
            value = getattr(host, key)
            if value is None or (key == "address" and value == host.name):
                continue
            first, before = values.setdefault(key, (value, line))
            if value != first:
                raise RosterError(
                    f"{quote(host.name)} has {key} {quote(str(value))} here and {quote(str(first))} "
                    + ("before" if before == line else f"in line {before}"),
                    line=line,
                    fix="if these are two machines, give them two names and say address=",
                )
    slots = sum(host.slots or 1 for _, host in lines)
    limits = [host.max_slots for host in {host for _, host in lines} if host.max_slots is not None]
    (since, host), (last, _) = lines[0], lines[-1]
    if limits and slots > sum(limits):
        raise RosterError(
            f"the slots of {quote(host.name)} add up to {slots}"
            + ("" if since == last else f" from line {since} to here")
            + f", more than max_slots={sum(limits)}",
            line=last,
        )
    given = {key: value for key, (value, _) in values.items()}
    return replace(host, slots=slots, max_slots=sum(limits) if limits else None, **given)


MAX_SLOTS: Final = 99_999

KEYS: Final = ("slots", "max_slots", "internal", "address", *_SINGLE_KEYS)
_OTHER_NAMES: Final = {
    **dict.fromkeys(("slot", "np", "ppn", "cpu", "cpus", "ncpus", "gpus"), "slots"),
    **dict.fromkeys(("host", "hostname", "ip"), "address"),
    **dict.fromkeys(("key", "keyfile", "identityfile"), "identity"),
    **dict.fromkeys(("ssh_user", "login"), "user"),
    "ifhn": "internal",
    "ssh_port": "port",
    "max": "max_slots",
    "config": "ssh_config",
}
_COUNT = re.compile(r"[0-9]{1,9}")


def read_count(text: str, subject: str, *, maximum: int = MAX_SLOTS, example: str = "4") -> int:
    """Return a whole number from 1 to `maximum`. Raises a WordError. `subject`: what is counted, for its message."""
    if _COUNT.fullmatch(text) is None:
        raise WordError(f"{subject} must be a whole number, not {quote(text)}", fix=f"such as {example}")
    number = int(text)
    if not 1 <= number <= maximum:
        fix = "to leave the host out, remove its entry" if number == 0 and maximum == MAX_SLOTS else ""
        raise WordError(f"{subject} must be from 1 to {maximum}, not {quote(text)}", fix=fix)
    return number


def read_port(text: str) -> int:
    """Return the number of a port. Raises a WordError."""
    return read_count(text, "port", maximum=MAX_PORT, example="2222")


def read_path(text: str, base: Path) -> Path:
    """Read a path, which is relative to the file that contains it; `~` is a home."""
    if not text.startswith("~"):
        return base / text
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise WordError(
            f"{quote(text)}: there is no account {quote(text[1:].split('/')[0])} on the control machine",
            fix="write the path without ~",
        ) from None


def read_ssh_config(text: str, base: Path) -> Path:
    """Return the path of a file of ssh settings, relative to `base`."""
    # `ssh -F none` means no configuration; an empty file works for every reader.
    return Path("/dev/null") if text == "none" else read_path(text, base)


def fields_of(pairs: Iterable[Pair]) -> dict[str, Pair]:
    """Return key → pair of a line's settings. Raises a WordError for one that is unknown, given twice or empty."""
    fields: dict[str, Pair] = {}
    for pair in pairs:
        key = pair.key.text.replace("-", "_")
        if key not in KEYS:
            raise _unknown(pair.key)
        if key in fields:
            raise pair.key.error(f"{pair.key.text}= is given twice")
        if not pair.value.text:
            raise pair.value.error(f"{pair.key.text}= has no value", "give a value, or delete it")
        fields[key] = pair
    return fields


def hosts_of(word: HostWord, fields: Mapping[str, Pair], base: Path) -> list[Host]:
    """Return the hosts of one entry: a name may stand for many, as `node[1-4]`. Raises a WordError."""

    def value(key: str, parse: Callable[[str], Value]) -> Value | None:
        pair = fields.get(key)
        return None if pair is None else pair.value.read(parse)

    user = value("user", check_user) or word.user
    if word.user not in (None, user):
        raise fields["user"].key.error(f"the user is both {quote(word.user or '')} and {quote(user or '')}")
    colon_slots = None
    if word.number:
        colon_slots = read_at(word.number_column, lambda text: read_count(text, "the slots after ':'"), word.number)
    slots = value("slots", lambda text: read_count(text, "slots")) or colon_slots
    if colon_slots not in (None, slots):
        raise fields["slots"].key.error(f"slots is both {colon_slots} and {slots}")
    max_slots = value("max_slots", lambda text: read_count(text, "max_slots"))
    if slots and max_slots and slots > max_slots:
        raise fields["max_slots"].key.error(f"slots={slots} is more than max_slots={max_slots}")
    port = value("port", read_port)
    identity = value("identity", lambda text: read_path(text, base))
    known_hosts = value("known_hosts", lambda text: read_path(text, base))
    ssh_config = value("ssh_config", lambda text: read_ssh_config(text, base))
    addresses = value("address", lambda text: _addresses("address", text, len(word.names))) or word.names
    internals = value("internal", lambda text: _addresses("internal", text, len(word.names)))
    return [
        Host(name, address, user, port, slots, max_slots, internal, identity, known_hosts, ssh_config)
        for name, address, internal in zip(word.names, addresses, internals or [None] * len(word.names), strict=True)
    ]


def _addresses(key: str, text: str, count: int) -> tuple[str, ...]:
    """Return an address for each host of the line. Raises a WordError if there are more or fewer."""
    addresses = tuple(read_address(address) for address in ((text,) if ":" in text else expand(text)))
    if len(addresses) != count:
        raise WordError(
            f"{key}= gives {len(addresses)} of the {count} addresses this line needs"
            if len(addresses) < count
            else f"{key}= gives {len(addresses)} addresses for {count} host{'s' * (count > 1)}",
            fix=f"a node set of as many, such as node[1-4] {key}=10.0.0.[1-4]",
        )
    return addresses


def _unknown(word: Word) -> WordError:
    """Return the error for a key that no line may have, with the key that may be meant."""
    if not word.text:
        return word.error("there is no key before this '='", "such as slots=4")
    key = word.text.lower().replace("-", "_")
    fix = did_you_mean(_OTHER_NAMES.get(key, key), KEYS, f"known are {', '.join(KEYS)}", behind="=")
    return word.error(f"unknown key {quote(word.text)}", fix)


_SECTION = re.compile(r"\[[A-Za-z_][^\[\]]*\]")
_YAML = re.compile(r"---\s*|\s*(?:all|ungrouped|hosts|children|vars):\s*(?:#.*)?", re.DOTALL)
_ADDRESS = re.compile(rf"{IPV4}|[0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*")


def read_hostfile(text: str, path: str | Path, *, base: Path | None = None, found: str = "") -> tuple[Host, ...]:
    """Return the hosts of a hostfile. Raises a FileError that names line and column.

    `found`: how to name the file, if it was found and not named; some settings are refused then.
    """
    lines = text.removeprefix("\ufeff").split("\n")
    source = SourceFile(str(path), Path(path).parent if base is None else base, lines, found)
    roster = Roster()
    try:
        for number, line in enumerate(source.lines, 1):
            for host in _read_line(source, number, line.rstrip("\r")):
                roster.add(host, number)
        return roster.hosts()
    except RosterError as error:
        line = source.lines[error.line - 1]
        column = len(line) - len(line.lstrip()) + 1
        raise source.error(error.line, column, error.message, fix=error.fix) from None


def read_host_list(spec: str) -> tuple[Host, ...]:
    """Read comma-separated items, each like the first word of a hostfile line."""
    roster = Roster()
    try:
        for item in split_specs(spec):
            try:
                named = hosts_of(read_host_word(item), {}, Path())
            except WordError as error:
                raise UserError(f"--hosts {quote(item)}: {error.message}", fix=_list_fix(item, error)) from None
            for host in named:
                roster.add(host, 0)
        hosts = roster.hosts()
    except RosterError as error:
        raise UserError(f"--hosts: {error.message}", fix="write it in a hostfile") from None
    if not hosts:
        raise UserError("--hosts names no host", fix="such as --hosts node[1-4],10.0.0.9")
    return hosts


def _list_fix(item: str, error: WordError) -> str:
    """Return the fix for an item of --hosts that can't be read."""
    if "/" in item and "://" not in item and "[" not in item:
        return f"give a file of hosts with -H: -H {item}"
    if " " in item or "\t" in item:
        return "put commas between hosts; keys such as slots=4 are for a hostfile"
    return error.fix


def _read_line(source: SourceFile, number: int, line: str) -> list[Host]:
    """Return the hosts of a line; none for a comment. Raises a FileError at the word that can't be read."""
    try:
        line_words = split_words(line)
        if not line_words:
            return []
        first = line_words[0]
        _refuse_inventory(line, first)
        bare, pairs = split_pairs(line_words[1:])
        if bare:
            raise _bare_word(first.text, bare[0])
        fields = fields_of(pairs)
        for key, pair in fields.items():
            if source.found and key in REFUSED_KEYS:
                raise source.found_error(number, pair.key.column, f"{key}=", REFUSED_KEYS[key])
        return hosts_of(read_host_word(first.text, column=first.column), fields, source.base)
    except WordError as error:
        raise source.word_error(number, error) from None


def _refuse_inventory(line: str, first: Word) -> None:
    """Refuse a line that is an Ansible group or YAML."""
    if _SECTION.fullmatch(line.partition("#")[0].strip()):
        kind, name = "an Ansible group", "INI inventory's name ends in .ini"
    elif _YAML.fullmatch(line):
        kind, name = "YAML", "YAML inventory's name ends in .yml or .yaml"
    else:
        return
    raise first.error(
        f"{quote(line.strip())} is {kind}, and this file is read as a plain hostfile",
        f"an {name}" if kind[0] == "a" else f"a {name}",
    )


def _bare_word(first: str, word: Word) -> WordError:
    """Return the error for a word that is no `key=value`, with the fix for what it looks like."""
    text = word.text
    problem, fix = f"{quote(text)} is not a key=value", "such as slots=4"
    if text.isdecimal():
        problem, fix = f"{quote(text)} alone says nothing", f"for slots: {first}:{text}, or {first} slots={text}"
    elif first.endswith(",") or text.startswith(","):
        problem, fix = "one line names one host or one node set", "put each host on its own line"
    elif first.lower() in ("host", "hostname", "match", "include"):
        problem, fix = "this looks like an ssh configuration, not a hostfile", "give it with --ssh-config"
    elif _ADDRESS.fullmatch(first):
        problem = f"{quote(text)} follows an address, as in /etc/hosts"
        fix = f"{text} address={first}"
    elif ":" not in text:
        problem = f"{quote(text)} is a second name: a line names one host or one node set"
        fix = "put each host on its own line; a comment begins with #"
    return word.error(problem, fix)

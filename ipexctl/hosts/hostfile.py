"""Parses the hostfiles of mpirun, DeepSpeed, Slurm and PBS: a host or node set per line, with attributes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import UserError
from ipexctl.hosts.host import Host
from ipexctl.hosts.names import IPV4, MAX_PORT, WordError, check_user, did_you_mean, quoted
from ipexctl.hosts.nodeset import expand, split_specs
from ipexctl.hosts.source import REFUSED_KEYS, SourceFile
from ipexctl.hosts.words import HostWord, Pair, Word, read_address, read_host_word, split_pairs, split_words
from ipexctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


MAX_ENTRIES: Final = 1_000_000
_SINGLE_KEYS: Final = ("user", "port", "identity", "known_hosts", "ssh_config")


class RosterError(UserError):
    """Two lines that contradict each other; `line` is the number of the second."""

    def __init__(self, message: str, *, line: int, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.line = line


class Roster:
    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}
        self._first_lines: dict[str, int] = {}
        self._last_lines: dict[str, int] = {}
        """Of repeated hosts."""
        self._value_lines: dict[tuple[str, str], int] = {}
        """The line of a host's value that its first line does not have."""
        self._slots: dict[str, int] = {}
        self._has_slots = False
        self._entries = 0

    def add(self, host: Host, line: int) -> None:
        """Add the host of one line; a value that contradicts an earlier line is an error."""
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise RosterError(
                f"more than {MAX_ENTRIES:,} hosts in one file", line=line, fix="look for a digit too many"
            )
        self._has_slots = self._has_slots or host.slots is not None
        first = self._hosts.get(host.name)
        if first is None:
            self._hosts[host.name] = host
            self._first_lines[host.name] = line
            return
        self._last_lines[host.name] = line
        self._slots[host.name] = self._slots.get(host.name, first.slots or 1) + (host.slots or 1)
        if host != first:
            self._hosts[host.name] = self._merge(first, host, line)

    def hosts(self) -> tuple[Host, ...]:
        """All hosts in the order of their first lines."""
        if not self._slots:
            return tuple(self._hosts.values())
        return tuple(self._with_slots(host) for host in self._hosts.values())

    def _with_slots(self, host: Host) -> Host:
        slots = self._slots.get(host.name, host.slots)
        if slots is None and not self._has_slots:
            # Repeated hosts and no slots at all: the file is a $PBS_NODEFILE, where every line is one slot.
            slots = 1
        if slots == host.slots:
            return host
        if slots is not None and host.max_slots is not None and slots > host.max_slots:
            first, last = self._first_lines[host.name], self._last_lines[host.name]
            since = "" if first == last else f" from line {first} to here"
            raise RosterError(
                f"the slots of {quoted(host.name)} add up to {slots}{since}, more than max_slots={host.max_slots}",
                line=last,
            )
        return replace(host, slots=slots)

    def _merge(self, first: Host, second: Host, line: int) -> Host:
        changes: dict[str, Any] = {}
        for key in ("internal", *_SINGLE_KEYS):
            changes[key] = self._merge_value(key, getattr(first, key), getattr(second, key), second.name, line)
        first_value, second_value = (host.address if host.address != host.name else None for host in (first, second))
        changes["address"] = self._merge_value("address", first_value, second_value, second.name, line) or first.name
        limits = [host.max_slots for host in (first, second) if host.max_slots is not None]
        changes["max_slots"] = sum(limits) if limits else None
        return replace(first, **changes)

    def _merge_value(self, key: str, first_value: Any, second_value: Any, name: str, line: int) -> Any:
        if second_value is None or first_value == second_value:
            return first_value
        if first_value is not None:
            before = self._value_lines.get((name, key), self._first_lines[name])
            raise RosterError(
                f"{quoted(name)} has {key} {quoted(str(second_value))} here and {quoted(str(first_value))} "
                + ("before" if before == line else f"in line {before}"),
                line=line,
                fix="if these are two machines, give them two names and say address=",
            )
        self._value_lines[name, key] = line
        return second_value


MAX_SLOTS: Final = 99_999

KEYS: Final = ("slots", "max_slots", "internal", "address", *_SINGLE_KEYS)
# Names of the same attributes in files of other tools.
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


def read_count(text: str, what: str, column: int, *, most: int = MAX_SLOTS, example: str = "4") -> int:
    """Read a whole number from 1 to `most`; raises WordError with an example."""
    if _COUNT.fullmatch(text) is None:
        raise WordError(f"{what} must be a whole number, not {quoted(text)}", column=column, fix=f"such as {example}")
    number = int(text)
    if not 1 <= number <= most:
        fix = "to leave the host out, remove its entry" if number == 0 and most == MAX_SLOTS else ""
        raise WordError(f"{what} must be from 1 to {most}, not {quoted(text)}", column=column, fix=fix)
    return number


def read_port(text: str, column: int) -> int:
    return read_count(text, "port", column, most=MAX_PORT, example="2222")


def read_path(text: str, base: Path, column: int, *, none: str = "") -> Path:
    """A path, relative to the file that contains it; `~` is a home. ssh's value `none` becomes the path `none`."""
    if none and text == "none":
        return Path(none)
    if not text.startswith("~"):
        return base / text
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise WordError(
            f"{quoted(text)}: there is no account {quoted(text[1:].split('/')[0])} on the control machine",
            column=column,
            fix="write the path without ~",
        ) from None


def read_ssh_config(text: str, base: Path, column: int) -> Path:
    # `ssh -F none` means no configuration; an empty file has the same effect for every reader.
    return read_path(text, base, column, none="/dev/null")


def fields_of(pairs: Iterable[Pair]) -> dict[str, Pair]:
    """The pairs by key; an unknown, repeated or empty key is an error."""
    fields: dict[str, Pair] = {}
    for pair in pairs:
        key = pair.key.replace("-", "_")
        if key not in KEYS:
            raise _unknown(pair)
        if key in fields:
            raise WordError(f"{pair.key}= is given twice", column=pair.column)
        if not pair.value:
            raise WordError(f"{pair.key}= says nothing", column=pair.value_column, fix="give a value, or delete it")
        fields[key] = pair
    return fields


def hosts_of(word: HostWord, fields: Mapping[str, Pair], base: Path) -> list[Host]:
    """Every host of one line, in order."""
    user = _user(word, fields.get("user"))
    slots = _slots(word, fields.get("slots"))
    pair = fields.get("max_slots")
    max_slots = read_count(pair.value, "max_slots", pair.value_column) if pair else None
    if pair and slots and max_slots and slots > max_slots:
        raise WordError(f"slots={slots} is more than max_slots={max_slots}", column=pair.column)
    pair = fields.get("port")
    port = read_port(pair.value, pair.value_column) if pair else None
    identity, known_hosts, ssh_config = (_path(fields, key, base) for key in ("identity", "known_hosts", "ssh_config"))
    addresses = _addresses(fields.get("address"), word.names) or word.names
    internals = _addresses(fields.get("internal"), word.names) or (None,) * len(word.names)
    return [
        Host(name, address, user, port, slots, max_slots, internal, identity, known_hosts, ssh_config)
        for name, address, internal in zip(word.names, addresses, internals, strict=True)
    ]


def _user(word: HostWord, pair: Pair | None) -> str | None:
    if pair is None:
        return word.user
    try:
        check_user(pair.value)
    except WordError as error:
        raise error.moved(pair.value_column - 1) from None
    if word.user not in (None, pair.value):
        raise WordError(f"the user is both {quoted(word.user or '')} and {quoted(pair.value)}", column=pair.column)
    return pair.value


def _slots(word: HostWord, pair: Pair | None) -> int | None:
    colon_slots = None
    if word.number:
        colon_slots = read_count(word.number, "the slots behind ':'", word.number_column)
    if pair is None:
        return colon_slots
    slots = read_count(pair.value, "slots", pair.value_column)
    if colon_slots not in (None, slots):
        raise WordError(f"slots is both {colon_slots} and {slots}", column=pair.column)
    return slots


def _path(fields: Mapping[str, Pair], key: str, base: Path) -> Path | None:
    pair = fields.get(key)
    if pair is None:
        return None
    if key == "ssh_config":
        return read_ssh_config(pair.value, base, pair.value_column)
    return read_path(pair.value, base, pair.value_column)


def _addresses(pair: Pair | None, names: tuple[str, ...]) -> tuple[str, ...]:
    if pair is None:
        return ()
    try:
        if ":" in pair.value:
            addresses: tuple[str, ...] = (read_address(pair.value),)
        else:
            addresses = tuple(read_address(address) for address in expand(pair.value))
    except WordError as error:
        raise error.moved(pair.value_column - 1) from None
    if len(addresses) != len(names):
        raise WordError(
            f"{pair.key}= gives {len(addresses)} of the {len(names)} addresses this line needs"
            if len(addresses) < len(names)
            else f"{pair.key}= gives {len(addresses)} addresses for {len(names)} host{'s' * (len(names) > 1)}",
            column=pair.value_column,
            fix=f"a node set of as many, such as node[1-4] {pair.key}=10.0.0.[1-4]",
        )
    return addresses


def _unknown(pair: Pair) -> WordError:
    if not pair.key:
        return WordError("no key stands before this '='", column=pair.column, fix="such as slots=4")
    key = pair.key.lower().replace("-", "_")
    fix = did_you_mean(_OTHER_NAMES.get(key, key), KEYS, f"known are {', '.join(KEYS)}", behind="=")
    return WordError(f"unknown key {quoted(pair.key)}", column=pair.column, fix=fix)


_SECTION = re.compile(r"\[[A-Za-z_][^\[\]]*\]")
_YAML = re.compile(r"---\s*|\s*(?:all|ungrouped|hosts|children|vars):\s*(?:#.*)?", re.DOTALL)
_ADDRESS = re.compile(rf"{IPV4}|[0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*")


def read_hostfile(text: str, path: str | Path, *, base: Path | None = None, found: str = "") -> tuple[Host, ...]:
    """The hosts of a hostfile in order; `path` names it in errors, `base` is the directory of relative paths in it."""
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


def read_host_list(spec: str, option: str = "--hosts") -> tuple[Host, ...]:
    """The hosts of a `--hosts` value: comma-separated items like the first word of a hostfile line."""
    roster = Roster()
    for item in split_specs(spec):
        try:
            for host in hosts_of(read_host_word(item), {}, Path()):
                roster.add(host, 0)
        except WordError as error:
            raise UserError(f"{option} {quoted(item)}: {error.message}", fix=_list_fix(item, error)) from None
        except RosterError as error:
            raise UserError(f"{option}: {error.message}", fix="say it in a hostfile") from None
    if not (hosts := roster.hosts()):
        raise UserError(f"{option} names no host", fix=f"such as {option} node[1-4],10.0.0.9")
    return hosts


def _list_fix(item: str, error: WordError) -> str:
    if "/" in item and "://" not in item and "[" not in item:
        return f"a file of hosts is given with -H: -H {item}"
    if " " in item or "\t" in item:
        return "put commas between hosts; keys such as slots=4 can stand only in a hostfile"
    return error.fix


def _read_line(source: SourceFile, number: int, line: str) -> list[Host]:
    try:
        words = split_words(line)
        if not words:
            return []
        first = words[0]
        _refuse_inventory(line, first)
        bare, pairs = split_pairs(words[1:])
        if bare:
            raise _bare_word(first.text, bare[0])
        fields = fields_of(pairs)
        for key, pair in fields.items():
            if source.found and key in REFUSED_KEYS:
                raise source.found_error(number, pair.column, f"{key}=", REFUSED_KEYS[key])
        return hosts_of(read_host_word(first.text, column=first.column), fields, source.base)
    except WordError as error:
        raise source.word_error(number, error) from None


def _refuse_inventory(line: str, first: Word) -> None:
    if _SECTION.fullmatch(line.partition("#")[0].strip()):
        what, name = "an Ansible group", "INI inventory's name ends in .ini"
    elif _YAML.fullmatch(line):
        what, name = "YAML", "YAML inventory's name ends in .yml or .yaml"
    else:
        return
    raise WordError(
        f"{quoted(line.strip())} is {what}, and this file is read as a plain hostfile",
        column=first.column,
        fix=f"an {name}" if what[0] == "a" else f"a {name}",
    )


def _bare_word(first: str, word: Word) -> WordError:
    text, column = word
    what, fix = f"{quoted(text)} is no key=value", "such as slots=4"
    if text.isdecimal():
        what, fix = f"{quoted(text)} alone says nothing", f"for slots: {first}:{text}, or {first} slots={text}"
    elif first.endswith(",") or text.startswith(","):
        what, fix = "one line names one host or one node set", "put each host on a line of its own"
    elif first.lower() in ("host", "hostname", "match", "include"):
        what, fix = "this looks like an ssh configuration, not a hostfile", "give it with --ssh-config"
    elif _ADDRESS.fullmatch(first):
        what = f"{quoted(text)} stands behind an address, as in /etc/hosts"
        fix = f"{printable(text)} address={printable(first)}"
    elif ":" not in text:
        what = f"{quoted(text)} is a second name: a line names one host or one node set"
        fix = "put each host on a line of its own; a comment begins with #"
    return WordError(what, column=column, fix=fix)

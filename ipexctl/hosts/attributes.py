"""Attributes of a hostfile line, `slots=4 port=2222`, and the hosts of a complete line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.hosts.host import Host
from ipexctl.hosts.hostword import read_address
from ipexctl.hosts.names import WordError, check_user, quoted
from ipexctl.hosts.nodeset import expand

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ipexctl.hosts.hostword import HostWord
    from ipexctl.hosts.words import Pair

MAX_SLOTS: Final = 99_999
MAX_PORT: Final = 65_535

KEYS: Final = (
    "slots",
    "max_slots",
    "internal",
    "address",
    "user",
    "port",
    "identity",
    "known_hosts",
    "ssh_config",
)
# Names of the same attributes in files of other tools.
_OTHER_NAMES: Final = {
    "ifhn": "internal",
    "host": "address",
    "hostname": "address",
    "ip": "address",
    "key": "identity",
    "keyfile": "identity",
    "identityfile": "identity",
    "ssh_port": "port",
    "ssh_user": "user",
    "login": "user",
    "slot": "slots",
    "np": "slots",
    "ppn": "slots",
    "cpu": "slots",
    "cpus": "slots",
    "ncpus": "slots",
    "gpus": "slots",
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
        fix = (
            "delete the line, or put a # before it, to leave the host out" if number == 0 and most == MAX_SLOTS else ""
        )
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
        raise WordError(f"whose home {quoted(text)} begins with isn't known", column=column) from None


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
    from difflib import get_close_matches

    similar = get_close_matches(key, KEYS, n=1, cutoff=0.6)
    known = _OTHER_NAMES.get(key) or (similar[0] if similar else "")
    fix = f"did you mean {known}= ?" if known else f"known are {', '.join(KEYS)}"
    return WordError(f"unknown key {quoted(pair.key)}", column=pair.column, fix=fix)

"""Parses the hostfiles of mpirun, DeepSpeed, Slurm and PBS: one host or node set per line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.hosts import found_file
from ipexctl.hosts.attributes import fields_of, hosts_of
from ipexctl.hosts.host import Host
from ipexctl.hosts.hostword import read_host_word
from ipexctl.hosts.names import IPV4, MAX_NAME, WordError, quoted
from ipexctl.hosts.nodeset import expand, split_specs
from ipexctl.hosts.roster import Roster, RosterError
from ipexctl.hosts.source import Source
from ipexctl.hosts.words import split_pairs, split_words
from ipexctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipexctl.hosts.words import Word

# A fast path for nearly every line of a large file; lines that don't match are parsed in full, with errors.
_TAIL = r"(?::([1-9][0-9]{0,3})|[ \t]+slots=([1-9][0-9]{0,3}))?[ \t\r]*(?:#.*)?"
_PLAIN = re.compile(rf"[ \t]*([A-Za-z_][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}|{IPV4}){_TAIL}", re.DOTALL)
_PLAIN_SET = re.compile(
    rf"[ \t]*([A-Za-z_][\w.-]{{0,60}}\[[0-9,/-]{{1,60}}\][\w.-]{{0,60}}){_TAIL}", re.DOTALL | re.ASCII
)
_SECTION = re.compile(r"\[[A-Za-z_][^\[\]]*\]")
_YAML = re.compile(r"---\s*|\s*(?:all|ungrouped|hosts|children|vars):\s*(?:#.*)?", re.DOTALL)
_ADDRESS = re.compile(rf"{IPV4}|[0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*")


def read_hostfile(text: str, path: str | Path, *, base: Path | None = None, found: str = "") -> tuple[Host, ...]:
    """The hosts of a hostfile in order; `path` names it in errors, `base` is the directory of relative paths in it."""
    lines = text.removeprefix("\ufeff").split("\n")
    source = Source(str(path), Path(path).parent if base is None else base, lines, found)
    roster = Roster()
    try:
        for number, line in enumerate(source.lines, 1):
            hosts = _read_plain(line)
            for host in _read_line(source, number, line.rstrip("\r")) if hosts is None else hosts:
                roster.add(host, number)
        return roster.hosts()
    except RosterError as error:
        column = _first_column(source.lines[error.line - 1])
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


def _read_plain(line: str) -> Iterable[Host] | None:
    match = _PLAIN.fullmatch(line)
    if match is not None:
        name, colon_slots, slots = match.groups()
        count = colon_slots or slots
        return (Host(name, name, None, None, int(count) if count else None),)
    match = _PLAIN_SET.fullmatch(line)
    if match is None:
        return None
    nodeset, colon_slots, slots = match.groups()
    try:
        names = expand(nodeset)
    except WordError:
        return None
    count = int(colon_slots or slots or 0) or None
    return [Host(name, name, None, None, count) for name in names]


def _read_line(source: Source, number: int, line: str) -> list[Host]:
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
            if source.found and key in found_file.KEYS:
                raise source.found_error(number, pair.column, f"{key}=", found_file.KEYS[key])
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
    if text.isdecimal():
        return WordError(
            f"{quoted(text)} alone says nothing",
            column=column,
            fix=f"for slots: {first}:{text}, or {first} slots={text}",
        )
    if first.endswith(",") or text.startswith(","):
        return WordError(
            "one line names one host or one node set", column=column, fix="put each host on a line of its own"
        )
    if first.lower() in ("host", "hostname", "match", "include"):
        return WordError(
            "this looks like an ssh configuration, not a hostfile", column=column, fix="give it with --ssh-config"
        )
    if _ADDRESS.fullmatch(first):
        return WordError(
            f"{quoted(text)} stands behind an address, as in /etc/hosts",
            column=column,
            fix=f"{printable(text)} address={printable(first)}",
        )
    if ":" in text:
        return WordError(f"{quoted(text)} is no key=value", column=column, fix="such as slots=4")
    return WordError(
        f"{quoted(text)} is a second name: a line names one host or one node set",
        column=column,
        fix="put each host on a line of its own; a comment begins with #",
    )


def _first_column(line: str) -> int:
    return len(line) - len(line.lstrip()) + 1

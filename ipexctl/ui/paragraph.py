"""Fits texts to a terminal's width. Pure. No word is broken; a fix's command stays on one line even if too long,
because a terminal's own line break is not copied with it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Final

from ipexctl.text import printable

_CLAUSE: Final = re.compile(r""" *for \w+ in .*?; done;?|(?:(?<=[ =])'[^']*'|(?<=[ =])"[^"]*"|[^:;]|[:;](?! ))+[:;]?""")
"""Up to a colon or semicolon before a blank, outside of quoted words and loops."""
_COMMAND: Final = re.compile(
    r"(for \w+ in|find [/~.]|(ansible-inventory|apt-get|chmod|chown|conda|cp|cpupower|curl|df|dmesg|dnf|echo|grep|"
    r"hostnamectl|iconv|ip|ipexctl|ip6?tables|journalctl|loginctl|ls|mkdir|mount|mv|pip|ps|python3?|restorecon|rm|sed|"
    r"setsebool|ssh|ssh-key\w+|sudo|swapoff|sysctl|tar|timedatectl|touch|uv|yum|zypper) )"
)


def wrapped(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """`hanging`: indent after the first line. Words stay complete, to be copied."""
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def wrapped_lines(text: str, width: int, hanging: str) -> list[str]:
    return [
        piece
        for line in text.split("\n")
        for piece in textwrap.wrap(
            line, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
        )
        or [""]
    ]


def wrapped_names(text: str, width: int, indent: str, hanging: str) -> list[str]:
    """A list such as `node[1,3-9]`, broken after commas."""
    lines = [indent]
    for name in re.split(r"(?<=,)", printable(text)):
        if len(lines[-1]) + len(name) <= width or lines[-1] in (indent, hanging):
            lines[-1] += name
        else:
            lines.append(hanging + name)
    return lines


def clauses(fix: str) -> Iterator[tuple[str, bool]]:
    follows_colon = False
    for match in _CLAUSE.finditer(fix):
        clause = match[0].strip()
        yield clause, _COMMAND.match(clause) is not None and (follows_colon or ", " not in clause)
        follows_colon = clause.endswith(":")


def wrapped_fix(fix: str, width: int, indent: str, hanging: str) -> list[str]:
    """A command that does not fit the rest of a line gets its own and stays on it."""
    lines: list[str] = []
    prose, margin = "", indent
    for clause, is_command in clauses(printable(fix).strip()):
        text = f"{prose} {clause}".strip()
        if not is_command or len(margin) + len(text) <= width:
            *full, last = wrapped(text, width, margin, hanging)
            lines += full
            prose, margin = last[len(hanging if full else margin) :], hanging if full else margin
        else:
            lines += [f"{margin}{prose}", f"{hanging}{clause}"] if prose else [f"{margin}{clause}"]
            prose, margin = "", hanging
    return [*lines, f"{margin}{prose}"] if prose else lines

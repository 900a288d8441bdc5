"""`--limit`: selects hosts by name, node set, glob or group, or by a file of these.

Hosts keep the order of the file. Commas, or colons as in Ansible, separate parts; `!` excludes, `&` intersects. A part
without a match is an error: a misspelt exclusion must not run on that host.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Sequence
from fnmatch import translate
from typing import Final

from ipexctl.errors import UserError
from ipexctl.file_reader import HOSTS, decoded, read_regular, read_typed
from ipexctl.found_files import check_found
from ipexctl.hosts.host import Host
from ipexctl.hosts.names import WordError, quoted
from ipexctl.hosts.nodeset import expand, fold, split_specs
from ipexctl.text import expanded

_ALL: Final = ("all", "*")
_SHOWN: Final = 3
_COLON: Final = re.compile(r":(?![^\[\]]*\])")


def limit_hosts(hosts: Sequence[Host], spec: str, *, found: bool = False) -> tuple[Host, ...]:
    """With only `!name` and `&name` parts, start from all hosts. `found`: the limit comes from a project's file, so the
    user did not name a file in it."""
    index = _Index(hosts)
    selected: set[str] = set()
    kept = set(index.names)
    has_names = has_parts = False
    for part in [name for item in limit_parts(spec, index.known) for name in _from_file(item, found=found)]:
        sign = part[0] if part[0] in "!&" else ""
        name = part.removeprefix(sign).strip()
        if not name:
            raise UserError(f"--limit: no host or group after '{sign}'", fix=f"such as --limit '{sign}node3'")
        matched = index.find(name)
        kept = kept - matched if sign == "!" else kept & matched if sign == "&" else kept
        selected |= matched if not sign else set()
        has_names, has_parts = has_names or not sign, True
    if not has_parts:
        raise UserError("--limit names no host", fix="such as --limit node[1-4] or --limit '!node3'")
    remaining = tuple(host for host in hosts if host.name in kept and (not has_names or host.name in selected))
    if not remaining:
        raise UserError(f"--limit {quoted(spec)} leaves no host", fix=f"there are: {_short(fold(index.names))}")
    return remaining


def limit_parts(spec: str, known: Container[str]) -> list[str]:
    """Split at commas and colons, except in brackets, IPv6 addresses and file paths."""
    matched: list[str] = []
    for word in split_specs(spec):
        is_single = word[0] == "@" or word.lstrip("!&") in known or "::" in word
        matched += [word] if is_single else _COLON.split(word)
    return [piece.strip() for piece in matched if piece.strip()]


def _from_file(part: str, *, found: bool) -> list[str]:
    if not part.startswith("@"):
        return [part]
    path = expanded(part[1:])
    if found:
        check_found(path, naming=f"-l {shlex.quote(part)}")
    try:
        lines = decoded((read_regular if found else read_typed)(path, HOSTS)).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not a text file"
        raise UserError(f"--limit {quoted(part)}: {reason}", fix="@ is followed by a file of host names") from None
    return [name for line in lines if (name := line.partition("#")[0].strip())]


class _Index:
    def __init__(self, hosts: Sequence[Host]) -> None:
        self.names = [host.name for host in hosts]
        self._hosts = {word for host in hosts for word in (host.name, host.address)}
        self.known: dict[str, set[str]] = {}
        for host in hosts:
            for word in {host.name, host.address, *host.groups}:
                self.known.setdefault(word, set()).add(host.name)

    def find(self, part: str) -> set[str]:
        if part in self.known:
            return self.known[part]
        if part in _ALL:
            return set(self.names)
        try:
            words = expand(part)
        except WordError as error:
            raise UserError(f"--limit {quoted(part)}: {error.message}", fix=error.fix) from None
        matched: set[str] = set()
        unknown: list[str] = []
        for word in words:
            match = self._glob(word) if "*" in word or "?" in word else self.known.get(word, set())
            matched |= match
            if not match:
                unknown.append(word)
        if unknown:
            raise UserError(
                f"--limit: no host or group is called {quoted(fold(unknown))}", fix=self._suggest(unknown[0])
            )
        return matched

    def _glob(self, pattern: str) -> set[str]:
        matches = re.compile(translate(pattern)).match
        return set().union(*(names for word, names in self.known.items() if matches(word)))

    def _suggest(self, word: str) -> str:
        from difflib import get_close_matches

        similar = get_close_matches(word, self.known, n=_SHOWN)
        if similar:
            return f"did you mean {' or '.join(similar)}?"
        groups = sorted(set(self.known) - self._hosts)
        return f"there are: {_short(fold(self.names))}" + (f"; groups: {_short(', '.join(groups))}" if groups else "")


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"

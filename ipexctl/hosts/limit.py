"""`--limit`: which of the hosts a command is for, by name, node set, glob or group, or by a file of these.

Parts stand between commas or, as in Ansible, colons; `!` leaves out, `&` keeps what is in both.

Where the hosts come from lives in `select`.
"""

from __future__ import annotations

import re
from fnmatch import translate
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.hosts.names import WordError, quoted
from ipexctl.hosts.nodeset import expand, fold, split_specs

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from ipexctl.hosts.host import Host

_ALL: Final = ("all", "*")
_SHOWN: Final = 3
_COLON: Final = re.compile(r":(?![^\[\]]*\])")


def limit_hosts(hosts: Sequence[Host], spec: str) -> tuple[Host, ...]:
    """The hosts a limit leaves, in the file's order. Only `!name` and `&name` parts begin from all of them."""
    index = _Index(hosts)
    wanted: set[str] = set()
    kept = set(index.names)
    named = said = False
    for part in [each for given in limit_parts(spec, index.known) for each in _from_file(given)]:
        sign = part[0] if part[0] in "!&" else ""
        bare = part.removeprefix(sign).strip()
        if not bare:
            raise UserError(f"--limit: nothing stands behind '{sign}'", fix=f"such as --limit '{sign}node3'")
        found = index.find(bare)
        kept = kept - found if sign == "!" else kept & found if sign == "&" else kept
        wanted |= found if not sign else set()
        named, said = named or not sign, True
    if not said:
        raise UserError("--limit names no host", fix="such as --limit node[1-4] or --limit '!node3'")
    left = tuple(host for host in hosts if host.name in kept and (not named or host.name in wanted))
    if not left:
        raise UserError(f"--limit {quoted(spec)} leaves no host", fix=f"there are: {_short(fold(index.names))}")
    return left


def limit_parts(spec: str, known: Container[str]) -> list[str]:
    """Commas separate, and colons but those in brackets, of an IPv6 address and of a file's path."""
    found: list[str] = []
    for word in split_specs(spec):
        whole = word[0] == "@" or word.lstrip("!&") in known or "::" in word
        found += [word] if whole else _COLON.split(word)
    return [piece.strip() for piece in found if piece.strip()]


def _from_file(part: str) -> list[str]:
    """`@FILE`: the names in it, a line each, such as a playbook leaves of the hosts it failed on."""
    if not part.startswith("@"):
        return [part]
    path = Path(part[1:]).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        said = (error.strerror or str(error)) if isinstance(error, OSError) else "it is no text"
        raise UserError(f"--limit {quoted(part)}: {said}", fix="@ is followed by a file of host names") from None
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
        """The names one part means; a name or a glob that means none is an error."""
        if part in self.known:
            return self.known[part]
        if part in _ALL:
            return set(self.names)
        try:
            words = expand(part)
        except WordError as error:
            raise UserError(f"--limit {quoted(part)}: {error.message}", fix=error.fix) from None
        found: set[str] = set()
        unknown: list[str] = []
        for word in words:
            match = self._glob(word) if "*" in word or "?" in word else self.known.get(word, set())
            found |= match
            if not match:
                unknown.append(word)
        if unknown:
            raise UserError(f"--limit: no host or group is called {quoted(fold(unknown))}", fix=self._near(unknown[0]))
        return found

    def _glob(self, pattern: str) -> set[str]:
        matches = re.compile(translate(pattern)).match
        return set().union(*(names for word, names in self.known.items() if matches(word)))

    def _near(self, word: str) -> str:
        from difflib import get_close_matches

        near = get_close_matches(word, self.known, n=_SHOWN)
        if near:
            return f"did you mean {' or '.join(near)}?"
        groups = sorted(set(self.known) - self._hosts)
        return f"there are: {_short(fold(self.names))}" + (f"; groups: {_short(', '.join(groups))}" if groups else "")


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"

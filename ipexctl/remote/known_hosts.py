"""What the user's known_hosts files say about a host key. Pure reading and judging; the files are handed in."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ipexctl.remote.patterns import list_matches

if TYPE_CHECKING:
    from collections.abc import Iterable

Verdict = Literal["known", "unknown", "changed", "revoked"]


class HashedName:
    """`|1|salt|digest`: a name that can be recognised but not read. The salt's half of the work is done once."""

    __slots__ = ("_digest", "_inner", "_outer")  # of the HMAC: what it has hashed before the name comes

    def __init__(self, salt: bytes, digest: bytes) -> None:
        block = (hashlib.sha1(salt, usedforsecurity=False).digest() if len(salt) > 64 else salt).ljust(64, b"\0")
        self._inner = hashlib.sha1(block.translate(_INNER), usedforsecurity=False).copy
        self._outer = hashlib.sha1(block.translate(_OUTER), usedforsecurity=False).copy
        self._digest = digest

    def stands_for(self, name: bytes) -> bool:
        inner = self._inner()
        inner.update(name)
        outer = self._outer()
        outer.update(inner.digest())
        return outer.digest() == self._digest


_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a known_hosts file."""

    file: str
    line: int
    names: str
    key_type: str
    key: bytes
    marker: str = ""
    hashed: HashedName | None = field(default=None, compare=False)

    @property
    def is_pattern(self) -> bool:
        """Whether it names hosts by a pattern, so that the line is about others too."""
        return any(character in self.names for character in "*?!")


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """A verdict on a key that a host has shown, and the entry that decided it."""

    verdict: Verdict
    entry: Entry | None = None


def fingerprint(key: bytes) -> str:
    """The form in which `ssh-keygen -l` shows a key."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def parse(text: str, file: str) -> tuple[Entry, ...]:
    """The entries of one file. A line that isn't one is passed over, as ssh does."""
    entries = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#"):
            continue
        try:
            key = base64.b64decode(words[2], validate=True)
            hashed = _hashed(words[0]) if words[0].startswith("|1|") else None
        except ValueError:
            continue
        entries.append(Entry(file, number, words[0], words[1], key, marker, hashed))
    return tuple(entries)


def entries_for(entries: Iterable[Entry], name: str) -> tuple[Entry, ...]:
    """The entries that speak of this host: worked out once a host, since hashed names cost an HMAC each."""
    encoded = name.encode(errors="surrogatepass")
    return tuple(
        entry
        for entry in entries
        if (entry.hashed.stands_for(encoded) if entry.hashed else list_matches(entry.names, name))
    )


def check_key(entries: Iterable[Entry], key_type: str, key: bytes) -> KeyCheck:
    """Whether the key a host shows is the one its entries promise.

    An entry with any other key means that the key has changed, also where its type is another one: the known types
    are asked for first, so a host that still has the known key shows it.
    """
    known: Entry | None = None
    other: Entry | None = None
    for entry in entries:
        if entry.marker == "@revoked" and entry.key == key:
            return KeyCheck("revoked", entry)
        if entry.marker:
            continue
        if entry.key == key:
            known = known or entry
        elif other is None or entry.key_type == key_type != other.key_type:
            other = entry
    if known:
        return KeyCheck("known", known)
    return KeyCheck("changed", other) if other else KeyCheck("unknown")


def known_types(entries: Iterable[Entry]) -> tuple[str, ...]:
    """The key types we could check, to be asked for first: a host shows only one of the keys it has."""
    return tuple(dict.fromkeys(entry.key_type for entry in entries if not entry.marker))


def hash_name(name: str, salt: bytes | None = None) -> str:
    """A name as `HashKnownHosts yes` has ssh write it."""
    salt = os.urandom(20) if salt is None else salt
    digest = hmac.digest(salt, name.encode(errors="surrogatepass"), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _hashed(names: str) -> HashedName:
    _, _, salt, digest = names.split("|")
    return HashedName(base64.b64decode(salt), base64.b64decode(digest))

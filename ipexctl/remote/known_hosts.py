"""Parses known_hosts and checks a host key against it. Pure: takes the files' text.

A host with another known key counts as changed, even of another type: known types are requested first, so a host that
still has the known key presents it. A hashed name costs an HMAC, so plain names are compared first.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from ipexctl.remote.patterns import list_matches

if TYPE_CHECKING:
    from collections.abc import Iterable

KeyVerdict = Literal["known", "unknown", "changed", "revoked"]


class HashedName(NamedTuple):
    """`|1|salt|digest`: comparable but not readable. The salt is hashed only once."""

    salted: hmac.HMAC
    digest: bytes

    def matches(self, name: bytes) -> bool:
        salted = self.salted.copy()
        salted.update(name)
        return salted.digest() == self.digest


_NOT_PLAIN = re.compile(r"[*?!|]")


class KnownHostsEntry(NamedTuple):
    file: str
    line: int
    names: str
    key_type: str
    key: bytes
    marker: str = ""
    hashed: HashedName | None = None
    plain: tuple[str, ...] = ()
    """Names in lower case if none is a pattern or hashed."""

    @property
    def is_pattern(self) -> bool:
        """True if the line is about other hosts too."""
        return any(character in self.names for character in "*?!")


class KeyCheck(NamedTuple):
    verdict: KeyVerdict
    entry: KnownHostsEntry | None = None


def fingerprint(key: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def parse(text: str, file: str) -> tuple[KnownHostsEntry, ...]:
    entries = []
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        try:
            key = base64.b64decode(fields[2], validate=True)
            hashed = _hashed(fields[0]) if fields[0].startswith("|1|") else None
        except ValueError:
            continue
        plain = () if _NOT_PLAIN.search(fields[0]) else tuple(fields[0].lower().split(","))
        entries.append(KnownHostsEntry(file, number, fields[0], fields[1], key, marker, hashed, plain))
    return tuple(entries)


def entries_for(entries: Iterable[KnownHostsEntry], name: str) -> tuple[KnownHostsEntry, ...]:
    """Entries of this host. Call it once per host: each hashed name costs an HMAC."""
    encoded, lower = name.encode(errors="surrogatepass"), name.lower()
    # Most lines have plain names, and every host is compared with every line.
    return tuple(
        entry for entry in entries if (lower in entry.plain if entry.plain else _matches(entry, name, encoded))
    )


def _matches(entry: KnownHostsEntry, name: str, encoded: bytes) -> bool:
    return entry.hashed.matches(encoded) if entry.hashed else list_matches(entry.names, name)


def check_key(entries: Iterable[KnownHostsEntry], key_type: str, key: bytes) -> KeyCheck:
    """Any other known key means a change, even of another type: known types are requested first."""
    known: KnownHostsEntry | None = None
    other: KnownHostsEntry | None = None
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


def known_types(entries: Iterable[KnownHostsEntry]) -> tuple[str, ...]:
    """Key types to request first: a host presents only one of its keys."""
    return tuple(dict.fromkeys(entry.key_type for entry in entries if not entry.marker))


def hash_name(name: str, salt: bytes | None = None) -> str:
    salt = os.urandom(20) if salt is None else salt
    digest = hmac.digest(salt, name.encode(errors="surrogatepass"), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _hashed(names: str) -> HashedName:
    _, _, salt, digest = names.split("|")
    return HashedName(hmac.new(base64.b64decode(salt), digestmod="sha1"), base64.b64decode(digest))

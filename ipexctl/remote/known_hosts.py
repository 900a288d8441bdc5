"""What the user's known_hosts files say about a host key. Pure reading and judging; the files are handed in."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ipexctl.remote.patterns import list_matches

if TYPE_CHECKING:
    from collections.abc import Iterable

Verdict = Literal["known", "unknown", "changed", "revoked"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a known_hosts file."""

    file: str
    line: int
    names: str
    key_type: str
    key: bytes
    marker: str = ""

    def covers(self, name: str) -> bool:
        if self.names.startswith("|1|"):
            return _hash_matches(self.names, name)
        return list_matches(self.names, name)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict on a key that a host has shown, and the entry that decided it."""

    verdict: Verdict
    entry: Entry | None = None


def fingerprint(key: bytes) -> str:
    """The form in which `ssh-keygen -l` shows a key."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def parse(text: str, file: str) -> tuple[Entry, ...]:
    """The entries of one file. A line that isn't one is passed over, as ssh does."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#"):
            continue
        try:
            key = base64.b64decode(words[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        entries.append(Entry(file, number, words[0], words[1], key, marker))
    return tuple(entries)


def entries_for(entries: Iterable[Entry], name: str) -> tuple[Entry, ...]:
    """The entries that speak of this host: worked out once a host, since hashed names cost an HMAC each."""
    return tuple(entry for entry in entries if entry.covers(name))


def judge(entries: Iterable[Entry], key_type: str, key: bytes) -> Judgement:
    """Whether the key a host shows is the one its entries promise."""
    same_type: Entry | None = None
    known: Entry | None = None
    for entry in entries:
        if entry.marker == "@revoked" and entry.key == key:
            return Judgement("revoked", entry)
        if entry.marker:
            continue
        if entry.key == key:
            known = known or entry
        elif entry.key_type == key_type:
            same_type = same_type or entry
    if known:
        return Judgement("known", known)
    return Judgement("changed", same_type) if same_type else Judgement("unknown")


def known_types(entries: Iterable[Entry]) -> tuple[str, ...]:
    """The key types we could check, to be asked for first: a host shows only one of the keys it has."""
    return tuple(dict.fromkeys(entry.key_type for entry in entries if not entry.marker))


def _hash_matches(names: str, name: str) -> bool:
    try:
        _, _, salt, digest = names.split("|")
        made = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(made, base64.b64decode(digest))
    except (ValueError, binascii.Error):
        return False

"""What is in the project's files, by hash; a file that looks as it did when it was read is not read again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.node.common.files import write_json_atomically
from ipexctl.sync.manifest import Entry, Manifest, encode

if TYPE_CHECKING:
    from pathlib import Path

    from ipexctl.sync.scan import Found, ScanResult

_SCHEMA: Final = 1
RACY_NS: Final = 2_000_000_000
"""A file that was written to so shortly before it was read may be written to again and look the same."""
_TRIES: Final = 3
_CHUNK: Final = 1 << 20


class Hashes:
    """The hashes of one project's files, kept from call to call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[str, list[object]] = {}
        self._next: dict[str, list[object]] = {}
        self.read = 0
        """How many files had to be read."""
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            data = json.loads(path.read_bytes())
            if data.get("schema") == _SCHEMA and isinstance(data["files"], dict):
                self._kept = data["files"]

    def of(self, root: bytes, found: Found) -> Found | str:
        """Its hash; where it has changed since it was looked at, how it looks now."""
        looks = [found.size, *found.looks]
        known = self._kept.get(found.path)
        if isinstance(known, list) and known[:-1] == looks and isinstance(known[-1], str):
            self._next[found.path] = known
            return known[-1]
        now = time.time_ns()
        digest = hashlib.sha256()
        with open(os.path.join(root, encode(found.path)), "rb", buffering=0) as file:
            size = 0
            while piece := file.read(_CHUNK):
                digest.update(piece)
                size += len(piece)
            after = os.fstat(file.fileno())
        self.read += 1
        seen = (after.st_mtime_ns, after.st_ctime_ns, after.st_ino, after.st_dev)
        if seen != found.looks or size != found.size:
            return replace(found, size=after.st_size, looks=seen)
        if max(found.looks[:2]) < now - RACY_NS:
            self._next[found.path] = [*looks, digest.hexdigest()]
        return digest.hexdigest()

    def save(self) -> None:
        """For the next call; one that can't be kept only costs time."""
        if self._next == self._kept:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_json_atomically(self._path, {"schema": _SCHEMA, "files": self._next}, durable=False)


def manifest_of(seen: ScanResult, hashes: Hashes) -> Manifest:
    """Raises a UserError where a file can't be read, or doesn't hold still."""
    root = os.fsencode(seen.root)
    entries = []
    for found in seen.found:
        content, size = found.target, found.size
        if found.kind == "f":
            content, size = _content(root, found, hashes)
            if not content:
                continue
        entries.append(Entry(found.path, found.kind, found.mode, size, content))
    hashes.save()
    return Manifest.of(entries)


def _content(root: bytes, found: Found, hashes: Hashes) -> tuple[str, int]:
    """A file's hash and size; no hash where it is gone."""
    where = os.fsdecode(os.path.join(root, encode(found.path)))
    for _ in range(_TRIES):
        try:
            said = hashes.of(root, found)
        except FileNotFoundError:
            return "", 0
        except OSError as error:
            raise UserError(
                f"{where}: {error.strerror or error}",
                fix="make it readable, or leave it out: --exclude or .ipexctlignore",
            ) from None
        if isinstance(said, str):
            return said, found.size
        found = said
    raise UserError(f"{where} is being written to", fix="wait until it is done, or leave it out: --exclude")

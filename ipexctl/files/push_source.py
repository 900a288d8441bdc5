"""SRC of `ipexctl push`, read and hashed, and PATH, where it goes.

All of SRC is sent, without ignore files. A link is sent as a link, and must lead to something in SRC; anything but
files, directories and links is refused. PATH is the copy itself; with a trailing `/`, the directory that gets SRC.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError, unreadable
from ipexctl.files.sent_manifest import Manifest, leads_out
from ipexctl.hosts.host import quote
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.files import decode_name, encode_name, sha256_of_open
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.guarded_directory import open_file
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.node.files.push import PREFIX
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import Cancelled

_READERS: Final = 4
_HOSTS: Final = re.compile(r"((?:\[[^\]]*\]|[^:/\[\]])+):(.*)", re.DOTALL)


@dataclass(frozen=True)
class PushSource:
    root: Path
    manifest: Manifest
    """Below `root`; a single file has an entry without path."""
    file_name: str = ""
    """Name of a single file in `root`."""

    @property
    def is_file(self) -> bool:
        return bool(self.file_name)

    def entry_of(self, sha256: str) -> ManifestEntry:
        entry = self.manifest.files[sha256]
        return entry._replace(path=self.file_name) if self.is_file else entry

    def hashed(self, on_bytes: Callable[[int, int], None], cancel: Cancel) -> PushSource:
        """Read all files."""
        base, total, done, lock = os.fsencode(self.root), self.manifest.size, 0, threading.Lock()

        def on_read(size: int) -> None:
            nonlocal done
            if cancel.thrown:
                raise Cancelled("stopped")
            with lock:
                done += size
                on_bytes(done, total)

        def read(entry: ManifestEntry) -> ManifestEntry:
            path = os.path.join(base, encode_name(entry.path or self.file_name))
            return entry._replace(content=_hash_of(path, entry.size, on_read)) if entry.kind == "f" else entry

        with ThreadPoolExecutor(_READERS) as pool:
            return replace(self, manifest=Manifest.of(pool.map(read, self.manifest.entries)))


def parse_target(text: str, source: Path) -> tuple[str | None, str]:
    """HOSTS and PATH of `[HOSTS:]PATH`. Raises a UserError for an invalid PATH."""
    match = _HOSTS.fullmatch(text)
    hosts, path = (match[1], match[2]) if match else (None, text)
    example = Fix("`ipexctl push ./corpus data/corpus`")
    before, colon, _ = text.partition(":")
    if not match and colon and "/" not in before and before.count("[") != before.count("]"):
        raise UserError(f"{quote(text)}: a bracket of HOSTS is missing", fix="'node[1-4]:data/corpus'")
    if not path.strip("/") or os.path.normpath(path) in (".", "~", ".."):
        what = "/" if path.startswith("/") else "the home directory" if path else "no path"
        raise UserError(f"{quote(text)} names {what}", fix="name a separate directory: " + example)
    if ".." in path.split("/") or not path.isprintable() or (path.startswith("~") and not path.startswith("~/")):
        raise UserError(
            f"{quote(text)} can't be PATH", fix="a path without `..`, absolute or below the home: " + example
        )
    if path.endswith("/"):
        path = f"{path.rstrip('/')}/{source.absolute().name}"
    return hosts, path


def list_source(source: Path) -> PushSource:
    """SRC without hashes: names and sizes."""
    try:
        status = source.stat()
    except OSError as error:
        raise unreadable(error, str(source), "name a file or a directory that is there") from None
    source = source.resolve()
    if stat.S_ISREG(status.st_mode):
        found = [ManifestEntry("", "f", stat.S_IMODE(status.st_mode), status.st_size, "")]
        root, file_name = source.parent, source.name
    elif stat.S_ISDIR(status.st_mode):
        mode = stat.S_IMODE(status.st_mode) & 0o777
        found = [ManifestEntry("", "d", mode, 0, ""), *_walk(os.fsencode(source))]
        root, file_name = source, ""
    else:
        raise UserError(f"{source} is neither a file nor a directory")
    _check_symlinks(source, found)
    return PushSource(root, Manifest.of(found), file_name)


def _walk(source: bytes) -> Iterator[ManifestEntry]:
    waiting = [""]
    while waiting:
        above = waiting.pop()
        for entry in _list(os.path.join(source, encode_name(above)) if above else source, above):
            yield entry
            if entry.kind == "d":
                waiting.append(f"{entry.path}/")


def _list(directory: bytes, above: str) -> Iterator[ManifestEntry]:
    try:
        with os.scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            name = decode_name(entry.name)
            path = above + name
            if name.startswith(PREFIX):  # of an interrupted push to here
                continue
            status = entry.stat(follow_symlinks=False)
            mode = stat.S_IMODE(status.st_mode) & 0o777
            if stat.S_ISDIR(status.st_mode):
                yield ManifestEntry(path, "d", mode, 0, "")
            elif stat.S_ISREG(status.st_mode):
                yield ManifestEntry(path, "f", mode, status.st_size, "")
            elif stat.S_ISLNK(status.st_mode):
                yield ManifestEntry(path, "l", 0o777, 0, decode_name(os.readlink(entry.path)))
            else:
                raise UserError(f"{os.fsdecode(entry.path)} is a socket, a pipe or a device", fix="move it away")
    except OSError as error:
        raise _unreadable(error, directory) from None


def _check_symlinks(source: Path, found: list[ManifestEntry]) -> None:
    """A link is sent as it is, so its target has to be in SRC too."""
    outward = [
        entry.path
        for entry in found
        if entry.kind == "l"
        and (leads_out(entry.path, entry.content) or not (source / entry.path).resolve().is_relative_to(source))
    ]
    if outward:
        more = f" and {len(outward) - 1} more" if len(outward) > 1 else ""
        raise UserError(
            f"{source / outward[0]}{more}: a link that leads out of {source}",
            fix="replace it by what it leads to, or push that apart",
        )


def _hash_of(path: bytes, size: int, on_read: Callable[[int], None]) -> str:
    """The path had no link when listed; other writers may have made one since."""
    try:
        with open(open_file(os.fsdecode(path)), "rb", buffering=0) as file:
            digest = sha256_of_open(file, on_read) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else ""
            if not digest or file.tell() != size:
                raise UserError(
                    f"{os.fsdecode(path)} changed while it was read", fix="run it again when it is complete"
                )
            return digest
    except AgentError as error:
        raise UserError(error.reason, fix="replace it by what it leads to, or push that apart") from None
    except OSError as error:
        raise _unreadable(error, path) from None


def _unreadable(error: OSError, path: bytes) -> UserError:
    return unreadable(error, os.fsdecode(error.filename or path), "make it readable")

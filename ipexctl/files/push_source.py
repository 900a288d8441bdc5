"""Read and hash SRC of `ipexctl push`, and read PATH, where it goes.

All of SRC is sent, whatever ignore files say: data is often ignored by git. A symlink is sent as a symlink, and must
lead to something in SRC; anything but files, directories and symlinks is refused. PATH is the copy itself; with a
trailing `/`, it is the directory that gets SRC.
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
"""Threads that hash files."""
_HOSTS_AND_PATH: Final = re.compile(r"((?:\[[^\]]*\]|[^:/\[\]])+):(.*)", re.DOTALL)
"""`HOSTS:PATH`; a bracket of HOSTS, as in `node[1-4]` and `[fe80::2]`, may contain colons."""


@dataclass(frozen=True)
class PushSource:
    """SRC: a directory, or a single file in one."""

    root: Path
    """The directory."""
    manifest: Manifest
    """What is below `root`; a single file has an entry with an empty path."""
    file_name: str = ""
    """Name of a single file in `root`; empty for a directory."""

    @property
    def is_file(self) -> bool:
        """True for one file, False for a directory."""
        return bool(self.file_name)

    def entry_of(self, sha256: str) -> ManifestEntry:
        """Return a file with this content, with its path below `root`."""
        entry = self.manifest.files[sha256]
        return entry._replace(path=self.file_name) if self.is_file else entry

    def hashed(self, on_bytes: Callable[[int, int], None], cancel: Cancel) -> PushSource:
        """Return the source with the hash of each file. Raises a UserError for a file that changed or can't be read.

        `on_bytes` is called with the bytes read so far and the bytes of all files.
        """
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
    """Return HOSTS (None without them) and PATH of `[HOSTS:]PATH`. A PATH that ends with `/` gets the name of `source`.

    Raises a UserError for a PATH that is no path below a directory: `/`, the home directory, one with `..`.
    """
    match = _HOSTS_AND_PATH.fullmatch(text)
    hosts, path = (match[1], match[2]) if match else (None, text)
    example = Fix("`ipexctl push ./corpus data/corpus`")
    before, colon, _ = text.partition(":")
    lacks_bracket = "/" not in before and before.count("[") != before.count("]")
    if not match and colon and lacks_bracket:
        raise UserError(f"{quote(text)}: a bracket of HOSTS is missing", fix="'node[1-4]:data/corpus'")
    if not path.strip("/") or os.path.normpath(path) in (".", "~", ".."):
        problem = "/" if path.startswith("/") else "the home directory" if path else "no path"
        raise UserError(f"{quote(text)} names {problem}", fix="name a separate directory: " + example)
    is_of_other_home = path.startswith("~") and not path.startswith("~/")
    if ".." in path.split("/") or not path.isprintable() or is_of_other_home:
        raise UserError(
            f"{quote(text)} can't be PATH", fix="a path without `..`, absolute or below the home: " + example
        )
    if path.endswith("/"):
        path = f"{path.rstrip('/')}/{source.absolute().name}"
    return hosts, path


def list_source(source: Path) -> PushSource:
    """Return SRC with names and sizes, and without hashes, which `PushSource.hashed` adds.

    Raises a UserError if SRC can't be read, or contains something that can't be sent.
    """
    try:
        status = source.stat()
    except OSError as error:
        raise unreadable(error, str(source), "name a file or a directory that is there") from None
    source = source.resolve()
    if stat.S_ISREG(status.st_mode):
        entries = [ManifestEntry("", "f", stat.S_IMODE(status.st_mode), status.st_size, "")]
        root, file_name = source.parent, source.name
    elif stat.S_ISDIR(status.st_mode):
        mode = stat.S_IMODE(status.st_mode) & 0o777
        entries = [ManifestEntry("", "d", mode, 0, ""), *_walk(os.fsencode(source))]
        root, file_name = source, ""
    else:
        raise UserError(f"{source} is neither a file nor a directory")
    _check_symlinks(source, entries)
    return PushSource(root, Manifest.of(entries), file_name)


def _walk(source: bytes) -> Iterator[ManifestEntry]:
    """Yield all that is below a directory, with paths relative to it."""
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        for entry in _list(os.path.join(source, encode_name(prefix)) if prefix else source, prefix):
            yield entry
            if entry.kind == "d":
                waiting.append(f"{entry.path}/")


def _list(directory: bytes, prefix: str) -> Iterator[ManifestEntry]:
    """Yield the entries of one directory. `prefix`: its path below SRC, with a `/` at the end, or empty for SRC."""
    try:
        with os.scandir(directory) as unsorted:
            entries = sorted(unsorted, key=lambda entry: entry.name)
        for entry in entries:
            name = decode_name(entry.name)
            path = prefix + name
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


def _check_symlinks(source: Path, entries: list[ManifestEntry]) -> None:
    """Refuse symlinks that lead out of SRC: they are sent as they are, so their targets have to be in SRC, too."""

    def leads_out_of_source(link: ManifestEntry) -> bool:
        return leads_out(link.path, link.content) or not (source / link.path).resolve().is_relative_to(source)

    outward = [entry.path for entry in entries if entry.kind == "l" and leads_out_of_source(entry)]
    if outward:
        more = f" and {len(outward) - 1} more" if len(outward) > 1 else ""
        raise UserError(
            f"{source / outward[0]}{more}: a link that leads out of {source}",
            fix="replace it by what it leads to, or push that apart",
        )


def _hash_of(path: bytes, size: int, on_read: Callable[[int], None]) -> str:
    """Return the sha256 of a file. Raises a UserError if it can't be read, or does not have `size` bytes any more.

    No symlink on the way is followed: there was none when the file was listed, and another process may have made one.
    `on_read` is called with the size of each piece that was read.
    """
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

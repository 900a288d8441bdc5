"""Read a project on the control machine: scan it, hash its files, make its manifest; and keep the manifests that were
sent.

Hashes are cached by size, time and inode, except for files changed within the last 2 s. The cached manifests only say
what hosts probably have; losing them costs time. ipexctl's own directories are left out because they change during the
call. A `--data` directory is left out too, and hosts keep what an earlier sync put there.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from ipexctl.errors import UserError
from ipexctl.file_reader import open_regular
from ipexctl.files.sent_manifest import Manifest, unpack_manifest
from ipexctl.found_files import cache_directory
from ipexctl.node.common.files import (
    encode_name,
    make_private_directory,
    read_json,
    sha256_of_open,
    write_atomically,
    write_json_atomically,
)
from ipexctl.node.common.fix import Fix
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.projects.root import own_directories, owner_here, real_path, root_problem, tree_name
from ipexctl.sync.ignore import MOST_KEY_BYTES, PRIVATE_KEY, layer, may_hold_key, pattern_for
from ipexctl.sync.path_notes import list_fetched_files, secret_files_below
from ipexctl.sync.scan import ScannedEntry, ScanResult, check_size, scan_project, unreadable

_MAX_REMEMBERED: Final = 6
_MOST_IGNORED: Final = 10_000
_SCHEMA: Final = 2
"""Hashes that version 1 kept are of files that were not searched for keys."""
RACY_NS: Final = 2_000_000_000
"""A file that changed so recently may change again with the same mtime; its hash is not cached."""
_MAX_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Project:
    root: Path
    name: str
    manifest: Manifest
    cache: Path
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Paths that may hold credentials."""
    fetched: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    """First paths left out by an ignore file; a directory has a trailing slash."""
    data: tuple[str, ...] = ()
    """Directories that belong to the hosts: a sync neither sends nor removes them."""


def read_project(
    root: Path,
    excludes: Sequence[str] = (),
    *,
    includes: Sequence[str] = (),
    secret_files: Sequence[Path] = (),
    home: str = "",
    allow_big: bool = False,
    data: Sequence[Path] = (),
    named: Sequence[str] = (),
) -> Project:
    """Return the project. Raises a UserError if it can't be read, is not a project, or is too large for a call without
    `allow_big`.

    `home` is left out because this machine may be a node too. `secret_files` count as credentials. `data`: directories
    that the hosts have already; relative ones are below the root. `named`: words of the script's line.
    """
    root = real_path(root)
    if problem := root_problem(root):
        raise UserError(problem, fix=Fix("name the project's directory after `ipexctl sync`"))
    data_paths = paths_below(root, data)
    own = [*own_directories(), *([real_path(os.path.expanduser(home))] if home else [])]
    left_out = (*excludes, *map(pattern_for, (*data_paths, *paths_below(root, own))))
    scanned = scan_project(
        root,
        left_out,
        includes,
        list_fetched_files(root),
        secret_files=secret_files_below(root, secret_files),
        is_limited=not allow_big,
    )
    if not allow_big:
        check_size(root, scanned, named)
    name = tree_name(root, owner_here())
    cache = cache_directory() / "sync" / name
    manifest = manifest_of(scanned, Hashes(cache / "hashes.json"), includes)
    scanned.credentials.sort()
    scanned.fetched.sort()
    return Project(
        root,
        name,
        manifest,
        cache,
        notes=_notes(scanned),
        left_out=tuple(scanned.credentials),
        fetched=tuple(scanned.fetched),
        ignored=tuple(scanned.ignored[:_MOST_IGNORED]),
        data=data_paths,
    )


def _notes(scanned: ScanResult) -> tuple[str, ...]:
    """Return the notes on what is left out, and on symlinks that lead out of the project."""
    notes = []
    if scanned.credentials:
        notes.append(f"left out: {_some(scanned.credentials, 10)} (credentials; --include PATTERN sends them)")
    if scanned.fetched:
        notes.append(f"left out: {_some(scanned.fetched)} (fetched from a host; --include PATTERN sends them)")
    if scanned.skipped:
        notes.append(f"left out (no files, directories or links): {_some(scanned.skipped)}")
    if scanned.outward:
        notes.append(f"sent as links, though they lead out of the project: {_some(scanned.outward)}")
    return tuple(notes)


def _some(paths: Sequence[str], most: int = 3) -> str:
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + more


def remember(project: Project) -> None:
    """Keep the manifest that was sent, because a later sync looks up what a host's copy has. A failure to write is
    ignored."""
    with contextlib.suppress(OSError):
        make_private_directory(project.cache)
        path = project.cache / f"{project.manifest.digest}.gz"
        if path.exists():
            os.utime(path)
        else:
            write_atomically(path, project.manifest.packed, durable=False)
        for old in _remembered(project)[_MAX_REMEMBERED:]:
            old.unlink()


def _remembered(project: Project) -> list[Path]:
    return sorted(project.cache.glob("*.gz"), key=lambda path: path.stat().st_mtime_ns, reverse=True)


def read_sent_manifest(project: Project, digest: str) -> Manifest | None:
    """Return the manifest with this digest; None if it is not kept here, or is damaged."""
    if len(digest) != 64 or not digest.isalnum():
        return None
    try:
        return unpack_manifest((project.cache / f"{digest}.gz").read_bytes(), digest)
    except (OSError, ValueError, EOFError, zlib.error):
        return None


def paths_below(root: Path, directories: Sequence[Path]) -> tuple[str, ...]:
    """Return the relative paths of those directories that are below the root. The root must be free of symlinks."""
    paths = [Path(os.path.normpath(root / directory)) for directory in directories]
    return tuple(path.relative_to(root).as_posix() for path in paths if path != root and path.is_relative_to(root))


class Hashes:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._cached: dict[str, list[object]] = {}
        self._next: dict[str, list[object]] = {}
        self.with_keys: set[str] = set()
        """Files with a private key. Their hashes are not cached, so the next call searches them again."""
        data = read_json(path)
        if data.get("schema") == _SCHEMA and isinstance(data.get("files"), dict):
            self._cached = data["files"]

    def of(self, path: bytes, entry: ScannedEntry) -> ScannedEntry | str:
        """Return the hash of a file at an absolute path. If the file changed since the scan, return its present entry
        instead."""
        identity = [entry.size, *entry.identity]
        known = self._cached.get(entry.path)
        if isinstance(known, list) and known[:-1] == identity and isinstance(known[-1], str):
            self._next[entry.path] = known
            return known[-1]
        now = time.time_ns()
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            digest, size, after = sha256_of_open(file), file.tell(), os.fstat(file.fileno())
            has_key = may_hold_key(entry.path, size) and PRIVATE_KEY.search(_read_again(file)) is not None
        current = (after.st_mtime_ns, after.st_ctime_ns, after.st_ino, after.st_dev)
        if current != entry.identity or size != entry.size:
            return entry._replace(size=after.st_size, identity=current)
        if has_key:
            self.with_keys.add(entry.path)
        elif max(entry.identity[:2]) < now - RACY_NS:
            self._next[entry.path] = [*identity, digest]
        return digest

    def save(self) -> None:
        """Keep the hashes for the next sync, if they have changed."""
        if self._next == self._cached:
            return
        with contextlib.suppress(OSError):
            make_private_directory(self._path.parent)
            write_json_atomically(self._path, {"schema": _SCHEMA, "files": self._next}, durable=False)


def _read_again(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(MOST_KEY_BYTES)


def manifest_of(scanned: ScanResult, hashes: Hashes, includes: Sequence[str] = ()) -> Manifest:
    """Return the manifest of what is sent. Files with a private key that no `includes` names count as credentials.

    Raises a UserError if a file can't be read, or changes while it is read.
    """
    included = layer("", {"--include": includes}) if includes else None
    root = os.fsencode(scanned.root)
    entries = []
    for entry in scanned.found:
        content, size = entry.target, entry.size
        if entry.kind == "f":
            content, size = _content(os.path.join(root, encode_name(entry.path)), entry, hashes)
            if not content:
                continue
            if entry.path in hashes.with_keys and not (included is not None and included.excludes(entry.path)):
                scanned.credentials.append(entry.path)
                continue
        entries.append(ManifestEntry(entry.path, entry.kind, entry.mode, size, content))
    hashes.save()
    return Manifest.of(entries)


def _content(path: bytes, entry: ScannedEntry, hashes: Hashes) -> tuple[str, int]:
    """Return hash and size of a file; an empty hash if it was removed. Raises a UserError if it changes each time it is
    read."""
    for _ in range(_MAX_TRIES):
        try:
            result = hashes.of(path, entry)
        except FileNotFoundError:
            return "", 0
        except OSError as error:
            raise unreadable(error, path) from None
        if isinstance(result, str):
            return result, entry.size
        entry = result
    problem = f"{os.fsdecode(path)} changes while it is read"
    raise UserError(problem, fix="wait until it is complete, or leave it out: --exclude")

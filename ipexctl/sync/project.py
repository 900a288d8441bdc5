"""A project as it is on the control machine: scan, hashes, manifest; and the cache of manifests that were sent.

In comes a root with patterns; out goes a `Project` or a UserError. A file is hashed once: its hash is cached by size,
time and inode, except for a file that was changed within the last 2 s, which may change again with the same time. The
cached manifests say what hosts probably have; a host is asked all the same, so a lost cache costs only time. ipexctl's
own directories are left out, as they change during the call. A directory of `--data` is left out, too, and named to
the hosts, which keep what an earlier sync put there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.file_reader import open_regular
from ipexctl.files.manifest import Manifest, unpacked
from ipexctl.node.common.files import (
    encode_name,
    make_private_directory,
    read_json,
    write_atomically,
    write_json_atomically,
)
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.sync.ignore import pattern_for
from ipexctl.sync.path_notes import fetched_below, secret_files_below
from ipexctl.sync.root import own_directories, owner_here, real_path, root_problem, tree_name
from ipexctl.sync.scan import check_size, scan_project
from ipexctl.user_directories import cache_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.sync.scan import Found, ScanResult

_MAX_REMEMBERED: Final = 6
_MOST_IGNORED: Final = 10_000
_SCHEMA: Final = 1
RACY_NS: Final = 2_000_000_000
"""A file changed this shortly before it was read may be changed again with the same mtime, so it is not cached."""
_MAX_TRIES: Final = 3
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Project:
    """A project as it is on the control machine."""

    root: Path
    name: str
    """The name of its tree on the nodes."""
    manifest: Manifest
    cache: Path
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Paths that may hold credentials."""
    fetched: tuple[str, ...] = ()
    """Paths that are left out because fetch brought them."""
    ignored: tuple[str, ...] = ()
    """The first paths that are left out because an ignore file names them; a directory has a trailing slash."""
    data: tuple[str, ...] = ()
    """Directories of the project that are the hosts' own: a sync neither sends nor removes them."""
    files_read: int = 0
    """The number of files whose hash was not cached."""


def read_project(
    root: Path,
    excludes: Sequence[str] = (),
    *,
    includes: Sequence[str] = (),
    secret_files: Sequence[Path] = (),
    home: str = "",
    allow_big: bool = False,
    data: Sequence[Path] = (),
) -> Project:
    """Raises a UserError if it can't be read, is no project, or is too large for a call without `allow_big`.

    ipexctl's own directories below the root are left out, because their files change during the call. `home` is one of
    them, because this machine may be a node too. `secret_files` are left out as credentials.
    `data` are directories that the hosts have already; relative ones are below the root.
    """
    root = real_path(root)
    if problem := root_problem(root):
        raise UserError(problem, fix="name the project's directory behind ipexctl sync")
    data_paths = paths_below(root, data)
    left_out = (*excludes, *map(pattern_for, data_paths), *_own(root, home))
    scanned = scan_project(
        root,
        left_out,
        includes,
        fetched_below(root),
        secret_files=secret_files_below(root, secret_files),
        is_limited=not allow_big,
    )
    if not allow_big:
        check_size(root, scanned)
    name = tree_name(root, owner_here())
    cache = cache_directory() / "sync" / name
    hashes = Hashes(cache / "hashes.json")
    manifest = manifest_of(scanned, hashes)
    credentials, fetched = tuple(sorted(scanned.credentials)), tuple(sorted(scanned.fetched))
    return Project(
        root,
        name,
        manifest,
        cache,
        notes=_notes(scanned),
        left_out=credentials,
        fetched=fetched,
        ignored=tuple(scanned.ignored[:_MOST_IGNORED]),
        data=data_paths,
        files_read=hashes.files_read,
    )


def _own(root: Path, home: str) -> tuple[str, ...]:
    directories = [*own_directories(), *([real_path(os.path.expanduser(home))] if home else [])]
    below = [path for path in dict.fromkeys(directories) if path != root and path.is_relative_to(root)]
    return tuple(pattern_for(os.fspath(path.relative_to(root))) for path in below)


def _notes(scanned: ScanResult) -> tuple[str, ...]:
    notes = []
    if scanned.credentials:
        notes.append(f"left out: {_some(sorted(scanned.credentials), 10)} (credentials; --include PATTERN sends them)")
    if scanned.fetched:
        notes.append(f"left out: {_some(sorted(scanned.fetched))} (fetched from a host; --include PATTERN sends them)")
    if scanned.skipped:
        notes.append(f"left out (no files, directories or links): {_some(scanned.skipped)}")
    if scanned.outward:
        notes.append(f"sent as links, though they lead out of the project: {_some(scanned.outward)}")
    return tuple(notes)


def _some(paths: Sequence[str], most: int = 3) -> str:
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + more


def remember(project: Project) -> None:
    """Cache the manifest that was sent, so that the next call knows what hosts have; without it, the host is asked."""
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
    """The cached manifests, newest first."""
    return sorted(project.cache.glob("*.gz"), key=lambda path: path.stat().st_mtime_ns, reverse=True)


def last_sent(project: Project) -> str | None:
    """The digest of the manifest that was sent last."""
    with contextlib.suppress(OSError):
        for path in _remembered(project)[:1]:
            return path.stem
    return None


def sent_before(project: Project, digest: str) -> Manifest | None:
    """The cached manifest with that digest."""
    if len(digest) != 64 or not digest.isalnum():
        return None
    try:
        return unpacked((project.cache / f"{digest}.gz").read_bytes(), digest)
    except (OSError, ValueError, EOFError, zlib.error):
        return None


def paths_below(root: Path, directories: Sequence[Path]) -> tuple[str, ...]:
    """Those of these directories that are below the root, relative to it."""
    top = real_path(root)
    paths = [Path(os.path.normpath(top / directory)) for directory in directories]
    return tuple(path.relative_to(top).as_posix() for path in paths if path != top and path.is_relative_to(top))


class Hashes:
    """The cached hashes of one project's files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cached: dict[str, list[object]] = {}
        self._next: dict[str, list[object]] = {}
        self.files_read = 0
        """The number of files that had to be read."""
        data = read_json(path)
        if data.get("schema") == _SCHEMA and isinstance(data.get("files"), dict):
            self._cached = data["files"]

    def of(self, root: bytes, found: Found) -> Found | str:
        """The hash of a file, or its present identity if it has changed since the scan."""
        identity = [found.size, *found.identity]
        known = self._cached.get(found.path)
        if isinstance(known, list) and known[:-1] == identity and isinstance(known[-1], str):
            self._next[found.path] = known
            return known[-1]
        now = time.time_ns()
        digest = hashlib.sha256()
        with open(os.path.join(root, encode_name(found.path)), "rb", buffering=0, opener=open_regular) as file:
            size = 0
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
            after = os.fstat(file.fileno())
        self.files_read += 1
        current = (after.st_mtime_ns, after.st_ctime_ns, after.st_ino, after.st_dev)
        if current != found.identity or size != found.size:
            return found._replace(size=after.st_size, identity=current)
        if max(found.identity[:2]) < now - RACY_NS:
            self._next[found.path] = [*identity, digest.hexdigest()]
        return digest.hexdigest()

    def save(self) -> None:
        """Write the cache. Without it the next call only takes longer."""
        if self._next == self._cached:
            return
        with contextlib.suppress(OSError):
            make_private_directory(self._path.parent)
            write_json_atomically(self._path, {"schema": _SCHEMA, "files": self._next}, durable=False)


def manifest_of(scanned: ScanResult, hashes: Hashes) -> Manifest:
    """Raises a UserError if a file can't be read, or changes while it is read."""
    root = os.fsencode(scanned.root)
    entries = []
    for found in scanned.found:
        content, size = found.target, found.size
        if found.kind == "f":
            content, size = _content(root, found, hashes)
            if not content:
                continue
        entries.append(ManifestEntry(found.path, found.kind, found.mode, size, content))
    hashes.save()
    return Manifest.of(entries)


def _content(root: bytes, found: Found, hashes: Hashes) -> tuple[str, int]:
    """A file's hash and size; an empty hash if it was removed."""
    for _ in range(_MAX_TRIES):
        try:
            result = hashes.of(root, found)
        except FileNotFoundError:
            return "", 0
        except OSError as error:
            path = os.fsdecode(os.path.join(root, encode_name(found.path)))
            raise UserError(
                f"{path}: {error.strerror or error}",
                fix="make it readable, or leave it out: --exclude or .ipexctlignore",
            ) from None
        if isinstance(result, str):
            return result, found.size
        found = result
    path = os.fsdecode(os.path.join(root, encode_name(found.path)))
    raise UserError(f"{path} changes while it is read", fix="wait until it is complete, or leave it out: --exclude")

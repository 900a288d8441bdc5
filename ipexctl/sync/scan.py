"""Scan a project on the control machine for paths and sizes, without reading a file.

A scan stops at 60,000 paths. `check_size` refuses 1 GB or 20,000 files without --allow-big and names the largest
directories: a user who names a home or data set by mistake should learn it before an upload. Virtual environments are
recognised by content. Files that receive this call's output are left out.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from ipexctl import errors
from ipexctl.errors import UserError
from ipexctl.files.file_names import composed_name
from ipexctl.files.sent_manifest import leads_out
from ipexctl.node.common.files import decode_name, encode_name
from ipexctl.node.files.manifest import EntryKind
from ipexctl.projects.root import path_problem, real_path
from ipexctl.sync.git_files import TrackedPaths
from ipexctl.sync.ignore import (
    ENVIRONMENT_MARKS,
    FILES,
    IgnoreRules,
    Layer,
    Reason,
    layer_of,
    outer_layers,
    pattern_for,
)
from ipexctl.text import readable

MAX_SCANNED: Final = 60_000
"""Scanned paths; more would be a whole disk."""
MAX_LISTED: Final = 150_000
"""Entries of one directory, which may all be ignored."""
MAX_BYTES: Final = 1_000_000_000
MAX_FILES: Final = 20_000
_MOST_LARGE_ENTRIES: Final = 3
_DOMINANT: Final = 0.8
"""A directory is listed as a whole, unless one of its entries has this share of it."""


class ScannedEntry(NamedTuple):
    path: str
    kind: EntryKind
    mode: int
    size: int
    identity: tuple[int, int, int, int]
    """mtime_ns, ctime_ns, inode, device. Equal with the same size means unchanged."""
    target: str = ""


@dataclass(slots=True)
class ScanResult:
    root: Path
    found: list[ScannedEntry] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    outward: list[str] = field(default_factory=list)
    """Links out of the tree; sent as links, so they may be broken on a node."""
    credentials: list[str] = field(default_factory=list)
    """Left out because of their names, or as an --env-file; a directory has a trailing slash."""
    fetched: list[str] = field(default_factory=list)
    """Left out because fetch brought them; a directory has a trailing slash."""
    ignored: list[str] = field(default_factory=list)
    """Left out by an ignore file; a directory has a trailing slash."""
    complete: bool = True

    @property
    def files(self) -> int:
        """How many files and links, without directories."""
        return sum(entry.kind != "d" for entry in self.found)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.found if entry.kind == "f")


class _Directory(NamedTuple):
    prefix: str
    layers: tuple[Layer, ...]
    reason: Reason | None = None
    """Why the directory is left out; it is scanned all the same if an `--include` names something in it."""


def scan_project(
    root: Path,
    excludes: Sequence[str] = (),
    includes: Sequence[str] = (),
    fetched: frozenset[str] = frozenset(),
    *,
    secret_files: frozenset[str] = frozenset(),
    is_limited: bool = True,
) -> ScanResult:
    """Scan what is not left out below the root, or enough to show that it is too large.

    Raises a UserError if a directory can't be read.
    """
    real = real_path(root)
    if problem := path_problem(real, "directory"):
        raise UserError(f"{root} {problem}", fix="name the directory of your project")
    tracked = partial(TrackedPaths, real)
    ignored = IgnoreRules(outer_layers(real), excludes, includes, fetched, secret_files, tracked)
    result, output = ScanResult(real), _output_files()
    base = os.fsencode(real)
    pending: list[_Directory] = [_Directory("", ignored.outer)]
    while pending:
        if is_limited and len(result.found) > MAX_SCANNED:
            result.complete = False
            break
        pending += reversed(_scan_directory(result, base, pending.pop(), ignored, output, is_limited=is_limited))
    return result


def _output_files() -> frozenset[tuple[int, int]]:
    """Return device and inode of the files behind stdout and stderr, which grow while they are read."""
    outputs = set()
    for number in (1, 2):
        with contextlib.suppress(OSError):
            status = os.fstat(number)
            outputs.add((status.st_dev, status.st_ino))
    return frozenset(outputs)


def _scan_directory(
    result: ScanResult,
    base: bytes,
    directory: _Directory,
    ignored: IgnoreRules,
    output: frozenset[tuple[int, int]],
    *,
    is_limited: bool,
) -> list[_Directory]:
    """Add the entries of a directory to the result, and return the directories in it that are scanned next."""
    prefix, layers = directory.prefix, directory.layers
    full = os.path.join(base, encode_name(prefix)) if prefix else base
    try:
        with os.scandir(full) as unsorted:
            entries = sorted(islice(unsorted, MAX_LISTED if is_limited else None), key=lambda entry: entry.name)
    except OSError as error:
        raise unreadable(error, full) from None
    result.complete &= not is_limited or len(entries) < MAX_LISTED
    names = [decode_name(entry.name) for entry in entries]
    if any(name in names for name in FILES):
        own = layer_of(Path(os.fsdecode(full)), prefix)
        layers = (*layers, own) if own else layers
    below: list[_Directory] = []
    left_out = {"credentials": result.credentials, "fetched": result.fetched, "ignored": result.ignored}
    for name, entry in zip(names, entries, strict=True):
        path = prefix + composed_name(full, name, names)
        is_directory = entry.is_dir(follow_symlinks=False)
        reason = ignored.reason_left_out(path, layers, is_directory=is_directory, inside=directory.reason)
        if reason is not None and not (is_directory and reason != "excluded" and path in ignored.above_includes):
            if reason in left_out:
                left_out[reason].append(f"{path}/" if is_directory else path)
            continue
        if is_directory and any(os.path.lexists(os.path.join(entry.path, mark)) for mark in ENVIRONMENT_MARKS):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
            if (status.st_dev, status.st_ino) in output:
                continue
            _add(result, path, entry, status)
        except FileNotFoundError:
            continue  # removed since the directory was read
        except OSError as error:
            raise unreadable(error, entry.path) from None
        if is_directory:
            below.append(_Directory(f"{path}/", layers, reason))
    return below


def _add(result: ScanResult, path: str, entry: os.DirEntry[bytes], status: os.stat_result) -> None:
    """Add one entry to the result: a directory, a file or a symlink; the path of anything else is noted as skipped."""
    identity = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if stat.S_ISDIR(status.st_mode):
        result.found.append(ScannedEntry(path, "d", mode | 0o700, 0, identity))
    elif stat.S_ISREG(status.st_mode):
        result.found.append(ScannedEntry(path, "f", mode | 0o400, status.st_size, identity))
    elif stat.S_ISLNK(status.st_mode):
        target = os.readlink(entry.path)
        if leads_out(path, decode_name(target)):
            result.outward.append(path)
        result.found.append(ScannedEntry(path, "l", 0o777, 0, identity, decode_name(target)))
    else:
        result.skipped.append(path)


def unreadable(error: OSError, path: bytes) -> UserError:
    """Return the error for a path that cannot be read, and how to leave it out."""
    fix = "make it readable, or leave it out: --exclude or .ipexctlignore"
    return errors.unreadable(error, os.fsdecode(error.filename or path), fix)


class LargeEntry(NamedTuple):
    path: str
    size: int
    files: int
    is_directory: bool

    def __str__(self) -> str:
        count = f" in {self.files:,} files" if self.is_directory else ""
        return f"{self.path}{'/' * self.is_directory} ({readable(self.size)}{count})"


def heaviest(files: Iterable[tuple[str, int]], *, by_count: bool = False) -> tuple[LargeEntry, ...]:
    """Return the entries with the most bytes, or files. Each is as deep as nearly all of its content lies in one
    directory."""
    sizes, counts = Counter[str](), Counter[str]()
    for path, size in files:
        while path:
            sizes[path] += size
            counts[path] += 1
            path = path.rpartition("/")[0]
    weights = counts if by_count else sizes

    def below(path: str) -> list[str]:
        return sorted((name for name in sizes if name.rpartition("/")[0] == path), key=lambda name: -weights[name])

    def dominant(path: str) -> LargeEntry:
        entries = below(path)
        while entries and weights[entries[0]] >= _DOMINANT * weights[path]:
            path = entries[0]
            entries = below(path)
        return LargeEntry(path, sizes[path], counts[path], is_directory=bool(entries))

    return tuple(map(dominant, below("")[:_MOST_LARGE_ENTRIES]))


def check_size(root: Path, scanned: ScanResult, named: Iterable[str] = ()) -> None:
    """Refuse a project that is too large, and name its largest entries. `named`: paths that the call needs, so they are
    not proposed to be left out."""
    if scanned.complete and scanned.size <= MAX_BYTES and scanned.files <= MAX_FILES:
        return
    by_count = scanned.size <= MAX_BYTES
    largest = heaviest(((entry.path, entry.size) for entry in scanned.found if entry.kind != "d"), by_count=by_count)
    least = "" if scanned.complete else "at least "
    first = pattern_for(largest[0].path) + "/" * largest[0].is_directory if largest else "/data/"
    is_named = any(f"/{entry.path}/" in f"/{word}/" for entry in largest[:1] for word in named)
    leave_out = "" if is_named else f"leave data out: --exclude '{first}', or that line in {root}/.ipexctlignore; "
    raise UserError(
        f"{root} is {least}{readable(scanned.size)} in {scanned.files:,} files, more than a project may have; largest: "
        + ", ".join(map(str, largest)),
        fix=f"{leave_out}data that is on every node: --data DIR; to send everything: --allow-big",
    )

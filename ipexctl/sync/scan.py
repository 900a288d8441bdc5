"""A look at the project on this machine: what there is, how large, and what is left out. No file is read here."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.sync.ignore import ENVIRONMENT_MARKS, FILES, Ignored, layer_of, outer_layers
from ipexctl.sync.manifest import decode, encode
from ipexctl.sync.root import path_problem, real_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.sync.ignore import Layer, Reason
    from ipexctl.sync.manifest import Kind

ENOUGH: Final = 200_000
"""Paths after which a look ends: whoever has named the root of a disk gets an answer, too."""


@dataclass(frozen=True, slots=True)
class Found:
    """One path below the root, as lstat has it."""

    path: str
    kind: Kind
    mode: int
    size: int
    looks: tuple[int, int, int, int]
    """mtime_ns, ctime_ns, inode, device: with the size, what tells an unchanged file without reading it."""
    target: str = ""


@dataclass(slots=True)
class ScanResult:
    """All that a look has found."""

    root: Path
    found: list[Found] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Sockets, fifos and devices."""
    outward: list[str] = field(default_factory=list)
    """Links that lead out of the tree: they are kept as they are, and may lead nowhere on a node."""
    credentials: list[str] = field(default_factory=list)
    """Left out by their names alone; a directory has a slash behind it."""
    complete: bool = True

    @property
    def files(self) -> int:
        return sum(one.kind != "d" for one in self.found)

    @property
    def size(self) -> int:
        return sum(one.size for one in self.found if one.kind == "f")


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory to look into."""

    prefix: str
    """Its path, with a slash behind; empty for the root."""
    layers: tuple[Layer, ...]
    reason: Reason | None = None
    """Why it is left out, where an `--include` names something in it."""


def scan_project(root: Path, excludes: Sequence[str] = (), includes: Sequence[str] = ()) -> ScanResult:
    """Everything below the root that isn't left out. Raises a UserError for what can't be read."""
    real = real_path(root)
    if problem := path_problem(real, "directory"):
        raise UserError(f"{root} {problem}", fix="name the directory of your project")
    ignored = Ignored(outer_layers(real), excludes, includes)
    seen = ScanResult(real)
    base = os.fsencode(real)
    pending: list[_Directory] = [_Directory("", ignored.outer)]
    while pending:
        if len(seen.found) > ENOUGH:
            seen.complete = False
            break
        pending += reversed(_directory(seen, base, pending.pop(), ignored))
    return seen


def _directory(seen: ScanResult, base: bytes, directory: _Directory, ignored: Ignored) -> list[_Directory]:
    prefix, layers = directory.prefix, directory.layers
    place = os.path.join(base, encode(prefix)) if prefix else base
    try:
        with os.scandir(place) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(error, place) from None
    names = [decode(entry.name) for entry in inside]
    if any(name in names for name in FILES):
        own = layer_of(Path(os.fsdecode(place)), prefix)
        layers = (*layers, own) if own else layers
    below: list[_Directory] = []
    for name, entry in zip(names, inside, strict=True):
        path = prefix + name
        is_directory = entry.is_dir(follow_symlinks=False)
        reason = ignored.reason_left_out(path, layers, is_directory=is_directory, inside=directory.reason)
        if reason is not None and not (is_directory and reason != "excluded" and ignored.is_above_include(path)):
            if reason == "credentials":
                seen.credentials.append(f"{path}/" if is_directory else path)
            continue
        if is_directory and _is_environment(entry.path):
            continue
        try:
            _note(seen, path, entry, entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            continue  # gone between two looks
        except OSError as error:
            raise _unreadable(error, entry.path) from None
        if is_directory:
            below.append(_Directory(f"{path}/", layers, reason))
    return below


def _is_environment(place: bytes) -> bool:
    return any(os.path.lexists(os.path.join(place, mark)) for mark in ENVIRONMENT_MARKS)


def _note(seen: ScanResult, path: str, entry: os.DirEntry[bytes], status: os.stat_result) -> None:
    looks = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if stat.S_ISDIR(status.st_mode):
        seen.found.append(Found(path, "d", mode | 0o700, 0, looks))
    elif stat.S_ISREG(status.st_mode):
        seen.found.append(Found(path, "f", mode | 0o400, status.st_size, looks))
    elif stat.S_ISLNK(status.st_mode):
        target = os.readlink(entry.path)
        if leads_out(path, decode(target)):
            seen.outward.append(path)
        seen.found.append(Found(path, "l", 0o777, 0, looks, decode(target)))
    else:
        seen.skipped.append(path)


def leads_out(path: str, target: str) -> bool:
    """Whether a link at that path leads out of the tree, going by its text."""
    if target.startswith("/"):
        return True
    depth = path.count("/")
    for part in target.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return True
    return False


def _unreadable(error: OSError, place: bytes) -> UserError:
    where = os.fsdecode(error.filename or place)
    return UserError(
        f"{where}: {error.strerror or error}", fix="make it readable, or leave it out: --exclude or .ipexctlignore"
    )

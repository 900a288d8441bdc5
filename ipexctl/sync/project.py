"""A project as it is on this machine now: looked at, weighed, hashed; and what of it earlier calls have sent."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import platformdirs

from ipexctl.errors import UserError
from ipexctl.node.common.files import write_atomically
from ipexctl.sync import scan as walk
from ipexctl.sync.hashes import Hashes, manifest_of
from ipexctl.sync.ignore import pattern_for
from ipexctl.sync.manifest import unpacked
from ipexctl.sync.root import own_directories, owner_here, real_path, root_problem, tree_name
from ipexctl.sync.size_limits import refuse_big

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.sync.manifest import Manifest

_REMEMBERED: Final = 6


@dataclass(frozen=True, slots=True)
class Project:
    root: Path
    name: str
    """Of its tree on the nodes."""
    manifest: Manifest
    cache: Path
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Paths that may hold credentials."""
    read: int = 0
    """Files that weren't known by their looks."""


def read_project(
    root: Path,
    excludes: Sequence[str] = (),
    *,
    includes: Sequence[str] = (),
    home: str = "",
    allow_big: bool = False,
) -> Project:
    """Raises a UserError where it can't be read, is no project, or is too big to be sent without a word.

    Directories of ipexctl's own are left out where they are below the root: files in them change meanwhile. `home` is
    one of them, for the nodes' directory may be on this machine, too.
    """
    root = real_path(root)
    if problem := root_problem(root):
        raise UserError(problem, fix="name the project's directory: ipexctl sync DIR")
    seen = walk.scan_project(root, (*excludes, *_own(root, home)), includes)
    if not allow_big:
        refuse_big(root, seen)
    name = tree_name(root, owner_here())
    cache = Path(platformdirs.user_cache_dir("ipexctl")) / "sync" / name
    hashes = Hashes(cache / "hashes.json")
    manifest = manifest_of(seen, hashes)
    return Project(root, name, manifest, cache, _notes(seen), tuple(sorted(seen.credentials)), hashes.read)


def _own(root: Path, home: str) -> tuple[str, ...]:
    places = [*own_directories(), *([real_path(os.path.expanduser(home))] if home else [])]
    below = [place for place in dict.fromkeys(places) if place != root and place.is_relative_to(root)]
    return tuple(pattern_for(os.fspath(place.relative_to(root))) for place in below)


def _notes(seen: walk.ScanResult) -> tuple[str, ...]:
    notes = []
    if seen.credentials:
        notes.append(f"left out: {_some(sorted(seen.credentials), 10)} (credentials; --include PATTERN sends them)")
    if seen.skipped:
        notes.append(f"left out, for they are no files: {_some(seen.skipped)}")
    if seen.outward:
        notes.append(f"links that lead out of the project are sent as they are: {_some(seen.outward)}")
    return tuple(notes)


def _some(paths: Sequence[str], most: int = 3) -> str:
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + more


def remember(project: Project) -> None:
    """Keep what was sent, so that the next difference can be made here; without it, a host is asked."""
    with contextlib.suppress(OSError):
        project.cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        place = project.cache / f"{project.manifest.digest}.gz"
        if not place.exists():
            write_atomically(place, project.manifest.packed, durable=False)
        kept = sorted(project.cache.glob("*.gz"), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in kept[_REMEMBERED:]:
            old.unlink()


def sent_before(project: Project, digest: str) -> Manifest | None:
    if len(digest) != 64 or not digest.isalnum():
        return None
    try:
        return unpacked((project.cache / f"{digest}.gz").read_bytes())
    except (OSError, ValueError, EOFError, TypeError):
        return None


def data_patterns(root: Path, directories: Sequence[Path]) -> tuple[str, ...]:
    """What leaves these directories out, as far as they are below the root; relative ones are the project's own."""
    top = real_path(root)
    found = []
    for directory in directories:
        place = Path(os.path.normpath(top / directory))
        if place != top and place.is_relative_to(top):
            found.append(pattern_for(os.fspath(place.relative_to(top))))
    return tuple(found)

"""Note paths of the control machine for later calls: what `fetch` created, secret files that syncs leave out, and the
notes already shown for a project.

Each path has a small file of its own in the state directory, so two calls need no lock. Removed paths are forgotten.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.found_files import state_directory
from ipexctl.node.common.files import make_private_directory, read_json, write_json_atomically
from ipexctl.projects.root import real_path


class PathNotes:
    def __init__(self, kind: str) -> None:
        self._kind = kind

    def add(self, paths: Iterable[str], text: str = "") -> None:
        """Note these paths, and forget removed ones. Their directories may be symlinks."""
        noted = [real_name(path) for path in paths]
        if not noted:
            return
        with contextlib.suppress(OSError, UserError):  # on a full disk, the next sync won't know
            directory = self._directory
            make_private_directory(directory)
            for path in noted:
                write_json_atomically(directory / _file_of(path), {"path": path, "text": text}, durable=False)
            for note, path in list(self._notes()):
                if not os.path.lexists(path):
                    note.unlink(missing_ok=True)

    def text_of(self, path: str) -> str:
        """Return what is noted of the path; empty if nothing is."""
        path = real_name(path)
        with contextlib.suppress(UserError):
            noted = read_json(self._directory / _file_of(path))
            if noted.get("path") == path and isinstance(text := noted.get("text"), str):
                return text
        return ""

    def below(self, root: Path) -> frozenset[str]:
        """Return the noted paths below a root, relative to it. The root must be free of symlinks."""
        return names_below(root, (path for _, path in self._notes()))

    @property
    def _directory(self) -> Path:
        return state_directory() / self._kind

    def _notes(self) -> Iterator[tuple[Path, str]]:
        with contextlib.suppress(OSError):
            for note in sorted(self._directory.glob("*.json")):
                if isinstance(path := read_json(note).get("path"), str):
                    yield note, path


def _file_of(path: str) -> str:
    return f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"


def real_name(path: str) -> str:
    """Return the absolute path with symlinks in its directory resolved; the entry itself may be a symlink."""
    return os.path.join(real_path(os.path.dirname(path)), os.path.basename(path))


def names_below(root: Path, paths: Iterable[str]) -> frozenset[str]:
    """Return the paths below the directory, relative to it."""
    prefix = f"{os.fspath(root)}/"
    return frozenset(path[len(prefix) :] for path in paths if path.startswith(prefix))


_FETCHED: Final = PathNotes("fetched")
_SECRET: Final = PathNotes("env-files")


def note_fetched(paths: Iterable[str]) -> None:
    """Note that fetch wrote these files, so that sync does not send them back."""
    _FETCHED.add(paths)


def list_fetched_files(root: Path) -> frozenset[str]:
    """Return what fetch created below a project's root, relative to it. The root must be free of symlinks.

    A Python file is code for the next run, not a result, unless fetch created its directory.
    """
    return frozenset(path for path in _FETCHED.below(root) if not path.endswith(".py"))


def note_secret_files(files: Iterable[Path]) -> None:
    """Note secret files for calls that don't name them, such as `ipexctl sync`. Pipes such as `<(command)` are
    skipped."""
    _SECRET.add(path for file in files if os.path.isfile(file) for path in _paths_of(file))


def secret_files_below(root: Path, files: Iterable[Path] = ()) -> frozenset[str]:
    """Return these files and the noted ones below a project's root, relative to it. The root must be free of
    symlinks."""
    return _SECRET.below(root) | names_below(root, (path for file in files for path in _paths_of(file)))


def _paths_of(file: Path) -> tuple[str, ...]:
    return real_name(os.path.abspath(file)), os.fspath(real_path(file))

"""Notes of what `fetch` created on the control machine: sync leaves it out of a project.

There is one small file for each path, so that two calls of fetch need no lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.node.common.files import make_private_directory, write_json_atomically
from ipexctl.sync.root import real_path
from ipexctl.user_directories import state_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


def _directory() -> Path:
    return state_directory() / "fetched"


def note_fetched(paths: Iterable[str]) -> None:
    """Note files and directories that fetch created, and forget those that were removed since."""
    created = [os.path.join(real_path(os.path.dirname(path)), os.path.basename(path)) for path in paths]
    if not created:
        return
    with contextlib.suppress(OSError, UserError):  # on a full disk, the next sync names nothing as fetched and sends it
        directory = _directory()
        make_private_directory(directory)
        for path in created:
            name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
            write_json_atomically(directory / f"{name}.json", {"path": path}, durable=False)
        for note, path in list(_notes()):
            if not os.path.lexists(path):
                note.unlink(missing_ok=True)


def fetched_below(root: Path) -> frozenset[str]:
    """The noted paths below a project's root, relative to it. The root has no links in its path.

    A Python file is code for the next run and no result, unless it is in a directory that fetch created.
    """
    prefix = f"{os.fspath(root)}/"
    return frozenset(
        path[len(prefix) :] for _, path in _notes() if path.startswith(prefix) and not path.endswith(".py")
    )


def _notes() -> Iterator[tuple[Path, str]]:
    with contextlib.suppress(OSError):
        for note in sorted(_directory().glob("*.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                yield note, str(json.loads(note.read_bytes())["path"])

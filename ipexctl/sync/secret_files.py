"""The files of `--env-file` and the private keys of hosts, whatever their names: sync leaves them out as credentials.

The call that names one leaves it out itself; notes make later calls do so that do not name it, such as
`ipexctl sync`. A file that is a link is left out with the file that it leads to.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ipexctl.sync.path_notes import PathNotes, names_below, real_name
from ipexctl.sync.root import real_path

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_NOTES: Final = PathNotes("env-files")


def note_secret_files(files: Iterable[Path]) -> None:
    """Note these files for later calls. Pipes such as `<(command)` are not noted."""
    _NOTES.add(path for file in files if os.path.isfile(file) for path in _paths_of(file))


def secret_files_below(root: Path, files: Iterable[Path] = ()) -> frozenset[str]:
    """These files and the noted ones below a project's root, relative to it. The root has no links in its path."""
    return _NOTES.below(root) | names_below(root, (path for file in files for path in _paths_of(file)))


def _paths_of(file: Path) -> tuple[str, ...]:
    return real_name(os.path.abspath(file)), os.fspath(real_path(file))

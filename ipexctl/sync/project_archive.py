"""Pack the files of a project that a sync would send, as one archive of sources."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Final

from ipexctl.sync.scan import check_size, scan_project

SMALL: Final = 1 << 20
"""Bytes of a file that the code of a build may read for its list."""


def pack_project_files(root: Path, path: Path, *, largest: int | None = None) -> Path:
    """Write the archive to `path`, without files larger than `largest`. Its top directory is `NAME-0`."""
    scanned = scan_project(root)
    if largest is None:
        check_size(root, scanned)
    top = path.name.removesuffix(".tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        for entry in scanned.found:
            file = os.path.join(scanned.root, entry.path)
            if largest is None or os.lstat(file).st_size <= largest:
                archive.add(file, f"{top}-0/{entry.path}", recursive=False)
    return path

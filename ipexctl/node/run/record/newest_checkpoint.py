"""Finds the newest whole checkpoint that a run wrote on node0, which the line at the run's end names.

What is whole is decided as in the exchange between hosts (`node/common/checkpoint_layout.py`). Which files are the
run's, its record says (`run_files.py`).
"""

from __future__ import annotations

import contextlib
import os
from itertools import islice

from ipexctl.node.common.checkpoint_layout import (
    HalfWrittenError,
    check_complete,
    find_checkpoints,
    has_all_shards,
    is_of_torch,
    parts_of,
)
from ipexctl.node.run.record.file_owner import is_checkpoint_directory
from ipexctl.node.run.record.run_files import close_record, recorded_files

_MOST_DIRECTORIES = 2000
"""A project may have its data beside its checkpoints, on a slow disk."""


def newest_checkpoint(cwd: str, asked: str, rundir: str) -> str:
    """Return the newest whole checkpoint of a run whose ranks have ended, relative to `cwd`, or absolute if `asked` is;
    empty without one. `asked`: the PATH of `--checkpoint`, or empty.

    The record of the run's files on this host is made here if the ranks were killed before they could.
    """
    recorded = recorded_files(rundir)
    if recorded is not None and not recorded.is_closed:
        with contextlib.suppress(OSError):  # the home may have turned read-only
            close_record(rundir)
        recorded = recorded_files(rundir)
    base = os.path.realpath(cwd)
    top = os.path.realpath(os.path.join(base, asked))
    written: dict[str, int] = {}
    for path in recorded.paths() if recorded is not None else ():
        if (path.startswith(f"{top}/") or path == top) and "/." not in path[len(top) :]:
            with contextlib.suppress(OSError):
                status = os.stat(path)
                if is_of_torch(os.path.basename(path)) and status.st_size:
                    unit = unit_of(path, base)
                    written[unit] = max(status.st_mtime_ns, written.get(unit, 0))
    for path in sorted(written, key=lambda path: written[path], reverse=True):
        if is_whole(path) and not _is_in_environment(path, base):
            return path if os.path.isabs(asked) else os.path.relpath(path, base)
    return ""


def _is_in_environment(path: str, base: str) -> bool:
    """True if a directory above is a virtual environment, whose packages have files for their tests."""
    while len(path := os.path.dirname(path)) >= len(base) > 1:
        if os.path.exists(os.path.join(path, "pyvenv.cfg")):
            return True
    return False


def unit_of(path: str, cwd: str) -> str:
    """Return the path of the checkpoint that a file belongs to: the file's own, or that of a directory."""
    above, name = os.path.split(path)
    is_one = above != cwd and is_checkpoint_directory(above)
    return above if is_one or name.endswith(".distcp") else path


def is_whole(path: str) -> bool:
    """Return False for a checkpoint whose save did not finish, and for data. Ranks of other hosts may have parts of
    it."""
    above, walk = os.path.dirname(path), islice(os.walk(path), _MOST_DIRECTORIES)
    names = [os.path.join(directory, name) for directory, _, files in walk for name in files]
    try:
        if not names:
            parts = parts_of(os.path.basename(path), os.listdir(above))
            names = [os.path.join(above, part) for part in parts]
            if not has_all_shards(set(parts)):
                return False
        for name in filter(os.path.isfile, names):
            with open(name, "rb") as file:
                check_complete(file, name, os.fstat(file.fileno()).st_size)
                file.seek(0)
                # A zip file, or a pickle of an old torch; not the token files of nanoGPT.
                if name == path and name.endswith(".bin") and not file.read(4).startswith((b"PK\3\4", b"\x80")):
                    return False
    except (OSError, HalfWrittenError):
        return False
    units = find_checkpoints((os.path.relpath(name, above) for name in names), "")
    return all(unit.is_whole for unit in units.values())

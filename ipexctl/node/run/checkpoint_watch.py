"""Sees on node0 that a checkpoint has just been written, for hosts that may join the run then (`run --rejoin`).

In: the path of the checkpoints, at each look; out: whether one is there that was not at the first look, and has not
changed since the look before, so that no rank writes it any more. Rank 0 is on node0, and it or its host writes what
makes a checkpoint whole (`node/files/checkpoint_layout.py`). Only names and times are read. The exchange before the
next attempt judges the files themselves, so that a wrong answer costs a restart, and no checkpoint.
"""

from __future__ import annotations

import os
from typing import Iterator

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.guarded_directory import enter_named
from ipexctl.node.files.checkpoint_layout import find_checkpoints
from ipexctl.node.files.checkpoint_plan import MAX_FILES, is_temporary


class CheckpointWatch:
    """From when a host could join."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._first = self._last = whole_checkpoints(path)

    def look(self) -> bool:
        """Whether a checkpoint has been written since the first look."""
        before, self._last = self._last, whole_checkpoints(self._path)
        return bool((before.items() & self._last.items()) - self._first.items())


def whole_checkpoints(path: str) -> dict[str, int]:
    """The whole checkpoints there, directories or files → when they were changed last."""
    top = os.path.basename(path)
    try:
        with enter_named(path, "") as place:
            times = dict(_times_of(f"/proc/self/fd/{place.number}/{place.name}", top))
    except (OSError, AgentError):  # the exchange will name it
        return {}
    found = find_checkpoints(times, top)
    if not found:
        return times
    # Beside directories that are known as checkpoints, other files are no checkpoint: a log, say.
    return {
        directory: max(time for name, time in times.items() if name.startswith(f"{directory}/"))
        for directory, checkpoint in found.items()
        if checkpoint.is_whole
    }


def _times_of(path: str, top: str) -> Iterator[tuple[str, int]]:
    """Each file → when it was changed. Links to other directories are not followed."""
    places = [(path, top)]
    count = 0
    while places:
        place, name = places.pop()
        try:
            entries = list(os.scandir(place))
        except NotADirectoryError:
            yield name, os.stat(place).st_mtime_ns
            continue
        except OSError:
            continue
        for entry in entries:
            count += 1
            if count > MAX_FILES:
                return
            if is_temporary(entry.name):
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    places.append((entry.path, f"{name}/{entry.name}"))
                else:
                    yield f"{name}/{entry.name}", entry.stat().st_mtime_ns
            except OSError:  # rotated away meanwhile
                continue

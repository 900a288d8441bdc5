"""Warns if fetch writes into a project whose next run would upload the files to all hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.remote.progress import Notice
from ipexctl.sync.ignore import Ignored, layer_of, outer_layers, pattern_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.playbook.play_context import PlayContext


def warn_of_synced_files(context: PlayContext, dest: Path) -> None:
    """Warn once for each project that this playbook has run."""
    for root, excludes in list(context.projects.items()):
        path = synced_path(dest, root, excludes)
        if path:
            del context.projects[root]
            context.watch(
                Notice(
                    f"fetch brings {path} into the project {root}: the next run sends it to all hosts; "
                    f"a dest outside, or exclude: ['{pattern_for(path)}'] of run, leaves it here",
                    warning=True,
                )
            )


def synced_path(dest: Path, root: Path, excludes: Sequence[str]) -> str:
    """The path of `dest` in the project; empty if it is outside or excluded from the upload."""
    top, path = Path(os.path.realpath(root)), Path(os.path.realpath(dest))
    if not path.is_relative_to(top):
        return ""
    parts = path.relative_to(top).parts
    ignored = Ignored(outer_layers(top), excludes)
    project_layer = layer_of(top, "")
    layers = (*ignored.outer, project_layer) if project_layer else ignored.outer
    for depth in range(1, len(parts) + 1):
        if ignored.stays("/".join(parts[:depth]), layers, is_directory=True):
            return ""
    return "/".join(parts) or "."

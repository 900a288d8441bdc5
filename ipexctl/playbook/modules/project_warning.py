"""Whether what fetch brings into a project goes to all hosts with the project's next run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.playbook.report import PlayNotice
from ipexctl.sync.ignore import Ignored, layer_of, outer_layers, pattern_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.playbook.play_context import PlayContext


def warn_of_synced_files(context: PlayContext, dest: Path) -> None:
    """One word for each project that this playbook has run."""
    for root, excludes in list(context.projects.items()):
        below = is_synced(dest, root, excludes)
        if below:
            del context.projects[root]
            context.watch(
                PlayNotice(
                    f"fetch brings {below} into the project {root}: the next run sends it to all hosts; "
                    f"a dest outside, or exclude: ['{pattern_for(below)}'] of run, leaves it here",
                    warning=True,
                )
            )


def is_synced(dest: Path, root: Path, excludes: Sequence[str]) -> str:
    """Where in the project it is, unless that stays behind."""
    top, place = Path(os.path.realpath(root)), Path(os.path.realpath(dest))
    if not place.is_relative_to(top):
        return ""
    parts = place.relative_to(top).parts
    ignored = Ignored(outer_layers(top), excludes)
    own = layer_of(top, "")
    layers = (*ignored.outer, own) if own else ignored.outer
    for depth in range(1, len(parts) + 1):
        if ignored.stays("/".join(parts[:depth]), layers, is_directory=True):
            return ""
    return "/".join(parts) or "."

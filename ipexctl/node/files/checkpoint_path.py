"""Opens the place of a checkpoint or of pushed data with `walk.py`, and refuses links that the project decides on.

A project decides nothing about files outside of it. A link that sync brought is refused; if a project's file set the
PATH, so is any link below a working directory that is not synced. Links the user made on this host are followed.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.guarded_directory import enter_named
from ipexctl.node.common.home import STATE_DIRECTORY
from ipexctl.node.files.tree import ProjectTree

if TYPE_CHECKING:
    from ipexctl.node.common.walk import Place

OWN_CHECKPOINT = "name the place itself in the call: --checkpoint /PATH/ON/EVERY/HOST"
OWN_DATA = "name the place itself in the call: push to its absolute path, the same on every host"


def enter_path(
    path: str,
    home: str,
    project: str = "",
    *,
    fix: str = OWN_CHECKPOINT,
    symlink_fix: str = OWN_CHECKPOINT,
    inside: os.stat_result | None = None,
) -> Place:
    """Enter the path of a checkpoint or of pushed data. Raises an AgentError for a project's link, or if another
    account can change the path.

    `project`: the ranks' working directory if a project's file set the path, else empty.
    """
    return enter_named(
        path,
        fix,
        on_symlink=lambda here, target: _check_symlink(here, target, home, project, symlink_fix),
        inside=inside,
    )


def name_of_place(path: str, home: str) -> str:
    """Return a path by the home's own name, which is the same on all hosts: their homes may be on different disks."""
    for directory in (os.path.join(home, "code"), home):
        real = os.path.realpath(directory)
        if path.startswith(f"{real}/"):
            return directory + path[len(real) :]
    return path


def _check_symlink(path: str, target: str, home: str, project: str, fix: str) -> None:
    """Refuse a link that the project brought. `path` has no links in its directory."""
    in_tree = _tree_of(path, home)
    if in_tree is not None:
        if _is_synced(*in_tree, target):
            raise AgentError(f"{path} is a link to {target}, which sync brought from the project", fix)
    elif project and path.startswith(os.path.realpath(project) + "/"):
        raise AgentError(f"{path} is a link to {target}, and a file of the project names the checkpoint", fix)


def _tree_of(path: str, home: str) -> tuple[ProjectTree, str] | None:
    """Return the synced tree that contains the path, and the path relative to it; None if no tree does. Links are
    resolved: a tree may be one."""
    code = os.path.join(home, "code")
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(code):
            root = os.path.realpath(os.path.join(code, name))
            if path.startswith(f"{root}/") and os.path.isdir(os.path.join(root, STATE_DIRECTORY)):
                return ProjectTree(os.fsencode(home), name, 1), path[len(root) + 1 :]
    return None


def _is_synced(tree: ProjectTree, name: str, target: str) -> bool:
    """True if sync brought this link. With another target it is the user's."""
    row = tree.rows.get(name)
    entries = [*([row.entry] if row is not None and row.is_from_sync else ())]
    entries += [entry for entry in tree.pending if entry.path == name]
    return any(entry.kind == "l" and entry.content == target for entry in entries)

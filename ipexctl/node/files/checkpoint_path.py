"""Finds the place of a checkpoint or of pushed data on this host, and decides whose links may lead there.

The PATH of `--checkpoint` or `push` comes in; the same place without links goes out, and every later step opens that
place without following a link. The rule: a project decides nothing about files outside of it. So a link that sync
brought is refused, and if a project's file set the PATH, also any other link below a working directory that is not
synced. A link that the user made on this host is followed; one of another account is only if that account owns the
directory, too.
"""

from __future__ import annotations

import contextlib
import os

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.guarded_directory import GuardedDirectory, check_made_by_others, resolve_links
from ipexctl.node.common.home_entries import STATE_DIRECTORY
from ipexctl.node.files.tree import ProjectTree

OWN_CHECKPOINT = "name the place itself in the call: --checkpoint /PATH/ON/EVERY/HOST"
OWN_DATA = "name the place itself in the call: ipexctl push SRC /PATH/ON/EVERY/HOST"


def resolve_path(path: str, home: str, project: str = "", *, fix: str = OWN_CHECKPOINT) -> str:
    """An absolute path without links, also if its end does not exist yet. Raises an AgentError for a refused link.

    `project`: the working directory of the ranks if a project's file set the path, else empty.
    """
    return resolve_links(path, fix, lambda here, target: _check_link(here, target, home, project, fix))


def check_place(path: str) -> None:
    """Raise an AgentError for a place, without links, that another account has made in a directory such as /tmp: that
    account decides what is in it."""
    with contextlib.suppress(FileNotFoundError), GuardedDirectory.open(os.path.dirname(path)) as above:
        check_made_by_others(path, above.status_of(os.fsencode(os.path.basename(path))), above.status(), OWN_CHECKPOINT)


def _check_link(path: str, target: str, home: str, project: str, fix: str) -> None:
    """Refuse a link that the project has brought. `path` has no links in its directory."""
    found = _tree_of(path, home)
    if found is not None:
        if _is_synced(*found, target):
            raise AgentError(f"{path} is a link to {target}, which sync brought from the project", fix)
    elif project and path.startswith(os.path.realpath(project) + "/"):
        raise AgentError(f"{path} is a link to {target}, and a file of the project names the checkpoint", fix)


def _tree_of(path: str, home: str) -> tuple[ProjectTree, str] | None:
    """The synced tree that a path is in, and its name there. A tree, or all of them, may be on another disk."""
    code = os.path.join(home, "code")
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(code):
            root = os.path.realpath(os.path.join(code, name))
            if path.startswith(f"{root}/") and os.path.isdir(os.path.join(root, STATE_DIRECTORY)):
                return ProjectTree(os.fsencode(home), name, 1), path[len(root) + 1 :]
    return None


def _is_synced(tree: ProjectTree, name: str, target: str) -> bool:
    """Whether sync brought this link. One in its place with another target is the user's."""
    row = tree.rows.get(name)
    entries = [*([row.entry] if row is not None and row.is_from_sync else ())]
    entries += [entry for entry in tree.pending if entry.path == name]
    return any(entry.kind == "l" and entry.content == target for entry in entries)

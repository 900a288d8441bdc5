"""Refuses a `--checkpoint` whose path leads through a link of the project, before any host gets a file of the run.

The path and the project on the control machine come in; a UserError goes out. The rule is that of
`node/files/checkpoint_path.py`, which each host applies again when it uses the path: a project decides nothing about
files outside of it.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.files.manifest import Manifest
    from ipexctl.run.start.project import ProjectLocation

_FIX: Final = (
    "have a directory of that name in place of the link, or name the place itself in the call: "
    "--checkpoint /PATH/ON/EVERY/HOST"
)


def check_synced_path(checkpoint: str, project: ProjectLocation, manifest: Manifest) -> None:
    """Refuse a relative path with a link that sync brings to the hosts. Pure."""
    links = {entry.path: entry.content for entry in manifest.entries if entry.kind == "l"}
    for path in _parts_of(checkpoint, project):
        if path in links:
            raise UserError(
                f"--checkpoint {quoted(checkpoint)}: {quoted(path)} is a link of the project to {quoted(links[path])}; "
                "sync brings it to every host, and there it would decide which files are exchanged",
                fix=f"{_FIX}; a link that you make on the hosts yourself is followed",
            )


def check_unsynced_path(checkpoint: str, project: ProjectLocation, *, is_found: bool) -> None:
    """Refuse a path that a project's file set if it has a link. Nobody can tell there whose link it is."""
    if is_found and (link := first_link(checkpoint, project)):
        raise UserError(
            f"--checkpoint {quoted(checkpoint)}: {quoted(link)} is a link, and a file that was found, not named, set "
            "this path",
            fix=_FIX,
        )


def first_link(checkpoint: str, project: ProjectLocation) -> str:
    """The first link of the project on the control machine in a relative path, synced or not; empty without one."""
    return next((path for path in _parts_of(checkpoint, project) if (project.root / path).is_symlink()), "")


def _parts_of(checkpoint: str, project: ProjectLocation) -> Iterator[str]:
    """The path and those above it, relative to the project's root; none that is above the root.

    None of an absolute path: a host knows whether it leads through its copy of the project.
    """
    parts = posixpath.normpath(posixpath.join(project.subdirectory, checkpoint)).split("/")
    if checkpoint and parts[0] not in ("", ".."):
        yield from ("/".join(parts[:end]) for end in range(1, len(parts) + 1))

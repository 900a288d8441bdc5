"""The options for the files that a sync sends: of `ipexctl sync`, `run` and `export`, and of both playbook modules."""

from __future__ import annotations

from dataclasses import dataclass

from ipexctl.option_declaration import declare

_PANEL = "Project files"


# Without eq and repr, which the requests made from it have: it is made at each start.
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SyncOptions:
    """Options for the files that a sync sends."""

    exclude: tuple[str, ...] = declare(
        "--exclude PAT", "Exclude this .gitignore pattern from the sync; repeatable.", (), panel=_PANEL
    )
    include: tuple[str, ...] = declare(
        "--include PAT",
        "Sync files that are excluded otherwise, such as credentials; repeatable.",
        (),
        panel=_PANEL,
        lost_in=("shell",),
        consequence="it leaves credentials out",
    )
    data: tuple[str, ...] = declare(
        "--data DIR", "Directory that every host has already; it is not synced. Repeatable.", (), panel=_PANEL
    )
    allow_big: bool = declare("--allow-big", "Sync a project of more than 1 GB or 20,000 files.", False, panel=_PANEL)

"""Options for the files that a sync sends: of `ipexctl sync`, and a base of the spec of a run.

They have a module of their own because a sync should not wait for the other options, whose declarations take 4 ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ipexctl.option_declaration import declare

PROJECT: Final = "Project files"


# Without eq and repr, which the spec has: it is made at each start.
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SyncOptions:
    exclude: tuple[str, ...] = declare(
        "--exclude PAT", "Exclude this .gitignore pattern from the sync; repeatable.", (), panel=PROJECT
    )
    include: tuple[str, ...] = declare(
        "--include PAT",
        "Sync files that are excluded otherwise, such as credentials; repeatable.",
        (),
        panel=PROJECT,
        lost_in=("shell",),
        consequence="it leaves credentials out",
    )
    data: tuple[str, ...] = declare(
        "--data DIR", "Directory that every host has already; it is not synced. Repeatable.", (), panel=PROJECT
    )
    allow_big: bool = declare("--allow-big", "Sync a project of more than 1 GB or 20,000 files.", False, panel=PROJECT)

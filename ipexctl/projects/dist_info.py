"""Write the files by which ranks see the project's own packages as installed: `importlib.metadata`, entry points,
commands.

They are as in a wheel's `dist-info`. Each field is checked where it is read, so no field can add a line to a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ipexctl.projects.layout import OwnPackage, ProjectLayout
from ipexctl.projects.modules import modules_in

DIRECTORY = "own"
"""Below the run's directory on each host."""


def dist_info_files(layout: ProjectLayout) -> Iterator[tuple[str, str]]:
    """Yield the name of each file, below the run's directory, and its text."""
    for package in layout.own:
        if not package.name:
            continue
        directory = f"{DIRECTORY}/{_escaped(package.name)}-{_escaped(package.version, more='.+!')}.dist-info"
        modules = sorted({module for path in package.paths for module in modules_in(layout.root / path)})
        yield f"{directory}/METADATA", _metadata(package)
        yield f"{directory}/top_level.txt", "".join(f"{module}\n" for module in modules)
        yield f"{directory}/entry_points.txt", _entry_points(package)
        yield f"{directory}/INSTALLER", "ipexctl\n"


def _escaped(text: str, more: str = "") -> str:
    """Return the text as it is in the name of a wheel."""
    return re.sub(rf"[^A-Za-z0-9{re.escape(more)}]+", "_", text)


def _metadata(package: OwnPackage) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {package.name}", f"Version: {package.version}"]
    lines += [f"Requires-Dist: {line}" for line in package.declaration.requires]
    return "".join(f"{line}\n" for line in lines)


def _entry_points(package: OwnPackage) -> str:
    lines = []
    for group, entries in package.declaration.entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()), ""]
    return "\n".join(lines)

"""Which paths of a project stay behind, by its own files and ours. The patterns' meaning is git's, by `pathspec`."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pathspec import GitIgnoreSpec

from ipexctl.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

FILES: Final = (".gitignore", ".ipexctlignore")
"""Read in every directory; what ours says goes over what git's says."""

DEFAULTS: Final = ("*.pyc", "node_modules/", ".tox/", ".nox/", ".DS_Store")
"""Below everything a project says, so that it can have one of them back: `!node_modules/`."""
ALWAYS: Final = (
    "/.ipexctl",  # on a node it is ours
    ".git",
    ".hg/",
    ".svn/",
    "__pycache__/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".ipynb_checkpoints/",
)
"""Whatever a project says: a `!*` of its doesn't mean these."""
ENVIRONMENT_MARKS: Final = (b"pyvenv.cfg", b"conda-meta")
"""What a directory has in it that is a virtual environment, whatever its name."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The patterns of one directory, which speak of what is below it."""

    base: str
    """Below the project's root, with a slash behind; empty for the root. For a directory above it: how the root is
    seen from there, with a `+` before."""
    spec: GitIgnoreSpec

    def says(self, path: str) -> bool | None:
        """True: stays behind. None: not a word."""
        seen = self.base[1:] + path if self.base.startswith("+") else path[len(self.base) :]
        return self.spec.check_file(seen).include


def layer(base: str, lines: Iterable[str], source: str = "") -> Layer:
    kept = [line.rstrip("\r\n") for line in lines]
    try:
        return Layer(base, GitIgnoreSpec.from_lines(kept))
    except ValueError:
        for number, line in enumerate(kept, 1):
            try:
                GitIgnoreSpec.from_lines([line])
            except ValueError:
                raise FileError(source, number, "this is no pattern of a .gitignore", text=line, column=1) from None
        raise


def layer_of(directory: Path, base: str, names: Iterable[str] = FILES) -> Layer | None:
    """What a directory's own files say; None where it has none."""
    lines: list[str] = []
    for name in names:
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
            text = (directory / name).read_bytes().decode("utf-8", "surrogateescape").removeprefix("\ufeff")
            lines += text.split("\n")
    return layer(base, lines, str(directory / FILES[0])) if lines else None


def outer_layers(root: Path) -> tuple[Layer, ...]:
    """What the repository around a project says, where the project is a part of one; the outermost first."""
    above = next((place for place in (root, *root.parents) if (place / ".git").exists()), None)
    if above is None:
        return ()
    found: list[Layer | None] = []
    parts = root.relative_to(above).parts
    for depth in range(len(parts) + 1):
        base = "".join(f"{part}/" for part in parts[depth:])
        if depth == 0:
            found.append(layer_of(above / ".git" / "info", f"+{base}", ("exclude",)))
        if depth < len(parts):
            found.append(layer_of(above.joinpath(*parts[:depth]), f"+{base}"))
    return tuple(one for one in found if one is not None)


class Ignored:
    """All that is said about the paths of one project."""

    def __init__(self, outer: Sequence[Layer], excludes: Sequence[str]) -> None:
        self.outer = (layer("", DEFAULTS), *outer)
        self._call = layer("", (*excludes, *ALWAYS))

    def stays(self, path: str, layers: Sequence[Layer], *, is_directory: bool) -> bool:
        """Whether it stays behind. The last word is the call's, then the nearest directory's; in a file, the last."""
        seen = f"{path}/" if is_directory else path
        said = self._call.says(seen)
        for each in reversed(layers):
            if said is not None:
                break
            said = each.says(seen)
        return bool(said)


def pattern_for(path: str) -> str:
    """A line that means this path of the project, and no other."""
    return "/" + "".join(f"\\{c}" if c in "\\*?[!# " else c for c in os.fspath(path))

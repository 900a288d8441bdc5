"""Which paths of a project stay behind, by its own files and ours. The patterns' meaning is git's, by `pathspec`."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pathspec import GitIgnoreSpec

from ipexctl.errors import FileError
from ipexctl.sync.credentials import is_credential

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

FILES: Final = (".gitignore", ".ipexctlignore")
"""Read in every directory; what ours says goes over what git's says."""

DEFAULTS: Final = ("*.pyc", "node_modules/", ".tox/", ".nox/", ".DS_Store")
"""Below everything a project says, so that it can have one of them back: `!node_modules/`."""
ALWAYS: Final = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "__pycache__",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".ipynb_checkpoints",
    }
)
"""Directories at any depth, whatever a project says: a `!*` of its doesn't mean these. A set: patterns are slow."""
ALWAYS_FILES: Final = frozenset({".git"})
"""In a git worktree or submodule it is a file."""
OWN: Final = ".ipexctl"
"""In the root: the record of the tree on a node."""
ENVIRONMENT_MARKS: Final = (b"pyvenv.cfg", b"conda-meta")
"""What a directory has in it that is a virtual environment, whatever its name."""


Reason = Literal["excluded", "ignored", "credentials"]
"""Why a path is left out: by `--exclude` or `ALWAYS`; by a file or `DEFAULTS`; because of its name alone."""

_WILDCARDS: Final = frozenset("*?[\\")


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
    above = next((place for place in (root, *root.parents) if os.path.exists(place / ".git")), None)
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

    def __init__(self, outer: Sequence[Layer], excludes: Sequence[str], includes: Sequence[str] = ()) -> None:
        self.outer = (layer("", DEFAULTS), *outer)
        self._excludes = layer("", excludes, "--exclude") if excludes else None
        self._includes = layer("", includes, "--include") if includes else None
        self._above_includes = frozenset(parent for pattern in includes for parent in parents_of_pattern(pattern))

    def reason_left_out(
        self, path: str, layers: Sequence[Layer], *, is_directory: bool, inside: Reason | None = None
    ) -> Reason | None:
        """Why a path is left out; None: it is sent. `inside`: the reason its directory is left out.

        The last word is `--exclude`'s, then `--include`'s, then that of the rule for credentials, then the nearest
        directory's; in a file, the last line's. No file of a project sends credentials: a clone brings such files.
        """
        if path == OWN or path[path.rfind("/") + 1 :] in (ALWAYS if is_directory else ALWAYS_FILES):
            return "excluded"
        seen = f"{path}/" if is_directory else path
        said = self._excludes.says(seen) if self._excludes is not None else None
        if said:
            return "excluded"
        reason = inside
        if reason is None:
            for each in reversed(layers):
                if said is not None:
                    break
                said = each.says(seen)
            if said:
                reason = "ignored"
            elif is_credential(path, is_directory=is_directory):
                reason = "credentials"
        if reason is not None and self._includes is not None and self._includes.says(seen):
            return None
        return reason

    def is_above_include(self, path: str) -> bool:
        """Whether an `--include` names something below this directory by its path from the root."""
        return path in self._above_includes

    def stays(self, path: str, layers: Sequence[Layer], *, is_directory: bool) -> bool:
        """Whether it stays behind."""
        return self.reason_left_out(path, layers, is_directory=is_directory) is not None


def parents_of_pattern(pattern: str) -> tuple[str, ...]:
    """The directories above what a pattern names, as far as they have no wildcard. Pure.

    A pattern with a slash within begins at the root; one without names a path at any depth, and has no parents.
    """
    if pattern.startswith("!"):
        return ()
    parts = pattern.strip().strip("/").split("/")[:-1]
    found: list[str] = []
    for part in parts:
        if _WILDCARDS & set(part):
            break
        found.append(f"{found[-1]}/{part}" if found else part)
    return tuple(found)


def pattern_for(path: str) -> str:
    """A line that means this path of the project, and no other."""
    return "/" + "".join(f"\\{c}" if c in "\\*?[!# " else c for c in os.fspath(path))

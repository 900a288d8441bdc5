"""Decide what a project is: its own packages, the directories from which ranks import them, and the names that no index
is asked for.

The texts of its files decide, and which directories have Python in them; nothing of it is run.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ipexctl.node.env.check import normalize
from ipexctl.projects.declaration import PackageDeclaration, is_below, read_declaration
from ipexctl.projects.modules import has_packages, modules_in
from ipexctl.projects.project_files import TextReader
from ipexctl.projects.workspace import MOST_ENTRIES, find_members
from ipexctl.text import join_words, tilde_path

_LOCAL_VERSION: Final = "0+local"
_MOST_DIRECTORIES: Final = 50


@dataclass(frozen=True, slots=True)
class OwnPackage:
    directory: str
    """The directory with the declaration, relative to the root; `.` for the root."""
    declaration: PackageDeclaration
    paths: tuple[str, ...]
    """Directories that ranks import from, relative to the root."""

    @property
    def file(self) -> str:
        """The file that declares the package, relative to the project."""
        return posixpath.normpath(posixpath.join(self.directory, self.declaration.file))

    @property
    def name(self) -> str:
        """The name as it is declared."""
        return self.declaration.name

    @property
    def normalized(self) -> str:
        """The name as indexes compare it."""
        return self.declaration.normalized

    @property
    def version(self) -> str:
        """The declared version; a stand-in for one that only its build knows."""
        return self.declaration.version or _LOCAL_VERSION


@dataclass(frozen=True, slots=True)
class ProjectLayout:
    root: Path
    own: tuple[OwnPackage, ...] = ()
    """Packages of the script's directory first, then packages of the directories above it, then packages of the
    workspace that these need."""
    is_workspace: bool = False
    members: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Normalized name of each declared package of the project → the file that has the name, relative to the root."""
    outside: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Normalized name of a package that the project takes from a path outside its root → file, name and path."""
    notes: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The directories from which ranks import, relative to the root. The root is the last."""
        return self.paths_with(frozenset())

    def paths_with(self, packages: Collection[str]) -> tuple[str, ...]:
        """Return `paths` for an environment with these packages. Directories of packages with compiled parts are left
        out if the environment has them as a wheel, because the project's files would hide the wheel's."""
        normalized = frozenset(map(normalize, packages))
        compiled = [package for package in self.own if package.declaration.is_compiled]
        left_out = {path for package in compiled if package.normalized in normalized for path in package.paths}
        kept = [path for package in self.own for path in package.paths if path not in left_out]
        root = [] if "." in left_out else ["."]
        return tuple(dict.fromkeys([*(path for path in kept if path != "."), *root]))

    @property
    def search_paths(self) -> tuple[Path, ...]:
        """Directories of the project's own modules on this machine."""
        return tuple(self.root / path for path in self.paths)

    @property
    def commands(self) -> dict[str, str]:
        """Console scripts of the own packages: name → `module:function`."""
        return {name: target for package in reversed(self.own) for name, target in package.declaration.commands.items()}

    @property
    def own_modules(self) -> frozenset[str]:
        """Names of the modules of the project's own packages."""
        return frozenset(
            module for package in self.own for path in package.paths for module in modules_in(self.root / path)
        )

    def is_own(self, name: str) -> bool:
        """True if a package of this name is one of the project."""
        return normalize(name) in self.members

    def describe(self) -> str:
        """Return text such as `own package tinylm in src/`; empty if nothing is declared."""
        named = [package for package in self.own if package.name]
        if not named:
            return ""
        if self.is_workspace:
            return f"own packages {', '.join(package.name for package in named)} (uv workspace)"
        if len(named) > 1:
            return f"own packages {join_words([package.name for package in named])}"
        places = [path for path in named[0].paths if path != "."]
        return f"own package {named[0].name}" + (f" in {join_words([f'{path}/' for path in places])}" if places else "")


NO_LAYOUT: Final = ProjectLayout(Path())


def read_layout(root: Path, start: Path) -> ProjectLayout:
    """Return the project of a script or module that starts in `start`, a directory at or below the root."""
    notes: list[str] = []
    texts = TextReader(root, notes.append)
    chain = directories_up(root, start)
    declared = {directory: declaration for directory in chain if (declaration := _read(texts, directory)) is not None}
    top = declared.get(".")
    members: dict[str, str] = {}
    in_workspace: dict[str, str] = {}
    is_workspace = top is not None and top.is_workspace
    if top is not None and is_workspace:
        directories = find_members(root, top.members)
        if directories is None:
            notes.append(
                f"the directories of the uv workspace {tilde_path(root)} have more than {MOST_ENTRIES:,} "
                "entries; only members above the script count"
            )
        for directory in directories or ():
            declaration = declared.get(directory) or _read(texts, directory)
            if declaration is not None:
                declared.setdefault(directory, declaration)
                in_workspace[declaration.normalized] = directory
    above = [directory for directory in chain if directory in declared]
    wanted, outside = _needed(texts, above, declared, in_workspace)
    if is_workspace and not any(declared[directory].name for directory in above):
        wanted += [directory for directory in in_workspace.values() if directory not in wanted]
    for directory, declaration in declared.items():
        if declaration.name:
            members[declaration.normalized] = posixpath.normpath(posixpath.join(directory, declaration.file))
    own = tuple(
        OwnPackage(directory, declared[directory], _paths_of(root, directory, declared[directory], notes.append))
        for directory in wanted
    )
    if not any(package.directory == "." for package in own) and has_packages(root / "src"):
        own = (*own, OwnPackage(".", PackageDeclaration(""), ("src",)))
    return ProjectLayout(root, own, is_workspace, members, outside, tuple(dict.fromkeys(notes)))


def directories_up(root: Path, start: Path) -> list[str]:
    """Return the directories from `start` up to the root, relative to the root."""
    relative = start.relative_to(root) if start.is_relative_to(root) else Path()
    return [path.as_posix() for path in dict.fromkeys((relative, *relative.parents))]


def _read(texts: TextReader, directory: str) -> PackageDeclaration | None:
    return read_declaration(lambda name: texts(posixpath.join(directory, name)))


def _needed(
    texts: TextReader,
    above: Sequence[str],
    declared: dict[str, PackageDeclaration],
    in_workspace: Mapping[str, str],
) -> tuple[list[str], dict[str, str]]:
    """Return the directories of the packages that the script's own packages need, and the names of packages outside the
    root, with the reason."""
    wanted, waiting, outside = list[str](), list(above), dict[str, str]()
    root = texts.directory
    real = Path(os.path.realpath(root))
    while waiting:
        directory = waiting.pop(0)
        if directory in wanted:
            continue
        wanted.append(directory)
        declaration = declared[directory]
        for name, path in declaration.sources.items():
            source = in_workspace.get(name, "") if not path else posixpath.normpath(posixpath.join(directory, path))
            if path and not _is_inside(root, real, source):
                file = posixpath.normpath(posixpath.join(directory, declaration.file))
                outside[name] = f"{file}: {name} is at {path}"
                continue
            if source and source not in declared and (neighbor := _read(texts, source)) is not None:
                declared[source] = neighbor
            if source in declared:
                waiting.append(source)
    return wanted, outside


def _is_inside(root: Path, real: Path, path: str) -> bool:
    return is_below(path) and Path(os.path.realpath(root / path)).is_relative_to(real)


def _paths_of(
    root: Path, directory: str, declaration: PackageDeclaration, on_note: Callable[[str], None]
) -> tuple[str, ...]:
    """Return the directories from which a package is imported: those that it declares, else `src` if packages are in
    it, else its own. A directory outside the project does not count, and is noted."""
    real = Path(os.path.realpath(root))
    file = posixpath.normpath(posixpath.join(directory, declaration.file))
    existing = []
    if len(declaration.import_directories) > _MOST_DIRECTORIES:
        on_note(f"{file} declares directories of modules; only the first {_MOST_DIRECTORIES} count")
    for path in declaration.import_directories[:_MOST_DIRECTORIES]:
        relative = posixpath.normpath(posixpath.join(directory, path))
        if not _is_inside(root, real, relative):
            on_note(f"{file}: the directory {path} leads out of the project, and does not count")
        elif (root / relative).is_dir():
            existing.append(relative)
    if existing:
        return tuple(existing)
    source = posixpath.normpath(posixpath.join(directory, "src"))
    return (source if has_packages(root / source) and _is_inside(root, real, source) else directory,)

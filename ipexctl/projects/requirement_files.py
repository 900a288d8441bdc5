"""Find the files that name what a project requires, for `run --install` and for hints.

The first of these that exists counts:

- the lists from the script's directory up to the root together, with uv's lock in place of the packages' own
  declarations;
- the list that a line of a README names, up to the repository's root;
- conda's file;
- the packages that a README installs by their names.

Slow imports are avoided, because this runs at each start of a run.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from ipexctl.node.env.check import normalize
from ipexctl.projects.declaration import (
    FILES,
    FOR_DEVELOPERS,
    PYPROJECT,
    SETUP_CFG,
    SETUP_PY,
    is_below,
    read_declaration,
    table,
)
from ipexctl.projects.layout import ProjectLayout, directories_up
from ipexctl.projects.project_files import TextReader

UV_LOCK: Final = "uv.lock"
REQUIREMENTS: Final = "requirements.txt"
CONDA: Final = ("environment.yml", "environment.yaml", "conda.yml", "conda.yaml")
_READMES: Final = ("README.md", "README.rst", "README.txt", "README", "INSTALL.md")
_LIST_LINE: Final = re.compile(
    r"\b(?:pip3? install\b[^\n`]{0,300}?\s(?:-r|--requirement)"
    r"|(?:conda|mamba|micromamba) (?:env )?(?:create|update)\b[^\n`]{0,300}?\s(?:-f|--file))[ =]?\s*[\"']?([\w./-]+)"
)
_INSTALL_LINE: Final = re.compile(
    r"(?m)(?:^[ \t]*(?:[$>!%][ \t]*)?|`)(?:python3? -m |uv |sudo )?pip3? install[ \t]+([^\n`;&|#]{1,500})(?=[`;&|#]|$)"
)
_PACKAGE: Final = re.compile(
    r"([\"']?)([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?(?:\[[\w,-]+\])?(?:[=<>!~]=?[\w.*]+(?:,[<>!~]=?[\w.*]+)*)?)\1"
)
_PLAIN_OPTIONS: Final = frozenset(("-U", "-q", "-v", "--upgrade", "--user", "--quiet", "--pre", "--no-cache-dir"))
_NAME: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_PIN: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[\w, -]*\])?\s*==\s*([\w.!+]+)\s*(?:[;#]|$)")
_CONDA_LINE: Final = re.compile(r"\s*-\s+[\"']?([A-Za-z0-9][A-Za-z0-9._-]*)")
_REPOSITORY: Final = re.compile(r"\s*(git|hg|svn|bzr)\+|\s*https?:")
GPU_ONLY: Final = re.compile(
    r"flash-attn(-\d+)?|flashinfer-python|xformers|bitsandbytes|deepspeed|apex|transformer-engine(-.+)?|mamba-ssm"
    r"|causal-conv1d|cupy-cuda\d+x?|nvidia-.+|onnxruntime-gpu|triton"
)
"""Packages that have no wheel for CPUs, or no use there."""
_NOT_FOR_ALL: Final = re.compile(r";|^\s*[\w.-]+=[^=]")
"""A marker, or a package of conda."""
_MAIN: Final = ("requirements", "base", "main", "runtime", "core", "common")
_MOST_OTHERS: Final = 20


class RequirementFiles(NamedTuple):
    """The files and names of what a project requires. Paths are relative to the project's root."""

    files: tuple[str, ...] = ()
    """Files that `run --install` takes, the nearest to the script first."""
    names: frozenset[str] = frozenset()
    """Normalized names of the packages in them, without the project's own."""
    pins: tuple[str, ...] = ()
    """Packages of which the files require one version, as in `peft==0.14`."""
    optional: tuple[tuple[str, str], ...] = ()
    """Normalized name of a package, and the option that adds it: an extra, a group, or a file that is not taken by
    default, as in `--extra dev`."""
    others: tuple[str, ...] = ()
    """Files of requirements that nobody takes unless they are named; one for all uses comes first."""
    asked: tuple[str, ...] = ()
    """Files among `files` that only a build backend can read."""
    notes: tuple[str, ...] = ()
    """Why files do not count."""
    stated: tuple[str, ...] = ()
    """Requirements that a README installs by their names, if there are no files."""

    def option_for(self, packages: Sequence[str], *, only_files: bool = False) -> str:
        """Return the options, such as `--extra train`, that add more than half of these packages; empty if there are
        none. What they add may bring the other packages, too."""
        left, chosen, has = set(map(normalize, packages)), list[str](), dict[str, set[str]]()
        for name, option in self.optional:
            if not only_files or option.startswith("-r "):
                has.setdefault(option, set()).add(name)
        while has:
            best = max(has, key=lambda option: (len(has[option] & left), not option.startswith("-r ")))
            if not has[best] & left:
                break
            has_list = any(option.startswith("-r ") for option in (best, *chosen))
            if not (chosen and has_list):  # lists may disagree
                chosen.append(best)
                left -= has[best]
            del has[best]
        return " ".join(chosen) if 2 * len(left) < len({*packages}) else ""


def find_requirement_files(layout: ProjectLayout, start: Path) -> RequirementFiles:
    """Return what a project requires, by its files. `start`: the directory of the script, at or below the root."""
    root = layout.root
    chain = directories_up(root, start)
    notes: list[str] = []
    files: list[str] = []
    for directory in chain:
        files += _files_in(root, directory, notes)
    is_locked = any(os.path.basename(file) == UV_LOCK for file in files)
    for package in layout.own if not is_locked else ():
        for name in _declaring(root, package.directory)[:1]:
            files += [name] if name not in files else []
    places = (_joined(directory, name) for directory in chain for name in CONDA)
    conda = next((file for file in places if (root / file).is_file()), "")
    repository = next((path for path in (root, *root.parents) if os.path.lexists(path / ".git")), root)
    readmes = TextReader(repository)
    files = files or [*islice(_lists_in_readmes(readmes, root, chain[0]), 1)]
    files = files or [conda] * bool(conda)
    stated = () if files else tuple(islice(_packages_in_readmes(readmes, layout, chain[0]), _MOST_STATED))
    others = tuple(file for file in (*_other_files(root), conda) if file and file not in files)
    names, optional = _names_in(layout, files, others)
    pins = tuple(pin for file in files for pin in _pins_of(layout, file))
    asked = tuple(file for file in files if file.endswith(FILES) and needs_backend(root / file))
    names |= {*_of_lines(stated)}
    shown = tuple(dict.fromkeys(notes))
    return RequirementFiles(tuple(files), names, pins, optional, others, asked, shown, stated)


def with_optional(
    files: Sequence[str], layout: ProjectLayout, extras: Sequence[str], groups: Sequence[str]
) -> tuple[str, ...]:
    """Return the files with the extras and groups of the call, as in `pyproject.toml[train,group:dev]`. All go to the
    first file that can have them, which reports one that it lacks."""
    wanted = [*extras, *(f"group:{group}" for group in groups)]
    if not wanted:
        return tuple(files)
    chosen = list(files)
    able = next((file for file in chosen if os.path.basename(file) in (UV_LOCK, *FILES)), None)
    if able is None:
        able = next((package.file for package in layout.own if package.declaration.file), PYPROJECT)
        chosen.append(able)
    return tuple(f"{file}[{','.join(wanted)}]" if file == able else file for file in chosen)


def _joined(directory: str, name: str) -> str:
    return name if directory == "." else f"{directory}/{name}"


def _files_in(root: Path, directory: str, notes: list[str]) -> list[str]:
    """Return the files of one directory that name requirements. A lock replaces the others."""
    read = TextReader(root / directory, notes.append)
    pyproject, listed = read(PYPROJECT), bool(read(REQUIREMENTS).strip())
    if (root / directory / UV_LOCK).is_file() and pyproject:
        return [_joined(directory, UV_LOCK)]
    names = [PYPROJECT] if has_dependencies(pyproject) else []
    names += [REQUIREMENTS] if listed else []
    return [_joined(directory, name) for name in names] or _declaring(root, directory)[:1]


def _declaring(root: Path, directory: str) -> list[str]:
    """Return the declarations of a directory that have requirements. A setup.py that opens the requirements.txt beside
    it has no others."""
    read = TextReader(root / directory)
    names = [PYPROJECT] if has_dependencies(read(PYPROJECT)) else []
    opens_list = REQUIREMENTS in read(SETUP_PY) and read(REQUIREMENTS).strip()
    names += [name for name in (SETUP_CFG, SETUP_PY) if "install_requires" in read(name) and not opens_list]
    return [_joined(directory, name) for name in names]


def _lists_in_readmes(read: TextReader, root: Path, start: str) -> Iterator[str]:
    """Yield the lists of the repository, except those for developers, that READMEs from the directory upward
    install."""
    for directory in directories_up(read.directory, root / start):
        for text in (read(_joined(directory, name)) for name in _READMES):
            for match in _LIST_LINE.finditer(text):
                file = posixpath.normpath(_joined(directory, match[1]))
                if is_below(file) and not FOR_DEVELOPERS.search(file) and read(file).strip():
                    yield os.path.relpath(read.directory / file, root)


def _packages_in_readmes(read: TextReader, layout: ProjectLayout, start: str) -> Iterator[str]:
    """Yield the packages that `pip install NAMES` of the nearest README names, without the project, torch, and what is
    for GPUs. A line with another option, such as an index, is left out."""
    for directory in directories_up(read.directory, layout.root / start):
        stated = dict[str, str]()
        for text in (read(_joined(directory, name)) for name in _READMES):
            for match in _INSTALL_LINE.finditer(text):
                arguments = [word for word in match[1].split() if word not in _PLAIN_OPTIONS]
                packages = [package[2] for package in map(_PACKAGE.fullmatch, arguments) if package]
                for package in packages if len(packages) == len(arguments) else ():
                    name = next(_of_lines([package]))
                    if not (layout.is_own(name) or GPU_ONLY.fullmatch(name) or name in _OF_TORCH):
                        stated.setdefault(name, package)
        if stated:
            yield from stated.values()
            return


_OF_TORCH: Final = ("torch", "torchvision", "torchaudio", "pip", "ipexctl")
_MOST_STATED: Final = 30


def _other_files(root: Path) -> Iterator[str]:
    """Yield files below the root that look like lists of requirements but are not for developers, the main ones
    first."""
    patterns = ("*requirements*.txt", "requirements*/*.txt", "requirements*/*.in")
    files = [path for pattern in patterns for path in sorted(root.glob(pattern))[:_MOST_OTHERS]]

    names = [path.relative_to(root).as_posix() for path in sorted(files, key=lambda path: path.stem not in _MAIN)]
    yield from (name for name in names if not FOR_DEVELOPERS.search(name))


def has_dependencies(pyproject: str) -> bool:
    """Return True if pyproject.toml has requirements, even if only the build backend can read them."""
    return bool(table(pyproject, "project").get("dependencies")) or is_read_by_backend(PYPROJECT, pyproject)


def is_read_by_backend(file: str, text: str) -> bool:
    """Return True if the build backend decides about requirements: for setup.cfg and setup.py, `dynamic =
    ["dependencies"]`, and Poetry's own table in place of [project]."""
    if not file.endswith(PYPROJECT):
        return True
    project, tool = table(text, "project"), table(text, "tool")
    dynamic, poetry = project.get("dynamic"), tool.get("poetry")
    has_own = not project and isinstance(poetry, dict) and bool(poetry.get("dependencies"))
    return has_own or (isinstance(dynamic, list) and "dependencies" in dynamic)


def needs_backend(path: Path, extras: Sequence[str] = ()) -> bool:
    """True if the text of a declaration does not show all that it requires, also for these extras."""
    read = TextReader(path.parent)
    declaration = read_declaration(read)
    is_shown = declaration is not None and declaration.is_listed and {*extras} <= {*declaration.extras}
    return is_read_by_backend(path.name, read(path.name)) and not is_shown


def _names_in(
    layout: ProjectLayout, files: Sequence[str], others: Sequence[str]
) -> tuple[frozenset[str], tuple[tuple[str, str], ...]]:
    """Return the names that the files and own packages require, and names that extras, groups or other files would add,
    each with the option that adds it."""
    names: set[str] = set()
    optional: list[tuple[str, str]] = []
    for file in files:
        names |= set(_names_of(layout, file))
    for package in layout.own:
        names |= set(_of_lines(package.declaration.requires))
        groups = table(TextReader(layout.root / package.directory)(PYPROJECT), "dependency-groups")
        for option, lists in (("--extra", package.declaration.extras), ("--group", groups)):
            for key, entries in lists.items():
                lines = entries if isinstance(entries, (list, tuple)) else ()
                optional += [(name, f"{option} {shlex.quote(str(key))}") for name in _of_lines(lines)]
    for file in others:
        by_file = f"-r {shlex.quote(os.path.relpath(layout.root / file))}"
        optional += [(name, by_file) for name in _names_of(layout, file)]
    own = frozenset(layout.members)
    return frozenset(names) - own, tuple(entry for entry in optional if entry[0] not in own | names)


def _names_of(layout: ProjectLayout, file: str) -> Iterator[str]:
    """Yield the names in a list; none of a lock, which also has what only other packages and groups require."""
    name, text = os.path.basename(file), TextReader(layout.root)(file)
    if name.endswith((".yml", ".yaml")):
        lines = re.split(r"(?m)^dependencies:", text)[-1].splitlines()
        names = (normalize(match[1]) for match in map(_CONDA_LINE.match, lines) if match and "+" not in match.string)
        yield from (name for name in names if name != "pip")
    elif name not in (*FILES, UV_LOCK):
        yield from _of_lines(text.splitlines())


def _pins_of(layout: ProjectLayout, file: str) -> Iterator[str]:
    if file.endswith(".txt"):
        for match in map(_PIN.match, TextReader(layout.root)(file).splitlines()):
            if match:
                yield f"{normalize(match[1])}=={match[2]}"


def _of_lines(lines: Sequence[object]) -> Iterator[str]:
    for line in lines:
        if isinstance(line, str) and not _REPOSITORY.match(line) and (match := _NAME.match(line)):
            yield normalize(match[1])


def find_lacking(layout: ProjectLayout, files: RequirementFiles, packages: Collection[str]) -> tuple[str, ...]:
    """Return the packages of the chosen lists that an environment with these packages lacks, as far as every host needs
    them: none for GPUs, and none with a marker."""
    lines: list[object] = []
    for file in files.files:
        if file.endswith(".txt"):
            lines += TextReader(layout.root)(file).splitlines()
        names = (file, re.sub(f"{UV_LOCK}$", PYPROJECT, file))  # a lock has what its project requires
        lines += [line for package in layout.own if package.file in names for line in package.declaration.requires]
    required = _of_lines([line for line in lines if isinstance(line, str) and not _NOT_FOR_ALL.search(line)])
    own = {*layout.members, *packages}
    return tuple(dict.fromkeys(name for name in required if name not in own and not GPU_ONLY.fullmatch(name)))


def digest_of_list(path: Path) -> str:
    """Return a digest of what a build backend reads, as far as it is known: the declarations beside a list."""
    read = TextReader(path.parent)
    return hashlib.sha256("\0".join(map(read, FILES)).encode("utf-8", "surrogatepass")).hexdigest()[:16]

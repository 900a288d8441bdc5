"""The files that name what a project requires, for `run --install` and for hints: uv's lock alone; else the nearest
pyproject.toml and requirements.txt together; else setup.cfg or setup.py; else conda's file; and what each own package
declares. Avoids slow imports, because it runs at each start of a run.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ipexctl.found_files import TomlError, parse_toml
from ipexctl.node.env.check import normalize
from ipexctl.projects.declaration import FILES, PYPROJECT, SETUP_CFG, SETUP_PY, read_setup_call
from ipexctl.projects.layout import ProjectLayout
from ipexctl.projects.project_files import TextReader

UV_LOCK: Final = "uv.lock"
REQUIREMENTS: Final = "requirements.txt"
CONDA: Final = ("environment.yml", "environment.yaml", "conda.yml", "conda.yaml")
_NAME: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_CONDA_LINE: Final = re.compile(r"\s*-\s+[\"']?([A-Za-z0-9][A-Za-z0-9._-]*)")
_MAIN: Final = ("requirements", "base", "main")
_MOST_OTHERS: Final = 20
DYNAMIC: Final = "leaves its dependencies to its build (dynamic), which ipexctl does not run"
WRITE_DYNAMIC: Final = (
    "name the file that has them with -r, or write one: uv pip compile pyproject.toml -o requirements-all.txt"
)


class RequirementFiles(NamedTuple):
    """Relative to the project's root."""

    files: tuple[str, ...] = ()
    """Those that `run --install` takes, the nearest to the script first."""
    names: frozenset[str] = frozenset()
    """Normalized names of the packages in them, without the project's own."""
    optional: tuple[tuple[str, str], ...] = ()
    """Normalized name of a package, and the extra or group that has it, as an option: `--extra dev`."""
    unread: str = ""
    """A requirements.txt beside a lock, which is not read."""
    others: tuple[str, ...] = ()
    """Files of requirements that nobody takes unless they are named; one for all uses comes first."""
    is_computed: bool = False
    """True if only the code of a setup.py knows the requirements."""
    notes: tuple[str, ...] = ()
    """Why files do not count."""

    def option_for(self, packages: Sequence[str]) -> str:
        """The extras or groups that have the packages; empty unless all are in one."""
        found = dict(self.optional)
        options = [found.get(normalize(package), "") for package in packages]
        return " ".join(dict.fromkeys(options)) if all(options) else ""


def find_requirement_files(layout: ProjectLayout, start: Path) -> RequirementFiles:
    """`start`: the directory of the script, at or below the root."""
    chain = _chain(layout.root, start)
    notes: list[str] = []
    found: list[str] = []
    unread, is_computed = "", False
    for directory in chain:
        found, unread, is_computed_here = _files_in(layout.root, directory, notes)
        is_computed |= is_computed_here
        if found:
            break
    is_locked = found and os.path.basename(found[0]) == UV_LOCK
    for package in layout.own if not is_locked else ():
        for name in _declaring(layout.root, package.directory)[:1]:
            found += [name] if name not in found else []
        is_dynamic = _is_dynamic(TextReader(layout.root / package.directory)(PYPROJECT))
        if is_dynamic and package.directory not in {os.path.dirname(file) or "." for file in found}:
            notes.append(f"{_joined(package.directory, PYPROJECT)} {DYNAMIC}; {WRITE_DYNAMIC}")
    if not found:
        found = next((list(files) for directory in chain if (files := _conda_in(layout.root, directory))), [])
    others = () if found else tuple(_other_files(layout.root))
    names, optional = _names_in(layout, found)
    is_computed = is_computed and not found
    return RequirementFiles(tuple(found), names, optional, unread, others, is_computed, tuple(dict.fromkeys(notes)))


def with_optional(
    files: Sequence[str], layout: ProjectLayout, extras: Sequence[str], groups: Sequence[str]
) -> tuple[str, ...]:
    """The files with the extras and groups of the call, as in `pyproject.toml[train,group:dev]`. Each goes to the first
    file that can have it, which reports one that it lacks."""
    wanted = [*extras, *(f"group:{group}" for group in groups)]
    if not wanted:
        return tuple(files)
    found = list(files)
    able = next((file for file in found if os.path.basename(file) in (UV_LOCK, *FILES)), None)
    if able is None:
        able = next((package.file for package in layout.own if package.declaration.file), PYPROJECT)
        found.append(able)
    return tuple(f"{file}[{','.join(wanted)}]" if file == able else file for file in found)


def _chain(root: Path, start: Path) -> list[str]:
    if not start.is_relative_to(root):
        return ["."]
    relative = start.relative_to(root)
    return list(dict.fromkeys(path.as_posix() for path in (relative, *relative.parents)))


def _joined(directory: str, name: str) -> str:
    return name if directory == "." else f"{directory}/{name}"


def _files_in(root: Path, directory: str, notes: list[str]) -> tuple[list[str], str, bool]:
    """The files of one directory, the requirements.txt that a lock replaces, and whether only code knows the list."""
    read = TextReader(root / directory, notes.append)
    pyproject, listed = read(PYPROJECT), bool(read(REQUIREMENTS).strip())
    if (root / directory / UV_LOCK).is_file() and pyproject:
        return [_joined(directory, UV_LOCK)], _joined(directory, REQUIREMENTS) if listed else "", False
    found = [PYPROJECT] if _has_dependencies(pyproject) else []
    found += [REQUIREMENTS] if listed else []
    if found:
        return [_joined(directory, name) for name in found], "", False
    declared = _declaring(root, directory)
    call = read_setup_call(read(SETUP_PY)) if read(SETUP_PY) else None
    is_computed = call is not None and "install_requires" in call.computed and not declared
    return declared[:1], "", is_computed


def _declaring(root: Path, directory: str) -> list[str]:
    """The declarations of a directory with requirements, and the list that its setup.py opens."""
    read = TextReader(root / directory)
    found = [PYPROJECT] if _has_dependencies(read(PYPROJECT)) else []
    if re.search(r"(?m)^\s*install_requires\s*[=:]", read(SETUP_CFG)):
        found.append(SETUP_CFG)
    if text := read(SETUP_PY):
        call = read_setup_call(text)
        if call.values.get("install_requires"):
            found.append(SETUP_PY)
        elif "install_requires" in call.computed:
            found += [name for name in call.opened if read(name).strip()][:1]
    return [_joined(directory, name) for name in found]


def _conda_in(root: Path, directory: str) -> tuple[str, ...]:
    return tuple(_joined(directory, name) for name in CONDA if (root / directory / name).is_file())[:1]


def _other_files(root: Path) -> Iterator[str]:
    for pattern in ("requirements*.txt", "requirements*/*.txt", "requirements*/*.in"):
        for path in sorted(root.glob(pattern), key=lambda path: (path.stem not in _MAIN, path))[:_MOST_OTHERS]:
            yield path.relative_to(root).as_posix()


def _has_dependencies(pyproject: str) -> bool:
    return bool(_table(pyproject, "project").get("dependencies"))


def _is_dynamic(pyproject: str) -> bool:
    dynamic = _table(pyproject, "project").get("dynamic")
    return isinstance(dynamic, list) and "dependencies" in dynamic


def _table(pyproject: str, name: str) -> dict[str, object]:
    found = _parsed(pyproject).get(name)
    return found if isinstance(found, dict) else {}


def _parsed(text: str) -> dict[str, object]:
    try:
        return parse_toml(text) if text else {}
    except TomlError:
        return {}


def _names_in(layout: ProjectLayout, files: Sequence[str]) -> tuple[frozenset[str], tuple[tuple[str, str], ...]]:
    names: set[str] = set()
    optional: dict[str, str] = {}
    for file in files:
        directory, name = os.path.split(file)
        text = TextReader(layout.root / (directory or "."))(name)
        if name in CONDA:
            names |= {normalize(match[1]) for match in map(_CONDA_LINE.match, text.splitlines()) if match}
        elif name not in (*FILES, UV_LOCK):  # a lock also has what only other packages and groups require
            names |= set(_of_lines(text.splitlines()))
    for package in layout.own:
        names |= set(_of_lines(package.declaration.requires))
        document = _parsed(TextReader(layout.root / package.directory)(PYPROJECT))
        project = document.get("project")
        extras = project.get("optional-dependencies") if isinstance(project, dict) else None
        for option, table in (("--extra", extras), ("--group", document.get("dependency-groups"))):
            for key, entries in table.items() if isinstance(table, dict) else ():
                for entry in _of_lines(entries if isinstance(entries, list) else ()):
                    optional.setdefault(entry, f"{option} {shlex.quote(str(key))}")
    own = frozenset(layout.members)
    return frozenset(names) - own, tuple((name, option) for name, option in optional.items() if name not in own | names)


def _of_lines(lines: Sequence[object]) -> Iterator[str]:
    for line in lines:
        if isinstance(line, str) and (match := _NAME.match(line)):
            yield normalize(match[1])

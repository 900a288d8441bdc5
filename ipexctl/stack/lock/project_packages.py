"""Read the requirements in a project's own files: pyproject.toml, setup.cfg, setup.py, uv.lock and conda's, with the
extras or groups of `-r FILE[NAME]`.

uv reads its own lock (`uv export`, offline), and setup.py is read as text. What hosts cannot install is left out with a
note.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ipexctl.errors import FileError, UserError
from ipexctl.found_files import TomlError, parse_toml
from ipexctl.hosts.host import did_you_mean, quote
from ipexctl.hosts.yaml_tree import YamlNode, YamlTree, is_null
from ipexctl.known_errors.packages import known_packages
from ipexctl.limits import PROJECT_LOCK
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.urls import strip_login
from ipexctl.projects.declaration import FILES, PYPROJECT, SETUP_CFG, SETUP_PY, read_declaration, table
from ipexctl.projects.declared_indexes import (
    IndexBinding,
    ProjectIndexes,
    check_url,
    is_of_pytorch,
    package_sources,
    read_indexes,
    without_usual,
)
from ipexctl.projects.layout import NO_LAYOUT, ProjectLayout
from ipexctl.projects.project_files import TextReader
from ipexctl.projects.requirement_files import CONDA, UV_LOCK, is_read_by_backend, needs_backend
from ipexctl.stack.lock.wheel_indexes import is_for_hosts, plain_url
from ipexctl.stack.lock.wheel_lock import uv_here
from ipexctl.text import format_count

_OTHER_LOCKS: Final = {
    "poetry.lock": "write them with: poetry export -o requirements.txt",
    "Pipfile": "write them with: pipenv requirements > requirements.txt",
    "Pipfile.lock": "write them with: pipenv requirements > requirements.txt",
    "pixi.toml": "write them into a requirements file",
    "pixi.lock": "write them into a requirements file",
}
_CUDA: Final = re.compile(r"(nvidia|cuda)-.+|(pytorch-)?triton(-.+)?")
LOCAL: Final = re.compile(r"(==\s*[\w.]+?)\+\w[\w.]*")
_OF_CONDA: Final = frozenset(
    "python pip setuptools wheel pytorch torchvision torchaudio pytorch-cuda pytorch-mutex cudatoolkit cpuonly mkl "  # noqa: SIM905
    "cudnn nccl blas libblas openmp intel-openmp ca-certificates openssl nodefaults".split()
)
"""Conda packages that stand for Python, pip, the torch stack or libraries that wheels bring."""
_OTHER_IN_CONDA: Final = frozenset({"graphviz", "redis", "sox"})
"""Names of other packages of pip; the others that the table of modules knows are the same in both."""
_DEPTH: Final = 50
HASH: Final = re.compile(r"\s--hash[=\s]\S+")
GROUP: Final = "group:"
"""Before a name that is a dependency group's, not an extra's."""


@dataclass(frozen=True, slots=True)
class ProjectScope:
    """The project to which the files belong, as far as the call is in one."""

    layout: ProjectLayout = NO_LAYOUT
    needed: frozenset[str] = frozenset()
    """Modules that the script imports in any case."""
    typed: Path = Path()
    """The directory of the call."""

    def is_own(self, name: str) -> bool:
        """True if a package of this name belongs to the project, so that no index is asked for it."""
        return self.layout.is_own(name)

    def find_directory(self, path: str, file: Path) -> Path | None:
        """Return the directory inside the project that a requirement names; None if there is none, or if it is outside.

        pip takes the path relative to the directory of the call, and people also write it relative to the file.
        """
        if self.layout is NO_LAYOUT:
            return None
        real = Path(os.path.realpath(self.layout.root))
        for base in (self.typed, self.layout.root, file.parent):
            target = base / path
            if Path(os.path.realpath(target)).is_relative_to(real) and any((target / name).is_file() for name in FILES):
                return target
        return None


NO_PROJECT: Final = ProjectScope()


@dataclass(frozen=True, slots=True)
class FileLine:
    """A line of a file, or a requirement from it."""

    path: Path
    number: int
    """Counted from 1; 0 for what a build backend answered."""
    text: str
    """The requirement or option, without comment and continuation."""
    raw: str
    """The line as it is in the file."""

    def error(self, what: str, part: str = "", fix: str = "") -> FileError:
        """Return the error for this line, with a caret under `part`, or under the first column if the line does not
        contain it."""
        column = self.raw.find(part) + 1 if part and part in self.raw else 1
        return FileError(str(self.path), self.number, what, text=self.raw, column=column, fix=fix)


@dataclass(frozen=True, slots=True)
class BackendList:
    """A list that only the project's build backend can read."""

    path: Path
    extras: tuple[str, ...] = ()
    scope: ProjectScope = NO_PROJECT

    @property
    def backend(self) -> tuple[str, list[str], list[str]]:
        """Return the backend's name, what it requires, and the directories in the project from which it is imported.
        Without a backend in pyproject.toml, it is setuptools, as for pip."""
        build = table(parse_toml(TextReader(self.path.parent)(PYPROJECT)), "build-system")
        named = build.get("build-backend")
        if not isinstance(named, str):
            return "setuptools.build_meta:__legacy__", ["setuptools", "wheel"], []
        requires, paths = ([str(entry) for entry in build.get(key, ())] for key in ("requires", "backend-path"))
        return named, requires, paths

    def shown(self, text: str) -> Iterator[FileLine]:
        """Yield the lines that the text of the declaration shows. The build may require more than these."""
        if (declaration := read_declaration(TextReader(self.path.parent))) is not None:
            lists = (declaration.requires, *(declaration.extras.get(name, ()) for name in self.extras))
            yield from (_line_with(self.path, text, line, line) for lines in lists for line in lines)


@dataclass(frozen=True, slots=True)
class ProjectLines:
    """What a project file requires."""

    lines: tuple[FileLine, ...]
    notes: tuple[str, ...] = ()
    indirect: tuple[FileLine, ...] = ()
    """Lines for packages that only other packages require."""
    left_out: tuple[str, ...] = ()
    """Lines that hosts cannot install."""
    indexes: ProjectIndexes = ProjectIndexes()  # noqa: RUF009  # immutable
    unread: BackendList | None = None
    """The list that only the build backend can read; None if the text has it all."""


def split_extras(path: Path) -> tuple[Path, tuple[str, ...]]:
    """Split `pyproject.toml[train,dev]` into the path and its extras. A path that exists as it is has none."""
    match = re.fullmatch(r"(.+)\[([^][/]*)\]", str(path))
    if match is None or path.exists():
        return path, ()
    return Path(match[1]), tuple(name.strip() for name in match[2].split(",") if name.strip())


def read_project_file(
    path: Path, text: str, names: Sequence[str], scope: ProjectScope = NO_PROJECT
) -> ProjectLines | None:
    """Return the packages of a project file; None if this is a requirements file instead. Raises a UserError if the
    file, or a name in `names`, can't be read."""
    if path.name in _OTHER_LOCKS:
        raise UserError(f"{path} can't be read by ipexctl", fix=f"{_OTHER_LOCKS[path.name]}; then -r FILE")
    if path.name == UV_LOCK:
        return _of_uv_lock(path, text, names, scope)
    if path.suffix == ".toml":
        project = _Pyproject(path, text, scope)
        lines = tuple(project.lines(names))
        is_asked = path.name == PYPROJECT and needs_backend(path, names)
        unread = BackendList(path, tuple(names), scope) if is_asked else None
        left_out = tuple(project.left_out)
        return ProjectLines(lines, tuple(project.notes), (), left_out, project.indexes, unread)
    if path.name in (SETUP_CFG, SETUP_PY):
        listed = BackendList(path, tuple(names), scope)
        return (
            ProjectLines((), unread=listed) if needs_backend(path, names) else ProjectLines(tuple(listed.shown(text)))
        )
    if names:
        raise UserError(f"{path} has no extras: [{','.join(names)}] is for {PYPROJECT} and {UV_LOCK}", fix=f"-r {path}")
    if path.suffix in (".yml", ".yaml") and (path.name in CONDA or re.search(r"(?m)^dependencies:", text)):
        return _of_conda(path, text)
    if (match := re.search(r"(?m)^[\w.-]+=[\w.]+=\w+$", text)) is not None:
        line = _line_with(path, text, match[0], match[0])
        raise line.error("this is a list of conda packages", match[0], "write pip's packages into a requirements file")
    return None


def _tables(path: Path, text: str) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    """Return the tables [project], [project.optional-dependencies] and [dependency-groups] of a pyproject.toml. Raises
    a UserError if it is not TOML."""
    try:
        document = parse_toml(text)
    except TomlError as error:
        raise UserError(f"{path} is not TOML: {error}") from None
    project = table(document, "project")
    return project, table(project, "optional-dependencies"), table(document, "dependency-groups")


def _no_such_list(path: Path, name: str, known: Sequence[str]) -> UserError:
    """Return the error for an extra or group that the file does not have."""
    has = f"it has {', '.join(known) or 'none'}"
    return UserError(f"{path} has no extra and no group {quote(name)}", fix=did_you_mean(name, known, has, cutoff=0.6))


class _Pyproject:
    def __init__(self, path: Path, text: str, scope: ProjectScope) -> None:
        self.path, self.text, self.scope = path, text, scope
        self.notes: list[str] = []
        self.left_out: list[str] = []
        self.project, self.extras, self.groups = _tables(path, text)
        self.tool = table(parse_toml(text), "tool")
        self.indexes = read_indexes((path.parent, scope.layout.root), (path.parent.absolute(), self.tool))
        self._read: set[str] = set()

    def lines(self, names: Sequence[str]) -> Iterator[FileLine]:
        """Yield what the project requires, with these extras and groups. Raises a UserError for a name that it does not
        have."""
        is_asked = is_read_by_backend(PYPROJECT, self.text)
        if not (self.project or self.groups or is_asked):
            raise UserError(
                f"{self.path} has neither [project] nor [dependency-groups]", fix="name the file that has requirements"
            )
        declared = read_declaration(TextReader(self.path.parent)) if is_asked and not needs_backend(self.path) else None
        yield from self._list(declared.requires if declared else self.project.get("dependencies", ()), ())
        for name in names:
            if not is_asked or canonicalize_name(name.removeprefix(GROUP)) in map(canonicalize_name, self.groups):
                yield from self._named(name, ())

    def _named(self, name: str, above: tuple[str, ...]) -> Iterator[FileLine]:
        """Yield the lines of an extra or a group, once. `above`: those that include it."""
        is_group, name = name.startswith(GROUP), name.removeprefix(GROUP)
        for lists in (self.groups,) if is_group else (self.extras, self.groups):
            for key, entries in lists.items():
                if canonicalize_name(key) == canonicalize_name(name):
                    if key in above:
                        raise UserError(f"{self.path}: {quote(key)} includes itself", fix="remove one of the includes")
                    if len(above) >= _DEPTH:
                        raise UserError(f"{self.path}: {quote(above[0])} includes more than {_DEPTH} groups in a row")
                    if key not in self._read:
                        yield from self._list(entries, (*above, key))
                        self._read.add(key)
                    return
        raise _no_such_list(self.path, name, [*self.extras, *self.groups])

    def _list(self, entries: Any, above: tuple[str, ...]) -> Iterator[FileLine]:
        """Yield the lines of a list, with those of groups that it includes."""
        for entry in entries if isinstance(entries, (list, tuple)) else ():
            if isinstance(entry, dict) and isinstance(entry.get("include-group"), str):
                yield from self._named(f"{GROUP}{entry['include-group']}", above)
            elif isinstance(entry, str):
                yield from self._requirement(entry, above)
            else:
                raise UserError(f"{self.path}: {entry!r} is not a requirement", fix="write a text such as 'peft>=0.17'")

    def _requirement(self, text: str, above: tuple[str, ...]) -> Iterator[FileLine]:
        """Yield a requirement as hosts get it: from the source that [tool.uv] names, with the extras of the project
        itself in its place, or not at all. What hosts can't install is noted."""
        line = _line_with(self.path, self.text, text, text)
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            yield line  # refused as in a requirements file
            return
        name = canonicalize_name(requirement.name)
        if name == canonicalize_name(str(self.project.get("name", ""))):
            for extra in sorted(requirement.extras):
                yield from self._named(extra, above)
            return
        for entry in (source for key, source in package_sources(self.tool) if key == name):
            if not is_for_hosts(str(entry["marker"])):
                continue
            if isinstance(entry.get("url"), str) and not self.scope.is_own(name):
                requirement.specifier, requirement.url = SpecifierSet(), check_url(entry["url"])
                yield replace(line, text=str(requirement))
                self.notes.append(f"{requirement.name} comes from {strip_login(entry['url'])} ({place_of(line)})")
                return
            if "git" in entry:
                self.left_out.append(line.text)
                self.notes.append(f"{place_of(line)} is left out (hosts do not clone repositories): {entry['git']}")
                return
            if "workspace" in entry or "path" in entry:
                if not self.scope.is_own(name):
                    self.left_out.append(line.text)
                    self.notes.append(f"{place_of(line)} is left out (it is outside the project): {requirement.name}")
                return
        if self.scope.is_own(name):
            return
        yield line


def place_of(line: FileLine) -> str:
    """Return the position of a line, relative to the current directory, such as `requirements.txt:3`; only the path if
    the line comes from a build backend."""
    return f"{os.path.relpath(line.path)}:{line.number}" if line.number else os.path.relpath(line.path)


def _line_with(path: Path, document: str, part: str, text: str) -> FileLine:
    """Return `text` with the position of `part` in a document; with line 1 if the document does not contain it."""
    lines = document.splitlines()
    at = next((at for at, raw in enumerate(lines) if raw == part), None)
    at = next((at for at, raw in enumerate(lines) if part in raw), None) if at is None else at
    return FileLine(path, 1, text, text) if at is None else FileLine(path, at + 1, text, lines[at])


def _of_uv_lock(path: Path, text: str, names: Sequence[str], scope: ProjectScope) -> ProjectLines:
    """Return the packages of a uv.lock. Packages for CUDA are left out, a local build (`+cu121`) becomes its public
    version, and what comes from an index of its own is bound to that index."""
    project = TextReader(path.parent)(PYPROJECT)
    if not project:
        raise UserError(f"{path} has no {PYPROJECT} next to it", fix="uv needs both: name the lock in the project")
    texts, members = _workspace_texts(path, project, scope)
    options = _options_of_export(path, texts, names)
    for member in members:
        options += ["--package", member]
    is_virtual = not table(parse_toml(project), "project")
    if is_virtual and not members:
        options.append("--all-packages")
    kept, left_out, indirect = [], [], []
    declared = read_indexes((path.parent,))
    registries, links, bound = _registries(path, text), list(declared.links), list[IndexBinding]()
    direct = {canonicalize_name(word) for file in texts.values() for word in re.findall(r"[A-Za-z0-9][\w.-]*", file)}
    notes = []
    for exported in _export(path, {**texts, UV_LOCK: text}, options).replace("\\\n", " ").splitlines():
        line = exported.strip()
        if not line or line.startswith(("#", "-e ", "./")):
            continue
        if re.match(r"(\S+ @ )?(git|hg|svn|bzr)\+", line):
            notes.append(f"{path.name} names a repository, which is left out (hosts do not clone repositories): {line}")
            continue
        package = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        if scope.is_own(package):
            continue
        if _CUDA.fullmatch(canonicalize_name(package)):
            left_out.append(package)
            continue
        public = LOCAL.sub(r"\1", line)
        if public != line:
            left_out.append(re.split(r"[;\s]", line)[0])
            public = HASH.sub("", public)  # of the build that is left out
        plain, is_hashed = HASH.sub("", public), HASH.search(public) is not None
        url = registries.get(re.sub(r"\[.*?\]", "", line.split()[0].rstrip(";")).replace("==", " "), "")
        marker = plain.partition(";")[2].strip()
        if url and "://" not in url:
            links.append(str((path.parent / url).absolute()))
        elif url and is_for_hosts(marker) and not (is_of_pytorch(url) and is_hashed):
            bound.append(IndexBinding(canonicalize_name(package), url, plain_url(url), marker))
        kept.append(_line_with(path, text, f'name = "{package}"', public))
        indirect += [] if canonicalize_name(package) in direct else kept[-1:]
    note = (
        f"{path.name} is for CUDA: hosts get torch's build for CPUs, without {left_out[0]}"
        + (f" and {format_count(len(left_out) - 1, 'other')}" if len(left_out) > 1 else "")
        if left_out
        else ""
    )
    indexes = replace(declared, links=tuple(dict.fromkeys(links)), bound=without_usual(bound, declared))
    return ProjectLines(
        tuple(kept), (*([note] if note else []), *notes), tuple(indirect), left_out=tuple(notes), indexes=indexes
    )


def _registries(path: Path, text: str) -> dict[str, str]:
    """Return `NAME VERSION` → the index or directory from which the lock has the package."""
    try:
        packages = parse_toml(text).get("package", ())
    except TomlError as error:
        raise UserError(f"{path} is not TOML: {error}", fix=Fix("to write it again: `uv lock`")) from None
    entries = [(entry, table(entry, "source").get("registry")) for entry in packages if isinstance(entry, dict)]
    return {f"{entry.get('name')} {entry.get('version')}": url for entry, url in entries if isinstance(url, str)}


def _workspace_texts(path: Path, project: str, scope: ProjectScope) -> tuple[dict[str, str], list[str]]:
    """Return the pyproject.toml of a lock and of each member of its workspace, by relative path, and the package that
    the script is part of; no package for the root of the workspace, or without a workspace."""
    texts = {PYPROJECT: _with_workspace(project)}
    layout = scope.layout
    if Path(os.path.realpath(layout.root)) != Path(os.path.realpath(path.parent)) or not layout.is_workspace:
        return texts, []
    for file in layout.members.values():
        if file.endswith(f"/{PYPROJECT}"):
            texts[file] = TextReader(layout.root)(file)
    named = [package for package in layout.own if package.name]
    return texts, [named[0].name] if named and named[0].directory != "." else []


def _options_of_export(path: Path, texts: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Return uv's options for these extras and groups. Raises a UserError for a name that no member of the workspace
    has."""
    options: list[str] = []
    for name in names:
        plain = name.removeprefix(GROUP)
        known: list[str] = []
        option = ""
        for text in texts.values():
            _, extras, groups = _tables(path.with_name(PYPROJECT), text)
            kinds = (("--group", groups),) if name.startswith(GROUP) else (("--extra", extras), ("--group", groups))
            option = option or next((kind for kind, table in kinds if plain in table), "")
            known += [*extras, *groups]
        if not option:
            raise _no_such_list(path, plain, known)
        options += [option, plain]
    return options


def _export(path: Path, texts: Mapping[str, str], options: Sequence[str]) -> str:
    """Return the packages of a lock, as uv writes them for pip. This runs nothing of the project and queries no index.
    uv gets copies of the files in a separate directory, because a pyproject.toml above might belong to another account.
    """
    uv = uv_here()
    if uv is None:
        raise UserError(f"reading {path} needs uv on the control machine", fix=Fix("`pip install uv`"))
    argv = [uv, "export", "--frozen", "--offline", "--no-config", "--no-python-downloads", "--no-default-groups"]
    argv += ["--no-emit-workspace", "--no-header", "--no-annotate", "--color", "never"]
    argv += ["--format", "requirements.txt", *options]
    try:
        with tempfile.TemporaryDirectory(prefix="ipexctl-") as directory:
            for name, text in texts.items():
                Path(directory, name).parent.mkdir(parents=True, exist_ok=True)
                Path(directory, name).write_text(text, encoding="utf-8")
            argv += ["--project", directory]
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROJECT_LOCK, check=False
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(
            f"uv could not read {path}: {error}", fix=Fix("try it yourself: `uv export --frozen`")
        ) from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = " ".join(lines).replace(directory, str(path.parent))
        raise UserError(f"{path}: {reason[:500]}", fix=Fix("to write it again: `uv lock`"))
    return done.stdout


def _with_workspace(project: str) -> str:
    """Return a pyproject.toml that uv takes for the root of its workspace, whatever is above it."""
    uv = table(parse_toml(project), "tool", "uv")
    return project if "workspace" in uv else f"{project}\n[tool.uv.workspace]\n"


def _of_conda(path: Path, text: str) -> ProjectLines:
    """Return the packages of a conda environment that pip has under the same name, and those of its `pip:` list. All
    others are left out with a note, but for those that the stack stands for."""
    tree = YamlTree(text, path)
    lines = text.splitlines()
    entries = tree.entries(tree.root, "an environment of conda") if tree.root is not None else []
    dependencies = [entry.value for entry in entries if entry.key == "dependencies"]
    of_pip: list[FileLine] = []
    left_out: list[FileLine] = []
    alike = {canonicalize_name(name) for names in known_packages().values() for name in names} - _OTHER_IN_CONDA
    for node in (node for value in dependencies for node in _items(tree, value, "dependencies")):
        number = node.start_mark.line + 1
        if node.id == "mapping":
            for entry in tree.entries(node, "pip and its packages"):
                for item in _items(tree, entry.value, "the packages of pip"):
                    number = item.start_mark.line + 1
                    of_pip.append(FileLine(path, number, tree.text(item), lines[number - 1]))
            continue
        package = tree.text(node).rpartition("::")[2]
        name = re.split(r"[^\w.-]", package, maxsplit=1)[0].lower()
        if name in _OF_CONDA or re.match(r"(lib)?cuda", name):
            continue
        if name in alike:
            version = re.search(r"[<>=!~].*", package)
            wanted = re.sub(r"(?<![<>=!~])=(?!=)(?P<v>[^=,]+)(=.*)?", r"==\g<v>.*", version[0]) if version else ""
            line = f"{name}{wanted.replace('.*.*', '.*')}"
            of_pip.append(FileLine(path, number, line, lines[number - 1]))
            continue
        left_out.append(FileLine(path, number, name, lines[number - 1]))
    note = ""
    if left_out:
        more = f" and {format_count(len(left_out) - 1, 'other package')}" if len(left_out) > 1 else ""
        are = "are" if more else "is"
        note = f"{place_of(left_out[0])}: conda's {left_out[0].text}{more} {are} left out: hosts get pip's wheels"
    names = tuple(line.text for line in left_out)
    return ProjectLines(tuple(of_pip), (note,) if note else (), left_out=names)


def _items(tree: YamlTree, node: YamlNode, what: str) -> list[YamlNode]:
    """Return the nodes of a list; empty for a null. Raises a FileError for another node."""
    if is_null(node):
        return []
    if node.id != "sequence":
        raise tree.error(node, f"{what} must be a list, not {quote(tree.text(node))}")
    return tree.items(node)

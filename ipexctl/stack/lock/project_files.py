"""Requirements in a project's own files: pyproject.toml, uv.lock and environment.yml, with the extras or groups of `-r
FILE[NAME]`. uv reads its own lock (`uv export`, offline). Conda packages and sources that hosts cannot reach are
refused."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ipexctl.errors import FileError, UserError
from ipexctl.file_reader import REQUIREMENTS, decoded, read_regular
from ipexctl.found_files import TomlError, parse_toml
from ipexctl.hosts.host import did_you_mean, quoted
from ipexctl.hosts.yaml_tree import YamlNode, YamlTree, is_null
from ipexctl.limits import PROJECT_LOCK
from ipexctl.stack.lock.wheel_lock import uv_here
from ipexctl.text import counted

PYPROJECT: Final = "pyproject.toml"
UV_LOCK: Final = "uv.lock"
CONDA: Final = ("environment.yml", "environment.yaml")
_OTHER_LOCKS: Final = {
    "poetry.lock": "write them with: poetry export -o requirements.txt",
    "Pipfile": "write them with: pipenv requirements > requirements.txt",
    "Pipfile.lock": "write them with: pipenv requirements > requirements.txt",
    "pixi.toml": "write them into a requirements file",
    "pixi.lock": "write them into a requirements file",
    "setup.py": "name the packages that it requires in a requirements file",
}
_CUDA: Final = re.compile(r"(nvidia|cuda)-.+|(pytorch-)?triton(-.+)?")
_LOCAL: Final = re.compile(r"(==\s*[\w.]+?)\+\w[\w.]*")
_FOR_CONDA: Final = ("python", "pip")
_DEPTH: Final = 50
_NO_SOURCES: Final = ("git", "path", "workspace")


@dataclass(frozen=True, slots=True)
class FileLine:
    path: Path
    number: int
    text: str
    raw: str

    def error(self, what: str, part: str = "", fix: str = "") -> FileError:
        column = self.raw.find(part) + 1 if part and part in self.raw else 1
        return FileError(str(self.path), self.number, what, text=self.raw, column=column, fix=fix)


@dataclass(frozen=True, slots=True)
class ProjectLines:
    lines: tuple[FileLine, ...]
    notes: tuple[str, ...] = ()
    indirect: tuple[FileLine, ...] = ()
    """Lines for packages that only other packages require."""


def split_extras(path: Path) -> tuple[Path, tuple[str, ...]]:
    found = re.fullmatch(r"(.+)\[([^][/]*)\]", str(path))
    if found is None or path.exists():
        return path, ()
    return Path(found[1]), tuple(name.strip() for name in found[2].split(",") if name.strip())


def read_project_file(path: Path, text: str, names: Sequence[str]) -> ProjectLines | None:
    """Read a project file; None for a requirements file. Raises a UserError."""
    if path.name in _OTHER_LOCKS:
        raise UserError(f"{path} can't be read by ipexctl", fix=f"{_OTHER_LOCKS[path.name]}; then -r FILE")
    if path.name == UV_LOCK:
        return _of_uv_lock(path, text, names)
    if path.suffix == ".toml":
        return ProjectLines(tuple(_of_pyproject(path, text, names)))
    if names:
        raise UserError(f"{path} has no extras: [{','.join(names)}] is for {PYPROJECT} and {UV_LOCK}", fix=f"-r {path}")
    if path.name in CONDA:
        return ProjectLines(tuple(_of_conda(path, text)))
    return None


def _tables(path: Path, text: str) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    try:
        document = parse_toml(text)
    except TomlError as error:
        raise UserError(f"{path} is not TOML: {error}") from None
    project = _table(document, "project")
    return project, _table(project, "optional-dependencies"), _table(document, "dependency-groups")


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name, {})
    return found if isinstance(found, dict) else {}


class _Pyproject:
    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text
        self.project, self.extras, self.groups = _tables(path, text)
        self.sources = _table(_table(_table(parse_toml(text), "tool"), "uv"), "sources")
        self._read: set[str] = set()

    def lines(self, names: Sequence[str]) -> Iterator[FileLine]:
        dynamic = self.project.get("dynamic")
        if isinstance(dynamic, list) and "dependencies" in dynamic:
            raise UserError(
                f"{self.path} has its dependencies computed by its build (dynamic)",
                fix="write them into a requirements file: uv pip compile pyproject.toml -o requirements.txt",
            )
        if not self.project and not self.groups:
            raise UserError(
                f"{self.path} has neither [project] nor [dependency-groups]", fix="name the file that has requirements"
            )
        yield from self._list(self.project.get("dependencies", ()), ())
        for name in names:
            yield from self._named(name, ())

    def _named(self, name: str, above: tuple[str, ...]) -> Iterator[FileLine]:
        for table in (self.extras, self.groups):
            for key, entries in table.items():
                if canonicalize_name(key) == canonicalize_name(name):
                    if key in above:
                        raise UserError(f"{self.path}: {quoted(key)} includes itself", fix="remove one of the includes")
                    if len(above) >= _DEPTH:
                        raise UserError(f"{self.path}: {quoted(above[0])} includes more than {_DEPTH} groups in a row")
                    if key not in self._read:
                        yield from self._list(entries, (*above, key))
                        self._read.add(key)
                    return
        known = [*self.extras, *self.groups]
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise UserError(
            f"{self.path} has no extra and no group {quoted(name)}", fix=did_you_mean(name, known, has, cutoff=0.6)
        )

    def _list(self, entries: Any, above: tuple[str, ...]) -> Iterator[FileLine]:
        for entry in entries if isinstance(entries, (list, tuple)) else ():
            if isinstance(entry, dict) and isinstance(entry.get("include-group"), str):
                yield from self._named(entry["include-group"], above)
            elif isinstance(entry, str):
                yield from self._requirement(entry, above)
            else:
                raise UserError(f"{self.path}: {entry!r} is not a requirement", fix="write a text such as 'peft>=0.17'")

    def _requirement(self, text: str, above: tuple[str, ...]) -> Iterator[FileLine]:
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
        source: Any = next((value for key, value in self.sources.items() if canonicalize_name(key) == name), None)
        sources = source if isinstance(source, list) else [source]  # a list has one source for each platform
        for kind in _NO_SOURCES:
            if any(isinstance(entry, dict) and kind in entry for entry in sources):
                raise line.error(
                    f"{requirement.name} comes from a {kind} ([tool.uv.sources]), which hosts do not have",
                    text,
                    "build a wheel (`pip wheel --no-deps DIR`), leave the source out, and add --find-links DIR",
                )
        yield line


def _of_pyproject(path: Path, text: str, names: Sequence[str]) -> Iterator[FileLine]:
    return _Pyproject(path, text).lines(names)


def _line_with(path: Path, document: str, part: str, text: str) -> FileLine:
    lines = document.splitlines()
    at = next((at for at, raw in enumerate(lines) if raw == part), None)
    at = next((at for at, raw in enumerate(lines) if part in raw), None) if at is None else at
    return FileLine(path, 1, text, text) if at is None else FileLine(path, at + 1, text, lines[at])


def _of_uv_lock(path: Path, text: str, names: Sequence[str]) -> ProjectLines:
    pyproject = path.with_name(PYPROJECT)
    try:
        project = decoded(read_regular(pyproject, REQUIREMENTS))
    except (OSError, UnicodeDecodeError):
        raise UserError(
            f"{path} has no {PYPROJECT} next to it", fix="uv needs both: name the lock in the project"
        ) from None
    _, extras, groups = _tables(pyproject, project)
    options = []
    for name in names:
        kinds = (("--extra", extras), ("--group", groups))
        option = next((option for option, table in kinds if name in table), None)
        if option is None:
            known = [*extras, *groups]
            raise UserError(
                f"{path} has no extra and no group {quoted(name)}",
                fix=did_you_mean(name, known, f"it has {', '.join(known) or 'none'}", cutoff=0.6),
            )
        options += [option, name]
    kept, left_out, indirect = [], [], []
    direct = {canonicalize_name(word) for word in re.findall(r"[A-Za-z0-9][\w.-]*", project)}
    for exported in _export(path, {UV_LOCK: text, PYPROJECT: _with_workspace(project)}, options).splitlines():
        line = exported.strip()
        if not line or line.startswith("#"):
            continue
        package = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        if _CUDA.fullmatch(canonicalize_name(package)):
            left_out.append(package)
            continue
        public = _LOCAL.sub(r"\1", line)
        if public != line:
            left_out.append(line.partition(";")[0].strip())
        kept.append(_line_with(path, text, f'name = "{package}"', public))
        indirect += [] if canonicalize_name(package) in direct else kept[-1:]
    note = (
        f"{path.name} is for CUDA: hosts get torch's build for CPUs, without {left_out[0]}"
        + (f" and {counted(len(left_out) - 1, 'other')}" if len(left_out) > 1 else "")
        if left_out
        else ""
    )
    return ProjectLines(tuple(kept), (note,) if note else (), tuple(indirect))


def _export(path: Path, texts: Mapping[str, str], options: Sequence[str]) -> str:
    """Packages of a lock, as uv writes them for pip. Runs nothing of the project and queries no index. uv gets copies
    of both files in a separate directory, because a pyproject.toml above might belong to another account."""
    uv = uv_here()
    if uv is None:
        raise UserError(f"reading {path} needs uv on the control machine", fix="pip install uv")
    argv = [uv, "export", "--frozen", "--offline", "--no-config", "--no-python-downloads", "--no-default-groups"]
    argv += ["--no-emit-project", "--no-hashes", "--no-header", "--no-annotate", "--color", "never"]
    argv += ["--format", "requirements.txt", *options]
    try:
        with tempfile.TemporaryDirectory(prefix="ipexctl-") as directory:
            for name, text in texts.items():
                Path(directory, name).write_text(text, encoding="utf-8")
            argv += ["--project", directory]
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROJECT_LOCK, check=False
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"uv could not read {path}: {error}", fix="try it yourself: uv export --frozen") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = " ".join(lines).replace(directory, str(path.parent))
        raise UserError(f"{path}: {reason[:500]}", fix="to write it again: uv lock")
    return done.stdout


def _with_workspace(project: str) -> str:
    """A pyproject.toml that uv takes for the root of its workspace, whatever is above it."""
    uv = _table(_table(parse_toml(project), "tool"), "uv")
    return project if "workspace" in uv else f"{project}\n[tool.uv.workspace]\n"


def _of_conda(path: Path, text: str) -> Iterator[FileLine]:
    tree = YamlTree(text, path)
    lines = text.splitlines()
    entries = tree.entries(tree.root, "an environment of conda") if tree.root is not None else []
    dependencies = [entry.value for entry in entries if entry.key == "dependencies"]
    for node in (node for value in dependencies for node in _items(tree, value, "dependencies")):
        number = node.start_mark.line + 1
        if node.id == "mapping":
            for entry in tree.entries(node, "pip and its packages"):
                for item in _items(tree, entry.value, "the packages of pip"):
                    number = item.start_mark.line + 1
                    yield FileLine(path, number, tree.text(item), lines[number - 1])
            continue
        package = tree.text(node)
        if re.split(r"[^\w.-]", package, maxsplit=1)[0] not in _FOR_CONDA:
            raise FileLine(path, number, package, lines[number - 1]).error(
                f"{package} is a conda package, but hosts get pip's wheels",
                package,
                "move it below `- pip:` if PyPI has it; ipexctl run --python can use a conda environment on the hosts",
            )


def _items(tree: YamlTree, node: YamlNode, what: str) -> list[YamlNode]:
    if is_null(node):
        return []
    if node.id != "sequence":
        raise tree.error(node, f"{what} must be a list, not {quoted(tree.text(node))}")
    return tree.items(node)

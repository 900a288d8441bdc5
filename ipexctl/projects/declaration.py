"""Read what a directory's pyproject.toml, setup.cfg and setup.py say of the package there: name, version, where its
modules are, its commands, its requirements.

All are read as text, by a reader that the caller gives; of setup.py, only literals count. What the text does not show
whole, only the build backend can tell (`node/env/project_list.py`).
"""

from __future__ import annotations

import ast
import configparser
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from ipexctl.found_files import TomlError, parse_toml
from ipexctl.node.env.check import normalize
from ipexctl.projects.modules import parse

PYPROJECT: Final = "pyproject.toml"
SETUP_CFG: Final = "setup.cfg"
SETUP_PY: Final = "setup.py"
FILES: Final = (PYPROJECT, SETUP_CFG, SETUP_PY)

ReadText = Callable[[str], str]
"""A function from a path below the directory to the text of that file; empty if there is no such file, or it does not
count."""

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,99}[A-Za-z0-9])?")
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,99}")
_TARGET: Final = re.compile(r"(?P<module>[A-Za-z_][\w.]{0,200}):(?P<function>[A-Za-z_][\w.]{0,200})")
_COMMAND: Final = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}")
_GROUP: Final = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}")
_REQUIREMENT: Final = re.compile(r"[^\x00-\x1f\x7f]{1,500}")
_WITH_COMPILER: Final = frozenset(
    {"maturin", "scikit_build_core.build", "mesonpy", "scikit_build_core.setuptools.build_meta"}
)
FOR_DEVELOPERS: Final = re.compile(
    r"(?<![a-z])(dev|devel|development|docs?|tests?|testing|notebooks?|lint|linting|style|ci|build|tools?)(?![a-z])",
    re.IGNORECASE,
)
"""Words in the path of a list that only developers of the project need."""
_MAX_ENTRIES: Final = 2000
_DEEPEST_TABLE: Final = 5
_BACKENDS: Final = ("setuptools", "hatch", "pdm", "poetry", "uv", "maturin")
"""Tables of [tool] that say where the modules are."""
_DIRECTORY: Final = frozenset({"where", "package-dir", "module-root", "python-source"})
_VERSION_LINE: Final = re.compile(
    r"^(?:__version__|VERSION|version)(?:\s*:\s*[\w.]+)?\s*=\s*[\"']([\w.+!-]+)[\"']", re.MULTILINE
)
_VERSION_FILES: Final = ("__init__.py", "_version.py", "version.py", "__about__.py", "__version__.py")
_ONE_USE: Final = 2
"""A name that is set once and used once."""
_EXTENSION: Final = re.compile(r"[Ee]xtension\(\s*(?:name\s*=\s*)?[\"']([\w.]+)[\"']")


@dataclass(frozen=True, slots=True)
class PackageDeclaration:
    """The declaration of the package in one directory. Names, versions and entry points are safe in a file name and in
    a metadata file."""

    file: str
    """The first of `FILES` that names the package, else the first that is there."""
    name: str = ""
    """The name as it is written; empty if no file has it as a literal."""
    version: str = ""
    import_directories: tuple[str, ...] = ()
    """Directories as declared, relative to the directory of the file, `.` for that one; empty if nothing is declared.
    They may lead anywhere."""
    entry_points: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    """Group → name → `module:function`."""
    requires: tuple[str, ...] = ()
    """The requirements as they are written. What only the build computes is missing."""
    is_listed: bool = False
    """True if the text shows all of them; else only the build backend knows."""
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    is_compiled: bool = False
    extensions: tuple[str, ...] = ()
    """Dotted names of the modules that setup.py compiles, if they are literals."""
    members: tuple[str, ...] = ()
    """Patterns of the members of a uv workspace. A pattern that excludes members begins with `!`."""
    is_workspace: bool = False
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Normalized name of a package → its path relative to this directory, or empty for a member of the workspace."""

    @property
    def normalized(self) -> str:
        """The name as indexes compare it."""
        return normalize(self.name)

    @property
    def commands(self) -> Mapping[str, str]:
        """Command → the function that it calls."""
        return self.entry_points.get("console_scripts", {})


def read_declaration(read: ReadText) -> PackageDeclaration | None:
    """Return the declaration of the directory that `read` reads; None if it has none of `FILES`."""
    parts = [
        part(text, read)
        for name, part in ((PYPROJECT, _of_pyproject), (SETUP_CFG, _of_setup_cfg), (SETUP_PY, _of_setup_py))
        if (text := read(name))
    ]
    if not parts:
        return None
    values: dict[str, Any] = {}
    for part in reversed(parts):  # an earlier file wins
        values |= {name: value for name, value in part.items() if value and name != "mentions"}
    others = [part for part in parts if not part.get("requires") and part.get("mentions")]
    listing = [part for part in parts if part.get("requires")]
    is_of_project = bool(listing) and listing[0]["file"] == PYPROJECT
    values["is_listed"] = bool(listing and listing[0].get("is_listed")) and (
        is_of_project or not (others or listing[1:])
    )
    file = next((part["file"] for part in parts if part.get("name")), parts[0]["file"])
    directories = tuple(
        dict.fromkeys(posixpath.normpath(directory or ".") for directory in values.pop("directories", ()))
    )
    return PackageDeclaration(**{**values, "file": file, "import_directories": directories})


def is_below(path: str) -> bool:
    """True for a normalized path that does not leave its directory, by its text, and is one entry of a search path."""
    return not path.startswith(("/", "../")) and path != ".." and path.isprintable() and ":" not in path


def safe_name(value: object) -> str:
    """Return the value if it can be the name of a package; else empty."""
    return value if isinstance(value, str) and _NAME.fullmatch(value) else ""


def safe_version(value: object) -> str:
    """Return the value if it can be a version; else empty."""
    return value.strip() if isinstance(value, str) and _VERSION.fullmatch(value.strip()) else ""


def entry_points_of(groups: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the entry points whose target names a function of a module; others are left out."""
    valid: dict[str, dict[str, str]] = {}
    for group, entries in groups.items():
        if not _GROUP.fullmatch(str(group)):
            continue
        for name, target in list(_pairs(entries))[:_MAX_ENTRIES]:
            if _COMMAND.fullmatch(name) and _TARGET.fullmatch(target):
                valid.setdefault(str(group), {})[name] = target
    return valid


def _pairs(entries: Any) -> Iterator[tuple[str, str]]:
    """Yield name and target from a table, from a text of lines `name = target`, or from a list of such texts."""
    if isinstance(entries, Mapping):
        yield from ((str(name), target) for name, target in entries.items() if isinstance(target, str))
        return
    lines = entries.splitlines() if isinstance(entries, str) else entries if isinstance(entries, (list, tuple)) else ()
    for line in lines:
        if isinstance(line, str) and "=" in line:
            name, _, target = line.partition("=")
            yield name.strip(), target.partition("[")[0].strip()


def table(values: Any, *names: str) -> Mapping[str, Any]:
    """Return a table of a document or of its text. It is empty if there is none, or if the text is not TOML, which an
    install reports."""
    if isinstance(values, str):
        try:
            values = parse_toml(values)
        except TomlError:
            return {}
    for name in names:
        values = values.get(name) if isinstance(values, Mapping) else None
    return values if isinstance(values, Mapping) else {}


def texts(values: Any) -> tuple[str, ...]:
    """Return the texts among the values, which may have any shape in a stranger's file."""
    items = values if isinstance(values, (list, tuple)) else (values,)
    return tuple(value for value in items if isinstance(value, str))


def requirement_texts(values: Any) -> tuple[str, ...]:
    """Return the values that are requirements."""
    return tuple(value for value in texts(values) if _REQUIREMENT.fullmatch(value))


# pyproject.toml


def _of_pyproject(text: str, read: ReadText) -> dict[str, Any]:
    """Return the fields of the declaration that pyproject.toml tells, in the tables of any backend."""
    document = table(text)
    project, tool = table(document, "project"), table(document, "tool")
    poetry = table(tool, "poetry")
    scripts = {**table(poetry, "scripts"), **table(project, "scripts")}
    backend = str(table(document, "build-system").get("build-backend", ""))
    name = safe_name(project.get("name")) or safe_name(poetry.get("name"))
    directories = [directory for backend_name in _BACKENDS for directory in _directories_in(table(tool, backend_name))]
    attribute = str(table(tool, "setuptools", "dynamic", "version").get("attr", ""))
    version_file = str(table(tool, "hatch", "version").get("path", ""))
    packages = [attribute.partition(".")[0], posixpath.dirname(version_file), name.replace("-", "_")]
    return {
        "file": PYPROJECT,
        "name": name,
        "version": safe_version(project.get("version") or poetry.get("version"))
        or _version_of_code(packages if "version" in texts(project.get("dynamic")) else (), directories, read),
        "directories": directories,
        "entry_points": entry_points_of(
            {
                **table(poetry, "plugins"),
                **table(project, "entry-points"),
                "console_scripts": scripts,
                "gui_scripts": table(project, "gui-scripts"),
            }
        ),
        **_requires_of_pyproject(document, read),
        "extras": {
            str(extra): requirement_texts(values) for extra, values in table(project, "optional-dependencies").items()
        },
        "is_compiled": backend in _WITH_COMPILER or bool(table(tool, "setuptools").get("ext-modules")),
        "is_workspace": isinstance(table(tool, "uv").get("workspace"), Mapping),
        "members": (
            *texts(table(tool, "uv", "workspace").get("members")),
            *(f"!{pattern}" for pattern in texts(table(tool, "uv", "workspace").get("exclude"))),
        ),
        "sources": dict(_local_sources(table(tool, "uv", "sources"))),
    }


def _requires_of_pyproject(document: Mapping[str, Any], read: ReadText) -> dict[str, Any]:
    """Return the requirements in [project], in the file that setuptools reads for it, or in Poetry's own table in place
    of it."""
    project, tool = table(document, "project"), table(document, "tool")
    if "dependencies" in texts(project.get("dynamic")):
        files = texts(table(tool, "setuptools", "dynamic", "dependencies").get("file"))
        lines = [line.partition(" #")[0].strip() for file in filter(is_below, files) for line in read(file).split("\n")]
        lines = [line for line in lines if line and line[0] != "#"]
        return {"requires": requirement_texts(lines), "is_listed": not any(line[0] == "-" for line in lines)}
    if project:
        return {"requires": requirement_texts(project.get("dependencies")), "is_listed": True}
    entries = [(name, value) for name, value in table(tool, "poetry", "dependencies").items() if name != "python"]
    lines = [line for entry in entries if (line := _of_poetry(*entry)) != OPTIONAL]
    return {"requires": requirement_texts([*filter(None, lines)]), "is_listed": all(lines)}


OPTIONAL: Final = "optional"


def _of_poetry(name: str, value: Any) -> str:
    """Return a requirement of Poetry as pip writes it; `OPTIONAL` if it belongs to an extra, empty if only Poetry can
    read it."""
    entry = value if isinstance(value, Mapping) else {"version": value}
    version = entry.get("version", "*")
    if entry.get("optional") is True:
        return OPTIONAL
    if not isinstance(version, str) or "||" in version or not safe_name(name) or not {*entry} <= _OF_POETRY:
        return ""
    parts = [_bounds(part.strip()) for part in version.split(",")]
    source = f" @ git+{entry['git']}" if "git" in entry else f" @ file:{entry['path']}" if "path" in entry else ""
    marker = f"; {entry['markers']}" if "markers" in entry else ""
    extras = ",".join(texts(entry.get("extras")))
    if source:
        return f"{name}{source}"
    return (
        f"{name}{f'[{extras}]' if extras else ''}{','.join(filter(None, parts))}{marker}" if None not in parts else ""
    )


_OF_POETRY: Final = frozenset(
    {"version", "extras", "markers", "git", "rev", "branch", "tag", "path", "develop", "python"}
)
_VERSION_OF_POETRY: Final = re.compile(r"(?P<sign>[~^]|[<>=!~]=|[<>]|)\s*(?P<version>\d+(?:\.\d+)*(?P<rest>[\w.*+-]*))")


def _bounds(text: str) -> str | None:
    """Return `^1.2` and `~1.2` of Poetry as pip writes them; None for any other text."""
    match = _VERSION_OF_POETRY.fullmatch(text)
    if match is None:
        return "" if text == "*" else None
    sign, version = match["sign"], match["version"]
    if sign not in ("^", "~"):
        return f"{sign or '=='}{version}"
    numbers = [int(number) for number in version[: len(version) - len(match["rest"])].split(".")]
    at = 0 if len(numbers) == 1 else 1
    if sign == "^":
        at = next((at for at, number in enumerate(numbers) if number), len(numbers) - 1)
    above = ".".join(map(str, (*numbers[:at], numbers[at] + 1)))
    return f">={version},<{above}"


def _directories_in(values: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """Yield the directories of modules that a backend's table names, under the keys of any backend."""
    for key, value in values.items():
        if key == "package-dir" and isinstance(value, Mapping):
            yield from _package_directories(value)
        elif key in _DIRECTORY:
            yield from texts(value)
        elif key == "packages" and isinstance(value, list):
            yield from (posixpath.dirname(posixpath.normpath(package)) for package in texts(value) if "/" in package)
            tables = (entry for entry in value if isinstance(entry, Mapping) and "include" in entry)
            yield from (str(entry.get("from", ".")) for entry in tables)
        elif isinstance(value, Mapping) and depth < _DEEPEST_TABLE:
            yield from _directories_in(value, depth + 1)


def _package_directories(values: Mapping[str, Any]) -> list[str]:
    """Return the directories of modules in a table such as `{"": "src"}` or `{"pkg": "lib/pkg"}`."""
    directories = []
    for package, directory in values.items():
        if not isinstance(directory, str):
            continue
        plain, own = posixpath.normpath(directory or "."), str(package).replace(".", "/")
        if not package:
            directories.append(plain)
        elif plain == own or plain.endswith(f"/{own}"):
            directories.append(plain[: -len(own)].rstrip("/") or ".")
    return directories


def _local_sources(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name of each package that has a path in uv's sources, and the path; the path is empty for a member of
    the workspace."""
    for name, source in values.items():
        for entry in source if isinstance(source, list) else [source]:
            if isinstance(entry, Mapping) and isinstance(entry.get("path"), str):
                yield normalize(str(name)), entry["path"]
            elif isinstance(entry, Mapping) and entry.get("workspace") is True:
                yield normalize(str(name)), ""


def _version_of_code(packages: Iterable[str], directories: Iterable[str], read: ReadText) -> str:
    """Return the version that a file of one of the packages assigns, for a declaration that has none; empty if none
    does."""
    places = product([package for package in packages if package], (*directories, "src", "."), _VERSION_FILES)
    for package, directory, file in places:
        path = posixpath.normpath(posixpath.join(directory, package, file))
        if is_below(path) and (match := _VERSION_LINE.search(read(path))) is not None:
            return safe_version(match[1])
    return ""


# setup.cfg


def _of_setup_cfg(text: str, read: ReadText) -> dict[str, Any]:
    """Return the fields of the declaration that setup.cfg tells; only the file's name if it is damaged."""
    config = configparser.RawConfigParser(strict=False)
    try:
        config.read_string(text)
    except configparser.Error:
        return {"file": SETUP_CFG}
    sections = {name: dict(config.items(name)) for name in config.sections()}
    directories = _package_directories(dict(_pairs(config.get("options", "package_dir", fallback=""))))
    version = config.get("metadata", "version", fallback="")
    module = version.strip().removeprefix("attr:").partition(".")[0].strip() if "attr:" in version else ""
    return {
        "file": SETUP_CFG,
        "name": safe_name(config.get("metadata", "name", fallback="").strip()),
        "version": safe_version(version) or _version_of_code([module], directories, read),
        "directories": directories,
        "entry_points": entry_points_of(sections.get("options.entry_points", {})),
        "requires": _lines_of_cfg(config.get("options", "install_requires", fallback="")),
        "is_listed": True,
        "mentions": config.has_option("options", "install_requires"),
        "extras": {name: _lines_of_cfg(text) for name, text in sections.get("options.extras_require", {}).items()},
    }


def _lines_of_cfg(text: str) -> tuple[str, ...]:
    """Return the requirements in a value of setup.cfg. None are returned for a file that setuptools reads."""
    lines = [line.partition(" #")[0].strip() for line in text.splitlines()]
    return requirement_texts([line for line in lines if line and line[0] != "#"]) if "file:" not in text else ()


# setup.py


def _of_setup_py(text: str, _: ReadText) -> dict[str, Any]:
    """Return the fields of the declaration that setup.py tells: literal arguments of `setup()`, also of names and a
    dict that the file assigns. A field whose value is computed is empty."""
    tree = parse(text.encode("utf-8", "surrogatepass")) or ast.Module([], [])
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    bound = {getattr(target, "id", ""): node.value for node in assigned for target in node.targets}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = ((call, getattr(call.func, "attr", getattr(call.func, "id", ""))) for call in calls)
    call = next((call for call, name in names if name == "setup"), None)
    keywords = [*call.keywords] if call is not None else []
    unpacked = (bound.get(getattr(keyword.value, "id", None)) for keyword in keywords if keyword.arg is None)
    keywords += [keyword for call in unpacked for keyword in getattr(call, "keywords", ())]  # of `**NAME`, a dict(…)
    values: dict[str, Any] = {}
    names_used = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    for keyword in keywords:
        with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # the value is computed
            values[str(keyword.arg)] = None
            values[str(keyword.arg)] = ast.literal_eval(bound.get(getattr(keyword.value, "id", None), keyword.value))
    source = next((keyword.value for keyword in keywords if keyword.arg == "install_requires"), None)
    return {
        "file": SETUP_PY,
        "requires": requirement_texts(values.get("install_requires") or ()),
        "is_listed": getattr(source, "id", "") == "" or names_used.count(getattr(source, "id", "")) <= _ONE_USE,
        "mentions": "install_requires" in text,
        "extras": {str(name): requirement_texts(lines) for name, lines in table(values, "extras_require").items()},
        "name": safe_name(values.get("name")),
        "version": safe_version(values.get("version")),
        "directories": _package_directories(table(values, "package_dir")),
        "entry_points": entry_points_of(table(values, "entry_points")),
        "is_compiled": "ext_modules" in values,
        "extensions": tuple(_EXTENSION.findall(text)),
    }

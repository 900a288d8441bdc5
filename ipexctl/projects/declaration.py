"""What a directory's pyproject.toml, setup.cfg and setup.py say of the package there: name, version, where its modules
are, its commands. All are read as text: of setup.py, only literals and names that are bound once to a literal. Pure,
but for the reader of texts that the caller gives.
"""

from __future__ import annotations

import ast
import configparser
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ipexctl.found_files import TomlError, parse_toml
from ipexctl.node.env.check import normalize
from ipexctl.projects.modules import parse

PYPROJECT: Final = "pyproject.toml"
SETUP_CFG: Final = "setup.cfg"
SETUP_PY: Final = "setup.py"
FILES: Final = (PYPROJECT, SETUP_CFG, SETUP_PY)

ReadText = Callable[[str], str]
"""Path below the directory → its text; empty if there is no such file, or it does not count."""

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
"""In the path of a list that nobody needs who only runs a project."""
_MAX_ENTRIES: Final = 2000
_MOST_NAMES: Final = 2000
_LONGEST_SUM: Final = 4000
"""Characters or entries of a value that code adds up."""


@dataclass(frozen=True, slots=True)
class PackageDeclaration:
    """Of one directory. Names, versions and entry points are safe in a file name and in a metadata file."""

    file: str
    """The first of `FILES` that names the package, else the first that is there."""
    name: str = ""
    """As it is written; empty if no file says it as a literal."""
    version: str = ""
    import_directories: tuple[str, ...] = ()
    """As declared, relative to the directory, `.` for itself; empty if nothing is declared. They may lead anywhere."""
    entry_points: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    """Group → name → `module:function`."""
    requires: tuple[str, ...] = ()
    """Requirements as they are written."""
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    version_files: tuple[str, ...] = ()
    """Python files, relative to the directory, that a build writes with the version."""
    is_compiled: bool = False
    extensions: tuple[str, ...] = ()
    """Dotted names of the modules that setup.py compiles, if they are literals."""
    members: tuple[str, ...] = ()
    """Patterns of the members of a uv workspace, `!` before those that it leaves out."""
    is_workspace: bool = False
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Normalized name of a package → its path relative to this directory, or empty for a member of the workspace."""

    @property
    def normalized(self) -> str:
        return normalize(self.name)

    @property
    def commands(self) -> Mapping[str, str]:
        return self.entry_points.get("console_scripts", {})


def read_declaration(read: ReadText) -> PackageDeclaration | None:
    """The declaration of the directory that `read` reads; None if it has none of `FILES`."""
    parts = [
        part(text, read)
        for name, part in ((PYPROJECT, _of_pyproject), (SETUP_CFG, _of_setup_cfg), (SETUP_PY, _of_setup_py))
        if (text := read(name))
    ]
    if not parts:
        return None
    values: dict[str, Any] = {}
    for part in parts:  # an earlier file wins
        for name, value in part.items():
            if value and name not in values:
                values[name] = value
    file = next((part["file"] for part in parts if part.get("name")), parts[0]["file"])
    directories = tuple(dict.fromkeys(posixpath.normpath(each or ".") for each in values.pop("directories", ())))
    return PackageDeclaration(**{**values, "file": file, "import_directories": directories})


def is_below(path: str) -> bool:
    """True for a normalized path that does not leave its directory, by its text, and is one entry of a search path."""
    return not path.startswith(("/", "../")) and path != ".." and path.isprintable() and ":" not in path


def safe_name(value: object) -> str:
    return value if isinstance(value, str) and _NAME.fullmatch(value) else ""


def safe_version(value: object) -> str:
    return value.strip() if isinstance(value, str) and _VERSION.fullmatch(value.strip()) else ""


def entry_points_of(groups: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The entry points whose target names a function of a module; others are left out."""
    found: dict[str, dict[str, str]] = {}
    for group, entries in groups.items():
        if not _GROUP.fullmatch(str(group)):
            continue
        for name, target in list(_pairs(entries))[:_MAX_ENTRIES]:
            if _COMMAND.fullmatch(name) and _TARGET.fullmatch(target):
                found.setdefault(str(group), {})[name] = target
    return found


def _pairs(entries: Any) -> Iterator[tuple[str, str]]:
    """`name = target` of a table, a text of lines, or a list of texts."""
    if isinstance(entries, Mapping):
        yield from ((str(name), target) for name, target in entries.items() if isinstance(target, str))
        return
    lines = entries.splitlines() if isinstance(entries, str) else entries if isinstance(entries, (list, tuple)) else ()
    for line in lines:
        if isinstance(line, str) and "=" in line:
            name, _, target = line.partition("=")
            yield name.strip(), target.partition("[")[0].strip()


def _table(values: Any, *names: str) -> Mapping[str, Any]:
    for name in names:
        values = values.get(name) if isinstance(values, Mapping) else None
    return values if isinstance(values, Mapping) else {}


def _texts(values: Any) -> tuple[str, ...]:
    found = values if isinstance(values, (list, tuple)) else (values,)
    return tuple(value for value in found if isinstance(value, str))


def requirement_texts(values: Any) -> tuple[str, ...]:
    return tuple(value for value in _texts(values) if _REQUIREMENT.fullmatch(value))


def _extras(table: Any) -> dict[str, tuple[str, ...]]:
    return {str(name): requirement_texts(values) for name, values in _table(table).items()}


# pyproject.toml


def _of_pyproject(text: str, read: ReadText) -> dict[str, Any]:
    try:
        document = parse_toml(text)
    except TomlError:
        return {"file": PYPROJECT}  # an install reports it
    project, tool = _table(document, "project"), _table(document, "tool")
    poetry = _table(tool, "poetry")
    scripts = {**_table(poetry, "scripts"), **_table(project, "scripts")}
    backend = str(_table(document, "build-system").get("build-backend", ""))
    dynamic = _texts(project.get("dynamic"))
    return {
        "file": PYPROJECT,
        "name": safe_name(project.get("name")) or safe_name(poetry.get("name")),
        "version": safe_version(project.get("version") or poetry.get("version"))
        or ("" if project and "version" not in dynamic else _dynamic_version(tool, read)),
        "directories": _declared_directories(tool, backend),
        "entry_points": entry_points_of(
            {
                **_table(poetry, "plugins"),
                **_table(project, "entry-points"),
                "console_scripts": scripts,
                "gui_scripts": _table(project, "gui-scripts"),
            }
        ),
        "requires": requirement_texts(project.get("dependencies")),
        "extras": _extras(project.get("optional-dependencies")),
        "version_files": _version_files(tool),
        "is_compiled": backend in _WITH_COMPILER or bool(_table(tool, "setuptools").get("ext-modules")),
        "is_workspace": isinstance(_table(tool, "uv").get("workspace"), Mapping),
        "members": (
            *_texts(_table(tool, "uv", "workspace").get("members")),
            *(f"!{pattern}" for pattern in _texts(_table(tool, "uv", "workspace").get("exclude"))),
        ),
        "sources": dict(_local_sources(_table(tool, "uv", "sources"))),
    }


def _declared_directories(tool: Mapping[str, Any], backend: str) -> tuple[str, ...]:
    setuptools, hatch = _table(tool, "setuptools"), _table(tool, "hatch", "build")
    found = [*_texts(_table(setuptools, "packages", "find").get("where"))]
    found += _package_directories(_table(setuptools, "package-dir"))
    if not found and isinstance(setuptools.get("packages"), list):
        found += ["."]
    wheel = _table(hatch, "targets", "wheel")
    for table in (wheel, hatch):
        packages = _texts(table.get("packages"))
        found += [posixpath.dirname(posixpath.normpath(package)) or "." for package in packages]
        if not packages and (table.get("include") or table.get("only-include")):
            found += [*_texts(table.get("sources")), "."]
    pdm = _table(tool, "pdm")
    found += [*_texts(_table(pdm, "build").get("package-dir")), *_texts(pdm.get("package-dir"))]
    for package in _table(tool, "poetry").get("packages", ()):
        if isinstance(package, Mapping) and isinstance(package.get("include"), str):
            found += [package["from"] if isinstance(package.get("from"), str) else "."]
    if backend == "uv_build":
        found += [*_texts(_table(tool, "uv", "build-backend").get("module-root", "src"))]
    if found:
        return tuple(found)
    return _texts(_table(tool, "maturin").get("python-source"))


def _package_directories(values: Mapping[str, Any]) -> list[str]:
    """`{"": "src"}`, or `{"pkg": "lib/pkg"}`."""
    found = []
    for package, directory in values.items():
        if not isinstance(directory, str):
            continue
        plain, own = posixpath.normpath(directory or "."), str(package).replace(".", "/")
        if not package:
            found.append(plain)
        elif plain == own or plain.endswith(f"/{own}"):
            found.append(plain[: -len(own)].rstrip("/") or ".")
    return found


def _local_sources(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, source in values.items():
        for entry in source if isinstance(source, list) else [source]:
            if isinstance(entry, Mapping) and isinstance(entry.get("path"), str):
                yield normalize(str(name)), entry["path"]
            elif isinstance(entry, Mapping) and entry.get("workspace") is True:
                yield normalize(str(name)), ""


def _dynamic_version(tool: Mapping[str, Any], read: ReadText) -> str:
    setuptools = _table(tool, "setuptools", "dynamic", "version")
    if isinstance(setuptools.get("attr"), str):
        return _version_of_attribute(setuptools["attr"], _declared_directories(tool, ""), read)
    paths = [_table(tool, *table).get("path") for table in (("hatch", "version"), ("pdm", "version"))]
    for file in (*_texts(paths), *_version_files(tool)):
        if version := version_in(_read_inside(read, file)):
            return version
    return ""


def _read_inside(read: ReadText, path: str) -> str:
    plain = posixpath.normpath(path or ".")
    return read(plain) if is_below(plain) else ""


def _version_of_attribute(attribute: str, directories: Iterable[str], read: ReadText) -> str:
    """The value of `pkg.module.NAME`, followed through one import."""
    module, _, name = attribute.rpartition(".")
    path = module.replace(".", "/")
    for directory in (*directories, "src", "."):
        for file in (f"{path}/__init__.py", f"{path}.py"):
            text = _read_inside(read, posixpath.join(directory, file))
            if not text:
                continue
            if version := version_in(text, name):
                return version
            if (source := _imported_from(text, name)) is not None:
                base = posixpath.dirname(posixpath.join(directory, file))
                return version_in(_read_inside(read, posixpath.join(base, f"{source[0]}.py")), source[1])
    return ""


def _imported_from(text: str, name: str) -> tuple[str, str] | None:
    """Relative module and name from which `name` is imported."""
    for node in getattr(_parsed(text), "body", ()):
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return node.module.replace(".", "/"), alias.name
    return None


def version_in(text: str, name: str = "") -> str:
    """The version that a Python file assigns to `name`, or to a usual name."""
    values = constants_of(_parsed(text))
    wanted = (name,) if name else ("__version__", "version", "VERSION")
    return next((version for each in wanted if (version := safe_version(values.get(each)))), "")


def _version_files(tool: Mapping[str, Any]) -> tuple[str, ...]:
    scm = _table(tool, "setuptools_scm")
    hook = _table(tool, "hatch", "build", "hooks", "vcs")
    pdm = _table(tool, "pdm", "version")
    found = (scm.get("version_file"), scm.get("write_to"), hook.get("version-file"), pdm.get("write_to"))
    plain = (posixpath.normpath(text) for text in found if isinstance(text, str) and text.endswith(".py"))
    return tuple(dict.fromkeys(filter(is_below, plain)))


# setup.cfg


def _of_setup_cfg(text: str, read: ReadText) -> dict[str, Any]:
    config = configparser.RawConfigParser(strict=False)
    try:
        config.read_string(text)
    except configparser.Error:
        return {"file": SETUP_CFG}

    def get(section: str, option: str) -> str:
        return config.get(section, option, fallback="").strip()

    version = get("metadata", "version")
    directories = [get("options.packages.find", "where") or get("options.packages.find_namespace", "where")]
    directories += _package_directories(dict(_pairs(get("options", "package_dir"))))
    if version.startswith("attr:"):
        version = _version_of_attribute(version.removeprefix("attr:").strip(), filter(None, directories), read)
    groups = dict(config.items("options.entry_points")) if config.has_section("options.entry_points") else {}
    extras = dict(config.items("options.extras_require")) if config.has_section("options.extras_require") else {}
    return {
        "file": SETUP_CFG,
        "name": safe_name(get("metadata", "name")),
        "version": safe_version(version),
        "directories": tuple(filter(None, directories)),
        "entry_points": entry_points_of(groups),
        "requires": _lines_in(get("options", "install_requires")),
        "extras": {name: _lines_in(text) for name, text in extras.items()},
    }


def _lines_in(text: str) -> tuple[str, ...]:
    return requirement_texts([line.strip() for line in text.splitlines()])


# setup.py


def _parsed(text: str) -> ast.Module:
    return parse(text.encode("utf-8", "surrogatepass")) or ast.Module([], [])


def constants_of(tree: ast.Module, body: Sequence[ast.stmt] | None = None) -> dict[str, Any]:
    """Names that the module binds once, to a literal, with what it adds to them; the first `_MOST_NAMES` of them.
    `body`: the statements that bind them, if these are not only the module's own."""
    added = {id(node.target) for node in ast.walk(tree) if isinstance(node, ast.AugAssign)}
    all_names = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in added)
    bound = Counter(name.id for name in all_names if isinstance(name.ctx, ast.Store))
    values: dict[str, Any] = {}
    for node in tree.body if body is None else body:
        if len(values) >= _MOST_NAMES:
            break
        value: ast.expr
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            names, value = [node.target.id], node.value
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            value = node.value
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            names, value = [node.target.id], ast.BinOp(node.target, node.op, node.value)
        else:
            continue
        for name in names:
            if bound[name] == 1 and (found := literal_of(value, values)) is not None:
                values[name] = found
    return values


def literal_of(node: ast.AST | None, names: Mapping[str, Any]) -> Any:
    """The value of a literal, of a known name, or of lists, tuples, dictionaries, entries and sums of these; else
    None, as for code that is nested too deeply."""
    try:
        return _value_of(node, names)
    except RecursionError:
        return None


def _value_of(node: ast.AST | None, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        items: list[Any] = []
        for item in node.elts:
            value = _value_of(item.value if isinstance(item, ast.Starred) else item, names)
            is_known = isinstance(value, list) if isinstance(item, ast.Starred) else value is not None
            if not is_known or len(items) > _LONGEST_SUM:
                return None
            items += value if isinstance(item, ast.Starred) else [value]
        return items
    if isinstance(node, ast.Dict):
        keys = [_value_of(key, names) for key in node.keys]
        values = [_value_of(value, names) for value in node.values]
        return {
            key: value for key, value in zip(keys, values, strict=True) if isinstance(key, str) and value is not None
        }
    if isinstance(node, ast.Subscript):
        table, key = _value_of(node.value, names), _value_of(node.slice, names)
        return table.get(key) if isinstance(table, dict) and isinstance(key, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _value_of(node.left, names), _value_of(node.right, names)
        is_same = type(left) is type(right) and isinstance(left, (str, list))
        return left + right if is_same and len(left) + len(right) <= _LONGEST_SUM else None
    return None


@dataclass(frozen=True, slots=True)
class SetupCall:
    """The keywords of `setup()` that are literals, and how the others are written."""

    values: Mapping[str, Any] = field(default_factory=dict, hash=False)
    computed: frozenset[str] = frozenset()
    where: tuple[str, ...] = ()
    """The directories of `find_packages(…)`."""


def read_setup_call(text: str) -> SetupCall:
    tree = _parsed(text)
    call = next(
        (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) == "setup"
        ),
        None,
    )
    if call is None:
        return SetupCall()
    around = (node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.If)) and call in ast.walk(node))
    names = constants_of(tree, [*tree.body, *(statement for node in around for statement in node.body)])
    words = dict(_keywords_of(call, tree))
    values = {name: literal_of(value, names) for name, value in words.items()}
    for word in call.keywords:
        more = literal_of(word.value, names) if word.arg is None else None
        values |= more if isinstance(more, dict) else {}
    packages = words.get("packages")
    where: list[str] = []
    if isinstance(packages, ast.Call):
        arguments = [*packages.args[:1], *(word.value for word in packages.keywords if word.arg == "where")]
        where = [found for node in arguments if isinstance(found := literal_of(node, names), str)]
    known = {name: value for name, value in values.items() if value is not None}
    return SetupCall(known, frozenset(values.keys() - known.keys()), tuple(where))


def _keywords_of(call: ast.Call, tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Keywords of a call, also those of `**NAME` if the module last binds NAME to `dict(…)`."""
    for word in call.keywords:
        if word.arg is not None:
            yield word.arg, word.value
            continue
        bound = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and getattr(word.value, "id", "") in [target.id for target in node.targets if isinstance(target, ast.Name)]
        ]
        last = bound[-1] if bound else None
        if isinstance(last, ast.Call) and isinstance(last.func, ast.Name) and last.func.id == "dict":
            yield from ((each.arg, each.value) for each in last.keywords if each.arg is not None)


def _of_setup_py(text: str, read: ReadText) -> dict[str, Any]:
    del read
    call = read_setup_call(text)
    values = call.values
    directories = _package_directories(_table(values, "package_dir"))
    groups = values.get("entry_points")
    return {
        "file": SETUP_PY,
        "name": safe_name(values.get("name")),
        "version": safe_version(values.get("version")),
        "directories": (*call.where, *directories),
        "entry_points": entry_points_of(groups) if isinstance(groups, Mapping) else {},
        "requires": requirement_texts(values.get("install_requires")),
        "extras": _extras(values.get("extras_require")),
        "is_compiled": "ext_modules" in values or "ext_modules" in call.computed,
        "extensions": tuple(_extensions_in(_parsed(text))),
    }


def _extensions_in(tree: ast.Module) -> Iterator[str]:
    """The names of `Extension("pkg._C", …)`, `CppExtension(name="pkg._C", …)` and the like."""
    names = constants_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            named = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "name")]
            if called.lower().endswith("extension"):
                yield from (name for each in named if isinstance(name := literal_of(each, names), str))

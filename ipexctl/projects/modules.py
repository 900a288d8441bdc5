"""Find the modules that a script imports: which are the project's own, and what those import in turn.

Only imports that always run are followed: at the top level of a module, and below `if __name__ == "__main__":` in the
script. Nothing is imported or run.
"""

from __future__ import annotations

import ast
import gc
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from ipexctl.file_reader import SCRIPT, SOURCE, read_or_empty, read_regular
from ipexctl.known_errors.packages import known_packages

SUFFIXES: Final = (".py", ".pyc", ".so")
_SOURCES: Final = (".pyx", ".cpp", ".cc", ".c", ".cu", ".rs")
MOST_TOKENS: Final = 100_000
"""Words and signs of a file that is parsed: its syntax tree takes 500 bytes for each."""
MOST_IMPORTS: Final = 500
"""Modules other than the project's own: each host is asked for them in one command line."""
_MOST_FILES: Final = 400
_MOST_TOKENS_FOLLOWED: Final = 600_000
_MOST_ENTRIES: Final = 2000
_MOST_NAMES: Final = 100_000
_NEEDED_BY: Final = {"torch.utils.tensorboard": "tensorboard"}
"""A module → a module of another package that it imports, which its own package does not require."""
_ALL: Final = re.compile(rb"(?m)^__all__[ \t]*=")
_LISTED: Final = re.compile(rb"glob|listdir|iter_modules|basename|modules")
_LONGEST_ALL: Final = 300
"""Bytes of an `__all__` that lists the package's directory."""
_TOKEN: Final = re.compile(rb"[\w\x80-\xff]+|[^\w\s]")


class Import(NamedTuple):
    module: str
    """Its top level, `torch` for `import torch.nn`; dotted below a namespace package of the project."""
    line: int
    file: str = ""
    """The project's file with the import; empty for the script."""


class ImportedName(NamedTuple):
    module: str
    """Dotted; empty for `from . import x`."""
    level: int
    names: tuple[str, ...]
    line: int


OnFile = Callable[[str, ast.Module, str], None]
"""Called with each own file that a script reaches: its path relative to the root, its tree and its text."""


@dataclass(frozen=True, slots=True)
class ReachedImports:
    """What a script imports in any case, also through the project's own modules."""

    imports: tuple[Import, ...] = ()
    """Modules that are not the project's own, each once."""
    own: tuple[tuple[Import, str], ...] = ()
    """Own modules, top level: the import, and the path without suffix, relative to the root."""
    files: tuple[str, ...] = ()
    """The project's own files, relative to its root, without the script; compiled ones too."""
    missing: tuple[Import, ...] = ()
    """Dotted modules of own packages that no file has."""
    notes: tuple[str, ...] = ()
    """What was not followed."""


def has_module(directory: Path, module: str) -> bool:
    """True if Python finds the module there: as a file, an extension, or a directory with Python files."""
    return has_file(directory, module) or _has_python(directory / module)


class ModulePlaces:
    """Finds modules in directories, and lists each directory only once."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self._names = {path: _names_in(path) for path in dict.fromkeys(directories)}

    def find(self, module: str) -> tuple[Path, ...]:
        """Return the directory with the module. A namespace package, which has no `__init__.py`, may have several: all
        directories that have a part of it are returned."""
        holders = [path for path, names in self._names.items() if module in names and has_module(path, module)]
        return tuple([path for path in holders if not is_namespace(path, module)][:1] or holders)


def _names_in(directory: Path) -> frozenset[str]:
    """Return the names in a directory, without suffixes; none if it can't be read."""
    try:
        with os.scandir(directory) as entries:
            return frozenset(entry.name.partition(".")[0] for entry in islice(entries, _MOST_NAMES))
    except OSError:
        return frozenset()


def is_namespace(directory: Path, module: str) -> bool:
    """True if Python would import the directory as a namespace: it has no `__init__`, and no file of that name is
    beside it."""
    names = (f"{module}/__init__", module)
    return (directory / module).is_dir() and not any(has_file(directory, name) for name in names)


def has_file(directory: Path, module: str) -> bool:
    """True if the module is a file there, of Python or compiled."""
    is_file = any((directory / f"{module}{suffix}").is_file() for suffix in SUFFIXES)
    return is_file or next(directory.glob(f"{module}.*.so"), None) is not None


def _has_python(directory: Path) -> bool:
    """True if the directory is a package: it has files of Python, at any depth."""
    waiting, seen = [directory], 0
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in islice(entries, _MOST_ENTRIES - seen):
                    seen += 1
                    if entry.name.endswith(SUFFIXES):
                        return True
                    if entry.is_dir(follow_symlinks=False) and entry.name.isidentifier():
                        waiting.append(Path(entry.path))
        except OSError:
            continue
    return False


def has_packages(directory: Path) -> bool:
    """True if the directory itself is no package and has packages or modules in it."""
    if (directory / "__init__.py").is_file():
        return False
    try:
        with os.scandir(directory) as entries:
            names = [(entry.name, entry.is_dir()) for entry in entries]
    except OSError:
        return False
    return any(
        _has_python(directory / name) if is_directory else name.endswith(".py")
        for name, is_directory in names
        if not is_directory or name.isidentifier()
    )


def find_module(name: str, places: Sequence[Path]) -> tuple[Path, str] | None:
    """Return the file that `python -m NAME` runs, and the package of that file; None if there is no such module."""
    for directory in places if name else ():
        base = directory.joinpath(*name.split("."))
        if base.with_name(f"{base.name}.py").is_file():
            return base.with_name(f"{base.name}.py"), name.rpartition(".")[0]
        if (base / "__main__.py").is_file():
            return base / "__main__.py", name
    return None


def is_anywhere(root: Path, module: str) -> bool:
    """True if some directory of the project has the module."""
    return directory_with(root, module) is not None


def directory_with(root: Path, module: str) -> Path | None:
    """Return the nearest directory of the project that has the module; None if there is none."""
    waiting, seen = [root], 0
    while waiting and seen < 2 * _MOST_ENTRIES:
        directory = waiting.pop(0)
        if has_module(directory, module):
            return directory
        try:
            with os.scandir(directory) as entries:
                below = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        seen += len(below) + 1
        waiting += [path for path in below if not path.name.startswith(".") and not (path / "pyvenv.cfg").exists()]
    return None


def modules_in(directory: Path) -> frozenset[str]:
    """Return the top-level modules that a directory has."""
    try:
        names = sorted(path.name for path in directory.iterdir())[:_MOST_ENTRIES]
    except OSError:
        return frozenset()
    modules = {name.removesuffix(".py") for name in names if name.endswith(".py")}
    modules |= {name for name in names if name.isidentifier() and _has_python(directory / name)}
    return frozenset(name for name in modules if name.isidentifier())


def count_tokens(data: bytes) -> int:
    """Return the number of words and signs in code; it is not counted beyond one more than `MOST_TOKENS`."""
    return sum(1 for _ in islice(_TOKEN.finditer(data), MOST_TOKENS + 1))


def is_too_long(data: bytes) -> bool:
    """True if reading the text's syntax would take too long."""
    return len(data) > MOST_TOKENS and count_tokens(data) > MOST_TOKENS


TOO_LONG: Final = f"it has more than {MOST_TOKENS:,} words and signs"


def parse(data: bytes) -> ast.Module | None:
    """Return the syntax tree; None for a file that is not Python, or is too long."""
    try:
        return ast.parse(data) if not is_too_long(data) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def top_level_imports(script: Path) -> tuple[str, ...]:
    """Return the first names of the modules that a script always imports; empty if it cannot be read."""
    tree = parse(read_or_empty(script, SCRIPT))
    names = imported_names(tree, is_script=True) if tree is not None else ()
    return tuple(dict.fromkeys(name.module.partition(".")[0] for name in names if not name.level))[:MOST_IMPORTS]


def imported_names(tree: ast.Module, *, is_script: bool) -> tuple[ImportedName, ...]:
    """Return the imports that always run. A module that is also imported in an `if` or a `try` is optional, and left
    out."""
    body: list[ast.stmt] = []
    for node in tree.body:
        body += node.body if is_script and isinstance(node, ast.If) and is_main_guard(node) else [node]
    guards = [node for node in body if isinstance(node, (ast.If, ast.Try, ast.With))]
    optional = {
        (name.module, name.level) for guard in guards for node in ast.walk(guard) for name in names_imported_by(node)
    }
    imports = (name for node in body for name in names_imported_by(node))
    return tuple(name for name in imports if (name.module, name.level) not in optional)


def imported_part(tree: ast.Module) -> ast.Module:
    """Return what runs of a module when it is imported: everything but the body of `if __name__ == "__main__":`."""
    parts = (node.orelse if isinstance(node, ast.If) and is_main_guard(node) else [node] for node in tree.body)
    return ast.Module([node for part in parts for node in part], tree.type_ignores)


def is_main_guard(node: ast.If) -> bool:
    """True for `if __name__ == …`."""
    test = node.test
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def names_imported_by(node: ast.AST) -> Iterator[ImportedName]:
    """Yield what an import statement names; nothing for other statements."""
    if isinstance(node, ast.Import):
        yield from (ImportedName(alias.name, 0, (), node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield ImportedName(node.module or "", node.level, tuple(alias.name for alias in node.names), node.lineno)


def modules_imported_by(node: ast.AST) -> Iterator[str]:
    """Yield the top-level modules that the statement imports; none for a relative import."""
    return (name.module.partition(".")[0] for name in names_imported_by(node) if not name.level)


class _Walk:
    def __init__(self, root: Path, search_paths: Sequence[Path], on_file: OnFile, built: Collection[str]) -> None:
        self._root, self._on_file, self._built = root, on_file, built
        self._places_of = cache(ModulePlaces(search_paths).find)
        self._tokens = 0
        self._seen: set[Path] = set()
        self._waiting: list[tuple[Path, str]] = []
        self.imports: dict[str, Import] = {}
        self.missing: dict[str, Import] = {}
        self.own: dict[str, tuple[Import, str]] = {}
        self.files: list[str] = []
        self.notes: list[str] = []

    def follow(self, tree: ast.Module, name: str, package: str, *, is_script: bool) -> None:
        for imported in imported_names(tree, is_script=is_script):
            self._add(imported, name, package)

    def import_package(self, package: str) -> None:
        """Follow the package of a script that runs as a module: Python imports it first."""
        self._add(ImportedName(package, 0, (), 0), "", "")

    def follow_all(self) -> None:
        """Read the project's modules that were reached, and follow their imports, until none is left or the limits are
        reached."""
        while self._waiting:
            if len(self.files) >= _MOST_FILES or self._tokens >= _MOST_TOKENS_FOLLOWED:
                self.notes.append(
                    f"of the project's modules, only {len(self.files)} that the script reaches are checked"
                )
                return
            path, package = self._waiting.pop(0)
            try:
                data = read_regular(path, SOURCE)
            except OSError:
                continue
            name = self._name(path)
            self._tokens += count_tokens(data)
            if is_too_long(data):
                self.notes.append(f"{name} is not checked: {TOO_LONG}")
            if (tree := parse(data)) is None:
                continue
            tree = imported_part(tree)
            self.files.append(name)
            self._on_file(name, tree, data.decode("utf-8", "replace"))
            self.follow(tree, name, package, is_script=False)

    def _add(self, imported: ImportedName, name: str, package: str) -> None:
        """Take an imported module: as one of the project's own, whose file is read later, or as one that hosts must
        have."""
        if imported.level:
            parts = package.split(".") if package else []
            above = parts[: len(parts) - imported.level + 1]
            if not above:
                return  # a relative import of a script: `check_relative_imports` refuses it
            dotted = ".".join([*above, *filter(None, (imported.module,))])
        else:
            dotted = imported.module
        top = dotted.partition(".")[0]
        places = self._places_of(top)
        if not places:
            self._ask_hosts(Import(top, imported.line, name))
            for module in (dotted, *(f"{dotted}.{attribute}" for attribute in imported.names)):
                for package in (needed for above, needed in _NEEDED_BY.items() if f"{module}.".startswith(f"{above}.")):
                    self._ask_hosts(Import(package, imported.line, name))
            return
        is_hidden = dotted == top and not imported.names and is_namespace(places[0], top)
        if is_hidden and top in known_packages():  # `gym/` without `__init__.py` gives way to the package gym
            self._ask_hosts(Import(top, imported.line, name))
        self.own.setdefault(top, (Import(top, imported.line, name), self._name(places[0] / top)))
        self._add_own(dotted, imported, places, name)

    def _ask_hosts(self, entry: Import) -> None:
        if len(self.imports) < MOST_IMPORTS:
            self.imports.setdefault(entry.module, entry)
        elif entry.module not in self.imports:
            self.notes.append(f"only {MOST_IMPORTS} modules of others are looked for on hosts")

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else os.fspath(path)

    def _add_own(self, dotted: str, imported: ImportedName, places: tuple[Path, ...], name: str) -> None:
        """Find the files of an own module and of the names that are imported from it, package by package. A name that
        no file has is missing, unless an `__init__.py` may make it when it runs."""
        parts = dotted.split(".")
        is_open, location = True, None  # a namespace package may have parts elsewhere, and makes no names itself
        for at, part in enumerate(parts):
            package = ".".join(parts[: at + 1])
            location = next(
                (
                    candidate
                    for candidate in places
                    if has_module(candidate, part) and not is_namespace(candidate, part)
                ),
                None,
            )
            portions = tuple(candidate / part for candidate in places if (candidate / part).is_dir())
            if location is not None and not (location / part / "__init__.py").is_file():
                self._queue(location / f"{part}.py", ".".join(parts[:at]))
                return
            if location is not None:
                is_open, portions = False, (location / part,)
                self._queue(location / part / "__init__.py", package)
            elif not portions:
                self._add_missing(package, imported.line, name, places, is_open=is_open)
                return
            places = portions
        is_namespace_package = location is None
        names = imported.names
        if location is not None and names == ("*",) and _lists_its_directory(places[0]):
            names = tuple(sorted(modules_in(places[0]) - {"__init__"}))
        for member in names:
            full = f"{dotted}.{member}"
            location = next((location for location in places if has_module(location, member)), None)
            if location is not None and (location / f"{member}.py").is_file():
                self._queue(location / f"{member}.py", dotted)
            elif location is not None:
                self._queue(location / member / "__init__.py", full)
            elif full in self._built or source_beside(places, member) is not None:
                self.missing.setdefault(full, Import(full, imported.line, name))
            elif is_namespace_package and member != "*":
                if is_open:
                    self._ask_hosts(Import(dotted, imported.line, name))
                else:
                    self.missing.setdefault(full, Import(full, imported.line, name))

    def _add_missing(self, module: str, line: int, name: str, places: Sequence[Path], *, is_open: bool) -> None:
        if is_open and module not in self._built:
            self._ask_hosts(Import(module, line, name))
        elif not _is_made_of_names(places[0]):
            self.missing.setdefault(module, Import(module, line, name))

    def _queue(self, path: Path, package: str) -> None:
        """Let a file be read later, once; of a compiled module, only note the file."""
        if path in self._seen:
            return
        self._seen.add(path)
        if not path.is_file():
            module = path.parent if path.name == "__init__.py" else path.with_suffix("")
            compiled = [file for suffix in (".so", ".*.so") for file in module.parent.glob(f"{module.name}{suffix}")]
            self.files += map(self._name, sorted(compiled))
            return
        self._waiting.append((path, package))


def _lists_its_directory(package: Path) -> bool:
    """True if `import *` imports each module of the package."""
    text = read_or_empty(package / "__init__.py", SOURCE)
    listing = _ALL.search(text)
    return listing is not None and _LISTED.search(text, listing.end(), listing.end() + _LONGEST_ALL) is not None


def _is_made_of_names(directory: Path) -> bool:
    """True for a package whose `__init__.py` may add modules when it runs."""
    text = read_or_empty(directory / "__init__.py", SOURCE)
    return any(word in text for word in (b"__getattr__", b"__path__", b"sys.modules", b"lazy"))


def source_beside(directories: Sequence[Path], dotted: str) -> Path | None:
    """Return the file of a compiled language from which a build makes the module; None if there is none."""
    parts = dotted.split(".")
    paths = (directory.joinpath(*parts).with_suffix(suffix) for directory in directories for suffix in _SOURCES)
    return next((path for path in paths if path.is_file()), None)


def follow_imports(
    tree: ast.Module,
    root: Path,
    search_paths: Sequence[Path],
    *,
    package: str = "",
    on_file: OnFile = lambda *_: None,
    built: Collection[str] = (),
) -> ReachedImports:
    """Return what a script imports, also through the project's own modules. `package`: of a script that runs as a
    module. `built`: modules that a build compiles."""
    walk = _Walk(root, search_paths, on_file, built)
    collects = gc.isenabled()
    gc.disable()  # syntax trees have no cycles, and looking for some doubles the time
    try:
        walk.follow(tree, "", package, is_script=True)
        if package:
            walk.import_package(package)
        walk.follow_all()
    finally:
        if collects:
            gc.enable()
    return ReachedImports(
        tuple(walk.imports.values()),
        tuple(walk.own.values()),
        tuple(walk.files),
        tuple(walk.missing.values()),
        tuple(dict.fromkeys(walk.notes)),
    )

"""Finds the functions and methods of a project that a script certainly runs, also in its own modules. Pure.

A name is followed only if its file binds it once, and a module only if one file that the script reaches has its name.
Base classes are not followed: what they call may be overridden.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

_MOST_HOPS: Final = 50
"""Imports that are followed for one name."""
_RUNNERS: Final = frozenset(("app.run", "fire.Fire", "Fire", "typer.run", "tyro.cli"))
"""Functions of absl, fire, Typer and tyro that call their first argument with what is typed."""
_NAME: Final = r"'(?:RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR)'"
_TEXT: Final = rf"(?:os\.)?(?:environ(?:\.get\(|\[)|getenv\(){_NAME}(?:, [^()]*)?[)\]]"
_TRUE: Final = re.compile(
    "|".join((rf"{_NAME} in (?:os\.)?environ", rf"int\({_TEXT}\) (?:!= -1|>= 0|> -1)", rf"{_TEXT}(?: is not None)?"))
)
_FALSE: Final = re.compile(rf"{_NAME} not in (?:os\.)?environ|{_TEXT} is None|int\({_TEXT}\) (?:== -1|< 0)")
"""Tests of the environment that each rank has. WORLD_SIZE may be 1."""
ASKED: Final = re.compile(_NAME.replace("'", "['\"]"))
_MOST_LETTERS: Final = 200
"""Of what a name stands for in such a test."""
_MOST_TESTS: Final = 10
_LONGEST: Final = 100_000


def find_taken(tree: ast.Module, text: str) -> Mapping[ast.AST, ast.AST]:
    """The block that ranks take of each `if` that tests their environment, also by a name that is bound once."""
    if len(text) > _LONGEST or ASKED.search(text) is None:
        return {}
    nodes = [*ast.walk(tree)]
    stored = [each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    bound = Counter(stored + [each.arg for each in nodes if isinstance(each, ast.arg)])
    asked = {number for number, line in enumerate(text.split("\n"), 1) if ASKED.search(line) is not None}
    values = [each for each in nodes if isinstance(each, ast.Assign) and each.lineno in asked]
    sources = {source_of(each.targets[0]): source_of(each.value) for each in values}
    once = {name: source for name, source in sources.items() if bound[name] == 1 and len(source) < _MOST_LETTERS}
    held = [(each, _holds(source_of(each.test), once)) for each in nodes if isinstance(each, ast.If)]
    known = [(each, holds) for each, holds in held if holds is not None][:_MOST_TESTS]
    return {each: ast.Module(each.body if holds else each.orelse, []) for each, holds in known}


def _holds(test: str, once: Mapping[str, str]) -> bool | None:
    test = _TRUE.sub("True", _FALSE.sub("False", re.sub(r"\w+", lambda word: once.get(word[0], word[0]), test)))
    parts = {*re.split(" and | or ", test.replace("not True", "False").replace("not False", "True"))}
    return parts == {"True"} if parts in ({"True"}, {"False"}) else None


def source_of(node: ast.AST | None) -> str:
    with suppress(RecursionError):
        return ast.unparse(node) if node is not None else ""
    return ""


def scopes_of(tree: ast.Module) -> dict[ast.AST, str]:
    """The module's functions and classes, and methods as `Net.fit`."""
    scopes: dict[ast.AST, str] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            scopes[node] = node.name
        if isinstance(node, ast.ClassDef):
            scopes |= {each: f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return scopes


def module_of(name: str) -> str:
    """A file's module, dotted, from the project's root."""
    return name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


class FileNames:
    """The names of a file, read node by node. `name`: its path from the project's root. `scopes`: see `scopes_of`."""

    def __init__(self, name: str, scopes: Iterable[str]) -> None:
        self._parts = name.removesuffix(".py").split("/")
        self.module = module_of(name)
        self._scopes = frozenset(scopes)
        self._bound = Counter[tuple[str, str]]()
        self._imports: dict[tuple[str, str], str] = {}
        self._instances: dict[tuple[str, str], str] = {}
        self._kept = set[tuple[str, str]]()
        """Method and name, as in `self.cuda = cuda`. `stores` has the attributes of all objects."""
        self.stores = Counter[str]()
        self._commands: dict[str, str] = {}
        """Name of a Typer → the function that it runs, if it is its only command."""
        self._uses = Counter[str]()
        """Of a name, but for calls of it."""
        self._stars: list[str] = []
        self._calls = defaultdict[str, set[str]](set)

    def read(self, node: ast.AST, scope: str, *, is_sure: bool) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self._bound[scope, node.id] += 1
        elif isinstance(node, ast.Name):
            self._uses[node.id] += 1
        elif isinstance(node, ast.arg):
            self._bound[scope, node.arg] += 1
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._bound[scope, node.name] += 1
            decorators = (callee(each) for each in node.decorator_list if isinstance(each, ast.Call))
            self._commands |= {each.partition(".")[0]: node.name for each in decorators if each.endswith(".command")}
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._read_import(node, scope)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            self.stores[node.attr] += 1
        elif isinstance(node, ast.Call):
            self._read_call(node, scope, is_sure=is_sure)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            names = (each.id for each in node.targets if isinstance(each, ast.Name))
            self._instances |= {(scope, name): callee(node.value) for name in names}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and is_sure:
            name = node.value.id
            self._kept |= {(scope, name) for each in node.targets if callee(ast.Call(each, [], [])) == f"self.{name}"}

    def _read_call(self, node: ast.Call, scope: str, *, is_sure: bool) -> None:
        called = callee(node)
        self._uses[called.partition("(")[0]] -= 1
        run = {each.id for each in node.args[:1] if called in _RUNNERS and isinstance(each, ast.Name)}
        self._calls[scope] |= {called, *run} if is_sure else set()

    def _read_import(self, node: ast.Import | ast.ImportFrom, scope: str) -> None:
        of_module = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        if isinstance(node, ast.ImportFrom) and node.level:
            of_module = [*self._parts[: -node.level], *of_module]
        for alias in node.names:
            name, target = alias.asname or alias.name, ".".join((*of_module, alias.name))
            if name == "*":
                self._stars.append(".".join(of_module))
                continue
            if isinstance(node, ast.Import) and alias.asname is None:
                name = target = name.partition(".")[0]
            self._bound[scope, name] += self._imports.get((scope, name)) != target
            self._imports[scope, name] = target

    def defines(self, definition: str) -> bool:
        top, _, method = definition.partition(".")
        is_once = self._bound["", top] == 1 and (not method or self._bound[top, method] == 1)
        return is_once and definition in self._scopes

    def brought_as(self, name: str) -> list[str]:
        """What an import of the module may have brought by that name, from the project's root."""
        first = name.partition(".")[0]
        if not self._bound["", first]:
            return [f"{star}.{name}" for star in self._stars]
        is_typer = self._instances.get(("", name)) in ("typer.Typer", "Typer")
        if is_typer and self._bound["", name] == self._uses[name] == 1 and name in self._commands:
            return [f"{self.module}.{self._commands[name]}"]
        target = self._imports.get(("", first)) if self._bound["", first] == 1 else None
        return [target + name[len(first) :]] if target else []

    def calls_of(self, scope: str) -> Iterator[str]:
        """What the definition calls in any case, or for an empty name the module, from the project's root."""
        definition, _, of_self = scope.partition("(self.")
        for called in self._calls[definition]:
            name, _, given = called.partition("(")
            place = self._place(name, definition)
            first, _, rest = name.partition(".")
            if rest and self._bound[place, first] == 1 and (place, first) in self._instances:
                made, _, kept = self._instances[place, first].partition("(")
                name, given = f"{made}.{rest}", f"self.{kept}" if kept else given
                place = self._place(name, place)
                first, _, rest = name.partition(".")
            full = f"{self.module}.{name}"
            if first == "self":
                full, given = f"{self.module}.{scope.partition('.')[0]}.{rest}", f"self.{of_self}" if of_self else given
            elif place and self._bound[place, first] == 1 and (place, first) in self._imports:
                full = self._imports[place, first] + name[len(first) :]
            elif place:
                continue
            yield from (full, f"{full}({given}")[: 1 + bool(given)]

    def is_given(self, scope: str, files: Iterable[FileNames]) -> bool:
        """True if a call alone sets what the scope tests, as in `Net.fit(self.cuda)`."""
        definition, sign, tested = scope.rstrip(")").partition("(")
        name = tested.removeprefix("self.")
        if name == tested:
            return not sign or self._bound[definition, name] == 1
        made = f"{definition.partition('.')[0]}.__init__"
        return (made, name) in self._kept and self._bound[made, name] == sum(file.stores[name] for file in files) == 1

    def _place(self, name: str, scope: str) -> str:
        """The scope that binds the name."""
        return scope if self._bound[scope, name.partition(".")[0]] else ""


class _Modules:
    def __init__(self, files: Iterable[FileNames], others: Mapping[str, Callable[[], FileNames]]) -> None:
        self.read = {file.module: file for file in files}
        self._others = others
        self._names: dict[str, str | None] = {}
        """Modules by what an import may call them; None for several."""
        for module in {**others, **self.read}:
            dots = (at for at, letter in enumerate(module) if letter == ".")
            for suffix in (module[at + 1 :] for at in dots):
                self._names[suffix] = None if suffix in self._names else module
        self._names |= {module: module for module in (*others, *self.read)}

    def find(self, full: str, seen: set[str]) -> tuple[str, str] | None:
        """The module and definition that a name stands for."""
        full, sign, given = full.partition("(")
        parts = full.split(".")
        fronts = ((".".join(parts[:at]), ".".join(parts[at:])) for at in range(len(parts) - 1, 0, -1))
        found = ((module, name) for front, name in fronts if (module := self._names.get(front)) is not None)
        module, name = next(found, (None, ""))
        if module is None or full in seen or len(seen) > _MOST_HOPS:
            return None
        seen.add(full)
        if module not in self.read:
            self.read[module] = self._others[module]()
        file = self.read[module]
        for definition in (f"{name}.__init__", name):
            if file.defines(definition):
                return module, definition + sign + given
        return next(filter(None, (self.find(each + sign + given, seen) for each in file.brought_as(name))), None)


def find_reached(
    files: Iterable[FileNames], others: Mapping[str, Callable[[], FileNames]]
) -> frozenset[tuple[str, str]]:
    """Module and definition of all that certainly runs once each file is imported. `others`: by module, files that are
    read only where a name leads to them."""
    modules, reached = _Modules(files, others), set[tuple[str, str]]()
    waiting = [(module, "") for module in modules.read]
    while waiting:
        module, scope = waiting.pop()
        if (module, scope) not in reached:
            reached.add((module, scope))
            waiting += filter(None, (modules.find(full, set()) for full in modules.read[module].calls_of(scope)))
    return frozenset(each for each in reached if modules.read[each[0]].is_given(each[1], modules.read.values()))


def callee(call: ast.Call) -> str:
    """`Net.fit` also for `Net(…).fit(…)`; `Net(cuda)` for `Net(cuda=True)`; empty for a call of what has no name."""
    parts, node = list[str](), call.func
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
        if isinstance(node, ast.Call) and len(parts) == 1:
            node = node.func
    true = (each.arg or "" for each in call.keywords if getattr(each.value, "value", None) is True)
    given = next((f"({name})" for name in true if "cuda" in name), "")
    return ".".join((node.id, *reversed(parts))) + given if isinstance(node, ast.Name) else ""

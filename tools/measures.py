"""The costs of understanding and changing this project, computed from its code: `python -m tools.measures [-v]`.

Each row is a function below `@row`, in the order of the table. It returns the places it found: their number is the
value, and `-v` prints them. `wanted` is the goal. A row with `held` fails in `tests/unit/test_measures.py` as soon as
there are more places than that: lower the number when you have removed some, and never raise it. What no program can
count, as the files that a new option touches, has no row.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache, partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ipexctl"


@dataclass(frozen=True)
class Row:
    """One measure: its text, the function that finds its places, the goal, and the number that fails if it grows."""

    text: str
    find: Callable[[], list[str]]
    wanted: int
    held: int | None


ROWS: list[Row] = []


def row(text: str, *, wanted: int, held: int | None = None) -> Callable[[Callable[[], list[str]]], Any]:
    def add(find: Callable[[], list[str]]) -> Callable[[], list[str]]:
        ROWS.append(Row(text, find, wanted, held))
        return find

    return add


# The code, read once


@cache
def modules() -> dict[str, ast.Module]:
    """Path below the project → its syntax tree."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a module: each walk over all modules takes half a second, and most rows need one."""
    return tuple(ast.walk(tree))


@cache
def length(path: str) -> int:
    return (ROOT / path).read_text().count("\n")


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in nodes(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == name:
            yield node


def docstrings(tree: ast.AST) -> set[int]:
    """The ids of the constants that are docstrings: those of attributes, too."""
    return {
        id(node.value) for node in nodes(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


# What reaches the terminal

_WRITERS = ("message_output.py", "safe_output.py", "host_output.py", "progress_view.py", "run/live_view.py")
_WRITTEN_ELSEWHERE: dict[str, str] = {
    "ipexctl/node/": "frames and errors, which ui prints",
    "ipexctl/inrank/": "the output of a rank, which ui prints",
}
_ASKED_OF_STREAMS = {"isatty", "fileno", "encoding", "flush", "reconfigure"}
_PRINTERS = {"print", "input", "Console", *(f"typer.{name}" for name in ("echo", "secho", "confirm", "prompt"))}
_TAKES_STREAMS = {"wants_color", "redirect_stdout", "Pipe"}


@row("writes to the terminal outside of the modules of ui that make text safe", wanted=0, held=0)
def writes_to_the_terminal() -> list[str]:
    skipped = (*_WRITTEN_ELSEWHERE, *(f"ipexctl/ui/{name}" for name in _WRITERS))
    return [
        f"{path}:{line}"
        for path, tree in modules().items()
        if not path.startswith(skipped)
        for line in terminal_writes(tree)
    ]


def terminal_writes(tree: ast.AST) -> Iterator[int]:
    """Lines that print, or use a standard stream for more than a question about it."""
    streams = {"sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"}
    asked: set[int] = set()
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and node.attr in _ASKED_OF_STREAMS:
            asked.add(id(node.value))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            asked |= {id(argument) for argument in node.args if name in _TAKES_STREAMS}
            if name in _PRINTERS or (name == "os.write" and ast.unparse(node.args[0]) in ("1", "2")):
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "sys":
            yield node.lineno
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in streams and id(node) not in asked:
            yield node.lineno


# Fixes whose commands are lost


@row("fixes and commands that become text in an f-string, `format` or `join`", wanted=0, held=0)
def formatted_fixes() -> list[str]:
    makers = {
        node.name
        for tree in modules().values()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and ast.unparse(node.returns or ast.Name("")) in ("Fix", "FixCommand")
    }
    makers.add("Fix")
    return [f"{path}:{line}" for path, tree in modules().items() for line in fixes_as_text(tree, makers)]


def fixes_as_text(tree: ast.AST, makers: Set[str] = frozenset(("Fix",))) -> Iterator[int]:
    """`makers`: functions that return a fix or a command."""
    for node in nodes(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.JoinedStr):
            parts = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("join", "format"):
            parts = [getattr(argument, "elt", argument) for argument in node.args]
        for part in parts:
            is_maker = isinstance(part, ast.Call) and ast.unparse(part.func) in makers
            if is_maker or (isinstance(part, ast.Attribute) and part.attr in ("fix", "next_step")):
                yield part.lineno


# Sentences of ours that are read back

_WORDS = re.compile(r"[A-Za-z']{2,} [A-Za-z']{2,}")
_RUN_TEXTS = ("ipexctl/node/", "ipexctl/run/", "ipexctl/homes/")
"""They read what versions before fields have written: sentences that never change."""
_OF_RE = {"compile", "search", "match", "fullmatch", "findall", "finditer", "sub", "split"}
_OF_OTHERS: dict[str, str] = {
    "CPU implementer": "the kernel's, in /proc/cpuinfo",
    "glibc|GLIBC|GNU libc|GNU C Library": "of ldd",
    "pip install": "of a user's script",
    "timed out": "of OpenSSL",
    r"No space left|os error 28\)": "of uv",
    "Open MPI": "of mpirun",
    r"(?P<value>'.*'|\S+) is not (?:a valid (?P<kind>\w+)|in the range|one of)": "of typer",
    "ended by": "the name of a column",
    "[Tt]imed out|[Ww]ait timeout|Socket Timeout": "of gloo and torch",
    r"[Tt]imed out waiting (?P<first>\d{1,12})ms|[Ww]ait timeout after (?P<second>\d{1,12})ms": (
        "of gloo and torch; a wait in shared memory ends with gloo's words"
    ),
    r"Connection (?:closed by peer|was likely closed)|(?:gloo/|SocketImpl|TCPStore|Dist\w*Error).*"
    r"(?:Connection (?:reset by peer|refused)|Broken pipe)": "of gloo and torch",
    "version https://git-lfs": "of Git LFS",
}
"""A text or a pattern that also matches a sentence of ours → whose text it looks for."""


def rendered(node: ast.expr) -> list[str]:
    """A string as it may look when it is printed: its fields are a number, or a word."""
    if isinstance(node, ast.Constant):
        value = node.value
        return (
            [value] if isinstance(value, str) else [value.decode(errors="replace")] if isinstance(value, bytes) else []
        )
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
        return ["".join(filler if part is None else str(part) for part in parts) for filler in ("1", "a-word")]
    return []


def compared_texts(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Literals that a program looks for in another text, with the kind of the search."""
    for node in nodes(tree):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
                if isinstance(operator, ast.In | ast.NotIn):
                    yield left, "text"
                elif isinstance(operator, ast.Eq | ast.NotEq):
                    yield left, "text"
                    yield right, "text"
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "find"}:
                for argument in node.args[:1]:
                    for text in argument.elts if isinstance(argument, ast.Tuple) else [argument]:
                        yield text, "text"
            elif name in _OF_RE and node.args and getattr(getattr(node.func, "value", None), "id", "") == "re":
                yield node.args[0], "pattern"


@cache
def own_sentences() -> dict[str, str]:
    """Each sentence that our programs print → where. Patterns, docstrings and texts that are compared are none."""
    found: dict[str, str] = {}
    for path, tree in modules().items():
        if path.startswith("ipexctl/addons/lab/"):
            continue
        left_out = docstrings(tree) | {id(part) for text, _ in compared_texts(tree) for part in ast.walk(text)}
        left_out |= {id(part) for node in nodes(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes(tree):
            if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in left_out:
                for text in rendered(node):
                    if _WORDS.search(text):
                        found.setdefault(text, f"{path}:{node.lineno}")
    return found


@row("* our own sentences matched as data", wanted=0, held=0)
def sentences_matched_as_data() -> list[str]:
    found = []
    for path, tree in modules().items():
        for node, kind in compared_texts(tree):
            for text in rendered(node)[:1]:
                if not _WORDS.search(text) or text in _OF_OTHERS:
                    continue
                where = _where_printed(text, kind)
                where = where or ("with our name" if kind == "pattern" and "ipexctl: " in text else "")
                if where:
                    found.append(f"{path}:{node.lineno}: {text!r} is printed {where}")
    table = yaml.safe_load((PACKAGE / "known_errors" / "table.yaml").read_text())
    for known in (known for section in table.values() for known in section):
        texts = known.get("text", ())
        for text in filter(None, (texts,) if isinstance(texts, str) else texts):
            where = _where_printed(text, "pattern", _RUN_TEXTS) or ("with our name" if "ipexctl" in text else "")
            if where and text not in _OF_OTHERS:
                found.append(f"known_errors/table.yaml: {known['id']}: {text!r} is printed {where}")
    return found


def _where_printed(text: str, kind: str, below: tuple[str, ...] = ("ipexctl/",)) -> str:
    """The place of a sentence of ours in which a program would find that text."""
    search = re.compile(text).search if kind == "pattern" else (lambda sentence: text in sentence)
    for sentence, where in own_sentences().items():
        if where.startswith(below) and search(sentence):
            return f"at {where}"
    return ""


# Defaults

_OF_MANY_FIELDS = (None, False, True, 0, "", ())
"""Defaults that many fields have."""
_ASKED = "ipexctl/node/common/run_options.py"
"""Has the defaults of a run's options."""


@row("* places where the default of an option is written again", wanted=0, held=0)
def defaults_written_again() -> list[str]:
    return [
        f"{path}:{line}: {name}"
        for path, tree in modules().items()
        if path != _ASKED
        for name, line in defaults_in(tree, defaults_of_options())
    ]


@cache
def defaults_of_options() -> dict[str, set[Any]]:
    """The defaults of the options of all commands, by parameter name."""
    from ipexctl.commands.app import commands
    from ipexctl.commands.defaults import command_specs

    found = defaultdict(set)
    for _, spec in command_specs(*commands()):
        for param in spec.params.values():
            default = getattr(param.default, "value", param.default)
            if default not in _OF_MANY_FIELDS:
                found[param.name].add(default)
    return found


def defaults_in(tree: ast.AST, defaults: Mapping[str, Set[Any]]) -> Iterator[tuple[str, int]]:
    """Where source has the default of an option as a literal: for a field, a parameter, an argument or an option of a
    playbook module that has the option's name, or in the text of a help. Its declaration has it as an argument.
    """
    numbers = {f"(default: {value:g})": name for name, values in defaults.items() for value in values
               if isinstance(value, (int, float))}  # fmt: skip
    for node in nodes(tree):
        named: list[tuple[str | None, ast.expr | None]] = []
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            named = [(node.target.id, node.value)]
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            named = [
                (arg.arg, value) for arg, value in zip(reversed(positional), reversed(node.defaults), strict=False)
            ]
            named += [(arg.arg, value) for arg, value in zip(node.kwonlyargs, node.kw_defaults, strict=True)]
        elif isinstance(node, ast.Call):
            named = [(keyword.arg, keyword.value) for keyword in node.keywords]
        elif isinstance(node, ast.Dict):
            items = zip(node.keys, node.values, strict=True)
            calls = [(key, value) for key, value in items if isinstance(value, ast.Call)]
            named = [
                (str(key.value), keyword.value)
                for key, call in calls
                for keyword in call.keywords
                if isinstance(key, ast.Constant) and keyword.arg == "default"
            ]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((name, node.lineno) for text, name in numbers.items() if text in node.value)
        for name, value in named:
            if name and isinstance(value, ast.Constant) and value.value in defaults.get(name, ()):
                yield name, value.lineno


# Failures


def exception_classes() -> dict[str, tuple[str, ...]]:
    """Class → its bases, for our exceptions of the control side."""
    bases = {
        node.name: tuple(ast.unparse(base) for base in node.bases)
        for path, tree in modules().items()
        if not path.startswith("ipexctl/node/")
        for node in nodes(tree)
        if isinstance(node, ast.ClassDef)
    }

    def is_exception(name: str) -> bool:
        if name in bases:
            of = {base.rpartition(".")[2] for base in bases[name]} - {name}  # a class may have the name of its base
            return any(map(is_exception, of))
        return name.endswith(("Error", "Exception", "Interrupt")) or name == "RuntimeError"

    return {name: of for name, of in bases.items() if is_exception(name)}


@row("functions of the control side that return an exception in place of a result", wanted=3, held=3)
def raised_and_returned() -> list[str]:
    """`-> Plan | SomeError`. A function that only makes the exception for its caller is no such."""
    classes, found = exception_classes(), []
    for path, tree in modules().items():
        for node in nodes(tree):
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                parts = {part.strip() for part in ast.unparse(node.returns).split(" | ")} - {"None"}
                if parts & set(classes) and parts - set(classes):
                    found.append(f"{path}:{node.lineno}: {node.name} -> {ast.unparse(node.returns)}")
    return found


@row("exception classes of the control side that nothing tells apart from their base", wanted=0, held=0)
def classes_nobody_distinguishes() -> list[str]:
    used: set[str] = set()
    for tree in modules().values():
        for node in nodes(tree):
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                used.update(re.findall(r"\w+", ast.unparse(node.type)))
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in {
                "isinstance",
                "suppress",
            }:
                used.update(word for argument in node.args for word in re.findall(r"\w+", ast.unparse(argument)))
            elif isinstance(node, ast.match_case):
                used.update(re.findall(r"\w+", ast.unparse(node.pattern)))
            elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Tuple):
                used.update(re.findall(r"\w+", ast.unparse(node.value)))  # a tuple of classes to catch
    return [name for name in exception_classes() if name not in used]


# Directories of others

_IN_DIRECTORIES_OF_OTHERS = ("ipexctl/node/files/", "ipexctl/files/")
"""Modules that write where the user says, which may be a directory that others can change."""
_WRITES = frozenset(
    (
        *("rename", "replace", "unlink", "remove", "rmdir", "mkdir", "makedirs"),
        *("symlink", "link", "chmod", "utime", "rmtree"),
    )
)


@row("* writes by path, not by an open directory, in modules for files of the user", wanted=0, held=0)
def writes_by_path() -> list[str]:
    return [
        f"{path}:{call.lineno}"
        for path, tree in modules().items()
        if path.startswith(_IN_DIRECTORIES_OF_OTHERS)
        for call in nodes(tree)
        if isinstance(call, ast.Call) and _writes_by_path(call)
    ]


def _writes_by_path(call: ast.Call) -> bool:
    """Of os and shutil: without a descriptor of the directory; open only if it can create or write."""
    module, _, name = ast.unparse(call.func).rpartition(".")
    if module not in ("os", "shutil") or any((given.arg or "").endswith("dir_fd") for given in call.keywords):
        return False
    if name == "utime" and ast.unparse(call.args[0]) == "number":  # an open file
        return False
    opens_to_write = name == "open" and any(
        flag in ast.unparse(call) for flag in ("O_CREAT", "O_WRONLY", "O_RDWR", "O_TRUNC")
    )
    return name in _WRITES or opens_to_write


_NAMED_PLACES = tuple(
    f"ipexctl/{name}.py"
    for name in (
        *("files/named_paths", "files/destination", "node/files/push", "node/files/checkpoint_files"),
        "node/files/checkpoint_path",
        "node/files/place",
    )
)
_READS = re.compile(r"open|os\.(open|stat|lstat|listdir|scandir|walk|readlink|path\.(l?exists|isdir|isfile|islink))")
_OPENED = re.compile(r"\b(number|_?anchor|open_to_read)\b")
_OF_THE_HOME = {
    "open(source, 'rb', buffering=0)": "the inbox of the exchange",
    "os.listdir(code)": "the trees that sync has made",
    "os.path.isdir(os.path.join(root, STATE_DIRECTORY))": "the same",
    "os.path.isfile(place)": "what has arrived: `place` is below an anchor",
    "os.stat(os.path.join(above, name), follow_symlinks=False)": "below an anchor",
    "open('/proc/self/status', 'rb')": "the umask",
}


@row("* paths of the user's data, and homes of a request, that are used without the walk", wanted=0, held=0)
def uses_without_the_walk() -> list[str]:
    by_name = [
        f"{path}:{call.lineno}"
        for path in _NAMED_PLACES
        for call in nodes(modules()[path])
        if isinstance(call, ast.Call) and _READS.fullmatch(ast.unparse(call.func)) and _reads_by_path(call)
    ]
    homes = [
        f"{path}:{call.lineno}"
        for path, tree in modules().items()
        if path.startswith("ipexctl/node/") and path != "ipexctl/node/common/home.py"
        for call in nodes(tree)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).startswith(("os.", "Path"))
        and any(ast.unparse(argument) == "request['home']" for argument in call.args)
    ]
    return by_name + homes


def _reads_by_path(call: ast.Call) -> bool:
    text = ast.unparse(call)
    has_directory = any((given.arg or "").endswith("dir_fd") for given in call.keywords)
    return not (has_directory or _OPENED.search(text) or text in _OF_THE_HOME)


# Liveness


_OTHER_QUESTIONS = {
    "ipexctl/node/common/processes.py": "the process of an identity, of whatever program",
    "ipexctl/node/run/runs.py": "whether a process that has just got a signal has exited",
    "ipexctl/node/run/retention.py": "whether a supervisor whose run is over still closes files",
}
"""Modules that look at a process → what they ask about it."""


@row("* modules besides node/common/liveness.py that decide whether a run is alive or over", wanted=0, held=0)
def answers_about_liveness() -> list[str]:
    found = []
    for path, tree in modules().items():
        if path == "ipexctl/node/common/liveness.py":
            continue
        read = {node.attr for node in nodes(tree) if isinstance(node, ast.Attribute)}
        is_decided = "is_here" in read and "sight_of" not in {getattr(node, "id", "") for node in nodes(tree)}
        is_decided = is_decided or {"is_of_this_machine", "is_alive"} <= read or {"is_alive", "supervisor"} <= read
        if is_decided and path not in _OTHER_QUESTIONS:
            found.append(path)
    return found


# Names


@row("class names used for several things", wanted=0, held=0)
def classes_with_one_name() -> list[str]:
    where = defaultdict(list)
    for path, tree in modules().items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                where[node.name].append(f"{path}:{node.lineno}")
    return [f"{name}: {', '.join(places)}" for name, places in sorted(where.items()) if len(places) > 1]


# Imports


@cache
def imports(path: str, *, with_types: bool = False) -> tuple[tuple[str, int, bool], ...]:
    """The modules that a module imports while it runs, their lines, and whether a function does it. `with_types`: also
    those that it imports for type checkers alone."""
    room = module_name(path).split(".")[: None if path.endswith("__init__.py") else -1]
    found: list[tuple[str, int, bool]] = []

    def visit(node: ast.AST, *, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if not with_types and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                found.extend((name.name, child.lineno, inside) for name in child.names)
            elif isinstance(child, ast.ImportFrom):
                above = room[: len(room) - child.level + 1] if child.level else []
                base = ".".join([*above, *filter(None, [child.module])])
                for name in child.names:
                    whole = f"{base}.{name.name}"
                    found.append((whole if whole in known_modules() else base, child.lineno, inside))
            visit(child, inside=inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    visit(modules()[path], inside=False)
    return tuple(found)


@cache
def known_modules() -> frozenset[str]:
    return frozenset(map(module_name, modules()))


@row("* imports inside functions of what is loaded by then: no time is saved", wanted=0, held=0)
def imports_inside_functions_that_save_nothing() -> list[str]:
    """A call waits for no module that it does not need, or loads it while hosts answer; a host may lack one."""
    paths = {module_name(path): path for path in modules()}
    at_top = {path: {name for name, _, inside in imports(path) if not inside} for path in modules()}

    @cache
    def loaded(path: str) -> set[str]:
        """What the import of the module imports, of ours and of others."""
        found: set[str] = set()
        left = [path]
        while left:
            new = at_top[left.pop()] - found
            found |= new
            left += [paths[name] for name in new if name in paths]
        return found

    return [
        f"{path}:{line}: {name}"
        for path in modules()
        for name, line, inside in imports(path)
        if inside and name in loaded(path)
    ]


@row("* import circles inside rooms", wanted=0, held=0)
def import_circles() -> list[str]:
    """Modules that import one another, directly or over others, also in functions, for types alone and by relative
    names; the first circle. Contracts keep rooms apart."""
    graph = {
        module_name(path): {name for name, _, _ in imports(path, with_types=True) if name in known_modules()}
        for path in modules()
    }
    graph["ipexctl"] = set()  # its `__getattr__` names all that `import ipexctl` shows
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" imports ".join(reversed(error.args[1]))]
    return []


_OF_A_RUN = re.compile(r"ipexctl\.(launch|run|homes|projects\.script_file)\b")


@row("* files in import circles of launch, run and the spec, in functions and for types, too", wanted=0, held=0)
def files_in_import_circles() -> list[str]:
    graph = {
        module_name(path): {name for name, _, _ in imports(path, with_types=True) if _OF_A_RUN.match(name)}
        for path in modules()
        if _OF_A_RUN.match(module_name(path))
    }

    def reaches_itself(module: str) -> bool:
        found, left = set[str](), [module]
        while left:
            new = graph.get(left.pop(), set()) - found
            found |= new
            left += new
        return module in found

    return [module for module in graph if reaches_itself(module)]


_OF_CLOCKS: dict[str, str] = {
    "node/common/clock.py": "the one place for all others",
    "node/run/supervisor/loop.py": "the loop of the supervisor",
    "node/run/rank/__main__.py": "the loop of a rank wrapper",
    "node/run/host_starter/__main__.py": "the loop of a host starter",
    "node/run/follow.py": "the loop of a call that follows a run",
    "node/network/speed.py": "measures speeds: a duration is its result",
    "node/env/verify_rank.py": "measures collectives: a duration is its result",
    "node/env/verify_steps.py": "measures imports, in Pythons where it imports nothing of ours",
    "node/network/ports.py": "its source alone is given to a Python: it can import nothing of ours",
    "node/run/slow_rank.py": "measures processes during an interval, which is part of its result",
    "node/run/rank/rank_hooks.py": "runs alone in the Python of a rank",
}
"""Modules of the agent whose work it is to look at the clock → why."""
_CLOCK = ("time.time", "time.monotonic", "time.perf_counter", "time.sleep")


@row("* calls of the clock in the agent outside its loops, what measures, and node/common/clock.py", wanted=0, held=16)
def calls_of_the_clock() -> list[str]:
    return [
        f"{path}:{line}"
        for path, tree in modules().items()
        if path.startswith("ipexctl/node/") and path.removeprefix("ipexctl/") not in _OF_CLOCKS
        for line in clock_calls(tree)
    ]


def clock_calls(tree: ast.AST) -> Iterator[int]:
    """The lines where a module calls a function of `time`, by the module or by its own name."""
    names = {
        alias.asname or alias.name
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "time"
        for alias in node.names
    }
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in names or name in _CLOCK:
                yield node.lineno


_READ_ALONE: dict[str, str] = {
    "commands/value_checks.py": "imports planner and resolver in part, for the few files that set such values",
    "launch/launchers/recipe.py": "reads Makefiles, about which no other file knows anything",
    "sync/git_pattern.py": "imports pathspec, 50 ms that a project without patterns does not wait for",
}
"""Small files with one importer that are understood without it → why."""


@row("* files of < 60 lines with one importer that are read together with it", wanted=0, held=0)
def small_files_with_one_importer() -> list[str]:
    importers = defaultdict(set)
    for path, tree in modules().items():
        for node in nodes(tree):
            if isinstance(node, ast.ImportFrom):
                for name in node.names:
                    whole = f"{node.module}.{name.name}"
                    importers[whole if whole in known_modules() else str(node.module)].add(path)
    return [
        f"{path} (by {next(iter(importers[module_name(path)]))})"
        for path in modules()
        if length(path) < 60
        and not path.endswith("__init__.py")
        and len(importers[module_name(path)]) == 1
        and path.removeprefix("ipexctl/") not in _READ_ALONE
    ]


_PARAMETER = re.compile(r"`([a-z_][a-z0-9_]*)`(?=: | seconds)")
"""How a docstring explains a parameter."""


@row("* parameters that a docstring explains and nothing in its module has", wanted=0, held=0)
def parameters_explained_without_one() -> list[str]:
    return [f"{path}:{line} {name}" for path, tree in modules().items() for line, name in unknown_parameters(tree)]


def unknown_parameters(tree: ast.AST) -> Iterator[tuple[int, str]]:
    kinds = ("id", "attr", "arg", "name", "value")  # the value of a text: options and JSON have names, too
    known = {name for node in nodes(tree) for kind in kinds if isinstance(name := getattr(node, kind, None), str)}
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef):
            for name in _PARAMETER.findall(ast.get_docstring(node) or ""):
                if name not in known:
                    yield node.lineno, name


# Transports and launchers

_TRANSPORTS = (
    "ipexctl/transports.py",
    "ipexctl/node/run/supervisor/launcher.py",
    "ipexctl/node/run/decisions/launcher_kind.py",
)
"""The rooms of transports and launchers: on the control machine, and on node0."""
_SLURM = (
    *_TRANSPORTS,
    "ipexctl/addons/lab/",  # makes one
    "ipexctl/launch/launchers/",  # one of the launchers whose lines it reads
    "ipexctl/launch/python_env.py",  # the variables of all launchers by which a script would take its rank
    "ipexctl/node/run/rank/rank_env.py",  # the same, by which a wrapper takes its rank
    "ipexctl/node/common/job_words.py",
    "ipexctl/node/run/decisions/job_end.py",
    "ipexctl/node/run/supervisor/run_job.py",
    "ipexctl/hosts/allocation.py",
    "ipexctl/remote/srun.py",
    "ipexctl/node/common/slurm.py",
    "ipexctl/node/srun_step.py",
)


@row("* comparisons of a transport outside transports.py", wanted=0, held=0)
def transports_compared() -> list[str]:
    return [
        f"{path}:{line}"
        for path, tree in modules().items()
        if not path.startswith(_TRANSPORTS)
        for line in compared_transports(tree)
    ]


def compared_transports(tree: ast.AST) -> Iterator[int]:
    """The lines where a module asks which transport or launcher it is: by name, by value, or by a record's field."""
    values = {"ssh", "srun", "slurm"}
    asked_of = {"transport", "flavor", "name"}
    for node in nodes(tree):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            parts = [part for operand in operands for part in getattr(operand, "elts", [operand])]
            names = {getattr(part, "attr", getattr(part, "id", "")) for part in parts}
            texts = {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
            is_one = bool(texts & values and names & asked_of) or bool(names & {"OVER_SSH", "OVER_SRUN", "QUEUE"})
        elif isinstance(node, ast.Match):
            is_one = getattr(node.subject, "attr", "") in asked_of
        else:
            is_one = isinstance(node, ast.Attribute) and node.attr == "by_slurm"
        if is_one:
            yield getattr(node, "lineno", 0)


@row("modules that name Slurm outside its rooms", wanted=0, held=13)
def modules_that_name_slurm() -> list[str]:
    """In a name, a text or a comment. Rooms are also the modules that have the word in their own name."""
    return [
        f"{path}: {count}"
        for path in modules()
        if not path.startswith(_SLURM)
        and "slurm" not in path.rpartition("/")[2]
        and (count := len(re.findall("slurm|srun", (ROOT / path).read_text(), re.IGNORECASE)))
    ]


# Records of a run

_OF_RUN = re.compile(
    r"ipexctl/(projects/script_file|homes/registry|run/(ps|wait|follow)|run/start/\w+|launch/(spec|request|context|planner|mpi|rank_distribution)"
    r"|api/runs?|commands/run_call|commands/run_arguments|node/common/(asked|plan|job|records)|node/run/(notify|rank/__main__))\.py"
)
"""What is asked, what the planner reads, what is decided, what starts it, and what came of it."""


@cache
def records() -> dict[str, list[str]]:
    """Place and name of a named tuple or a dataclass → its fields."""
    found = {}
    for path, tree in modules().items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef) and re.search(
                "NamedTuple|dataclass", " ".join(map(ast.unparse, [*node.bases, *node.decorator_list]))
            ):
                own = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
                found[f"{path}:{node.lineno}: {node.name}"] = [each.id for each in own if isinstance(each, ast.Name)]
    return found


@row("records of one run", wanted=54)
def records_of_a_run() -> list[str]:
    return [place for place in records() if _OF_RUN.match(place)]


@row("their fields", wanted=410)
def fields_of_a_run() -> list[str]:
    return [f"{place}.{name}" for place in records_of_a_run() for name in records()[place]]


def holders(name: str) -> list[str]:
    return [place for place, fields in records().items() if name in fields]


for _name, _wanted in (("world_size", 2), ("env", 10), ("home", 35)):
    row(f"records that hold `{_name}`", wanted=_wanted)(partial(holders, _name))


@row("keyword arguments that pass a value on under its own name", wanted=1600)
def passed_on() -> list[str]:
    keywords = (
        (path, node) for path, tree in modules().items() for node in nodes(tree) if isinstance(node, ast.keyword)
    )
    return [
        f"{path}:{node.lineno}: {node.arg}"
        for path, node in keywords
        if node.arg and node.arg in (getattr(node.value, "id", ""), getattr(node.value, "attr", ""))
    ]


# One run

_PROFILED = """
import inspect, os, sys, threading
package, found, functions = *sys.argv[1:3], set()

def profile(frame, event, argument):
    code = frame.f_code
    is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")  # no body of a class
    if is_function and code.co_filename.startswith(package):
        functions.add(f"{os.path.relpath(code.co_filename, package)}:{code.co_firstlineno}: {code.co_name}")

def leave(code):  # ipexctl ends without waiting for threads
    raise SystemExit(code)

sys.argv = ["ipexctl", *sys.argv[3:]]
os._exit = leave
from ipexctl.__main__ import main

threading.setprofile(profile)
sys.setprofile(profile)
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
finally:
    sys.setprofile(None)
    threading.setprofile(None)
with open(found, "w") as file:
    print(*sorted(functions), sep="\\n", file=file)
"""


@row("functions that one run with one rank on localhost calls on the control side", wanted=820)
@cache
def functions_of_a_run() -> list[str]:
    """Under `sys.setprofile`, with a HOME of its own; the agent's programs are processes of their own."""
    with tempfile.TemporaryDirectory() as home:
        found, project = Path(home, "found"), Path(home, "project")
        project.mkdir()
        (project / "train.py").write_text("print('one line')\n")
        environ = {"HOME": home, "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        words = ["run", "--hosts", "localhost", "--python", sys.executable, "-n", "1", "train.py"]
        argv = [sys.executable, "-c", _PROFILED, str(PACKAGE), str(found), *words]
        subprocess.run(argv, cwd=project, env=environ, capture_output=True, check=True, timeout=120)
        return found.read_text().splitlines()


@row("files that have these functions", wanted=105)
def files_of_a_run() -> list[str]:
    return sorted({place.partition(":")[0] for place in functions_of_a_run()})


def table(rows: Iterable[Row] = ROWS, *, verbose: bool = False) -> str:
    lines = [f"{'measure':<90} {'value':>6} {'wanted':>7} {'held':>6}"]
    for entry in rows:
        places = entry.find()
        held = "" if entry.held is None else str(entry.held)
        lines.append(f"{entry.text:<90} {len(places):>6} {entry.wanted:>7} {held:>6}")
        lines += [f"    {place}" for place in places] if verbose else []
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(verbose="-v" in sys.argv[1:]))

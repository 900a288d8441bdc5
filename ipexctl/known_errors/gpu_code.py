"""Finds lines of a script and its own modules that need a GPU, and suggests CPU code. Pure. A line is certain to fail
only if the script always reaches it (`reached_code.py`) and its file never mentions the CPU. A backend or device in a
variable is followed to the lines that set it, and no file may mention the CPU then.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import Final, NamedTuple

from ipexctl.known_errors.reached_code import FileNames, find_reached, scopes_of

_CALLS: Final = re.compile(
    r"torch\.cuda\.(?:(?:set_|current_)?device|synchronize|get_device_\w+|mem_get_info|Event|Stream|CUDAGraph)"
    r"|torch\.accelerator\.(?:set_device_index|synchronize)|(?!torch\.cuda$|torch\.version\.cuda$)[\w.]*\.cuda"
    r"|torch\.version\.cuda\.\w+"
)
_PLACE: Final = re.compile(r"(?:torch\.device\()?f?'cuda|(?:\w+\.)*(?:(?:\w+_)?rank|gpu(?:_id)?|device_id)$")
_GUARD: Final = re.compile(r"cuda|gpu|device|accelerator|cpu|nccl", re.IGNORECASE)
_SWITCH: Final = re.compile(r"(?:self\.)?\w*cuda\w*")
_DOUBT: Final = re.compile(r"\bcpu\b(?!\()|is_available(?!:)")
_PATCH: Final = re.compile(r"\bexec\(|\bmock\b|\btorch\.(?!backends\.)[\w.]{1,80} = |setattr\(torch")
_EXECUTED: Final = re.compile(r"^exec\(open\(['\"]([\w./-]+)['\"]\)\.read\(\)\)", re.MULTILINE)
_PLAIN_DDP: Final = "DDP(model), without device_ids and output_device"
_SUGGESTIONS: Final = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"^if (?:self\.)?\w*cuda\w*: ", "pass False for it, not True"),
        (r"init_process_group\(", 'init_process_group("gloo")'),
        (r"get_default_backend_for_device\(", '"gloo" instead'),
        (r"\bdevice_ids\b", _PLAIN_DDP),
        (r"\btorch\.load\(", 'map_location="cpu" for torch.load'),
        (r"\bdevice_count\(", 'int(os.environ["LOCAL_RANK"]) instead of the remainder'),
        (r"\.pin_memory\(", "leave out .pin_memory()"),
        (r"(?<!torch)\.cuda\(", "leave out .cuda()"),
        (r"\btorch\.device\(", 'device = torch.device("cpu")'),
        (r"\.to\((?:\w+\.)*device\b(?! ?=)", 'device = torch.device("cpu") before it'),
        (r"\.to\(", '.to("cpu")'),
        (r"\bdevice\w* ?= ?", 'device = "cpu"'),
        (r"^[\w.]+ ?(?::[^=]+)?= ?f?['\"]nccl", '"gloo" instead'),
        (r"^[\w.]+ ?(?::[^=]+)?= ?(?:torch\.device\()?f?['\"]cuda", '"cpu" instead'),
        (r"\btorch\.(?:cuda|accelerator|version\.cuda)\.", "leave this line out"),
        (r"\b(?:DDP|DistributedDataParallel)\(", _PLAIN_DDP),  # a call over several lines
    )
)
_MAIN: Final = re.compile(r"__name__ == '__main__'")
_REACHED: Final = (ast.Module, ast.Expr, ast.Assign, ast.Return, ast.Call, ast.Attribute, ast.Subscript, ast.keyword)
"""AST nodes whose children run whenever the node does."""
_SHOWN: Final = 40
_PLACED: Final = frozenset(("device", "map_location"))
"""Keywords whose value is a device."""
_WIDTH: Final = 80
_MOST_PARTS: Final = 20
"""Of the condition of an expression that are looked at: it may have others in it, nested deeply. And definitions that
are looked at for the use of a name."""


class GpuLine(NamedTuple):
    line: int
    text: str
    is_certain: bool
    """True if every run on CPUs reaches the line."""
    file: str = ""
    """The project's file that has the line; empty for the script."""
    option: tuple[str, ...] = ()
    """Words for CPUs to type behind the script, if the line declares an option of it."""


def suggestion_for(text: str) -> str:
    """Code to type instead of the line's GPU call; empty if the line does not show the call."""
    return next((suggestion for pattern, suggestion in _SUGGESTIONS if pattern.search(text)), "")


def suggestions(lines: Sequence[GpuLine]) -> str:
    shown = []
    for line in lines[:_SHOWN]:
        text = line.text if len(line.text) <= _WIDTH else f"{line.text[:_WIDTH]}…"
        place = f"{line.file}, line" if line.file else "line"
        typed = f"type {' '.join(line.option)} behind the script" if line.option else suggestion_for(line.text)
        shown.append(f"{place} {line.line}, {text}: {typed}")
    more = len(lines) - _SHOWN
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


class _Found(NamedTuple):
    line: GpuLine
    scopes: tuple[str, ...] = ()
    """Definitions that all have to run, if the line is certain."""
    is_chosen: bool = False
    """True if the device is chosen by a name or an option, which other code may set."""


class GpuCode(NamedTuple):
    """What a file needs a GPU for."""

    found: tuple[_Found, ...]
    names: FileNames
    has_doubt: bool
    is_patched: bool
    """True if it may replace functions of torch."""


def find_gpu_lines(tree: ast.Module, text: str) -> tuple[GpuLine, ...]:
    """A script's lines in their order."""
    return lines_of_files({"": read_gpu_code(tree, text, "")}, {})


def lines_of_files(files: Mapping[str, GpuCode], others: Mapping[str, Callable[[], FileNames]]) -> tuple[GpuLine, ...]:
    """The lines of a script, whose name is empty, and of the own modules that it imports. `others`: see
    `find_reached`."""
    reached = find_reached((file.names for file in files.values()), others)
    is_patched = any(file.is_patched for file in files.values())
    has_doubt = any(file.has_doubt for file in files.values())
    found: list[GpuLine] = []
    for name, file in files.items():
        lines: dict[int, GpuLine] = {}
        for line, scopes, is_chosen in file.found:
            has_others = bool(name) and (is_patched or (is_chosen and has_doubt))
            is_certain = line.is_certain and not has_others and not (file.is_patched if line.option else file.has_doubt)
            is_certain &= all((file.names.module, scope) in reached for scope in scopes)
            if is_certain or (line.line not in lines and "(" not in "".join(scopes)):
                lines[line.line] = line._replace(is_certain=is_certain, file=name)
        found += (lines[number] for number in sorted(lines))
    return tuple(found)


def executed_file(text: str) -> str:
    """The file whose text the script executes, as nanoGPT's `configurator.py`; or empty."""
    return found[1] if (found := _EXECUTED.search(text)) is not None else ""


def read_gpu_code(tree: ast.Module, text: str, name: str, executed: str = "") -> GpuCode:
    """Not recursive, because code may be nested deeply. `name`: the file's path from the project's root. `executed`:
    the text of its `executed_file`, which may make options of the names that are set before."""
    has_options = "sys.argv" in executed and "globals()[" in executed and _DOUBT.search(executed) is None
    before, *rest = _EXECUTED.split(text, 1) if has_options else ("", text)
    lines, is_patched = text.split("\n"), any(map(_PATCH.search, (before, *rest)))
    has_doubt = is_patched or _DOUBT.search(text) is not None
    found, surest = list[_Found](), dict[int, bool]()
    variables, scopes = _Variables(), scopes_of(tree)
    names = FileNames(name, scopes.values())
    waiting: list[tuple[ast.AST, str, bool]] = [(tree, "", True)]
    while waiting:
        node, scope, is_sure = waiting.pop()
        if _is_guard(node):
            variables.read_guarded(node)
            for each in ast.walk(node):
                names.read(each, scope, is_sure=False)
            found += _switched(node, scope) if is_sure else ()
            continue
        names.read(node, scope, is_sure=is_sure)
        if isinstance(node, ast.Call) and is_sure > surest.get(node.lineno, -1) and _needs_gpu(node):
            surest[node.lineno] = is_sure
            call = " ".join(map(str.strip, lines[node.lineno - 1 : node.end_lineno]))
            found.append(_Found(GpuLine(node.lineno, call, is_sure), (scope,), is_chosen="cuda" not in call))
        if isinstance(node, ast.Call) and (option := _option_for_cpus(node)) and not has_doubt:
            value = re.escape(option[0].strip("-").replace("-", "_"))
            is_device = option[-1] == "cpu" and re.search(rf"\.{value}\b", text) is not None
            line = GpuLine(node.lineno, _source(node), is_sure and is_device, option=option)
            found.append(_Found(line, (scope,), is_chosen=True))
        variables.read(node, scope, is_sure=is_sure)
        is_main = isinstance(node, ast.If) and not node.col_offset and _MAIN.fullmatch(_source(node.test)) is not None
        is_function = node in scopes and isinstance(node, ast.FunctionDef)
        are_sure = is_function or (is_sure and (is_main or isinstance(node, _REACHED)))
        below = scopes.get(node, scope)
        waiting += ((part, below, is_reached) for part, is_reached in _parts(node, is_sure=are_sure))
    found += variables.lines(before.count("\n"))
    return GpuCode(tuple(found), names, has_doubt, is_patched)


def _switched(node: ast.AST, scope: str) -> Iterator[_Found]:
    """What a block does for GPUs if its test, a name as `self.cuda`, is True."""
    if not isinstance(node, ast.If) or _SWITCH.fullmatch(tested := _name(node.test)) is None:
        return
    for each in takewhile(lambda each: not _may_leave(each), node.body):
        if isinstance(each, (ast.Expr, ast.Assign)) and isinstance(each.value, ast.Call) and _needs_gpu(each.value):
            line = GpuLine(each.lineno, f"if {tested}: {_source(each)}", True)
            yield _Found(line, (f"{scope}({tested})",), is_chosen=True)


class _Variables:
    """Names that are set to a GPU's backend or device, and the definitions whose calls use them."""

    def __init__(self) -> None:
        self._set: dict[str, list[tuple[ast.Assign | ast.AnnAssign, str, bool]]] = {}
        self._other: set[str] = set()
        self._used: dict[str, set[str]] = {}

    def read(self, node: ast.AST, scope: str, *, is_sure: bool) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for name in _targets(node):
                if _is_of_gpu(node.value):
                    self._set.setdefault(name, []).append((node, scope, is_sure))
                else:
                    self._other.add(name)
        elif isinstance(node, ast.Call):
            for name in filter(None, map(_name, _places(node))):
                uses = self._used.setdefault(name, set())
                if is_sure and len(uses) < _MOST_PARTS:
                    uses.add(scope)

    def read_guarded(self, guard: ast.AST) -> None:
        """What a check of the machine sets may be right for CPUs."""
        self._other.update(
            *(_targets(node) for node in ast.walk(guard) if isinstance(node, (ast.Assign, ast.AnnAssign)))
        )

    def lines(self, options_end: int) -> Iterator[_Found]:
        for name in self._set.keys() & self._used.keys():
            for node, scope, is_sure in self._set[name]:
                is_option = isinstance(node.value, ast.Constant) and not node.col_offset and node.lineno <= options_end
                option = (f"--{name}={'gloo' if 'nccl' in _source(node.value) else 'cpu'}",) if is_option else ()
                line = GpuLine(node.lineno, _source(node), is_sure and name not in self._other, option=option)
                for use in self._used[name]:
                    yield _Found(line, (scope, use), is_chosen=True)
                if not self._used[name]:
                    yield _Found(line._replace(is_certain=False))


def _targets(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    yield from filter(None, map(_name, node.targets if isinstance(node, ast.Assign) else [node.target]))


def _is_of_gpu(value: ast.AST | None) -> bool:
    if isinstance(value, ast.Call) and _name(value.func) == "torch.device" and value.args:
        value = value.args[0]
    is_text = isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))
    return is_text and re.match(r"f?['\"](?:cuda|nccl)", _source(value)) is not None


def _places(call: ast.Call) -> Iterator[ast.AST]:
    """The arguments of a call that are a backend or a device."""
    last = _name(call.func).rpartition(".")[2]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if last == "init_process_group":
        yield from filter(None, (keywords.get("backend", call.args[0] if call.args else None),))
        return
    if last in ("to", "device", "set_device") and call.args:
        yield call.args[0]
    yield from (value for name, value in keywords.items() if name in _PLACED)


def _needs_gpu(call: ast.Call) -> bool:
    name, keywords = _name(call.func), {keyword.arg: keyword.value for keyword in call.keywords}
    last, first = name.rpartition(".")[2], call.args[0] if call.args else None
    if last == "to":
        return _PLACE.match(_beginning(keywords.get("device", first))) is not None
    if last == "init_process_group":
        return _beginning(keywords.get("backend", first)).startswith("'nccl")
    if name.startswith("torch.") and last != "GradScaler" and _beginning(keywords.get("device")).startswith("'cuda"):
        return True
    ids = keywords.get("device_ids")
    return _CALLS.fullmatch(name) is not None or (isinstance(ids, ast.List) and bool(ids.elts) and last != "barrier")


_OFF: Final = re.compile(r"--(?:no[-_]?(?:cuda|gpu)|disable[-_](?:cuda|gpu)|(?:use[-_]|force[-_])?cpu)")


def _option_for_cpus(call: ast.Call) -> tuple[str, ...]:
    """What chooses the CPU, if the call declares an option that chooses the device; or empty."""
    if _name(call.func).rpartition(".")[2] not in ("add_argument", "option"):
        return ()
    names = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    name = next((each for each in names if each.startswith("--")), "")
    given = {word.arg: word.value.value for word in call.keywords if isinstance(word.value, ast.Constant)}
    default, action = given.get("default"), given.get("action")
    if name and isinstance(default, str) and re.fullmatch(r"(?:cuda|gpu)(?::\d+)?", default):
        return (name, "cpu")
    if name and default == "nccl":
        return (name, "gloo")
    is_switch = action == "store_true" and _OFF.fullmatch(name)
    return (name,) if is_switch or (action == "store_false" and re.search("cuda|gpu", name)) else ()


def _name(node: ast.AST) -> str:
    parts = list[str]()
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id if isinstance(node, ast.Name) else "", *reversed(parts)))


def _source(node: ast.AST | None) -> str:
    with suppress(RecursionError):
        return ast.unparse(node) if node is not None else ""
    return ""


def _beginning(node: ast.AST | None) -> str:
    """How the source of a device or backend begins, as in `'cuda`; of a name, all of it. Looks at no nested call,
    because each call around that one would."""
    front = ""
    if isinstance(node, ast.Call) and _name(node.func) == "torch.device" and node.args:
        front, node = "torch.device(", node.args[0]
    while isinstance(node, (ast.IfExp, ast.BinOp)):
        node = node.body if isinstance(node, ast.IfExp) else node.left
    if isinstance(node, ast.JoinedStr):
        front, node = f"{front}f", next(iter(node.values), None)
    if isinstance(node, ast.Constant):
        return front + repr(node.value)
    return front + _name(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


def _is_guard(node: ast.AST) -> bool:
    if isinstance(node, ast.IfExp):
        parts = islice(ast.walk(node.test), _MOST_PARTS)
        return any(_GUARD.search(getattr(part, "id", "") or getattr(part, "attr", "")) for part in parts)
    return isinstance(node, ast.If) and _GUARD.search(_source(node.test)) is not None


def _parts(node: ast.AST, *, is_sure: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Children, each with True if it is certainly reached, because no earlier statement in the block can leave it."""
    for child in ast.iter_child_nodes(node):
        yield child, is_sure
        is_guard = _is_guard(child)
        if (is_sure or is_guard) and isinstance(child, ast.stmt) and _may_leave(child):
            if is_guard:
                return
            is_sure = False


def _may_leave(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    return any(
        isinstance(node, (ast.Return, ast.Raise, ast.Yield, ast.YieldFrom))
        or (isinstance(node, ast.Call) and _name(node.func).rpartition(".")[2] in ("exit", "_exit", "quit", "abort"))
        for node in ast.walk(statement)
    )

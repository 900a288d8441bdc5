"""Finds lines of a script and its own modules that need a GPU, and suggests CPU code. Pure. A line is certain to fail
only if each rank reaches it (`reached_code.py`). A backend or device in a variable is followed to the lines that set
it, and no file may mention the CPU then.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Final, NamedTuple

from ipexctl.known_errors.reached_code import FileNames, callee, find_reached, find_taken, scopes_of, source_of

_CALLS: Final = re.compile(
    r"torch\.cuda\.(?:(?:set_|current_)?device|synchronize|get_device_\w+|mem_get_info|Event|Stream|CUDAGraph)"
    r"|torch\.accelerator\.(?:set_device_index|synchronize)|(?!torch\.cuda$|torch\.version\.cuda$)[\w.]*\.cuda"
    r"|torch\.version\.cuda\.\w+"
)
_PLACE: Final = re.compile(r"(?:torch\.device\()?f?'cuda|(?:\w+\.)*(?:(?:\w+_)?rank|gpu(?:_id)?|device_id)$")
_GUARD: Final = re.compile(r"cuda|gpu|device|accelerator|cpu|nccl", re.IGNORECASE)
_SWITCH: Final = re.compile(r"(?:self\.)?\w*cuda\w*")
_AVAILABLE: Final = re.compile(r"(not )?torch\.cuda\.(?:is_available\(\)|device_count\(\)(?: > 0| >= 1)?)")
_DOUBT: Final = re.compile(r"\bcpu\b(?!\()|is_available(?!:)")
_PATCH: Final = re.compile(r"(?m:^(?![ \t]*#).*\bexec\()|\bmock\b|\btorch\.(?!backends\.)[\w.]{1,80} = |setattr\(torch")
_LOSS: Final = re.compile(r"loss|criterion|metric", re.IGNORECASE)
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
            is_doubted = is_chosen and (has_doubt if name else file.has_doubt and not line.option)
            is_certain = line.is_certain and not is_doubted and not (is_patched if name else file.is_patched)
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
    names, taken, in_branches = FileNames(name, scopes.values()), find_taken(tree, text), set[ast.AST]()
    waiting: list[tuple[ast.AST, str, bool]] = [(tree, "", True)]
    while waiting:
        node, scope, is_sure = waiting.pop()
        if is_sure and isinstance(node, (ast.Assert, ast.If)) and _refuses_cpus(node):
            found.append(_Found(GpuLine(node.lineno, lines[node.lineno - 1].strip(), True), (scope,)))
        if _is_guard(node):
            variables.read_guarded(node)
            for each in ast.walk(node):
                names.read(each, scope, is_sure=False)
            found += _switched(node, scope) if is_sure else ()
            continue
        names.read(node, scope, is_sure=is_sure)
        if isinstance(node, ast.If) and is_sure:
            in_branches |= _in_all_branches(node)
        is_reached = is_sure or node in in_branches
        if isinstance(node, ast.Call) and is_reached > surest.get(node.lineno, -1) and _needs_gpu(node):
            surest[node.lineno] = is_reached
            call = " ".join(map(str.strip, lines[node.lineno - 1 : node.end_lineno]))
            found.append(_Found(GpuLine(node.lineno, call, is_reached), (scope,), is_chosen=_is_chosen(node)))
        if isinstance(node, ast.Call) and (option := _option_for_cpus(node)) and not has_doubt:
            value = re.escape(option[0].strip("-").replace("-", "_"))
            is_device = option[-1] == "cpu" and re.search(rf"\.{value}\b", text) is not None
            line = GpuLine(node.lineno, source_of(node), is_sure and is_device, option=option)
            found.append(_Found(line, (scope,), is_chosen=True))
        variables.read(node, scope, is_sure=is_sure)
        is_main = isinstance(node, ast.If) and not node.col_offset and _MAIN.fullmatch(source_of(node.test)) is not None
        is_function = node in scopes and isinstance(node, ast.FunctionDef)
        are_sure = is_function or (is_sure and (is_main or node in taken or isinstance(node, _REACHED)))
        below = scopes.get(node, scope)
        waiting += ((part, below, is_reached) for part, is_reached in _parts(node, taken, is_sure=are_sure))
    found += variables.lines(before.count("\n"))
    return GpuCode(tuple(found), names, has_doubt, is_patched)


def _refuses_cpus(node: ast.Assert | ast.If) -> bool:
    """True for `assert torch.cuda.is_available()`, and for a raise in its place."""
    raises = isinstance(node, ast.Assert) or isinstance(node.body[0], ast.Raise)
    found = _AVAILABLE.fullmatch(source_of(node.test)) if raises else None
    return found is not None and bool(found[1]) is isinstance(node, ast.If)


def _switched(node: ast.AST, scope: str) -> Iterator[_Found]:
    """What a block does for GPUs if its test, a name as `self.cuda`, is True."""
    if isinstance(node, ast.If) and _SWITCH.fullmatch(tested := _name(node.test)) is not None:
        for each in _calls(node.body):
            line = GpuLine(each.lineno, f"if {tested}: {source_of(each)}", True)
            yield _Found(line, (f"{scope}({tested})",), is_chosen=True)


def _calls(block: Sequence[ast.stmt]) -> Iterator[ast.Call]:
    """Calls for a GPU that a block certainly makes as a statement or a value."""
    for each in takewhile(lambda each: not _may_leave(each), block):
        if isinstance(each, (ast.Expr, ast.Assign)) and isinstance(each.value, ast.Call) and _needs_gpu(each.value):
            yield each.value


def _in_all_branches(chain: ast.If) -> set[ast.AST]:
    """The first call for a GPU, if each branch of the chain that does not raise has one."""
    blocks = [chain.body, chain.orelse]
    while isinstance(below := blocks[-1][0] if len(blocks[-1]) == 1 else None, ast.If) and len(blocks) < _MOST_PARTS:
        blocks[-1:] = [below.body, below.orelse]
    blocks = blocks if blocks[-1] else []
    going = (each for each in blocks if not isinstance(each[-1], ast.Raise) or any(map(_may_leave, each[:-1])))
    calls = [next((each for each in _calls(block) if not _is_chosen(each)), None) for block in going]
    return set(filter(None, calls[:1])) if all(calls) else set()


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
                option = (f"--{name}={'gloo' if 'nccl' in source_of(node.value) else 'cpu'}",) if is_option else ()
                line = GpuLine(node.lineno, source_of(node), is_sure and name not in self._other, option=option)
                for use in self._used[name]:
                    yield _Found(line, (scope, use), is_chosen=True)
                if not self._used[name]:
                    yield _Found(line._replace(is_certain=False))


def _targets(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    yield from filter(None, map(_name, node.targets if isinstance(node, ast.Assign) else [node.target]))


def _is_of_gpu(value: ast.AST | None) -> bool:
    if value is None or any(isinstance(each, ast.IfExp) for each in islice(ast.walk(value), _MOST_PARTS)):
        return False
    return re.match(r"(?:torch\.device\()?f?'(?:cuda|nccl)", _beginning(value)) is not None


def _places(call: ast.Call) -> Iterator[ast.AST]:
    """The arguments of a call that are a backend or a device."""
    last = _name(call.func).rpartition(".")[2]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if last == "init_process_group":
        yield from filter(None, (keywords.get("backend", call.args[0] if call.args else None),))
        return
    if last in ("to", "device", "set_device") and call.args:
        yield call.args[0]
    yield from (value for name, value in keywords.items() if name in ("device", "map_location"))


def _needs_gpu(call: ast.Call) -> bool:
    name, keywords = _name(call.func), {keyword.arg: keyword.value for keyword in call.keywords}
    last, first = name.rpartition(".")[2], call.args[0] if call.args else None
    if last == "to":
        return _PLACE.match(_beginning(keywords.get("device", first))) is not None
    if last == "init_process_group":
        return _beginning(keywords.get("backend", first)).startswith("'nccl")
    if name.startswith("torch.") and last != "GradScaler" and re.match("f?'cuda", _beginning(keywords.get("device"))):
        return True
    ids = keywords.get("device_ids")
    takes_ids = isinstance(ids, ast.List) and bool(ids.elts) and last not in ("barrier", "DataParallel")
    return takes_ids or _CALLS.fullmatch(name) is not None


def _is_chosen(call: ast.Call) -> bool:
    """True unless the device is literal, and no option that may be -1, and a tensor is moved, not a loss."""
    place, is_named = next(_places(call), None), _CALLS.fullmatch(_name(call.func)) is not None
    may_pass = isinstance(place, ast.Attribute) if is_named else not _is_of_gpu(place)
    return may_pass or _LOSS.search(callee(call)) is not None


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
    return isinstance(node, ast.If) and _GUARD.search(source_of(node.test)) is not None


def _parts(node: ast.AST, taken: Mapping[ast.AST, ast.AST], *, is_sure: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Children, each with True if it is certainly reached, because no earlier statement in the block can leave it."""
    for child in ast.iter_child_nodes(taken.get(node, node)):
        yield child, is_sure
        is_guard = _is_guard(child)
        if (is_sure or is_guard) and isinstance(child, ast.stmt) and _may_leave(taken.get(child, child)):
            if is_guard:
                return
            is_sure = False


def _may_leave(statement: ast.AST) -> bool:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    return any(
        isinstance(node, (ast.Return, ast.Raise, ast.Yield, ast.YieldFrom))
        or (isinstance(node, ast.Call) and _name(node.func).rpartition(".")[2] in ("exit", "_exit", "quit", "abort"))
        for node in ast.walk(statement)
    )

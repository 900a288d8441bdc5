"""Reads tasks, blocks and included task files into the model, and checks the options of each task."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ipexctl.hosts.names import did_you_mean, quoted
from ipexctl.hosts.yaml_tree import Entry, Node, is_null, kind
from ipexctl.playbook.ansible_names import NOT_MODULES, NOT_OPTIONS, UNSUPPORTED
from ipexctl.playbook.keywords import (
    BLOCK,
    INCLUDE,
    INCLUDES,
    OF_TASKS,
    TASK,
    advice,
    condition,
    conditions,
    known_value,
    name_of,
    read_inherited,
    read_keywords,
    report_unknown,
    variables,
)
from ipexctl.playbook.model import Arg, Block, Flush, InheritedKeywords, Loop, Step, Task
from ipexctl.playbook.modules import MODULES
from ipexctl.playbook.options import Option, Spec, check_args
from ipexctl.playbook.playbook_file import JINJA, PlaybookFile, read_file, shipped
from ipexctl.playbook.positions import Position, Templated, Value
from ipexctl.text import is_variable_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ipexctl.errors import FileError
    from ipexctl.playbook.keywords import Reader


MAX_TASKS: Final = 50_000
MAX_FILES: Final = 1_000
"""Files that one playbook may name, each counted as often as it is read."""
_MAX_DEPTH: Final = 50
INCLUDE_VARS: Final = "include_vars"
KNOWN: Final = {*MODULES, INCLUDE_VARS}
_PREFIXES: Final = ("ansible.builtin.", "ansible.legacy.", "ipexctl.")
_INLINE: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)=")
_WORD: Final = re.compile(r"""(?:\{[{%#].*?[}%#]\}|"[^"]*"|'[^']*'|[^\s"'])+""", re.DOTALL)
"""Splits `name=value` words; blanks inside quotes and braces belong to the value."""
_INLINE_ARGS: Final = re.compile(
    r"(?:^\s*|\s(?=(?:(?:creates|removes|chdir)=(?:\{\{.*?\}\}|\S)+\s*)+$))(creates|removes|chdir)=((?:\{\{.*?\}\}|\S)+)",
    re.DOTALL,
)
_LOOP_CONTROL: Final[Mapping[str, Reader]] = {
    "loop_var": name_of,
    "label": lambda file, entry: file.template(entry.value),
    "index_var": name_of,
    "pause": known_value(Option("float", least=0)),
}


@dataclass
class Tasks:
    """State of reading one playbook: the numbers of tasks and files so far, the files being read, the errors."""

    open_files: list[Path] = field(default_factory=list)
    count: int = 0
    files: int = 0
    errors: list[FileError] = field(default_factory=list)
    """All errors of the playbook so far."""

    def read_named_file(self, file: PlaybookFile, node: Node, keyword: str) -> PlaybookFile:
        """Read the file that this node names."""
        path = _named_path(file, node, keyword)
        self.files += 1
        if self.files > MAX_FILES:
            raise file.error(node, f"this playbook reads more than {MAX_FILES:,} files", fix="include fewer of them")
        return read_file(path, at=file.position(node), errors=self.errors)

    @contextmanager
    def open_named_file(self, file: PlaybookFile, node: Node, keyword: str) -> Iterator[PlaybookFile]:
        """Read a file of tasks or plays; those it names are read meanwhile, and none may name it again."""
        path = _named_path(file, node, keyword).resolve()
        if path in self.open_files:
            ring = " > ".join(name.name for name in (*self.open_files[self.open_files.index(path) :], path))
            raise file.error(node, f"these files include each other: {ring}", fix="take one of them out")
        if len(self.open_files) > _MAX_DEPTH:
            raise file.error(node, f"files are included more than {_MAX_DEPTH} deep")
        named = self.read_named_file(file, node, keyword)
        self.open_files.append(path)
        try:
            yield named
        finally:
            self.open_files.pop()

    def steps(
        self, file: PlaybookFile, node: Node, above: InheritedKeywords, what: str, depth: int = 0
    ) -> tuple[Step, ...]:
        if is_null(node):
            return ()
        if node.id != "sequence":
            raise file.error(node, f"{what} must be a list of tasks, not {kind(node)}", fix="each begins with `- `")
        if depth > _MAX_DEPTH:
            raise file.error(node, f"blocks and includes are nested more than {_MAX_DEPTH} deep")
        result: list[Step] = []
        for item in file.items(node):
            with file.reporting():
                result += self._step(file, item, above, depth)
        return tuple(result)

    def _step(self, file: PlaybookFile, node: Node, above: InheritedKeywords, depth: int) -> Sequence[Step]:
        if node.id != "mapping":
            raise file.error(node, f"a task is a mapping of `key: value` lines, not {kind(node)}")
        entries = {entry.key: entry for entry in file.entries(node, "a task")}
        if "block" in entries:
            return (self._block(file, node, entries, above, depth),)
        if flush := [entries[key] for key in entries if _strip_prefix(key) == "meta"]:
            return (_flush(file, flush[0], entries),)
        if includes := [entries[key] for key in entries if _strip_prefix(key) in INCLUDES]:
            return self._include(file, includes[0], entries, above, depth)
        return self._task(file, node, entries, above)

    def _block(
        self, file: PlaybookFile, node: Node, entries: Mapping[str, Entry], above: InheritedKeywords, depth: int
    ) -> Block:
        report_unknown(file, entries, BLOCK, "a block", lambda key: advice(key, BLOCK))
        inner = read_inherited(file, entries, above)
        parts = {
            key: self.steps(file, entries[key].value, inner, quoted(key), depth + 1)
            for key in ("block", "rescue", "always")
            if key in entries
        }
        name = str(entries["name"].value.value) if "name" in entries else ""
        return Block(name, file.position(node), parts["block"], parts.get("rescue", ()), parts.get("always", ()))

    def _include(
        self, file: PlaybookFile, include: Entry, entries: Mapping[str, Entry], above: InheritedKeywords, depth: int
    ) -> tuple[Step, ...]:
        known = {key for key in entries if _strip_prefix(key) in INCLUDE}
        loop_fix = "include it several times, or loop inside"
        report_unknown(
            file, entries, known, include.key, lambda key: loop_fix if "loop" in key else advice(key, INCLUDE)
        )
        file_node = include.value
        if file_node.id == "mapping":
            options = {entry.key: entry for entry in file.entries(file_node, include.key)}
            if list(options) != ["file"]:
                raise file.error(file_node, f"{include.key} needs 'file', and nothing else")
            file_node = options["file"].value
        with self.open_named_file(file, file_node, include.key) as included:
            if included.root is None:
                return ()
            inherited = read_inherited(file, entries, above)
            return self.steps(included, included.root, inherited, str(file_node.value), depth + 1)

    def _task(
        self, file: PlaybookFile, node: Node, entries: Mapping[str, Entry], above: InheritedKeywords
    ) -> tuple[Task, ...]:
        """The task; none if anything in it is wrong."""
        self.count += 1
        if self.count > MAX_TASKS:
            raise file.error(node, f"more than {MAX_TASKS:,} tasks in one playbook")
        errors_before = len(self.errors)
        inherited = read_inherited(file, entries, above)
        values = read_keywords(file, entries, OF_TASKS)
        with file.reporting():
            values["loop"] = _loop(file, entries)
        module_entry = _module_entry(file, node, entries)
        if module_entry is None:
            return ()
        position, errors_before_args = file.position(module_entry.key_node), len(self.errors)
        if _strip_prefix(module_entry.key) == INCLUDE_VARS:
            spec, args = MODULES["set_fact"], self._included_vars(file, module_entry)
        else:
            spec = MODULES[_strip_prefix(module_entry.key)]
            args = _arguments(file, spec, module_entry, entries.get("args"))
        if len(self.errors) == errors_before_args:
            self.errors += check_args(spec, module_entry.key, args, position)
        if _strip_prefix(module_entry.key) == INCLUDE_VARS:  # the variables may refer to each other
            inherited = replace(inherited, vars=(*inherited.vars, {name: arg.value for name, arg in args.items()}))
        if spec.once:
            inherited = replace(inherited, run_once=True)
        if inherited.become and not spec.becomes and "become" in entries:
            file.report(
                entries["become"].key_node,
                f"{module_entry.key} does nothing as root",
                fix="take become out: only what works on each host by itself can use it: exec, copy, file, tune …",
            )
        if len(self.errors) > errors_before:
            return ()
        values.setdefault("name", module_entry.key if inherited.no_log else _default_name(module_entry, spec))
        return (Task(spec=spec, args=args, position=position, inherited=inherited, base=file.source.base, **values),)

    def _included_vars(self, file: PlaybookFile, module_entry: Entry) -> dict[str, Arg]:
        """The variables of include_vars, as options of set_fact."""
        file_node, name = module_entry.value, None
        if file_node.id == "mapping":
            options = {entry.key: entry for entry in file.entries(file_node, module_entry.key)}
            if "file" not in options or options.keys() - {"file", "name"}:
                raise file.error(file_node, f"{module_entry.key} needs 'file', and knows 'name' besides")
            file_node, name = options["file"].value, name_of(file, options["name"]) if "name" in options else None
        named = self.read_named_file(file, file_node, module_entry.key)
        values = variables(named, named.root, "a file of variables")
        position = file.position(file_node)
        return {key: Arg(value, position) for key, value in ({name: values} if name else values).items()}


def _named_path(file: PlaybookFile, node: Node, keyword: str) -> Path:
    if node.id != "scalar" or is_null(node) or isinstance(file.text_value(node), Templated):
        fix = "files are read before any task"
        raise file.error(node, f"{keyword} takes a file's name, not {kind(node)}", fix=fix)
    path = file.source.base / str(node.value)
    if keyword.endswith("import_playbook") and not path.is_file():
        return shipped().get(str(node.value), path)
    return path


def _flush(file: PlaybookFile, meta: Entry, entries: Mapping[str, Entry]) -> Flush:
    if str(meta.value.value) != "flush_handlers":
        raise file.error(meta.value, f"meta knows flush_handlers, not {kind(meta.value)}", fix="fail, or when:")
    report_unknown(file, entries, {meta.key, "name", "tags"}, "meta", lambda _: "take it out")
    return Flush()


def _strip_prefix(key: str) -> str:
    for prefix in _PREFIXES:
        if key.startswith(prefix):
            return key[len(prefix) :]
    return key


def _module_entry(file: PlaybookFile, node: Node, entries: Mapping[str, Entry]) -> Entry | None:
    """The entry of the module; a key that is neither a module nor a keyword is an error. None: there is no other."""
    modules = [entry for key, entry in entries.items() if key not in TASK and _strip_prefix(key) in KNOWN]
    unknown = [entry for key, entry in entries.items() if key not in TASK and _strip_prefix(key) not in KNOWN]
    for entry in unknown:
        key = _strip_prefix(entry.key)
        if key in UNSUPPORTED:
            file.report(entry.key_node, f"there is no {quoted(entry.key)} here", fix=UNSUPPORTED[key])
        elif modules or key.startswith("with_"):
            file.report(
                entry.key_node, f"a task has no {quoted(entry.key)}", fix=advice(entry.key, TASK | set(MODULES))
            )
        else:
            fix = NOT_MODULES.get(key.rpartition(".")[2]) or did_you_mean(
                key, [*KNOWN, *TASK], f"there are: {', '.join(sorted(MODULES))}"
            )
            raise file.error(entry.key_node, f"there is no module {quoted(entry.key)}", fix=fix)
    if not modules and unknown:
        return None
    if not modules:
        keys = " and ".join(quoted(key) for key in entries) or "nothing"
        raise file.error(node, f"this task has {keys}, and no module", fix=f"one of {', '.join(sorted(MODULES))}")
    if len(modules) > 1:
        raise file.error(
            modules[1].key_node,
            f"a task is one module, and this has {modules[0].key} and {modules[1].key}",
            fix="two tasks, each with its own `- `",
        )
    return modules[0]


def _default_name(module_entry: Entry, spec: Spec) -> str:
    value = module_entry.value
    if spec.free is not None and value.id == "scalar" and spec.name in ("exec", "command"):
        return f"{module_entry.key}: {str(value.value).splitlines()[0][:60] if str(value.value).strip() else ''}"
    return module_entry.key


def _arguments(file: PlaybookFile, spec: Spec, module_entry: Entry, more: Entry | None) -> dict[str, Arg]:
    """The options in the module's value and under `args:`."""
    args: dict[str, Arg] = {}
    node = module_entry.value
    if node.id == "mapping":
        _read_options(file, spec, module_entry.key, file.entries(node, module_entry.key), args)
    elif not is_null(node):
        if spec.free is not None and not (_INLINE.match(str(node.value)) and spec.name not in ("exec", "command")):
            if node.id == "scalar":
                _refuse_inline_args(file, module_entry)
            value = file.text_value(node) if node.id == "scalar" else file.value(node)
            args[spec.free] = Arg(value, file.position(node))
        elif node.id == "scalar":
            args.update(_inline(file, spec, module_entry))
        else:
            raise file.error(node, f"{module_entry.key} takes a mapping of options, not {kind(node)}")
    if more is not None:
        _read_options(file, spec, module_entry.key, file.entries(more.value, "'args'"), args)
    return args


def _read_options(
    file: PlaybookFile, spec: Spec, module_name: str, entries: Sequence[Entry], found: dict[str, Arg]
) -> None:
    for entry in entries:
        with file.reporting():
            name = _option_name(spec, module_name, entry.key, file.position(entry.key_node))
            if name in found:
                raise file.error(entry.key_node, f"{module_name}: {quoted(name)} is there twice")
            found[name] = Arg(_option_value(file, spec, name, entry), file.position(entry.value))


def _option_value(file: PlaybookFile, spec: Spec, name: str, entry: Entry) -> Value:
    node, option_kind = entry.value, spec.options[name].kind if name in spec.options else "any"
    if option_kind in ("mode", "str", "path", "local", "command") and node.id == "scalar":
        return None if is_null(node) else file.text_value(node)
    if option_kind == "exprs":
        return list(conditions(file, entry))
    if name == "var" and not spec.any_option and node.id == "scalar":
        return condition(file, node)
    return file.value(node)


def _option_name(spec: Spec, module_name: str, key: str, position: Position) -> str:
    if spec.any_option:
        if not is_variable_name(key):
            raise position.error(f"{quoted(key)} can't be the name of a variable", fix="letters, digits and _")
        return key
    name = spec.option(key)
    if name is None:
        names = sorted(spec.options)
        fix = NOT_OPTIONS.get(key) or did_you_mean(key, names, f"it has {', '.join(names)}")
        raise position.error(f"{module_name} has no option {quoted(key)}", fix=fix)
    return name


def _refuse_inline_args(file: PlaybookFile, module_entry: Entry) -> None:
    match = _INLINE_ARGS.search(str(module_entry.value.value))
    if match is not None:
        value = f'"{match[2]}"' if "{{" in match[2] else match[2]
        raise file.error(
            module_entry.value,
            f"{match[1]}= in the line itself would be a word of the command",
            fix=f"args: {{{match[1]}: {value}}}, below the line",
        )


def _inline(file: PlaybookFile, spec: Spec, module_entry: Entry) -> dict[str, Arg]:
    """`copy: src=a dest=b`: options as `name=value`, quoted if they contain blanks."""
    template = file.template(module_entry.value)
    if re.search("[\"']", _WORD.sub("", template.text)):
        raise file.error(module_entry.value, "a quote is never closed")
    pairs = [args[0] for args in _WORD.finditer(template.text)]
    args: dict[str, Arg] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        position = template.spot(None, name)
        if not equals:
            raise position.error(
                f"{module_entry.key} takes a mapping of options, or name=value words, not {quoted(pair)}",
                fix=f"{module_entry.key}: {{{next(iter(spec.options), 'option')}: {pair}}}",
            )
        known = _option_name(spec, module_entry.key, name, position)
        kind_of = spec.options[known].kind if known in spec.options else "any"
        value_template = replace(template, text=value, position=position)
        if known == "var" or kind_of == "exprs":
            value_template = replace(value_template, kind="expr")
            args[known] = Arg([value_template] if kind_of == "exprs" else value_template, position)
        else:
            args[known] = Arg(value_template if JINJA.search(value) else value, position)
    return args


def _loop(file: PlaybookFile, entries: Mapping[str, Entry]) -> Loop | None:
    control = entries.get("loop_control")
    entry = entries.get("loop") or entries.get("with_items")
    if entry is None:
        if control is not None:
            raise file.error(control.key_node, "'loop_control' without a 'loop'")
        return None
    if "loop" in entries and "with_items" in entries:
        raise file.error(entries["with_items"].key_node, "'loop' and 'with_items' are one thing", fix="keep loop")
    items = file.value(entry.value)
    if not isinstance(items, list | Templated):
        raise file.error(entry.value, f"'loop' must be a list, not {kind(entry.value)}", fix="[one, two]")
    options = {entry.key: entry for entry in file.entries(control.value, "'loop_control'")} if control else {}
    known = frozenset(_LOOP_CONTROL)
    report_unknown(file, options, known, "loop_control", lambda key: advice(key, known))
    return Loop(items, file.position(entry.value), **read_keywords(file, options, _LOOP_CONTROL))

"""Tasks, blocks and included files of tasks, from YAML to the tree; each task's options are checked on the way."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import FileError
from ipexctl.hosts.names import quoted
from ipexctl.hosts.yaml_tree import is_null, kind
from ipexctl.playbook.files import read_file
from ipexctl.playbook.inherited_keywords import (
    condition,
    conditions,
    name_of,
    number,
    read_inherited,
    text,
    truth,
    variables_of_file,
    whole,
    words,
)
from ipexctl.playbook.keywords import BLOCK, INCLUDE, INCLUDES, NOT_OPTIONS, NOT_OURS, TASK, advice
from ipexctl.playbook.model import Arg, Block, Flush, Loop, Task
from ipexctl.playbook.modules import MODULES, NOT_MODULES, module
from ipexctl.playbook.options import check_args
from ipexctl.playbook.positions import Templated, did_you_mean
from ipexctl.playbook.yaml_values import JINJA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ipexctl.hosts.yaml_tree import Entry, Node
    from ipexctl.playbook.model import InheritedKeywords, Step
    from ipexctl.playbook.options import Spec
    from ipexctl.playbook.positions import Place, Value
    from ipexctl.playbook.yaml_values import PlaybookFile

MOST_TASKS: Final = 50_000
_DEEPEST: Final = 50
INCLUDE_VARS: Final = "include_vars"
KNOWN: Final = {*MODULES, INCLUDE_VARS}
_PREFIXES: Final = ("ansible.builtin.", "ansible.legacy.", "ipexctl.")
_INLINE: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)=")
_WORD: Final = re.compile(r"""(?:\{[{%#].*?[}%#]\}|"[^"]*"|'[^']*'|[^\s"'])+""", re.DOTALL)
"""Of `name=value` words: blanks in quotes and in braces are the value's."""
_OLD_ARGS: Final = re.compile(
    r"(?:^\s*|\s(?=(?:(?:creates|removes|chdir)=(?:\{\{.*?\}\}|\S)+\s*)+$))(creates|removes|chdir)=((?:\{\{.*?\}\}|\S)+)",
    re.DOTALL,
)
_LOOP_CONTROL: Final = frozenset({"loop_var", "label", "index_var", "pause"})


@dataclass
class Tasks:
    """One reading of a playbook: how many tasks there are so far, and which files we are inside of."""

    inside: list[Path] = field(default_factory=list)
    count: int = 0
    errors: list[FileError] = field(default_factory=list)
    """Of tasks that can't be read; those behind them are read all the same."""

    def steps(
        self, file: PlaybookFile, node: Node, above: InheritedKeywords, what: str, depth: int = 0
    ) -> tuple[Step, ...]:
        if is_null(node):
            return ()
        if node.id != "sequence":
            raise file.error(node, f"{what} must be a list of tasks, not {kind(node)}", fix="each begins with `- `")
        if depth > _DEEPEST:
            raise file.error(node, f"blocks and includes are nested more than {_DEEPEST} deep")
        found: list[Step] = []
        for item in file.tree.items(node, 0):
            try:
                found += self._step(file, item, above, depth)
            except FileError as error:
                self.errors.append(error)
        return tuple(found)

    def _step(self, file: PlaybookFile, node: Node, above: InheritedKeywords, depth: int) -> Sequence[Step]:
        if node.id != "mapping":
            raise file.error(node, f"a task is a mapping of `key: value` lines, not {kind(node)}")
        entries = {entry.key: entry for entry in file.tree.entries(node, "a task")}
        if "block" in entries:
            return (self._block(file, node, entries, above, depth),)
        if flush := [entries[key] for key in entries if _bare(key) == "meta"]:
            return (_flush(file, flush[0], entries),)
        if includes := [entries[key] for key in entries if _bare(key) in INCLUDES]:
            return self._include(file, includes[0], entries, above, depth)
        return (self.task(file, node, entries, above),)

    def _block(
        self, file: PlaybookFile, node: Node, entries: Mapping[str, Entry], above: InheritedKeywords, depth: int
    ) -> Block:
        for key, entry in entries.items():
            if key not in BLOCK:
                raise file.error(entry.key_node, f"a block has no {quoted(key)}", fix=advice(key, BLOCK))
        inner = read_inherited(file, entries, above)
        parts = {
            key: self.steps(file, entries[key].value, inner, quoted(key), depth + 1)
            for key in ("block", "rescue", "always")
            if key in entries
        }
        name = str(entries["name"].value.value) if "name" in entries else ""
        return Block(name, file.place(node), parts["block"], parts.get("rescue", ()), parts.get("always", ()))

    def _include(
        self, file: PlaybookFile, include: Entry, entries: Mapping[str, Entry], above: InheritedKeywords, depth: int
    ) -> tuple[Step, ...]:
        for key, entry in entries.items():
            if _bare(key) not in INCLUDE:
                fix = "include it several times, or loop inside" if "loop" in key else advice(key, INCLUDE)
                raise file.error(entry.key_node, f"{include.key} has no {quoted(key)}", fix=fix)
        where = include.value
        if where.id == "mapping":
            inner = {entry.key: entry for entry in file.tree.entries(where, include.key)}
            if list(inner) != ["file"]:
                raise file.error(where, f"{include.key} needs 'file', and nothing else")
            where = inner["file"].value
        if where.id != "scalar" or is_null(where) or isinstance(file.text_value(where), Templated):
            raise file.error(
                where, f"{include.key} takes a file's name, not {kind(where)}", fix="files are read before any task"
            )
        path = file.base / str(where.value)
        real = path.resolve()
        if real in self.inside:
            ring = " > ".join(each.name for each in (*self.inside[self.inside.index(real) :], real))
            raise file.error(where, f"these files include each other: {ring}", fix="take one of them out")
        inside = read_file(path, at=file.place(where))
        self.inside.append(real)
        try:
            if inside.tree.root is None:
                return ()
            return self.steps(
                inside, inside.tree.root, read_inherited(file, entries, above), str(where.value), depth + 1
            )
        finally:
            self.inside.pop()

    def task(self, file: PlaybookFile, node: Node, entries: Mapping[str, Entry], above: InheritedKeywords) -> Task:
        self.count += 1
        if self.count > MOST_TASKS:
            raise file.error(node, f"more than {MOST_TASKS:,} tasks in one playbook")
        called = _module_entry(file, node, entries)
        place = file.place(called.key_node)
        if _bare(called.key) == INCLUDE_VARS:
            spec, args = MODULES["set_fact"], _included_vars(file, called)
        else:
            spec = module(_bare(called.key))
            args = _arguments(file, spec, called, entries.get("args"))
        check_args(spec, called.key, args, place)
        inherited = read_inherited(file, entries, above)
        if _bare(called.key) == INCLUDE_VARS:  # they may need each other
            inherited = replace(inherited, vars=(*inherited.vars, {name: arg.value for name, arg in args.items()}))
        if spec.once:
            inherited = replace(inherited, run_once=True)
        if inherited.become and not spec.becomes and "become" in entries:
            raise file.error(
                entries["become"].key_node,
                f"{called.key} does nothing as root",
                fix="take become out: only what works on each host by itself can use it: exec, copy, file, tune …",
            )
        own_name = called.key if inherited.no_log else _own_name(called, spec)
        return Task(
            name=text(file, entries["name"]) if "name" in entries else own_name,
            spec=spec,
            args=args,
            place=place,
            inherited=inherited,
            base=file.base,
            **_rest(file, entries),
        )


def _flush(file: PlaybookFile, meta: Entry, entries: Mapping[str, Entry]) -> Flush:
    if str(meta.value.value) != "flush_handlers":
        raise file.error(meta.value, f"meta knows flush_handlers, not {kind(meta.value)}", fix="fail, or when:")
    for key, entry in entries.items():
        if entry is not meta and key not in ("name", "tags"):
            raise file.error(entry.key_node, f"meta has no {quoted(key)}", fix="take it out")
    return Flush()


def _included_vars(file: PlaybookFile, called: Entry) -> dict[str, Arg]:
    """What include_vars reads, as set_fact takes it."""
    where, name = called.value, None
    if where.id == "mapping":
        inner = {entry.key: entry for entry in file.tree.entries(where, called.key)}
        if "file" not in inner or inner.keys() - {"file", "name"}:
            raise file.error(where, f"{called.key} needs 'file', and knows 'name' besides")
        where, name = inner["file"].value, name_of(file, inner["name"]) if "name" in inner else None
    if where.id != "scalar" or is_null(where) or isinstance(file.text_value(where), Templated):
        raise file.error(
            where, f"{called.key} takes a file's name, not {kind(where)}", fix="files are read before any task"
        )
    place = file.place(where)
    values = dict(variables_of_file(read_file(file.base / str(where.value), at=place)))
    return {key: Arg(value, place) for key, value in ({name: values} if name else values).items()}


def _rest(file: PlaybookFile, entries: Mapping[str, Entry]) -> dict[str, Any]:
    """The keywords that a task alone may have."""
    found: dict[str, Any] = {"loop": _loop(file, entries)}
    if "register" in entries:
        found["register"] = name_of(file, entries["register"])
    if "until" in entries:
        found["until"] = conditions(file, entries["until"].value)
    if "retries" in entries:
        found["retries"] = whole(file, entries["retries"], least=0)
    if "delay" in entries:
        found["delay"] = number(file, entries["delay"], least=0)
    for key in ("changed_when", "failed_when"):
        if key in entries:
            found[key] = truth(file, entries[key])
    if "notify" in entries:
        place = file.place(entries["notify"].value)
        found["notify"] = tuple((word, place) for word in words(file, entries["notify"]))
    if "listen" in entries:
        found["listen"] = words(file, entries["listen"])
    return found


def _bare(key: str) -> str:
    for prefix in _PREFIXES:
        if key.startswith(prefix):
            return key[len(prefix) :]
    return key


def _module_entry(file: PlaybookFile, node: Node, entries: Mapping[str, Entry]) -> Entry:
    """Which of the keys is the module; everything that is neither module nor keyword is an error."""
    modules = [entry for key, entry in entries.items() if key not in TASK and _bare(key) in KNOWN]
    unknown = [entry for key, entry in entries.items() if key not in TASK and _bare(key) not in KNOWN]
    for entry in unknown:
        key = _bare(entry.key)
        if key in NOT_OURS:
            raise file.error(entry.key_node, f"there is no {quoted(entry.key)} here", fix=NOT_OURS[key])
        if modules or key.startswith("with_"):
            raise file.error(
                entry.key_node, f"a task has no {quoted(entry.key)}", fix=advice(entry.key, TASK | set(MODULES))
            )
        fix = NOT_MODULES.get(key.rpartition(".")[2]) or did_you_mean(
            key, [*KNOWN, *TASK], f"there are: {', '.join(sorted(MODULES))}"
        )
        raise file.error(entry.key_node, f"there is no module {quoted(entry.key)}", fix=fix)
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


def _own_name(called: Entry, spec: Spec) -> str:
    value = called.value
    if spec.free is not None and value.id == "scalar" and spec.name in ("exec", "command"):
        return f"{called.key}: {str(value.value).splitlines()[0][:60] if str(value.value).strip() else ''}"
    return called.key


def _arguments(file: PlaybookFile, spec: Spec, called: Entry, more: Entry | None) -> dict[str, Arg]:
    """The module's own value, and what stands under `args:`."""
    found: dict[str, Arg] = {}
    node = called.value
    if node.id == "mapping":
        _take(file, spec, called.key, file.tree.entries(node, called.key), found)
    elif not is_null(node):
        if spec.free is not None and not (_INLINE.match(str(node.value)) and spec.name not in ("exec", "command")):
            if node.id == "scalar":
                _refuse_old_args(file, called)
            value = file.text_value(node) if node.id == "scalar" else file.value(node)
            found[spec.free] = Arg(value, file.place(node))
        elif node.id == "scalar":
            found.update(_inline(file, spec, called))
        else:
            raise file.error(node, f"{called.key} takes a mapping of options, not {kind(node)}")
    if more is not None:
        _take(file, spec, called.key, file.tree.entries(more.value, "'args'"), found)
    return found


def _take(file: PlaybookFile, spec: Spec, called: str, entries: Sequence[Entry], found: dict[str, Arg]) -> None:
    for entry in entries:
        name = _known(spec, called, entry.key, file.place(entry.key_node))
        if name in found:
            raise file.error(entry.key_node, f"{called}: {quoted(name)} is there twice")
        option = spec.options.get(name)
        node = entry.value
        value: Value
        if option is not None and option.kind in ("mode", "str", "path", "local", "command") and node.id == "scalar":
            value = None if is_null(node) else file.text_value(node)
        elif option is not None and option.kind == "exprs":
            value = list(conditions(file, node))
        elif option is not None and name == "var" and node.id == "scalar":
            value = condition(file, node)
        else:
            value = file.value(node)
        found[name] = Arg(value, file.place(node))


def _known(spec: Spec, called: str, word: str, place: Place) -> str:
    if spec.any_option:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", word):
            raise place.error(f"{quoted(word)} can't be the name of a variable", fix="letters, digits and _")
        return word
    name = spec.option(word)
    if name is None:
        names = sorted(spec.options)
        fix = NOT_OPTIONS.get(word) or did_you_mean(word, names, f"it has {', '.join(names)}")
        raise place.error(f"{called} has no option {quoted(word)}", fix=fix)
    return name


def _refuse_old_args(file: PlaybookFile, called: Entry) -> None:
    old = _OLD_ARGS.search(str(called.value.value))
    if old is not None:
        value = f'"{old[2]}"' if "{{" in old[2] else old[2]
        raise file.error(
            called.value,
            f"{old[1]}= in the line itself would be a word of the command",
            fix=f"args: {{{old[1]}: {value}}}, below the line",
        )


def _inline(file: PlaybookFile, spec: Spec, called: Entry) -> dict[str, Arg]:
    """`copy: src=a dest=b`: words of `name=value`, in quotes where there are blanks."""
    template = file.template(called.value)
    if re.search("[\"']", _WORD.sub("", template.text)):
        raise file.error(called.value, "a quote is never closed")
    pairs = [found[0] for found in _WORD.finditer(template.text)]
    found: dict[str, Arg] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        spot = template.spot(None, name)
        if not equals:
            raise spot.error(
                f"{called.key} takes a mapping of options, or name=value words, not {quoted(pair)}",
                fix=f"{called.key}: {{{next(iter(spec.options), 'option')}: {pair}}}",
            )
        known = _known(spec, called.key, name, spot)
        kind_of = spec.options[known].kind if known in spec.options else "any"
        told = replace(template, text=value, place=spot)
        if known == "var" or kind_of == "exprs":
            told = replace(told, kind="expr")
            found[known] = Arg([told] if kind_of == "exprs" else told, spot)
        else:
            found[known] = Arg(told if JINJA.search(value) else value, spot)
    return found


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
    found: dict[str, Any] = {}
    for each in file.tree.entries(control.value, "'loop_control'") if control else ():
        if each.key not in _LOOP_CONTROL:
            raise file.error(
                each.key_node, f"loop_control has no {quoted(each.key)}", fix=advice(each.key, _LOOP_CONTROL)
            )
        if each.key == "label":
            found["label"] = file.template(each.value)
        elif each.key == "pause":
            found["pause"] = number(file, each, least=0)
        else:
            found["var" if each.key == "loop_var" else "index_var"] = name_of(file, each)
    return Loop(items, file.place(entry.value), **found)

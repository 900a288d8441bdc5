"""Read a playbook and the files that it names into the values of `playbook.py`.

Every error has its position, and reading continues after an error, so that the user sees all at once. Files may come
with a cloned repository, so their number and nesting are limited, and a file that includes itself is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Final

from ipexctl.addons.play import keywords
from ipexctl.addons.play.keywords import Reader, advice, plain_texts, read_inherited, read_keywords, report_unknown
from ipexctl.addons.play.module_options import INCLUDE_VARS, module_of, options_of, read_source, strip_prefix
from ipexctl.addons.play.modules import MODULES
from ipexctl.addons.play.options import Option
from ipexctl.addons.play.playbook import (
    Arg,
    Block,
    Flush,
    InheritedKeywords,
    Keyed,
    Loop,
    Node,
    Play,
    Playbook,
    PlaybookFile,
    Position,
    Step,
    Task,
    TemplateText,
    Value,
    find_shipped_playbooks,
    read_file,
)
from ipexctl.errors import FileError
from ipexctl.hosts.host import did_you_mean, quote

MAX_FILES: Final = 1_000
"""Limit on the files of one playbook; a file counts each time it is read."""
_MAX_DEPTH: Final = 50


def read_playbook(path: Path, shown: str) -> tuple[Playbook, list[FileError]]:
    """Return the playbook with all plays that can be read, and all errors."""
    reader = _PlaybookReader([path.resolve()])
    plays = reader.plays(read_file(path, shown, errors=reader.errors))
    return Playbook(path, shown, tuple(plays)), reader.errors + reader.source_errors


def read_variables(path: Path, shown: str | None = None) -> Mapping[str, Value]:
    """Return the variables of a file that the user names. Raises a UserError. `shown`: its name in messages."""
    return keywords.variables(read_file(path, shown).top, "a file of variables")


@dataclass
class _PlaybookReader:
    """Reads one playbook. Its methods report errors, and return what could be read."""

    open_files: list[Path]
    """Files that are being read: each was named by the one before."""
    errors: list[FileError] = field(default_factory=list)
    source_errors: list[FileError] = field(default_factory=list)
    """Missing files of copy and template tasks; the tasks are kept."""
    file_count: int = 0

    def _read_named_file(self, node: Node, keyword: str) -> PlaybookFile:
        """Read the file that a node names. Raises a FileError at the node."""
        self.file_count += 1
        if self.file_count > MAX_FILES:
            raise node.error(f"this playbook reads more than {MAX_FILES:,} files", fix="include fewer of them")
        return read_file(_named_path(node, keyword), at=node.position, errors=self.errors)

    @contextmanager
    def _open_named_file(self, node: Node, keyword: str) -> Iterator[PlaybookFile]:
        """Open a file of tasks or plays. A file that it includes may not include it again."""
        path = _named_path(node, keyword).resolve()
        if path in self.open_files:
            ring = " > ".join(name.name for name in (*self.open_files[self.open_files.index(path) :], path))
            raise node.error(f"these files include each other: {ring}", fix="remove one of the includes")
        if len(self.open_files) > _MAX_DEPTH:
            raise node.error(f"files are included more than {_MAX_DEPTH} deep")
        named = self._read_named_file(node, keyword)
        self.open_files.append(path)
        try:
            yield named
        finally:
            self.open_files.pop()

    def _variables_of(self, node: Node, keyword: str) -> Mapping[str, Value]:
        return keywords.variables(self._read_named_file(node, keyword).top, "a file of variables")

    def plays(self, file: PlaybookFile) -> list[Play]:
        """Return the plays of a file, and of the playbooks that it imports."""
        top, plays = file.top, list[Play]()
        if top is None or top.is_null:
            return []
        if not top.is_a("sequence"):
            fix = "begin with `- hosts: all`" if top.is_a("mapping") else ""
            raise top.error(f"a playbook is a list of plays, not {top.kind}", fix=fix)
        for node in top.items():
            with file.reporting():
                plays += self._play(node)
        return plays

    def _play(self, node: Node) -> Sequence[Play]:
        """Return one play, or those of `import_playbook`."""
        if not node.is_a("mapping"):
            raise node.error(f"a play is a mapping of `key: value` lines, not {node.kind}")
        entries = node.entries("a play")
        for key, entry in entries.items():
            if key.removeprefix("ansible.builtin.") == "import_playbook":
                return self._imported(entry, entries)
        report_unknown(entries.values(), keywords.PLAY, "a play", _play_advice)
        if "hosts" not in entries:
            node.report("this play does not name its hosts", fix="hosts: all")
        if "strategy" in entries and entries["strategy"].value.text not in ("linear", "ansible.builtin.linear"):
            entries["strategy"].value.report("the only strategy is linear", fix="take it out")
        values = read_keywords(entries, _OF_PLAYS)
        inherited = read_inherited({key: entries[key] for key in entries if key != "vars"}, InheritedKeywords())
        steps: list[Step] = []
        for key in ("pre_tasks", "tasks", "post_tasks"):
            if key in entries:
                with node.file.reporting():
                    steps += self._steps(entries[key].value, inherited, quote(key))
        errors_before = len(self.errors)
        handlers: tuple[Task, ...] = ()
        with node.file.reporting():
            handlers = self._handlers(entries.get("handlers"), inherited)
        knows_handlers = len(self.errors) == errors_before
        file_vars = []
        for item in entries["vars_files"].value.items() if "vars_files" in entries else ():
            with node.file.reporting():
                file_vars += [self._variables_of(item, "vars_files")] if not item.is_null else []
        hosts, position = values.pop("hosts", ("all", node.position))
        name = entries["name"].value.text if "name" in entries else hosts
        play = Play(name, node.position, hosts, position, tuple(steps), handlers, file_vars=tuple(file_vars), **values)
        if knows_handlers:
            self.errors += _unknown_handlers(play)
        return [play]

    def _imported(self, entry: Keyed, entries: Mapping[str, Keyed]) -> list[Play]:
        """Return the plays of an imported playbook, with the `vars` of the import."""
        known = {entry.key, "name", "vars"}
        report_unknown(entries.values(), known, entry.key, lambda _: "put it into that file's plays")
        with self._open_named_file(entry.value, entry.key) as imported:
            plays = self.plays(imported)
        given = keywords.variables(entries["vars"].value) if "vars" in entries else {}
        return [replace(play, vars={**play.vars, **given}) for play in plays]

    def _handlers(self, entry: Keyed | None, inherited: InheritedKeywords) -> tuple[Task, ...]:
        """Return the handlers of a play. Raises a FileError for a block or a flush among them."""
        steps = () if entry is None else self._steps(entry.value, inherited, "'handlers'")
        for step in steps:
            if isinstance(step, Block):
                raise step.position.error("a handler is a task, not a block")
            if isinstance(step, Flush) and entry is not None:
                raise entry.value.error("a handler can't call the handlers", fix="use notify")
        return tuple(step for step in steps if isinstance(step, Task))

    def _steps(self, node: Node, above: InheritedKeywords, what: str, depth: int = 0) -> tuple[Step, ...]:
        """Return the steps of a list. `above`: what they inherit. `what`: what errors call the list."""
        if node.is_null:
            return ()
        if not node.is_a("sequence"):
            raise node.error(f"{what} must be a list of tasks, not {node.kind}", fix="each begins with `- `")
        if depth > _MAX_DEPTH:
            raise node.error(f"blocks and includes are nested more than {_MAX_DEPTH} deep")
        result: list[Step] = []
        for item in node.items():
            with node.file.reporting():
                result += self._step(item, above, depth)
        return tuple(result)

    def _step(self, node: Node, above: InheritedKeywords, depth: int) -> Sequence[Step]:
        """Return a block, a flush, a task, or the steps of an included file."""
        if not node.is_a("mapping"):
            raise node.error(f"a task is a mapping of `key: value` lines, not {node.kind}")
        entries = node.entries("a task")
        by_name = {strip_prefix(key): entry for key, entry in entries.items()}
        if "block" in entries:
            report_unknown(entries.values(), keywords.BLOCK, "a block")
            inner = read_inherited(entries, above)
            parts = {key: entries[key].value for key in ("block", "rescue", "always") if key in entries}
            steps = {key: self._steps(part, inner, quote(key), depth + 1) for key, part in parts.items()}
            return [Block(node.position, **steps)]
        if "meta" in by_name:
            return [_flush(by_name["meta"], entries)]
        if include := next((entry for name, entry in by_name.items() if name in keywords.INCLUDES), None):
            return self._include(include, entries, above, depth)
        return self._task(node, entries, above)

    def _include(
        self, include: Keyed, entries: Mapping[str, Keyed], above: InheritedKeywords, depth: int
    ) -> Sequence[Step]:
        known = {key for key in entries if strip_prefix(key) in keywords.INCLUDE}
        fix = "include it several times, or loop inside the file"
        advise = lambda key: fix if "loop" in key else advice(key, keywords.INCLUDE)  # noqa: E731
        report_unknown(entries.values(), known, include.key, advise)
        node = include.value
        if node.is_a("mapping"):
            options = node.entries(include.key)
            if list(options) != ["file"]:
                raise node.error(f"{include.key} needs 'file', and nothing else")
            node = options["file"].value
        with self._open_named_file(node, include.key) as included:
            if included.top is None:
                return ()
            return self._steps(included.top, read_inherited(entries, above), node.text, depth + 1)

    def _task(self, node: Node, entries: Mapping[str, Keyed], above: InheritedKeywords) -> Sequence[Task]:
        """Return a task; empty if it has an error, except a missing `src`, whose task is kept."""
        errors_before = len(self.errors)
        inherited = read_inherited(entries, above)
        values = read_keywords(entries, keywords.OF_TASKS)
        with node.file.reporting():
            values["loop"] = _loop(entries)
        module = module_of(node, entries)
        if module is None:
            return ()
        position, name = module.key_node.position, strip_prefix(module.key)
        if name == INCLUDE_VARS:
            spec, args = MODULES["set_fact"], self._included_vars(module)
            inherited = replace(inherited, vars=(*inherited.vars, {name: arg.value for name, arg in args.items()}))
        else:
            spec = MODULES[name]
            args = options_of(spec, module, entries.get("args"))
        if spec.once:
            inherited = replace(inherited, run_once=True)
        if inherited.become and not spec.becomes and "become" in entries:
            fix = "remove become: only modules that run on each host separately support it: exec, copy, file, tune …"
            entries["become"].key_node.report(f"{module.key} does not support become", fix=fix)
        if len(self.errors) > errors_before:
            return ()
        base = node.file.source.base
        if spec.name in ("template", "copy") and "src" in args:
            try:
                values["file"] = read_source(spec.name, base, args["src"])
            except FileError as error:
                self.source_errors.append(error)
        called = values.pop("name", module.key if inherited.no_log else _default_name(module))
        return [Task(called, spec, args, position, inherited, base, **values)]

    def _included_vars(self, module: Keyed) -> dict[str, Arg]:
        """Return the variables of `include_vars`, as options of set_fact."""
        node, name = module.value, None
        if node.is_a("mapping"):
            options = node.entries(module.key)
            if "file" not in options or options.keys() - {"file", "name"}:
                raise node.error(f"{module.key} takes 'file' and, optionally, 'name'")
            name = keywords.name_of("name", options["name"].value) if "name" in options else None
            node = options["file"].value
        values = self._variables_of(node, module.key)
        return {key: Arg(value, node.position) for key, value in ({name: values} if name else values).items()}


def _default_name(module: Keyed) -> str:
    """Return the name of a task without one: the module, and of a command also the line."""
    if strip_prefix(module.key) not in ("exec", "shell", "command") or not module.value.is_a("scalar"):
        return module.key
    return f"{module.key}: {module.value.text.splitlines()[0][:60] if module.value.text.strip() else ''}"


def _named_path(node: Node, keyword: str) -> Path:
    """Return the path that a node names; for import_playbook, also a playbook that ships with ipexctl."""
    if not node.is_a("scalar") or isinstance(node.written(), TemplateText):
        raise node.error(f"{keyword} takes a file's name, not {node.kind}", fix="files are read before any task")
    path = node.file.source.base / node.text
    if keyword.endswith("import_playbook") and not path.is_file():
        return find_shipped_playbooks().get(node.text, path)
    return path


def _hosts(key: str, node: Node) -> tuple[str, Position]:
    return ",".join(plain_texts(key, node)), node.position


def _serial(_: str, node: Node) -> tuple[int | str, ...]:
    """Return the batch sizes: counts, or percentages such as `30%`."""
    value = node.value()
    sizes = tuple(value if isinstance(value, list) else [value])
    for size in sizes:
        is_count = type(size) is int and size >= 0
        if not is_count and not re.fullmatch(r"[1-9][0-9]?%|100%", str(size)):
            raise node.error(f"'serial' is a number of hosts, or a percentage, not {node.kind}")
    return sizes


_OF_PLAYS: Final[Mapping[str, Reader]] = {
    "hosts": _hosts,
    "vars": lambda _, node: keywords.variables(node),
    **dict.fromkeys(("gather_facts", "any_errors_fatal"), keywords.boolean),
    "serial": _serial,
}
_LOOP_CONTROL: Final[Mapping[str, Reader]] = {
    **dict.fromkeys(("loop_var", "index_var"), keywords.name_of),
    "label": lambda _, node: node.template(),
    "pause": keywords.known_value(Option("float", minimum=0)),
}


_OF_TASKS: Final = {"block", "meta", INCLUDE_VARS, *keywords.INCLUDES, *keywords.TASK, *MODULES, *keywords.NOT_MODULES}


def _play_advice(key: str) -> str:
    """Return the fix for a keyword that a play does not have."""
    is_of_task = strip_prefix(key) in _OF_TASKS or "." in key  # collections' modules have dots
    return "tasks belong under `tasks:`" if is_of_task else advice(key, keywords.PLAY)


def _unknown_handlers(play: Play) -> Iterator[FileError]:
    """Yield an error for each name in `notify` that no handler of the play has."""
    known = set(chain.from_iterable((handler.called, *handler.listen) for handler in play.handlers))
    for name, position in chain.from_iterable(task.notify for task in play.all_tasks):
        if name not in known:
            fix = did_you_mean(name, known, "handlers belong under `handlers:` of this play")
            yield position.error(f"no handler is called {quote(name)}", fix=fix)


def _flush(meta: Keyed, entries: Mapping[str, Keyed]) -> Flush:
    """Read `meta: flush_handlers`. Raises a FileError for any other meta."""
    if meta.value.text != "flush_handlers":
        what = f"meta supports only flush_handlers, not {meta.value.kind}"
        raise meta.value.error(what, fix="fail, or when:")
    report_unknown(entries.values(), {meta.key, "name", "tags"}, "meta", lambda _: "take it out")
    return Flush()


def _loop(entries: Mapping[str, Keyed]) -> Loop | None:
    """Return the loop of a task; None without one."""
    control = entries.get("loop_control")
    entry = entries.get("loop") or entries.get("with_items")
    if entry is None:
        if control is not None:
            raise control.key_node.error("'loop_control' without a 'loop'")
        return None
    if "loop" in entries and "with_items" in entries:
        raise entries["with_items"].key_node.error("'loop' and 'with_items' can't be combined", fix="keep loop")
    items = entry.value.value()
    if not isinstance(items, list | TemplateText):
        raise entry.value.error(f"'loop' must be a list, not {entry.value.kind}", fix="[one, two]")
    options = control.value.entries("'loop_control'") if control else {}
    report_unknown(options.values(), _LOOP_CONTROL, "loop_control")
    is_flattened = "with_items" in entries
    return Loop(items, entry.value.position, **read_keywords(options, _LOOP_CONTROL), is_flattened=is_flattened)

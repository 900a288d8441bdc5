"""Reads a playbook and the files it names into the model; every error has its position. Reading continues after an
error. Files may come with a cloned repository, so their number, nesting and tasks are limited, and recursive includes
are errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ipexctl.errors import FileError
from ipexctl.extras.play.keywords import (
    BLOCK,
    INCLUDE,
    INCLUDES,
    OF_TASKS,
    PLAY,
    KeywordReader,
    advice,
    boolean,
    known_value,
    name_of,
    plain_texts,
    read_inherited,
    read_keywords,
    report_unknown,
    variables,
)
from ipexctl.extras.play.module_options import (
    INCLUDE_VARS,
    default_name,
    find_module,
    read_options,
    read_source,
    strip_prefix,
)
from ipexctl.extras.play.modules import MODULES
from ipexctl.extras.play.playbook_file import (
    PlaybookFile,
    Position,
    TemplateText,
    Value,
    find_shipped_playbooks,
    read_file,
)
from ipexctl.extras.play.playbook_model import (
    Arg,
    Block,
    Flush,
    InheritedKeywords,
    Loop,
    Option,
    Play,
    Playbook,
    Step,
    Task,
    check_args,
)
from ipexctl.file_reader import PLAYBOOK
from ipexctl.hosts.host import did_you_mean, quote
from ipexctl.hosts.yaml_tree import Entry, YamlNode, is_null, kind

MAX_TASKS: Final = 50_000
MAX_FILES: Final = 1_000
"""Limit on the files of one playbook; a file counts each time it is read."""
MAX_SIZE: Final = 4 * PLAYBOOK.limit
"""Limit on the characters of all these files, which take many times their size in memory."""
_MAX_DEPTH: Final = 50


def read_playbook(path: Path, shown: str) -> tuple[Playbook, list[FileError]]:
    """All readable plays of a file and its imports, and all errors."""
    reader = _PlaybookReader([path.resolve()])
    plays = reader.plays(read_file(path, shown, errors=reader.errors))
    return Playbook(path, shown, tuple(plays)), reader.errors + reader.source_errors


def read_variables(path: Path, shown: str | None = None) -> Mapping[str, Value]:
    file = read_file(path, shown)
    return variables(file, file.root, "a file of variables")


@dataclass
class _PlaybookReader:
    open_files: list[Path]
    errors: list[FileError] = field(default_factory=list)
    source_errors: list[FileError] = field(default_factory=list)
    """Missing files of copy and template tasks; the tasks are kept."""
    task_count: int = 0
    file_count: int = 0
    size: int = 0

    def _read_named_file(self, file: PlaybookFile, node: YamlNode, keyword: str) -> PlaybookFile:
        path = _named_path(file, node, keyword)
        self.file_count += 1
        if self.file_count > MAX_FILES:
            raise file.error(node, f"this playbook reads more than {MAX_FILES:,} files", fix="include fewer of them")
        named = read_file(path, at=file.position(node), errors=self.errors)
        self.size += named.size
        if self.size > MAX_SIZE:
            raise file.error(node, f"this playbook's files have more than {MAX_SIZE // 10**6} MB", fix="split it")
        return named

    @contextmanager
    def _open_named_file(self, file: PlaybookFile, node: YamlNode, keyword: str) -> Iterator[PlaybookFile]:
        """Open a file of tasks or plays. A file that it includes may not include it again."""
        path = _named_path(file, node, keyword).resolve()
        if path in self.open_files:
            ring = " > ".join(name.name for name in (*self.open_files[self.open_files.index(path) :], path))
            raise file.error(node, f"these files include each other: {ring}", fix="remove one of the includes")
        if len(self.open_files) > _MAX_DEPTH:
            raise file.error(node, f"files are included more than {_MAX_DEPTH} deep")
        named = self._read_named_file(file, node, keyword)
        self.open_files.append(path)
        try:
            yield named
        finally:
            self.open_files.pop()

    def _variables_of(self, file: PlaybookFile, node: YamlNode, keyword: str) -> Mapping[str, Value]:
        named = self._read_named_file(file, node, keyword)
        return variables(named, named.root, "a file of variables")

    def plays(self, file: PlaybookFile) -> list[Play]:
        root = file.root
        if root is None or is_null(root):
            return []
        if root.id != "sequence":
            fix = "begin with `- hosts: all`" if root.id == "mapping" else ""
            raise file.error(root, f"a playbook is a list of plays, not {kind(root)}", fix=fix)
        result: list[Play] = []
        for node in file.items(root):
            with file.reporting():
                result += self._play(file, node)
        return result

    def _play(self, file: PlaybookFile, node: YamlNode) -> list[Play]:
        if node.id != "mapping":
            raise file.error(node, f"a play is a mapping of `key: value` lines, not {kind(node)}")
        entries = {entry.key: entry for entry in file.entries(node, "a play")}
        for key, entry in entries.items():
            if key.removeprefix("ansible.builtin.") == "import_playbook":
                return self._imported(file, entry, entries)
        report_unknown(file, entries, PLAY, "a play", _play_advice)
        if "hosts" not in entries:
            file.report(node, "this play does not name its hosts", fix="hosts: all")
        if "strategy" in entries and str(entries["strategy"].value.value) not in ("linear", "ansible.builtin.linear"):
            file.report(entries["strategy"].value, "the only strategy is linear", fix="take it out")
        values = read_keywords(file, entries, _OF_PLAYS)
        of_tasks = {key: entry for key, entry in entries.items() if key != "vars"}
        inherited = read_inherited(file, of_tasks, InheritedKeywords())
        steps: list[Step] = []
        for key in ("pre_tasks", "tasks", "post_tasks"):
            if key in entries:
                with file.reporting():
                    steps += self._steps(file, entries[key].value, inherited, quote(key))
        errors_before = len(file.errors)
        handlers: tuple[Task, ...] = ()
        with file.reporting():
            handlers = self._handlers(file, entries.get("handlers"), inherited)
        knows_handlers = len(file.errors) == errors_before
        hosts, hosts_position = values.pop("hosts", ("all", file.position(node)))
        play = Play(
            name=str(entries["name"].value.value) if "name" in entries else hosts,
            position=file.position(node),
            hosts=hosts,
            hosts_position=hosts_position,
            steps=tuple(steps),
            handlers=handlers,
            file_vars=self._vars_files(file, entries.get("vars_files")),
            **values,
        )
        if knows_handlers:
            _check_notified(file, play)
        return [play]

    def _imported(self, file: PlaybookFile, entry: Entry, entries: Mapping[str, Entry]) -> list[Play]:
        report_unknown(file, entries, {entry.key, "name", "vars"}, entry.key, lambda _: "put it into that file's plays")
        with self._open_named_file(file, entry.value, entry.key) as imported:
            plays = self.plays(imported)
        given = variables(file, entries["vars"].value, "'vars'") if "vars" in entries else {}
        return [replace(play, vars={**play.vars, **given}) for play in plays]

    def _handlers(self, file: PlaybookFile, entry: Entry | None, inherited: InheritedKeywords) -> tuple[Task, ...]:
        if entry is None:
            return ()
        steps = self._steps(file, entry.value, inherited, "'handlers'")
        for step in steps:
            if isinstance(step, Block):
                raise step.position.error("a handler is a task, not a block")
            if isinstance(step, Flush):
                raise file.error(entry.value, "a handler can't call the handlers", fix="use notify")
        return tuple(step for step in steps if isinstance(step, Task))

    def _vars_files(self, file: PlaybookFile, entry: Entry | None) -> tuple[Mapping[str, Value], ...]:
        if entry is None or is_null(entry.value):
            return ()
        found = []
        for node in file.listed(entry.value):
            with file.reporting():
                found.append(self._variables_of(file, node, entry.key))
        return tuple(found)

    def _steps(
        self, file: PlaybookFile, node: YamlNode, above: InheritedKeywords, what: str, depth: int = 0
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

    def _step(self, file: PlaybookFile, node: YamlNode, above: InheritedKeywords, depth: int) -> Sequence[Step]:
        if node.id != "mapping":
            raise file.error(node, f"a task is a mapping of `key: value` lines, not {kind(node)}")
        entries = {entry.key: entry for entry in file.entries(node, "a task")}
        if "block" in entries:
            return (self._block(file, node, entries, above, depth),)
        by_name = {strip_prefix(key): entry for key, entry in entries.items()}
        if "meta" in by_name:
            return (_flush(file, by_name["meta"], entries),)
        if include := next((entry for name, entry in by_name.items() if name in INCLUDES), None):
            return self._include(file, include, entries, above, depth)
        return self._task(file, node, entries, above)

    def _block(
        self, file: PlaybookFile, node: YamlNode, entries: Mapping[str, Entry], above: InheritedKeywords, depth: int
    ) -> Block:
        report_unknown(file, entries, BLOCK, "a block")
        inner = read_inherited(file, entries, above)
        parts = {
            key: self._steps(file, entries[key].value, inner, quote(key), depth + 1)
            for key in ("block", "rescue", "always")
            if key in entries
        }
        return Block(file.position(node), **parts)

    def _include(
        self, file: PlaybookFile, include: Entry, entries: Mapping[str, Entry], above: InheritedKeywords, depth: int
    ) -> tuple[Step, ...]:
        known = {key for key in entries if strip_prefix(key) in INCLUDE}
        loop_fix = "include it several times, or loop inside the file"
        report_unknown(
            file, entries, known, include.key, lambda key: loop_fix if "loop" in key else advice(key, INCLUDE)
        )
        file_node = include.value
        if file_node.id == "mapping":
            options = {entry.key: entry for entry in file.entries(file_node, include.key)}
            if list(options) != ["file"]:
                raise file.error(file_node, f"{include.key} needs 'file', and nothing else")
            file_node = options["file"].value
        with self._open_named_file(file, file_node, include.key) as included:
            if included.root is None:
                return ()
            inherited = read_inherited(file, entries, above)
            return self._steps(included, included.root, inherited, str(file_node.value), depth + 1)

    def _task(
        self, file: PlaybookFile, node: YamlNode, entries: Mapping[str, Entry], above: InheritedKeywords
    ) -> tuple[Task, ...]:
        self.task_count += 1
        if self.task_count > MAX_TASKS:
            raise file.error(node, f"more than {MAX_TASKS:,} tasks in one playbook")
        errors_before = len(self.errors)
        inherited = read_inherited(file, entries, above)
        values = read_keywords(file, entries, OF_TASKS)
        with file.reporting():
            values["loop"] = _loop(file, entries)
        module = find_module(file, node, entries)
        if module is None:
            return ()
        position, name = file.position(module.key_node), strip_prefix(module.key)
        if name == INCLUDE_VARS:
            spec, args = MODULES["set_fact"], self._included_vars(file, module)
            inherited = replace(inherited, vars=(*inherited.vars, {name: arg.value for name, arg in args.items()}))
        else:
            spec, errors_before_args = MODULES[name], len(self.errors)
            args = read_options(file, spec, module, entries.get("args"))
            if len(self.errors) == errors_before_args:
                self.errors += check_args(spec, module.key, args, position)
        if spec.once:
            inherited = replace(inherited, run_once=True)
        if inherited.become and not spec.becomes and "become" in entries:
            file.report(
                entries["become"].key_node,
                f"{module.key} does not support become",
                fix="remove become: only modules that run on each host separately support it: exec, copy, file, tune …",
            )
        if len(self.errors) > errors_before:
            return ()
        if spec.name in ("template", "copy") and "src" in args:
            try:
                values["file"] = read_source(spec.name, file.source.base, args["src"])
            except FileError as error:
                self.source_errors.append(error)
        values.setdefault("name", module.key if inherited.no_log else default_name(module, spec))
        return (Task(spec=spec, args=args, position=position, inherited=inherited, base=file.source.base, **values),)

    def _included_vars(self, file: PlaybookFile, module: Entry) -> dict[str, Arg]:
        file_node, name = module.value, None
        if file_node.id == "mapping":
            options = {entry.key: entry for entry in file.entries(file_node, module.key)}
            if "file" not in options or options.keys() - {"file", "name"}:
                raise file.error(file_node, f"{module.key} takes 'file' and, optionally, 'name'")
            file_node, name = options["file"].value, name_of(file, options["name"]) if "name" in options else None
        values = self._variables_of(file, file_node, module.key)
        position = file.position(file_node)
        return {key: Arg(value, position) for key, value in ({name: values} if name else values).items()}


def _named_path(file: PlaybookFile, node: YamlNode, keyword: str) -> Path:
    if node.id != "scalar" or is_null(node) or isinstance(file.text_value(node), TemplateText):
        fix = "files are read before any task"
        raise file.error(node, f"{keyword} takes a file's name, not {kind(node)}", fix=fix)
    path = file.source.base / str(node.value)
    if keyword.endswith("import_playbook") and not path.is_file():
        return find_shipped_playbooks().get(str(node.value), path)
    return path


def _hosts(file: PlaybookFile, entry: Entry) -> tuple[str, Position]:
    return ",".join(plain_texts(file, entry)), file.position(entry.value)


def _serial(file: PlaybookFile, entry: Entry) -> tuple[int | str, ...]:
    value = file.value(entry.value)
    sizes = tuple(value if isinstance(value, list) else [value])
    for size in sizes:
        is_count = type(size) is int and size >= 0
        if not is_count and not re.fullmatch(r"[1-9][0-9]?%|100%", str(size)):
            raise file.error(entry.value, f"'serial' is a number of hosts, or a percentage, not {kind(entry.value)}")
    return sizes


_OF_PLAYS: Final[Mapping[str, KeywordReader]] = {
    "hosts": _hosts,
    "vars": lambda file, entry: variables(file, entry.value, "'vars'"),
    "gather_facts": boolean,
    "any_errors_fatal": boolean,
    "serial": _serial,
}
_LOOP_CONTROL: Final[Mapping[str, KeywordReader]] = {
    "loop_var": name_of,
    "label": lambda file, entry: file.template(entry.value),
    "index_var": name_of,
    "pause": known_value(Option("float", minimum=0)),
}


def _play_advice(key: str) -> str:
    if key in ("block", "exec", "shell", "command", "copy", "install", "doctor", "debug"):
        return "tasks belong under `tasks:`"
    return advice(key, PLAY)


def _check_notified(file: PlaybookFile, play: Play) -> None:
    known = {name for handler in play.handlers for name in (handler.called, *handler.listen)}
    for task in (*play.tasks, *play.handlers):
        for name, position in task.notify:
            if name not in known:
                fix = did_you_mean(name, known, "handlers belong under `handlers:` of this play")
                file.errors.append(position.error(f"no handler is called {quote(name)}", fix=fix))


def _flush(file: PlaybookFile, meta: Entry, entries: Mapping[str, Entry]) -> Flush:
    if str(meta.value.value) != "flush_handlers":
        raise file.error(meta.value, f"meta supports only flush_handlers, not {kind(meta.value)}", fix="fail, or when:")
    report_unknown(file, entries, {meta.key, "name", "tags"}, "meta", lambda _: "take it out")
    return Flush()


def _loop(file: PlaybookFile, entries: Mapping[str, Entry]) -> Loop | None:
    control = entries.get("loop_control")
    entry = entries.get("loop") or entries.get("with_items")
    if entry is None:
        if control is not None:
            raise file.error(control.key_node, "'loop_control' without a 'loop'")
        return None
    if "loop" in entries and "with_items" in entries:
        raise file.error(entries["with_items"].key_node, "'loop' and 'with_items' can't be combined", fix="keep loop")
    items = file.value(entry.value)
    if not isinstance(items, list | TemplateText):
        raise file.error(entry.value, f"'loop' must be a list, not {kind(entry.value)}", fix="[one, two]")
    options = {entry.key: entry for entry in file.entries(control.value, "'loop_control'")} if control else {}
    report_unknown(file, options, frozenset(_LOOP_CONTROL), "loop_control")
    keywords = read_keywords(file, options, _LOOP_CONTROL)
    return Loop(items, file.position(entry.value), **keywords, is_flattened="with_items" in entries)

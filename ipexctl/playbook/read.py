"""Reads a playbook file into the model; every error carries its position. No host is contacted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ipexctl.errors import FileError
from ipexctl.hosts.names import quoted
from ipexctl.hosts.yaml_tree import Entry, Node, is_null, kind
from ipexctl.playbook.keywords import PLAY, advice, boolean, read_inherited, variables, variables_of_file
from ipexctl.playbook.model import Block, Flush, InheritedKeywords, Play, Playbook, Step, Task, tasks_of
from ipexctl.playbook.playbook_file import PlaybookFile, read_file
from ipexctl.playbook.positions import Templated, Value, did_you_mean, raise_first
from ipexctl.playbook.read_tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def read_playbook(path: Path, shown: str) -> Playbook:
    """Read all plays of a file and of the files it imports. Raises PlaybookError."""
    try:
        reader = _Reader(Tasks([path.resolve()]))
        plays = reader.plays(read_file(path, shown))
        raise_first(reader.tasks.errors)
        return Playbook(path, shown, tuple(plays))
    except FileError as error:
        error.more = tuple(_with_column(other) for other in error.more)
        raise _with_column(error) from None


def read_variables(path: Path, shown: str) -> Mapping[str, Value]:
    """Read a file of variables: `-e @FILE`."""
    return variables_of(read_file(path, shown))


def variables_of(file: PlaybookFile) -> Mapping[str, Value]:
    try:
        return variables_of_file(file)
    except FileError as error:
        raise _with_column(error) from None


def _with_column(error: FileError) -> FileError:
    """Add the column to the message; the YAML reader names only the line."""
    error.message = f"{error.path}:{error.line}:{error.column}: {error.what}"
    return error


@dataclass
class _Reader:
    tasks: Tasks = field(default_factory=Tasks)

    def plays(self, file: PlaybookFile) -> list[Play]:
        root = file.tree.root
        if root is None or is_null(root):
            return []
        if root.id != "sequence":
            fix = "begin with `- hosts: all`" if root.id == "mapping" else ""
            raise file.error(root, f"a playbook is a list of plays, not {kind(root)}", fix=fix)
        result: list[Play] = []
        for node in file.tree.items(root):
            try:
                result += self._play(file, node)
            except FileError as error:
                self.tasks.errors.append(error)
        return result

    def _play(self, file: PlaybookFile, node: Node) -> list[Play]:
        if node.id != "mapping":
            raise file.error(node, f"a play is a mapping of `key: value` lines, not {kind(node)}")
        entries = {entry.key: entry for entry in file.tree.entries(node, "a play")}
        for key, entry in entries.items():
            if key.removeprefix("ansible.builtin.") == "import_playbook":
                return self._imported(file, entry, entries)
            if key not in PLAY:
                raise file.error(entry.key_node, f"a play has no {quoted(key)}", fix=_play_advice(key))
        if "hosts" not in entries:
            raise file.error(node, "this play doesn't say for which hosts it is", fix="hosts: all")
        if "strategy" in entries and str(entries["strategy"].value.value) not in ("linear", "ansible.builtin.linear"):
            raise file.error(entries["strategy"].value, "there is one strategy here: linear", fix="take it out")
        hosts, position = _hosts(file, entries["hosts"])
        inherited = read_inherited(
            file, {key: entry for key, entry in entries.items() if key != "vars"}, InheritedKeywords()
        )
        steps: list[Step] = []
        for key in ("pre_tasks", "tasks", "post_tasks"):
            if key in entries:
                steps += self.tasks.steps(file, entries[key].value, inherited, quoted(key))
        handlers = self._handlers(file, entries, inherited)
        play = Play(
            name=str(entries["name"].value.value) if "name" in entries else hosts,
            position=file.position(node),
            hosts=hosts,
            hosts_position=position,
            steps=tuple(steps),
            handlers=handlers,
            vars=variables(file, entries["vars"]) if "vars" in entries else {},
            file_vars=tuple(self._vars_files(file, entries.get("vars_files"))),
            gather_facts=boolean(file, entries["gather_facts"]) if "gather_facts" in entries else None,
            any_errors_fatal="any_errors_fatal" in entries and boolean(file, entries["any_errors_fatal"]),
            serial=_serial(file, entries["serial"]) if "serial" in entries else (),
        )
        if not self.tasks.errors:
            _check_notified(play)
        return [play]

    def _imported(self, file: PlaybookFile, entry: Entry, entries: Mapping[str, Entry]) -> list[Play]:
        for key, other in entries.items():
            if other is not entry and key not in ("name", "vars"):
                raise file.error(other.key_node, f"{entry.key} has no {quoted(key)}", fix="put it into the plays there")
        with self.tasks.open_named_file(file, entry.value, entry.key) as imported:
            plays = self.plays(imported)
        if "vars" not in entries:
            return plays
        given = variables(file, entries["vars"])
        return [replace(play, vars={**play.vars, **given}) for play in plays]

    def _handlers(
        self, file: PlaybookFile, entries: Mapping[str, Entry], inherited: InheritedKeywords
    ) -> tuple[Task, ...]:
        if "handlers" not in entries:
            return ()
        steps = self.tasks.steps(file, entries["handlers"].value, inherited, "'handlers'")
        for step in steps:
            if isinstance(step, Block):
                raise step.position.error("a handler is a task, not a block")
            if isinstance(step, Flush):
                raise file.error(entries["handlers"].value, "a handler can't call the handlers", fix="notify")
        return tuple(tasks_of(steps))

    def _vars_files(self, file: PlaybookFile, entry: Entry | None) -> list[Mapping[str, Value]]:
        if entry is None or is_null(entry.value):
            return []
        nodes = file.tree.items(entry.value) if entry.value.id == "sequence" else [entry.value]
        return [variables_of_file(self.tasks.read_named_file(file, node, entry.key)) for node in nodes]


def _hosts(file: PlaybookFile, entry: Entry) -> tuple[str, Any]:
    nodes = file.tree.items(entry.value) if entry.value.id == "sequence" else [entry.value]
    for node in nodes:
        if node.id != "scalar" or is_null(node) or isinstance(file.text_value(node), Templated):
            raise file.error(node, f"'hosts' takes names of hosts or groups, not {kind(node)}", fix="hosts: all")
    return ",".join(str(node.value) for node in nodes), file.position(entry.value)


def _serial(file: PlaybookFile, entry: Entry) -> tuple[int | str, ...]:
    value = file.value(entry.value)
    sizes = tuple(value if isinstance(value, list) else [value])
    for size in sizes:
        is_count = type(size) is int and size >= 0
        if not is_count and not re.fullmatch(r"[1-9][0-9]?%|100%", str(size)):
            raise file.error(entry.value, f"'serial' is a number of hosts, or a percentage, not {kind(entry.value)}")
    return sizes


def _play_advice(key: str) -> str:
    hint = advice(key, PLAY)
    if key in ("block", "exec", "shell", "command", "copy", "install", "doctor", "debug"):
        return "tasks stand under `tasks:`"
    return hint


def _check_notified(play: Play) -> None:
    known = {name for handler in play.handlers for name in (handler.called, *handler.listen)}
    for task in (*play.tasks, *play.handlers):
        for name, position in task.notify:
            if name not in known:
                raise position.error(
                    f"no handler is called {quoted(name)}",
                    fix=did_you_mean(name, known, "it stands under `handlers:` of this play"),
                )

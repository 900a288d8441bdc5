"""Reads a playbook file into the model; every error carries its position. No host is contacted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ipexctl.hosts.names import did_you_mean, quoted
from ipexctl.hosts.yaml_tree import Entry, Node, is_null, kind
from ipexctl.playbook.keywords import PLAY, advice, boolean, read_inherited, read_keywords, report_unknown, variables
from ipexctl.playbook.model import Block, Flush, InheritedKeywords, Play, Playbook, Step, Task, tasks_of
from ipexctl.playbook.playbook_file import PlaybookFile, read_file
from ipexctl.playbook.positions import Position, Templated, Value
from ipexctl.playbook.read_tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ipexctl.errors import FileError
    from ipexctl.playbook.keywords import Reader


def read_playbook(path: Path, shown: str) -> tuple[Playbook, list[FileError]]:
    """All plays of a file and of the files it imports, and all errors in them; without what can't be read."""
    tasks = Tasks([path.resolve()])
    plays = _Reader(tasks).plays(read_file(path, shown, errors=tasks.errors))
    return Playbook(path, shown, tuple(plays)), tasks.errors


def read_variables(path: Path, shown: str | None = None) -> Mapping[str, Value]:
    """Read a file of variables: `-e @FILE`."""
    file = read_file(path, shown)
    return variables(file, file.root, "a file of variables")


@dataclass
class _Reader:
    tasks: Tasks = field(default_factory=Tasks)

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

    def _play(self, file: PlaybookFile, node: Node) -> list[Play]:
        if node.id != "mapping":
            raise file.error(node, f"a play is a mapping of `key: value` lines, not {kind(node)}")
        entries = {entry.key: entry for entry in file.entries(node, "a play")}
        for key, entry in entries.items():
            if key.removeprefix("ansible.builtin.") == "import_playbook":
                return self._imported(file, entry, entries)
        report_unknown(file, entries, PLAY, "a play", _play_advice)
        if "hosts" not in entries:
            file.report(node, "this play doesn't say for which hosts it is", fix="hosts: all")
        if "strategy" in entries and str(entries["strategy"].value.value) not in ("linear", "ansible.builtin.linear"):
            file.report(entries["strategy"].value, "there is one strategy here: linear", fix="take it out")
        values = read_keywords(file, entries, _OF_PLAYS)
        inherited = read_inherited(
            file, {key: entry for key, entry in entries.items() if key != "vars"}, InheritedKeywords()
        )
        steps: list[Step] = []
        for key in ("pre_tasks", "tasks", "post_tasks"):
            if key in entries:
                with file.reporting():
                    steps += self.tasks.steps(file, entries[key].value, inherited, quoted(key))
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
        report_unknown(file, entries, {entry.key, "name", "vars"}, entry.key, lambda _: "put it into the plays there")
        with self.tasks.open_named_file(file, entry.value, entry.key) as imported:
            plays = self.plays(imported)
        given = variables(file, entries["vars"].value, "'vars'") if "vars" in entries else {}
        return [replace(play, vars={**play.vars, **given}) for play in plays]

    def _handlers(self, file: PlaybookFile, entry: Entry | None, inherited: InheritedKeywords) -> tuple[Task, ...]:
        if entry is None:
            return ()
        steps = self.tasks.steps(file, entry.value, inherited, "'handlers'")
        for step in steps:
            if isinstance(step, Block):
                raise step.position.error("a handler is a task, not a block")
            if isinstance(step, Flush):
                raise file.error(entry.value, "a handler can't call the handlers", fix="notify")
        return tuple(tasks_of(steps))

    def _vars_files(self, file: PlaybookFile, entry: Entry | None) -> tuple[Mapping[str, Value], ...]:
        if entry is None or is_null(entry.value):
            return ()
        found = []
        for node in file.items(entry.value) if entry.value.id == "sequence" else [entry.value]:
            with file.reporting():
                named = self.tasks.read_named_file(file, node, entry.key)
                found.append(variables(named, named.root, "a file of variables"))
        return tuple(found)


def _hosts(file: PlaybookFile, entry: Entry) -> tuple[str, Position]:
    nodes = file.items(entry.value) if entry.value.id == "sequence" else [entry.value]
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


_OF_PLAYS: Final[Mapping[str, Reader]] = {
    "hosts": _hosts,
    "vars": lambda file, entry: variables(file, entry.value, "'vars'"),
    "gather_facts": boolean,
    "any_errors_fatal": boolean,
    "serial": _serial,
}


def _play_advice(key: str) -> str:
    if key in ("block", "exec", "shell", "command", "copy", "install", "doctor", "debug"):
        return "tasks stand under `tasks:`"
    return advice(key, PLAY)


def _check_notified(file: PlaybookFile, play: Play) -> None:
    known = {name for handler in play.handlers for name in (handler.called, *handler.listen)}
    for task in (*play.tasks, *play.handlers):
        for name, position in task.notify:
            if name not in known:
                fix = did_you_mean(name, known, "it stands under `handlers:` of this play")
                file.errors.append(position.error(f"no handler is called {quoted(name)}", fix=fix))

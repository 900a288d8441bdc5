"""All that is done before a host is touched: reading, checking every template and file, choosing hosts and tasks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted
from ipexctl.playbook.engine import task_values
from ipexctl.playbook.facts_hints import ANSIBLE_FACTS, HINTS
from ipexctl.playbook.files import MOST, find_playbook, size_of
from ipexctl.playbook.options import converted, local_path, source_path
from ipexctl.playbook.pattern import hosts_of
from ipexctl.playbook.play_context import HERE, LOCAL
from ipexctl.playbook.positions import Place, Templated, did_you_mean, templates_in
from ipexctl.playbook.read import read_playbook
from ipexctl.playbook.task_selection import chosen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ipexctl.hosts.host import Host
    from ipexctl.playbook.model import Playbook, Task
    from ipexctl.playbook.task_selection import TaskSelection
    from ipexctl.playbook.templater import Templater

_HERE: Final = re.compile(r"\{\{ *here *\}\}")


@dataclass(frozen=True, slots=True)
class Prepared:
    playbook: Playbook
    hosts: Mapping[int, tuple[Host, ...]]
    """Of each play, by its number, the limit obeyed."""
    tasks: frozenset[int]
    chosen: int
    """How many tasks that is, but for handlers."""
    files: Mapping[int, Templated]
    """The text of the file each template task fills, by id() of the task."""


def read(word: str, cwd: Path, templater: Templater) -> tuple[Playbook, dict[int, Templated]]:
    """The playbook, with every template's syntax looked at."""
    path, shown = find_playbook(word, cwd)
    playbook = read_playbook(path, shown)
    if not playbook.plays:
        raise UserError(f"{shown} has no plays", fix="begin with `- hosts: all`")
    files = dict(_template_files(playbook))
    found = [template for value in _values(playbook) for template in templates_in(value)]
    templater.check([*{id(template): template for template in found}.values(), *files.values()])
    return playbook, files


def check_facts(playbook: Playbook, files: Mapping[int, Templated], templater: Templater, given: Iterable[str]) -> None:
    """Refuse Ansible's facts that aren't here, unless somebody has set a variable of that name."""
    named = set(given)
    for play in playbook.plays:
        named |= {name for values in (play.vars, *play.file_vars) for name in values}
        for task in (*play.tasks, *play.handlers):
            named |= {name for values in task.inherited.vars for name in values} | {task.register or ""}
            named |= set(task.args) if task.spec.any_option else set()
            named |= {task.loop.var, task.loop.index_var or ""} if task.loop else set()
    hints = {name: hint for name, hint in HINTS.items() if name not in named and name[8:] not in ANSIBLE_FACTS}
    found = [template for value in _values(playbook) for template in templates_in(value)]
    templater.check_names([*{id(template): template for template in found}.values(), *files.values()], hints)


def prepare(
    playbook: Playbook,
    files: Mapping[int, Templated],
    choice: TaskSelection,
    every: Sequence[Host],
    limited: Sequence[Host],
    *,
    local: bool = False,
) -> Prepared:
    """Which hosts and tasks it comes to. `limited` are those that --limit leaves of all; none: nobody has named any."""
    names = {host.name for host in limited}
    hosts: dict[int, tuple[Host, ...]] = {}
    for number, play in enumerate(playbook.plays):
        if not every:
            hosts[number] = ()
            continue
        of_play = hosts_of(play.hosts, play.hosts_place, every, limited[0].name)
        hosts[number] = tuple(host for host in of_play if host.name in names)
        _check_delegates((*play.tasks, *play.handlers), every, HERE if local else ())
    tasks = chosen(playbook, choice)
    handlers = frozenset(id(handler) for play in playbook.plays for handler in play.handlers)
    return Prepared(playbook, hosts, tasks | handlers, len(tasks), files)


def check_projects(ready: Prepared, cwd: Path) -> None:
    """Refuse a home directory as the project of a sync or run that is going to be done.

    Where the directory depends on a variable, the module itself refuses it; `{{ here }}` is known already.
    """
    for play in ready.playbook.plays:
        for task in (*play.tasks, *play.handlers):
            if task.spec.name in ("sync", "run") and id(task) in ready.tasks:
                _check_project(task, cwd)


def _check_project(task: Task, cwd: Path) -> None:
    from ipexctl.jobs.submit.project import project_fix
    from ipexctl.playbook.modules.run import script_words
    from ipexctl.sync.root import root_for, root_problem

    def known(name: str) -> Any:
        """An option's value, its default, or a template whose value is not known yet."""
        value = task.args[name].value if name in task.args else None
        if value is None:
            return task.spec.options[name].default
        if isinstance(value, Templated):
            return str(cwd) if _HERE.fullmatch(value.text) else value
        return converted(task.spec.options[name], value)

    if task.spec.name == "sync":
        if not isinstance(src := known("src"), Templated) and (problem := root_problem(local_path(task.base, src))):
            raise task.place.error(problem, fix="name the project's directory: src: DIR")
        return
    script, directory, sync = known("script"), known("cwd"), known("sync")
    if sync is not True or isinstance(directory, Templated) or (directory is None and isinstance(script, Templated)):
        return
    at = None
    if isinstance(script, str):
        at = local_path(task.base, script_words(task.base, script)[0])
    root = root_for(at, None if directory is None else local_path(task.base, directory), task.base)
    if problem := root_problem(root):
        raise task.place.error(problem, fix=project_fix(at, "cwd: ", "sync: no"))


def _values(playbook: Playbook) -> Iterator[Any]:
    for play in playbook.plays:
        yield dict(play.vars)
        yield from play.file_vars
        for task in (*play.tasks, *play.handlers):
            yield from task_values(task)


def _template_files(playbook: Playbook) -> Iterator[tuple[int, Templated]]:
    """Also looks whether what copy and template take from here is there."""
    for play in playbook.plays:
        for task in (*play.tasks, *play.handlers):
            arg = task.args.get("src")
            if task.spec.name not in ("template", "copy") or arg is None or isinstance(arg.value, Templated):
                if task.spec.name == "template" and arg is not None:
                    raise arg.place.error("template: 'src' can't be a template itself", fix="name the file")
                continue
            path = source_path(task.spec.name, task.base, str(arg.value))
            if not path.exists():
                raise arg.place.error(
                    f"{task.spec.name}: there is no {quoted(str(arg.value))} on this machine",
                    fix=f"its path is from {task.base} on, or from {task.spec.name.replace('copy', 'file')}s/ there",
                )
            if task.spec.name == "template":
                yield id(task), _file_text(path, arg.place, str(arg.value))


def _file_text(path: Path, place: Place, shown: str) -> Templated:
    from ipexctl.hosts.source import Source

    try:
        if size_of(path) > MOST:
            raise place.error(f"template: {quoted(shown)} has more than {MOST:,} bytes", fix="copy brings it as it is")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = (error.strerror or str(error)) if isinstance(error, OSError) else "it is no text"
        raise place.error(f"template: {quoted(shown)} can't be read: {said}") from None
    source = Source(str(path), path.parent, text.splitlines())
    return Templated(text, Place(source, 1, 1), kind="file")


def _check_delegates(tasks: Sequence[Task], hosts: Sequence[Host], here: Sequence[str]) -> None:
    names = {"node0", *here} | {name for host in hosts for name in (host.name, host.address)}
    for task in tasks:
        to = task.inherited.delegate_to
        if to is None or task.spec.where == "here":  # on this machine anyway
            continue
        if task.spec.where != "host":
            raise task.place.error(
                f"{task.spec.name} can't be delegated", fix="it is done once, for all hosts of the play, as it is"
            )
        if isinstance(to, str) and to not in names:
            raise task.place.error(
                f"delegate_to: {quoted(to)} is none of the hosts of this call",
                fix=LOCAL if to in HERE else did_you_mean(to, names, "node0 is the first of them"),
            )

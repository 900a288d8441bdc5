"""Preparation before any host is touched: read the playbook, check templates and files, select hosts and tasks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted
from ipexctl.playbook.ansible_names import ANSIBLE_FACTS, HINTS
from ipexctl.playbook.engine import task_values
from ipexctl.playbook.options import converted, local_path, source_path
from ipexctl.playbook.play_context import LOCAL_FIX, LOCALHOST
from ipexctl.playbook.playbook_file import MAX_BYTES, find_playbook, size_of
from ipexctl.playbook.positions import Position, Templated, did_you_mean, templates_in
from ipexctl.playbook.read import read_playbook
from ipexctl.playbook.selection import TaskSelection, hosts_of, select_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ipexctl.hosts.host import Host
    from ipexctl.playbook.model import Playbook, Task
    from ipexctl.playbook.templater import Templater

_HERE_TEMPLATE: Final = re.compile(r"\{\{ *here *\}\}")


@dataclass(frozen=True, slots=True)
class Prepared:
    playbook: Playbook
    hosts: Mapping[int, tuple[Host, ...]]
    """The hosts of each play by its number, after --limit."""
    tasks: frozenset[int]
    chosen: int
    """Number of selected tasks, without handlers."""
    files: Mapping[int, Templated]
    """The text of each template task's file, by id() of the task."""


def read(name: str, cwd: Path, templater: Templater) -> tuple[Playbook, dict[int, Templated]]:
    """Read the playbook and check the syntax of every template."""
    path, shown = find_playbook(name, cwd)
    playbook = read_playbook(path, shown)
    if not playbook.plays:
        raise UserError(f"{shown} has no plays", fix="begin with `- hosts: all`")
    files = dict(_template_files(playbook))
    templates = [template for value in _values(playbook) for template in templates_in(value)]
    templater.check([*{id(template): template for template in templates}.values(), *files.values()])
    return playbook, files


def check_facts(playbook: Playbook, files: Mapping[int, Templated], templater: Templater, given: Iterable[str]) -> None:
    """Refuse Ansible facts that are not supported, unless a variable of that name is set."""
    defined = set(given)
    for play in playbook.plays:
        defined |= {name for values in (play.vars, *play.file_vars) for name in values}
        for task in (*play.tasks, *play.handlers):
            defined |= {name for values in task.inherited.vars for name in values} | {task.register or ""}
            defined |= set(task.args) if task.spec.any_option else set()
            defined |= {task.loop.var, task.loop.index_var or ""} if task.loop else set()
    hints = {name: hint for name, hint in HINTS.items() if name not in defined and name[8:] not in ANSIBLE_FACTS}
    templates = [template for value in _values(playbook) for template in templates_in(value)]
    templater.check_names([*{id(template): template for template in templates}.values(), *files.values()], hints)


def prepare(
    playbook: Playbook,
    files: Mapping[int, Templated],
    choice: TaskSelection,
    all_hosts: Sequence[Host],
    limited: Sequence[Host],
    *,
    local: bool = False,
) -> Prepared:
    """Select hosts and tasks. `limited` are the hosts after --limit; `all_hosts` is empty if no hosts are given."""
    names = {host.name for host in limited}
    hosts: dict[int, tuple[Host, ...]] = {}
    for number, play in enumerate(playbook.plays):
        if not all_hosts:
            hosts[number] = ()
            continue
        play_hosts = hosts_of(play.hosts, play.hosts_position, all_hosts, limited[0].name)
        hosts[number] = tuple(host for host in play_hosts if host.name in names)
        _check_delegates((*play.tasks, *play.handlers), all_hosts, LOCALHOST if local else ())
    tasks = select_tasks(playbook, choice)
    handlers = frozenset(id(handler) for play in playbook.plays for handler in play.handlers)
    return Prepared(playbook, hosts, tasks | handlers, len(tasks), files)


def check_projects(ready: Prepared, cwd: Path) -> None:
    """Refuse a home directory as the project of a selected sync or run task.

    A directory that depends on a variable is checked by the module itself; `{{ here }}` is known already.
    """
    for play in ready.playbook.plays:
        for task in (*play.tasks, *play.handlers):
            if task.spec.name in ("sync", "run") and id(task) in ready.tasks:
                _check_project(task, cwd)


def _check_project(task: Task, cwd: Path) -> None:
    from ipexctl.jobs.submit.project import project_fix
    from ipexctl.playbook.modules.run import script_argv
    from ipexctl.sync.root import find_root, root_problem

    def known(name: str) -> Any:
        """An option's value, its default, or a template whose value is not known yet."""
        value = task.args[name].value if name in task.args else None
        if value is None:
            return task.spec.options[name].default
        if isinstance(value, Templated):
            return str(cwd) if _HERE_TEMPLATE.fullmatch(value.text) else value
        return converted(task.spec.options[name], value)

    if task.spec.name == "sync":
        if isinstance(src := known("src"), Templated):
            return
        if problem := root_problem(find_root(None, None if src is None else local_path(task.base, src), task.base)):
            raise task.position.error(problem, fix="name the project's directory: src: DIR")
        return
    script, directory, sync = known("script"), known("cwd"), known("sync")
    if sync is not True or isinstance(directory, Templated) or (directory is None and isinstance(script, Templated)):
        return
    script_path = None
    if isinstance(script, str):
        script_path = local_path(task.base, script_argv(task.base, script)[0])
    root = find_root(script_path, None if directory is None else local_path(task.base, directory), task.base)
    if problem := root_problem(root):
        raise task.position.error(problem, fix=project_fix(script_path, "cwd: ", "sync: no"))


def _values(playbook: Playbook) -> Iterator[Any]:
    for play in playbook.plays:
        yield dict(play.vars)
        yield from play.file_vars
        for task in (*play.tasks, *play.handlers):
            yield from task_values(task)


def _template_files(playbook: Playbook) -> Iterator[tuple[int, Templated]]:
    """The text of each template task's file; raises where a source of copy or template does not exist."""
    for play in playbook.plays:
        for task in (*play.tasks, *play.handlers):
            arg = task.args.get("src")
            if task.spec.name not in ("template", "copy") or arg is None or isinstance(arg.value, Templated):
                if task.spec.name == "template" and arg is not None:
                    raise arg.position.error("template: 'src' can't be a template itself", fix="name the file")
                continue
            path = source_path(task.spec.name, task.base, str(arg.value))
            if not path.exists():
                raise arg.position.error(
                    f"{task.spec.name}: there is no {quoted(str(arg.value))} on this machine",
                    fix=f"its path is from {task.base} on, or from {task.spec.name.replace('copy', 'file')}s/ there",
                )
            if task.spec.name == "template":
                yield id(task), _file_text(path, arg.position, str(arg.value))


def _file_text(path: Path, position: Position, shown: str) -> Templated:
    from ipexctl.hosts.source import SourceFile

    try:
        if size_of(path) > MAX_BYTES:
            raise position.error(
                f"template: {quoted(shown)} has more than {MAX_BYTES:,} bytes", fix="copy brings it as it is"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is no text"
        raise position.error(f"template: {quoted(shown)} can't be read: {reason}") from None
    source = SourceFile(str(path), path.parent, text.splitlines())
    return Templated(text, Position(source, 1, 1), kind="file")


def _check_delegates(tasks: Sequence[Task], hosts: Sequence[Host], local_names: Sequence[str]) -> None:
    names = {"node0", *local_names} | {name for host in hosts for name in (host.name, host.address)}
    for task in tasks:
        target = task.inherited.delegate_to
        if target is None or task.spec.where == "control":  # it runs on the control machine anyway
            continue
        if task.spec.where != "host":
            raise task.position.error(
                f"{task.spec.name} can't be delegated", fix="it is done once, for all hosts of the play, as it is"
            )
        if isinstance(target, str) and target not in names:
            raise task.position.error(
                f"delegate_to: {quoted(target)} is none of the hosts of this call",
                fix=LOCAL_FIX if target in LOCALHOST else did_you_mean(target, names, "node0 is the first of them"),
            )

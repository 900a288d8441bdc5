"""Prepare a playbook before any host is touched: read it, check its templates and files, select hosts and tasks.

All errors are reported at once. What depends on variables is checked when its task runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, Final

from ipexctl.addons.play.keywords import ANSIBLE_FACTS, HINTS
from ipexctl.addons.play.modules.local_files import local_path, script_argv
from ipexctl.addons.play.options import convert_value
from ipexctl.addons.play.playbook import Playbook, Position, Task, TemplateText, find_playbook
from ipexctl.addons.play.read import read_playbook
from ipexctl.addons.play.templates import Templates
from ipexctl.errors import FileError, UserError, raise_all
from ipexctl.hosts.host import Host, did_you_mean, quote
from ipexctl.hosts.select import limit_hosts, limit_parts
from ipexctl.projects.root import find_root, root_problem

LOCALHOST: Final = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class PreparedPlay:
    """A checked playbook, and what was selected of it."""

    playbook: Playbook
    all_hosts: Sequence[Host]
    """Includes hosts that --limit leaves out of the plays: templates may still use them."""
    limited: Sequence[Host]
    """Hosts that --limit leaves in; node0 is the first."""
    hosts: Mapping[int, tuple[Host, ...]]
    """Number of a play → its hosts."""
    tasks: frozenset[int]
    """`id()` of each chosen task, and of all handlers."""
    chosen: int
    """Number of chosen tasks, without handlers."""

    @property
    def used(self) -> list[Host]:
        """Return the hosts of any play."""
        names = {host.name for host in chain.from_iterable(self.hosts.values())}
        return [host for host in self.limited if host.name in names]


def load_playbook(name: str, cwd: Path, templates: Templates) -> Playbook:
    """Read a playbook and check its templates. Raises a UserError with all errors."""
    path, shown = find_playbook(name, cwd)
    playbook, errors = read_playbook(path, shown)
    raise_all(errors + templates.check(playbook.templates), shown)
    if not playbook.plays:
        raise UserError(f"{shown} has no plays", fix="begin with `- hosts: all`")
    return playbook


def check_facts(playbook: Playbook, templates: Templates, given: Iterable[str]) -> list[FileError]:
    """Return an error for each use of a fact of Ansible that ipexctl lacks, unless a variable of that name is set.

    `given`: names of variables that are set outside the playbook.
    """
    defined = set(given)
    for play in playbook.plays:
        defined.update(play.vars, *play.file_vars)
    for task in playbook.all_tasks:
        defined |= {task.register or "", *(task.args if task.spec.any_option else ())}.union(*task.inherited.vars)
        defined |= {task.loop.loop_var, task.loop.index_var or ""} if task.loop else set()
    hints = {name: hint for name, hint in HINTS.items() if name not in defined and name[8:] not in ANSIBLE_FACTS}
    return list(templates.check_names(playbook.templates, hints))


def prepare(
    playbook: Playbook,
    choice: TaskSelection,
    all_hosts: Sequence[Host],
    limited: Sequence[Host],
    *,
    local: bool = False,
) -> tuple[PreparedPlay, list[FileError]]:
    """Select hosts and tasks; return them, and an error for each play or task that names an unknown host.

    `limited`: hosts after --limit. `local`: True if tasks may be delegated to this machine. `all_hosts` may be empty,
    to list tasks.
    """
    errors: list[FileError] = []
    names = {host.name for host in limited}
    hosts: dict[int, tuple[Host, ...]] = {}
    for number, play in enumerate(playbook.plays):
        hosts[number] = ()
        if not all_hosts:
            continue
        try:
            play_hosts = hosts_of(play.hosts, play.hosts_position, all_hosts, limited[0].name)
            hosts[number] = tuple(host for host in play_hosts if host.name in names)
        except FileError as error:
            errors.append(error)
        errors += _check_delegates(play.all_tasks, all_hosts, LOCALHOST if local else ())
    tasks = select_tasks(playbook, choice)
    handlers = frozenset(id(handler) for play in playbook.plays for handler in play.handlers)
    return PreparedPlay(playbook, all_hosts, limited, hosts, tasks | handlers, len(tasks)), errors


def check_projects(ready: PreparedPlay, cwd: Path) -> list[FileError]:
    """Return errors of chosen sync and run tasks whose project can be none, such as a home directory.

    A path that depends on variables is checked when its task runs.
    """
    tasks = [task for task in ready.playbook.all_tasks if task.spec.name in ("sync", "run") and id(task) in ready.tasks]
    return [error for task in tasks if (error := _project_error(task, cwd)) is not None]


def _project_error(task: Task, cwd: Path) -> FileError | None:
    """Return the error of one task; None if there is none, or if its project is not known yet."""
    from ipexctl.run.start.start_project import project_fix

    def known(name: str) -> Any:
        value = task.args[name].value if name in task.args else None
        if isinstance(value, TemplateText):
            return str(cwd) if re.fullmatch(r"\{\{ *here *\}\}", value.text) else value
        return task.spec.options[name].default if value is None else convert_value(task.spec.options[name], value)

    name = "src" if task.spec.name == "sync" else "cwd"
    directory, script = known(name), known("script") if task.spec.name == "run" else None
    is_synced = task.spec.name == "sync" or known("sync") is True
    is_unknown = isinstance(directory, TemplateText) or (directory is None and isinstance(script, TemplateText))
    if not is_synced or is_unknown:
        return None
    script_path = local_path(task.base, script_argv(task.base, script)[0]) if isinstance(script, str) else None
    chosen = None if directory is None else local_path(task.base, directory)
    if not (problem := root_problem(find_root(script_path, chosen, task.base))):
        return None
    fix = "name the project's directory: src: DIR"
    return task.position.error(problem, fix=fix if name == "src" else project_fix(script_path, "cwd: ", "sync: no"))


def unknown_delegate(name: str, known: Iterable[str]) -> tuple[str, str]:
    """Return what is wrong with a `delegate_to` that is no host, and the fix."""
    fix = "--local allows this playbook to run tasks on this machine"
    fix = fix if name in LOCALHOST else did_you_mean(name, known, "node0 is the first host")
    return f"delegate_to: {quote(name)} is not one of the hosts", fix


def _check_delegates(tasks: Sequence[Task], hosts: Sequence[Host], local_names: Sequence[str]) -> Iterator[FileError]:
    """Yield an error for each task that is delegated to no host, or whose module can't be delegated."""
    names = {"node0", *local_names, *_names_of(hosts)}
    for task in tasks:
        target = task.inherited.delegate_to
        if target is None or task.spec.where == "control":  # it runs on the control machine anyway
            continue
        if task.spec.where != "host":
            fix = "remove delegate_to: it runs once for all hosts"
            yield task.position.error(f"{task.spec.name} can't be delegated", fix=fix)
        elif isinstance(target, str) and target not in names:
            what, fix = unknown_delegate(target, names)
            yield task.position.error(what, fix=fix)


def _names_of(hosts: Sequence[Host]) -> set[str]:
    return set(chain.from_iterable((host.name, host.address) for host in hosts))


def hosts_of(pattern: str, position: Position, hosts: Sequence[Host], node0: str = "") -> tuple[Host, ...]:
    """Return the hosts that a play's `hosts` matches, in the order of `hosts`.

    `node0`: name of the call's first host; empty for the first of `hosts`. Raises a FileError at `position` if a part
    of the pattern matches no host.
    """
    aliases = {"*": "all", "node0": node0 or "".join(host.name for host in hosts[:1])}
    terms = [aliases.get(part, part) for part in limit_parts(pattern, _names_of(hosts))]
    intersected = [part.removeprefix("&") for part in terms if part.startswith("&")]
    included = [part for part in terms if not part.startswith("&")]
    if not terms:
        raise position.error("'hosts' names no host", fix="hosts: all")
    try:
        selected = limit_hosts(hosts, ",".join(included or ["all"]))
        for part in intersected:
            matching = {host.name for host in limit_hosts(hosts, part)}
            selected = tuple(host for host in selected if host.name in matching)
    except UserError as error:
        fix = "hosts: node0, and delegate_to: localhost with --local" if pattern == "localhost" else error.fix
        raise position.error(error.message.replace("--limit", "hosts", 1), fix=fix) from None
    return selected


_SPECIAL_TAGS = frozenset({"all", "tagged", "untagged", "always", "never"})
"""Tags that a call may name though no task has them."""


@dataclass(frozen=True, slots=True)
class TaskSelection:
    """--tags, --skip-tags and --start-at of a call. Empty and None: not given."""

    tags: frozenset[str] = frozenset()
    skip_tags: frozenset[str] = frozenset()
    start_at: str | None = None

    def includes(self, task: Task) -> bool:
        """True if the tags choose the task, by Ansible's rules for `always` and `never`."""
        tags = task.tags
        if _has_one(tags, self.skip_tags):
            return False
        if tags & self.tags or "never" in tags:
            return bool(tags & self.tags)
        return not self.tags or "all" in self.tags or "always" in tags or _has_one(tags, self.tags)


def _has_one(tags: frozenset[str], chosen: frozenset[str]) -> bool:
    """True if a task with these tags is meant by the chosen ones, of which `tagged` and `untagged` are special."""
    return bool(tags & chosen) or ("tagged" if tags else "untagged") in chosen


def select_tasks(playbook: Playbook, choice: TaskSelection) -> frozenset[int]:
    """Return the id() of each chosen task, because a file that is included twice has two sets of equal tasks."""
    tasks = list(chain.from_iterable(play.tasks for play in playbook.plays))
    first = 0 if choice.start_at is None else _index_of(choice.start_at, tasks)
    return frozenset(id(task) for task in tasks[first:] if choice.includes(task))


def unknown_tags(playbook: Playbook, choice: TaskSelection) -> list[tuple[str, str]]:
    """Return the tags of the call that no task has, each with a fix."""
    tasks = chain.from_iterable(play.tasks for play in playbook.plays)
    known = set(chain.from_iterable(task.tags for task in tasks))
    unknown = sorted((choice.tags | choice.skip_tags) - known - _SPECIAL_TAGS)
    return [(tag, did_you_mean(tag, known, f"one of: {', '.join(sorted(known))}" if known else "")) for tag in unknown]


def _index_of(name: str, tasks: list[Task]) -> int:
    """Return the index of the task with this name, or of the first task that it matches as a pattern.

    Raises a UserError if there is none.
    """
    names = [task.called for task in tasks]
    matching = [name] if name in names else [task_name for task_name in names if fnmatchcase(task_name, name)]
    if not matching:
        fix = did_you_mean(name, names, "--list-tasks shows their names")
        raise UserError(f"--start-at: no task is called {quote(name)}", fix=fix)
    return names.index(matching[0])

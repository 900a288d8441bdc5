"""`ipexctl play`: a playbook on the hosts."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ipexctl.cli import complete
from ipexctl.cli.options import Home, Output, Targets, shared
from ipexctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.playbook.model import Task

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(no_args_is_help=True)
@shared(Targets, Home, Output)
def play_command(
    targets: Targets,
    home: Home,
    output: Output,
    playbook: Annotated[
        str,
        typer.Argument(
            metavar="PLAYBOOK",
            autocompletion=complete.playbooks,
            help="Playbook file, or a playbook of ipexctl by name: bootstrap.",
        ),
    ],
    check: Annotated[bool, typer.Option("--check", "-C", help="Print what would change; change nothing.")] = False,
    diff: Annotated[bool, typer.Option("--diff", "-D", help="Print the changes to files as diffs.")] = False,
    extra: Annotated[
        list[str] | None,
        typer.Option("--extra-vars", "-e", metavar="K=V|@FILE", help="Variable that overrides all others; repeatable."),
    ] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tags", "-t", metavar="TAGS", help="Run only tasks with these tags.")
    ] = None,
    skip_tags: Annotated[
        list[str] | None, typer.Option("--skip-tags", metavar="TAGS", help="Skip tasks with these tags.")
    ] = None,
    start_at: Annotated[
        str | None, typer.Option("--start-at", "--start-at-task", metavar="NAME", help="Start at this task.")
    ] = None,
    inventory: Annotated[
        str | None,
        typer.Option("--inventory", "-i", metavar="PATH", help="Same as -H, under the name it has in Ansible."),
    ] = None,
    step: Annotated[bool, typer.Option("--step", help="Ask for confirmation before each task.")] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Allow tasks on the control machine (delegate_to: localhost).")
    ] = False,
    list_tasks: Annotated[bool, typer.Option("--list-tasks", help="List the tasks; touch no host.")] = False,
    syntax_check: Annotated[bool, typer.Option("--syntax-check", help="Check the playbook; touch no host.")] = False,
) -> None:
    """Run a playbook of ipexctl tasks, files and commands on the hosts.

    Playbooks are written as for Ansible. The whole playbook is checked
    before any host is touched; a second run changes only what differs.

    \b
    Example: ipexctl play bootstrap --hosts 'node[1-4]' -e stack=torch
    """
    from ipexctl.cli.hosts import choose_hosts, reach_options
    from ipexctl.cli.interrupt import cancelling
    from ipexctl.hosts.home import home_on_nodes
    from ipexctl.hosts.internal import InterfaceChoice
    from ipexctl.playbook.positions import templates_in
    from ipexctl.playbook.prepare import check_facts, check_projects, prepare, read
    from ipexctl.playbook.task_selection import TaskSelection, unknown_tags
    from ipexctl.playbook.templater import Templater
    from ipexctl.playbook.vars_dirs import read_vars_dirs
    from ipexctl.remote.cancel import Cancel
    from ipexctl.ui import play as view

    if home.iface is not None:
        InterfaceChoice(home.iface)
    targets = _with_inventory(targets, inventory)
    where = home_on_nodes(home.home, os.environ)
    choice = TaskSelection(_words(tags), _words(skip_tags), start_at)
    if step and not sys.stdin.isatty():
        raise UserError("--step asks before each task, and stdin is no terminal", fix="take --step out")
    cwd = Path.cwd()
    with Templater() as templater:
        templater.start()
        book, files = read(playbook, cwd, templater)
        variables = _extra(extra or (), cwd, templater)
        if syntax_check or list_tasks:
            every = limited = _hosts_if_named(targets)
        else:
            limited = choose_hosts(targets)
            every = choose_hosts(replace(targets, limit=None)) if targets.limit is not None else limited
        dirs = read_vars_dirs(_beside(targets, book.path, cwd), every)
        templater.check(templates_in([dict(each) for each in dirs.values()]))
        given = (*variables, *dirs.values(), *(host.vars for host in every))
        check_facts(book, files, templater, {name for values in given for name in values})
        for tag, fix in unknown_tags(book, choice):
            view.warn(f"no task has the tag {tag!r}", fix)
        ready = prepare(book, files, choice, every, limited, local=local)
        if tags and not ready.chosen:
            raise UserError(f"--tags {','.join(tags)} leaves no task", fix="--list-tasks shows their tags")
        if syntax_check or list_tasks:
            view.show_tasks(ready, as_json=output.json, quiet=syntax_check and not list_tasks)
            raise typer.Exit(0)
        check_projects(ready, cwd)
        cancel = Cancel()
        options: dict[str, Any] = {
            "home": where,
            "iface": home.iface,
            "forks": targets.forks,
            "timeout": targets.timeout,
            "check": check,
            "diff": diff,
            "verbose": output.verbose,
            "local": local,
            "connect_timeout": targets.connect_timeout,
            "host_keys": None if targets.host_keys is None else targets.host_keys.value,
            "extra": variables,
            "vars_dirs": dirs,
        }
        from ipexctl.playbook.retry import write_retry_file
        from ipexctl.remote.connector import Connector
        from ipexctl.remote.session_pool import SessionPool

        shown = view.PlayView(
            json=output.json, quiet=output.quiet, verbose=output.verbose, no_color=output.no_color, diff=diff
        )
        with (
            cancelling(cancel) as interrupt,
            Connector(reach_options(targets)) as connector,
            SessionPool(connector, cancel, forks=targets.forks) as pool,
        ):
            pool.warm(_first_hosts(ready.hosts, limited))
            from ipexctl.playbook.engine import Engine  # while the hosts answer
            from ipexctl.playbook.play_context import Options, PlayContext

            context = PlayContext(
                pool, connector, cancel, templater, Options(**options), shown.watch, limited, cwd, all_hosts=every
            )
            ask = _asker(shown) if step else None
            report = Engine(ready.playbook, ready.hosts, ready.tasks, ready.files, context, ask).run()
        if not check:
            report = replace(report, retry_file=write_retry_file(ready.playbook.path, report))
    shown.end(report, interrupted=interrupt.code is not None)
    sys.stdout.flush()
    raise typer.Exit(interrupt.code if interrupt.code is not None else report.exit_code)


def _with_inventory(targets: Targets, inventory: str | None) -> Targets:
    """A file, or with a comma names of hosts, as Ansible has it."""
    if inventory is None:
        return targets
    if targets.hostfile is not None or targets.hosts is not None:
        raise UserError("-i, -H and --hosts each say which hosts there are", fix="one of them")
    if "," in inventory:
        return replace(targets, hosts=inventory.strip(","))
    return replace(targets, hostfile=Path(inventory))


def _beside(targets: Targets, playbook: Path, cwd: Path) -> list[Path]:
    """Where group_vars/ and host_vars/ may be: beside the inventory, then beside the playbook."""
    named = targets.hostfile or os.environ.get("IPEXCTL_HOSTFILE") or cwd / "hostfile"
    inventory = [] if targets.hosts is not None else [(cwd / named).parent]
    return [*inventory, playbook.parent]


def _words(given: Sequence[str] | None) -> frozenset[str]:
    return frozenset(word.strip() for each in given or () for word in each.split(",") if word.strip())


def _first_hosts(hosts: dict[int, Sequence[Host]] | Any, limited: Sequence[Host]) -> list[Host]:
    wanted = {host.name for of_play in hosts.values() for host in of_play}
    return [host for host in limited if host.name in wanted]


def _hosts_if_named(targets: Targets) -> tuple[Host, ...]:
    """To look at a playbook needs no hosts, but those that are named have to be right."""
    from ipexctl.cli.hosts import choose_hosts

    hosts = choose_hosts(targets)
    named = targets.hosts is not None or targets.hostfile is not None or len(hosts) > 1
    return hosts if named else ()


def _extra(words: Sequence[str], cwd: Path, templater: Any) -> list[dict[str, Any]]:
    """`-e k=v`, `-e '{"k": …}'`, `-e @FILE`; each a layer over the last."""
    import json

    from ipexctl.hosts.names import quoted
    from ipexctl.playbook.positions import templates_in
    from ipexctl.playbook.read import read_variables

    found: list[dict[str, Any]] = []
    for word in words:
        if word.startswith("@"):
            values: Any = dict(read_variables(cwd / Path(word[1:]).expanduser(), word[1:]))
            templater.check(templates_in(values))
        elif word.lstrip().startswith("{"):
            try:
                values = json.loads(word)
            except ValueError as error:
                raise UserError(f"-e: this is no JSON: {error}", fix="-e NAME=VALUE, or -e @FILE") from None
        else:
            values = _pairs(word)
            if not values:
                raise UserError(f"-e {quoted(word)} is no NAME=VALUE", fix="a file of variables: -e @FILE")
        found.append(values)
    return found


def _pairs(word: str) -> dict[str, str]:
    """`a=1 b='x y'` is two variables; in `args=--epochs 3` the rest is the first one's value."""
    import re

    parts = re.findall(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""", word)
    pairs = [re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", part, re.DOTALL) for part in parts]
    if not all(pairs):
        pairs = [re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", word, re.DOTALL)]
    found = {pair[1]: pair[2] for pair in pairs if pair is not None}
    quoted = {name for name, value in found.items() if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"}
    return {name: value[1:-1] if name in quoted else value for name, value in found.items()}


def _asker(shown: Any) -> Callable[[Task], str]:
    def ask(task: Task) -> str:
        return str(shown.ask(task.called))

    return ask

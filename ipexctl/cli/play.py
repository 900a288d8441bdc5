"""`ipexctl play`: runs a playbook on the hosts."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ipexctl.cli import complete
from ipexctl.cli.options import Home, Output, Targets, argument, command, flag, option
from ipexctl.errors import UserError, raise_all
from ipexctl.text import expanded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.playbook.templater import Templater


@command(no_args_is_help=True)
def play_command(
    *,
    playbook: str = argument(
        "PLAYBOOK", "Playbook file, or an included one by its name: bootstrap.", autocompletion=complete.playbooks
    ),
    check: bool = flag("--check -C", "Print what would change; change nothing."),
    diff: bool = flag("--diff -D", "Print the changes to files as diffs."),
    extra: list[str] | None = option("--extra-vars -e K=V|@FILE", "Variable that overrides all others; repeatable."),
    tags: list[str] | None = option("--tags -t TAGS", "Run only tasks with these tags."),
    skip_tags: list[str] | None = option("--skip-tags TAGS", "Skip tasks with these tags."),
    start_at: str | None = option("--start-at --start-at-task NAME", "Start at this task."),
    inventory: str | None = option("--inventory -i PATH", "Same as -H, under the name it has in Ansible."),
    step: bool = flag("--step", "Ask for confirmation before each task."),
    local: bool = flag("--local", "Allow tasks on the control machine (delegate_to: localhost)."),
    list_tasks: bool = flag("--list-tasks", "List the tasks; touch no host."),
    syntax_check: bool = flag("--syntax-check", "Check the playbook; touch no host."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Run a playbook of ipexctl tasks, files and commands on the hosts.

    Playbooks are written as for Ansible. The whole playbook is checked
    before any host is touched; a second run changes only what differs.

    \b
    Example: ipexctl play bootstrap --hosts 'node[1-4]' -e stack=torch
    """
    from ipexctl.cli.hosts import check_home, choose_hosts, current_directory, session_pool
    from ipexctl.playbook.playbook_file import templates_in
    from ipexctl.playbook.prepare import TaskSelection, check_facts, check_projects, prepare, read, unknown_tags
    from ipexctl.playbook.templater import Templater
    from ipexctl.playbook.variables import read_vars_dirs
    from ipexctl.ui import play as view
    from ipexctl.ui.messages import print_with_fix

    targets = _with_inventory(targets, inventory)
    home_dir = check_home(home)
    choice = TaskSelection(_split_names(tags), _split_names(skip_tags), start_at)
    if step and not sys.stdin.isatty():
        raise UserError("--step asks before each task, and stdin is no terminal", fix="take --step out")
    cwd = current_directory()
    with Templater() as templater:
        templater.start()
        playbook_model = read(playbook, cwd, templater)
        variables = _extra_variables(extra or (), cwd, templater)
        is_listing = syntax_check or list_tasks
        if is_listing:
            found = choose_hosts(targets)  # listing needs no hosts, but named ones must be valid
            all_hosts = limited = found if targets.names_hosts or len(found) > 1 else ()
        else:
            limited = choose_hosts(targets)
            all_hosts = choose_hosts(replace(targets, limit=None)) if targets.limit is not None else limited
        vars_dirs = read_vars_dirs(_vars_directories(targets, playbook_model.path, cwd), all_hosts)
        # They may be those of other playbooks, for Ansible: a lookup counts when a task uses its variable.
        errors = templater.check(templates_in(list(vars_dirs.values())), lookups=False)
        of_files = [values for files in vars_dirs.values() for values in files]
        layers = (*variables, *of_files, *(host.vars for host in all_hosts))
        errors += check_facts(playbook_model, templater, {name for values in layers for name in values})
        for tag, fix in unknown_tags(playbook_model, choice):
            print_with_fix(f"warning: no task has the tag {tag!r}", fix)
        ready, host_errors = prepare(playbook_model, choice, all_hosts, limited, local=local)
        project_errors = [] if is_listing else check_projects(ready, cwd)
        raise_all([*errors, *host_errors, *project_errors], playbook_model.shown)
        if tags and not ready.chosen:
            raise UserError(f"--tags {','.join(tags)} leaves no task", fix="--list-tasks shows their tags")
        if is_listing:
            view.show_tasks(ready, as_json=output.json, quiet=syntax_check and not list_tasks)
            raise typer.Exit(0)
        from ipexctl.playbook.report import write_retry_file

        play_view = view.PlayView(
            json=output.json, quiet=output.quiet, verbose=output.verbose, no_color=output.no_color, diff=diff
        )
        with session_pool(targets) as (pool, interrupt):
            used = {host.name for of_play in ready.hosts.values() for host in of_play}
            pool.warm([host for host in limited if host.name in used])
            from ipexctl.playbook.engine import Engine  # imported while the hosts answer
            from ipexctl.playbook.play_context import Options, PlayContext

            options = Options(
                home=home_dir,
                iface=home.iface,
                timeout=targets.timeout,
                check=check,
                diff=diff,
                verbose=output.verbose,
                local=local,
                extra=variables,
                vars_dirs=vars_dirs,
            )
            context = PlayContext(pool, templater, options, play_view.watch, limited, all_hosts, cwd)
            ask_user = (lambda task: play_view.ask(task.called)) if step else None
            report = Engine(ready, context, ask_user).run()
        if not check:
            report = replace(report, retry_file=write_retry_file(ready.playbook.path, report))
    play_view.end(report, interrupted=interrupt.code is not None)
    sys.stdout.flush()
    raise interrupt.or_exit(report.exit_code)


def _with_inventory(targets: Targets, inventory: str | None) -> Targets:
    """Apply --inventory: a file, or host names separated by commas, as in Ansible."""
    if inventory is None:
        return targets
    if targets.names_hosts:
        raise UserError("-i, -H and --hosts each say which hosts there are", fix="one of them")
    if "," in inventory:
        return replace(targets, hosts=inventory.strip(","))
    return replace(targets, hostfile=Path(inventory))


def _vars_directories(targets: Targets, playbook: Path, cwd: Path) -> list[Path]:
    """Directories to search for group_vars/ and host_vars/: that of the inventory, then that of the playbook."""
    from ipexctl.cli.hosts import select

    hostfile = targets.hostfile or os.environ.get("IPEXCTL_HOSTFILE") or select(targets).project_hostfile or "hostfile"
    inventory = [] if targets.hosts is not None else [(cwd / hostfile).parent]
    return [*inventory, playbook.parent]


def _split_names(values: Sequence[str] | None) -> frozenset[str]:
    return frozenset(word.strip() for value in values or () for word in value.split(",") if word.strip())


def _extra_variables(arguments: Sequence[str], cwd: Path, templater: Templater) -> list[dict[str, Any]]:
    """Variables of `-e k=v`, `-e '{"k": …}'` and `-e @FILE`; later ones override earlier ones."""
    import json

    from ipexctl.hosts.names import quoted
    from ipexctl.playbook.playbook_file import templates_in
    from ipexctl.playbook.read import read_variables

    result: list[dict[str, Any]] = []
    for word in arguments:
        if word.startswith("@"):
            values: Any = dict(read_variables(cwd / expanded(word[1:]), word[1:]))
            raise_all(templater.check(templates_in(values)))
        elif word.lstrip().startswith("{"):
            try:
                values = json.loads(word)
            except ValueError as error:
                raise UserError(f"-e: this is no JSON: {error}", fix="-e NAME=VALUE, or -e @FILE") from None
        else:
            values = _pairs(word)
            if not values:
                raise UserError(f"-e {quoted(word)} is no NAME=VALUE", fix="a file of variables: -e @FILE")
        result.append(values)
    return result


def _pairs(word: str) -> dict[str, str]:
    """`a=1 b='x y'` is two variables; `args=--epochs 3` is one variable with the value `--epochs 3`."""
    import re

    parts = re.findall(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""", word)
    pairs = [re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", part, re.DOTALL) for part in parts]
    if not all(pairs):
        pairs = [re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", word, re.DOTALL)]
    result = {pair[1]: pair[2] for pair in pairs if pair is not None}
    quoted = {name for name, value in result.items() if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"}
    return {name: value[1:-1] if name in quoted else value for name, value in result.items()}

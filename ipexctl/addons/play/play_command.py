"""`ipexctl play`: report all mistakes of a playbook at once, before any host is touched, then run it on the hosts."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import typer

from ipexctl.addons.play import play_view
from ipexctl.addons.play.playbook import find_shipped_playbooks, templates_in
from ipexctl.addons.play.prepare import (
    PreparedPlay,
    TaskSelection,
    check_facts,
    check_projects,
    load_playbook,
    prepare,
    unknown_tags,
)
from ipexctl.addons.play.read import read_variables
from ipexctl.addons.play.result import write_retry_file
from ipexctl.addons.play.template_limits import reading_limits
from ipexctl.addons.play.templates import Templates
from ipexctl.addons.play.variables import Options, PlayContext, read_vars_dirs
from ipexctl.commands.option_groups import Home, Output, Targets, argument, command, flag, option
from ipexctl.commands.target_hosts import check_home, choose_hosts, current_directory, select, session_pool
from ipexctl.errors import UserError, raise_all
from ipexctl.hosts.host import quote
from ipexctl.node.common.json_records import parse_json
from ipexctl.text import expand_tilde
from ipexctl.ui.message_output import print_with_fix


def _playbooks() -> list[str]:
    """Return the names that a shell completes: playbooks that ship with ipexctl, and files of this directory."""
    try:
        here = sorted(path.name for path in Path.cwd().iterdir() if path.suffix in (".yml", ".yaml"))
    except OSError:
        here = []
    return [*find_shipped_playbooks(), *here]


@command(no_args_is_help=True)
def play_command(
    *,
    playbook: str = argument(
        "PLAYBOOK", "Playbook file, or an included one by its name: bootstrap.", autocompletion=_playbooks
    ),
    check: bool = flag("--check -C", "Print what would change; change nothing."),
    diff: bool = flag("--diff -D", "Print the changes to files as diffs."),
    extra_vars: list[str] | None = option("--extra-vars -e K=V|@FILE", "Variable that overrides all; repeatable."),
    tags: list[str] | None = option("--tags -t TAGS", "Run only tasks with these tags."),
    skip_tags: list[str] | None = option("--skip-tags TAGS", "Skip tasks with these tags."),
    start_at: str | None = option("--start-at --start-at-task NAME", "Start at this task."),
    inventory: str | None = option("--inventory -i PATH", "Same as -H; Ansible's name for it."),
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
    targets = _with_inventory(targets, inventory)
    home_dir = check_home(home)
    selection = TaskSelection(_split_names(tags), _split_names(skip_tags), start_at)
    if step and not sys.stdin.isatty():
        raise UserError("--step asks before each task, but stdin is not a terminal", fix="take --step out")
    is_listing, templates = syntax_check or list_tasks, Templates()
    options = Options(
        home_dir, home.iface, targets.timeout, check=check, diff=diff, verbose=output.verbose, local=local
    )
    ready, options = _prepare(playbook, selection, targets, extra_vars or (), options, templates, is_listing=is_listing)
    if tags and not ready.chosen:
        raise UserError(f"--tags {','.join(tags)} selects no task", fix="--list-tasks shows the tags")
    if is_listing:
        play_view.show_tasks(ready, as_json=output.json, quiet=syntax_check and not list_tasks)
        raise typer.Exit(0)
    view = play_view.PlayView(output, options)
    hosts, cwd = ready.all_hosts, current_directory()
    with session_pool(targets, hosts=hosts, quiet=output.quiet, node0s=hosts) as (pool, interrupt):
        pool.warm(ready.used)
        from ipexctl.addons.play.engine import Engine  # imported while the hosts answer

        context = PlayContext(pool, templates, options, view, ready.limited, hosts, cwd)
        ask_user = (lambda task: view.ask(task.called)) if step else None
        report = Engine(ready, context, ask_user).run()
    if not check:
        report = replace(report, retry_file=write_retry_file(ready.playbook.path, report))
    view.end(report, interrupted=interrupt.code is not None)
    raise interrupt.or_exit(report.exit_code)


def _prepare(
    playbook: str,
    selection: TaskSelection,
    targets: Targets,
    extra: Sequence[str],
    options: Options,
    templates: Templates,
    *,
    is_listing: bool,
) -> tuple[PreparedPlay, Options]:
    """Read and check the playbook, its variables and the hosts. Raises a UserError with all mistakes."""
    cwd = current_directory()
    with reading_limits(playbook):
        model = load_playbook(playbook, cwd, templates)
        variables = _extra_variables(extra, cwd, templates)
    limited = all_hosts = choose_hosts(targets)  # a listing needs no hosts, but hosts that are named must be valid
    if is_listing and not targets.names_hosts and len(limited) == 1:
        limited = all_hosts = ()
    if targets.limit is not None and not is_listing:
        all_hosts = choose_hosts(replace(targets, limit=None))
    with reading_limits(playbook):
        vars_dirs = read_vars_dirs(_vars_directories(targets, model.path, cwd), all_hosts)
        # group_vars may be shared with Ansible, so an unsupported lookup is an error only if a task uses the variable.
        errors = templates.check(templates_in(list(vars_dirs.values())), lookups=False)
        layers = (*variables, *chain.from_iterable(vars_dirs.values()), *(host.vars for host in all_hosts))
        errors += check_facts(model, templates, set(chain.from_iterable(layers)))
    for tag, fix in unknown_tags(model, selection):
        print_with_fix(f"warning: no task has the tag {tag!r}", fix)
    ready, host_errors = prepare(model, selection, all_hosts, limited, local=options.local)
    raise_all([*errors, *host_errors, *([] if is_listing else check_projects(ready, cwd))], model.shown)
    return ready, replace(options, extra=variables, vars_dirs=vars_dirs)


def _with_inventory(targets: Targets, inventory: str | None) -> Targets:
    """Return the targets with those of --inventory: a file, or host names separated by commas, as in Ansible."""
    if inventory is None:
        return targets
    if targets.names_hosts:
        raise UserError("-i, -H and --hosts can't be combined: each names the hosts", fix="use one of them")
    if "," in inventory:
        return replace(targets, hosts=inventory.strip(","))
    return replace(targets, hostfile=Path(inventory))


def _vars_directories(targets: Targets, playbook: Path, cwd: Path) -> list[Path]:
    """Return the directories with group_vars and host_vars: that of the inventory, then that of the playbook."""
    hostfile = targets.hostfile or os.environ.get("IPEXCTL_HOSTFILE") or select(targets).project_hostfile or "hostfile"
    inventory = [] if targets.hosts is not None else [(cwd / hostfile).parent]
    return [*inventory, playbook.parent]


def _split_names(values: Sequence[str] | None) -> frozenset[str]:
    """Return the names in options that may be repeated, and that may have several names, separated by commas."""
    names = ",".join(values or ()).split(",")
    return frozenset(name.strip() for name in names if name.strip())


def _extra_variables(arguments: Sequence[str], cwd: Path, templates: Templates) -> list[dict[str, Any]]:
    """Return the variables of each `-e k=v`, `-e '{"k": …}'` and `-e @FILE`; later ones override earlier ones."""

    result: list[dict[str, Any]] = []
    for text in arguments:
        if text.startswith("@"):
            values: Any = dict(read_variables(cwd / expand_tilde(text[1:]), text[1:]))
            raise_all(templates.check(templates_in(values)))
        elif text.lstrip().startswith("{"):
            try:
                values = parse_json(text)
            except ValueError as error:
                raise UserError(f"-e: not valid JSON: {error}", fix="-e NAME=VALUE, or -e @FILE") from None
        else:
            values = _split_pairs(text)
            if not values:
                raise UserError(f"-e {quote(text)} is not NAME=VALUE", fix="a file of variables: -e @FILE")
        result.append(values)
    return result


def _split_pairs(text: str) -> dict[str, str]:
    """Return the variables of a text, without the quotes around values; empty if it is not NAME=VALUE.

    `a=1 b='x y'` is two variables; `args=--epochs 3` is one variable with the value `--epochs 3`.
    """

    parts = re.findall(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""", text)
    pairs = [re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", part, re.DOTALL) for part in parts]
    if not all(pairs):
        pairs = [re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", text, re.DOTALL)]
    return {pair[1]: _without_quotes(pair[2]) for pair in pairs if pair is not None}


def _without_quotes(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if is_quoted else value

"""`ipexctl config`: show the value of every option and its source; `config init` writes a file of defaults.

`init` writes doctor's recommendations as comments, because values in a file would apply to other hosts too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer

from ipexctl.commands.app import CLUSTER, ConfiguredValue, commands
from ipexctl.commands.config_file import PROJECT_FILE, ConfigFile
from ipexctl.commands.defaults import (
    command_specs,
    effective,
    files_of,
    host_params,
    read_settings,
    refusal,
)
from ipexctl.commands.option_groups import (
    ConfiguredCommand,
    Home,
    Output,
    Targets,
    argument,
    command,
    completion,
    flag,
    is_on_command_line,
)
from ipexctl.doctor.finding import DoctorReport
from ipexctl.errors import FileError, UserError, raise_all
from ipexctl.found_files import user_file
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.files import write_atomically
from ipexctl.node.common.fix import Fix
from ipexctl.projects.root import find_root, root_problem
from ipexctl.text import tilde_path
from ipexctl.ui.message_output import print_with_fix
from ipexctl.ui.results import group_by, print_json
from ipexctl.ui.text_table import print_lines, show_table

INIT: Final = "init"
_LOGIN: Final = re.compile(r"://[^/\s]*@")
"""A name and password in a URL, which are not shown."""


class ConfigCommand(ConfiguredCommand):
    """Reports mistakes in the files for all commands; other commands report only their own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; if a file is wrong, raise the mistakes in the tables of all commands."""
        try:
            return super().parse_args(ctx, args)
        except FileError:
            _check_files(files_of(ctx), commands())
            raise


@command(cls=ConfigCommand)
def config_command(
    *,
    ctx: typer.Context,
    what: str | None = argument(
        "[COMMAND|init]",
        "Command whose options to show (default: all), or init.",
        None,
        autocompletion=completion("configured"),
    ),
    force: bool = flag("--force", "Let init replace an ipexctl.toml."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Show the value of every option and its source: command line, file or variable.

    `ipexctl config init` checks the hosts as doctor does and writes an
    ipexctl.toml with comments into the project's root.

    \b
    Example: ipexctl config run
    """
    if what == INIT:
        raise typer.Exit(_init(ctx, targets, home, output, force=force))
    if force:
        raise UserError("--force is for init", fix=Fix("`ipexctl config init --force`"))

    names = [name for name in commands() if name != ctx.info_name]
    if what is not None and what not in names:
        near = get_close_matches(what, [INIT, *names], n=1)
        raise UserError(
            f"there is no command {what!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
            fix=Fix("show the options of all commands: `ipexctl config`"),
        )
    files = files_of(ctx)
    given = {param.name: ConfiguredValue(ctx.params[param.name], "command line") for param in _given(ctx).values()}
    cluster = targets.cluster if CLUSTER in given else None
    shown = [what] if what else names
    _check_files(files, shown)
    values = []
    for label, spec in command_specs(*shown):
        own = {name: setting for name, setting in given.items() if name in spec.shared}
        settings = own | effective(spec, own, cluster, files)
        for key, param in spec.params.items():
            setting = settings.get(param.name) or ConfiguredValue(param.default, "built-in")
            source = f"{setting.source}:{setting.line}" if setting.line else setting.source
            values.append(ConfigEntry(label, key, _plain(setting.value), source))
    output.print_report(values, partial(as_json, files=[file.source.path for file in files]), show)


def _check_files(files: Sequence[ConfigFile], commands: Iterable[str]) -> None:
    """Raise all mistakes of the files in the tables of these commands."""
    errors: dict[str, FileError] = {}
    for _, spec in command_specs(*commands):
        try:
            read_settings(spec, files)
        except FileError as error:
            errors |= {mistake.message: mistake for mistake in (error, *error.more)}
    raise_all(list(errors.values()))


def _given(ctx: typer.Context) -> dict[str, Any]:
    """Return the options of hosts that are on the command line: key → parameter."""
    return {key: param for key, param in host_params().items() if is_on_command_line(ctx, param.name)}


def _plain(value: object) -> object:
    """Return a value as JSON can have it, without the login of a URL."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    value = str(value) if isinstance(value, Path) else value
    return _LOGIN.sub("://", value) if isinstance(value, str) else value


def _init(ctx: typer.Context, targets: Targets, home: Home, output: Output, *, force: bool) -> int:
    """Write the file after asking the hosts, and return the exit code."""
    from ipexctl.api.host_checks import doctor
    from ipexctl.commands.target_hosts import current_directory, open_hosts

    root = find_root(None, None, current_directory())
    path = root / PROJECT_FILE
    if problem := root_problem(root):
        raise UserError(problem, fix="cd to the project's directory")
    if os.path.lexists(path) and not force:
        raise UserError(
            f"{tilde_path(path)} already exists", fix=Fix("look at it; to replace it: `ipexctl config init --force`")
        )
    with open_hosts(targets, home, output) as (opened, interrupt):
        report = doctor(opened)
    interrupt.check()
    given = {key: ctx.params[param.name] for key, param in _given(ctx).items() if key != CLUSTER}
    try:
        write_atomically(path, _text(given, report, root).encode(), mode=0o644, is_of_user=True)
    except OSError as error:
        raise UserError(f"{tilde_path(path)} can't be written: {error.strerror}") from None
    for host in report.hosts:
        if host.status == "unreachable":
            print_with_fix(f"{host.host.name}: {host.reason}", host.fix)
    show_written(tilde_path(path), as_json=output.json, quiet=output.quiet)
    return 3 if report.exit_code == 3 else 0


def _text(given: Mapping[str, object], report: DoctorReport, root: Path) -> str:
    """Return the text of the file: options of the call as values, recommendations as comments."""
    params = host_params()
    lines = [
        "# Defaults of ipexctl for this project. A key is an option without its dashes; the command line wins.",
        "# `ipexctl config` shows every value and its source.",
    ]
    for key, value in given.items():
        plain = os.path.relpath(value, root) if isinstance(value, Path) and key != "home" else _plain(value)
        line = f"{key} = {json.dumps(plain, ensure_ascii=False)}"
        if refusal(params[key], plain):
            line = f"# {line}  # only in {tilde_path(user_file())} or on the command line"
        lines.append(line)
    if not {"hosts", "hostfile"} & given.keys():
        lines.append('# hosts = "node[1-4]"  # or: hostfile = "hostfile", relative to this file')
    advice = report.recommendation
    names = fold(host.host.name for host in report.hosts if host.facts is not None)
    lines += [
        "",
        "[run]",
        f"# Computed for each run from its hosts; the values for {names or 'no host'}, to change them:",
    ]
    values = () if advice is None else (
        ("ppn", advice.ppn), ("omp", advice.omp_num_threads), ("ccl-workers", advice.ccl_worker_count),
        ("backend", advice.backend),
    )  # fmt: skip
    lines += [f"# {key} = {json.dumps(value)}" for key, value in values if value is not None]
    lines += ['# exclude = ["*.ckpt"]', "# max-restarts = 1", "", "# [install]"]
    if advice is not None and advice.stack is not None:
        lines.append(f"# stack = {json.dumps(advice.stack)}")
    lines += ['# with = ["transformers"]', "", "# [cluster.lab]  # chosen by -c lab or IPEXCTL_CLUSTER=lab"]
    lines += ['# hosts = "node[5-8]"', '# user = "me"', ""]
    return "\n".join(lines)


_SCHEMA = "ipexctl.config/1"


class ConfigEntry(NamedTuple):
    """One option of one command."""

    command: str
    key: str
    """Name of the option without dashes."""
    value: object
    source: str
    """`command line`, `built-in`, a variable, or a file with the line, as in `ipexctl.toml:3`."""


def show(values: Sequence[ConfigEntry], *, quiet: bool) -> None:
    """Print the table of options; with `quiet` only those that are not built in."""
    rows = [
        (value.command, value.key, _value_text(value.value), value.source)
        for value in values
        if not quiet or value.source != "built-in"
    ]
    show_table(("command", "option", "value", "from"), rows)


def as_json(values: Sequence[ConfigEntry], files: Sequence[str]) -> dict[str, Any]:
    """Return the document.

    An option has the value of most commands; a command with another value is named, as in `install.env`.
    """
    options: dict[str, Any] = {}
    for key, entries in group_by(values, attrgetter("key")).items():
        own = {entry.command: {"value": entry.value, "source": entry.source} for entry in entries}
        options[key] = usual = max(own.values(), key=[*own.values()].count)
        options |= {f"{command}.{key}": entry for command, entry in own.items() if entry != usual}
    return {"schema": _SCHEMA, "files": list(files), "options": options}


def show_written(path: str, *, as_json: bool, quiet: bool) -> None:
    """Say that the file is written."""
    if as_json:
        print_json({"schema": _SCHEMA, "status": "changed", "path": path})
    elif not quiet:
        print_lines([f"{path} is written; `ipexctl config run` shows the values for a run"])


def _value_text(value: object) -> str:
    """Format a value for the table; `-` for None."""
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

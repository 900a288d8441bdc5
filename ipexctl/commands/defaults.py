"""Take defaults of options from files and variables, and refuse what a file may not set.

The order of precedence: the command line, the chosen cluster, variables such as $IPEXCTL_HOSTFILE, then the files.
Within a file, the table of the command comes before the keys at the top.

A project's file was found, not named by the user. It cannot set options that run programs, trust keys, decide where
packages come from, or send, write or delete files (`REFUSED`): a cloned project could otherwise do this by itself.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import typer
from typer.core import TyperCommand

from ipexctl.commands.app import (
    CLUSTER,
    DEFAULTS,
    SHARED_GROUPS,
    ConfiguredValue,
    Defaults,
    commands,
    is_command,
    load_command,
)
from ipexctl.commands.config_file import PROJECT_FILE, ConfigFile, config_files
from ipexctl.commands.option_types import takes_several
from ipexctl.errors import FileError, UserError, raise_all
from ipexctl.file_reader import NotRegularError, check_regular
from ipexctl.found_files import TRUSTED, check_found, is_entry, user_file
from ipexctl.hosts.host import did_you_mean
from ipexctl.hosts.source import REFUSED_KEYS, RUNS_PROGRAMS, TRUSTS_KEYS
from ipexctl.removed import OPTIONS
from ipexctl.text import expand_tilde, tilde_path

Param: TypeAlias = Any
"""click's Parameter, which typer does not export."""
_FILES: Final = "ipexctl.config_files"
"""Key of the context's `meta` for the files of this call."""
CLUSTER_VARIABLE: Final = "IPEXCTL_CLUSTER"
_VARIABLES: Final = (
    ("IPEXCTL_HOSTFILE", "hostfile"),
    ("SLURM_JOB_NODELIST", "hosts"),
    ("SLURM_NODELIST", "hosts"),
    ("PBS_NODEFILE", "hostfile"),
    ("IPEXCTL_HOME", "home"),
)
"""Environment variable → option that it stands for, in order of precedence."""

ALTERNATIVES: Final = (
    {"hosts", "hostfile"},
    {"hosts", "hostfile", "inventory"},
    {"torch", "stack"},
    {"torch", "stack", "ipex", "oneccl"},
    {"env", "python", "setup"},
    {"plain", "live", "events"},
    {"detach", "summary"},
    {"detach", "report"},
    {"rank", "host"},
)
"""Options that exclude one another.

In a command that has all options of a set, one of them overrides the defaults of the others.
"""

_NO_DEFAULTS: Final = {
    "json": "type --json where you need it",
    "events": "type --events where you need it",
    "inventory": "use hostfile",
    "resume_run": "type --resume RUN where you need it",
    "help_all": "type --help-all where you need it",
    "config": "type --config FILE where you need it",
    CLUSTER: "choose a cluster by -c NAME or $IPEXCTL_CLUSTER; hosts at the top of the file need none",
}
"""Option that no table of a command can set → fix."""

_SOURCES: Final = "decides where packages come from"
_SENDS: Final = "can send files or secrets of this machine to the hosts"
_WRITES: Final = "writes files on this machine"
_REPLACES: Final = "replaces files"
_DELETES: Final = "deletes what the hosts have"
_ANY: Final = ".*"
REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    **{name: (_ANY, reason) for name, reason in REFUSED_KEYS.items()},
    "host_keys": (_ANY, TRUSTS_KEYS),
    **dict.fromkeys(("home", "setup", "shell", "local", "build"), (_ANY, RUNS_PROGRAMS)),
    **dict.fromkeys(("extra_vars", "module", "notify", "sbatch"), (_ANY, RUNS_PROGRAMS)),
    **dict.fromkeys(("mpi", "python"), (".*/.*", RUNS_PROGRAMS)),
    **dict.fromkeys(("index_url", "extra_index_url", "find_links", "wheelhouse", "requirements"), (_ANY, _SOURCES)),
    "packages": (".*[@/].*", _SOURCES),
    **dict.fromkeys(("cwd", "env_file", "include", "on", "stdin"), (_ANY, _SENDS)),
    "export": ("[^=]*", _SENDS),
    "checkpoint": (r"[/~].*|(.*/)?\.\.(/.*)?", _SENDS),
    **dict.fromkeys(("summary", "report", "page_file", "download_only", "homes", "users"), (_ANY, _WRITES)),
    "force": (_ANY, _REPLACES),
    **dict.fromkeys(("prune", "remove", "remove_all", "with_results", "yes"), (_ANY, _DELETES)),
}
"""Parameter → the values that a project's file cannot set, as a pattern, and the reason."""


def files_of(ctx: typer.Context) -> tuple[ConfigFile, ...]:
    """Return the files of defaults of this call. They are read once, because `--config` may name a pipe."""
    files: tuple[ConfigFile, ...] | None = ctx.meta.get(_FILES)
    if files is None:
        files = ctx.meta[_FILES] = config_files()
    return files


def set_defaults(command: TyperCommand, ctx: typer.Context, given: Mapping[str, Any]) -> str:
    """Set the defaults of a call from files and variables; return a note that names them, or an empty text.

    `given`: the parameters of the command line. Raises a UserError for a mistake in a file.
    """
    spec = CommandSpec.of(command, ctx)
    if spec is None:
        return ""
    if ctx.find_root().params.get("no_config"):
        ctx.meta[_FILES] = ()
        if given.get("config") is not None:
            raise UserError("--no-config and --config exclude each other", fix="use one of them")
        return ""
    files = ctx.meta[_FILES] = config_files(given.get("config"))
    settings = effective(spec, given.keys(), given.get(CLUSTER), files)
    _check_paths(spec, settings)
    ctx.meta[DEFAULTS] = {name: setting for name, setting in settings.items() if setting.line}
    ctx.default_map = {name: setting.value for name, setting in ctx.meta[DEFAULTS].items()}
    if CLUSTER in settings:
        ctx.default_map[CLUSTER] = settings[CLUSTER].value
    return _origins(spec, ctx.meta[DEFAULTS])


def _check_paths(spec: CommandSpec, settings: Mapping[str, ConfiguredValue]) -> None:
    """Refuse a device or pipe that a file names, and a file named by a found file that others can write."""
    for param in spec.params.values():
        setting = settings.get(param.name)
        is_read = REFUSED.get(param.name, ("", ""))[1] != _WRITES
        if setting is None or not setting.line or not is_read or not _is_local_path(param, setting.value):
            continue
        option = max(param.opts, key=len)
        for path in map(str, setting.value if isinstance(setting.value, list) else [setting.value]):
            naming = f"{option} {shlex.quote(path)}"
            try:
                check_regular(path)
            except NotRegularError as error:
                where = f"{setting.source}:{setting.line}: {tilde_path(Path(path))}"
                raise UserError(f"{where}: {error.strerror}", fix=f"name another: {option} FILE") from None
            except OSError:  # the command reports it if it needs the file
                continue
            if setting.is_found:
                check_found(path, naming=naming)


def _origins(spec: CommandSpec, defaults: Defaults) -> str:
    """Return the note that names the options of each file; empty without any."""
    by_source: dict[str, list[str]] = {}
    keys = {param.name: key for key, param in spec.params.items()}
    for name, setting in defaults.items():
        table = f" [{setting.table}]" if setting.table.startswith(f"{CLUSTER}.") else ""
        by_source.setdefault(f"{setting.source}{table}", []).append(keys.get(name, name))
    parts = [f"{source}: {', '.join(names)}" for source, names in by_source.items()]
    return f"defaults from {'; from '.join(parts)}" if parts else ""


class CommandSpec(NamedTuple):
    """The options of a command, by the keys of files."""

    table: str
    """Name of the command's table."""
    params: Mapping[str, Param]
    """Key, such as `dry-run` → parameter."""
    table_params: Mapping[str, Param]
    """The same of all commands that share the table, such as the subcommands of `export`."""

    @classmethod
    def of(cls, command: TyperCommand, ctx: Any) -> CommandSpec | None:
        """Return the options of the command that is called; None for a command that belongs to no other."""
        names = []
        while ctx.parent is not None:
            names.append(ctx.info_name)
            siblings = getattr(ctx.command, "commands", {}).values()
            ctx = ctx.parent
        if not names:
            return None
        return cls.of_command(names[-1], command, siblings)

    @classmethod
    def of_command(cls, name: str, command: TyperCommand, siblings: Iterable[TyperCommand] = ()) -> CommandSpec:
        """Return the options of a command. `siblings`: commands that share its table."""
        return cls.in_table(name, command, siblings)

    @classmethod
    def in_table(cls, table: str, command: TyperCommand, siblings: Iterable[TyperCommand]) -> CommandSpec:
        """Return the options of a command that reads this table."""
        table_params = {key: param for other in (command, *siblings) for key, param in _keys(other.params).items()}
        return cls(table, _keys(command.params), table_params)

    @property
    def names(self) -> set[str]:
        """Names of the parameters."""
        return _names(self.params)

    @property
    def shared(self) -> set[str]:
        """Names of the parameters in the shared groups that the command has completely."""
        groups = map(_names, option_groups())
        return set().union(*(group for group in groups if group <= self.names))


def _names(params: Mapping[str, Param]) -> set[str]:
    """Return the names of the parameters."""
    return {param.name for param in params.values()}


def _keys(params: Iterable[Param]) -> dict[str, Param]:
    """Return the options by their keys: the first long name without dashes."""
    keys = {}
    for param in params:
        if param.param_type_name == "option":
            long = [option for option in param.opts if option.startswith("--")]
            keys[(long or param.opts)[0].lstrip("-")] = param
    return keys


def command_specs(*names: str) -> Iterator[tuple[str, CommandSpec]]:
    """Yield name and options of these commands; of a group, each subcommand as `export slurm`."""
    for name in names:
        command = load_command(name)
        below: Mapping[str, Any] = getattr(command, "commands", {})
        for label, leaf in below.items():
            yield f"{name} {label}", CommandSpec.of_command(name, leaf, below.values())
        if not below:
            yield name, CommandSpec.of_command(name, command)


@functools.cache
def option_groups() -> tuple[Mapping[str, Param], ...]:
    """Return the shared groups of options: key → parameter. The group of the output is the last."""
    keys = _keys(load_command("sync").params)  # sync has all of them
    return tuple({key: param for key, param in keys.items() if param.name in names} for names in SHARED_GROUPS)


def host_params() -> dict[str, Param]:
    """Return the options of hosts, and of the home on them: key → parameter."""
    *of_hosts, _ = option_groups()
    return {key: param for group in of_hosts for key, param in group.items()}


def effective(
    spec: CommandSpec, given: Iterable[str], cluster: str | None, files: Sequence[ConfigFile]
) -> dict[str, ConfiguredValue]:
    """Return the values that files and variables set: parameter → value. Values of the command line are not in it.

    `given`: parameters of the command line; they and their alternatives are left out. `cluster`: of the command line,
    or None.
    """
    names = spec.names
    uses_hosts = CLUSTER in names  # `lab up --hosts N` is another option
    file_layers, clusters = read_settings(spec, files)
    layers: list[Mapping[str, ConfiguredValue]] = [
        {name: ConfiguredValue(os.environ[variable], f"${variable}")}
        for variable, name in _VARIABLES
        if os.environ.get(variable) and uses_hosts
    ]
    named = cluster or os.environ.get(CLUSTER_VARIABLE)
    if named and uses_hosts:
        chosen = _cluster(named, clusters)
        if cluster:
            layers.insert(0, {name: setting._replace(is_chosen=True) for name, setting in chosen.items()})
        else:
            layers.insert(0, {**chosen, CLUSTER: ConfiguredValue(named, f"${CLUSTER_VARIABLE}")})
    return _first_of([*layers, *file_layers], set(given), [group for group in ALTERNATIVES if group <= names])


def _first_of(
    layers: Iterable[Mapping[str, ConfiguredValue]], given: set[str], alternatives: Sequence[set[str]]
) -> dict[str, ConfiguredValue]:
    """Return the first value of each parameter.

    A value also excludes the alternatives of its option in later layers.
    """
    result: dict[str, ConfiguredValue] = {}
    already_set = given
    for layer in layers:
        set_aside = already_set.union(*(group for group in alternatives if group & already_set))
        settings = {name: setting for name, setting in layer.items() if name not in set_aside}
        result |= settings
        already_set = already_set | settings.keys()
    return result


def _cluster(name: str, clusters: Mapping[str, Mapping[str, ConfiguredValue]]) -> Mapping[str, ConfiguredValue]:
    """Return the options of a cluster. Raises a UserError if no file has it."""
    if name in clusters:
        return clusters[name]
    known = ", ".join(clusters)
    fix = f"known clusters: {known}" if known else f"write a table [cluster.NAME] with its hosts into {PROJECT_FILE}"
    raise UserError(f"no file of defaults has a cluster {name!r}", fix=did_you_mean(name, clusters, fix))


def read_settings(
    spec: CommandSpec, files: Sequence[ConfigFile]
) -> tuple[list[dict[str, ConfiguredValue]], dict[str, dict[str, ConfiguredValue]]]:
    """Return the settings of each file (its table of the command, then its top), and the clusters of all files.

    Raises all mistakes at once, as a FileError.
    """
    layers: list[dict[str, ConfiguredValue]] = []
    clusters: dict[str, dict[str, ConfiguredValue]] = {}
    errors: list[FileError] = []
    for file in files:
        reader = _FileReader(file, errors)
        layers += [reader.of_table(spec), reader.of_top(spec)]
        clusters = {**reader.clusters(), **clusters}
    raise_all(errors)
    return layers, clusters


class _FileReader:
    """Reads the settings of one file, and collects its mistakes in `errors`."""

    def __init__(self, file: ConfigFile, errors: list[FileError]) -> None:
        self._file = file
        self._errors = errors

    def of_top(self, spec: CommandSpec) -> dict[str, ConfiguredValue]:
        """Return the settings at the top of the file that the command has.

        Mistakes in other keys and tables are collected too.
        """
        options = {key: param for group in option_groups() for key, param in group.items()}
        values = {}
        for key, value in self._file.tables.items():
            if (is_command(key) or key == CLUSTER) and isinstance(value, dict):
                continue
            if isinstance(value, dict):
                tables = [f"[{name}]" for name in (*commands(), CLUSTER)]
                fix = did_you_mean(f"[{key}]", tables, "a table has the name of a command, such as [run]")
                self._add(key, "", f"there is no table [{key}]", fix)
            elif key == TRUSTED:
                self._check_trusted(value)
            elif is_command(key) or key == CLUSTER:
                self._add("", key, f"{key} is the name of a table", f"write [{key}] and its options below")
            else:
                values[key] = value
        settings = self._settings("", values, options)
        shared = spec.shared
        return {name: setting for name, setting in settings.items() if name in shared}

    def _check_trusted(self, entries: object) -> None:
        """Refuse a list of trusted directories in a project's file, and entries that are no absolute paths."""
        own = tilde_path(user_file())
        if self._file.origin != "user":
            problem = f"{TRUSTED} counts only in your own {own}, because no project may add itself"
            self._add("", TRUSTED, problem, f"take it out here; look at each directory before you write it into {own}")
        elif not isinstance(entries, list) or not all(map(is_entry, entries)):
            example = f'{TRUSTED} = ["/srv/team/project", "/srv/shared/*"]'
            self._add("", TRUSTED, f"{TRUSTED} needs an array of absolute paths", f"such as {example}")

    def of_table(self, spec: CommandSpec) -> dict[str, ConfiguredValue]:
        """Return the settings of the command's table."""
        values = self._file.tables.get(spec.table)
        if not isinstance(values, dict):
            return {}
        options = spec.table_params
        settings = self._settings(spec.table, values, options)
        return {name: setting for name, setting in settings.items() if name in spec.names}

    def clusters(self) -> dict[str, dict[str, ConfiguredValue]]:
        """Return the settings of each cluster: name → parameter → value."""
        tables = self._file.tables.get(CLUSTER)
        result = {}
        for name, values in tables.items() if isinstance(tables, dict) else ():
            if isinstance(values, dict):
                result[name] = self._settings(f"{CLUSTER}.{name}", values, host_params())
            else:
                self._add(CLUSTER, name, f"[{CLUSTER}] has no options", f"write [{CLUSTER}.NAME] and its options below")
        return result

    def _settings(
        self, table: str, values: Mapping[str, object], options: Mapping[str, Param]
    ) -> dict[str, ConfiguredValue]:
        result = {}
        for key, value in values.items():
            try:
                if key not in options:
                    raise _unknown_key(key, table, list(options))
                self._check(key, options[key], value, table)
            except UserError as error:
                self._add(table, key, error.message, error.fix)
                continue
            param, source = options[key], self._file.source
            value = _resolved(param, value, source.base)
            line = self._file.line_of(table, key)
            result[param.name] = ConfiguredValue(value, source.path, line, table, self._file.is_found, self._file.named)
        return result

    def _check(self, key: str, param: Param, value: object, table: str) -> None:
        """Raise a UserError for a value that this table, this file or the command does not accept."""
        from ipexctl.commands.value_checks import check_value  # few files have such values

        if param.name in _NO_DEFAULTS:
            raise UserError(f"{key} has no default", fix=_NO_DEFAULTS[param.name])
        try:
            _check_type(param, value)
            check_value(param, value)
        except ValueError as error:
            fix = f"as on the command line: ipexctl {_command_of(table)} --help"
            raise UserError(f"{key}: it must be {error}", fix=fix) from None
        except UserError as error:
            raise UserError(f"{key}: {error.message}", fix=error.fix) from None
        if self._file.is_found and (reason := refusal(param, value)):
            raise UserError(f"{key} {reason}, and this file was found, not named", fix=_refusal_fix(param, table))

    def _add(self, table: str, key: str, problem: str, fix: str) -> None:
        """Add a mistake that points at the key."""
        self._errors.append(self._file.error(table, key, problem, fix=fix))


def _unknown_key(key: str, table: str, known: Sequence[str]) -> UserError:
    """Return the error for an unknown key. Its fix names the tables of the commands that have the option."""
    names = (name for name in commands() if any(key in spec.params for _, spec in command_specs(name)))
    tables = list(dict.fromkeys(f"[{name}]" for name in names))
    fix = f"{key} belongs under {' or '.join(tables)}: move it below such a line"
    if not tables:
        known = known if table else [*known, *commands()]
        command = _command_of(table)
        listed = f"the names of the options without dashes: ipexctl {command} --help"
        fix = OPTIONS.get((command, f"--{key.replace('_', '-')}")) or did_you_mean(key, known, listed)
    return UserError(f"{f'[{table}]' if table else 'the top of the file'} has no option {key!r}", fix=fix)


def _command_of(table: str) -> str:
    """Return the command whose help lists the options of the table."""
    return table if table and not table.startswith(CLUSTER) else "run"


def _check_type(param: Param, value: Any) -> None:
    """Raise a ValueError for a value of another TOML type, or one that the command line would refuse."""
    kind, several = param.option_type.kind, takes_several(param)
    is_right, expected = isinstance(value, str), "a string"
    if several:
        is_right = isinstance(value, list) and all(isinstance(item, str) for item in value)
        expected = "an array of strings"
    elif kind is bool:
        is_right, expected = isinstance(value, bool), "true or false"
    elif kind is int:
        is_right, expected = type(value) is int, "a whole number"
    elif kind is float:
        is_right, expected = type(value) in (int, float), "a number"
    if not is_right:
        raise ValueError(expected)
    for item in value if several else [value]:
        param.option_type.convert(item)


def refusal(param: Param, value: object) -> str:
    """Return why a project's file cannot set this value; empty if it can."""
    pattern, reason = REFUSED.get(param.name, ("", ""))
    values = value if isinstance(value, list) else [value]
    return reason if reason and any(re.fullmatch(pattern, str(item), re.DOTALL) for item in values) else ""


def _refusal_fix(param: Param, table: str) -> str:
    """Return what the user can do instead."""
    option = next((option for option in param.opts if option.startswith("--")), param.opts[0])
    where = f"[{table}] of " if table else ""
    return (
        f"read it first; if you want it, type {option} on the command line, or write it into {where}your own "
        f"{tilde_path(user_file())}; ipexctl --no-config leaves out this file"
    )


def _is_local_path(param: Param, value: object) -> bool:
    """True for a path on the control machine: not --home, which is on the nodes, nor `--ssh-config none`."""
    return param.option_type.kind is Path and param.name != "home" and value != "none"


def _resolved(param: Param, value: Any, base: Path) -> object:
    """Return a path relative to the file as an absolute one; other values as they are."""
    if not _is_local_path(param, value):
        return value
    if isinstance(value, list):
        return [str(base / expand_tilde(item)) for item in value]
    return str(base / expand_tilde(value))

"""Options that several commands share; a group is a dataclass, passed to a command as one value by `@grouped`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, get_type_hints

import typer

from ipexctl.cli import complete
from ipexctl.cli.defaults import ConfiguredCommand, Defaults, defaults_of
from ipexctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

option = functools.partial(typer.Option, show_default=False, readable=False)
"""An option; its help says its default itself, and an unreadable file is an error of the code that reads it."""

Report = TypeVar("Report")
Command = TypeVar("Command", bound="Callable[..., None]")

RunArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]",
        show_default=False,
        help="Run id, a unique prefix of it, or `last` (default: last).",
        autocompletion=complete.runs,
    ),
]
"""The argument RUN of commands that only read."""
NamedRun: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Run id, a unique prefix of it, or `last`.", autocompletion=complete.runs),
]
"""The argument RUN of commands that can end the run: without it the call is refused, and the last run is named."""

RanksOption: TypeAlias = Annotated[
    str,
    option("--ranks", "-r", metavar="RANKS", help="Ranks to show, such as 0 or 0-3,8 (default: all)."),
]


Packages: TypeAlias = Annotated[
    list[str] | None,
    option("--with", metavar="PKG", help="Further package, such as 'peft>=0.17'; repeatable."),
]
Requirements: TypeAlias = Annotated[
    list[Path] | None,
    option(
        "--requirement",
        "-r",
        metavar="FILE",
        help="Requirements file of further packages; torch stays as it is. Repeatable.",
    ),
]


Timeout: TypeAlias = Annotated[
    float | None,
    option(
        "--timeout", min=0.1, metavar="S", help="Seconds a host may take for one step (default: the command's own)."
    ),
]


HostKeyPolicy: TypeAlias = Literal["strict", "accept-new", "off"]


@dataclass(frozen=True)
class Targets:
    """Options of every command that uses hosts: which hosts, and how to connect."""

    hostfile: Annotated[
        Path | None,
        option(
            "--hostfile",
            "-H",
            metavar="PATH",
            help="Hostfile or Ansible inventory (default: $IPEXCTL_HOSTFILE, else a Slurm or PBS allocation, "
            "else ./hostfile, else the control machine alone).",
        ),
    ] = None
    hosts: Annotated[
        str | None,
        option(
            "--hosts",
            metavar="SPEC",
            autocompletion=complete.hosts,
            help="Hosts in place of a hostfile: 'node[1-4],me@10.0.0.9,localhost'.",
        ),
    ] = None
    limit: Annotated[
        str | None,
        option(
            "--limit",
            "-l",
            metavar="SPEC",
            autocompletion=complete.limits,
            help="Limit to these hosts or groups; '!name' excludes one.",
        ),
    ] = None
    forks: Annotated[
        int,
        option("--forks", "-f", min=1, metavar="N", help="Hosts to work on at the same time (default: 32)."),
    ] = 32
    user: Annotated[
        str | None,
        option("--user", metavar="NAME", help="User to log in as (default: from the hostfile, else the ssh config)."),
    ] = None
    port: Annotated[
        int | None,
        option(
            "--port",
            min=1,
            max=65535,
            metavar="P",
            help="Port of sshd (default: from the hostfile, else the ssh config).",
        ),
    ] = None
    identity: Annotated[
        Path | None,
        option(
            "--identity",
            metavar="FILE",
            help="Private key to log in with (default: from the hostfile, else the ssh config).",
        ),
    ] = None
    ssh_config: Annotated[
        Path | None,
        option("--ssh-config", metavar="FILE", help="ssh config file (default: ~/.ssh/config)."),
    ] = None
    known_hosts: Annotated[
        Path | None,
        option(
            "--known-hosts",
            metavar="FILE",
            help="known_hosts file to check host keys against (default: from the ssh config).",
        ),
    ] = None
    host_keys: Annotated[
        HostKeyPolicy | None,
        option("--host-keys", help="Host key policy (default: from the ssh config, else strict)."),
    ] = None
    connect_timeout: Annotated[
        float,
        option(
            "--connect-timeout", min=0.1, metavar="S", help="Seconds to connect and log in to a host (default: 10)."
        ),
    ] = 10.0
    timeout: Timeout = None
    cluster: Annotated[
        str | None,
        option(
            "--cluster",
            "-c",
            metavar="NAME",
            autocompletion=complete.clusters,
            help="Cluster of ipexctl.toml: its hosts and how to log in (default: $IPEXCTL_CLUSTER).",
        ),
    ] = None
    defaults: Defaults = dataclasses.field(default_factory=dict)
    """The options above that have their value from a file."""

    @property
    def names_hosts(self) -> bool:
        """Whether the command line names hosts, also by a cluster."""
        named = (name for name in ("hosts", "hostfile") if getattr(self, name) is not None)
        return any(name not in self.defaults or self.defaults[name].is_chosen for name in named)

    def is_found(self, name: str) -> bool:
        """Whether a project's file sets this option: then it counts as found, not named."""
        return name in self.defaults and self.defaults[name].is_found

    def is_shared_default(self, name: str) -> bool:
        """Whether the value of an option is a default that other commands have, too."""
        return name in self.defaults and not self.defaults[name].is_of_command

    def without_defaults(self, *names: str) -> Targets:
        """As if no file had set these options (default: any)."""
        built_in: dict[str, Any] = {
            field.name: field.default for field in dataclasses.fields(self) if field.name in self.defaults
        }
        changes = {name: default for name, default in built_in.items() if not names or name in names}
        kept = {name: setting for name, setting in self.defaults.items() if name not in changes}
        return dataclasses.replace(self, **changes, defaults=kept)


@dataclass(frozen=True)
class Home:
    """Options for ipexctl's directory on the nodes, and for the network between them."""

    home: Annotated[
        Path | None,
        option(
            "--home", metavar="DIR", help="Directory of ipexctl on the nodes (default: $IPEXCTL_HOME, else ~/.ipexctl)."
        ),
    ] = None
    iface: Annotated[
        str | None,
        option(
            "--iface",
            metavar="NAME|CIDR",
            help="Network between the nodes, such as eth1 or 10.1.0.0/24 (default: detected).",
        ),
    ] = None


@dataclass(frozen=True)
class Output:
    """Options for the output of a command."""

    json: Annotated[bool, option("--json", help="Print one JSON document to stdout.")] = False
    quiet: Annotated[bool, option("--quiet", "-q", help="Print only problems to stderr.")] = False
    verbose: Annotated[
        int,
        option("--verbose", "-v", count=True, help="Print each remote step and its time; -vv also its command."),
    ] = 0
    no_color: Annotated[
        bool, option("--no-color", help="Disable colors (also off with NO_COLOR, TERM=dumb or a pipe).")
    ] = False

    def print_report(
        self, report: Report, as_json: Callable[[Report], dict[str, Any]], show: Callable[..., None], **more: Any
    ) -> None:
        """Print the report as JSON with --json, else with `show`, which gets the options of the output and `more`."""
        from ipexctl.ui.results import print_json

        if self.json:
            print_json(as_json(report))
        else:
            show(report, quiet=self.quiet, no_color=self.no_color, **more)
        sys.stdout.flush()

    def print_note(self, text: str) -> None:
        """Print a message to stderr, unless the call has --quiet."""
        from ipexctl.ui.messages import print_message

        if not self.quiet:
            print_message(text)


@dataclass(frozen=True)
class PlanOutput(Output):
    """For `run`, whose plan is its only JSON document."""

    json: Annotated[bool, option("--json", help="With --dry-run: print the plan as one JSON document.")] = False


@dataclass(frozen=True)
class TextOutput(Output):
    """For commands that refuse --json and name the command that has it."""

    json: Annotated[bool, option("--json", hidden=True)] = False


@dataclass(frozen=True)
class StackOptions:
    """Options that choose a stack."""

    torch: Annotated[str | None, option("--torch", metavar="V", help="torch version, such as 2.8 or 2.8.0.")] = None
    stack: Annotated[
        str | None,
        option("--stack", metavar="NAME", help="Stack name, such as ipex-2.8, or the newest of a kind: ipex, torch."),
    ] = None
    ipex: Annotated[str | None, option("--ipex", metavar="V", help="IPEX version.")] = None
    oneccl: Annotated[
        str | None, option("--oneccl", metavar="V", help="Version of the oneCCL bindings (oneccl_bind_pt).")
    ] = None
    python: Annotated[str | None, option("--python", metavar="V", help="Python version, such as 3.11.")] = None
    require_oneccl: Annotated[
        bool, option("--require-oneccl", help="Fail if the oneCCL bindings are not available.")
    ] = False


@dataclass(frozen=True)
class SyncOptions:
    """Options for the files that a sync sends."""

    exclude: Annotated[
        list[str] | None,
        option("--exclude", metavar="PAT", help="Exclude this pattern from the sync; repeatable."),
    ] = None
    include: Annotated[
        list[str] | None,
        option(
            "--include", metavar="PAT", help="Sync files that are excluded otherwise, such as credentials; repeatable."
        ),
    ] = None
    data: Annotated[
        list[str] | None,
        option("--data", metavar="DIR", help="Directory that every host has, excluded from the sync; repeatable."),
    ] = None
    allow_big: Annotated[bool, option("--allow-big", help="Sync a project of more than 1 GB or 20,000 files.")] = False


@dataclass(frozen=True)
class ViewOptions:
    """Options for the view of a run; raises a UserError if the view is impossible."""

    plain: Annotated[bool, option("--plain", help="Print lines prefixed with their rank, also on a terminal.")] = False
    live: Annotated[bool, option("--live", help="Show the live view; an error without a terminal.")] = False

    def __post_init__(self) -> None:
        if self.plain and self.live:
            raise UserError("--plain and --live exclude each other", fix="use one of them")
        if self.live:
            from ipexctl.ui.run.plain import check_terminal

            check_terminal()


def command(*, cls: type[ConfiguredCommand] = ConfiguredCommand, **settings: Any) -> Callable[[Command], typer.Typer]:
    """Make the function the only command of an app, with `grouped` parameters."""

    def app_of(function: Command) -> typer.Typer:
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        app.command(cls=cls, **settings)(grouped(function))
        return app

    return app_of


def grouped(command: Command) -> Command:
    """Replace each parameter whose type is an option group by the options of that group; groups can hold groups."""
    # Not get_type_hints: before Python 3.11 it wraps a parameter with default None in Optional, above its option.
    signature = inspect.signature(command, eval_str=True)
    types = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    options = {"ctx": context} | {
        option.name: option
        for name, parameter in signature.parameters.items()
        for option in _options(name, parameter.annotation, parameter.default)
    }

    @functools.wraps(command)
    def call(**values: Any) -> None:
        command(**{name: _value(name, annotation, values) for name, annotation in types.items()})

    call.__signature__ = signature.replace(parameters=list(options.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {name: option.annotation for name, option in options.items()}
    return call  # type: ignore[return-value]


def _options(name: str, annotation: Any, default: Any) -> Iterator[inspect.Parameter]:
    if not dataclasses.is_dataclass(annotation):
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        return
    hints = get_type_hints(annotation, include_extras=True)
    for field in dataclasses.fields(annotation):
        if hints[field.name] != Defaults:
            yield from _options(field.name, hints[field.name], field.default)


def _value(name: str, annotation: Any, values: dict[str, Any]) -> Any:
    if annotation == Defaults:
        return defaults_of(values["ctx"])
    if not dataclasses.is_dataclass(annotation):
        return values[name]
    hints = get_type_hints(annotation, include_extras=True)
    fields = dataclasses.fields(annotation)
    return annotation(**{field.name: _value(field.name, hints[field.name], values) for field in fields})  # type: ignore[operator]

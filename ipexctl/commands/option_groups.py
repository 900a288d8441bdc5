"""Declare options that several commands share, and turn a function into a typer command.

A command takes a group of options (`Targets`, `Home` …) as one parameter. `option` declares an option of the command
line alone; `declare` (of `option_declaration.py`) is for options that playbooks and files also have.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

from ipexctl.commands.app import CLUSTER, CONNECTION, SHARED_GROUPS, Defaults, defaults_of
from ipexctl.commands.option_types import AdoptsOptions, OptionType
from ipexctl.errors import UserError
from ipexctl.option_declaration import (
    CONNECT_SECONDS,
    FORKS,
    RECONNECT_SECONDS,
    TRANSPORT,
    Declaration,
    declaration_of,
    with_default,
)
from ipexctl.ui.message_output import print_message, set_colors
from ipexctl.ui.safe_output import print_document

Report = TypeVar("Report")
AnyHosts = TypeVar("AnyHosts", bound="HostOptions")
Command = TypeVar("Command", bound="Callable[..., None]")
_TYPER: Final = "typer"
_CONFIG: Final = "config"
_HELP_ALL: Final = "help_all"
_GROUP: Final = "group"


def option(declaration: str, help_text: str | None = None, default: object = None, **settings: Any) -> Any:
    """Declare an option such as `--forks -f N`. `{default}` in its help becomes the default."""
    return dataclasses.field(
        default=default, metadata={_TYPER: _typer_option(declaration, help_text, default, **settings)}
    )


def _typer_option(declaration: str, help_text: str | None, default: object, **settings: Any) -> Any:
    """Return typer's object for an option."""
    words = declaration.split()
    names = [word for word in words if word.startswith("-")]
    # The code that reads the file reports an unreadable one.
    settings = {"metavar": " ".join(words[len(names) :]) or None, "readable": False, "show_default": False} | settings
    help_text = with_default(help_text, default) if help_text else help_text
    return typer.Option(default, *names, help=help_text, **settings)


class DeclaredOption(NamedTuple):
    """An option as one field of a record."""

    type: Any
    default: object
    declaration: Declaration


def option_group(options: Mapping[str, DeclaredOption]) -> Any:
    """Declare options that a command takes as one record, by the names of its fields."""
    return dataclasses.field(metadata={_GROUP: options})


def flag(declaration: str, help_text: str | None = None, default: bool = False, **settings: Any) -> Any:
    """Declare an option without a value."""
    return option(declaration, help_text, default, **settings)


def argument(metavar: str, help_text: str | None = None, default: object = dataclasses.MISSING, **settings: Any) -> Any:
    """Declare an argument, which is required unless it has a default. `{default}` in its help becomes the default."""
    help_text = with_default(help_text, default) if help_text else help_text
    settings = {"metavar": metavar, "help": help_text, "show_default": False} | settings
    typer_default = ... if default is dataclasses.MISSING else default
    return dataclasses.field(default=default, metadata={_TYPER: typer.Argument(typer_default, **settings)})


_DEFAULTS_NOTE: Final = "ipexctl.defaults-note"
"""Key of the context's `meta` for the note on defaults from files."""
_SELDOM: Final = frozenset((*CONNECTION, "config", "iface", "no_color"))
"""Options that --help leaves out if a command does not say which it shows."""
_IS_SHORT: Final = "ipexctl.short-help"
"""Key of the context's `meta`: True for --help."""


class ConfiguredCommand(AdoptsOptions, TyperCommand):
    """A command that takes defaults of its options from files and variables.

    --help fits on a page, --help-all has every option.
    """

    most_used: Collection[str] = ()
    """Parameters that --help shows; empty for all but those of `_SELDOM`."""

    def get_help(self, ctx: Any) -> str:
        """Return the text of --help."""
        ctx.meta[_IS_SHORT] = True
        return super().get_help(ctx)

    def get_full_help(self, ctx: Any) -> str:
        """Return the text of --help-all."""
        ctx.meta[_IS_SHORT] = False
        return super().get_help(ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters; for --help only those that it shows."""
        params = super().get_params(ctx)
        if not ctx.meta.get(_IS_SHORT):
            return params
        arguments = {param.name for param in params if param.param_type_name == "argument"}
        shown = {*self.most_used, *arguments, "help", "help_all"}
        if self.most_used:
            return [param for param in params if param.name in shown]
        return [param for param in params if param.name not in _SELDOM]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options and, in the short help, how to see the others."""
        self.format_panels(ctx, formatter)
        if ctx.meta.get(_IS_SHORT):
            formatter.write_paragraph()
            connects = any(param.name in CONNECTION for param in self.params)
            ways = "; ways to connect: ipexctl --help" if connects else ""
            formatter.write_text(f"Every option: {ctx.command_path} --help-all{ways}")

    def format_panels(self, ctx: Any, formatter: Any) -> None:
        """Write the options."""
        super().format_options(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options, after setting their defaults. Help needs no defaults."""
        given: dict[str, Any] = self.make_parser(ctx).parse_args(args=list(args))[0]
        if not (given.get("help") or given.get("help_all") or (not args and self.no_args_is_help)):
            from ipexctl.commands.defaults import set_defaults  # 12 ms, which help does not need

            try:
                ctx.meta[_DEFAULTS_NOTE] = set_defaults(self, ctx, given)
            except UserError:
                if not ctx.resilient_parsing:  # Tab shows no errors
                    raise
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. A command that starts or plans something first says which defaults come from files."""
        params = ctx.params
        is_shown = ctx.info_name == "run" or params.get("dry_run") or params.get("check") or params.get("verbose")
        if is_shown and not params.get("json") and not params.get("quiet") and (note := ctx.meta.get(_DEFAULTS_NOTE)):
            print_message(note)
        return super().invoke(ctx)


def completion(kind: str) -> Callable[[typer.Context, str], list[str]]:
    """Return what Tab offers for an option. `kind`: name of a function of `complete.py`."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        """Return the words for Tab."""
        from ipexctl.commands.complete import COMPLETIONS  # 40 ms, for Tab alone

        return COMPLETIONS[kind](ctx, incomplete)

    return complete


RUN: Final = argument(
    "[RUN]",
    "Run id, a unique part of it, `last` of this project, or `last:all` (default: {default}).",
    "last",
    autocompletion=completion("runs"),
)
"""Argument of commands that only read."""
NAMED_RUN: Final = argument(
    "RUN",
    "Run id, a unique part of it, `last` of this project, or `last:all`.",
    None,
    autocompletion=completion("runs"),
)
"""Argument of commands that can end a run. If it is missing, the error names the last run."""
RUNS: Final = argument(
    "RUN…",
    "Run ids, unique parts of them, `last` of this project, or `last:all`.",
    autocompletion=completion("runs"),
)
RANKS: Final = option("--ranks -r RANKS", "Ranks to show, such as 0 or 0-3,8 (default: {default}).", "all")
RECONNECT: Final = option(
    "--reconnect S",
    "Seconds to wait for node0 if it does not answer (default: {default}).",
    RECONNECT_SECONDS,
    min=0,
)
SUMMARY: Final = option("--summary FILE", "Write the outcome to this file as JSON.")
PACKAGES: Final = option("--with PKG", "Further package to install, such as 'peft>=0.17'; repeatable.")
REQUIREMENTS: Final = option(
    "--requirement -r FILE",
    "File of further packages: requirements.txt, pyproject.toml[EXTRA], uv.lock, setup.py …; repeatable.",
)
EXTRA: Final = option("--extra NAME", "Extra of the project's own packages to install, too; repeatable.")
GROUP: Final = option("--group NAME", "Dependency group of the project to install, too; repeatable.")


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    """Print the help with every option, and exit."""
    if wanted and not ctx.resilient_parsing:
        assert isinstance(ctx.command, ConfiguredCommand)
        print_document(ctx.command.get_full_help(ctx) + "\n")
        raise typer.Exit


HELP_ALL: Final = flag("--help-all", "Show every option and exit.", is_eager=True, callback=_show_all)
CONFIG: Final = option(
    "--config FILE", "File of defaults to read instead of the project's ipexctl.toml (default: the one found)."
)
TIMEOUT: Final = option(
    "--timeout S", "Seconds a host may take for one step (default: depends on the command).", min=0.1
)


HostKeyPolicy: TypeAlias = Literal["strict", "accept-new", "off"]


# Unused eq and repr would take a third of the time for these classes at each start.
@dataclass(frozen=True, eq=False, repr=False)
class HostOptions:
    """Options that choose hosts and how to reach them."""

    hostfile: Path | None = option(
        "--hostfile -H PATH",
        "Hostfile or Ansible inventory (default: $IPEXCTL_HOSTFILE, else a Slurm or PBS allocation, "
        "else ipexctl.toml, else ./hostfile, else the control machine alone).",
    )
    hosts: str | None = option(
        "--hosts SPEC",
        "Hosts instead of a hostfile: 'node[1-4],me@10.0.0.9,localhost'.",
        autocompletion=completion("hosts"),
    )
    user: str | None = option("--user NAME", "Login name (default: hostfile, else ssh config).")
    port: int | None = option("--port P", "Port of sshd (default: hostfile, else ssh config).", min=1, max=65535)
    identity: Path | None = option("--identity FILE", "Private key (default: hostfile, else ssh config).")
    ssh_config: Path | None = option("--ssh-config FILE", "ssh config file (default: ~/.ssh/config).")
    known_hosts: Path | None = option("--known-hosts FILE", "File of known host keys (default: ssh config).")
    host_keys: HostKeyPolicy | None = option("--host-keys", "Host key policy (default: ssh config, else strict).")
    connect_timeout: float = option(
        "--connect-timeout S", "Seconds for a host's ssh port to answer (default: {default}).", CONNECT_SECONDS, min=0.1
    )
    cluster: str | None = option(
        "--cluster -c NAME",
        "Cluster of ipexctl.toml (default: $IPEXCTL_CLUSTER).",
        autocompletion=completion("clusters"),
    )
    limit: str | None = option(
        "--limit -l SPEC", "Limit to these hosts or groups; '!name' excludes one.", autocompletion=completion("limits")
    )
    transport: Literal["auto", "ssh", "openssh", "srun"] = option(
        "--transport",
        "By ssh, always by the ssh program, or by srun in a Slurm allocation (default: {default}).",
        TRANSPORT,
    )
    defaults: Defaults = dataclasses.field(default_factory=dict)
    """Options of this call that a file sets: parameter → value."""

    @property
    def names_hosts(self) -> bool:
        """True if the command line names hosts or a cluster."""
        named = (name for name in ("hosts", "hostfile") if getattr(self, name) is not None)
        return any(name not in self.defaults or self.defaults[name].is_chosen for name in named)

    @property
    def host_options(self) -> dict[str, Any]:
        """The values of the options of this class: parameter → value."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(HostOptions)}

    @property
    def typed(self) -> frozenset[str]:
        """Names of the options that the command line sets to another value than the default."""
        fields = (field for field in dataclasses.fields(self) if field.name != "defaults")
        changed = (field.name for field in fields if getattr(self, field.name) != field.default)
        return frozenset(name for name in changed if name not in self.defaults)

    @property
    def config_file(self) -> str | None:
        """The file that `--config` names, if an option has a default from it; else None."""
        return next((setting.named_file for setting in self.defaults.values() if setting.named_file), None)

    def is_found(self, name: str) -> bool:
        """True if the option has its value from a file that the user did not name."""
        return name in self.defaults and self.defaults[name].is_found

    def is_shared_default(self, name: str) -> bool:
        """True if the value is a default that other commands have too."""
        return name in self.defaults and self.defaults[name].table.partition(".")[0] in ("", CLUSTER)

    def without_defaults(self: AnyHosts, *names: str) -> AnyHosts:
        """Return the options without the defaults of files: of these names, or of all."""
        built_in: dict[str, Any] = {
            field.name: field.default for field in dataclasses.fields(self) if field.name in self.defaults
        }
        changes = {name: default for name, default in built_in.items() if not names or name in names}
        kept = {name: setting for name, setting in self.defaults.items() if name not in changes}
        return dataclasses.replace(self, **changes, defaults=kept)


@dataclass(frozen=True, eq=False, repr=False)
class Targets(HostOptions):
    """Options of commands that work on hosts."""

    forks: int = option("--forks -f N", "Hosts to work on at the same time (default: {default}).", FORKS, min=1)
    timeout: float | None = TIMEOUT


@dataclass(frozen=True, eq=False, repr=False)
class RunHosts(HostOptions):
    """Options of commands about a run: where to look for a run that this machine did not begin, and how to log in."""

    home: Path | None = option(
        "--home DIR", "Directory of ipexctl on the nodes (default: $IPEXCTL_HOME, else ~/.ipexctl)."
    )

    @classmethod
    def of(cls, targets: Targets, home: Home) -> RunHosts:
        """Return the same options of another command."""
        return cls(**targets.host_options, home=home.home)


@dataclass(frozen=True, eq=False, repr=False)
class Home:
    """Options of the ipexctl home, and of the network between the nodes."""

    home: Path | None = option(
        "--home DIR", "Directory of ipexctl on the nodes (default: $IPEXCTL_HOME, else ~/.ipexctl)."
    )
    iface: str | None = option(
        "--iface NAME|CIDR", "Network between the nodes, such as eth1 or 10.1.0.0/24 (default: detected)."
    )


@dataclass(frozen=True, eq=False, repr=False)
class Output:
    """Options of what a command prints."""

    json: bool = flag("--json", "Print one JSON document to stdout.")
    quiet: bool = flag("--quiet -q", "Print only problems to stderr.")
    verbose: int = option("--verbose -v", "Print each remote step and its time; -vv also its command.", 0, count=True)
    no_color: bool = flag("--no-color", "Disable colors (also off with NO_COLOR, TERM=dumb or a pipe).")

    def print_report(
        self, report: Report, as_json: Callable[[Report], dict[str, Any]], show: Callable[..., None], **more: object
    ) -> None:
        """Print the report: with --json the document that `as_json` makes, else by `show`."""
        from ipexctl.ui.results import print_json

        if self.json:
            print_json(as_json(report))
        else:
            show(report, quiet=self.quiet, **more)

    def print_note(self, text: str) -> None:
        """Print a line to stderr, unless --quiet is set."""
        if not self.quiet:
            print_message(text)


_OF_HOSTS: Final = frozenset(HostOptions.__dataclass_fields__)
SHARED_GROUPS[:] = [
    _OF_HOSTS,
    frozenset(Targets.__dataclass_fields__) - _OF_HOSTS,
    *({name} for name in Home.__dataclass_fields__),
    frozenset(Output.__dataclass_fields__),
]


@dataclass(frozen=True, eq=False, repr=False)
class PlanOutput(Output):
    """Options of `run`, whose plan is its only JSON document."""

    json: bool = flag("--json", "With --dry-run: print the plan as one JSON document.")


@dataclass(frozen=True, eq=False, repr=False)
class TextOutput(Output):
    """Options of commands that refuse --json, and name another command that has it."""

    json: bool = flag("--json", hidden=True)


@dataclass(frozen=True, eq=False, repr=False)
class StackOptions:
    """Options that choose a stack."""

    torch: str | None = option("--torch V", "torch version, such as 2.8 or 2.8.0.")
    stack: str | None = option(
        "--stack NAME",
        "Stack such as torch-2.13; ipex or torch: the newest of its kind (default: torch; ipex if the project "
        "imports it).",
    )
    ipex: str | None = option("--ipex V", "IPEX version.")
    oneccl: str | None = option("--oneccl V", "Version of the oneCCL bindings (oneccl_bind_pt).")
    python: str | None = option("--python V", "Python version (default: the newest that all hosts and the stack have).")
    require_oneccl: bool = flag("--require-oneccl", "Fail if the oneCCL bindings are not available.")


@dataclass(frozen=True, eq=False, repr=False)
class ViewOptions:
    """Options of how output is shown. Raises a UserError for options that exclude each other."""

    plain: bool = flag("--plain", "Print lines prefixed with their rank, also on a terminal.")
    live: bool = flag("--live", "Show the live view; an error without a terminal.")
    events: bool = flag("--events", "Print the run as events, one JSON object per line.")
    reconnect: float = RECONNECT

    def __post_init__(self) -> None:
        chosen = [f"--{name}" for name in ("plain", "live", "events") if getattr(self, name)]
        if len(chosen) > 1:
            raise UserError(f"{' and '.join(chosen)} exclude each other", fix="use one of them")
        if self.live:
            from ipexctl.ui.run.plain import check_terminal

            check_terminal()


def is_on_command_line(ctx: typer.Context, name: str) -> bool:
    """True if the parameter is on the command line."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def command(*, cls: type[ConfiguredCommand] = ConfiguredCommand, **settings: Any) -> Callable[[Command], typer.Typer]:
    """Return a decorator that makes a typer app with one command from a function."""

    def app_of(function: Command) -> typer.Typer:
        """Return the app."""
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        subcommand(app, cls=cls, **settings)(function)
        return app

    return app_of


def subcommand(
    app: typer.Typer, name: str | None = None, *, cls: type[ConfiguredCommand] = ConfiguredCommand, **settings: Any
) -> Callable[[Command], Command]:
    """Return a decorator that adds a function to an app as a command. The function itself stays as it is."""
    return lambda function: app.command(name, cls=cls, **settings)(grouped(function))


_type_hints: Any = functools.cache(get_type_hints)


def grouped(command: Command) -> Command:
    """Return the function with a signature that typer reads: one parameter for each option, in place of groups of
    options.
    """
    signature = inspect.signature(command, eval_str=True)
    types = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    options = {"ctx": context} | {
        single.name: single
        for name, parameter in signature.parameters.items()
        for single in _options(name, parameter.annotation, parameter.default)
    }
    options |= {single.name: single for single in _options(_CONFIG, Path | None, CONFIG)}
    options |= {single.name: single for single in _options(_HELP_ALL, bool, HELP_ALL)}

    @functools.wraps(command)
    def call(**values: object) -> None:
        """Call the function with its groups of options."""
        del values[_CONFIG], values[_HELP_ALL]  # the values of the file are defaults by now
        set_colors(on=not values.get("no_color"))
        command(**{name: _value(name, annotation, values) for name, annotation in types.items()})

    call.__signature__ = signature.replace(parameters=list(options.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {name: single.annotation for name, single in options.items()}
    call.option_types = {  # type: ignore[attr-defined]
        name: OptionType.of(single.annotation, single.default)
        for name, single in options.items()
        if single is not context
    }
    return call  # type: ignore[return-value]


def _options(name: str, annotation: object, default: object) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each option of a group, or for the option itself."""
    if dataclasses.is_dataclass(annotation):
        hints = _type_hints(annotation)
        for field in dataclasses.fields(annotation):
            yield from _options(field.name, hints[field.name], field)
    elif isinstance(default, dataclasses.Field) and _TYPER in default.metadata:
        info = default.metadata[_TYPER]
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=annotation)
    elif isinstance(default, dataclasses.Field) and _GROUP in default.metadata:
        for option_name, declared in default.metadata[_GROUP].items():
            yield _declared_option(option_name, declared)
    elif isinstance(default, dataclasses.Field) and (declaration := declaration_of(default)) is not None:
        yield _declared_option(name, DeclaredOption(annotation, default.default, declaration))


def _declared_option(name: str, declared: DeclaredOption) -> inspect.Parameter:
    """Return the parameter of an option that playbooks and files also have."""
    # Our own check of limits also serves playbooks and ipexctl.toml, so typer gets none.
    declaration, is_list = declared.declaration, declared.type == tuple[str, ...]
    info = _typer_option(
        declaration.words,
        declaration.help,
        None if is_list else declared.default,
        autocompletion=completion("environments") if declaration.kind == "env" else None,
    )
    is_on_control_machine = declaration.kind == "directory"  # shells complete its name
    annotation = list[str] | None if is_list else Path | None if is_on_control_machine else declared.type
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=annotation)


def _value(name: str, annotation: object, values: dict[str, Any], default: object = None) -> Any:
    """Return the value of a parameter: of a group, a record with the values of its options."""
    if annotation == Defaults:
        return defaults_of(values["ctx"])
    if annotation == tuple[str, ...]:
        return tuple(values[name] or ())
    if isinstance(default, dataclasses.Field) and _GROUP in default.metadata:
        group = default.metadata[_GROUP]
        return annotation(
            **{option_name: _value(option_name, declared.type, values) for option_name, declared in group.items()}
        )  # type: ignore[operator]
    if not dataclasses.is_dataclass(annotation):
        return values[name]
    hints = _type_hints(annotation)
    fields = dataclasses.fields(annotation)
    return annotation(**{field.name: _value(field.name, hints[field.name], values, field) for field in fields})  # type: ignore[operator]

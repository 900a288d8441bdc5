"""The root of the command line: the list of commands, and what all commands have in common.

The module of a command is imported only if the command is called, and Tab imports none, so that the start stays short.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Set
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import ipexctl
from ipexctl.addons_list import COMMANDS as ADDONS
from ipexctl.commands.option_types import AdoptsOptions
from ipexctl.errors import Interrupted, OutputError, UserError
from ipexctl.removed import COMMANDS as INSTEAD
from ipexctl.removed import OPTIONS
from ipexctl.ui.safe_output import guard_stdout, print_document

DAILY: Final = ("doctor", "install", "run", "ps", "attach", "logs", "why", "stop", "fetch", "exec")
"""Commands that come first in the list."""
CORE: Final[Mapping[str, str]] = {
    "doctor": "Check if the hosts can train together.",
    "install": "Install a matching PyTorch stack on every host.",
    "run": "Run a script on all hosts, one process per rank.",
    "ps": "List the runs started from the control machine and their states.",
    "attach": "Watch a run again until it ends.",
    "logs": "Print the output of a run's ranks.",
    "why": "Explain why a run ended, hangs or is slow, and what to do.",
    "stop": "Stop a run on every node.",
    "fetch": "Fetch checkpoints, logs and other files of a run or a host.",
    "exec": "Run one command on every host and show its output live.",
    "config": "Show the value of every option and where it comes from.",
    "envs": "List, remove or verify the environments on every host.",
    "push": "Copy data, or models and datasets of a hub, to every host.",
    "sync": "Sync a project directory to the same path on every host.",
    "uninstall": "Remove ipexctl from the hosts and the control machine.",
    "versions": "Show the table of stacks and which one install would choose.",
    "wait": "Wait until runs are over, without touching them.",
}
"""Command → its line in the help. The module `NAME_command` of this package defines the command."""


def groups() -> Mapping[str, Mapping[str, str]]:
    """Return the commands of the help: group → command → its line."""
    others = {name: text for name, text in sorted({**CORE, **ADDONS}.items()) if name not in DAILY}
    return {"Every day": {name: CORE[name] for name in DAILY}, "Others": others}


def commands() -> Mapping[str, str]:
    """Return all commands, in the order of the help: command → its line."""
    return {name: text for of_group in groups().values() for name, text in of_group.items()}


def is_command(name: str) -> bool:
    """True for a command of ipexctl or of an addon."""
    return name in CORE or name in ADDONS


CLUSTER: Final = "cluster"
CONNECTION: Final = (
    *("cluster", "user", "port", "identity", "ssh_config", "known_hosts", "host_keys"),
    *("transport", "forks", "connect_timeout", "timeout"),
)
"""Options of each command that connects to hosts. The list of commands explains them, once."""
DEFAULTS: Final = "ipexctl.defaults"
"""Key of the context's `meta` for the options of this call that a file sets."""
SHARED_GROUPS: Final[list[Set[str]]] = []
"""Parameters of each shared group of options; the group of the output is the last. Set by `option_groups.py`."""


class ConfiguredValue(NamedTuple):
    """The value that a file or a variable sets for an option."""

    value: object
    source: str
    """The file, such as `ipexctl.toml`, or the variable, such as `$IPEXCTL_HOME`."""
    line: int = 0
    """Number of the line in the file; 0 for a variable."""
    table: str = ""
    """Table of the file: `run`, `cluster.lab`; empty for the top of the file."""
    is_found: bool = False
    """True for the file of a project, which the user did not name."""
    named_file: str = ""
    """Absolute path of the file that `--config` names; empty for other files."""
    is_chosen: bool = False
    """True for the cluster that the command line names."""


Defaults: TypeAlias = Mapping[str, ConfiguredValue]


def defaults_of(ctx: typer.Context) -> Defaults:
    """Return the options of this call that a file sets: parameter → value. Empty before the files are read."""
    defaults: Defaults = ctx.meta.get(DEFAULTS, {})
    return defaults


UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__base__)
"""click's UsageError, which typer does not export."""


def load_command(name: str) -> Any:
    """Import the module of a command, of this package or of an addon, and return the command or group of commands."""
    package = "commands" if name in CORE else f"addons.{name}"
    return get_command(getattr(import_module(f"ipexctl.{package}.{name}_command"), f"{name}_command"))


class CommandGroup(AdoptsOptions, TyperGroup):
    """A group of commands whose options have our types."""


class _Commands(CommandGroup):
    """The group of all commands."""

    _only_named = False
    """True while Tab asks for names: then no module is imported."""

    def list_commands(self, ctx: object) -> list[str]:
        """Return the names of all commands."""
        del ctx
        return list(commands())

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        """Return the command; None if there is none of this name."""
        del ctx
        if not is_command(cmd_name):
            return None
        if self._only_named:
            return TyperCommand(cmd_name, short_help=commands()[cmd_name])
        command = load_command(cmd_name)
        command.name = cmd_name
        return command

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a word without importing a command."""
        self._only_named = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._only_named = False

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and turn errors of click and of signals into our own."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted(130) from None
        except BrokenPipeError as error:  # typer would exit with 1
            raise OutputError(error) from None
        except EOFError as error:  # typer would print "Aborted!" and no more
            raise RuntimeError("a connection or a file ended too early") from error
        except UsageError as error:
            raise _in_our_words(error, f"ipexctl {ctx.invoked_subcommand}") from None

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Read the options before the command."""
        try:
            return super().make_context(*args, **more)
        except UsageError as error:
            raise _in_our_words(error, "ipexctl") from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Refuse a command that does not exist, with a fix: what replaces it, or a similar name."""
        if args and not args[0].startswith("-") and not is_command(args[0]):
            message = f"there is no command {args[0]!r}"
            if args[0] in INSTEAD:
                raise UserError(message, fix=INSTEAD[args[0]])
            near = get_close_matches(args[0], commands(), n=1)
            ctx.fail(message + (f"; did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands before the options, so that they are on the first screen."""
        self.format_commands(ctx, formatter)
        with formatter.section("Options"):
            formatter.write_dl([record for param in self.get_params(ctx) if (record := param.get_help_record(ctx))])
        params = {param.name: param for param in load_command("doctor").params}
        with formatter.section("Options of each command that connects to hosts"):
            formatter.write_dl([params[name].get_help_record(ctx) for name in CONNECTION], col_max=22)

    def format_commands(self, ctx: object, formatter: Any) -> None:
        """Write the commands, by group."""
        del ctx
        width = max(map(len, commands()))
        for group, of_group in groups().items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), text) for name, text in of_group.items()])


def _in_our_words(error: Any, command: str) -> Exception:
    """Return a UserError in place of an error of click. `command`: of this call, for errors that do not know theirs."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return cast("Exception", error)
    path = error.ctx.command_path if error.ctx else command
    if instead := OPTIONS.get((path.removeprefix("ipexctl "), getattr(error, "option_name", ""))):
        return UserError(f"there is no option {error.option_name}", fix=instead)
    return UserError(_sentence(error), fix=f"list what is possible: {path} --help")


def _sentence(error: Any) -> str:
    """Return the message of click's error as ipexctl says it."""
    kind = type(error).__name__
    if kind == "NoSuchOption":
        near = get_close_matches(error.option_name, error.possibilities or (), n=1, cutoff=0.75)
        return f"there is no option {error.option_name}" + (f"; did you mean {near[0]}?" if near else "")
    if kind == "BadOptionUsage":
        return f"{error.option_name} needs a value"
    extra = re.fullmatch(r"Got unexpected extra argument\S* \((.*)\)", error.message, re.S)
    return f"too many arguments: {extra[1]}" if extra else str(error.message).rstrip(".")


app = typer.Typer(
    cls=_Commands,
    name="ipexctl",
    help="Run PyTorch training on machines you can ssh to: ipexctl run train.py",
    no_args_is_help=True,
    rich_markup_mode=None,  # help in colour costs as much start-up as everything else together
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print_document(f"ipexctl {ipexctl.__version__}\n")
        raise typer.Exit


def _show_skill(wanted: bool) -> None:
    if wanted:
        print_document(Path(ipexctl.__file__).with_name("SKILL.md").read_text(encoding="utf-8"))
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    skill: Annotated[
        bool,
        typer.Option("--skill", callback=_show_skill, is_eager=True, help="Show the page for coding agents and exit."),
    ] = False,
    no_config: Annotated[bool, typer.Option("--no-config", help="Take no defaults from files (ipexctl.toml).")] = False,
) -> None:
    """Read the options before the command."""
    del version, skill, no_config


def run_app() -> None:
    """Run the call of `sys.argv`. An error in a thread is reported as in `main`, with a log file."""

    def report_in_thread(args: threading.ExceptHookArgs) -> None:
        """Report a crash in a thread. SystemExit and the like end the thread without a word."""
        if isinstance(args.exc_value, Exception):
            from ipexctl.ui.error_output import report_crash

            report_crash(args.exc_value)

    threading.excepthook = report_in_thread
    guard_stdout()
    app(prog_name="ipexctl")

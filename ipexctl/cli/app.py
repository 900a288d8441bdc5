"""The command line as a whole: which commands there are, and what every one of them has.

A command's module is imported when that command is called, so that start-up doesn't grow with their number.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import ipexctl
from ipexctl.errors import Interrupted, OutputError

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMANDS: Final[Mapping[str, str]] = {
    "doctor": "Look at every host: can they train together, and what must be mended?",
    "versions": "Show which versions belong together, and which would be taken.",
    "install": "Put one matching PyTorch stack on every host, verified.",
    "envs": "Show the environments on every host, take one away, prove one.",
    "run": "Run one script on every rank of every node.",
    "sync": "Bring a project directory to the same path on every host.",
    "ps": "Show the runs started from this machine, and how they are.",
    "logs": "Print what a run's ranks have printed.",
    "attach": "Watch a run that goes on.",
    "why": "Say what ended a run, the likely cause, and what to do.",
    "dump": "Show where every rank of a run is: its Python stack.",
    "stop": "End a run everywhere.",
    "fetch": "Bring checkpoints, logs and other files of a run or a host here.",
    "exec": "Run one command on every host, and see its output live.",
    "play": "Run a playbook: files, commands and the verbs of this tool, on all hosts.",
    "trust": "Let node0 reach every node by ssh, as mpirun needs it.",
    "export": "Print the plan of a run for another launcher.",
    "lab": "Make a cluster of real SSH hosts on this machine, break it, mend it.",
}
"""Each command with its line in the help; its options are in the module of that name beside this one."""


UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__base__)
"""A call that can't be read: typer has it under no name of its own."""


class _Commands(TyperGroup):
    _only_named = False

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        if self._only_named:
            return TyperCommand(cmd_name, short_help=COMMANDS[cmd_name])
        command = get_command(import_module(f"ipexctl.cli.{cmd_name}").app)
        command.name = cmd_name
        return command

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """A command's name is completed without loading what begins with it."""
        self._only_named = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._only_named = False

    def invoke(self, ctx: Any) -> Any:
        """With --json a call that can't be read has its document too, and so has one that a signal ended."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted(130) from None
        except BrokenPipeError as error:  # typer would say 1
            raise OutputError(error) from None
        except UsageError as error:
            from ipexctl.ui.json_errors import print_json_error

            print_json_error(error.format_message())
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"there is no command {args[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=_Commands,
    name="ipexctl",
    help="Turn a list of machines you can ssh to into one PyTorch training job.",
    epilog="Example: ipexctl exec --hosts 'node[1-4]' --gather -- uname -r",
    no_args_is_help=True,
    rich_markup_mode=None,  # help in colour costs as much start-up as everything else together
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ipexctl {ipexctl.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version

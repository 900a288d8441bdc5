"""`ipexctl exec`: one command on every host."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from ipexctl.cli.options import Home, Output, Targets, shared
from ipexctl.errors import OutputError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipexctl.hosts.host import Host


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(no_args_is_help=True)
@shared(Targets, Home, Output)
def exec_command(
    targets: Targets,
    home: Home,
    output: Output,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- CMD ARGS…", show_default=False, help="Program and its arguments, passed literally."),
    ] = None,
    shell: Annotated[
        str | None,
        typer.Option("--shell", metavar="LINE", help="Line for sh in place of a program, with pipes and globs."),
    ] = None,
    gather: Annotated[
        bool, typer.Option("--gather", help="Print identical output once, under its hosts, at the end.")
    ] = False,
    stdin: Annotated[
        Path | None,
        typer.Option(
            "--stdin", readable=False, metavar="FILE", help="File to pass to the command's stdin on every host."
        ),
    ] = None,
) -> None:
    """Run one command on every host and show its output live.

    \b
    Example: ipexctl exec --hosts 'node[1-4]' --gather -- uname -r
    """
    from ipexctl.cli.hosts import check_home, choose_hosts, reach_options
    from ipexctl.cli.interrupt import cancelling
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.command import Command
    from ipexctl.remote.connector import Connector
    from ipexctl.remote.execute import ExecReport, execute
    from ipexctl.ui.exec import HeldOutput, LiveOutput, Problems, show_gathered, show_json
    from ipexctl.ui.messages import print_message

    if bool(command) == bool(shell):
        raise UserError("exec needs a command: -- CMD ARGS…, or --shell 'LINE' (one of the two)")
    wanted = Command.shell(shell) if shell else Command.argv(*(command or ()))
    check_home(home)  # a list of options about hosts is one for every command
    hosts = choose_hosts(targets)
    cancel = Cancel()
    held = output.json or gather
    shown = HeldOutput() if held else LiveOutput(cancel, no_color=output.no_color)

    def on_step(host: Host, step: str, seconds: float) -> None:
        if output.verbose:
            print_message(f"{host.name}: {step if output.verbose > 1 else step.split(' ')[0]} ({seconds:.3f} s)")

    started = time.monotonic()
    problems = Problems()
    ended = {}
    with cancelling(cancel) as interrupt, Connector(reach_options(targets)) as connector:
        for done in execute(
            hosts,
            wanted,
            connector=connector,
            cancel=cancel,
            sink_for=shown.sink_for,
            forks=targets.forks,
            timeout=targets.timeout,
            stdin_for=_opener(stdin),
            on_step=on_step,
        ):
            shown.finish(done.host)
            problems.add(done)
            ended[done.host] = done
    if isinstance(shown, LiveOutput):
        shown.close()
        if shown.broken:
            raise OutputError(shown.broken)
    report = ExecReport(tuple(ended[host] for host in hosts), time.monotonic() - started)
    if isinstance(shown, HeldOutput):
        (show_json if output.json else show_gathered)(report, shown)
    problems.print(None if interrupt.code is None else 1.0)
    raise typer.Exit(interrupt.code if interrupt.code is not None else report.exit_code)


def _opener(stdin: Path | None) -> Callable[[], BinaryIO] | None:
    """A way for every host to read the file from its start; what can be read but once is kept first."""
    if stdin is None:
        return None
    try:
        if stdin.is_file():
            stdin.open("rb").close()
            return lambda: stdin.open("rb")
        kept = tempfile.NamedTemporaryFile()  # noqa: SIM115  # lives as long as the call
        with stdin.open("rb") as source:
            shutil.copyfileobj(source, kept)
        kept.flush()
    except OSError as error:
        raise UserError(f"--stdin {stdin}: {error.strerror}") from None
    return lambda: open(kept.name, "rb")  # noqa: PTH123

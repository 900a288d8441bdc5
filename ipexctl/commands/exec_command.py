"""`ipexctl exec`: run one command on every host."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ipexctl.commands.option_groups import Home, Output, Targets, argument, command, flag, option
from ipexctl.errors import OutputError, UserError
from ipexctl.node.common.fix import Fix

if TYPE_CHECKING:
    from ipexctl.remote.fanout import ExecResult


@command(no_args_is_help=True)
def exec_command(
    *,
    command: list[str] | None = argument("-- CMD ARGS…", "Program and its arguments, passed literally.", None),
    shell: str | None = option("--shell LINE", "Line for sh instead of a program, with pipes and globs."),
    gather: bool = flag("--gather", "Print identical output once, under its hosts, at the end."),
    stdin: Path | None = option("--stdin FILE", "File to pass to the command's stdin on every host."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Run one command on every host and show its output live.

    \b
    Example: ipexctl exec --hosts 'node[1-4]' --gather -- uname -r
    """
    from ipexctl.api.open_hosts import execute
    from ipexctl.commands.target_hosts import open_hosts
    from ipexctl.remote.command import Command
    from ipexctl.ui.host_output import CollectedOutput, FailureReport, LiveOutput, show_gathered, show_json

    if bool(command) == bool(shell):
        raise UserError(
            "exec needs one command",
            fix=Fix("such as: `ipexctl exec -- uname -r`; a line of sh: `ipexctl exec --shell 'uname -r; uptime'`"),
        )
    request = Command.shell(shell) if shell else Command.argv(*(command or ()))
    with open_hosts(targets, home, output) as (opened, interrupt):
        problems = FailureReport(opened.options)
        is_collected = output.json or gather
        shown = CollectedOutput() if is_collected else LiveOutput(opened.pool.cancel)

        def on_done(done: ExecResult) -> None:
            """Finish the output of a host, and note its failure."""
            shown.finish(done.host)
            problems.add(done)

        report = execute(opened, request, shown.sink_for, on_done=on_done, stdin_for=_stdin_opener(stdin))
    if isinstance(shown, LiveOutput):
        shown.close()
        if shown.broken:
            raise OutputError(shown.broken)
    else:
        (show_json if output.json else show_gathered)(report, shown)
    problems.print()
    raise interrupt.or_exit(report.exit_code)


def _stdin_opener(stdin: Path | None) -> Callable[[], BinaryIO] | None:
    """Return a function that opens the file at its start, once per host; None without a file.

    A pipe is copied to a temporary file first, because every host reads all of it.
    """
    if stdin is None:
        return None
    try:
        if stdin.is_file():
            stdin.open("rb").close()
            return lambda: stdin.open("rb")
        copy = tempfile.NamedTemporaryFile()  # noqa: SIM115  # lives as long as the call
        with stdin.open("rb") as source:
            shutil.copyfileobj(source, copy)
        copy.flush()
    except OSError as error:
        raise UserError(f"--stdin {stdin}: {error.strerror}") from None
    return lambda: open(copy.name, "rb")  # noqa: PTH123

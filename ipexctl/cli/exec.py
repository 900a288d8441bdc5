"""`ipexctl exec`: runs one command on every host."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ipexctl.cli.options import Home, Output, Targets, argument, command, flag, option
from ipexctl.errors import OutputError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable


@command(no_args_is_help=True)
def exec_command(
    *,
    command: list[str] | None = argument("-- CMD ARGS…", "Program and its arguments, passed literally.", None),
    shell: str | None = option("--shell LINE", "Line for sh in place of a program, with pipes and globs."),
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
    from ipexctl.cli.hosts import call_options, check_home, choose_hosts, session_pool
    from ipexctl.remote.command import Command
    from ipexctl.remote.execute import execute
    from ipexctl.remote.outcome import Report
    from ipexctl.ui.exec import CollectedOutput, FailureReport, LiveOutput, show_gathered, show_json

    if bool(command) == bool(shell):
        raise UserError("exec needs one command", fix="ipexctl exec -- CMD ARGS…, or: ipexctl exec --shell 'LINE'")
    request = Command.shell(shell) if shell else Command.argv(*(command or ()))
    check_home(home)  # unused here, but every command takes and checks the same host options
    hosts = choose_hosts(targets)

    started = time.monotonic()
    problems = FailureReport(call_options(targets, home))
    results = {}
    with session_pool(targets, output, hosts=hosts, quiet=output.quiet) as (pool, interrupt):
        is_collected = output.json or gather
        output_view = CollectedOutput() if is_collected else LiveOutput(pool.cancel, no_color=output.no_color)
        for done in execute(
            hosts,
            request,
            connector=pool.connector,
            cancel=pool.cancel,
            sink_for=output_view.sink_for,
            forks=targets.forks,
            timeout=targets.timeout,
            stdin_for=_stdin_opener(stdin),
        ):
            output_view.finish(done.host)
            problems.add(done)
            results[done.host] = done
    if isinstance(output_view, LiveOutput):
        output_view.close()
        if output_view.broken:
            raise OutputError(output_view.broken)
    report = Report(tuple(results[host] for host in hosts), time.monotonic() - started)
    if isinstance(output_view, CollectedOutput):
        (show_json if output.json else show_gathered)(report, output_view)
    problems.print(None if interrupt.code is None else 1.0)
    raise interrupt.or_exit(report.exit_code)


def _stdin_opener(stdin: Path | None) -> Callable[[], BinaryIO] | None:
    """A function that opens the file at its start, once per host; a pipe is copied to a temporary file first."""
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

"""`ipexctl stop`: stops a run on every node."""

from __future__ import annotations

import typer

from ipexctl.cli.options import Output, RunArgument, shared
from ipexctl.errors import UserError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(no_args_is_help=True)
@shared(Output)
def stop_command(
    output: Output,
    run: RunArgument,
) -> None:
    """Stop a run on every node; ranks that do not end within 4 seconds are killed.

    \b
    Example: ipexctl stop last
    """
    from ipexctl.cli.interrupt import cancelling
    from ipexctl.cli.run_hosts import connector_of, report_host_error
    from ipexctl.jobs.registry import RunRegistry
    from ipexctl.jobs.stop import stop
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.outcome import HostError
    from ipexctl.ui.ps import show_stopped

    if output.json:
        raise UserError("stop has no --json", fix="ipexctl ps --json says how runs are")
    record = RunRegistry().find(run)
    cancel = Cancel()
    with cancelling(cancel) as interrupt, connector_of(record, output) as connector:
        try:
            session = connector.open(record.node0, cancel)
            try:
                result = stop(session, record, cancel=cancel)
            finally:
                session.close()
        except HostError as error:
            raise typer.Exit(interrupt.code or report_host_error(record, error)) from None
    show_stopped(record, result, quiet=output.quiet)
    raise typer.Exit(0 if result.is_over else 1)

"""`ipexctl why`: the first failure of a run, its last lines, the likely cause and the fix."""

from __future__ import annotations

import typer

from ipexctl.cli.options import Output, RunArgument, Timeout, shared

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(no_args_is_help=True)
@shared(Output)
def why_command(
    output: Output,
    run: RunArgument,
    timeout: Timeout = None,
) -> None:
    """Explain why a run ended: the first failure, its last lines, the likely cause and the fix.

    \b
    Example: ipexctl why last
    """
    from ipexctl.cli.hosts import check_seconds
    from ipexctl.cli.interrupt import cancelling
    from ipexctl.cli.run_hosts import connector_of
    from ipexctl.jobs.registry import RunRegistry
    from ipexctl.jobs.why.why import QUERY_TIMEOUT, why
    from ipexctl.remote.cancel import Cancel
    from ipexctl.ui.why import show, show_json

    check_seconds("--timeout", timeout)
    registry = RunRegistry()
    record = registry.find(run)
    cancel = Cancel()
    with cancelling(cancel), connector_of(record, output) as connector:
        seconds = timeout or QUERY_TIMEOUT
        report = why(record, lambda: connector.open(record.node0, cancel), registry.directory, cancel, timeout=seconds)
    if output.json:
        show_json(report)
    else:
        show(report, no_color=output.no_color)
    raise typer.Exit(report.exit_code)

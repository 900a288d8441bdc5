"""`ipexctl why`: the first failure of a run, its last lines, the likely cause and the fix."""

from __future__ import annotations

import typer

from ipexctl.cli.options import RUN, TIMEOUT, Output, command


@command()
def why_command(
    *,
    run: str = RUN,
    timeout: float | None = TIMEOUT,
    output: Output,
) -> None:
    """Explain why a run ended: the first failure, its last lines, the likely cause and the fix.

    For a live run, show the line of code that each rank executes.

    \b
    Example: ipexctl why last
    """
    from ipexctl.api.hosts import check_seconds
    from ipexctl.api.runs import why
    from ipexctl.cli.run_hosts import call_about_runs, find_run
    from ipexctl.ui.why import as_json, show

    check_seconds("--timeout", timeout)
    record = find_run(run, output)
    with call_about_runs(output) as (caller, _):
        report = why(record, caller, timeout=timeout, is_last=run == "last")
    output.print_report(report, as_json, show)
    raise typer.Exit(report.exit_code)

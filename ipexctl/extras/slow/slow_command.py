"""`ipexctl slow`: which rank of a run is slow, why, and what it costs."""

from __future__ import annotations

import typer

from ipexctl.commands.run_calls import begun, call_about_runs, find_run
from ipexctl.commands.shared_options import RUN, TIMEOUT, Output, RunHosts, command
from ipexctl.extras.slow.slow import slow_of_run
from ipexctl.extras.slow.slow_report import as_json, show
from ipexctl.option_declaration import check_seconds


@command()
def slow_command(
    *,
    run: str = RUN,
    timeout: float | None = TIMEOUT,
    where: RunHosts,
    output: Output,
) -> None:
    """Name the slow rank of a run, with the evidence, the likely cause and what it costs.

    All-reduce makes every rank as slow as the slowest one, so slow compares the time that each rank needs itself.

    \b
    Example: ipexctl slow last
    """
    check_seconds("--timeout", timeout)
    record = begun(find_run(run, where, output), output)
    with call_about_runs(output) as (caller, _):
        result = slow_of_run(record, caller, timeout=timeout)
    output.print_report(result, as_json, show)
    raise typer.Exit(result.exit_code)

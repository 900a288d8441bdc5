"""`ipexctl slow`: which rank of a run is slow, why, and what it costs."""

from __future__ import annotations

import typer

from ipexctl.cli.options import RUN, TIMEOUT, Output, command
from ipexctl.limits import SLOW_ANSWER


@command()
def slow_command(
    *,
    run: str = RUN,
    timeout: float | None = TIMEOUT,
    output: Output,
) -> None:
    """Name the slow rank of a run, with the evidence, the likely cause and what it costs.

    All-reduce makes every rank as slow as the slowest; this compares their own time without it.

    \b
    Example: ipexctl slow last
    """
    from ipexctl.api.hosts import check_seconds
    from ipexctl.api.runs import node0_of
    from ipexctl.cli.run_hosts import begun, call_about_runs, find_run
    from ipexctl.extras.slow.slow import slow
    from ipexctl.extras.slow.view import as_json, show
    from ipexctl.run.registry import RunRegistry

    check_seconds("--timeout", timeout)
    registry = RunRegistry()
    record = begun(find_run(run, output, registry), output)
    with call_about_runs(output) as (caller, _), node0_of(record, caller) as pool:
        result = slow(record, pool.session, registry.directory, pool.cancel, timeout=timeout or SLOW_ANSWER)
    output.print_report(result, as_json, show)
    raise typer.Exit(result.exit_code)

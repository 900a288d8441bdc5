"""`ipexctl why`: the first failure of a run, its last lines, the likely cause and the fix."""

from __future__ import annotations

from functools import partial

import typer

from ipexctl.cli.options import RUN, TIMEOUT, Output, command
from ipexctl.limits import WHY_ANSWER


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
    from ipexctl.cli.hosts import check_seconds, open_pool
    from ipexctl.cli.run_hosts import find_run, run_options
    from ipexctl.run.registry import RunRegistry, read_failed_call
    from ipexctl.run.why.why import mention_failed_call, mention_page, why
    from ipexctl.ui.why import as_json, show

    check_seconds("--timeout", timeout)
    registry = RunRegistry()
    record = find_run(run, output, registry)
    seconds = timeout or WHY_ANSWER
    with open_pool(run_options(record, output)) as (pool, _):
        connect = partial(pool.connector.open, record.node0, pool.cancel)
        report = why(record, connect, registry.directory, pool.cancel, timeout=seconds)
    if run == "last":
        report = mention_failed_call(report, read_failed_call(registry.directory))
    report = mention_page(report)
    output.print_report(report, as_json, show)
    raise typer.Exit(report.exit_code)

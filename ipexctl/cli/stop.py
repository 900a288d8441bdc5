"""`ipexctl stop`: stops a run on every node."""

from __future__ import annotations

import typer

from ipexctl.cli.options import NAMED_RUN, TIMEOUT, TextOutput, command
from ipexctl.errors import UserError
from ipexctl.limits import STOP_ANSWER


@command()
def stop_command(
    *,
    run: str | None = NAMED_RUN,
    timeout: float | None = TIMEOUT,
    output: TextOutput,
) -> None:
    """Stop a run on every node; ranks that do not end within 4 seconds are killed.

    \b
    Example: ipexctl stop last
    """
    from ipexctl.cli.hosts import check_seconds
    from ipexctl.cli.run_hosts import call_node0
    from ipexctl.node.common.records import FINAL
    from ipexctl.run.local_copy import save_final_status
    from ipexctl.run.registry import RunRegistry
    from ipexctl.run.stop import stop
    from ipexctl.ui.ps import show_stopped

    if output.json:
        raise UserError("stop has no --json", fix="ipexctl ps --json says how runs are")
    check_seconds("--timeout", timeout)
    seconds = timeout or STOP_ANSWER
    registry = RunRegistry()
    record = registry.find_named(run, "stop")
    result = call_node0(record, output, lambda session, cancel: stop(session, record, timeout=seconds, cancel=cancel))
    if result.status.state in FINAL:
        save_final_status(registry.directory / record.id, result.status)
    show_stopped(record, result, quiet=output.quiet)
    raise typer.Exit(0 if result.status.is_over else 1)

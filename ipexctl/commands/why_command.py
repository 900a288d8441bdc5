"""`ipexctl why`: the first failure of a run, its last lines, the likely cause and the fix; or its ranks' stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import typer

from ipexctl.commands.shared_options import RANKS, RUN, TIMEOUT, Output, command, flag, is_on_command_line
from ipexctl.errors import CallError, UserError

if TYPE_CHECKING:
    from ipexctl.run.registry import RunRecord


@command()
def why_command(
    ctx: typer.Context,
    *,
    run: str = RUN,
    stacks: bool = flag("--stacks", "Show the Python stack of every rank of a live run, the smallest groups first."),
    ranks: str = RANKS,
    everything: bool = flag("--all -a", "With --stacks: every thread and process, and all calls of deep stacks."),
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
    from ipexctl.commands.run_calls import call_about_runs, find_run
    from ipexctl.ui.why import as_json, show

    check_seconds("--timeout", timeout)
    if not stacks and any(is_on_command_line(ctx, name) for name in ("ranks", "everything")):
        raise UserError("-r and --all choose stacks", fix="ipexctl why --stacks")
    record = find_run(run, output)
    if stacks:
        _show_stacks(record, output, ranks, everything=everything, timeout=timeout)
    with call_about_runs(output) as (caller, _):
        report = why(record, caller, timeout=timeout, is_last=run == "last")
    output.print_report(report, as_json, show)
    raise typer.Exit(report.exit_code)


def _show_stacks(record: RunRecord, output: Output, ranks: str, *, everything: bool, timeout: float | None) -> NoReturn:
    from ipexctl.api.runs import dump
    from ipexctl.commands.run_calls import begun, call_about_runs, chosen_ranks
    from ipexctl.node.common.records import RunStatus
    from ipexctl.ui.dump import show, show_json, show_over
    from ipexctl.ui.messages import print_with_fix

    wanted = chosen_ranks(begun(record, output), ranks)

    def show_error(reason: str) -> None:
        if output.json:
            show_json(None, record.id, reason)

    try:
        with call_about_runs(output) as (caller, _):
            found = dump(record, caller, wanted, timeout=timeout)
    except CallError as error:
        show_error(error.message)
        print_with_fix(error.message, error.fix)
        raise typer.Exit(error.exit_code) from None
    if isinstance(found, RunStatus):
        show_error(f"the run has ended: {found.state}" if found.is_over else "the run waits in the queue")
        show_over(found, record.id)
        raise typer.Exit(1)
    if output.json:
        show_json(found, record.id)
    else:
        show(found, record.id, everything=everything, quiet=output.quiet, no_color=output.no_color)
    raise typer.Exit(0 if found.is_whole else 1)

"""`ipexctl stop`: stop a run on every node."""

from __future__ import annotations

import typer

from ipexctl.commands.option_groups import NAMED_RUN, TIMEOUT, RunHosts, TextOutput, command, flag
from ipexctl.commands.ps_command import show_stopped
from ipexctl.errors import UserError
from ipexctl.homes.registry import LAST, RunRecord
from ipexctl.node.common.fix import Fix
from ipexctl.option_declaration import check_seconds
from ipexctl.projects.root import ProjectHere


def refuse_last(record: RunRecord, word: str | None) -> None:
    """Refuse `last` (or no word) if the last run was begun in another project."""
    if record.is_kept and word in LAST and not ProjectHere.find().has(record.typed.directory, record.project):
        reason = f"the last run, {record.id}, is of {record.project or 'another project'}"
        raise UserError(reason, fix=Fix(f"`ipexctl stop {record.id}`"))


@command()
def stop_command(
    *,
    run: str | None = NAMED_RUN,
    force: bool = flag("--force", "Stop a run that another account or machine began."),
    timeout: float | None = TIMEOUT,
    where: RunHosts,
    output: TextOutput,
) -> None:
    """Stop a run on every node; ranks that do not exit within 4 seconds are killed.

    \b
    Example: ipexctl stop last
    """
    from ipexctl.api.known_runs import stop
    from ipexctl.commands.named_runs import call_about_runs, find_named_run

    if output.json:
        raise UserError("stop has no --json", fix=Fix("`ipexctl ps --json` has the state of each run"))
    check_seconds("--timeout", timeout)
    record = find_named_run(run, "stop", where, output, reads=False)
    refuse_last(record, run)
    with call_about_runs(output, timeout=timeout) as (caller, _):
        result = stop(record, caller, force=force)
    show_stopped(record, result, quiet=output.quiet)
    raise typer.Exit(0 if result.status.is_over else 1)

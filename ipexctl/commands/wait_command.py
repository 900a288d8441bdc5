"""`ipexctl wait`: wait until runs are over, and exit with their code.

Nothing that happens to this call touches a run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from ipexctl.api.followed_runs import wait
from ipexctl.commands.named_runs import call_about_runs, find_runs
from ipexctl.commands.option_groups import RUNS, SUMMARY, Output, RunHosts, command, option
from ipexctl.commands.summary_file import check_summary, write_summary
from ipexctl.errors import UserError
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import encode
from ipexctl.run.ps import KnownRun
from ipexctl.run.wait import first_failure
from ipexctl.ui.message_output import fit_lines, print_message, print_with_fix
from ipexctl.ui.run.end_of_run import end_lines


@command()
def wait_command(
    *,
    runs: list[str] = RUNS,
    timeout: float | None = option("--timeout S", "Seconds to wait (default: until the runs are over).", min=0.1),
    summary: Path | None = SUMMARY,
    where: RunHosts,
    output: Output,
) -> None:
    """Wait until runs are over, and exit with the run's code, or the code of the first one that failed.

    A signal to this call does not touch a run. The call keeps asking a node0 that does not answer. After --timeout,
    the exit code is 124 if a run is still running, and 3 if its node0 does not answer.

    \b
    Example: ipexctl wait last && ipexctl fetch last:checkpoints/ ./out
    """
    records = list({record.id: record for record in find_runs(runs, where, output)}.values())
    if summary is not None and len(records) > 1:
        raise UserError("--summary is for one run", fix="--json has the outcome of several")
    check_summary(summary)
    began = time.monotonic()
    with call_about_runs(output, only_waits=True) as (caller, interrupt):

        def show(result: KnownRun) -> None:
            """Print the end of a run as soon as it is seen."""
            if not output.json and (interrupt.code is None or result.is_over):
                show_waited(result, quiet=output.quiet)

        results = wait(records, caller, timeout=timeout, on_result=show)
    ended = first_failure(results) if interrupt.code is None else interrupt.code
    if output.json:
        output.print_report(results, lambda waited: as_json(waited, ended), lambda *_, **__: None)
    if summary is not None:
        (result,) = results
        if not write_summary(summary, result.record, result.status, ended, time.monotonic() - began):
            ended = ended or 1
    raise typer.Exit(ended)


def show_waited(result: KnownRun, *, quiet: bool) -> None:
    """Print how a run ended, or why its end was not seen."""
    run = result.record.id
    if result.status is not None and result.is_over:
        if not (quiet and result.exit_code == 0):
            print_message(*fit_lines(end_lines(result.status, result.exit_code)))
    elif result.reason:
        print_with_fix(f"run {run}: its end was not seen: {result.reason}", result.fix)
    else:
        print_with_fix(
            f"run {run} is still running after --timeout",
            Fix(f"`ipexctl wait {run}`, or `ipexctl attach {run}`"),
        )


def as_json(results: Sequence[KnownRun], exit_code: int) -> dict[str, Any]:
    """Return the document."""
    return {
        "schema": "ipexctl.wait/1",
        "runs": [encode(result.document) for result in results],
        "exit_code": exit_code,
    }

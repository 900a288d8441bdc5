"""`ipexctl report`: one HTML page that shows a run."""

from __future__ import annotations

from pathlib import Path

import typer

from ipexctl.commands import complete
from ipexctl.commands.run_calls import begun, call_about_runs, find_run
from ipexctl.commands.shared_options import RUN, TIMEOUT, TextOutput, command, option
from ipexctl.errors import UserError
from ipexctl.extras.report.page_file import write_report
from ipexctl.option_declaration import check_seconds
from ipexctl.run.registry import RunRegistry
from ipexctl.ui.table import print_lines


@command()
def report_command(
    *,
    run: str = RUN,
    page_file: Path | None = option(
        "--output -o FILE", "The file to write (default: report-RUN.html in this directory)."
    ),
    compare: str | None = option(
        "--compare RUN",
        "Show what differs from another run, and the change of throughput.",
        autocompletion=complete.runs,
    ),
    timeout: float | None = TIMEOUT,
    output: TextOutput,
) -> None:
    """Write one HTML page that shows a run: how it ended, throughput, waiting ranks, hosts, the plan.

    The page is one file that loads nothing else: open it in a browser, or attach it to an issue after reading it.

    \b
    Example: ipexctl report last --compare train-1120-132512-9f3a
    """
    if output.json:
        raise UserError("report has no --json", fix="ipexctl why --json")
    check_seconds("--timeout", timeout)
    registry = RunRegistry()
    records = [begun(find_run(run, output, registry), output)]
    if compare is not None:
        records.append(begun(registry.find(compare), output))
    path = page_file or Path(f"report-{records[0].id}.html")
    with call_about_runs(output) as (caller, _):
        exit_code = write_report("-o", path, records, caller, timeout)
    print_lines([str(path)])
    raise typer.Exit(exit_code)

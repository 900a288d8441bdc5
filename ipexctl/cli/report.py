"""`ipexctl report`: one HTML page that shows a run."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ipexctl.cli import complete
from ipexctl.cli.options import RUN, TIMEOUT, TextOutput, command, option
from ipexctl.errors import UserError
from ipexctl.limits import WHY_ANSWER

if TYPE_CHECKING:
    from ipexctl.jobs.registry import RunRecord, RunRegistry
    from ipexctl.jobs.why.why import WhyResult


@command()
def report_command(
    *,
    run: str = RUN,
    file: Path | None = option("--output -o FILE", "The file to write (default: report-RUN.html in this directory)."),
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
    from ipexctl.cli.hosts import check_seconds
    from ipexctl.jobs.registry import RunRegistry
    from ipexctl.jobs.report.report import compared, page_of
    from ipexctl.ui.report.html import page_html
    from ipexctl.ui.table import print_lines

    if output.json:
        raise UserError("report has no --json", fix="ipexctl why --json")
    check_seconds("--timeout", timeout)
    registry = RunRegistry()
    record = registry.find(run)
    other = registry.find(compare) if compare is not None else None
    path = file or Path(f"report-{record.id}.html")
    check_file(path)
    answer = _why(record, registry, timeout, output)
    page = page_of(answer, registry.directory)
    if other is not None:
        page = compared(page, page_of(_why(other, registry, timeout, output), registry.directory))
    write_page(path, page_html(page))
    print_lines([str(path)])
    raise typer.Exit(answer.exit_code)


def _why(record: RunRecord, registry: RunRegistry, timeout: float | None, output: TextOutput) -> WhyResult:
    from ipexctl.cli.hosts import open_pool
    from ipexctl.cli.run_hosts import run_options
    from ipexctl.jobs.why.why import why

    with open_pool(run_options(record, output)) as (pool, _):
        connect = partial(pool.connector.open, record.node0, pool.cancel)
        return why(record, connect, registry.directory, pool.cancel, timeout=timeout or WHY_ANSWER)


def check_file(path: Path) -> None:
    """Raise a UserError, before any host is asked, for a file that can't be written."""
    if problem := _unwritable(path):
        raise UserError(f"-o {path}: {problem}", fix="name a file in a directory that you can write to")


def _unwritable(path: Path) -> str:
    try:
        if path.is_dir():
            return "it is a directory"
        if not path.parent.is_dir():
            return f"there is no directory {path.parent}"
        if path.exists() and not path.is_file():
            return "it is no regular file"
        is_writable = os.access(path.parent, os.W_OK)
    except PermissionError:
        is_writable = False
    return "" if is_writable else os.strerror(errno.EACCES)


def write_page(path: Path, text: str) -> None:
    """Replace the file; only this account can read it, as the lines of a run may be private."""
    from ipexctl.node.common.files import write_atomically

    try:
        write_atomically(path, text.encode(), durable=False, is_of_user=True)
    except OSError as error:
        why = error.strerror or os.strerror(error.errno or 0)
        raise UserError(f"-o {path}: {why}", fix="name a file in a directory that you can write to") from None

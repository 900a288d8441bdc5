"""Make the page of a run and write it: for `ipexctl report`, for `--report FILE` of `run`, and for `Run.report`.

A file that is neither empty nor such a page is never replaced: a mistyped `-o train.py` must not cost a script.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import typer

from ipexctl.addons.report.html import GENERATOR, page_html
from ipexctl.addons.report.measurements import measurements_of
from ipexctl.addons.report.page import Fact, ReportPage, compare, report_page
from ipexctl.api.known_runs import CallWatcher, node0_of
from ipexctl.commands.named_runs import call_about_runs, find_runs
from ipexctl.commands.option_groups import RUN, TIMEOUT, Output, RunHosts, TextOutput, command, completion, option
from ipexctl.errors import UserError
from ipexctl.files.named_paths import check_named_file, write_named_file
from ipexctl.homes.registry import RunRecord, RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.files import read_json
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.plan import PLAN_FILE, Plan, read_valid_plan
from ipexctl.option_declaration import check_seconds
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.session import Session
from ipexctl.run.why.diagnosis import Diagnosis
from ipexctl.run.why.read_snapshot import RunSnapshot
from ipexctl.run.why.why import why
from ipexctl.run.windows import RunWindows
from ipexctl.text import format_clock, format_count
from ipexctl.ui.message_output import print_message
from ipexctl.ui.text_table import print_lines


def report_of(
    record: RunRecord, open_session: Callable[[Host], Session], runs: Path, cancel: Cancel
) -> tuple[ReportPage, int]:
    """Return the page of a run, and the exit code that `ipexctl why` has for it.

    node0 is asked for the record. If node0 does not answer or has no record, the copy in `runs`, the registry's
    directory, is read; if there is no copy either, the page says only what the control machine knows.
    """
    answer = why(record, open_session, runs, cancel, has_losses=True)
    copy, snapshot = runs / record.id, answer.snapshot
    if snapshot is None:
        return page_without_record(answer.record, answer.diagnosis), answer.exit_code
    windows = answer.windows or RunWindows()
    host_names = {row.rank: row.host for row in snapshot.status.ranks}
    # `windows.hosts` names a host by its rank that measured it.
    hosts = {host_names[rank]: measured for rank, measured in windows.hosts.items() if rank in host_names}
    measured = measurements_of(windows.ranks, hosts, snapshot.losses, snapshot.series)
    page = report_page(answer.record, snapshot, answer.diagnosis, _plan(snapshot, copy), measured)
    return replace(page, slow=answer.slow, record=answer.record, profile=answer.profile), answer.exit_code


def page_without_record(record: RunRecord, diagnosis: Diagnosis) -> ReportPage:
    """Return the page of a run of which only the registry's entry is known."""
    facts = [Fact("Script", record.plan.script)]
    if record.hosts:
        ranks = format_count(record.plan.world_size, "rank")
        facts.append(Fact("Hosts", f"{ranks} on {format_count(len(record.hosts), 'host')}: {fold(record.hosts)}"))
    if record.started:
        facts.append(Fact("Started", format_clock(record.started, "%Y-%m-%d %H:%M:%S")))
    missing = ("everything else: the record of the run is only on node0",)
    return ReportPage(record.id, diagnosis, tuple(facts), missing=missing)


def _plan(snapshot: RunSnapshot, copy: Path) -> Plan:
    """Return the plan in the copy on this machine, because it has the variables; without one, what node0 sent."""
    copied = read_valid_plan(read_json(copy / PLAN_FILE))
    return copied if copied.settings else snapshot.context.plan


_NAME_NEW_FILE: Final = "name a new file in a directory that you can write to, such as report.html"
_HEAD_SIZE: Final = 4096
"""Bytes at the beginning of a page that contain `GENERATOR`."""


@dataclass(frozen=True, slots=True)
class RunPageFile:
    """FILE of `--report`, to which `ipexctl run` writes the page when the run has ended."""

    path: Path

    def check(self, *, has_end: bool) -> None:
        """Refuse the option before the run starts, if the page could not be written.

        `has_end`: False if the call ends before the run.
        """
        if not has_end:
            raise UserError(
                "--report is written at the end of the run, so it cannot be used with --detach or --dry-run",
                fix=Fix("write it later: `ipexctl report`"),
            )
        check_file("--report", self.path)

    def write(self, record: RunRecord, output: Output) -> bool:
        """Write the page; False if the file cannot be written.

        That is printed and raises nothing, because the run's exit code matters more. A UserError about the run itself
        is not caught here.
        """
        with call_about_runs(output) as (caller, _):
            page, _ = _make_report(record, caller)
        try:
            write_page("--report", self.path, page_html(page))
        except UserError as error:
            print_message(f"{error.message}; the page is not written")
            return False
        output.print_note(f"the page of the run: {self.path}")
        return True


def check_file(option: str, path: Path) -> None:
    """Refuse a path that cannot be written, or that is a file of another kind. `option`: for the message."""
    if problem := _find_problem(path):
        raise UserError(f"{option} {path}: {problem}", fix=_NAME_NEW_FILE)


def _find_problem(path: Path) -> str:
    """Return why a page cannot be written to this path; empty if it can.

    Raises a UserError for a path that `check_named_file` refuses.
    """
    try:
        if path.is_dir():
            return "it is a directory"
        if not path.parent.is_dir():
            return f"there is no directory {path.parent}"
        if path.exists() and not path.is_file():
            return "it is not a regular file"
        if path.exists() and not _is_page(path):
            return "it exists and is not a page of ipexctl report"
        check_named_file(path)
        is_writable = os.access(path.parent, os.W_OK)
    except PermissionError:
        is_writable = False
    return "" if is_writable else os.strerror(errno.EACCES)


def _is_page(path: Path) -> bool:
    """True if the file may be replaced: it is empty or a page that ipexctl wrote."""
    with path.open("rb") as file:
        head = file.read(_HEAD_SIZE)
    return not head or GENERATOR.encode() in head


def write_report(option: str, path: Path, records: Sequence[RunRecord], caller: CallWatcher) -> int:
    """Write the page of the first run, compared with the other ones, and return the exit code of `why` for it."""
    check_file(option, path)
    (page, exit_code), *others = [_make_report(record, caller) for record in records]
    comparison = compare(page, *(other for other, _ in others)) if others else None
    write_page(option, path, page_html(replace(page, comparison=comparison)))
    return exit_code


def _make_report(record: RunRecord, caller: CallWatcher) -> tuple[ReportPage, int]:
    """Return the page of a run and the exit code of `why`, over a connection to node0 that ends with this call."""
    with node0_of(record, caller) as pool:
        return report_of(record, pool.session, RunRegistry().directory, pool.cancel)


def write_page(option: str, path: Path, text: str) -> None:
    """Write the page so that only this account can read it: lines that the run printed may be private.

    Raises a UserError if the file cannot be written.
    """
    try:
        write_named_file(path, text.encode(), 0o600)
    except OSError as error:
        why = error.strerror or os.strerror(error.errno or 0)
        raise UserError(f"{option} {path}: {why}", fix=_NAME_NEW_FILE) from None


@command()
def report_command(
    *,
    run: str = RUN,
    page_file: Path | None = option(
        "--output -o FILE", "The file to write (default: report-RUN.html in this directory)."
    ),
    compare: list[str] | None = option(
        "--compare RUN",
        "Show what differs from another run (repeatable), both losses, and the change of throughput.",
        autocompletion=completion("runs"),
    ),
    timeout: float | None = TIMEOUT,
    where: RunHosts,
    output: TextOutput,
) -> None:
    """Write one HTML page that shows a run: how it ended, throughput, waiting ranks, hosts, the plan.

    The page is one file that loads nothing else: open it in a browser, or attach it to an issue after reading it.

    \b
    Example: ipexctl report last --compare train-1120-132512-9f3a
    """
    if output.json:
        raise UserError("report has no --json", fix=Fix("`ipexctl why --json`"))
    check_seconds("--timeout", timeout)
    records = find_runs([run, *(compare or [])], where, output)
    path = page_file or Path(f"report-{records[0].id}.html")
    with call_about_runs(output, timeout=timeout) as (caller, _):
        exit_code = write_report("-o", path, records, caller)
    print_lines([str(path)])
    raise typer.Exit(exit_code)

"""Writes the page of a run: for `ipexctl report`, `--report FILE` and `Run.report`. Never replaces other files."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.api.known_runs import CallWatcher, node0_of
from ipexctl.errors import UserError
from ipexctl.extras.report.html import GENERATOR, page_html
from ipexctl.extras.report.report import RunReport, compared, report_of
from ipexctl.limits import WHY_ANSWER
from ipexctl.named_paths import check_named_file, write_named_file
from ipexctl.run.registry import RunRecord, RunRegistry
from ipexctl.ui.messages import print_message

if TYPE_CHECKING:
    from ipexctl.commands.shared_options import Output

_FIX: Final = "name a new file in a directory that you can write to, such as report.html"
_HEAD: Final = 4096


@dataclass(frozen=True, slots=True)
class RunPageFile:
    path: Path

    def check(self, *, detach: bool, dry_run: bool) -> None:
        if detach or dry_run:
            raise UserError(
                "--report is written at the end of the run, so it cannot be used with --detach or --dry-run",
                fix="ipexctl report writes it at any time",
            )
        check_file("--report", self.path)

    def write(self, record: RunRecord, output: Output) -> bool:
        """The run's exit code matters more: a failure is only reported."""
        from ipexctl.commands.run_calls import call_about_runs

        with call_about_runs(output) as (caller, _):
            page = _make_report(record, caller, None).page
        try:
            write_page("--report", self.path, page_html(page))
        except UserError as error:
            print_message(f"{error.message}; it is not written")
            return False
        output.print_note(f"the page of the run: {self.path}")
        return True


def check_file(option: str, path: Path) -> None:
    if problem := _unwritable(path):
        raise UserError(f"{option} {path}: {problem}", fix=_FIX)


def _unwritable(path: Path) -> str:
    try:
        if path.is_dir():
            return "it is a directory"
        if not path.parent.is_dir():
            return f"there is no directory {path.parent}"
        if path.exists() and not path.is_file():
            return "it is not a regular file"
        if path.exists() and not _is_page(path):
            return "it exists, and is not a page of ipexctl report"
        check_named_file(path)
        is_writable = os.access(path.parent, os.W_OK)
    except PermissionError:
        is_writable = False
    return "" if is_writable else os.strerror(errno.EACCES)


def _is_page(path: Path) -> bool:
    """True if the file may be replaced: empty, or a page of another report."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return not head or GENERATOR.encode() in head


def write_report(
    option: str, path: Path, records: Sequence[RunRecord], caller: CallWatcher, timeout: float | None = None
) -> int:
    """Write the page, compared with a second run if named. Exits with the code of `why`."""
    check_file(option, path)
    report, *others = [_make_report(record, caller, timeout) for record in records]
    page = compared(report.page, others[0].page) if others else report.page
    write_page(option, path, page_html(page))
    return report.exit_code


def _make_report(record: RunRecord, caller: CallWatcher, timeout: float | None) -> RunReport:
    with node0_of(record, caller) as pool:
        connect = partial(pool.connector.open, record.node0, pool.cancel)
        return report_of(record, connect, RunRegistry().directory, pool.cancel, timeout=timeout or WHY_ANSWER)


def write_page(option: str, path: Path, text: str) -> None:
    """Only this account can read it: lines of the run may be private."""
    try:
        write_named_file(path, text.encode(), 0o600)
    except OSError as error:
        why = error.strerror or os.strerror(error.errno or 0)
        raise UserError(f"{option} {path}: {why}", fix=_FIX) from None

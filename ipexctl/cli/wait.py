"""`ipexctl wait`: waits until runs are over, and ends with their exit code."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ipexctl.cli.options import RUNS, SUMMARY, Output, command, option
from ipexctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.cli.interrupt import Leave
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session
    from ipexctl.run.registry import RunRecord
    from ipexctl.run.wait import WaitResult


@command()
def wait_command(
    *,
    runs: list[str] = RUNS,
    timeout: float | None = option("--timeout S", "Seconds to wait (default: until the runs are over).", min=0.1),
    summary: Path | None = SUMMARY,
    output: Output,
) -> None:
    """Wait until runs are over, and end with the exit code of the run, or of the first one that failed.

    No signal to this call touches a run. A node0 that is away is asked again. The exit code is 124 if a run goes on
    when --timeout is over, and 3 if its node0 does not answer then.

    \b
    Example: ipexctl wait last && ipexctl fetch last:checkpoints/ ./out
    """
    from ipexctl.cli.interrupt import handling_signals
    from ipexctl.cli.run_hosts import connector_of
    from ipexctl.cli.summary_file import check_summary, write_summary
    from ipexctl.remote.cancel import Cancel
    from ipexctl.run.registry import RunRegistry
    from ipexctl.run.wait import first_failure, wait_for_runs
    from ipexctl.ui.wait import as_json, show_waited

    registry = RunRegistry()
    records = list({record.id: record for record in map(registry.find, runs)}.values())
    if summary is not None and len(records) > 1:
        raise UserError("--summary is for one run", fix="--json has the outcome of several")
    check_summary(summary)
    began = time.monotonic()
    cancel = Cancel()
    code: int | None = None

    def handle_signal(number: int, leave: Leave) -> None:
        nonlocal code
        if cancel.thrown and code is not None:
            leave("")
        code = 128 + number
        cancel.throw()

    results: list[WaitResult] = []
    with handling_signals(handle_signal), ExitStack() as connectors, _TimeLimit(timeout, cancel):
        # One for each run, however often it connects again: a login at a bastion is held until the end of the call.
        connector_by_run = {record.id: connectors.enter_context(connector_of(record, output)) for record in records}

        def open_session(record: RunRecord, cancel: Cancel) -> Session:
            return connector_by_run[record.id].open(record.node0, cancel)

        for result in wait_for_runs(records, registry.directory, open_session, cancel, output.print_note):
            results.append(result)
            if not output.json and (code is None or result.is_over):
                show_waited(result, quiet=output.quiet)
    in_order = _in_order(records, results)
    ended = first_failure(in_order) if code is None else code
    if output.json:
        output.print_report(in_order, lambda found: as_json(found, ended), lambda *_, **__: None)
    if summary is not None:
        (result,) = in_order
        if not write_summary(summary, result.record, result.status, ended, time.monotonic() - began):
            ended = ended or 1
    raise typer.Exit(ended)


def _in_order(records: Sequence[RunRecord], results: Sequence[WaitResult]) -> list[WaitResult]:
    by_id = {result.record.id: result for result in results}
    return [by_id[record.id] for record in records if record.id in by_id]


class _TimeLimit:
    """Throws `cancel` once the time is over."""

    def __init__(self, seconds: float | None, cancel: Cancel) -> None:
        self._timer = None if seconds is None else threading.Timer(seconds, cancel.throw)

    def __enter__(self) -> None:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

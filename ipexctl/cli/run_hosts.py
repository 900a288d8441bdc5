"""Finds a known run and connects to its node0, for the commands that take RUN; `run/node0.py` makes the calls there.

In: the word of the call, such as `last`. Out: the run's record, and one step on its node0, whose failure is printed and
ends the call. The rule: where `last` may surprise, as the current directory is in another project, the run is named.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from ipexctl.errors import UserError
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.outcome import Cancelled, HostError, Unreachable
from ipexctl.run.node0 import options_of
from ipexctl.run.ranks import parse_ranks
from ipexctl.text import printable
from ipexctl.ui.messages import print_message, print_with_fix

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipexctl.cli.options import Output
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session
    from ipexctl.run.ps import KnownRun
    from ipexctl.run.registry import RunRecord, RunRegistry

Answer = TypeVar("Answer")


def find_run(word: str, output: Output, registry: RunRegistry | None = None) -> RunRecord:
    """The run of that word. Of `last` from another project's directory, the project is named: it is the last of all."""
    from ipexctl.run.registry import RunRegistry
    from ipexctl.sync.root import find_root, is_marked

    record = (registry or RunRegistry()).find(word)
    if word == "last" and record.project and not output.json:
        try:
            root = find_root(None, None, Path.cwd())
        except (OSError, UserError):  # no directory of a project
            return record
        if is_marked(root) and str(root) != record.project:
            output.print_note(f"last is run {record.id}, of the project {printable(record.project)}")
    return record


def run_options(record: RunRecord, output: Output | None = None) -> ConnectOptions:
    """The connection options of the run's start; with `output`, remote steps are printed for -v."""
    from ipexctl.cli.hosts import step_printer

    return options_of(record, on_step=step_printer(output), on_warning=print_message)


def connector_of(record: RunRecord, output: Output | None = None) -> Connector:
    return Connector(run_options(record, output))


def call_node0(
    record: RunRecord,
    output: Output,
    step: Callable[[Session, Cancel], Answer],
    on_error: Callable[[str], None] | None = None,
) -> Answer:
    """Do one step on node0. If that fails, print the error, pass it to `on_error` and end the call."""
    from ipexctl.cli.hosts import open_pool

    with open_pool(run_options(record, output)) as (pool, interrupt):
        try:
            return step(pool.session(record.node0), pool.cancel)
        except HostError as error:
            if on_error is not None:
                on_error(f"{record.node0.name}: {error.reason}")
            raise typer.Exit(interrupt.code or report_host_error(record, error)) from None


def begun(record: RunRecord, output: Output, *, waits: bool = False) -> RunRecord:
    """The record of a run that has hosts and ranks. A submitted run that has not begun, or waits to begin again, is
    waited for with `waits`; else, and if it never began, the call ends with the reason."""
    if not record.starter.waits or (record.world_size and not waits):
        return record
    from ipexctl.cli.hosts import open_pool
    from ipexctl.run.follow import run_exit_code
    from ipexctl.run.queue import queue_of
    from ipexctl.run.queue_wait import look, wait_for_start

    state, queue = "queued" if not record.world_size else "", queue_of(record)
    assert queue is not None

    def note_state(known: KnownRun) -> None:
        nonlocal state
        state = known.state

    with open_pool(run_options(record, output), only_waits=waits) as (pool, interrupt):
        try:
            if record.world_size:
                known = look(pool.session(record.node0), record, pool.cancel)
                if known.has_begun:
                    return known.record
                state = "queued"
            if waits:
                known = wait_for_start(
                    queue,
                    record,
                    lambda: pool.connector.open(record.node0, pool.cancel),
                    pool.cancel,
                    output.print_note,
                    note_state,
                )
            else:
                known = look(pool.session(record.node0), record, pool.cancel)
        except Cancelled:
            what = "stays in the queue" if state == "queued" else "has begun, and was not stopped"
            print_with_fix(f"run {record.id} {what}", f"ipexctl attach {record.id}, ipexctl stop {record.id}")
            raise typer.Exit(interrupt.code or 1) from None
        except HostError as error:
            if record.world_size:  # the caller knows what to do without node0: there may be a copy here
                return record
            raise typer.Exit(interrupt.code or report_host_error(record, error)) from None
    if known.has_begun:
        return known.record
    assert known.status is not None
    explained = queue.explain(known.record, known.status)
    print_with_fix(f"run {record.id}: {explained.reason}", explained.fix)
    raise typer.Exit(run_exit_code(known.status) if waits else 1)


def report_host_error(record: RunRecord, error: HostError) -> int:
    """Print the error of node0, and return the exit code: 3 if it is unreachable, else 1."""
    print_with_fix(f"{record.node0.name}: {error.reason}", error.advice)
    return 3 if isinstance(error, Unreachable) else 1


def chosen_ranks(record: RunRecord, text: str) -> list[int] | None:
    """The ranks of the run that --ranks chooses; None for all."""
    chosen = parse_ranks(text).within(record.world_size)
    return None if chosen.everyone else [rank for rank in range(record.world_size) if rank in chosen]

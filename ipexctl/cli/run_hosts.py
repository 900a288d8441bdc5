"""Connects to node0 of a known run, for the commands that take RUN; `jobs/node0.py` makes the calls there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import typer

from ipexctl.jobs.ranks import parse_ranks
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.outcome import HostError, Unreachable
from ipexctl.ui.messages import print_message, print_with_fix

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipexctl.cli.options import Output
    from ipexctl.jobs.registry import RunRecord
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session

Answer = TypeVar("Answer")


def run_options(record: RunRecord, output: Output | None = None) -> ConnectOptions:
    """The connection options of the run's start; with `output`, remote steps are printed for -v."""
    from ipexctl.cli.hosts import step_printer

    policy: Any = record.host_keys
    transport: Any = "srun" if record.transport == "srun" else "ssh"
    return ConnectOptions(
        record.connect_timeout, policy, step_printer(output), print_message, transport, job=record.job
    )


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


def report_host_error(record: RunRecord, error: HostError) -> int:
    """Print the error of node0, and return the exit code: 3 if it is unreachable, else 1."""
    print_with_fix(f"{record.node0.name}: {error.reason}", error.advice)
    return 3 if isinstance(error, Unreachable) else 1


def chosen_ranks(record: RunRecord, text: str) -> list[int] | None:
    """The ranks of the run that --ranks chooses; None for all."""
    chosen = parse_ranks(text).within(record.world_size)
    return None if chosen.everyone else [rank for rank in range(record.world_size) if rank in chosen]

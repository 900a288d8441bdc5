"""Makes the `CallWatcher` for `api/*_runs.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ipexctl.api.known_runs import CallWatcher
from ipexctl.commands.interrupt import Interrupt, cancelling
from ipexctl.commands.shared_options import Output
from ipexctl.commands.target_hosts import step_printer
from ipexctl.remote.cancel import Cancel
from ipexctl.run.ranks import parse_ranks
from ipexctl.run.registry import RunRecord
from ipexctl.ui.messages import print_message


@contextmanager
def call_about_runs(output: Output, *, only_waits: bool = False) -> Iterator[tuple[CallWatcher, Interrupt]]:
    """Watcher of a call that the first signal ends. It prints remote steps with -v."""
    cancel = Cancel()
    with cancelling(cancel, only_waits=only_waits) as interrupt:
        yield CallWatcher(cancel, output.print_note, print_message, step_printer(output)), interrupt


def begun(record: RunRecord, output: Output, *, waits: bool = False) -> RunRecord:
    """Like `followed_runs.begun`, for a record that may belong to a submitted run."""
    if not record.transport.waits:
        return record
    from ipexctl.api import followed_runs  # 100 modules, for a submitted run alone

    with call_about_runs(output, only_waits=waits) as (caller, _):
        return followed_runs.begun(record, caller, waits=waits)


def chosen_ranks(record: RunRecord, text: str) -> list[int] | None:
    chosen = parse_ranks(text).within(record.plan.world_size)
    return None if chosen.has_all else [rank for rank in range(record.plan.world_size) if rank in chosen]

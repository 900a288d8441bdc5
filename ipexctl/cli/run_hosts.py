"""Finds the known run that the word of a call means, such as `last`, and makes the `CallWatcher` for `api/runs.py`.

The rule: where `last` may surprise, as the current directory is in another project, the run is named.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.api import runs
from ipexctl.api.runs import CallWatcher
from ipexctl.cli.interrupt import Interrupt, cancelling
from ipexctl.errors import UserError
from ipexctl.remote.cancel import Cancel
from ipexctl.run.ranks import parse_ranks
from ipexctl.run.registry import RunRegistry
from ipexctl.text import printable
from ipexctl.ui.messages import print_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.cli.options import Output
    from ipexctl.run.registry import RunRecord


def find_run(word: str, output: Output, registry: RunRegistry | None = None) -> RunRecord:
    """The run of that word. Of `last` from another project's directory, the project is named: it is the last of all."""
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


@contextmanager
def call_about_runs(output: Output, *, only_waits: bool = False) -> Iterator[tuple[CallWatcher, Interrupt]]:
    """The caller for the functions of `api/runs.py`: the first signal ends the call, -v prints remote steps."""
    from ipexctl.cli.hosts import step_printer

    cancel = Cancel()
    with cancelling(cancel, only_waits=only_waits) as interrupt:
        yield CallWatcher(cancel, output.print_note, print_message, step_printer(output)), interrupt


def begun(record: RunRecord, output: Output, *, waits: bool = False) -> RunRecord:
    """As `api.runs.begun`, for a record that may be of a submitted run."""
    if not record.starter.waits:
        return record
    with call_about_runs(output, only_waits=waits) as (caller, _):
        return runs.begun(record, caller, waits=waits)


def chosen_ranks(record: RunRecord, text: str) -> list[int] | None:
    """The ranks of the run that --ranks chooses; None for all."""
    chosen = parse_ranks(text).within(record.world_size)
    return None if chosen.everyone else [rank for rank in range(record.world_size) if rank in chosen]

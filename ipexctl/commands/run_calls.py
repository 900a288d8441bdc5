"""Finds the known run that a word means, such as `last`, and makes the `CallWatcher` for `api/*_runs.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ipexctl.api.known_runs import CallWatcher
from ipexctl.commands.interrupt import Interrupt, cancelling
from ipexctl.commands.shared_options import Output
from ipexctl.commands.target_hosts import step_printer
from ipexctl.errors import UserError
from ipexctl.projects.root import find_root, is_marked
from ipexctl.remote.cancel import Cancel
from ipexctl.run.ranks import parse_ranks
from ipexctl.run.registry import RunRecord, RunRegistry
from ipexctl.text import printable
from ipexctl.ui.messages import print_message


def find_run(word: str, output: Output, registry: RunRegistry | None = None) -> RunRecord:
    """Find a run by id, prefix or `last`. A note names its project if we are in another one."""
    record = (registry or RunRegistry()).find(word)
    if word == "last" and record.project and not output.json:
        try:
            root = find_root(None, None, Path.cwd())
        except (OSError, UserError):  # not in a project's directory
            return record
        if is_marked(root) and str(root) != record.project:
            output.print_note(f"last is run {record.id}, of the project {printable(record.project)}")
    return record


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

"""Finds the run that a word means, and makes the `CallWatcher` for `api/*_runs.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from ipexctl.api.known_runs import CallWatcher
from ipexctl.commands.interrupt import Interrupt, cancelling
from ipexctl.commands.shared_options import Home, Output, RunHosts, Targets
from ipexctl.commands.target_hosts import call_options, open_hosts, step_printer
from ipexctl.errors import UserError
from ipexctl.homes.registry import RunRecord, RunRegistry
from ipexctl.remote.cancel import Cancel
from ipexctl.run.ranks import parse_ranks
from ipexctl.ui.messages import print_message


def find_run(word: str, where: RunHosts, output: Output) -> RunRecord:
    """The run in this machine's registry, or with -H or --hosts, on the hosts."""
    return find_runs([word], where, output)[0]


def find_runs(words: Sequence[str], where: RunHosts, output: Output) -> list[RunRecord]:
    refuse_without_hosts(where.typed, f"-H hostfile {words[0]}")
    if not where.typed & NAMING:
        return [RunRegistry().find(word) for word in words]
    from ipexctl.run.found_run import find_on_hosts

    targets, home = Targets(**where.host_options), Home(where.home)
    with open_hosts(targets, home, output, announces=False) as (opened, interrupt):
        options = call_options(targets, home)
        found = [find_on_hosts(word, opened.hosts, opened.pool, opened.home, options) for word in words]
    interrupt.check()
    return found


NAMING: Final = frozenset(("hosts", "hostfile", "cluster"))
"""The options that name hosts."""


def refuse_without_hosts(typed: frozenset[str], example: str) -> None:
    if typed and not typed & NAMING:
        option = f"--{min(typed).replace('_', '-')}"
        raise UserError(f"{option} is for hosts that -H or --hosts names", fix=f"add {example}, or leave {option} out")


@contextmanager
def call_about_runs(output: Output, *, only_waits: bool = False) -> Iterator[tuple[CallWatcher, Interrupt]]:
    """Watcher of a call that the first signal ends. It prints remote steps with -v."""
    cancel = Cancel()
    with cancelling(cancel, only_waits=only_waits) as interrupt:
        yield CallWatcher(cancel, output.print_note, print_message, step_printer(output)), interrupt


def chosen_ranks(record: RunRecord, text: str) -> list[int] | None:
    chosen = parse_ranks(text).within(record.plan.world_size)
    return None if chosen.has_all else [rank for rank in range(record.plan.world_size) if rank in chosen]

"""Find the run that a word means, and make the `CallWatcher` for `api/*_runs.py`.

A run that this machine did not begin is looked for on the hosts of the call.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from ipexctl.api.known_runs import CallWatcher
from ipexctl.commands.interrupt import Interrupt, cancelling
from ipexctl.commands.option_groups import Home, Output, RunHosts, Targets
from ipexctl.commands.target_hosts import open_hosts, select, step_printer, with_login
from ipexctl.errors import UserError
from ipexctl.homes.registry import RunRecord, explain_foreign_run
from ipexctl.hosts.allocation import is_in_allocation
from ipexctl.node.common.fix import Fix
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import OpenHosts
from ipexctl.run.find_run import find_runs as find_run_records
from ipexctl.run.ranks import parse_ranks
from ipexctl.text import format_clock
from ipexctl.ui.message_output import complete_lines, print_message


def find_run(word: str, where: RunHosts, output: Output, *, reads: bool = True) -> RunRecord:
    """Return the run that the word means, as `find_runs` does."""
    return find_runs([word], where, output, reads=reads)[0]


def find_runs(words: Sequence[str], where: RunHosts, output: Output, *, reads: bool = True) -> list[RunRecord]:
    """Return the runs that these words mean, with the login settings of the call and its files.

    `reads`: True if the call changes no run; a note then says who began a run of others. Raises a UserError if a word
    means no run, or several.
    """
    targets, home, is_named = Targets(**where.host_options), Home(where.home), where.names_hosts

    @contextmanager
    def opening() -> Iterator[OpenHosts]:
        """Open the hosts of the call, to look for runs there."""
        with open_hosts(targets, home, output, announces=False) as (opened, interrupt):
            yield opened
        interrupt.check()

    records = find_run_records(
        words, lambda: opening() if is_named or know_hosts(targets) else None, hosts_first=is_named
    )
    host_options = where.typed & {"limit", "home"}
    if host_options and not is_named and (own := [record.id for record in records if record.is_kept]):
        reason = f"--{min(host_options)} is for hosts that -H or --hosts names, and run {own[0]} has its own"
        raise UserError(reason, fix=f"leave --{min(host_options)} out")
    for record in records:
        if not record.is_kept:
            complete_lines(record.call_text)
        if reads and not record.is_own:
            output.print_note(explain_foreign_run(record))
    return [with_login(record, targets) for record in records]


def find_named_run(run: str | None, command: str, where: RunHosts, output: Output, *, reads: bool = True) -> RunRecord:
    """Like `find_run`; without a word, raise a UserError that names the last run. `command`: what to type with it."""
    if run is not None:
        return find_run(run, where, output, reads=reads)
    last = find_run("last", where, output)
    began = format_clock(last.started, "%Y-%m-%d %H:%M:%S")
    force = ("--force",) if command == "stop" and not last.is_own else ()
    fix = Fix("`ipexctl {command} {run} {*force}`", command=command, run=last.id, force=force)
    raise UserError(f"which run? The last one is {last.id} of {began}", fix=fix)


def know_hosts(targets: Targets) -> bool:
    """True if $IPEXCTL_HOSTFILE, ./hostfile or a file of defaults names hosts.

    Those of an allocation do not count: they may have no room for a look.
    """
    return not is_in_allocation(os.environ) and not select(targets).is_alone


@contextmanager
def call_about_runs(
    output: Output, *, only_waits: bool = False, targets: Targets | None = None, timeout: float | None = None
) -> Iterator[tuple[CallWatcher, Interrupt]]:
    """Yield a watcher for a call that the first signal ends. It prints remote steps with -v.

    `targets`: for a call about all runs, whose records then get these login settings.
    """
    cancel = Cancel()
    with cancelling(cancel, only_waits=only_waits) as interrupt:
        caller = CallWatcher(cancel, output.print_note, print_message, step_printer(output), timeout=timeout)
        if targets is not None:
            caller = replace(caller, with_login=partial(with_login, targets=targets), timeout=targets.timeout)
        yield caller, interrupt


def chosen_ranks(record: RunRecord, text: str) -> list[int] | None:
    """Return the ranks of `--ranks` that the run has; None for all. Raises a UserError if it has none of them."""
    chosen = parse_ranks(text).within(record.plan.world_size)
    return None if chosen.has_all else [rank for rank in range(record.plan.world_size) if rank in chosen]

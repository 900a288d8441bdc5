"""Finds the run that a word means, and makes the `CallWatcher` for `api/*_runs.py`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from ipexctl.api.known_runs import CallWatcher, ps_hosts
from ipexctl.commands.interrupt import Interrupt, cancelling
from ipexctl.commands.shared_options import Home, Output, RunHosts, Targets
from ipexctl.commands.target_hosts import call_options, open_hosts, select, step_printer
from ipexctl.errors import IpexctlError, UserError
from ipexctl.found_files import account_name
from ipexctl.homes.registry import LAST, RunRecord, RunRegistry, UnreadableRecord, explain_foreign_run
from ipexctl.hosts.allocation import is_in_allocation
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.fix import Fix
from ipexctl.option_declaration import CallOptions
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import OpenHosts
from ipexctl.run.ranks import parse_ranks
from ipexctl.ui.messages import print_message


def find_run(word: str, where: RunHosts, output: Output, *, reads: bool = True) -> RunRecord:
    """The run in this machine's registry, or on hosts: those of -H or --hosts, or if the call only `reads`, those that
    every command of this directory uses."""
    return find_runs([word], where, output, reads=reads)[0]


def find_runs(words: Sequence[str], where: RunHosts, output: Output, *, reads: bool = True) -> list[RunRecord]:
    refuse_without_hosts(where.typed, f"-H hostfile {words[0]}")
    if where.typed & NAMING:
        return _runs_on_hosts(words, where, output, names_owner=reads)
    registry, found = RunRegistry(), list[RunRecord]()
    for word in words:
        try:
            record = registry.find(word)
            seconds = where.given_connect_timeout or record.connect_timeout
            found.append(replace(record, connect_timeout=seconds))
        except UnreadableRecord:
            raise
        except UserError as error:
            try:
                if not reads or not know_hosts(Targets(**where.host_options)):
                    raise error
                found += _runs_on_hosts([word], where, output)
            except IpexctlError as on_hosts:
                if on_hosts is error:
                    raise
                raise UserError(f"{error.message}; {on_hosts.message}", fix=error.fix) from None
    return found


def know_hosts(targets: Targets) -> bool:
    """True if $IPEXCTL_HOSTFILE, ./hostfile or config names hosts. An allocation's may have no room for a look."""
    return not is_in_allocation(os.environ) and not select(targets).is_alone


def _runs_on_hosts(
    words: Sequence[str], where: RunHosts, output: Output, *, names_owner: bool = True
) -> list[RunRecord]:
    from ipexctl.run.found_run import find_on_hosts

    targets, home = Targets(**where.host_options), Home(where.home)
    with open_hosts(targets, home, output, announces=False) as (opened, interrupt):
        options = call_options(targets, home)
        try:
            found = [find_on_hosts(word, opened.hosts, opened.pool, opened.home, options) for word in words]
        except UserError as error:
            raise _of_another_account(opened, words, options) or error from None
    interrupt.check()
    for record in found:
        if names_owner and not record.is_own:
            output.print_note(explain_foreign_run(record))
    return found


def _of_another_account(opened: OpenHosts, words: Sequence[str], options: CallOptions) -> UserError | None:
    """Names the runs of other accounts on these hosts that a word may mean; None if it means none."""
    own = {host.user or account_name() for host in opened.hosts}
    runs = [entry.run for entry in ps_hosts(opened)[0].runs if entry.run.account not in own]
    meant = [run for run in runs if words[0] in LAST or words[0] in run.id]
    if not meant:
        return None
    names = "; ".join(f"run {run.id} on {fold(run.hosts)} is of account {run.account}" for run in meant[:4])
    reason = f"{names}; its record is in that account's home, which this account can't read"
    hosts = shlex.split(options.hosts)
    return UserError(
        reason, fix=Fix("see what is known of it: `ipexctl ps {*hosts}`; its owner can stop it", hosts=hosts)
    )


NAMING: Final = frozenset(("hosts", "hostfile", "cluster"))
"""The options that name hosts."""


def refuse_without_hosts(typed: frozenset[str], example: str) -> None:
    typed -= {"connect_timeout"}
    if typed and not typed & NAMING:
        option = f"--{min(typed).replace('_', '-')}"
        raise UserError(f"{option} is for hosts that -H or --hosts names", fix=f"add {example}, or leave {option} out")


@contextmanager
def call_about_runs(
    output: Output, *, only_waits: bool = False, connect_timeout: float | None = None
) -> Iterator[tuple[CallWatcher, Interrupt]]:
    """Watcher of a call that the first signal ends. It prints remote steps with -v."""
    cancel = Cancel()
    with cancelling(cancel, only_waits=only_waits) as interrupt:
        caller = CallWatcher(cancel, output.print_note, print_message, step_printer(output), connect_timeout)
        yield caller, interrupt


def chosen_ranks(record: RunRecord, text: str) -> list[int] | None:
    chosen = parse_ranks(text).within(record.plan.world_size)
    return None if chosen.has_all else [rank for rank in range(record.plan.world_size) if rank in chosen]

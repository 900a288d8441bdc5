"""Prune ended runs on the nodes and in the registry. On the nodes, `node/run/retention.py` prunes in the background
when a run starts; `ipexctl ps --prune` prunes at once.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ipexctl.errors import UserError
from ipexctl.homes.local_copy import copy_size, read_final_status, remove_copy
from ipexctl.homes.registry import RunRecord, RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.limits import PATIENCE
from ipexctl.node.common.owners import RemovalRequest
from ipexctl.node.run.retention import PruneRunsRequest
from ipexctl.node.run.run_replies import PrunedRun, PruneReply
from ipexctl.option_declaration import FORKS
from ipexctl.remote.caller import identify_caller, removal_request
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError, HostResult
from ipexctl.remote.session import Session

DAYS: Final = "IPEXCTL_KEEP_DAYS"
_REMOVED_VARIABLE: Final = "IPEXCTL_KEEP_GB"
_RECORD_LIFETIMES: Final = 3
"""A registry record is small and is kept this many times as long as the run, so that `ps` can still list it."""


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Runs beyond these limits are pruned, but never the `newest` ones."""

    days: float = 30.0
    newest: int = 10

    def request(
        self, home: str, removal: RemovalRequest, *, mine: str | None = None, dry_run: bool = False
    ) -> PruneRunsRequest:
        """Return the request to the agent. `mine`: the run that is just starting, and stays."""
        return {**removal, "home": home, "days": self.days, "keep": self.newest, "mine": mine, "dry_run": dry_run}


def read_limits(environ: Mapping[str, str]) -> RetentionLimits:
    """Return the limits, with the days of IPEXCTL_KEEP_DAYS.

    Raises a UserError for a value that is no number of days.
    """
    default = RetentionLimits()
    if environ.get(_REMOVED_VARIABLE):
        raise UserError(
            f"${_REMOVED_VARIABLE} is gone: runs are removed by their age alone",
            fix=f"unset {_REMOVED_VARIABLE}; {DAYS}=7",
        )
    text = environ.get(DAYS, "").strip()
    if not text:
        return default
    with contextlib.suppress(ValueError):
        number = float(text)
        if number >= 0 and math.isfinite(number):
            return RetentionLimits(number)
    raise UserError(
        f"${DAYS} is not a number of 0 or more: {text[:40]!r}", fix=f"the default is {DAYS}={default.days:g}"
    )


def background_prune(keep: RetentionLimits, home: str, python: str, run: str) -> str:
    """Return shell code that prunes in the background if there are many runs; it is for the time after a run's
    directory was created."""
    argv = ["nice", python, "-IS", f"{home}/runs/{run}/agent.zip", "run.retention", "prune"]
    by = identify_caller(os.environ)
    unnamed = [] if by else [record.id for record in RunRegistry().all() if record.plan.by is None]
    request = shlex.quote(json.dumps(keep.request(home, removal_request(force=False, known=unnamed), mine=run)))
    return (
        f"set -- {shlex.quote(home)}/runs/*\n"
        f"if [ $# -gt {keep.newest} ]; then printf '%s\\n' {request} | {shlex.join(argv)} >/dev/null 2>&1 & fi"
    )


@dataclass(frozen=True, slots=True)
class PruneResult(HostResult):
    gone: tuple[PrunedRun, ...] = ()
    kept: int = 0
    size: int = 0
    """Size of the kept runs in bytes."""
    foreign: tuple[PrunedRun, ...] = ()
    """Runs of others, which are kept without --force."""
    newest: int = 0
    """Number of kept runs that are old enough, but among the newest."""


def prune_nodes(
    records: Sequence[RunRecord],
    keep: RetentionLimits,
    open_session: Callable[[RunRecord, Host], Session],
    cancel: Cancel,
    *,
    dry_run: bool = False,
    force: bool = False,
) -> list[PruneResult]:
    """Prune ended runs in each home of these runs, on all hosts at the same time.

    Return a result for each home, even for those where pruning failed.
    """
    removal = removal_request(force=force, known=[record.id for record in records])
    nodes: dict[tuple[str, int | None, str], tuple[RunRecord, Host]] = {}
    for record in records:
        for host in (record.node0, *(node for node in record.nodes if node.name in record.leaders)):
            nodes[host.address, host.port, record.home] = (record, host)

    def work(key: tuple[str, int | None, str]) -> PruneResult:
        record, host = nodes[key]
        with contextlib.closing(open_session(record, host)) as session:
            reply = call(
                session,
                "run.retention",
                "prune",
                keep.request(record.home, removal, dry_run=dry_run),
                record.agent,
                cached=not dry_run,
                label="prune runs",
                silence=PATIENCE,
            )
        pruned = reply.decode(PruneReply)
        gone, kept, size, foreign, newest = pruned
        return PruneResult(host, "ok", gone=gone, kept=kept, size=size, foreign=foreign, newest=newest)

    results: dict[tuple[str, int | None, str], PruneResult] = {}
    for done in fan_out(list(nodes), work, forks=FORKS, cancel=cancel):
        error = done.error or HostError("it didn't answer")
        results[done.item] = done.result or PruneResult(
            nodes[done.item][1], status=error.status, reason=error.reason, fix=error.advice
        )
    return [results[key] for key in nodes]


def prune_local(
    register: RunRegistry,
    keep: RetentionLimits,
    *,
    over: Collection[str] = (),
    dry_run: bool = False,
) -> list[PrunedRun]:
    """Prune copies and records of ended runs on the control machine: those in `over` or with a final status."""
    now, records = time.time(), register.all()
    sizes = {record.id: copy_size(register.directory / record.id) for record in records}
    gone = []
    for record in records[: max(0, len(records) - keep.newest)]:
        if record.id not in over and read_final_status(register.directory / record.id) is None:
            continue
        age = (now - record.started) / 86400
        if age > keep.days * _RECORD_LIFETIMES:
            gone.append(PrunedRun(record.id, sizes[record.id], f"older than {keep.days * _RECORD_LIFETIMES:g} days"))
        elif sizes[record.id] and age > keep.days:
            gone.append(PrunedRun(record.id, sizes[record.id], f"older than {keep.days:g} days"))
        else:
            continue
        if not dry_run:
            remove_copy(register.directory, record.id)
            if age > keep.days * _RECORD_LIFETIMES:
                register.remove(record.id)
    return gone

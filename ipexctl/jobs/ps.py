"""Lists the runs of the registry with their states: one call to each node0."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ipexctl.jobs.local_copy import read_final_status
from ipexctl.jobs.node0 import call_on_node0
from ipexctl.node.common.records import RunStatus, read_status
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.outcome import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ipexctl.hosts.host import Host
    from ipexctl.jobs.registry import RunRecord
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session

QUERY_TIMEOUT: Final = 30.0


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run of the registry. Without a status its state is unknown, and `reason` says why."""

    record: RunRecord
    status: RunStatus | None
    reason: str = ""
    fix: str = ""
    pruned: float | None = None
    """When node0 pruned its output; its last status is kept."""
    is_gone: bool = False
    """Node0 has no directory of it."""

    @property
    def state(self) -> str:
        return "unknown" if self.status is None else self.status.state


def query_runs(
    records: Sequence[RunRecord],
    open_session: Callable[[RunRecord], Session],
    cancel: Cancel,
    timeout: float = QUERY_TIMEOUT,
) -> list[KnownRun]:
    """Every run with its state, in the order of the records."""
    places: dict[tuple[Host, str], list[RunRecord]] = {}
    for record in records:
        places.setdefault((record.node0, record.home), []).append(record)
    groups = list(places.values())
    found: dict[str, KnownRun] = {}

    def query(group: list[RunRecord]) -> None:
        newest, ids = group[-1], [record.id for record in group]
        try:
            with closing(open_session(newest)) as session:
                more = {"ids": ids}
                reply = call_on_node0(session, newest, "run.runs", "list", more, timeout=timeout, cancel=cancel)
            runs = reply.record("runs")
            documents = {name: runs.record(name) for name, document in runs.items() if document is not None}
        except HostError as error:
            reason = f"{newest.node0.name}: {error.reason}"
            found.update((record.id, KnownRun(record, None, reason, error.advice)) for record in group)
            return
        for record in group:
            document = documents.get(record.id)
            if document is None:
                gone = f"{record.node0.name} has no record of it any more"
                found[record.id] = KnownRun(record, None, gone, is_gone=True)
            elif damaged := document.get("unreadable"):
                fix = f"ipexctl fetch {record.id} . brings what is there"
                found[record.id] = KnownRun(record, None, f"{record.node0.name}: {damaged}", fix)
            else:
                pruned = document.get("pruned")
                found[record.id] = KnownRun(record, read_status(document), pruned=pruned, is_gone=bool(pruned))

    for done in fan_out(groups, query, forks=32, cancel=cancel):
        if done.error is not None:
            for record in done.item:
                found.setdefault(record.id, KnownRun(record, None, done.error.reason, done.error.advice))
    return [found[record.id] for record in records]


def with_copies(runs: Sequence[KnownRun], directory: Path) -> list[KnownRun]:
    """The runs; where node0 can't be reached, with the final status that the control machine has."""
    return [
        replace(run, status=read_final_status(directory / run.record.id)) if run.status is None else run for run in runs
    ]


def forgettable(runs: Sequence[KnownRun], days: float, now: float) -> list[str]:
    """Ids of old runs that node0 has no record of any more. Pure."""
    return [run.record.id for run in runs if run.is_gone and now - run.record.started > 2 * days * 86400]

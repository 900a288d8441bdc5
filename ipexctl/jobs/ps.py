"""Lists the runs of the registry with their states: one call to each node0."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ipexctl.jobs.local_copy import read_final_status
from ipexctl.node.common.records import RunStatus, read_status
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ipexctl.hosts.host import Host
    from ipexctl.jobs.registry import RunRecord
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.reply import Reply
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
        try:
            with closing(open_session(group[-1])) as session:
                runs = _list_runs(session, group, cancel, timeout).record("runs")
            documents = {name: runs.record(name) for name, document in runs.items() if document is not None}
        except HostError as error:
            reason = f"{group[-1].node0.name}: {error.reason}"
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


def _list_runs(session: Session, group: Sequence[RunRecord], cancel: Cancel, timeout: float) -> Reply:
    newest = group[-1]
    request = {"home": newest.home, "ids": [record.id for record in group]}
    return call(
        session,
        "run.runs",
        "list",
        request,
        python=newest.python,
        home=newest.home,
        label="list the runs",
        timeout=timeout,
        cancel=cancel,
    )

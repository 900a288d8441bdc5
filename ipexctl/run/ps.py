"""List the runs of the registry with their states, by one call to each home on a node0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Final

from ipexctl.homes.local_copy import read_final_status
from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.host import Host
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.records import RunStatus, read_status
from ipexctl.node.run.record.run_document import RunDocument, document_of_run
from ipexctl.node.run.runs import ListRequest
from ipexctl.option_declaration import FORKS
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import Session
from ipexctl.run.node0 import call_on_node0

TIMEOUT_CODE: Final = 124
"""Exit code of a wait when the time is up and the run is still running, as `timeout` uses."""


@dataclass(frozen=True, slots=True, repr=False)
class KnownRun:
    """A run of the registry. If `status` is None, its state is not known and `reason` says why."""

    record: RunRecord
    status: RunStatus | None
    reason: str = ""
    """Why the state is not known; empty if it is."""
    fix: str = ""
    is_unreachable: bool = False
    """True if node0 could not be reached."""
    pruned: float | None = None
    """When node0 pruned the output of the run, in seconds since the epoch; None if it did not.

    The last status is kept.
    """
    is_gone: bool = False
    """True if node0 has pruned the run, or has no record of it."""

    id = property(attrgetter("record.id"))
    script = property(attrgetter("record.plan.script"))
    by = property(attrgetter("record.plan.by"))
    env = property(attrgetter("record.plan.environment"))
    node0 = property(attrgetter("record.node0.name"))
    hosts = property(attrgetter("record.hosts"))
    home = property(attrgetter("record.home"))
    world_size = property(attrgetter("record.plan.world_size"))
    tag = property(attrgetter("record.plan.asked.tag"))

    def __repr__(self) -> str:
        return f"KnownRun({self.record.id!r}, {self.state!r}, exit_code={self.exit_code})"

    @property
    def document(self) -> RunDocument:
        """The run as JSON shows it."""
        document = document_of_run(self.record.plan, self.status, self.record.started)
        return document._replace(reason=self.reason or document.reason, fix=self.fix, pruned=self.pruned)

    @property
    def is_over(self) -> bool:
        """True if the run is known to have ended."""
        return self.status is not None and self.status.is_over

    @property
    def exit_code(self) -> int:
        """Exit code of a command that is only about this run.

        - The exit code of the run, once it has ended.
        - TIMEOUT_CODE while it is alive.
        - 3 if its node0 cannot be reached.
        - 1 if its state is unknown for another reason.
        """
        if self.status is not None and self.status.is_over:
            return self.status.code
        return 3 if self.is_unreachable else 1 if self.reason else TIMEOUT_CODE

    @property
    def state(self) -> str:
        """`running`, `ok`, `failed` …; `unknown` if node0 did not say."""
        return "unknown" if self.status is None else self.status.state


def query_runs(
    records: Sequence[RunRecord], open_session: Callable[[RunRecord], Session], cancel: Cancel
) -> list[KnownRun]:
    """Return the runs with their states, in the order of the records.

    A run whose node0 does not answer has no status.
    """
    homes: dict[tuple[Host, str], list[RunRecord]] = {}
    for record in records:
        homes.setdefault((record.node0, record.home), []).append(record)

    def query(group: list[RunRecord]) -> dict[str, KnownRun]:
        """Ask one home."""
        with closing(open_session(group[-1])) as session:
            return query_session(session, group)

    known: dict[str, KnownRun] = {}
    for done in fan_out(list(homes.values()), query, forks=FORKS, cancel=cancel):
        for record in done.item:
            if done.result is not None:
                known[record.id] = done.result[record.id]
            elif done.error is not None:
                known[record.id] = KnownRun(
                    record, None, f"{record.node0.name}: {done.error.reason}", done.error.advice
                )
    return [known[record.id] for record in records]


def query_session(session: Session, records: Sequence[RunRecord]) -> dict[str, KnownRun]:
    """Ask one home for the states of its runs, in one call; run's ID → the run. Raises a HostError.

    `records`: runs of the same node0 and home.
    """
    newest = records[-1]
    request: ListRequest = {"home": newest.home, "ids": [record.id for record in records]}
    reply = call_on_node0(session, newest, "run.runs", "list", request)
    runs = reply.record("runs")
    documents = {name: runs.record(name) for name, document in runs.items() if document is not None}
    return {record.id: _known_run(record, documents.get(record.id)) for record in records}


def _known_run(record: RunRecord, document: Reply | None) -> KnownRun:
    """Return a run. `document`: what node0 says about it; None if it has no record."""
    if document is None:
        return KnownRun(record, None, f"{record.node0.name} has no record of it any more", is_gone=True)
    if damaged := document.get("unreadable"):
        fix = Fix(f"`ipexctl fetch {record.id} .` fetches what is there")
        return KnownRun(record, None, f"{record.node0.name}: {damaged}", fix)
    pruned, status = document.get("pruned"), read_status(document)
    return KnownRun(record, status, pruned=pruned, is_gone=bool(pruned))


def with_copies(runs: Sequence[KnownRun], directory: Path) -> list[KnownRun]:
    """Return the runs; those whose state is not known get the final status that this machine has, if any."""
    return [
        replace(run, status=read_final_status(directory / run.record.id)) if run.status is None else run for run in runs
    ]


def expired_runs(runs: Sequence[KnownRun], days: float, now: float) -> list[str]:
    """Return the IDs of runs that node0 has pruned or has no record of, and that started more than twice `days` ago.

    Pure.
    """
    return [run.record.id for run in runs if run.is_gone and now - run.record.started > 2 * days * 86400]

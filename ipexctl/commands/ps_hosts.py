"""The view of `ps -H`: what runs on hosts now, of every account."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, cast

from ipexctl.hosts.nodeset import fold
from ipexctl.launch.other_runs import by_text, time_of
from ipexctl.node.common.json_records import encode
from ipexctl.node.common.plan import OtherRun
from ipexctl.node.common.records import State
from ipexctl.node.run.record.run_document import RunDocument
from ipexctl.remote.outcome import HostResult, Report
from ipexctl.run.hosts_now import BusyPrograms, HostsNow, RunOnHosts
from ipexctl.text import format_count, short_list
from ipexctl.ui.results import report_json
from ipexctl.ui.text_table import fitting_layout, folded_hosts, print_lines, show_table

_LAYOUTS: Final = (
    ("run", "account", "by", "tag", "state", "script", "ranks", "hosts", "cores", "since", "until"),
    ("run", "account", "by", "state", "script", "ranks", "hosts", "cores", "since", "until"),
    ("run", "account", "by", "state", "ranks", "hosts", "cores", "since", "until"),
    ("run", "account", "by", "state", "ranks", "hosts", "since"),
    ("run", "account", "state", "ranks", "hosts", "since", "until"),
    ("run", "account", "state", "hosts", "since"),
    ("run", "account", "state"),
)
"""Columns of runs, from wide to narrow terminals."""
_PROGRAM_LAYOUTS: Final = (
    ("program", "account", "processes", "cores", "hosts", "since"),
    ("program", "account", "cores", "hosts"),
)
"""Columns of other programs."""


def as_json(now: HostsNow, report: Report[HostResult]) -> dict[str, Any]:
    """Return the document. A run's `rank_count` counts the ranks on these hosts."""
    return report_json(
        "ps",
        report,
        runs=[run_json(entry) for entry in now.runs],
        waiting=[
            _names_json(call, "id", "account", "by", "script", "tag", "hosts", "since", "until") for call in now.waiting
        ],
        programs=encode(now.programs),
        free=list(now.free),
        hiding=list(now.hiding),
        holders=[
            {"host": host, "pid": held.pid, "name": held.name, "account": held.account}
            for host, held in now.holders.items()
        ],
    )


def run_json(entry: RunOnHosts) -> dict[str, Any]:
    """Return the document of a run as far as other hosts know it, and what only these hosts know."""
    run = entry.run
    document = RunDocument(
        id=run.id,
        state=cast("State", run.state),
        script=entry.script,
        tag=run.tag or None,
        by=run.by,
        hosts=run.hosts,
        started=run.since,
    )
    return {**encode(document), **_names_json(run, "account", "cores", "until"), "rank_count": entry.ranks}


def _names_json(run: OtherRun, *names: str) -> dict[str, Any]:
    """Return these fields of the run."""
    return {name: encode(getattr(run, name)) for name in names}


def show(now: HostsNow, *, quiet: bool = False) -> None:
    """Print the runs, waiting calls and busy programs, and the hosts that are free."""
    clock = time.time()
    rows = [_row(entry.run, clock, entry.ranks, entry.script) for entry in now.runs]
    rows += [_row(call, clock, script=call.script) for call in now.waiting]
    if rows:
        empty = {name for name in ("by", "tag") if not any(row[name] for row in rows)}
        layouts = dict.fromkeys(tuple(name for name in layout if name not in empty) for layout in _LAYOUTS)
        layout = fitting_layout(tuple(layouts), rows)
        notes = [_note(row, layout) for row in rows]
        show_table(layout, [[row[name] for name in layout] for row in rows], notes=notes)
    if now.programs:
        programs = [_program_row(entry, clock) for entry in now.programs]
        layout = fitting_layout(_PROGRAM_LAYOUTS, programs)
        print_lines([""] if rows else [])
        show_table(layout, [[row[name] for name in layout] for row in programs])
    print_lines([f"{host}: {held} holds the lock of run --exclusive" for host, held in now.holders.items()])
    if now.free and not quiet:
        print_lines([*([""] if rows or now.programs else []), f"free: {fold(now.free)}"])


def _note(row: dict[str, str], layout: Sequence[str]) -> str:
    """Return what the layout has no column for."""
    missing = [
        name for name in ("by", "tag", "script", "hosts", "cores", "since", "until") if row[name] and name not in layout
    ]
    return "; ".join(row[name] if name in ("script", "tag") else f"{name} {row[name]}" for name in missing)


def _row(run: OtherRun, clock: float, ranks: int = 0, script: str = "") -> dict[str, str]:
    """Return the cells of a run or a waiting call by column."""
    return {
        "run": run.id,
        "account": run.account,
        "by": by_text(run.by),
        "tag": run.tag,
        "state": run.state,
        "script": script,
        "ranks": str(ranks) if ranks else "",
        "hosts": folded_hosts(run.hosts),
        "cores": _cores(run),
        "since": "" if run.since is None else time_of(run.since, clock),
        "until": "" if run.until is None else time_of(run.until, clock),
    }


def _cores(run: OtherRun) -> str:
    """Format the cores of the run; only their number of different sets if hosts differ."""
    different = dict.fromkeys(run.cores.values())
    if len(different) == 1:
        return short_list(next(iter(different)))
    return format_count(len(different), "set") if different else ""


def _program_row(entry: BusyPrograms, clock: float) -> dict[str, str]:
    """Return the cells of a busy program."""
    return {
        "program": entry.name,
        "account": entry.account,
        "processes": str(entry.count),
        "cores": f"{entry.cores:.1f}",
        "hosts": folded_hosts(entry.hosts),
        "since": "" if entry.since is None else time_of(entry.since, clock),
    }

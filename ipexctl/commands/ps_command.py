"""`ipexctl ps`: list the runs started from the control machine, prune old ones, or show what runs on hosts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from ipexctl.commands.option_groups import Home, Output, Targets, command, flag, option
from ipexctl.errors import IpexctlError, UserError
from ipexctl.homes.registry import RunRecord, RunRegistry, UnreadableRecord
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.other_runs import by_text, time_of
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.job_words import describe_run_end
from ipexctl.node.common.json_records import encode
from ipexctl.node.common.owners import Owned
from ipexctl.node.run.run_replies import PrunedRun
from ipexctl.option_declaration import check_seconds
from ipexctl.remote.caller import describe_foreign
from ipexctl.remote.outcome import exit_code
from ipexctl.text import differing_words, format_clock, format_count, readable
from ipexctl.ui.message_output import fit_lines, print_message, print_user_error, print_with_fix
from ipexctl.ui.results import group_by, host_json, print_json, show_failures
from ipexctl.ui.run.end_of_run import (
    duration,
    end_lines,
    moved_text,
    progress_text,
    short_group,
    short_throughput,
    slow_text,
)
from ipexctl.ui.text_table import cut_last_column, fitting_layout, folded_hosts, print_lines, show_table

if TYPE_CHECKING:
    from ipexctl.homes.prune_runs import PruneResult
    from ipexctl.run.hosts_now import RunOnHosts
    from ipexctl.run.ps import KnownRun
    from ipexctl.run.stop import StopResult


@command()
def ps_command(
    *,
    running: bool = flag("--running", "Show only runs that have not ended."),
    newest: int | None = option("-n --newest N", "Show only the newest N runs (default: all).", min=1),
    prune: bool = flag("--prune", "Remove runs older than 30 days from the nodes and the control machine."),
    force: bool = flag("--force", "With --prune: also runs that others began."),
    dry_run: bool = flag("--dry-run", "Print what --prune would remove; remove nothing."),
    targets: Targets,
    output: Output,
) -> None:
    """List your runs and their states, then those of others on your hosts.

    With -H or --hosts: what runs on these hosts now, of every account: runs of
    ipexctl, calls that wait (run --wait), other programs that use cores.

    A run's record (its output and status) stays on a node for 30 days; the
    newest 10 always stay. To change the limit of run and --prune:
    IPEXCTL_KEEP_DAYS.

    \b
    Example: ipexctl ps
    """
    from ipexctl.commands.named_runs import call_about_runs

    if targets.names_hosts:
        _show_hosts(
            targets,
            output,
            {"--running": running, "-n": newest, "--prune": prune, "--force": force, "--dry-run": dry_run},
        )
    from ipexctl.api.known_runs import prune as prune_runs
    from ipexctl.api.known_runs import ps

    if (dry_run or force) and not prune:
        name = "--dry-run" if dry_run else "--force"
        raise UserError(f"{name} is for --prune", fix=Fix(f"`ipexctl ps --prune {name}`"))
    if newest is not None and prune:
        raise UserError("-n chooses runs to show, not to prune", fix="leave -n or --prune out")
    check_seconds("--timeout", targets.timeout)
    if prune:
        with call_about_runs(output, targets=targets) as (caller, interrupt):
            nodes, local = prune_runs(caller, dry_run=dry_run, force=force)
        if output.json:
            print_json(pruned_json(nodes, local, dry_run=dry_run))
        else:
            show_pruned(nodes, local, dry_run=dry_run, quiet=output.quiet)
        raise typer.Exit(interrupt.code or exit_code([entry.status for entry in nodes]))
    with call_about_runs(output, targets=targets) as (caller, interrupt):
        known = ps(caller, running=running, newest=newest)
    others = _of_others(targets, output)
    output.print_report(
        known.runs,
        partial(as_json, damaged=known.damaged, others=others),
        partial(show, others=others),
        hidden=known.hidden,
    )
    for entry in known.damaged:
        print_user_error(entry)
    raise typer.Exit(interrupt.code or 0)


def _of_others(targets: Targets, output: Output) -> list[RunOnHosts]:
    """Return live runs, of which this machine has no record, on the hosts that calls from this directory use.

    A host that does not answer is only a note: the user's own runs are listed without it.
    """
    from ipexctl.api.known_runs import ps_hosts
    from ipexctl.commands.named_runs import know_hosts
    from ipexctl.commands.target_hosts import open_hosts

    try:
        if not know_hosts(targets):
            return []
        with open_hosts(targets, Home(), output, announces=False, steps_from=2) as (opened, _):
            now, report = ps_hosts(opened)
    except IpexctlError as error:
        output.print_note(f"the runs of others are not shown: {error.message}")
        return []
    for reason, silent in group_by([host for host in report.hosts if host.reason], attrgetter("reason")).items():
        output.print_note(f"the runs of others on {fold(host.host.name for host in silent)} are not shown: {reason}")
    own = {record.id for record in RunRegistry().all()}
    return [entry for entry in now.runs if entry.run.id not in own]


def _show_hosts(targets: Targets, output: Output, refused: Mapping[str, object]) -> NoReturn:
    """Show what runs on the chosen hosts, and exit. `refused`: options that are for the other list."""
    from ipexctl.api.known_runs import ps_hosts
    from ipexctl.commands import ps_hosts as view
    from ipexctl.commands.target_hosts import open_hosts

    if wrong := [name for name, value in refused.items() if value]:
        text = f"{wrong[0]} is for runs started from the control machine; -H and --hosts show what runs on hosts"
        raise UserError(text, fix=f"leave out {wrong[0]}, or the hosts")
    with open_hosts(targets, Home(), output) as (opened, interrupt):
        now, report = ps_hosts(opened)
    if output.json:
        print_json(view.as_json(now, report))
    else:
        view.show(now, quiet=output.quiet)
    if now.hiding:
        output.print_note(
            f"{fold(now.hiding)}: /proc hides the processes of other accounts (hidepid); only your own are shown"
        )
    show_failures(report.hosts)
    raise interrupt.or_exit(report.exit_code)


_Layouts = tuple[tuple[str, ...], ...]
_LAYOUTS: Final[_Layouts] = (
    ("run", "state", "script", "ranks", "hosts", "started", "took"),
    ("run", "state", "ranks", "hosts", "started", "took"),
    ("run", "state", "ranks", "hosts", "took"),
    ("run", "state", "started", "took"),
    ("run", "state", "took"),
)
"""Columns, from wide to narrow terminals.

The ID of a run begins with the script, and has the day and time of the start.
"""
_LEAST_END: Final = 20
"""Characters that the column `ended by` needs. A longer text is cut, so that a failed run is one line."""


def as_json(
    runs: Sequence[KnownRun], damaged: Sequence[UnreadableRecord] = (), others: Sequence[RunOnHosts] = ()
) -> dict[str, Any]:
    """Return the document. `others`: runs that others began."""
    from ipexctl.commands.ps_hosts import run_json

    unreadable = [{"id": entry.id, "path": str(entry.path), "reason": entry.reason} for entry in damaged]
    documents = [*(encode(run.document) for run in runs), *map(run_json, others)]
    return {"schema": "ipexctl.ps/1", "runs": documents, "unreadable": unreadable}


def show(runs: Sequence[KnownRun], *, others: Sequence[RunOnHosts] = (), hidden: int = 0, quiet: bool = False) -> None:
    """Print the table of runs. `hidden`: number of ended runs that --running leaves out."""
    now = time.time()
    if rows := [*(_row(run, now) for run in runs), *(_row_of_others(entry, now) for entry in others)]:
        lines: dict[str, list[dict[str, str]]] = {}
        for row in rows:
            lines.setdefault(row["script"].partition(" ")[0], []).append(row)
        for alike in lines.values():
            for row, words in zip(alike, differing_words([row["script"].split() for row in alike]), strict=True):
                row["words"] = words
        layouts = (*((*layout, "ended by") for layout in _LAYOUTS if any(row["ended by"] for row in rows)), *_LAYOUTS)
        for name, after in (("throughput", "took"), ("tag", "state"), ("step", "took"), ("by", "run")):
            layouts = _with_column(name, after, layouts, rows)
        layout = fitting_layout(layouts, [row | {"ended by": row["ended by"][:_LEAST_END]} for row in rows])
        notes = [_note(row, layout) for row in rows]
        cells = [[row[name] for name in layout] for row in rows]
        cells = cut_last_column(layout, cells, _LEAST_END) if "ended by" in layout else cells
        show_table(layout, cells, notes=notes)
    elif not quiet:
        text = Fix(f"no run is running; `ipexctl ps` shows the {format_count(hidden, 'run')} that ended")
        print_message(text if hidden else Fix("no runs; `ipexctl run --help` says how to start one"))
    unknown = group_by([run for run in runs if run.reason], lambda run: (run.reason, run.fix, run.record.options.hosts))
    for (reason, fix, hosts), affected in unknown.items():
        first, *others = [run.id for run in affected]
        more = f" and {format_count(len(others), 'other run')}" if others else ""
        print_with_fix(f"{reason} ({first}{more}{hosts and f', begun with{hosts}'})", fix)


def _with_column(name: str, after: str, layouts: _Layouts, rows: Sequence[Mapping[str, str]]) -> _Layouts:
    """Put wider layouts first, with a column that only some runs fill, behind the column `after`."""
    if not any(row[name] for row in rows):
        return layouts
    wide = ((layout, layout.index(after) + 1) for layout in layouts[:2])
    return (*((*layout[:at], name, *layout[at:]) for layout, at in wide), *layouts)


def _note(row: Mapping[str, str], layout: Sequence[str]) -> str:
    """Return what the layout has no column for."""
    parts = (
        [] if "hosts" in layout or row["ended by"] else [f"{format_count(int(row['ranks']), 'rank')} on {row['hosts']}"]
    )
    parts += [f"by {row['by']}"] if row["by"] and "by" not in layout else []
    names = ("tag",) if row["ended by"] else ("tag", "step", "throughput")
    parts += [row["words"]] if row["words"] and "script" not in layout else []
    parts += [row[name] for name in names if row[name] and name not in layout]
    parts += [row[name] for name in ("slow", "group", "moved") if row[name]]
    return "; ".join(parts)


def _row(run: KnownRun, now: float) -> dict[str, str]:
    """Return the cells of a run by column; empty texts for what is not known."""
    record, status = run.record, run.status
    started = (status.started if status else None) or record.started
    ended = status.ended if status else None
    is_running = run.state in ("starting", "running")
    seconds = status.took if status and status.took is not None else (ended or now) - started
    took = duration(seconds) if ended or is_running else "?"
    ended_by = ""
    if status is not None and status.state in ("failed", "lost"):
        ended_by = status.raised or status.reason or f"exit code {status.exit_code or 1}"
        ended_by = "its supervisor is gone" if status.state == "lost" else ended_by
    if status is not None and status.state in ("stopped", "ok"):
        ended_by = describe_run_end(status.job_end)
    if run.pruned:
        ended_by = f"{ended_by}; logs pruned" if ended_by else "logs pruned"
    day = "%H:%M:%S" if now - started < 43200 else "%Y-%m-%d %H:%M"
    ranks, hosts, moved = record.plan.world_size, record.hosts, ""
    if status is not None and status.has_moved:
        ranks, hosts = status.world_size, status.hosts
        moved = f"restart {status.attempt}{moved_text(status)}" if is_running else ""
    return {
        "run": record.id,
        "by": "" if record.is_own else by_text(record.plan.by),
        "state": run.state,
        "tag": run.tag or "",
        "script": record.plan.script,
        "ranks": str(ranks),
        "hosts": folded_hosts(hosts),
        "started": format_clock(started, day) if started else "?",
        "took": took,
        "step": progress_text(status) if status is not None else "",
        "throughput": short_throughput(status.throughput if status is not None else None),
        "ended by": ended_by,
        "slow": slow_text(status),
        "group": short_group(status),
        "moved": moved,
    }


def _row_of_others(entry: RunOnHosts, now: float) -> dict[str, str]:
    """Return the cells of a run that others began."""
    run = entry.run
    return {
        **dict.fromkeys(("step", "throughput", "ended by", "slow", "group", "moved"), ""),
        "run": run.id,
        "by": by_text(run.by) or run.account,
        "state": run.state,
        "tag": run.tag,
        "script": entry.script,
        "ranks": str(entry.ranks),
        "hosts": folded_hosts(run.hosts),
        "started": "?" if run.since is None else time_of(run.since, now),
        "took": "?" if run.since is None else duration(now - run.since),
    }


def pruned_json(nodes: Sequence[PruneResult], local: Sequence[PrunedRun], *, dry_run: bool) -> dict[str, Any]:
    """Return the document of --prune."""
    return {
        "schema": "ipexctl.prune/1",
        "hosts": [
            host_json(
                entry,
                without=("gone", "foreign", "size", "newest"),
                status="changed" if entry.gone and not dry_run else entry.status,
                pruned=encode(entry.gone),
                foreign=encode(entry.foreign),
                kept_bytes=entry.size,
            )
            for entry in nodes
        ],
        "here": encode(local),
        "dry_run": dry_run,
    }


def show_pruned(
    nodes: Sequence[PruneResult], local: Sequence[PrunedRun], *, dry_run: bool, quiet: bool = False
) -> None:
    """Print which runs were pruned, on the hosts and on this machine, and which were kept because others began them."""
    from ipexctl.homes.prune_runs import RetentionLimits  # not needed by every `ps`

    action = "would be pruned" if dry_run else "pruned"
    results: list[tuple[str, Sequence[PrunedRun], str]] = []
    for entry in nodes:
        if entry.reason:
            print_with_fix(f"{entry.host.name}: {entry.reason}", entry.fix)
        else:
            kept = f"; {format_count(entry.kept, 'run')} kept, {readable(entry.size)}"
            if entry.newest:
                kept += f" (the newest {RetentionLimits().newest} stay, whatever their age)"
            results.append((entry.host.name, entry.gone, kept))
    for name, removed, kept in () if quiet else (*results, ("this machine", local, "")):
        size = readable(sum(run.size for run in removed))
        runs = [
            f"  {run.id}: {run.why}, {readable(run.size)}" + (f", by {by_text(run.by)}" if run.by else "")
            for run in removed
            if dry_run or run.by
        ]
        print_lines([f"{name}: {format_count(len(removed), 'run')} {action}, {size}{kept}", *runs])
    for entry in nodes:
        if owned := [Owned("run", run.id, run.by) for run in entry.foreign]:
            print_with_fix(f"kept, {describe_foreign({entry.host.name: owned})}", Fix("`ipexctl ps --prune --force`"))


def show_stopped(record: RunRecord, stopped: StopResult, *, quiet: bool = False) -> None:
    """Print how a run ended that was stopped, or that it is still alive."""
    status = stopped.status
    if not stopped.status.is_over:
        print_message(
            Fix(
                f"run {record.id} has not ended yet: a rank is still alive\n  `ipexctl ps`, or `ipexctl "
                f"stop {record.id}` again"
            )
        )
    elif stopped.was not in ("starting", "running", "unknown"):
        print_message(f"run {record.id} had ended before: {status.state}")
    elif not quiet:
        print_message(*fit_lines(end_lines(status, status.exit_code or 0)))

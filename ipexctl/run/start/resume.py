"""`run --resume`: plans a run again on the hosts that answer, and refuses one whose checkpoint is lost.

- A run is alive if any host shows a process of it; it is then not resumed.
- A host that cannot be reached is left out. A number of ranks (-n) of the first call shrinks with the hosts.
- Scripts get the world size of the very first run, so that they can keep its global batch.
- Before the ranks start, each host keeps a copy of the checkpoint that the run resumes from, because the new run writes
  to the same path. Whose checkpoint a path has is read from the records of runs' files, not from times.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Final

from ipexctl.errors import CallError, Refusal, UserError
from ipexctl.facts.live_runs import HostSnapshot
from ipexctl.homes.local_copy import read_newest_status
from ipexctl.homes.registry import RunRecord, RunRegistry
from ipexctl.hosts.host import Host, quote
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.spec import RunSpec
from ipexctl.limits import PATIENCE
from ipexctl.node.common.fix import Fix, ipexctl_command, join_fixes
from ipexctl.node.common.plan import Plan
from ipexctl.node.common.records import LaterWrite, RunStatus, has_gone_on
from ipexctl.node.common.run_options import RunOptions
from ipexctl.node.files.checkpoint_report import HostCopies, read_host_copies
from ipexctl.node.files.checkpoint_units import plan_exchange
from ipexctl.node.files.kept_checkpoint import KeepRequest, KeptCheckpoint
from ipexctl.option_declaration import TypedCall
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError, TimedOut, Unreachable
from ipexctl.remote.session import Session
from ipexctl.run.start.exclusive import inspect_hosts
from ipexctl.run.start.start_request import (
    StartError,
    StartFailure,
    ask_all,
    first_of_stores,
    refuse_bad_rank_counts,
)
from ipexctl.text import format_count

NO_ANSWER: Final = (Unreachable, TimedOut)
"""Errors of a host that may come back. Any other error is an answer."""
Answer = tuple[KeptCheckpoint, HostCopies | None]
"""What a host has of the resumed run's checkpoint; and its copies, if the run's record names a checkpoint."""


def refuse_job(record: RunRecord) -> None:
    """Refuse to resume a run of a scheduler's job: the next job may get other hosts. Raises a UserError."""
    if record.plan.job:
        raise UserError(
            f"run {record.id} was in job {record.plan.job} of the scheduler, which chooses the hosts of the next one",
            fix="submit its job again: with --checkpoint, the new run continues from the newest checkpoint",
        )


def on_hosts_left(
    spec: RunSpec, record: RunRecord, pool: SessionPool, on_note: Callable[[str], None], *, typed: Collection[str] = ()
) -> RunSpec:
    """Return the spec for the hosts that answer. `typed`: options of this call, besides those of the run.

    Raises a CallError if too few hosts answer, if the run is alive, or if it has finished and no argument has
    changed."""
    outcomes = inspect_hosts(hosts_to_inspect(spec, record), pool)
    snapshots = {outcome.host.name: outcome.error or outcome.result for outcome in outcomes}
    status = read_newest_status(RunRegistry().directory / record.id)
    if status is not None and status.state == "ok" and spec.asked.argv == record.plan.asked.argv:
        reason, fix = finished_run(record.id, status, spec.typed)
        raise CallError(reason, fix=spec.options.apply(fix), exit_code=2)
    if status is not None and status.checkpoint and not spec.asked.checkpoint and len(spec.hosts) > 1:
        directory = posixpath.dirname(status.checkpoint) or status.checkpoint
        spec = replace(spec, asked=spec.asked._replace(checkpoint=directory))
        on_note(f"all hosts get what run {record.id} saved in {directory}, as with --checkpoint {quote(directory)}")
    resumed = resumed_spec(spec, record, snapshots, typed)
    if isinstance(resumed, Refusal):
        raise CallError(resumed.reason, fix=spec.options.apply(resumed.fix), exit_code=resumed.exit_code)
    for host in spec.hosts:
        if isinstance(error := snapshots[host.name], HostError) and host not in resumed.hosts:
            on_note(f"{host.name} is left out: {error.reason}")
    on_note(f"run {record.id} is resumed on {fold(host.name for host in resumed.hosts)}")
    return resumed


def hosts_to_inspect(spec: RunSpec, record: RunRecord) -> tuple[Host, ...]:
    """Return the hosts of the call, and the run's node0 if the call does not name it."""
    known = {host.name for host in spec.hosts}
    return (*spec.hosts, *(host for host in (record.node0,) if host.name not in known))


def resumed_spec(
    spec: RunSpec, record: RunRecord, snapshots: Mapping[str, HostSnapshot | HostError | None], typed: Collection[str]
) -> RunSpec | Refusal:
    """Return the spec for the hosts that answer, or why the run is not resumed. Pure.

    `snapshots`: name of each of `hosts_to_inspect` → its processes, or why it could not be asked. `typed`: the options
    of the call besides --resume. Raises a UserError for numbers of ranks that do not fit the hosts.
    """
    asked, node0 = spec.asked, record.node0.name
    alive = [
        name
        for name, snapshot in snapshots.items()
        if isinstance(snapshot, HostSnapshot) and any(live.run == record.id for live in snapshot.runs.runs)
    ]
    if alive and isinstance(snapshots[node0], NO_ANSWER):
        return Refusal(
            f"run {record.id} still has processes on {fold(alive)}, and its node0 ({node0}) cannot be reached",
            Fix(f"they exit within a minute after losing {node0}; then: `ipexctl run --resume {record.id}`"),
            tuple(alive),
        )
    if alive:
        stop = Fix("`ipexctl stop {run} {*force}`", run=record.id, force=() if record.is_own else ("--force",))
        return Refusal(f"run {record.id} is alive on {fold(alive)}", stop, tuple(alive))
    left = tuple(host for host in spec.hosts if not isinstance(snapshots[host.name], NO_ANSWER))
    away = tuple(host.name for host in spec.hosts if host not in left)
    if len(left) < (asked.min_hosts or 1):
        minimum = f", fewer than --min-hosts {asked.min_hosts}" if asked.min_hosts else ""
        reason = next(snapshot.reason for snapshot in snapshots.values() if isinstance(snapshot, NO_ANSWER))
        return Refusal(
            f"{format_count(len(left), 'host')} of {len(spec.hosts)} answer{'s' * (len(left) == 1)}{minimum}; "
            f"{fold(away)}: {reason}",
            Fix(f"when more answer: `ipexctl run --resume {record.id}`")
            + (Fix(f"; or with fewer: `ipexctl run --resume {record.id} --min-hosts {len(left)}`") if left else ""),
            away,
            3,
        )
    resumed = replace(
        spec,
        hosts=left,
        options=spec.options.without(away),
        asked=asked._replace(
            n=asked.n if asked.n is None or "n" in typed else max(1, asked.n * len(left) // len(spec.hosts)),
            first_world_size=record.plan.first_world_size,
            resumed=(*record.plan.asked.resumed, record.id),
        ),
    )
    refuse_bad_rank_counts(resumed.asked, left)
    return resumed


_HOST_OPTIONS: Final = frozenset(("-H", "--hostfile", "--hosts", "-c", "--cluster", "-l", "--limit"))


def keep_checkpoint(
    spec: RunSpec, nodes: Sequence[Host], plan: Plan, pool: SessionPool, registry: RunRegistry
) -> tuple[str, str]:
    """Keep a copy of the checkpoint that the run resumes from on each host that has it.

    Return a sentence about the checkpoint, and its name for `Plan.resumes_from` (`RUN:PATH`; empty if no host has one).
    Raises a StartError if another run has overwritten the checkpoint, if a copy does not fit, or if the resumed run had
    a checkpoint and no host has a complete one."""
    asked, cwd, run = spec.asked, plan.cwd, spec.asked.resumed[-1]
    statuses = {name: status for name in asked.resumed if (status := read_newest_status(registry.directory / name))}
    last = next((name for name, status in reversed(statuses.items()) if status.checkpoint), "")
    recorded, source = (statuses[last].checkpoint, registry.get(last)) if last else ("", None)
    later = {name: list(statuses.values())[at + 1 :] for at, name in enumerate(statuses)}
    keep: KeepRequest = {
        "home": plan.home,
        "cwd": cwd,
        "resumed": asked.resumed,
        "recorded": posixpath.join(cwd, source.plan.cwd if source else "", recorded) if recorded else "",
        "path": posixpath.join(cwd, asked.checkpoint) if asked.checkpoint else "",
        "superseded": [name for name in statuses if any(has_gone_on(new, statuses[name]) for new in later[name])],
        "sets_aside": False,
    }
    had_checkpoint = any(status.has_checkpoint for status in statuses.values())
    answers = _find_kept(spec, first_of_stores(nodes, plan), keep, pool, wants_copies=had_checkpoint)
    kept = {name: checkpoint for name, (checkpoint, _) in answers.items()}
    copies = {name: report for name, (_, report) in answers.items() if report is not None}
    has_own = any(checkpoint.run in asked.resumed for checkpoint in kept.values())
    is_lost = bool(recorded and kept) and not has_own
    if is_lost and not any(checkpoint.has_record for checkpoint in kept.values()):
        raise StartError(unlisted_checkpoint(run, asked.checkpoint or posixpath.dirname(recorded), spec.typed))
    if is_lost or (copies and not any(plan_exchange(copies).known.values())):
        record = registry.get(run)
        away = [name for name in (record.hosts if record is not None else ()) if name not in kept]
        raise StartError(lost_checkpoint(asked.checkpoint or recorded, run, list(kept), away, spec.typed))
    newest = max(kept.values(), key=lambda checkpoint: checkpoint.written)
    source_name = f"{newest.run}:{_relative(newest.path, cwd)}" if newest.path else ""
    return describe_kept(kept, asked, cwd), source_name


def _find_kept(
    spec: RunSpec, hosts: Sequence[Host], keep: KeepRequest, pool: SessionPool, *, wants_copies: bool
) -> dict[str, Answer]:
    """Return each host's answer. A host where another run has overwritten the checkpoint is asked again, to set those
    files aside and put the kept copy in their place, if another host still has the run's own.

    `hosts`: one of each home. `wants_copies`: ask for all copies at --checkpoint, too. Raises a StartError if no host
    has the run's own checkpoint any more."""
    asked, cwd, path = spec.asked, keep["cwd"], keep["path"]
    is_absolute = posixpath.isabs(asked.checkpoint or "")
    tree = "" if is_absolute else posixpath.relpath(cwd, f"{keep['home']}/code").partition("/")[0]
    wants_copies = wants_copies and bool(path)
    request = {"path": path if wants_copies else "", "home": keep["home"], "tree": tree, "keep": keep}

    def ask(_: Host, session: Session) -> Answer:
        reply = call(session, "files.checkpoint", "find", request, label="look for checkpoints", silence=PATIENCE)
        try:
            kept = reply.record("kept").decode(KeptCheckpoint)
            copies = read_host_copies(reply.record("report"), posixpath.basename(path)) if wants_copies else None
        except (ValueError, TypeError, KeyError):
            raise HostError("its list of checkpoints cannot be read", Fix("`ipexctl doctor`")) from None
        return kept, copies

    answers: dict[str, Answer] = {}
    asking = hosts
    for sets_aside in (False, True):
        keep["sets_aside"] = sets_aside
        answers |= ask_all(asking, pool, ask)
        having = {name: kept for name, (kept, _) in answers.items() if kept.path}
        replaced = {name: kept for name, kept in having.items() if kept.run not in asked.resumed}
        nobody_has_it = len(replaced) == len(having)
        if replaced and (sets_aside or nobody_has_it):
            raise StartError(replaced_checkpoint(asked.resumed[-1], replaced, cwd, spec.typed))
        asking = [host for host in asking if host.name in replaced]
        keep["recorded"] = keep["recorded"] or next((kept.path for kept in having.values()), "")
        if not asking:
            break
    return answers


def describe_kept(kept: Mapping[str, KeptCheckpoint], asked: RunOptions, cwd: str) -> Fix:
    """Return what is known of the checkpoint before the start: which hosts have it, and what was in its place. Pure."""
    hosts_with: dict[str, list[str]] = {}
    for host, checkpoint in kept.items():
        hosts_with.setdefault(checkpoint.path, []).append(host)
    there = [f"{_relative(path, cwd)} is there on {fold(names)}" for path, names in hosts_with.items() if path]
    if not there:  # the record of a run that nobody followed is on node0 alone
        return Fix.of([f"no whole checkpoint of run {asked.resumed[-1]} is there on {fold(kept)}"])
    text = f"{'; '.join(there)}, and is kept until a newer one is there; {asked.script} decides whether it loads it"
    return join_fixes([Fix.of([text]), *dict.fromkeys(map(_describe_replaced, kept.values(), repeat(cwd)))])


def _describe_replaced(kept: KeptCheckpoint, cwd: str) -> Fix:
    """Return what became of the files that were in the checkpoint's place; empty if nothing was."""
    run, _, path = kept.replaced.partition(":")
    fields = {"run": run, "source": f"{run}:{_relative(path, cwd)}"}
    aside = Fix("what no run wrote there is now {path}", path=kept.set_aside) if kept.set_aside else Fix("")
    if not run:
        return aside
    return join_fixes(
        [Fix("what run {run} wrote in its place is kept: `ipexctl fetch {source} out/`", **fields), aside]
    )


def finished_run(run: str, status: RunStatus, typed: TypedCall) -> tuple[str, Fix]:
    """Return why a run that has succeeded is not resumed, and what to do instead. Pure."""
    progress = status.progress
    steps = f" (step {progress.step} of {progress.steps})" if progress is not None and progress.steps else ""
    anew = ipexctl_command("run", *typed.options, argv=typed.words)
    fix = Fix(
        "its files: `ipexctl fetch {run} fetched/`; to train longer, type the changed arguments behind --resume {run}; "
        "to run it again: {anew}",
        run=run, anew=anew,
    )  # fmt: skip
    return f"run {run} has finished{steps}: there is nothing to resume", fix


def unlisted_checkpoint(run: str, path: str, typed: TypedCall) -> StartFailure:
    """Say that nobody knows whether the checkpoint of a run without a record of files is still that run's. Pure."""
    anew = ipexctl_command("run", *typed.options, argv=typed.words)
    fix = Fix(
        "to continue from what is in {path} now: {anew}, with --checkpoint {path} behind run",
        path=path or ".", anew=anew,
    )  # fmt: skip
    return StartFailure(
        f"run {run} was recorded by an older ipexctl, which made no list of the run's files, so whether the checkpoint "
        "is still that run's is unknown",
        fix, (), 2,
    )  # fmt: skip


def replaced_checkpoint(run: str, replaced: Mapping[str, KeptCheckpoint], cwd: str, typed: TypedCall) -> StartFailure:
    """Say that another run has overwritten the checkpoint on every host that had it. Pure.

    `replaced`: host → the other run's checkpoint."""
    newest = max(replaced.values(), key=lambda kept: (bool(kept.run), kept.written))
    sentence = LaterWrite(newest.run, newest.written).sentence
    anew = Fix("to start over: {anew}", anew=ipexctl_command("run", *typed.options, argv=typed.words))
    other = Fix("to go on from that one: `ipexctl run --resume {run}`; ", run=newest.run) if newest.run else Fix("")
    return StartFailure(
        f"{_relative(newest.path, cwd)} on {fold(replaced)} is no longer of run {run}, and no copy is kept: {sentence}",
        other + anew,
        tuple(replaced),
        2,
    )


def _relative(path: str, cwd: str) -> str:
    """Return a path below `cwd` relative to it, and any other path as it is."""
    return posixpath.relpath(path, cwd) if path.startswith(f"{cwd}/") else path


def lost_checkpoint(path: str, run: str, hosts: Sequence[str], away: Collection[str], typed: TypedCall) -> StartFailure:
    """Say that no host which answers has a complete checkpoint of the run. Pure.

    `hosts`: those that were asked. `away`: hosts of the run that were not; they may have it."""
    options = list(typed.options)
    for at in reversed(range(len(options))):  # the hosts that answer replace those in the first call
        name = options[at].partition("=")[0]
        if name in _HOST_OPTIONS or (name[:2] in _HOST_OPTIONS and not name.startswith("--")):
            del options[at : at + 2 if options[at] in _HOST_OPTIONS else at + 1]
    anew = Fix("to start over: {call}", call=ipexctl_command("run", *options, argv=typed.words))
    return StartFailure(
        f"run {run} had a checkpoint in {quote(path)}, but there is no complete copy on {fold(hosts)}",
        Fix("when {hosts} answers again: `ipexctl run --resume {run}`; {anew}", hosts=fold(away), run=run, anew=anew)
        if away
        else anew,
        tuple(away),
        2,
    )

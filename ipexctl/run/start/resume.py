"""`run --resume`: plans a run anew on the hosts that are left, and refuses one whose checkpoint is lost. A run is alive
if any host shows a process of it. An unreachable host is left out. Each host keeps its number of ranks, and scripts get
the world size of the very first run, whose global batch they keep.
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
from ipexctl.node.common.asked import Asked
from ipexctl.node.common.fix import Fix, ipexctl_command, join_fixes
from ipexctl.node.common.plan import Plan
from ipexctl.node.common.records import LaterWrite, RunStatus, has_gone_on
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
    answers_of,
    first_of_stores,
    refuse_bad_rank_counts,
)
from ipexctl.text import format_count

NO_ANSWER: Final = (Unreachable, TimedOut)


def refuse_job(record: RunRecord) -> None:
    if record.plan.job:
        raise UserError(
            f"run {record.id} was in job {record.plan.job} of the scheduler, which chooses the hosts of the next one",
            fix="submit its job again: with --checkpoint, the new run continues from the newest checkpoint",
        )


def on_hosts_left(
    spec: RunSpec, record: RunRecord, pool: SessionPool, on_note: Callable[[str], None], *, typed: Collection[str] = ()
) -> RunSpec:
    """`typed`: options of this call, not of the run. Raises a CallError if no host answers, or the run is alive."""
    outcomes = inspect_hosts(hosts_to_inspect(spec, record), pool)
    snapshots = {outcome.host.name: outcome.error or outcome.result for outcome in outcomes}
    status = read_newest_status(RunRegistry().directory / record.id)
    if status is not None and status.state == "ok" and spec.asked.argv == record.plan.asked.argv:
        reason, fix = finished_run(record.id, status, spec.typed)
        raise CallError(reason, fix=spec.options.apply(fix), exit_code=2)
    if status is not None and status.checkpoint and not spec.asked.checkpoint and len(spec.hosts) > 1:
        place = posixpath.dirname(status.checkpoint) or status.checkpoint
        spec = replace(spec, asked=spec.asked._replace(checkpoint=place))
        on_note(f"all hosts get what run {record.id} saved in {place}, as with --checkpoint {quote(place)}")
    found = resumed_spec(spec, record, snapshots, typed)
    if isinstance(found, Refusal):
        raise CallError(found.reason, fix=spec.options.apply(found.fix), exit_code=found.exit_code)
    for host in spec.hosts:
        if isinstance(error := snapshots[host.name], HostError) and host not in found.hosts:
            on_note(f"{host.name} is left out: {error.reason}")
    on_note(f"run {record.id} is resumed on {fold(host.name for host in found.hosts)}")
    return found


def hosts_to_inspect(spec: RunSpec, record: RunRecord) -> tuple[Host, ...]:
    """The hosts of the call, and the run's node0 if the call leaves that out."""
    known = {host.name for host in spec.hosts}
    return (*spec.hosts, *(host for host in (record.node0,) if host.name not in known))


def resumed_spec(
    spec: RunSpec, record: RunRecord, snapshots: Mapping[str, HostSnapshot | HostError | None], typed: Collection[str]
) -> RunSpec | Refusal:
    """`snapshots`: by the name of each of `hosts_to_inspect`. `typed`: the options besides --resume.

    Raises a UserError for options that do not fit the hosts. Pure.
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
    found = replace(
        spec,
        hosts=left,
        options=spec.options.without(away),
        asked=asked._replace(
            n=asked.n if asked.n is None or "n" in typed else max(1, asked.n * len(left) // len(spec.hosts)),
            first_world_size=record.plan.first_world_size,
            resumed=(*record.plan.asked.resumed, record.id),
        ),
    )
    refuse_bad_rank_counts(found.asked, left)
    return found


_HOSTS: Final = frozenset(("-H", "--hostfile", "--hosts", "-c", "--cluster", "-l", "--limit"))


def keep_checkpoint(
    spec: RunSpec, nodes: Sequence[Host], plan: Plan, pool: SessionPool, registry: RunRegistry
) -> tuple[str, str]:
    """Keep a copy of the checkpoint that the run resumes from on each host that has it. Returns what is known of that,
    and the plan's `resumes_from`.

    Raises a StartError if a copy does not fit, or if the resumed run had a checkpoint, and no host has it as that run
    left it."""
    asked = spec.asked
    cwd, home, run = plan.cwd, plan.home, asked.resumed[-1]
    statuses = {each: status for each in asked.resumed if (status := read_newest_status(registry.directory / each))}
    path = posixpath.join(cwd, asked.checkpoint) if asked.checkpoint else ""
    last = next((each for each, status in reversed(statuses.items()) if status.checkpoint), "")
    recorded, source = (statuses[last].checkpoint, registry.get(last)) if last else ("", None)
    later = {each: list(statuses.values())[at + 1 :] for at, each in enumerate(statuses)}
    keep: KeepRequest = {
        "home": home,
        "cwd": cwd,
        "resumed": asked.resumed,
        "recorded": posixpath.join(cwd, source.plan.cwd if source else "", recorded) if recorded else "",
        "path": path,
        "superseded": [each for each in statuses if any(has_gone_on(run, statuses[each]) for run in later[each])],
        "sets_aside": False,
    }
    had_one = path and any(status.has_checkpoint for status in statuses.values())
    tree = "" if posixpath.isabs(asked.checkpoint or "") else posixpath.relpath(cwd, f"{home}/code").partition("/")[0]
    request = {"path": path if had_one else "", "home": home, "tree": tree, "keep": keep}

    def ask(host: Host, session: Session) -> tuple[KeptCheckpoint, HostCopies | None]:
        del host
        reply = call(
            session, "files.checkpoint", "find", request, label="look for checkpoints", silence=PATIENCE,
        )  # fmt: skip
        try:
            kept = reply.record("kept").decode(KeptCheckpoint)
            return kept, read_host_copies(reply.record("report"), posixpath.basename(path)) if had_one else None
        except (ValueError, TypeError, KeyError):
            raise HostError("its list of checkpoints cannot be read", Fix("`ipexctl doctor`")) from None

    found = dict[str, tuple[KeptCheckpoint, HostCopies | None]]()
    asking = first_of_stores(nodes, plan)
    for sets_aside in (False, True):
        keep["sets_aside"] = sets_aside
        found |= answers_of(asking, pool, ask)
        replaced = {name: kept for name, (kept, _) in found.items() if kept.path and kept.run not in asked.resumed}
        if replaced and (sets_aside or len(replaced) == sum(bool(kept.path) for kept, _ in found.values())):
            raise StartError(replaced_checkpoint(run, replaced, cwd, spec.typed))
        asking = [host for host in asking if host.name in replaced]
        keep["recorded"] = keep["recorded"] or next((kept.path for kept, _ in found.values() if kept.path), "")
        if not asking:
            break
    reports = {name: report for name, (_, report) in found.items() if report is not None}
    has_own = any(kept.run in asked.resumed for kept, _ in found.values())
    if recorded and found and not has_own and not any(kept.has_record for kept, _ in found.values()):
        raise StartError(unlisted_checkpoint(run, asked.checkpoint or posixpath.dirname(recorded), spec.typed))
    if (recorded and found and not has_own) or (reports and not any(plan_exchange(reports).known.values())):
        record = registry.get(run)
        away = [name for name in (record.hosts if record is not None else ()) if name not in found]
        raise StartError(lost_checkpoint(asked.checkpoint or recorded, run, list(found), away, spec.typed))
    kept = {name: each for name, (each, _) in found.items()}
    newest = max(kept.values(), key=lambda each: each.written)
    return describe_kept(kept, asked, cwd), f"{newest.run}:{_shown(newest.path, cwd)}" if newest.path else ""


def describe_kept(kept: Mapping[str, KeptCheckpoint], asked: Asked, cwd: str) -> Fix:
    """What is known of the checkpoint before the start: that it is there, and what was in its place. Pure."""
    hosts: dict[str, list[str]] = {}
    for host, each in kept.items():
        hosts.setdefault(each.path, []).append(host)
    there = [f"{_shown(path, cwd)} is there on {fold(names)}" for path, names in hosts.items() if path]
    if not there:  # the record of a run that nobody followed is on node0 alone
        return Fix.of([f"no whole checkpoint of run {asked.resumed[-1]} is there on {fold(kept)}"])
    text = f"{'; '.join(there)}, and is kept until a newer one is there; {asked.script} decides whether it loads it"
    return join_fixes([Fix.of([text]), *dict.fromkeys(map(_describe_replaced, kept.values(), repeat(cwd)))])


def _describe_replaced(kept: KeptCheckpoint, cwd: str) -> Fix:
    run, _, path = kept.replaced.partition(":")
    fields = {"run": run, "source": f"{run}:{_shown(path, cwd)}"}
    aside = Fix("what no run wrote there is now {path}", path=kept.set_aside) if kept.set_aside else Fix("")
    if not run:
        return aside
    return join_fixes(
        [Fix("what run {run} wrote in its place is kept: `ipexctl fetch {source} out/`", **fields), aside]
    )


def finished_run(run: str, status: RunStatus, typed: TypedCall) -> tuple[str, Fix]:
    """Why a run that has succeeded is not resumed, and what to do instead. Pure."""
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
    """Why a run of an older version is not resumed: nobody knows whether its checkpoint is still its own. Pure."""
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
    """Why the run is not resumed if another run has overwritten its checkpoint everywhere. Pure."""
    newest = max(replaced.values(), key=lambda kept: (bool(kept.run), kept.written))
    sentence = LaterWrite(newest.run, newest.written).sentence
    anew = Fix("to start over: {anew}", anew=ipexctl_command("run", *typed.options, argv=typed.words))
    other = Fix("to go on from that one: `ipexctl run --resume {run}`; ", run=newest.run) if newest.run else Fix("")
    return StartFailure(
        f"{_shown(newest.path, cwd)} on {fold(replaced)} is no longer of run {run}, and no copy is kept: {sentence}",
        other + anew,
        tuple(replaced),
        2,
    )


def _shown(path: str, cwd: str) -> str:
    return posixpath.relpath(path, cwd) if path.startswith(f"{cwd}/") else path


def lost_checkpoint(path: str, run: str, hosts: Sequence[str], away: Collection[str], typed: TypedCall) -> StartFailure:
    """Why the run is not resumed, with the line that begins at the first step. Pure."""
    options = list(typed.options)
    for at in reversed(range(len(options))):  # the hosts that answer replace those in the first call
        name = options[at].partition("=")[0]
        if name in _HOSTS or (name[:2] in _HOSTS and not name.startswith("--")):
            del options[at : at + 2 if options[at] in _HOSTS else at + 1]
    anew = Fix("to start over: {call}", call=ipexctl_command("run", *options, argv=typed.words))
    return StartFailure(
        f"run {run} had a checkpoint in {quote(path)}, but there is no complete copy on {fold(hosts)}",
        Fix("when {hosts} answers again: `ipexctl run --resume {run}`; {anew}", hosts=fold(away), run=run, anew=anew)
        if away
        else anew,
        tuple(away),
        2,
    )

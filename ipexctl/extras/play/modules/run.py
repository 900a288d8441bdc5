"""The module run: start a job on the play's hosts and follow it to its end, or detach.

In comes a call for all hosts of the play; out goes one `Result`, which holds for all. It takes the same way as
`ipexctl run`: request, plan, start, follow. Of the ranks' output 1 MB a stream is kept for `register`. Cancelling the
play stops the run, over a new session, as those of the pool are closed then. `creates` is looked up on node0 in the
run's own tree, of which there may be two.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.extras.play.masks import masked
from ipexctl.extras.play.modules.host_script import run_sh
from ipexctl.extras.play.options import local_path, script_argv
from ipexctl.extras.play.report import RunOutput
from ipexctl.extras.play.result import Call, Result, TaskStatus
from ipexctl.hosts.host import private_keys
from ipexctl.jobs.follow import Follower
from ipexctl.jobs.local_copy import LocalCopy
from ipexctl.jobs.registry import RunRecord, RunRegistry
from ipexctl.jobs.stop import stop
from ipexctl.jobs.submit import pipeline
from ipexctl.jobs.submit.project import ProjectLocation, locate_project
from ipexctl.jobs.submit.request import RunRequest, StartFailure, check_request, run_request
from ipexctl.launch.request import CommandKind, Export
from ipexctl.node.common.frames import Chunk, Note, StreamName
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.progress import Notice
from ipexctl.sync.root import owner_here, tree_name
from ipexctl.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.extras.play.play_context import PlayContext
    from ipexctl.hosts.host import Host

_MAX_KEPT: Final = 1 << 20
"""Most characters of the ranks' output kept for `register`, for each stream."""

_CREATES: Final = """\
case $1 in '~') set -- "$HOME";; '~/'*) set -- "$HOME/${1#??}";; esac
case $1 in /*) [ -e "$1" ] && printf '%s\\n' "$1"; exit;; esac
case $2 in '~/'*) tree=$HOME/${2#??};; *) tree=$2;; esac
for it in "$tree" "$tree".gen*; do
  [ ! -e "$it/$3/$1" ] || { printf '%s\\n' "$1"; exit 0; }
done
exit 1
"""
# While a project's tree is in use, the next run gets a second tree, .gen2.

_NOT_RUN: Final = {"rc": 0, "stdout": "", "stderr": "", "run": "none-yet"}


def _run(context: PlayContext, call: Call, hosts: Sequence[Host]) -> Result | Mapping[str, Result]:
    request = replace(_run_request(context, call), secret_files=private_keys(hosts))
    check_request(request)
    location = locate_project(request, call.task.base)
    if call.args["creates"] is not None and (created := _find_created(context, call, location)):
        return Result("ok", f"{created} is there already", data={**_NOT_RUN, "run": "", "creates": created})
    if call.check:
        return _plan_only(context, call, hosts, request, location)
    return _start(context, call, hosts, request, location)


def _find_created(context: PlayContext, call: Call, location: ProjectLocation) -> str:
    """The existing path of `creates` on node0, relative to the run's working directory; empty if it does not exist."""
    tree = str(location.root)
    if call.args["sync"]:
        tree = f"{context.options.home}/code/{tree_name(Path(os.path.realpath(location.root)), owner_here())}"
    with context.session(call.host) as session:
        completed = run_sh(context, session, call, _CREATES, [call.args["creates"], tree, location.subdirectory])
    return completed.stdout.decode(errors="replace").strip() if completed.rc == 0 else ""


def _run_request(context: PlayContext, call: Call) -> RunRequest:
    args, options = call.args, context.options
    extra_args = tuple(args["argv"] or ())
    argv: tuple[str, ...]
    kind: CommandKind
    if args["script"] is not None:
        script, *rest = script_argv(call.task.base, args["script"])
        kind, argv = "script", (str(local_path(call.task.base, script)), *rest, *extra_args)
    elif args["module"] is not None:
        kind, argv = "module", (args["module"], *extra_args)
    else:
        command = args["cmd"]
        kind, argv = "command", tuple(["/bin/sh", "-c", command] if isinstance(command, str) else command)
    exports = tuple(Export(name, value, secret=True, source="environment") for name, value in call.environment.items())
    cwd = None if args["cwd"] is None else local_path(call.task.base, args["cwd"])
    given = {**args, "cwd": cwd}
    return run_request(kind, argv, given, exports, home=options.home, iface=options.iface, timeout=call.timeout)


def _plan_only(
    context: PlayContext, call: Call, hosts: Sequence[Host], request: RunRequest, location: ProjectLocation
) -> Result:
    # As for exec: a missing file of `creates` shows that it would run, and that later tasks find it changed.
    status: TaskStatus = "skipped" if call.args["creates"] is None else "changed"
    planned = pipeline.plan_run(
        hosts, request, context.pool, location, run="RUN", notify=lambda _: None, note=lambda _: None
    )
    if isinstance(planned, StartFailure):
        # With --check, files that an earlier task would create are missing: not a failure of the playbook.
        return Result(status, f"not run: --check ({planned.reason})", data=_NOT_RUN, not_run=True)
    ranks = planned.plan.world_size
    message = f"not run: --check; it would be {counted(ranks, 'rank')}"
    return Result(status, message, data={**_NOT_RUN, "world_size": ranks}, not_run=True)


def _start(
    context: PlayContext, call: Call, hosts: Sequence[Host], request: RunRequest, location: ProjectLocation
) -> Result | Mapping[str, Result]:
    started = pipeline.submit_run(
        hosts,
        request,
        context.pool,
        location,
        notify=lambda text: context.watch(Notice(text)),
        note=lambda text: context.watch(Notice(f"note: {text}")),
    )
    if isinstance(started, StartFailure):
        return _not_started(hosts, started)
    started.launch.leave()  # its session stays open
    record, plan = started.record, started.plan
    for note in started.notes:
        context.watch(Notice(f"note: {note}"))
    size = f"{counted(plan.world_size, 'rank')} on {counted(len(plan.hosts), 'host')}"
    context.watch(Notice(f"run {record.id}: {size}, {plan.connection}"))
    data = {"run": record.id, "world_size": plan.world_size, "backend": plan.backend, "cwd": plan.cwd}
    if call.args["detach"]:
        return Result("changed", f"run {record.id} goes on by itself", data=data)
    code, reason, output = _follow(context, call, record)
    data |= {"rc": code, **output}
    if code == 0:
        return Result("changed", f"run {record.id} ended well", data=data)
    pipeline.remove_job_files(hosts, record, context.pool)
    reason = f"run {record.id} failed with exit code {code}" + (f": {reason}" if reason else "")
    return Result("failed", reason, f"ipexctl why {record.id}", data | {"changed": True})


def _not_started(hosts: Sequence[Host], failure: StartFailure) -> Mapping[str, Result]:
    unreachable = (failure.hosts or [host.name for host in hosts]) if failure.exit_code == 3 else ()
    return {
        host.name: Result("unreachable" if host.name in unreachable else "failed", failure.reason, failure.fix)
        for host in hosts
    }


def _follow(context: PlayContext, call: Call, record: RunRecord) -> tuple[int, str, dict[str, str]]:
    """Follow the run to its end; cancelling the call stops it. Returns exit code, reason, and the ranks' output."""
    output: dict[str, list[str]] = {"stdout": [], "stderr": []}
    sizes = {"stdout": 0, "stderr": 0}
    open_lines: dict[tuple[int, StreamName], bytes] = {}

    def emit(rank: int, stream: StreamName, lines: bytes) -> None:
        text = lines.decode(errors="replace")
        if sizes[stream] < _MAX_KEPT:
            output[stream].append(text)
            sizes[stream] += len(text)
        if not call.task.inherited.no_log:
            context.watch(RunOutput(rank, stream, masked(text, context.templater.secrets)))

    def watch(event: object) -> None:
        if isinstance(event, Chunk):
            key = (event.rank, event.stream)
            complete, newline, remainder = (open_lines.pop(key, b"") + event.data).rpartition(b"\n")
            open_lines[key] = remainder
            if newline:
                emit(event.rank, event.stream, complete + newline)
        elif isinstance(event, Note):
            emit(event.rank, event.stream, event.data)
        elif isinstance(event, Notice):
            context.watch(Notice(event.text, event.warning))

    follower = Follower(
        record,
        lambda cancel: context.lend_session(record.node0, cancel),
        watch,
        context.cancel,
        copy=LocalCopy(RunRegistry().directory / record.id),
        figures=10.0,
        reconnect=call.args["reconnect"],
    )
    try:
        ended = follower.follow()
    except Cancelled:
        _stop(context, record)
        raise
    for (rank, stream), remainder in sorted(open_lines.items()):
        if remainder:
            emit(rank, stream, remainder)
    reason = ended.status.reason if ended.status is not None else ""
    return ended.exit_code, reason, {name: "".join(parts).rstrip("\n") for name, parts in output.items()}


def _stop(context: PlayContext, record: RunRecord) -> None:
    """Stop the run because the call was cancelled; over a new session, as those of the pool are closed."""
    cancel = Cancel()
    try:
        with closing(context.pool.connector.open(record.node0, cancel)) as session:
            stop(session, record, cancel=cancel)
    except HostError as error:
        context.watch(Notice(f"run {record.id} could not be stopped: {error.reason}; ipexctl stop {record.id}", True))


RUNNERS: Final = {"run": _run}

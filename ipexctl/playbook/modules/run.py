"""The module run: start a job on the play's hosts and follow it to its end, or detach."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import UserError
from ipexctl.playbook.modules.host_script import run_sh
from ipexctl.playbook.options import local_path
from ipexctl.playbook.report import RunOutput
from ipexctl.playbook.result import Call, Result, Status, failed_host, refused
from ipexctl.remote.outcome import HostError
from ipexctl.remote.progress import Notice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.jobs.registry import RunRecord
    from ipexctl.jobs.submit.project import ProjectLocation
    from ipexctl.jobs.submit.request import RunRequest, StartFailure
    from ipexctl.playbook.play_context import PlayContext

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


class _Run:
    def run_on_all(self, context: PlayContext, calls: Sequence[Call]) -> Mapping[str, Result]:
        from ipexctl.jobs.submit.project import locate_project
        from ipexctl.jobs.submit.request import check_request

        call = calls[0]
        try:
            request, secrets = _run_request(context, call)
            check_request(request)
            location = locate_project(request, call.task.base)
            if call.args["creates"] is not None and (created := _find_created(context, call, location)):
                data = {**_NOT_RUN, "run": "", "creates": created}
                return {
                    host_call.host.name: Result("ok", f"{created} is there already", data=data) for host_call in calls
                }
            if call.check:
                return _plan_only(context, calls, request, location)
            return _start(context, calls, request, location, secrets)
        except UserError as error:
            return refused(calls, error.message, error.fix)
        except HostError as error:
            return {host_call.host.name: failed_host(error.status, error.reason, error.fix) for host_call in calls}


def _find_created(context: PlayContext, call: Call, location: ProjectLocation) -> str:
    """The existing path of `creates` on node0, relative to the run's working directory; empty if it does not exist."""
    from ipexctl.sync.root import owner_here, tree_name

    tree = str(location.root)
    if call.args["sync"]:
        tree = f"{context.options.home}/code/{tree_name(Path(os.path.realpath(location.root)), owner_here())}"
    with context.session(call.host) as session:
        completed = run_sh(context, session, call, _CREATES, [call.args["creates"], tree, location.subdirectory])
    return completed.stdout.decode(errors="replace").strip() if completed.rc == 0 else ""


def _run_request(context: PlayContext, call: Call) -> tuple[RunRequest, dict[str, str]]:
    from ipexctl.jobs.submit.request import RunRequest
    from ipexctl.launch.request import Export, LaunchOptions

    args, options = call.args, context.options
    extra_args = tuple(args["argv"] or ())
    argv: tuple[str, ...]
    kind: Any
    if args["script"] is not None:
        script, *rest = script_argv(call.task.base, args["script"])
        kind, argv = "script", (str(local_path(call.task.base, script)), *rest, *extra_args)
    elif args["module"] is not None:
        kind, argv = "module", (args["module"], *extra_args)
    else:
        command = args["cmd"]
        kind, argv = "command", tuple(["/bin/sh", "-c", command] if isinstance(command, str) else command)
    launch: Any = {name: args[name] for name in ("n", "ppn", "backend", "mpi", "bind", "omp", "ccl_workers")}
    exports = tuple(Export(name, value, secret=True, source="environment") for name, value in call.environment.items())
    request = RunRequest(
        kind=kind,
        argv=argv,
        options=LaunchOptions(
            **launch, master_port=args["master_port"], time_limit=args["time_limit"], exports=exports
        ),
        env=args["env"],
        python=args["python"],
        setup=args["setup"],
        home=options.home,
        iface=options.iface,
        cwd=None if args["cwd"] is None else local_path(call.task.base, args["cwd"]),
        sync=args["sync"],
        excludes=tuple(args["exclude"] or ()),
        includes=tuple(args["include"] or ()),
        data=tuple(args["data"] or ()),
        allow_big=args["allow_big"],
        timeout=call.timeout,
        restarts=args["max_restarts"],
        checkpoint=os.path.normpath(args["checkpoint"]) if args["checkpoint"] is not None else "",
        hang_after=args["hang_after"],
        on_hang=args["on_hang"],
    )
    return request, dict(call.environment)


def script_argv(base: Path, line: str) -> list[str]:
    """`train.py --epochs 3`: the script and its arguments; an existing path with spaces is one word."""
    from ipexctl.sync.root import path_problem

    if not path_problem(local_path(base, line), "file"):
        return [line]
    try:
        return shlex.split(line) or [""]
    except ValueError:
        raise UserError("run: a quote is never closed", fix="argv: takes the script's words as a list") from None


def _plan_only(
    context: PlayContext, calls: Sequence[Call], request: RunRequest, location: ProjectLocation
) -> Mapping[str, Result]:
    from ipexctl.jobs.submit.pipeline import plan_run
    from ipexctl.jobs.submit.request import StartFailure

    hosts = [call.host for call in calls]
    # As for exec: a missing file of `creates` shows that it would run, and that later tasks find it changed.
    status: Status = "skipped" if calls[0].args["creates"] is None else "changed"
    planned = plan_run(hosts, request, context.pool, location, run="RUN", notify=lambda _: None)
    if isinstance(planned, StartFailure):
        # With --check, files that an earlier task would create are missing: not a failure of the playbook.
        message = f"not run: --check ({planned.reason})"
        return {call.host.name: Result(status, message, data=dict(_NOT_RUN), not_run=True) for call in calls}
    plan = planned.plan
    message = f"not run: --check; it would be {plan.world_size} ranks"
    data = {**_NOT_RUN, "world_size": plan.world_size}
    return {call.host.name: Result(status, message, data=data, not_run=True) for call in calls}


def _start(
    context: PlayContext,
    calls: Sequence[Call],
    request: RunRequest,
    location: ProjectLocation,
    secrets: Mapping[str, str],
) -> Mapping[str, Result]:
    from ipexctl.jobs.submit import pipeline
    from ipexctl.jobs.submit.request import StartFailure

    hosts, options = [call.host for call in calls], context.options
    settings = pipeline.ConnectSettings(options.host_keys, options.connect_timeout)
    started = pipeline.submit_run(
        hosts, request, context.pool, location, secrets, settings, notify=lambda text: context.watch(Notice(text))
    )
    if isinstance(started, StartFailure):
        return _not_started(calls, started)
    record, plan = started.record, started.plan
    for note in started.notes:
        context.watch(Notice(f"note: {note}"))
    context.watch(Notice(f"run {record.id}: {plan.world_size} ranks on {len(plan.hosts)} hosts, over {plan.backend}"))
    data: dict[str, Any] = {"run": record.id, "world_size": plan.world_size, "backend": plan.backend, "cwd": plan.cwd}
    if calls[0].args["detach"]:
        message = f"run {record.id} goes on by itself"
        return {call.host.name: Result("changed", message, data=data) for call in calls}
    code, reason, output = _follow(context, record, no_log=bool(calls[0].task.inherited.no_log))
    data |= {"rc": code, **output}
    if code == 0:
        return {call.host.name: Result("changed", f"run {record.id} ended well", data=data) for call in calls}
    pipeline.remove_job_files(hosts, record, context.pool)
    fix = f"ipexctl why {record.id}"
    reason = f"run {record.id} failed with exit code {code}" + (f": {reason}" if reason else "")
    return {call.host.name: Result("failed", reason, fix, data) for call in calls}


def _not_started(calls: Sequence[Call], failure: StartFailure) -> Mapping[str, Result]:
    failed_hosts = set(failure.hosts) or {call.host.name for call in calls}
    results = refused(calls, failure.reason, failure.fix)
    if failure.is_unreachable:
        for name in failed_hosts & set(results):
            results[name] = Result("unreachable", failure.reason, failure.fix)
    return results


def _follow(context: PlayContext, record: RunRecord, *, no_log: bool) -> tuple[int, str, dict[str, str]]:
    """Follow the run to its end; cancelling the call stops it. Returns exit code, reason, and the ranks' output."""
    from ipexctl.jobs.follow import Follower
    from ipexctl.jobs.local_copy import LocalCopy
    from ipexctl.jobs.registry import RunRegistry
    from ipexctl.node.common.frames import Chunk
    from ipexctl.remote.outcome import Cancelled
    from ipexctl.remote.progress import Notice

    output: dict[str, list[str]] = {"stdout": [], "stderr": []}
    sizes = {"stdout": 0, "stderr": 0}
    open_lines: dict[tuple[int, str], bytes] = {}

    def emit(rank: int, stream: Any, lines: bytes) -> None:
        if sizes[stream] < _MAX_KEPT:
            text = lines.decode(errors="replace")
            output[stream].append(text)
            sizes[stream] += len(text)
        if not no_log:
            context.watch(RunOutput(Chunk(rank, stream, lines)))

    def watch(event: Any) -> None:
        if isinstance(event, Chunk):
            key = (event.rank, event.stream)
            complete, newline, remainder = (open_lines.pop(key, b"") + event.data).rpartition(b"\n")
            open_lines[key] = remainder
            if newline:
                emit(event.rank, event.stream, complete + newline)
        elif isinstance(event, Notice):
            context.watch(Notice(event.text, event.warning))

    follower = Follower(
        record,
        lambda cancel: context.lend_session(record.node0, cancel),
        watch,
        context.cancel,
        copy=LocalCopy(RunRegistry().directory / record.id),
        figures=10.0,
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
    from ipexctl.jobs.stop import stop
    from ipexctl.remote.cancel import Cancel

    cancel = Cancel()
    try:
        session = context.connector.open(record.node0, cancel)
        try:
            stop(session, record, cancel=cancel)
        finally:
            session.close()
    except HostError as error:
        context.watch(Notice(f"run {record.id} could not be stopped: {error.reason}; ipexctl stop {record.id}", True))


RUNNERS: Final = {"run": _Run()}

"""The module run: start a job on the play's hosts through `api.run`, and follow it to its end unless it is detached.

If the play is cancelled, a new session stops the run, because the pool's sessions are closed by then. `creates` is
searched on node0, in the project's tree there; while a tree is in use, the next run gets a second tree.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

from ipexctl.addons.play.modules.host_script import run_sh
from ipexctl.addons.play.modules.local_files import local_path, script_argv
from ipexctl.addons.play.result import Call, TaskResult, TaskStatus, mask_secrets
from ipexctl.addons.play.variables import PlayContext
from ipexctl.api import run as api
from ipexctl.api.known_runs import CallWatcher, stop
from ipexctl.errors import CallError
from ipexctl.homes.local_copy import LocalCopy
from ipexctl.homes.registry import RunRecord, RunRegistry
from ipexctl.hosts.host import Host, private_keys
from ipexctl.launch.launchers.program import read_program
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.frames import Chunk, Note, StreamName
from ipexctl.node.common.run_options import CommandKind, Export, RunOptions
from ipexctl.projects.root import owner_here, tree_name
from ipexctl.projects.script_file import ProjectLocation
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.outcome import Cancelled, Notice
from ipexctl.run.follow_run import Follower, RunUpdate
from ipexctl.run.start.start_project import locate_project
from ipexctl.run.start.start_request import StartFailure, check_request, set_options
from ipexctl.run.start.watcher import PlannedRun, RunWatcher, StartedRun
from ipexctl.text import format_count

_MAX_KEPT: Final = 1 << 20
"""Characters kept of each stream for `register`; the last piece may exceed them."""

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
"""Data of a run that was not started, so that later tasks can be checked with --check."""


def _run(context: PlayContext, call: Call, hosts: Sequence[Host]) -> TaskResult | Mapping[str, TaskResult]:
    """Start the job, unless the file `creates` exists; with --check, only plan it."""
    spec = replace(_run_spec(context, call), hosts=tuple(hosts), secret_files=private_keys(hosts))
    check_request(spec.asked)
    spec = replace(spec, project=locate_project(spec, call.task.base))
    if call.args["creates"] is not None and (created := _find_created(context, call, spec.project)):
        return TaskResult("ok", f"{created} already exists", data={**_NOT_RUN, "run": "", "creates": created})
    return _plan_only(context, call, spec) if call.check else _start(context, call, spec)


def _find_created(context: PlayContext, call: Call, location: ProjectLocation) -> str:
    """Return the path `creates` if it exists on node0, else empty. Relative paths begin at the run's directory."""
    tree = str(location.root)
    if call.args["sync"]:
        tree = f"{context.options.home}/code/{tree_name(Path(os.path.realpath(location.root)), owner_here())}"
    with context.session(call.host) as session:
        completed = run_sh(context, session, call, _CREATES, [call.args["creates"], tree, location.subdirectory])
    return completed.stdout.decode(errors="replace").strip() if completed.rc == 0 else ""


def _run_spec(context: PlayContext, call: Call) -> RunSpec:
    """Return what the task asks for, as `ipexctl run` has it; hosts and project are still missing."""
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
    exports = tuple(Export(name, "environment", None) for name in call.environment)
    cwd = None if args["cwd"] is None else local_path(call.task.base, args["cwd"])
    given = {**args, "cwd": cwd}
    run_options = set_options(RunOptions(kind, argv, home=options.home, iface=options.iface, exports=exports), given)
    run_options = run_options._replace(is_followed=not args["detach"], is_behind_dashes=kind == "command")
    if kind == "command":
        run_options = read_program(argv).put_into(run_options)
    return RunSpec(run_options, secrets=call.environment, timeout=call.timeout)


def _plan_only(context: PlayContext, call: Call, spec: RunSpec) -> TaskResult:
    """Plan the run for --check, without starting it."""
    # As for exec: if the `creates` file is missing, the run would start, so later tasks must see it as changed.
    status: TaskStatus = "skipped" if call.args["creates"] is None else "changed"
    planned = api.run(spec, _TaskRun(context, call, is_silent=True), dry_run=True)
    if isinstance(planned, StartFailure):
        # With --check, files that an earlier task would create are missing. This is not a failure of the playbook.
        return TaskResult(status, f"not run: --check ({planned.reason})", data=_NOT_RUN, not_run=True)
    assert isinstance(planned, PlannedRun)
    ranks = planned.plan.world_size
    message = f"not run: --check; it would be {format_count(ranks, 'rank')}"
    return TaskResult(status, message, data={**_NOT_RUN, "world_size": ranks}, not_run=True)


def _start(context: PlayContext, call: Call, spec: RunSpec) -> TaskResult | Mapping[str, TaskResult]:
    """Run the job; return one result for all hosts, or each host's if the run did not start."""
    task = _TaskRun(context, call)
    result = api.run(spec, task)
    if isinstance(result, StartFailure):
        return _not_started(spec.hosts, result)
    assert isinstance(result, StartedRun)
    run, plan, code = result.record.id, result.record.plan, result.exit_code
    data = {"run": run, "world_size": plan.world_size, "backend": plan.backend, "cwd": plan.cwd}
    if code is None:
        return TaskResult("changed", f"run {run} keeps running", data=data)
    data |= {"rc": code, **task.output}
    if code == 0:
        return TaskResult("changed", f"run {run} succeeded", data=data)
    reason = f"run {run} failed with exit code {code}" + (f": {task.reason}" if task.reason else "")
    return TaskResult("failed", reason, Fix(f"`ipexctl why {run}`"), data | {"changed": True})


def _not_started(hosts: Sequence[Host], failure: StartFailure) -> Mapping[str, TaskResult]:
    unreachable = (failure.hosts or [host.name for host in hosts]) if failure.exit_code == 3 else ()
    return {
        host.name: TaskResult("unreachable" if host.name in unreachable else "failed", failure.reason, failure.fix)
        for host in hosts
    }


class _TaskRun(RunWatcher):
    """Watches the run of a task: shows its output line by line, and keeps it for `register`."""

    def __init__(self, context: PlayContext, call: Call, *, is_silent: bool = False) -> None:
        self.reason = ""
        self._context, self._call, self._is_silent = context, call, is_silent
        self._kept: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._sizes = {"stdout": 0, "stderr": 0}
        self._open_lines: dict[tuple[int, StreamName], bytes] = {}

    @property
    def output(self) -> dict[str, str]:
        """Return `stdout` and `stderr` of all ranks."""
        return {name: "".join(parts).rstrip("\n") for name, parts in self._kept.items()}

    def sessions(self) -> AbstractContextManager[SessionPool]:
        return nullcontext(self._context.pool)  # the play's pool stays open

    def on_step(self, text: str) -> None:
        if not self._is_silent:
            self._context.watcher.on_notice(Notice(text))

    def on_note(self, text: str) -> None:
        self.on_step("note: " + text)

    def on_started(self, run: StartedRun) -> None:
        run.launch.leave()
        self.on_step(f"run {run.record.id}: {run.record.plan.size}, {run.record.plan.connection}")

    def follow(self, run: StartedRun) -> int:
        """Follow the run to its end, and return its exit code. If the play is cancelled, stop the run."""
        context, record = self._context, run.record

        def watch(update: RunUpdate) -> None:
            run.launch.is_shown = True
            self.on_update(update)

        follower = Follower(
            record,
            lambda cancel: context.pool.borrow(record.node0, cancel),
            watch,
            context.cancel,
            copy=LocalCopy(RunRegistry().directory / record.id),
            figures=10.0,
            reconnect=self._call.args["reconnect"],
            open_host=context.pool.connector.open,
        )
        try:
            ended = follower.follow()
        except Cancelled:
            self._stop(record)
            raise
        for (rank, stream), remainder in sorted(self._open_lines.items()):
            if remainder:
                self._emit(rank, stream, remainder)
        self.reason = ended.status.reason if ended.status is not None else ""
        return ended.exit_code

    def on_update(self, event: RunUpdate) -> None:
        """Show the complete lines of a piece of output; the rest waits for the next piece of that rank."""
        if isinstance(event, Chunk):
            key = (event.rank, event.stream)
            complete, newline, remainder = (self._open_lines.pop(key, b"") + event.data).rpartition(b"\n")
            self._open_lines[key] = remainder
            if newline:
                self._emit(event.rank, event.stream, complete + newline)
        elif isinstance(event, Note):
            self._emit(event.rank, event.stream, event.data)
        elif isinstance(event, Notice):
            self._context.watcher.on_notice(Notice(event.text, event.warning))

    def _emit(self, rank: int, stream: StreamName, lines: bytes) -> None:
        text = lines.decode(errors="replace")
        if self._sizes[stream] < _MAX_KEPT:
            self._kept[stream].append(text)
            self._sizes[stream] += len(text)
        if not self._call.task.inherited.no_log:
            self._context.watcher.on_output(rank, stream, mask_secrets(text, self._context.secrets))

    def _stop(self, record: RunRecord) -> None:
        try:
            stop(record, CallWatcher(Cancel()))
        except CallError as error:
            text = Fix(f"run {record.id} could not be stopped: {error.message}; `ipexctl stop {record.id}`")
            self._context.watcher.on_notice(Notice(text, True))


RUNNERS: Final = {"run": _run}

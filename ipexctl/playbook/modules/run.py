"""run: a job on all ranks of the play's hosts, followed to its end, or left to itself."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import UserError
from ipexctl.playbook.modules.doctor_trust_sync import bad_call, refused
from ipexctl.playbook.modules.host_script import run_sh
from ipexctl.playbook.options import local_path
from ipexctl.playbook.report import PlayNotice, RankSaid
from ipexctl.playbook.result import Result
from ipexctl.remote.outcome import HostError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.jobs.registry import RunRecord
    from ipexctl.jobs.submit.project import ProjectLocation
    from ipexctl.jobs.submit.request import RunRequest
    from ipexctl.playbook.play_context import PlayContext
    from ipexctl.playbook.result import Call

_KEPT: Final = 1 << 20
"""Characters of what the ranks said that `register` keeps."""

_CREATES: Final = """\
case $1 in '~') set -- "$HOME";; '~/'*) set -- "$HOME/${1#??}";; esac
case $1 in /*) [ -e "$1" ] && printf '%s\\n' "$1"; exit;; esac
case $2 in '~/'*) tree=$HOME/${2#??};; *) tree=$2;; esac
for it in "$tree" "$tree".gen*; do
  [ ! -e "$it/$3/$1" ] || { printf '%s\\n' "$1"; exit 0; }
done
exit 1
"""
# Of a project whose tree is in use the next run has another one, .gen2.

_NOT_RUN: Final = {"rc": 0, "stdout": "", "stderr": "", "run": "none-yet"}


class _Run:
    def together(self, context: PlayContext, calls: Sequence[Call]) -> Mapping[str, Result]:
        from ipexctl.jobs.submit.project import locate_project
        from ipexctl.jobs.submit.request import check_request

        call = calls[0]
        try:
            wishes, secrets = _wishes(context, call)
            check_request(wishes)
            place = locate_project(wishes, call.task.base)
            if wishes.sync:
                context.projects[place.root] = (*wishes.excludes, *wishes.data)
            if call.args["creates"] is not None and (found := _creates(context, call, place)):
                data = {**_NOT_RUN, "run": "", "creates": found}
                return {each.host.name: Result("ok", f"{found} is there already", data=data) for each in calls}
            if call.check:
                return _planned(context, calls, wishes, place)
            return _begun(context, calls, wishes, place, secrets)
        except UserError as error:
            return bad_call(calls, error)
        except HostError as error:
            status = "unreachable" if error.status == "unreachable" else "failed"
            return refused(calls, error.reason, error.fix, status)


def _creates(context: PlayContext, call: Call, place: ProjectLocation) -> str:
    """What of it there is on node0, where a run writes what it has learnt: from the run's working directory on."""
    from ipexctl.sync.root import owner_here, tree_name

    tree = str(place.root)
    if call.args["sync"]:
        tree = f"{context.options.home}/code/{tree_name(Path(os.path.realpath(place.root)), owner_here())}"
    with context.session(call.host) as session:
        ran = run_sh(context, session, call, _CREATES, [call.args["creates"], tree, place.below])
    return ran.stdout.decode(errors="replace").strip() if ran.rc == 0 else ""


def _wishes(context: PlayContext, call: Call) -> tuple[RunRequest, dict[str, str]]:
    from ipexctl.jobs.submit.request import RunRequest
    from ipexctl.launch.request import Export, LaunchOptions

    args, options = call.args, context.options
    more = tuple(args["argv"] or ())
    words: tuple[str, ...]
    kind: Any
    if args["script"] is not None:
        first, *rest = script_words(call.task.base, args["script"])
        kind, words = "script", (str(local_path(call.task.base, first)), *rest, *more)
    elif args["module"] is not None:
        kind, words = "module", (args["module"], *more)
    else:
        given = args["cmd"]
        kind, words = "command", tuple(["/bin/sh", "-c", given] if isinstance(given, str) else given)
    launch: Any = {name: args[name] for name in ("n", "ppn", "backend", "mpi", "bind", "omp", "ccl_workers")}
    exports = tuple(Export(name, value, secret=True, said="environment") for name, value in call.environment.items())
    wishes = RunRequest(
        kind=kind,
        words=words,
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
    )
    return wishes, dict(call.environment)


def script_words(base: Path, line: str) -> list[str]:
    """`train.py --epochs 3`: the script, and its arguments; a path with spaces in it is one word."""
    from ipexctl.sync.root import path_problem

    if not path_problem(local_path(base, line), "file"):
        return [line]
    try:
        return shlex.split(line) or [""]
    except ValueError:
        raise UserError("run: a quote is never closed", fix="argv: takes the script's words as a list") from None


def _planned(context: PlayContext, calls: Sequence[Call], wishes: RunRequest, place: Any) -> Mapping[str, Result]:
    from ipexctl.jobs.submit.failure import PreflightFailure
    from ipexctl.jobs.submit.pipeline import plan_run

    hosts = [call.host for call in calls]
    planned = plan_run(hosts, wishes, context.pool, place, run="RUN", say=lambda _: None, dry_run=True)
    if isinstance(planned, PreflightFailure):
        # What an earlier task would have made can't be found: that is no failure of the playbook.
        said = f"not run: --check ({planned.reason})"
        return {call.host.name: Result("skipped", said, data=dict(_NOT_RUN), not_run=True) for call in calls}
    plan = planned.plan
    said = f"not run: --check; it would be {plan.world_size} ranks"
    data = {**_NOT_RUN, "world_size": plan.world_size}
    return {call.host.name: Result("skipped", said, data=data, not_run=True) for call in calls}


def _begun(
    context: PlayContext, calls: Sequence[Call], wishes: RunRequest, place: Any, secrets: Mapping[str, str]
) -> Mapping[str, Result]:
    from ipexctl.jobs.submit import pipeline as verb
    from ipexctl.jobs.submit.failure import PreflightFailure

    hosts, options = [call.host for call in calls], context.options
    way = verb.ConnectSettings(options.host_keys, options.connect_timeout)
    begun = verb.submit_run(
        hosts, wishes, context.pool, place, secrets, way, say=lambda text: context.watch(PlayNotice(text))
    )
    if isinstance(begun, PreflightFailure):
        return _refused(calls, begun)
    record, plan = begun.record, begun.plan
    context.watch(
        PlayNotice(f"run {record.id}: {plan.world_size} ranks on {len(plan.hosts)} hosts, over {plan.backend}")
    )
    data: dict[str, Any] = {"run": record.id, "world_size": plan.world_size, "backend": plan.backend, "cwd": plan.cwd}
    if calls[0].args["detach"]:
        said = f"run {record.id} goes on by itself"
        return {call.host.name: Result("changed", said, data=data) for call in calls}
    code, why, heard = _follow(context, record, no_log=bool(calls[0].task.inherited.no_log))
    data |= {"rc": code, **heard}
    if code == 0:
        return {call.host.name: Result("changed", f"run {record.id} ended well", data=data) for call in calls}
    verb.remove_job_files(hosts, record, context.pool)
    fix = f"ipexctl why {record.id}"
    reason = f"run {record.id} failed with exit code {code}" + (f": {why}" if why else "")
    return {call.host.name: Result("failed", reason, fix, data) for call in calls}


def _refused(calls: Sequence[Call], refusal: Any) -> Mapping[str, Result]:
    named = set(refusal.hosts) or {call.host.name for call in calls}
    found = refused(calls, refusal.reason, refusal.fix)
    if refusal.unreachable:
        for name in named & set(found):
            found[name] = Result("unreachable", refusal.reason, refusal.fix)
    return found


def _follow(context: PlayContext, record: RunRecord, *, no_log: bool) -> tuple[int, str, dict[str, str]]:
    """To its end; the run is stopped where the call is. Its exit code, why, and what the ranks said."""
    from ipexctl.jobs.events import Chunk, RunNotice
    from ipexctl.jobs.follow import Follower
    from ipexctl.jobs.local_copy import LocalCopy
    from ipexctl.jobs.registry import RunRegistry
    from ipexctl.remote.outcome import Cancelled

    heard: dict[str, list[str]] = {"stdout": [], "stderr": []}
    sizes = {"stdout": 0, "stderr": 0}
    open_lines: dict[tuple[int, str], bytes] = {}

    def tell(rank: int, stream: Any, lines: bytes) -> None:
        if sizes[stream] < _KEPT:
            text = lines.decode(errors="replace")
            heard[stream].append(text)
            sizes[stream] += len(text)
        if not no_log:
            context.watch(RankSaid(Chunk(rank, stream, lines)))

    def watch(event: Any) -> None:
        if isinstance(event, Chunk):
            key = (event.rank, event.stream)
            whole, newline, rest = (open_lines.pop(key, b"") + event.data).rpartition(b"\n")
            open_lines[key] = rest
            if newline:
                tell(event.rank, event.stream, whole + newline)
        elif isinstance(event, RunNotice):
            context.watch(PlayNotice(event.text, event.warning))

    follower = Follower(
        record,
        lambda cancel: context.lent(record.node0, cancel),
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
    for (rank, stream), rest in sorted(open_lines.items()):
        if rest:
            tell(rank, stream, rest)
    why = ended.status.reason if ended.status is not None else ""
    return ended.exit_code, why, {name: "".join(parts).rstrip("\n") for name, parts in heard.items()}


def _stop(context: PlayContext, record: RunRecord) -> None:
    """The call is being ended, and with it the run; over a way of its own, as ours is closed."""
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
        context.watch(
            PlayNotice(f"run {record.id} could not be stopped: {error.reason}; ipexctl stop {record.id}", True)
        )


RUNNERS: Final = {"run": _Run()}

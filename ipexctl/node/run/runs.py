"""Lists and stops the runs recorded on node0, and requests stack dumps and profiles.

The recorded process is signalled only on its own machine, because its pid may have been reused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import time
from typing import Sequence

from ipexctl.node.common.answer import AgentError, Json, answer
from ipexctl.node.common.clock import wait_until
from ipexctl.node.common.files import HomeRequest, RunReference, read_json, remove_file, write_json_atomically
from ipexctl.node.common.frames import emit_frames
from ipexctl.node.common.home import home_of, rundir_of
from ipexctl.node.common.home_entries import is_plain_name, list_names
from ipexctl.node.common.json_records import MAX_FILE, parse_object
from ipexctl.node.common.plan import PLAN_FILE
from ipexctl.node.common.processes import ProcessIdentity, is_caught
from ipexctl.node.common.walk import Refused, enter, own_path
from ipexctl.node.run.record import stop_file
from ipexctl.node.run.record.file_owner import HomeRecords, read_status_now
from ipexctl.node.run.record.stack_dumps import dump_frames, dump_path, new_dump_id
from ipexctl.node.run.record.stored_status import NoRecord, read_document, read_pruned, read_status_file


class ListRequest(HomeRequest):
    ids: Sequence[str] | None


class FindRequest(HomeRequest):
    word: str
    """An id or a part of it; empty for the newest run."""


class StopRequest(RunReference):
    wait: float
    signal: int
    by: Json | None
    """Account and machine of the caller; None with IPEXCTL_ANONYMOUS=1."""


class RanksRequest(RunReference):
    ranks: Sequence[int] | None
    wait: float


def list_runs(request: ListRequest) -> Json:
    """Return the status of each run: None without a record, {"unreadable": why} if the record is damaged.

    Of a removed run, the status that was kept of it is returned, with when it was pruned.
    """
    runs_directory, ids = os.path.join(home_of(request, "runs"), "runs"), request["ids"]
    if ids is None:
        names = sorted(os.listdir(runs_directory)) if os.path.isdir(runs_directory) else []
        ids = [name for name in names if not name.startswith(".")]
    statuses: Json = {}
    home_records = HomeRecords(runs_directory)
    for name in ids:
        rundir = os.path.join(runs_directory, name)
        try:
            statuses[name] = read_status_now(rundir, home_records=home_records).document
        except NoRecord:
            statuses[name] = None
        except AgentError as failed:
            statuses[name] = {"unreadable": failed.reason}
    if None in statuses.values():
        pruned = read_pruned(runs_directory)
        lost = [name for name in ids if statuses[name] is None and name in pruned]
        statuses.update((name, {**pruned[name]["status"], "pruned": pruned[name]["at"]}) for name in lost)
    return {"runs": statuses}


def meant_runs(word: str, names: Sequence[str]) -> list[str]:
    """Return the run with this id, else those whose id begins with the word, else those whose id contains it."""
    for fits in (str.__eq__, str.startswith, str.__contains__):
        if fitting := [name for name in names if word and fits(name, word)]:
            return fitting
    return []


MOST_NAMES = 20
REQUEST_TAKEN = 10.0
"""Seconds for the supervisor to take a request."""


def find(request: FindRequest) -> Json:
    """Return the names of the runs that the word may mean, and if it is only one, its plan, when that was written, and
    whether this is node0.

    A directory or a plan that another account could have made is no run.
    """
    directory, word = os.path.join(home_of(request, "runs"), "runs"), request["word"]
    every = [name for name in list_names(directory) if is_plain_name(name)]
    names = meant_runs(word, every)
    if not word:
        dated = [(mtime, name) for name in every if (mtime := _mtime(os.path.join(directory, name, PLAN_FILE)))]
        names = [name for _, name in sorted(dated)[-1:]]
    plans = {name: plan for name in names[:MOST_NAMES] if (plan := _own_plan(os.path.join(directory, name)))}
    if len(plans) != 1:
        return {"names": sorted(plans)}
    ((name, plan),) = plans.items()
    is_node0 = None
    with contextlib.suppress(AgentError):
        status = read_document(os.path.join(directory, name, "status.json")).status
        is_node0 = status.supervisor.is_of_this_machine
    return {"names": [name], "plan": plan, "at": _mtime(os.path.join(directory, name, PLAN_FILE)), "is_node0": is_node0}


def _mtime(path: str) -> float:
    with contextlib.suppress(OSError):
        return os.stat(path).st_mtime
    return 0.0


def _own_plan(rundir: str) -> Json | None:
    try:
        with enter(os.path.join(rundir, PLAN_FILE), own_path) as place:
            if place.status is None or not stat.S_ISREG(place.status.st_mode):
                return None
            with open(place.open_end(os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                return parse_object(file.read(MAX_FILE))
    except (OSError, ValueError, Refused):
        return None


def stop(request: StopRequest) -> Json:
    """Stop a run, and wait for its supervisor to exit, as long as the request says. Return the status then; `was` is
    the state before."""
    rundir = rundir_of(request)
    stored = read_status_file(rundir)
    state_before, supervisor = stored.status.state, stored.status.supervisor
    if not stored.status.is_over:
        with stop_file.said(rundir, request.get("by")):
            send_signal(supervisor, request["signal"])
        wait_until(lambda: not supervisor.is_alive, request["wait"], 0.05)
    return {"status": read_status_file(rundir).document, "was": state_before}


def dump(request: RanksRequest) -> Json:
    """Have the ranks' stacks dumped, send them as frames, and return the run's status. Without a live run, no frame is
    sent."""
    answered, status = ask(request, "dump")
    with emit_frames() as writer:
        for frame in dump_frames(answered):
            writer.send(frame)
    return {"status": status}


def profile(request: RanksRequest) -> Json:
    """Have the next steps of all ranks profiled. `ranks` says why a rank has no profile; None if the run is over."""
    if not os.path.exists(os.path.join(rundir_of(request), "hooks", "ipexctl_inrank", "profiler.py")):
        raise AgentError("the run was started by an older ipexctl, which can't profile")
    answered, status = ask(request, "profile")
    return {"status": status, "ranks": answered.get("ranks")}


def ask(request: RanksRequest, kind: str) -> tuple[Json, Json]:
    """Ask the supervisor, and wait for its answer or the end of the run. Returns the answer, empty if the run is not
    alive, and the status."""
    rundir = rundir_of(request)
    stored = read_status_file(rundir)
    supervisor = stored.status.supervisor
    if stored.status.is_over:
        return {}, stored.document
    check_machine(supervisor)
    if not is_caught(supervisor.pid, signal.SIGUSR1):
        raise AgentError("the run was started by an older ipexctl, which can't be asked")
    directory, asked = os.path.join(rundir, "stacks"), new_dump_id(time.time())
    path, answer_file = dump_path(directory, asked, "ask"), dump_path(directory, asked, kind)
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        write_json_atomically(path, {"ranks": request["ranks"], "kind": kind}, durable=False)
    except PermissionError:
        raise AgentError("the run belongs to another account") from None
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = f"make room on the disk of {rundir} on {os.uname().nodename}, then ask again" if is_full else ""
        raise AgentError(f"the request can't be written: {error.strerror}", fix) from None
    send_signal(supervisor, signal.SIGUSR1)

    def is_answered() -> bool:
        return os.path.exists(answer_file) or not supervisor.is_alive

    wait = request["wait"]
    if not wait_until(lambda: not os.path.exists(path) or not supervisor.is_alive, min(REQUEST_TAKEN, wait), 0.02):
        remove_file(path)
        raise AgentError("the run's supervisor doesn't answer")
    if not wait_until(is_answered, wait, 0.02):
        raise AgentError(f"the run's supervisor has no answer after {wait:g} s; is the disk full there?")
    answered = read_json(answer_file)
    return answered, stored.document if answered else read_status_file(rundir).document


def send_signal(supervisor: ProcessIdentity, number: int) -> None:
    """Send a signal to the supervisor; one that has exited is no error. Raises an AgentError if it is another machine's
    or another account's."""
    check_machine(supervisor)
    try:
        supervisor.send_signal(number)
    except PermissionError:
        raise AgentError("the run belongs to another account") from None


def check_machine(supervisor: ProcessIdentity) -> None:
    """Raise an AgentError if the supervisor is not on this machine, where its pid means nothing."""
    if not supervisor.is_of_this_machine:
        raise AgentError(
            f"the run's supervisor is on {supervisor.machine}, and this is {os.uname().nodename}",
            f"node0 has several machines; on {supervisor.machine}, if ps -o lstart,args -p {supervisor.pid} shows "
            f"the supervisor of this run: kill {supervisor.pid}",
        )


def main(action: str) -> int:
    """Answer the agent's call `list`, `find`, `stop`, `dump` or `profile`, and return its exit code."""
    asked = {"dump": dump, "profile": profile}
    actions = {"list": list_runs, "find": find, "stop": stop, **asked}
    return answer(lambda request, _: actions[action](request))

"""Lists and stops the runs recorded on node0, and requests stack dumps.

list   {home, ids: [id, …] or null}              → {"event": "done", "runs": {id: status, or null,
                                                    or {"unreadable": why}}}
stop   {home, id, wait: seconds, signal}         → {"event": "done", "status", "was": its state before}
dump   {home, id, ranks: [N, …] or null, wait}   → frames of `stack_dumps.encode_dump`, none when the run has ended,
                                                    and {"event": "done", "status"}
"""

from __future__ import annotations

import os
import signal
import time

from ipexctl.node.common.answer import AgentError, Json, answer, emit_frames
from ipexctl.node.common.files import home_of, rundir_of, write_json_atomically
from ipexctl.node.common.processes import ProcessIdentity, is_caught
from ipexctl.node.run.stack_dumps import dump_path, encode_dump, new_dump_id
from ipexctl.node.run.status_file import NoRecord, read_pruned, read_status_file


def list_runs(request: Json) -> Json:
    runs_directory, ids = os.path.join(home_of(request), "runs"), request.get("ids")
    if ids is None:
        names = sorted(os.listdir(runs_directory)) if os.path.isdir(runs_directory) else []
        ids = [name for name in names if not name.startswith(".")]
    statuses: Json = {}
    for name in ids:
        try:
            statuses[name] = read_status_file(os.path.join(runs_directory, name)).document
        except NoRecord:
            statuses[name] = None
        except AgentError as failed:
            statuses[name] = {"unreadable": failed.reason}
    if None in statuses.values():
        pruned = read_pruned(runs_directory)
        lost = [name for name in ids if statuses[name] is None and name in pruned]
        statuses.update((name, {**pruned[name]["status"], "pruned": pruned[name]["at"]}) for name in lost)
    return {"runs": statuses}


def stop(request: Json) -> Json:
    rundir = rundir_of(request)
    stored = read_status_file(rundir)
    state_before, supervisor = stored.status.state, stored.status.supervisor
    until = time.monotonic() + float(request.get("wait", 20))
    if not stored.status.is_over:
        send_signal(supervisor, int(request.get("signal", signal.SIGTERM)))
        while time.monotonic() < until and supervisor.is_alive:
            time.sleep(0.05)
        stored = read_status_file(rundir)
    return {"status": stored.document, "was": state_before}


def dump(request: Json) -> Json:
    """Request all ranks' stacks from the supervisor, and wait for them; other calls may do the same."""
    rundir = rundir_of(request)
    stored = read_status_file(rundir)
    supervisor = stored.status.supervisor
    if stored.status.is_over:
        return {"status": stored.document}
    check_machine(supervisor)
    if not is_caught(supervisor.pid, signal.SIGUSR1):
        raise AgentError("the run was started by an older ipexctl, and can't be asked where it is")
    directory, dump_id = os.path.join(rundir, "stacks"), new_dump_id()
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        dump_request = {"ranks": request.get("ranks")}
        write_json_atomically(os.path.join(directory, f"ask-{dump_id}.json"), dump_request, durable=False)
    except PermissionError:
        raise AgentError("the run belongs to another account") from None
    except OSError as error:
        raise AgentError(f"it can't be asked: {error.strerror}") from None
    send_signal(supervisor, signal.SIGUSR1)
    path = dump_path(directory, dump_id)
    until = time.monotonic() + float(request.get("wait", 10))
    while not os.path.exists(path):
        if not supervisor.is_alive:
            return {"status": read_status_file(rundir).document}
        if time.monotonic() > until:
            raise AgentError("the run's supervisor doesn't answer; is the disk full there?")
        time.sleep(0.02)
    with emit_frames() as writer:
        for frame in encode_dump(directory, dump_id):
            writer.send(frame)
    return {"status": stored.document}


def send_signal(supervisor: ProcessIdentity, number: int) -> None:
    check_machine(supervisor)
    try:
        supervisor.send_signal(number)
    except PermissionError:
        raise AgentError("the run belongs to another account") from None


def check_machine(supervisor: ProcessIdentity) -> None:
    if not supervisor.is_of_this_machine:
        raise AgentError(
            f"the run's supervisor is on {supervisor.machine}, and this is {os.uname().nodename}",
            f"node0 has several machines; on {supervisor.machine}, if ps -o lstart,args -p {supervisor.pid} shows "
            f"the supervisor of this run: kill {supervisor.pid}",
        )


def main(action: str) -> int:
    actions = {"list": list_runs, "stop": stop, "dump": dump}
    return answer(lambda request, _: actions[action](request))

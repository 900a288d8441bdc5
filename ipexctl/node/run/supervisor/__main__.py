"""The supervisor's program on node0: begins the run and detaches from its caller.

It answers each line of JSON with one line, or with `{"event": "failed", "reason", "fix"}`:

    Listen             → {"event": "listening", "local", "port"}
    Start              → {"event": "started", "pid", "start", "mpirun", "master_port"}

`Start` comes once all hosts have their job files. Then `loop.py` runs in its own session, and the process that started
it follows the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from ipexctl.node.common import listener
from ipexctl.node.common.answer import emit
from ipexctl.node.common.files import write_atomically
from ipexctl.node.common.job import Listen, jobs_of, read_start
from ipexctl.node.common.json_records import as_object, decode, parse_json
from ipexctl.node.common.processes import allow_many_files
from ipexctl.node.run.host_starter.daemonize import daemonize
from ipexctl.node.run.supervisor.loop import SupervisorLoop
from ipexctl.node.run.supervisor.run_job import is_in_job

if TYPE_CHECKING:
    from io import BufferedReader


def reply_and_follow(reply: str, stdin: BufferedReader) -> int:
    """Pass the supervisor's reply on to the caller, in the process that the caller started.

    If the caller then sends a request, follow the run as that says; if it closes stdin instead, say `done`. Return the
    exit code, which is 0 after a `failed` reply too: the caller reads the reply.
    """
    sys.stdout.write(reply)
    sys.stdout.flush()
    if parse_json(reply)["event"] == "failed":
        return 0
    if stdin.peek(1):
        from ipexctl.node.run import follow  # imported while the launcher starts

        if is_in_job():  # the queue signals all processes of a job, and this one must report how the run ends
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        return follow.main("follow", stdin)
    emit("done")
    return 0


def main(action: str) -> int:  # noqa: ARG001
    """Answer both requests, and start the supervisor in a process of its own.

    Only the caller's process returns from here: with 1 if nothing can listen or no `Start` came, else with the exit
    code of `reply_and_follow`. The supervisor itself ends in `os._exit`.
    """
    stdin = open(0, "rb", closefd=False)  # noqa: SIM115
    request = decode(Listen, parse_json(stdin.readline()), "the request")
    allow_many_files(1 << 20)
    local = f"{listener.LOCAL}ipexctl-{os.urandom(16).hex()}"
    try:
        listeners = [listener.listen(request.bind)]
    except OSError as error:
        emit("failed", reason=f"nothing can listen on {request.bind}: {error.strerror or error}", fix="")
        return 1
    port = listeners[0].getsockname()[1]
    with contextlib.suppress(OSError):  # a sandbox without Unix sockets; node0's ranks then use TCP
        listeners.append(listener.listen(local))
    emit("listening", local=local, port=port)
    line = stdin.readline()
    if not line.endswith(b"\n"):  # the caller has exited
        return 1
    send_reply = daemonize("supervisor", f"{request.rundir}/supervise.log")
    if isinstance(send_reply, str):
        for listening in listeners:  # only the supervisor keeps them open
            listening.close()
        return reply_and_follow(send_reply, stdin)
    try:
        document = as_object(parse_json(line))
        start = read_start(document)
        plan, own = start.plan, jobs_of(start.plan, start.job)
        texts = {"plan.json": json.dumps(document["plan"], indent=1)}
        if plan.stores[plan.node0] in own:
            texts["job.json"] = json.dumps(own[plan.stores[plan.node0]]._asdict())
        for name, text in texts.items():
            write_atomically(os.path.join(request.rundir, name), text.encode(), durable=False)
        supervisor = SupervisorLoop(request, start, listeners, (local, request.bind, str(port)))
    except ValueError as error:
        send_reply({"event": "failed", "reason": f"the request to start the run can't be read: {error}"})
        os._exit(1)
    except OSError as error:
        reason = f"the run's record can't be created: {error.filename or request.rundir}: {error.strerror or error}"
        send_reply({"event": "failed", "reason": reason, "fix": "df and ulimit -n there show what has run out"})
        os._exit(1)
    send_reply(supervisor.start())
    supervisor.run()
    os._exit(0)

"""The program of the supervisor of a run on node0: begins the run, and detaches from its caller.

Started as `PYTHON -IS RUNDIR/agent.zip run.supervisor`. It reads lines of JSON from stdin, and answers the first two
with one line each, or with `{"event": "failed", "reason", "fix"}`. `node/common/job.py` has both requests.

Listen             → {"event": "listening", "local", "port"}
Start              → {"event": "started", "pid", "start", "mpirun", "master_port"}
a request of `follow.py`, or the end of stdin → {"event": "done"}, after the frames of the run

The `Start` comes when all hosts have their job files. Then the supervisor (`loop.py`) runs in its own session and
its caller may exit; the process that started it follows the run.
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
from ipexctl.node.common.job import Listen, Start, jobs_of
from ipexctl.node.common.json_parser import as_object, parse_json
from ipexctl.node.common.json_records import decode
from ipexctl.node.common.processes import allow_many_files
from ipexctl.node.run.daemonize import daemonize
from ipexctl.node.run.loop import SupervisorLoop
from ipexctl.node.run.run_job import is_in_job

if TYPE_CHECKING:
    from io import BufferedReader


def reply_and_follow(reply: str, stdin: BufferedReader) -> int:
    """Pass on the supervisor's reply; if it started the run, follow it unless stdin ends."""
    sys.stdout.write(reply)
    sys.stdout.flush()
    if parse_json(reply)["event"] == "failed":
        return 0
    if stdin.peek(1):
        from ipexctl.node.run import follow  # imported while mpirun starts

        if is_in_job():  # it signals all processes of a job; this one tells how the run ends
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        return follow.main("follow", stdin)
    emit("done")
    return 0


def main(action: str) -> int:  # noqa: ARG001
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
    with contextlib.suppress(OSError):  # a sandbox without Unix sockets: node0's ranks are refused there and use TCP
        listeners.append(listener.listen(local))
    emit("listening", local=local, port=port)
    line = stdin.readline()
    if not line.endswith(b"\n"):  # the caller has exited
        return 1
    send_reply = daemonize("supervisor", f"{request.rundir}/supervise.log")
    if isinstance(send_reply, str):
        for listening in listeners:  # they close with the supervisor
            listening.close()
        return reply_and_follow(send_reply, stdin)
    try:
        document = as_object(parse_json(line))
        start = decode(Start, document, "the request")
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
        why = f"the run's record can't be begun: {error.filename or request.rundir}: {error.strerror or error}"
        send_reply({"event": "failed", "reason": why, "fix": "df and ulimit -n there say what is short"})
        os._exit(1)
    send_reply(supervisor.start())
    supervisor.run()
    os._exit(0)

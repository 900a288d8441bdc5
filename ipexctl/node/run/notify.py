"""Runs the `--notify` command once when a run is over: from the call that follows the run, or on node0.

Whoever creates `notify.json` runs the command: the call, or `run.notify` on node0, if no call did so in time. The
command may contain a token, so sh reads it from stdin and it is in no argument, file or variable.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from ipexctl.node.common.answer import AgentError, Json, answer
from ipexctl.node.common.clock import wait_until
from ipexctl.node.common.files import RunReference, last_lines, open_private, read_json, write_json_atomically
from ipexctl.node.common.home import rundir_of
from ipexctl.node.common.json_records import decode, parse_json

if TYPE_CHECKING:
    from typing import BinaryIO

FILE, LOG = "notify.json", "notify.log"
_INTERVAL = 0.2


class NotifyEnd(NamedTuple):
    exit_code: int | None = None
    """As a shell shows it; None if the command timed out, or could not be started."""
    error: str = ""
    """Why it could not be started; for `why`, else the last line that it printed."""


class NotifyRequest(NamedTuple):
    rundir: str
    command: str
    summary: str
    claim_after: float
    """Seconds for a call to claim the command first."""
    timeout: float

    def __repr__(self) -> str:
        return f"NotifyRequest({self.rundir!r})"  # no secrets in logs


def claim(rundir: str, by: str) -> bool:
    """Return True if this caller should run the command; False if another does, or the run has no record."""
    try:
        number = os.open(os.path.join(rundir, FILE), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except (FileExistsError, FileNotFoundError):
        return False
    with open(number, "w") as file:
        json.dump({"by": by, "at": time.time()}, file)
    return True


def run_command(
    command: str, summary: str, timeout: float, output: BinaryIO | int, cwd: str | None = None
) -> NotifyEnd:
    """Run the command in sh with the summary on its stdin, and return how it ended. After `timeout` seconds it is
    killed."""
    line = command.encode("utf-8", "surrogateescape")
    # dd reads exactly the command, so the command finds the summary on stdin; head may read more.
    script = f'eval "$(dd bs=1 count={len(line)} 2>/dev/null)"'
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        return NotifyEnd(error=f"/bin/sh: {error.strerror}")
    try:
        process.communicate(line + summary.encode(), timeout)
    except subprocess.TimeoutExpired:
        return NotifyEnd()
    finally:
        if process.returncode is None:  # timed out, or this call was interrupted
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    code = process.returncode
    return NotifyEnd(code if code >= 0 else 128 - code)


def start_notify(request: NotifyRequest) -> None:
    """Run `notify` in its own process, so that the supervisor can exit when the run ends."""
    argv = [sys.executable, "-IS", os.path.join(request.rundir, "agent.zip"), "run.notify"]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, close_fds=True
    )
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(json.dumps(request._asdict()).encode() + b"\n")


def notify(request: NotifyRequest) -> None:
    """Run the command on node0 and keep its end in notify.json, unless a call claims the command within `claim_after`
    seconds."""
    path = os.path.join(request.rundir, FILE)
    wait_until(lambda: os.path.exists(path), request.claim_after, _INTERVAL)
    if not claim(request.rundir, "node0"):
        return
    with open(os.path.join(request.rundir, LOG), "wb", opener=open_private) as log:
        ended = run_command(request.command, request.summary, request.timeout, log, os.path.expanduser("~"))
    with contextlib.suppress(OSError):  # the disk is full
        write_json_atomically(path, {"by": "node0", "at": time.time(), **ended._asdict()}, durable=False)


def end_on_node0(rundir: str) -> Json | None:
    """Return how the command failed on node0, for `ipexctl why`; None if it did not run there, is running, or
    succeeded."""
    document = read_json(os.path.join(rundir, FILE))
    if "exit_code" not in document or document["exit_code"] == 0:
        return None
    lines = last_lines(os.path.join(rundir, LOG), 1 << 12, 1)
    return {**document, "line": lines[-1].decode(errors="replace")[:500] if lines else ""}


def claim_by_call(request: RunReference) -> Json:
    """Return whether the call that follows the run is to run the command. Raises an AgentError if the run has no
    record."""
    rundir = rundir_of(request)
    if not os.path.isdir(rundir):
        raise AgentError("there is no record of the run")
    return {"claimed": claim(rundir, "call")}


def main(action: str) -> int:
    """Answer a call's `claim`, or run the command of the request on stdin. Returns the exit code."""
    if action == "claim":
        return answer(lambda request, _: claim_by_call(request))
    os.umask(0o077)
    notify(decode(NotifyRequest, parse_json(sys.stdin.readline()), "the request"))
    return 0

"""The runs that node0 has a record of: listed, stopped, asked where they are, and cleared of what needs no keeping.

list   {home, ids: [id, …] or null}              → {"event": "done", "runs": {id: status, or null,
                                                    or {"unreadable": why}}}
stop   {home, id, wait: seconds, signal}         → {"event": "done", "status", "was": its state before}
dump   {home, id, ranks: [N, …] or null, wait}   → {"event": "done", "status", "dump": as `stack_dumps.py` writes
                                                    it, null where the run is over}
clear  {home, id}                                → {"event": "done"}, the job file with token and secrets is gone
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, Dict

from ipexctl.node.common.answer import AgentError, answer
from ipexctl.node.run import follow

Json = Dict[str, Any]


class Runs:
    def __init__(self, request: Json) -> None:
        self._request = request
        self._place = os.path.join(os.path.expanduser(request["home"]), "runs")

    def list(self) -> Json:
        ids = self._request.get("ids")
        if ids is None:
            there = sorted(os.listdir(self._place)) if os.path.isdir(self._place) else []
            ids = [name for name in there if not name.startswith(".")]
        found: Json = {}
        for name in ids:
            try:
                found[name] = follow.read_status(os.path.join(self._place, name))
            except follow.NoRecord:
                found[name] = None
            except AgentError as failed:
                found[name] = {"unreadable": failed.reason}
        if None in found.values():
            pruned = follow.pruned_in(self._place)
            lost = [name for name in ids if found[name] is None and name in pruned]
            found.update((name, {**pruned[name]["status"], "pruned": pruned[name]["at"]}) for name in lost)
        return {"runs": found}

    def stop(self) -> Json:
        rundir = os.path.join(self._place, self._request["id"])
        status = follow.read_status(rundir)
        was = status["state"]
        until = time.monotonic() + float(self._request.get("wait", 20))
        if was not in follow.FINAL:
            try:
                os.kill(status["supervisor"]["pid"], int(self._request.get("signal", signal.SIGTERM)))
            except ProcessLookupError:
                until = 0.0
            except PermissionError:
                raise AgentError("the run belongs to another account") from None
            while time.monotonic() < until and follow.is_alive(status["supervisor"]):
                time.sleep(0.05)
            status = follow.read_status(rundir)
        return {"status": status, "was": was}

    def dump(self) -> Json:
        """Ask the supervisor for all ranks' stacks, and wait for the answer; others may be asking at the same time."""
        rundir = os.path.join(self._place, self._request["id"])
        status = follow.read_status(rundir)
        supervisor = status["supervisor"]
        if status["state"] in follow.FINAL:
            return {"status": status, "dump": None}
        if not is_caught(supervisor["pid"], signal.SIGUSR1):
            raise AgentError("the run was started by an older ipexctl, and can't be asked where it is")
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}.json"
        answer = os.path.join(rundir, "stacks", f"dump-{name}")
        try:
            self._ask(os.path.join(rundir, "stacks"), name)
            os.kill(supervisor["pid"], signal.SIGUSR1)
        except PermissionError:
            raise AgentError("the run belongs to another account") from None
        except OSError as error:
            raise AgentError(f"it can't be asked: {error.strerror}") from None
        until = time.monotonic() + float(self._request.get("wait", 10))
        while not os.path.exists(answer):
            if not follow.is_alive(supervisor):
                return {"status": follow.read_status(rundir), "dump": None}
            if time.monotonic() > until:
                raise AgentError("the run's supervisor doesn't answer; is the disk full there?")
            time.sleep(0.02)
        with open(answer, encoding="utf-8") as file:
            return {"status": status, "dump": json.load(file)}

    def _ask(self, place: str, name: str) -> None:
        os.makedirs(place, mode=0o700, exist_ok=True)
        aside = os.path.join(place, name)
        number = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump({"ranks": self._request.get("ranks")}, file)
        os.replace(aside, os.path.join(place, f"ask-{name}"))

    def clear(self) -> Json:
        path = os.path.join(self._place, self._request["id"], "job.json")
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise AgentError(f"{path} can't be removed: {error.strerror}") from None
        return {}


def is_caught(pid: int, number: int) -> bool:
    """Whether a process has a handler for that signal; it would die of it otherwise."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            masks = dict(line.split(":", 1) for line in file if line.startswith("Sig"))
    except OSError:
        return False
    return bool(int(masks.get("SigCgt", "0"), 16) >> (number - 1) & 1)


def main(action: str) -> int:
    actions = {"list": Runs.list, "stop": Runs.stop, "dump": Runs.dump, "clear": Runs.clear}
    return answer(lambda request, _: actions[action](Runs(request)))

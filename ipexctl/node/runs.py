"""The runs that node0 has a record of: listed, stopped, asked where they are, and cleared of what needs no keeping.

    list   {home, ids: [id, …] or null}              → {"event": "done", "runs": {id: status, or null,
                                                        or {"unreadable": why}}}
    stop   {home, id, wait: seconds, signal}         → {"event": "done", "status", "was": its state before}
    dump   {home, id, ranks: [N, …] or null, wait}   → {"event": "done", "status", "dump": as `dumps.py` writes it,
                                                        null where the run is over}
    clear  {home, id}                                → {"event": "done"}, the job file with token and secrets is gone

`library` in the request is the text of `follow.py`, which knows how a status is read.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import types
from typing import Any, Dict

Json = Dict[str, Any]


def library(text: str) -> Any:
    """A script beside this one, as a module."""
    module = types.ModuleType("follow")
    exec(compile(text, "follow", "exec"), module.__dict__)  # noqa: S102
    return module


class Runs:
    def __init__(self, follow: Any, request: Json) -> None:
        self._follow = follow
        self._request = request
        self._place = os.path.join(os.path.expanduser(request["home"]), "runs")  # noqa: PTH111, PTH118

    def list(self) -> Json:
        ids = self._request.get("ids")
        if ids is None:
            there = sorted(os.listdir(self._place)) if os.path.isdir(self._place) else []  # noqa: PTH112, PTH208
            ids = [name for name in there if not name.startswith(".")]
        found: Json = {}
        for name in ids:
            try:
                found[name] = self._follow.read_status(os.path.join(self._place, name))  # noqa: PTH118
            except self._follow.NoRecord:
                found[name] = None
            except self._follow.Failed as failed:
                found[name] = {"unreadable": failed.reason}
        if None in found.values():
            pruned = self._follow.pruned_in(self._place)
            lost = [name for name in ids if found[name] is None and name in pruned]
            found.update((name, {**pruned[name]["status"], "pruned": pruned[name]["at"]}) for name in lost)
        return {"runs": found}

    def stop(self) -> Json:
        rundir = os.path.join(self._place, self._request["id"])  # noqa: PTH118
        status = self._follow.read_status(rundir)
        was = status["state"]
        until = time.monotonic() + float(self._request.get("wait", 20))
        if was not in self._follow.FINAL:
            try:
                os.kill(status["supervisor"]["pid"], int(self._request.get("signal", signal.SIGTERM)))
            except ProcessLookupError:
                until = 0.0
            except PermissionError:
                raise self._follow.Failed("the run belongs to another account") from None
            while time.monotonic() < until and self._follow.is_alive(status["supervisor"]):
                time.sleep(0.05)
            status = self._follow.read_status(rundir)
        return {"status": status, "was": was}

    def dump(self) -> Json:
        """Ask the supervisor for all ranks' stacks, and wait for the answer; others may be asking at the same time."""
        rundir = os.path.join(self._place, self._request["id"])  # noqa: PTH118
        status = self._follow.read_status(rundir)
        supervisor = status["supervisor"]
        if status["state"] in self._follow.FINAL:
            return {"status": status, "dump": None}
        if not is_caught(supervisor["pid"], signal.SIGUSR1):
            raise self._follow.Failed("the run was started by an older ipexctl, and can't be asked where it is")
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}.json"
        answer = os.path.join(rundir, "stacks", f"dump-{name}")  # noqa: PTH118
        try:
            self._ask(os.path.join(rundir, "stacks"), name)  # noqa: PTH118
            os.kill(supervisor["pid"], signal.SIGUSR1)
        except PermissionError:
            raise self._follow.Failed("the run belongs to another account") from None
        except OSError as error:
            raise self._follow.Failed(f"it can't be asked: {error.strerror}") from None
        until = time.monotonic() + float(self._request.get("wait", 10))
        while not os.path.exists(answer):  # noqa: PTH110
            if not self._follow.is_alive(supervisor):
                return {"status": self._follow.read_status(rundir), "dump": None}
            if time.monotonic() > until:
                raise self._follow.Failed("the run's supervisor doesn't answer; is the disk full there?")
            time.sleep(0.02)
        with open(answer, encoding="utf-8") as file:  # noqa: PTH123
            return {"status": status, "dump": json.load(file)}

    def _ask(self, place: str, name: str) -> None:
        os.makedirs(place, mode=0o700, exist_ok=True)  # noqa: PTH103
        aside = os.path.join(place, name)  # noqa: PTH118
        number = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump({"ranks": self._request.get("ranks")}, file)
        os.replace(aside, os.path.join(place, f"ask-{name}"))  # noqa: PTH105, PTH118

    def clear(self) -> Json:
        path = os.path.join(self._place, self._request["id"], "job.json")  # noqa: PTH118
        try:
            os.unlink(path)  # noqa: PTH108
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._follow.Failed(f"{path} can't be removed: {error.strerror}") from None
        return {}


def is_caught(pid: int, number: int) -> bool:
    """Whether a process has a handler for that signal; it would die of it otherwise."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:  # noqa: PTH123
            masks = dict(line.split(":", 1) for line in file if line.startswith("Sig"))
    except OSError:
        return False
    return bool(int(masks.get("SigCgt", "0"), 16) >> (number - 1) & 1)


def main() -> None:
    request = json.loads(sys.stdin.readline())
    follow = library(request["library"])
    runs = Runs(follow, request)
    actions = {"list": runs.list, "stop": runs.stop, "dump": runs.dump, "clear": runs.clear}
    try:
        last = {"event": "done", **actions[sys.argv[1]]()}
    except follow.Failed as failed:
        last = {"event": "failed", "reason": failed.reason, "fix": failed.fix}
    sys.stdout.write(json.dumps(last) + "\n")


if __name__ == "__main__":
    main()

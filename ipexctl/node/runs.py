"""The runs that node0 has a record of: listed, stopped, and cleared of what only a run under way needs.

    list   {home, ids: [id, …] or null}              → {"event": "done", "runs": {id: status or null}}
    stop   {home, id, wait: seconds, signal}         → {"event": "done", "status", "was": its state before}
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
            ids = sorted(os.listdir(self._place)) if os.path.isdir(self._place) else []  # noqa: PTH112, PTH208
        found: Json = {}
        for name in ids:
            try:
                found[name] = self._follow.read_status(os.path.join(self._place, name))  # noqa: PTH118
            except (self._follow.Failed, KeyError, TypeError):
                found[name] = None
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

    def clear(self) -> Json:
        path = os.path.join(self._place, self._request["id"], "job.json")  # noqa: PTH118
        try:
            os.unlink(path)  # noqa: PTH108
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._follow.Failed(f"{path} can't be removed: {error.strerror}") from None
        return {}


def main() -> None:
    request = json.loads(sys.stdin.readline())
    follow = library(request["library"])
    runs = Runs(follow, request)
    actions = {"list": runs.list, "stop": runs.stop, "clear": runs.clear}
    try:
        last = {"event": "done", **actions[sys.argv[1]]()}
    except follow.Failed as failed:
        last = {"event": "failed", "reason": failed.reason, "fix": failed.fix}
    sys.stdout.write(json.dumps(last) + "\n")


if __name__ == "__main__":
    main()

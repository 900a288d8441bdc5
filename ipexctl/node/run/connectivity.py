"""Whether the ranks of a run will find one another: node0's logins to the nodes, and a port either way.

Asked on node0, of each node; at once, as mpirun would.

    {"address": node0's own, "python", "ssh": [word, …], "nodes": [{"word", "address"}, …], "seconds",
     "script": {"modules": [name, …], "own", "name", "source" or null}, or null}
        → {"event": "done", "ways": {word: {"kind": "ok" | "login" | "back" | "there", "text", "lacking": [name, …]}},
           "lacking": [name, …] on node0, "fault": what is wrong with the script's syntax, or null}

`login`: ssh from here fails. `back`: from there no connection reaches a port of ours. `there`: from here none reaches
a port of that node. The node's part goes in by ssh's stdin. With no nodes, node0 is asked about the script alone.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import socket
import subprocess
import threading
import time
from typing import Any, Dict, Tuple

from ipexctl.node.common.answer import AgentError, answer
from ipexctl.node.run import imports

MARK = "ipexctl-way "
Json = Dict[str, Any]

THERE = """
import json, socket, sys
back, mine, seconds = (sys.argv[1], int(sys.argv[2])), sys.argv[3], float(sys.argv[4])
said = {"back": None, "port": None, "lacking": lacking(*json.loads(sys.argv[5])) if len(sys.argv) > 5 else []}
try:
    socket.create_connection(back, seconds).close()
except (OSError, socket.timeout) as error:
    said["back"] = str(getattr(error, "strerror", None) or error)
listener = socket.socket(socket.AF_INET6 if ":" in mine else socket.AF_INET)
try:
    listener.bind((mine, 0))
    listener.listen(1)
    said["port"] = listener.getsockname()[1]
except OSError:
    pass  # another's address, as behind NAT: nothing can be tried
sys.stdout.write("ipexctl-way " + json.dumps(said) + "\\n")
sys.stdout.flush()
sys.stdin.close()
if said["port"] and not said["back"]:
    listener.settimeout(seconds)
    try:
        listener.accept()
    except (OSError, socket.timeout):
        pass
"""


def reason(error: OSError) -> str:
    return "no answer" if isinstance(error, (socket.timeout, TimeoutError)) else str(error.strerror or error)


class NodeCheck:
    """One node's; `kind` and `text` are what came of it."""

    def __init__(self, request: Json, node: Json, port: int) -> None:
        self.request, self.node, self.port = request, node, port
        self.kind, self.text = "login", ""
        self.lacking: list[str] = []

    def go(self) -> None:
        seconds = float(self.request["seconds"])
        words = [self.request["python"], "-I", "-", self.request["address"], self.port, self.node["address"], seconds]
        script = self.request["script"]
        if script:
            words.append(json.dumps([script["modules"], script["own"]]))
        line = " ".join(shlex.quote(str(word)) for word in words)
        argv = [*self.request["ssh"], "--", self.node["word"], line]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            timer = threading.Timer(3 * seconds, process.kill)
            timer.start()
            try:
                self.talk(process, seconds)
            finally:
                timer.cancel()
                process.kill()

    def talk(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write((text_of_imports() + THERE).encode())
            process.stdin.close()
        said = None
        for raw in process.stdout:
            line = raw.decode(errors="replace")
            if line.startswith(MARK):
                said = json.loads(line[len(MARK) :])
                break
        if said is None:
            lines = process.stderr.read().decode(errors="replace").strip().splitlines()
            self.text = lines[-1] if lines else "ssh gave no reason"
            return
        self.lacking = said["lacking"]
        self.kind, self.text = self.tried(said, seconds)

    def tried(self, said: Json, seconds: float) -> Tuple[str, str]:  # noqa: UP006
        if said["back"]:
            text = "no answer" if "timed out" in said["back"] else said["back"]
            return "back", f"{text} on port {self.port}"
        if said["port"]:
            try:
                socket.create_connection((self.node["address"], said["port"]), seconds).close()
            except OSError as error:
                return "there", f"{reason(error)} on port {said['port']}"
        return "ok", ""


def listen(address: str) -> socket.socket:
    """A port that answers everybody and says nothing."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.bind((address, 0))
    listener.listen(512)

    def answer() -> None:
        while True:
            try:
                listener.accept()[0].close()
            except OSError:
                time.sleep(0.01)

    threading.Thread(target=answer, daemon=True).start()
    return listener


def look(request: Json) -> Json:
    """What node0's own Python says of the script."""
    script = request["script"]
    if not script:
        return {"lacking": [], "fault": None}
    fault = imports.fault(script["source"], script["name"]) if script["source"] is not None else None
    return {"lacking": imports.lacking(script["modules"], script["own"]), "fault": fault}


def text_of_imports() -> str:
    """The module as it is sent ahead of a node's part."""
    source: str = imports.__loader__.get_source(imports.__name__)  # type: ignore[union-attr]
    return source


def try_all(request: Json) -> Json:
    if not request["nodes"]:
        return look(request)
    port = listen(request["address"]).getsockname()[1]
    found = [NodeCheck(request, node, port) for node in request["nodes"]]
    threads = [threading.Thread(target=way.go, daemon=True) for way in found]
    for thread in threads:
        thread.start()
    here = look(request)
    for thread in threads:
        thread.join()
    ways = {way.node["word"]: {"kind": way.kind, "text": way.text, "lacking": way.lacking} for way in found}
    return {**here, "ways": ways}


def check(request: Json, _: object) -> Json:
    if shutil.which(request["python"]) is None:  # another has been found to run this: it would answer for the wrong one
        raise AgentError(f"{request['python']} is not there")
    if request["nodes"] and shutil.which(request["ssh"][0]) is None:
        text = "there is no ssh on it"
        ways = {node["word"]: {"kind": "login", "text": text, "lacking": []} for node in request["nodes"]}
        return {**look(request), "ways": ways}
    return {"ways": {}, **try_all(request)}


def main(action: str) -> int:
    return answer({"try": check}[action])

"""Checks from node0 that the nodes of a run can connect: ssh from node0 to each node, and TCP in both directions.

All nodes are checked at once, as mpirun would connect to them.

    {"address": node0's own, "python", "ssh": [word, …], "nodes": [{"word", "address"}, …], "seconds",
     "script": {"modules": [name, …], "own", "name", "source" or null}, or null}
        → {"event": "done", "ways": {word: {"kind": "ok" | "login" | "back" | "there", "text", "lacking": [name, …]}},
           "lacking": [name, …] on node0, "fault": what is wrong with the script's syntax, or null}

`login`: ssh from node0 fails. `back`: the node can't connect to a port of node0. `there`: node0 can't connect to a port
of the node. The node's script is sent by ssh's stdin. Without nodes, only the script is checked, on node0.
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

NODE_SCRIPT = """
import json, socket, sys
back, mine, seconds = (sys.argv[1], int(sys.argv[2])), sys.argv[3], float(sys.argv[4])
result = {"back": None, "port": None, "lacking": missing_modules(*json.loads(sys.argv[5])) if len(sys.argv) > 5 else []}
try:
    socket.create_connection(back, seconds).close()
except (OSError, socket.timeout) as error:
    result["back"] = str(getattr(error, "strerror", None) or error)
listener = socket.socket(socket.AF_INET6 if ":" in mine else socket.AF_INET)
try:
    listener.bind((mine, 0))
    listener.listen(1)
    result["port"] = listener.getsockname()[1]
except OSError:
    pass  # the address of another machine, as behind NAT: nothing can be tested
sys.stdout.write("ipexctl-way " + json.dumps(result) + "\\n")
sys.stdout.flush()
sys.stdin.close()
if result["port"] and not result["back"]:
    listener.settimeout(seconds)
    try:
        listener.accept()
    except (OSError, socket.timeout):
        pass
"""


def reason(error: OSError) -> str:
    return "no answer" if isinstance(error, (socket.timeout, TimeoutError)) else str(error.strerror or error)


class NodeCheck:
    """The check of one node; `kind` and `text` are its result."""

    def __init__(self, request: Json, node: Json, port: int) -> None:
        self.request, self.node, self.port = request, node, port
        self.kind, self.text = "login", ""
        self.missing: list[str] = []

    def run(self) -> None:
        seconds = float(self.request["seconds"])
        arguments = [
            self.request["python"],
            "-I",
            "-",
            self.request["address"],
            self.port,
            self.node["address"],
            seconds,
        ]
        script = self.request["script"]
        if script:
            arguments.append(json.dumps([script["modules"], script["own"]]))
        line = " ".join(shlex.quote(str(word)) for word in arguments)
        argv = [*self.request["ssh"], "--", self.node["word"], line]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            timer = threading.Timer(3 * seconds, process.kill)
            timer.start()
            try:
                self.exchange(process, seconds)
            finally:
                timer.cancel()
                process.kill()

    def exchange(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write((imports_source() + NODE_SCRIPT).encode())
            process.stdin.close()
        reply = None
        for raw in process.stdout:
            line = raw.decode(errors="replace")
            if line.startswith(MARK):
                reply = json.loads(line[len(MARK) :])
                break
        if reply is None:
            lines = process.stderr.read().decode(errors="replace").strip().splitlines()
            self.text = lines[-1] if lines else "ssh gave no reason"
            return
        self.missing = reply["lacking"]
        self.kind, self.text = self.classify(reply, seconds)

    def classify(self, reply: Json, seconds: float) -> Tuple[str, str]:  # noqa: UP006
        if reply["back"]:
            text = "no answer" if "timed out" in reply["back"] else reply["back"]
            return "back", f"{text} on port {self.port}"
        if reply["port"]:
            try:
                socket.create_connection((self.node["address"], reply["port"]), seconds).close()
            except OSError as error:
                return "there", f"{reason(error)} on port {reply['port']}"
        return "ok", ""


def listen(address: str) -> socket.socket:
    """A listener that accepts every connection and closes it."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.bind((address, 0))
    listener.listen(512)

    def accept_all() -> None:
        while True:
            try:
                listener.accept()[0].close()
            except OSError:
                time.sleep(0.01)

    threading.Thread(target=accept_all, daemon=True).start()
    return listener


def check_script(request: Json) -> Json:
    """Check the script with the Python of node0."""
    script = request["script"]
    if not script:
        return {"lacking": [], "fault": None}
    fault = imports.find_syntax_error(script["source"], script["name"]) if script["source"] is not None else None
    return {"lacking": imports.missing_modules(script["modules"], script["own"]), "fault": fault}


def imports_source() -> str:
    """The source of the module, which is sent before the script for a node."""
    source: str = imports.__loader__.get_source(imports.__name__)  # type: ignore[union-attr]
    return source


def check_nodes(request: Json) -> Json:
    if not request["nodes"]:
        return check_script(request)
    port = listen(request["address"]).getsockname()[1]
    checks = [NodeCheck(request, node, port) for node in request["nodes"]]
    threads = [threading.Thread(target=check.run, daemon=True) for check in checks]
    for thread in threads:
        thread.start()
    script_result = check_script(request)
    for thread in threads:
        thread.join()
    results = {
        check.node["word"]: {"kind": check.kind, "text": check.text, "lacking": check.missing} for check in checks
    }
    return {**script_result, "ways": results}


def check_request(request: Json, _: object) -> Json:
    if shutil.which(request["python"]) is None:  # another Python runs this, and would check the wrong one
        raise AgentError(f"{request['python']} is not there")
    if request["nodes"] and shutil.which(request["ssh"][0]) is None:
        text = "there is no ssh on it"
        results = {node["word"]: {"kind": "login", "text": text, "lacking": []} for node in request["nodes"]}
        return {**check_script(request), "ways": results}
    return {"ways": {}, **check_nodes(request)}


def main(action: str) -> int:
    return answer({"try": check_request}[action])

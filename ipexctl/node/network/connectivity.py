"""Checks from node0, before a run starts, that its nodes can connect: ssh from node0 to each, and TCP both ways.
Without these connections mpirun would hang or print something incomprehensible."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import threading
from typing import BinaryIO, Iterable, Iterator, NamedTuple, Sequence, TypedDict

from ipexctl.node.common.answer import AgentError, Json, answer
from ipexctl.node.common.files import remove_file
from ipexctl.node.common.json_records import JsonError, decode_port, parse_object
from ipexctl.node.network import ports


class NodeResult(NamedTuple):
    kind: str
    """`ok`; `login`: ssh from node0 fails; `back`: no connection to node0; `there`: no connection from node0."""
    text: str = ""


_PROBLEMS = {
    "timeout": "no answer",
    "refused": "connection refused",
    "noroute": "no route to it",
    "denied": "not permitted",
    "wrong": "another program answers",
    "mute": "connected, but nothing was sent",
}


class NodeAddress(TypedDict):
    ssh_name: str
    address: str


class Connections(TypedDict):
    address: str
    python: str
    ssh: Sequence[str]
    nodes: Sequence[NodeAddress]
    seconds: float
    """Time limit of a connection; a login has three times as long."""
    record: str
    """File of an earlier passed check, which is removed; or empty."""


class ConnectivityRequest(Connections):
    probe: str


class NodeCheck:
    def __init__(self, request: ConnectivityRequest, node: NodeAddress, port: int, token: str) -> None:
        self.request, self.node, self.port, self.token = request, node, port, token
        self.result = NodeResult("login")

    def run(self) -> None:
        seconds = self.request["seconds"]
        argv = [*self.request["ssh"], "--", self.node["ssh_name"], self.request["probe"]]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            timer = threading.Timer(3 * seconds, process.kill)
            timer.start()
            try:
                self.result = self.exchange(process, seconds)
            finally:
                timer.cancel()
                process.kill()

    def exchange(self, process: subprocess.Popen[bytes], seconds: float) -> NodeResult:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        listen = f"{self.node['address']} {self.token} {int(4 * seconds)}\n"
        connect = f"{seconds} {self.request['address']} {self.port} {self.token}\n"
        with contextlib.suppress(BrokenPipeError):
            os.write(process.stdin.fileno(), f"{listen}{connect}".encode())
        events = {}
        for event in read_events(process.stdout):
            events[event["event"]] = event
            if "ready" in events and "result" in events:
                try:
                    return self.classify(events["ready"], events["result"], seconds)
                except (KeyError, TypeError, ValueError) as error:
                    return NodeResult("login", f"its answer can't be read: {error}")
        stderr = process.stderr.read().decode(errors="replace").split("\n")
        errors = [line for line in stderr if line.strip() and not line.startswith("\x1e")]  # of login_line
        code = process.wait()
        no_reason = "ssh gave no reason" if code == 255 else f"the port check ended there with exit code {code}"
        return NodeResult("login", errors[-1].strip() if errors else no_reason)

    def classify(self, ready: Json, back: Json, seconds: float) -> NodeResult:
        """Test the connection from node0, while the node still listens. `back`: result of the connection to node0."""
        direction, port, result, text = "back", self.port, back["kind"], back["text"]
        # If the node can't listen on its address, as behind NAT, there is nothing to test.
        if result == "ok" and ready["port"] is not None:
            direction, port = "there", decode_port(ready["port"])
            result, text = ports.connect(self.node["address"], port, self.token, seconds)
        if result == "ok":
            return NodeResult("ok")
        return NodeResult(direction, problem(result, text, port))


def problem(kind: str, text: str, port: int) -> str:
    return f"{_PROBLEMS.get(kind) or text} on port {port}"


def read_events(stdout: Iterable[bytes]) -> Iterator[Json]:
    """Yield the agent's events in a node's output. Its login shell may print other lines."""
    for line in stdout:
        with contextlib.suppress(JsonError):
            event = parse_object(line)
            if "event" in event:
                yield event


def check_nodes(request: ConnectivityRequest) -> dict[str, NodeResult]:
    token = secrets.token_hex(8)
    port, reason = ports.listen(request["address"], token)
    if port is None:
        raise AgentError(f"can't listen on {request['address']}: {reason}")
    checks = [NodeCheck(request, node, port, token) for node in request["nodes"]]
    threads = [threading.Thread(target=check.run, daemon=True) for check in checks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {check.node["ssh_name"]: check.result for check in checks}


def check_connections(request: ConnectivityRequest, _: BinaryIO) -> Json:
    """Result of each node by its ssh name. `began`: seconds since boot."""
    if shutil.which(request["python"]) is None:  # another Python is running this check
        raise AgentError(f"{request['python']} does not exist")
    with open("/proc/uptime", encoding="ascii") as file:
        began = float(file.read().split()[0])
    remove_file(request["record"])
    if shutil.which(request["ssh"][0]) is not None:
        results = check_nodes(request)
    else:
        results = {node["ssh_name"]: NodeResult("login", "there is no ssh on it") for node in request["nodes"]}
    return {"nodes": {name: result._asdict() for name, result in results.items()}, "began": began}


def main(action: str) -> int:
    return answer({"try": check_connections}[action])

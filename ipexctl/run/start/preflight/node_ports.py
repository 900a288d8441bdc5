"""The check of ports before a run whose nodes log in nowhere: node0 and each other node connect to each other."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence

from ipexctl.hosts.host import Host
from ipexctl.limits import CONNECTIVITY_CHECK
from ipexctl.node.network.connectivity import NodeResult, problem
from ipexctl.remote.command import Command
from ipexctl.remote.node_call import script_text
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.reply import Reply
from ipexctl.remote.script_dialog import ScriptDialog
from ipexctl.remote.session_pool import SessionPool
from ipexctl.run.start.request import StartError, StartFailure

_NO_ANSWER = NodeResult("back", "no answer")


def check_ports(
    hosts: Sequence[Host], addresses: Mapping[str, str], python: str, pool: SessionPool
) -> dict[str, NodeResult]:
    """`back`: the node can't connect to node0; `there`: node0 can't connect to the node."""
    program = Command.argv(python, "-I", "-S", "-c", script_text("network.ports"))._replace(
        label="check the connections"
    )
    life = 3 * CONNECTIVITY_CHECK
    until = time.monotonic() + life
    tokens = {host.name: secrets.token_hex(8) for host in hosts}
    node0, *others = tokens
    dialog = ScriptDialog(pool.cancel)
    try:
        for host in hosts:
            try:
                session = pool.session(host)
            except HostError as error:
                raise StartError(StartFailure.of_host(host.name, error)) from None
            order = f"{addresses[host.name]} {tokens[host.name]} {life:.0f}\n"
            dialog.start(host.name, session, program, timeout=life, stdin=order.encode())
        listening: dict[str, int] = {}
        for name, event in _events(dialog, until):
            if event.get("event") == "ready":
                listening[name] = _port(name, addresses[name], event)
            if len(listening) == len(hosts):
                break
        targets = {name: f"{addresses[name]} {port} {tokens[name]}" for name, port in listening.items()}
        if node0 not in targets:
            raise StartError(StartFailure(f"{node0}: the port check did not begin in time", "", (node0,)))
        ready = [name for name in others if name in targets]
        for name in ready:
            dialog.send(name, f"{CONNECTIVITY_CHECK} {targets[node0]}\n".encode())
        dialog.send(node0, f"{CONNECTIVITY_CHECK} {' '.join(targets[name] for name in ready)}\n".encode())
        return {**dict.fromkeys(others, _NO_ANSWER), **_results(dialog, node0, ready, listening, until)}
    finally:
        dialog.end(time.monotonic() + 1)


def _port(name: str, address: str, event: Reply) -> int:
    try:
        if event.get("port") is None:
            raise HostError(f"it can't listen on {address}: {event.text('reason')}")
        return event.integer("port")
    except HostError as error:
        raise StartError(StartFailure.of_host(name, error)) from None


def _results(
    dialog: ScriptDialog, node0: str, ready: Sequence[str], listening: Mapping[str, int], until: float
) -> dict[str, NodeResult]:
    back, there = dict[str, NodeResult](), dict[str, NodeResult]()
    for name, event in _events(dialog, until):
        if event.get("event") != "result":
            continue
        try:
            kind, text, number = event.text("kind"), event.text("text"), event.integer("number")
        except HostError as error:
            raise StartError(StartFailure.of_host(name, error)) from None
        is_there = name == node0
        node = ready[number] if is_there and 0 <= number < len(ready) else name
        direction, port = ("there", listening[node]) if is_there else ("back", listening[node0])
        result = NodeResult("ok") if kind == "ok" else NodeResult(direction, problem(kind, text, port))
        (there if is_there else back)[node] = result
        if len(back) == len(there) == len(ready):
            break
    for name in ready:
        back.setdefault(name, _NO_ANSWER)
    return {name: there.get(name, _NO_ANSWER) if back[name].kind == "ok" else back[name] for name in ready}


def _events(dialog: ScriptDialog, until: float) -> Iterator[tuple[str, Reply]]:
    while (received := dialog.receive(until)) is not None:
        name, event = received
        if event is None or isinstance(event, HostError):
            error = event or HostError("the port check ended there too soon")
            if isinstance(error, Cancelled):
                return
            raise StartError(StartFailure.of_host(name, error))
        yield name, event

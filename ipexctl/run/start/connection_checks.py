"""Checks before a run starts that node0 and each node can connect, at the ports of ranks, in both directions.
mpirun's own error for a blocked port comes after minutes and names neither host nor port.
Connections that worked in the last 10 minutes are not tried again, by a digest of everything a check depends on. The
record is a file in node0's home (`CONNECTIVITY_FILE`): the start of ranks removes it, and the supervisor writes it
after a successful run.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ipexctl.facts.facts import slowness
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.request import EarlierCheck, Gathered
from ipexctl.limits import CONNECTIVITY_CHECK, CONNECTIVITY_VALID, PATIENCE
from ipexctl.node.common.clock import stretched
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.job import CONNECTIVITY_FILE, ConnectivityRecord
from ipexctl.node.common.json_records import parse_object
from ipexctl.remote.command import Command
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.home_script import walk_to
from ipexctl.remote.node_call import script_text
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.reply import Reply
from ipexctl.remote.script_dialog import ScriptDialog
from ipexctl.remote.session import Session, capture
from ipexctl.run.start.start_request import StartError, StartFailure

_OPEN_PORTS: Final = Fix(
    "ranks listen on ports the system chooses (sysctl net.ipv4.ip_local_port_range): open those between the nodes, "
    "or name another network: --iface; `ipexctl doctor` shows which connections are blocked"
)
_PROBLEMS: Final = {
    "timeout": "no answer",
    "refused": "connection refused",
    "noroute": "no route to it",
    "denied": "not permitted",
    "wrong": "another program answers",
    "mute": "connected, but nothing was sent",
    "large-lost": "small packets arrive, and large ones are lost on the way back (`ipexctl doctor` has more)",
}


class NodeResult(NamedTuple):
    kind: str
    """`ok`; `back`: no connection to node0; `there`: no connection from node0."""
    text: str = ""


def read_earlier_check(session: Session, home: str) -> EarlierCheck:
    """One round trip; `home` may begin with `~/`."""
    directory = shlex.quote(home.removeprefix("~/"))  # sessions start in the home directory
    script = walk_to(f"{home}/runs") + f"cat -- /proc/uptime {directory}/runs/{CONNECTIVITY_FILE} 2>/dev/null\nexit 0"
    result = capture(session, Command(script, "read node0's last check"), silence=PATIENCE)
    return parse_earlier_check(result.stdout.decode(errors="replace"))


def parse_earlier_check(text: str) -> EarlierCheck:
    """Parse what node0 sent. A doubtful record counts as missing. Pure."""
    uptime, _, document = text.partition("\n")
    try:
        seconds = float(uptime.split()[0])
    except (ValueError, IndexError):
        return EarlierCheck()
    try:
        record = Reply(parse_object(document)).decode(ConnectivityRecord)
    except (HostError, ValueError):
        return EarlierCheck(uptime=seconds)
    return EarlierCheck(record if record.checked <= seconds else None, seconds)


def check_connectivity(hosts: Sequence[Host], context: Gathered, pool: SessionPool) -> ConnectivityRecord | None:
    """One round trip to each host; None for a single host. Raises a StartError."""
    if len(hosts) == 1:
        return None
    key, earlier = connectivity_key(hosts, context), context.earlier_check
    passed = earlier.passed
    if key and passed is not None and passed.key == key and earlier.uptime - passed.checked <= CONNECTIVITY_VALID:
        return passed
    seconds = CONNECTIVITY_CHECK * max(stretched(1.0), slowness(context.facts.values()))
    results = check_ports(hosts, context.addresses, context.probe_python, pool, seconds)
    evaluate_connectivity(hosts[0].name, context.addresses, results)
    return ConnectivityRecord(key, earlier.uptime) if key and earlier.uptime else None


def connectivity_key(hosts: Sequence[Host], context: Gathered) -> str:
    """A digest of everything that a check depends on; empty if a host is not identified. Pure."""
    machines = []
    for host in hosts:
        facts = context.facts[host.name]
        if facts.machine is None:
            return ""
        nics = sorted(map(repr, facts.network.nics))
        address = context.addresses.get(host.name, "")
        machines.append([host.name, address, facts.machine, nics, sorted(facts.security.firewall)])
    document = json.dumps([context.probe_python, machines])
    return hashlib.sha256(document.encode(errors="surrogatepass")).hexdigest()


def evaluate_connectivity(node0: str, addresses: Mapping[str, str], results: Mapping[str, NodeResult]) -> None:
    """Raise a StartError if a connection fails. Pure."""
    back, there = (tuple(name for name, each in results.items() if each.kind == kind) for kind in ("back", "there"))
    if back:
        raise StartError.because(
            f"{fold(back)} cannot connect to {node0} at {addresses[node0]}: {results[back[0]].text}; is there a "
            f"firewall on {node0}, or between them?",
            _OPEN_PORTS,
            (node0, *back),
        )
    if there:
        where = f"{there[0]} at {addresses[there[0]]}" if len(there) == 1 else fold(there)
        raise StartError.because(
            f"{node0} cannot connect to {where}: {results[there[0]].text}; is there a firewall there, or between them?",
            _OPEN_PORTS,
            there,
        )


_NO_ANSWER = NodeResult("back", "no answer")


def check_ports(
    hosts: Sequence[Host], addresses: Mapping[str, str], python: str, pool: SessionPool, seconds: float
) -> dict[str, NodeResult]:
    """`back`: the node can't connect to node0; `there`: node0 can't connect to the node."""
    program = Command.argv(python, "-I", "-S", "-c", script_text("network.ports"))._replace(
        label="check the connections"
    )
    life = PATIENCE + 2 * seconds
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
        for name, event in _events(dialog, time.monotonic() + PATIENCE):
            if event.get("event") == "ready":
                listening[name] = _port(name, addresses[name], event)
            if len(listening) == len(hosts):
                break
        targets = {name: f"{addresses[name]} {port} {tokens[name]}" for name, port in listening.items()}
        if late := tuple(name for name in tokens if name not in targets):
            raise StartError.because(
                f"{fold(late)}: the login shell has not started the port check within {PATIENCE:.0f} s",
                Fix("check its startup files, such as ~/.bashrc; `ipexctl doctor` measures how long it takes"),
                late,
            )
        for name in others:
            dialog.send(name, f"{seconds} {targets[node0]}\n".encode())
        dialog.send(node0, f"{seconds} {' '.join(targets[name] for name in others)}\n".encode())
        return _results(dialog, node0, others, listening, until)
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
        result = (
            NodeResult("ok") if kind == "ok" else NodeResult(direction, f"{_PROBLEMS.get(kind) or text} on port {port}")
        )
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

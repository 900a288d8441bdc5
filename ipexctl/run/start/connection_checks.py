"""Check before a run starts that node0 and each other node can connect to each other, on ports as the ranks use them.

Without the check, a blocked port shows minutes later as an error of mpirun that names neither host nor port.

Connections that worked in the last 10 minutes are not checked again, if nothing that they depend on has changed
(`connectivity_key`). node0 keeps the record in its home (`CONNECTIVITY_FILE`): it is removed when ranks start, and the
supervisor writes it again after a successful run, so a run that failed is always followed by a check.
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
from ipexctl.launch.run_context import EarlierCheck, RunContext
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
    """`ok`; `back`: the node cannot connect to node0; `there`: node0 cannot connect to the node."""
    text: str = ""
    """The problem and the port; empty for `ok`."""


def read_earlier_check(session: Session, home: str) -> EarlierCheck:
    """Read node0's record of the last check, in one round trip. `home` may begin with `~/`."""
    directory = shlex.quote(home.removeprefix("~/"))  # sessions start in the home directory
    script = walk_to(f"{home}/runs") + f"cat -- /proc/uptime {directory}/runs/{CONNECTIVITY_FILE} 2>/dev/null\nexit 0"
    result = capture(session, Command(script, "read node0's last check"), silence=PATIENCE)
    return parse_earlier_check(result.stdout.decode(errors="replace"))


def parse_earlier_check(text: str) -> EarlierCheck:
    """Parse the uptime of node0 and the record below it. A doubtful record counts as missing. Pure."""
    uptime, _, document = text.partition("\n")
    try:
        seconds = float(uptime.split()[0])
    except (ValueError, IndexError):
        return EarlierCheck()
    try:
        record = Reply(parse_object(document)).decode(ConnectivityRecord)
    except (HostError, ValueError):
        return EarlierCheck(uptime=seconds)
    is_of_this_boot = record.checked <= seconds
    return EarlierCheck(record if is_of_this_boot else None, seconds)


def check_connectivity(hosts: Sequence[Host], context: RunContext, pool: SessionPool) -> ConnectivityRecord | None:
    """Check the connections between the hosts in one round trip to each, unless an earlier check still counts.

    Returns the record that the supervisor writes after a successful run; None for a single host, and if hosts cannot be
    identified. Raises a StartError if a connection fails.
    """
    if len(hosts) == 1:
        return None
    key, earlier = connectivity_key(hosts, context), context.earlier_check
    passed = earlier.passed
    if key and passed is not None and passed.key == key:
        is_recent = earlier.uptime - passed.checked <= CONNECTIVITY_VALID
        if is_recent:
            return passed
    seconds = CONNECTIVITY_CHECK * max(stretched(1.0), slowness(context.facts.values()))
    results = check_ports(hosts, context.addresses, context.probe_python, pool, seconds)
    evaluate_connectivity(hosts[0].name, context.addresses, results)
    return ConnectivityRecord(key, earlier.uptime) if key and earlier.uptime else None


def connectivity_key(hosts: Sequence[Host], context: RunContext) -> str:
    """Return a digest of everything that a check depends on; empty if a host cannot be identified. Pure."""
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
    """Raise a StartError if a connection failed. `results`: node, without node0 → its result. Pure."""
    back = tuple(name for name, result in results.items() if result.kind == "back")
    there = tuple(name for name, result in results.items() if result.kind == "there")
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
    """Start a program on every host that listens on a port, and let node0 and each other node connect both ways.

    `seconds`: time limit for one connection. Returns the results of all nodes but node0. Raises a StartError if the
    program cannot be started on a host.
    """
    program = Command.argv(python, "-I", "-S", "-c", script_text("network.ports"))._replace(
        label="check the connections"
    )
    lifetime = PATIENCE + 2 * seconds
    until = time.monotonic() + lifetime
    tokens = {host.name: secrets.token_hex(8) for host in hosts}
    node0, *others = tokens
    dialog = ScriptDialog(pool.cancel)
    try:
        for host in hosts:
            try:
                session = pool.session(host)
            except HostError as error:
                raise StartError(StartFailure.of_host(host.name, error)) from None
            order = f"{addresses[host.name]} {tokens[host.name]} {lifetime:.0f}\n"
            dialog.start(host.name, session, program, timeout=lifetime, stdin=order.encode())
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
    """Return the port on which the host listens. Raises a StartError if it cannot listen."""
    try:
        if event.get("port") is None:
            raise HostError(f"it can't listen on {address}: {event.text('reason')}")
        return event.integer("port")
    except HostError as error:
        raise StartError(StartFailure.of_host(name, error)) from None


def _results(
    dialog: ScriptDialog, node0: str, others: Sequence[str], listening: Mapping[str, int], until: float
) -> dict[str, NodeResult]:
    """Collect the results of all connections. A connection without a result by `until` counts as not answered.

    node0 sends one result for each of the others, by its number in `others`; each of the others sends one.
    """
    back: dict[str, NodeResult] = {}
    there: dict[str, NodeResult] = {}
    for name, event in _events(dialog, until):
        if event.get("event") != "result":
            continue
        try:
            kind, text, number = event.text("kind"), event.text("text"), event.integer("number")
        except HostError as error:
            raise StartError(StartFailure.of_host(name, error)) from None
        problem = _PROBLEMS.get(kind) or text
        if name == node0:
            node = others[number] if 0 <= number < len(others) else node0
            result = NodeResult("there", f"{problem} on port {listening[node]}")
            there[node] = NodeResult("ok") if kind == "ok" else result
        else:
            result = NodeResult("back", f"{problem} on port {listening[node0]}")
            back[name] = NodeResult("ok") if kind == "ok" else result
        if len(back) == len(there) == len(others):
            break
    results: dict[str, NodeResult] = {}
    for name in others:
        to_node0 = back.get(name, _NO_ANSWER)
        results[name] = there.get(name, _NO_ANSWER) if to_node0.kind == "ok" else to_node0
    return results


def _events(dialog: ScriptDialog, until: float) -> Iterator[tuple[str, Reply]]:
    """Yield host and event until the time is over or the call is cancelled. Raises a StartError if a host is lost."""
    while (received := dialog.receive(until)) is not None:
        name, event = received
        if event is None or isinstance(event, HostError):
            error = event or HostError("the port check ended there too soon")
            if isinstance(error, Cancelled):
                return
            raise StartError(StartFailure.of_host(name, error))
        yield name, event

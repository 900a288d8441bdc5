"""Checks on node0 before mpirun starts: its logins to the nodes, and ports in both directions.
mpirun's own error for a blocked port comes after minutes and names neither host nor port.
Connections that worked in the last 10 minutes are not tried again, by a digest of everything a check depends on. The
record is a file in node0's home (`CONNECTIVITY_FILE`): a check and the start of mpirun remove it, and the supervisor
writes it after a successful run. For two hours it also says why a login failed where the ranks needed none.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.request import Gathered, Node0Files
from ipexctl.limits import CONNECTIVITY_CHECK, CONNECTIVITY_VALID, FIRST_ANSWER, LOGINS_REMEMBERED
from ipexctl.node.common.job import CONNECTIVITY_FILE, ConnectivityRecord
from ipexctl.node.common.json_records import parse_object
from ipexctl.node.network.connectivity import Connections, ConnectivityRequest, NodeResult, problem
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command, login_line
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.home_script import walk_to
from ipexctl.remote.node_call import call, script_text
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.reply import Reply
from ipexctl.remote.script_dialog import ScriptDialog
from ipexctl.remote.session import Session, capture
from ipexctl.run.start.request import StartError, StartFailure
from ipexctl.text import printable

_MARK: Final = "== ipexctl: connectivity"
_OPEN_PORTS: Final = (
    "ranks listen on ports the system chooses (sysctl net.ipv4.ip_local_port_range): open those between the nodes, "
    "or name another network: --iface; ipexctl doctor shows which connections are blocked"
)


class NoLogin(StartError):
    """node0 cannot log in to a node."""


def read_node0(session: Session, home: str, cancel: Cancel) -> Node0Files:
    """One round trip; `home` may begin with `~/`."""
    directory = shlex.quote(home.removeprefix("~/"))  # sessions start in the home directory
    script = walk_to(f"{home}/ssh") + walk_to(f"{home}/runs")
    script += f"cat -- {directory}/ssh/config 2>/dev/null; echo; echo {shlex.quote(_MARK)}\n"
    script += f"cat -- /proc/uptime {directory}/runs/{CONNECTIVITY_FILE} 2>/dev/null\nexit 0"
    result = capture(session, Command(script, "read node0's files"), timeout=30, cancel=cancel)
    return parse_node0(result.stdout.decode(errors="replace"))


def parse_node0(text: str) -> Node0Files:
    """Parse what node0 sent. A doubtful record counts as missing. Pure."""
    config, _, rest = text.partition(f"\n{_MARK}\n")
    uptime, _, document = rest.partition("\n")
    try:
        seconds = float(uptime.split()[0])
    except (ValueError, IndexError):
        return Node0Files(config)
    try:
        reply = Reply(parse_object(document))
        record = reply.decode(ConnectivityRecord)
    except (HostError, ValueError):
        return Node0Files(config, uptime=seconds)
    is_of_boot = max(record.checked, record.logins_tried) <= seconds
    return Node0Files(config, record if is_of_boot else None, seconds)


def check_connectivity(
    hosts: Sequence[Host], context: Gathered, pool: SessionPool, *, logs_in: bool = True, keeps_record: bool = False
) -> ConnectivityRecord | None:
    """One round trip to node0, the first host; None for a single host. Removes the record of an earlier check, unless
    it `keeps_record`. If node0 logs in nowhere, only the ports are tried. Raises a StartError, a `NoLogin` for a login.
    """
    node0, *others = hosts
    if not others:
        return None
    names = _ssh_names(others, context)
    connections = _connections(hosts, context, logs_in=logs_in)
    key = connectivity_key(hosts, connections, context)
    passed, files = context.node0.connectivity, context.node0
    if key and passed is not None and passed.key == key and files.uptime - passed.checked <= CONNECTIVITY_VALID:
        is_new = bool(files.no_logins)
        return passed._replace(no_logins=files.no_logins, logins_tried=files.logins_tried) if is_new else passed
    if not logs_in:
        results = check_ports(hosts, context.addresses, context.probe_python, pool)
        evaluate_connectivity(node0.name, context.addresses, results)
        if not (key and files.uptime):
            return None
        return ConnectivityRecord(key, files.uptime, files.no_logins, files.logins_tried)
    if keeps_record:
        connections["record"] = ""
    program = Command.argv(context.probe_python, "-I", "-S", "-c", script_text("network.ports"))
    request: ConnectivityRequest = {**connections, "probe": login_line(program, secrets.token_hex(8))}
    try:
        reply = call(
            pool.session(node0),
            "network.connectivity",
            "try",
            request,
            python=context.probe_python,
            label="check the connections",
            timeout=8 * CONNECTIVITY_CHECK,
            cancel=pool.cancel,
        )
        nodes = reply.record("nodes")
        results = {name: nodes.record(ssh_name).decode(NodeResult) for ssh_name, name in names.items()}
        record = ConnectivityRecord(key, reply.number("began")) if key else None
    except HostError as error:
        raise StartError(StartFailure.of_host(node0.name, error)) from None
    evaluate_connectivity(node0.name, context.addresses, results)
    return record


def remember_failure(hosts: Sequence[Host], context: Gathered) -> Node0Files:
    """Why node0 could not log in to one of these hosts in the last hours, if known. Pure."""
    files, record = context.node0, context.node0.connectivity
    if record is None or not record.no_logins or files.uptime - record.logins_tried > LOGINS_REMEMBERED:
        return files
    if record.key != connectivity_key(hosts, _connections(hosts, context, logs_in=False), context):
        return files
    return replace(files, no_logins=printable(record.no_logins), logins_tried=record.logins_tried)


def _ssh_names(others: Sequence[Host], context: Gathered) -> dict[str, str]:
    return {context.ssh_names.get(host.name, host.name): host.name for host in others}


def _connections(hosts: Sequence[Host], context: Gathered, *, logs_in: bool) -> Connections:
    node0, *others = hosts
    config = ("-F", context.ssh_config) if context.ssh_config else ()
    ssh = ["ssh", *config, "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECTIVITY_CHECK:.0f}"]
    names = _ssh_names(others, context)
    return {
        "address": context.addresses.get(node0.name, ""),
        "python": context.probe_python,
        "ssh": ssh if logs_in else [],
        "nodes": [{"ssh_name": ssh_name, "address": context.addresses[name]} for ssh_name, name in names.items()],
        "seconds": CONNECTIVITY_CHECK,
        "record": f"{context.home}/runs/{CONNECTIVITY_FILE}",
    }


def connectivity_key(hosts: Sequence[Host], connections: Connections, context: Gathered) -> str:
    """A digest of everything that a check depends on; empty if a host is not identified. Pure."""
    machines = []
    for host in hosts:
        facts = context.facts[host.name]
        if facts.machine is None:
            return ""
        nics = sorted(map(repr, facts.network.nics))
        machines.append([host.name, facts.machine, facts.account.user, nics, sorted(facts.security.firewall)])
    document = json.dumps([connections, context.node0.ssh_config, machines])
    return hashlib.sha256(document.encode(errors="surrogatepass")).hexdigest()


def evaluate_connectivity(node0: str, addresses: Mapping[str, str], results: Mapping[str, NodeResult]) -> None:
    """Raise a StartError, for logins first: the ports of a node without a login are unknown. Pure."""
    for kind in ("login", "back", "there"):
        failed = tuple(name for name, result in results.items() if result.kind == kind)
        if not failed:
            continue
        text = results[failed[0]].text
        if kind == "login":
            raise NoLogin(
                StartFailure(
                    f"node0 ({node0}) cannot log into {fold(failed)}, where mpirun starts ranks by ssh"
                    + (f": {text}" if text else ""),
                    "ipexctl trust allows it; over gloo, --launcher direct needs no such login",
                    failed,
                )
            )
        if kind == "back":
            raise StartError(
                StartFailure(
                    f"{fold(failed)} cannot connect to {node0} at {addresses[node0]}: {text}; is there a firewall on "
                    f"{node0}, or between them?",
                    _OPEN_PORTS,
                    (node0, *failed),
                )
            )
        where = f"{failed[0]} at {addresses[failed[0]]}" if len(failed) == 1 else fold(failed)
        raise StartError(
            StartFailure(
                f"{node0} cannot connect to {where}: {text}; is there a firewall there, or between them?",
                _OPEN_PORTS,
                failed,
            )
        )


_NO_ANSWER = NodeResult("back", "no answer")


def check_ports(
    hosts: Sequence[Host], addresses: Mapping[str, str], python: str, pool: SessionPool
) -> dict[str, NodeResult]:
    """`back`: the node can't connect to node0; `there`: node0 can't connect to the node."""
    program = Command.argv(python, "-I", "-S", "-c", script_text("network.ports"))._replace(
        label="check the connections"
    )
    life = FIRST_ANSWER + 2 * CONNECTIVITY_CHECK
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
        for name, event in _events(dialog, time.monotonic() + FIRST_ANSWER):
            if event.get("event") == "ready":
                listening[name] = _port(name, addresses[name], event)
            if len(listening) == len(hosts):
                break
        targets = {name: f"{addresses[name]} {port} {tokens[name]}" for name, port in listening.items()}
        if late := tuple(name for name in tokens if name not in targets):
            raise StartError(
                StartFailure(
                    f"{fold(late)}: the login shell has not started the port check within {FIRST_ANSWER:.0f} s",
                    "check its startup files, such as ~/.bashrc; ipexctl doctor measures how long it takes",
                    late,
                )
            )
        for name in others:
            dialog.send(name, f"{CONNECTIVITY_CHECK} {targets[node0]}\n".encode())
        dialog.send(node0, f"{CONNECTIVITY_CHECK} {' '.join(targets[name] for name in others)}\n".encode())
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

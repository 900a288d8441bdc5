"""Checks on node0 before mpirun starts: its logins to the nodes, ports in both directions, the script's imports."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.submit.preflight.imports import check_imports, check_syntax
from ipexctl.jobs.submit.request import StartFailure
from ipexctl.remote.command import login_line
from ipexctl.remote.node_call import agent_command_of, call
from ipexctl.remote.outcome import HostError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.jobs.submit.context import RunContext
    from ipexctl.jobs.submit.preflight.imports import ScriptFile
    from ipexctl.remote.session_pool import SessionPool

_SECONDS: Final = 6.0
"""For one connection; a login gets three times as long."""
_OPEN_PORTS: Final = (
    "ranks listen on ports the system chooses (sysctl net.ipv4.ip_local_port_range): open those between the nodes, "
    "or name another network: --iface; ipexctl doctor shows which connections are blocked"
)


def check_connectivity(
    hosts: Sequence[Host], context: RunContext, pool: SessionPool, script: ScriptFile | None = None
) -> StartFailure | str:
    """One round trip to node0, the first host. Returns a note, or an empty text, if the run may start.

    Raises a FileError for a syntax error in the script.
    """
    node0, *others = hosts
    if not others and script is None:
        return ""
    names = {context.ssh_names[host.name]: host.name for host in others}
    config = ("-F", context.ssh_config) if context.ssh_config else ()
    request = {
        "address": context.addresses.get(node0.name, ""),
        "python": context.env.python,
        "ssh": ["ssh", *config, "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_SECONDS:.0f}"],
        "probe": login_line(agent_command_of(context.env.python, "network.ports"), secrets.token_hex(8)),
        "nodes": [{"word": ssh_name, "address": context.addresses[name]} for ssh_name, name in names.items()],
        "seconds": _SECONDS,
        "script": script.to_json() if script is not None else None,
    }
    try:
        reply = call(
            pool.session(node0),
            "network.connectivity",
            "try",
            request,
            python=context.env.python,
            label="check the connections",
            timeout=8 * _SECONDS,
            cancel=pool.cancel,
        )
        if script is not None and reply.get("fault") is not None:
            check_syntax(script, reply.record("fault"))
        nodes = reply.record("nodes")
        answers = {name: nodes.record(ssh_name) for ssh_name, name in names.items()}
        results = {name: {"kind": node.text("kind"), "text": node.text("text")} for name, node in answers.items()}
        missing = {
            node0.name: reply.texts("missing"),
            **{name: node.texts("missing") for name, node in answers.items()},
        }
    except HostError as error:
        return StartFailure.of_host(node0.name, error)
    if failure := evaluate_connectivity(node0.name, context.addresses, results):
        return failure
    return check_imports(script, missing) if script is not None else ""


def evaluate_connectivity(
    node0: str, addresses: Mapping[str, str], results: Mapping[str, Mapping[str, Any]]
) -> StartFailure | None:
    """Logins first: the ports of a node without a login are unknown. Pure."""
    for kind in ("login", "back", "there"):
        failed = tuple(name for name, result in results.items() if result["kind"] == kind)
        if not failed:
            continue
        text = str(results[failed[0]]["text"])
        if kind == "login":
            return StartFailure(
                f"node0 ({node0}) cannot log into {fold(failed)}, where mpirun starts ranks by ssh"
                + (f": {text}" if text else ""),
                "ipexctl trust allows it; ipexctl doctor shows details",
                failed,
            )
        if kind == "back":
            return StartFailure(
                f"{fold(failed)} cannot connect to {node0} at {addresses[node0]}: {text}; is there a firewall on "
                f"{node0}, or between them?",
                _OPEN_PORTS,
                (node0, *failed),
            )
        where = f"{failed[0]} at {addresses[failed[0]]}" if len(failed) == 1 else fold(failed)
        return StartFailure(
            f"{node0} cannot connect to {where}: {text}; is there a firewall there, or between them?",
            _OPEN_PORTS,
            failed,
        )
    return None

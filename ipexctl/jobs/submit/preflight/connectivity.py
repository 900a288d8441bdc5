"""What would go wrong under mpirun, asked before it: node0's ways to the nodes and back, the script's imports."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.submit.failure import PreflightFailure
from ipexctl.jobs.submit.preflight.imports import check_imports, check_syntax
from ipexctl.remote.command import login_line
from ipexctl.remote.node_call import agent_command_of, call
from ipexctl.remote.outcome import Cancelled, HostError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.jobs.submit.context import ClusterContext
    from ipexctl.jobs.submit.preflight.imports import ScriptRequirements
    from ipexctl.launch.request import RankEnv
    from ipexctl.remote.session_pool import SessionPool

_SECONDS: Final = 6.0
"""For one connection; a login gets thrice that."""
_OPEN: Final = (
    "ranks listen on ports the system chooses (sysctl net.ipv4.ip_local_port_range): open those between the nodes, "
    "or name another network: --iface; ipexctl doctor shows which ways are closed"
)


def check_connectivity(
    hosts: Sequence[Host],
    known: ClusterContext,
    env: RankEnv,
    config: str | None,
    pool: SessionPool,
    needs: ScriptRequirements | None = None,
) -> PreflightFailure | str:
    """The first host is node0; asked of it in one round trip. A sentence, where something is in doubt.

    Raises a FileError where the script's syntax is wrong.
    """
    node0, *others = hosts
    if not others and needs is None:
        return ""
    words = {known.words[host.name]: host.name for host in others}
    how = ("-F", config) if config else ()
    request = {
        "address": known.internal.get(node0.name, ""),
        "python": env.python,
        "ssh": ["ssh", *how, "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_SECONDS:.0f}"],
        "probe": login_line(agent_command_of(env.python, "network.ports"), secrets.token_hex(8)),
        "nodes": [{"word": word, "address": known.internal[name]} for word, name in words.items()],
        "seconds": _SECONDS,
        "script": needs.question() if needs is not None else None,
    }
    try:
        said = call(
            pool.session(node0),
            "network.connectivity",
            "try",
            request,
            python=env.python,
            label="check the connections",
            timeout=8 * _SECONDS,
            cancel=pool.cancel,
        )
    except Cancelled:
        raise
    except HostError as error:
        return PreflightFailure(
            f"{node0.name}: {error.reason}", error.fix, (node0.name,), isinstance(error, Unreachable)
        )
    if needs is not None:
        check_syntax(needs.script, said["fault"])
    ways = {words[word]: way for word, way in said["nodes"].items()}
    if refused := evaluate_connectivity(node0.name, known.internal, ways):
        return refused
    lacking = {node0.name: said["missing"], **{name: way["missing"] for name, way in ways.items()}}
    return check_imports(needs, lacking) if needs is not None else ""


def evaluate_connectivity(
    node0: str, addresses: Mapping[str, str], ways: Mapping[str, Mapping[str, Any]]
) -> PreflightFailure | None:
    """Logins first: a node that can't be logged into tells nothing about its ports. Pure."""
    for kind in ("login", "back", "there"):
        lost = tuple(name for name, way in ways.items() if way["kind"] == kind)
        if not lost:
            continue
        why = str(ways[lost[0]]["text"])
        if kind == "login":
            return PreflightFailure(
                f"node0 ({node0}) can't log into {fold(lost)}, and mpirun starts ranks there by ssh from it"
                + (f": {why}" if why else ""),
                "ipexctl trust lets it in; ipexctl doctor says more",
                lost,
            )
        if kind == "back":
            return PreflightFailure(
                f"{fold(lost)} can't connect to {node0} at {addresses[node0]}: {why}; a firewall on {node0}, or "
                "between them",
                _OPEN,
                (node0, *lost),
            )
        where = f"{lost[0]} at {addresses[lost[0]]}" if len(lost) == 1 else fold(lost)
        return PreflightFailure(
            f"{node0} can't connect to {where}: {why}; a firewall there, or between them", _OPEN, lost
        )
    return None

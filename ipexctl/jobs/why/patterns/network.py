"""Known error texts of ranks that can't find or have lost one another: rendezvous, gloo, DDP.

Special patterns come before common ones; docs/troubleshooting.md has the ids.
"""

from __future__ import annotations

import re
from typing import Final

from ipexctl.jobs.why.patterns.match import KnownError, PatternMatch

_LOOPBACK: Final = re.compile(r"^(?:127\.|localhost$|::1$|\[::1\]$)")
_DOCTOR: Final = "ipexctl doctor shows which connections between the nodes fail; another network: --iface NAME|CIDR"


def _timed_out(found: PatternMatch) -> tuple[str, str] | None:
    place, port = found.groups["place"], found.groups["port"]
    if f"network addresses of ({place}, {port}) cannot be retrieved" in found.output.text:
        return None  # it tried that name until the time was over
    if _LOOPBACK.match(place) and len(found.context.hosts) > 1:
        return (
            f"MASTER_ADDR is {place}, so each node looked for rank 0 on itself, and rank 0 waited for the other ranks",
            "don't set MASTER_ADDR, in the script or with -x: ipexctl run sets node0's address for every rank",
        )
    if (found.context.master.addr or place) != place:
        return (
            f"ranks looked for rank 0 at {place}, but it is at {found.context.master.addr}: MASTER_ADDR was changed",
            "don't set MASTER_ADDR, in the script or with -x: ipexctl run sets node0's address for every rank",
        )
    return (
        (
            f"rank 0 did not answer at {place}:{port} in time: it had not reached "
            "init_process_group, or a firewall blocks the port"
        ),
        f"the output of rank 0: ipexctl logs {found.context.run} -r 0; {_DOCTOR}",
    )


def _port_busy(found: PatternMatch) -> tuple[str, str]:
    port = found.groups.get("port") or ""
    own = str(found.context.master.port or "")
    if port and port == own:
        return (
            f"port {port} of node0, the MASTER_PORT of the ranks, was taken by another program meanwhile",
            "run it again: node0 looks for a free port each time; leave --master-port out",
        )
    where = f"port {port}" if port else "a port the script listens on"
    return (
        (
            f"{where} is already in use on {found.output.host}: the script uses a fixed port, and "
            "another run or another "
            "rank of the node has it"
        ),
        (
            "remove MASTER_PORT and fixed ports from the script: ipexctl finds a free port for each run; to see the "
            "process: ipexctl exec -- ss -ltnp"
        ),
    )


def _joined(found: PatternMatch) -> tuple[str, str]:
    there, all_of_them = found.groups["there"], found.groups["all"]
    seconds = found.groups["seconds"]
    return (
        (
            f"only {there} of {all_of_them} ranks connected to rank 0 within {seconds} s: the others use another "
            "address, or had not reached init_process_group"
        ),
        (
            "don't set MASTER_ADDR, in the script or with -x: ipexctl run sets it; the output of the other ranks: "
            f"ipexctl logs {found.context.run}"
        ),
    )


_NO_IFNAME: Final = (
    "remove GLOO_SOCKET_IFNAME from the script and from -x: ipexctl run sets it for each host (--dry-run shows it); "
    "ipexctl doctor checks the names of the hosts"
)
NETWORK: Final = (
    KnownError(
        "gloo.loopback",
        (r"connectFullMesh failed.*remote=\[?(?:127\.|::1|localhost)",),
        "gloo connected ranks over 127.0.0.1: a node's own name is a loopback address in its /etc/hosts",
        _NO_IFNAME,
    ),
    KnownError(
        "gloo.no_mesh",
        (r"connectFullMesh failed",),
        "gloo couldn't connect all ranks with each other: a firewall between nodes, or the wrong network",
        _DOCTOR,
    ),
    KnownError(
        "gloo.no_interface",
        (r"Unable to find address for:? ?(?P<iface>\S*)",),
        "GLOO_SOCKET_IFNAME names the interface {iface}, which has no address on {host}",
        _NO_IFNAME,
    ),
    KnownError(
        "meet.no_name",
        (r"network addresses of \((?P<place>[^,]+), (?P<port>\d+)\) cannot be retrieved",),
        "MASTER_ADDR is {place}, a name that {host} can't resolve",
        "don't set MASTER_ADDR: ipexctl run sets node0's address; or add the name to /etc/hosts of every node",
        "anywhere",
    ),
    KnownError(
        "meet.nobody",
        (r"client socket has failed to connect to any network address of \((?P<place>[^,]+), (?P<port>\d+)\)",),
        "nothing listens at {place}:{port}, the address of rank 0: MASTER_ADDR is another machine, or rank 0 has ended",
        "don't set MASTER_ADDR or MASTER_PORT: ipexctl run sets both; the output of rank 0: ipexctl logs {run} -r 0",
    ),
    KnownError(
        "meet.timeout",
        (
            (
                r"client socket has timed out after \d+ ?m?s while trying to connect to "
                r"\((?P<place>[^,]+), (?P<port>\d+)\)"
            ),
        ),
        tell=_timed_out,
    ),
    KnownError(
        "meet.too_few",
        (
            (
                r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. "
                r"(?P<there>\d+)/(?P<all>\d+) clients joined"
            ),
        ),
        tell=_joined,
    ),
    KnownError(
        "meet.port_busy",
        (
            r"failed to listen on any local network address\. port: (?P<port>\d+).*EADDRINUSE",
            r"EADDRINUSE",
            r"Address already in use",
        ),
        tell=_port_busy,
    ),
    KnownError(
        "meet.no_rank",
        (r"environment variable (?P<name>RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set",),
        "{name} is not set in the script: a program between ipexctl and the script removes it",
        "run the script directly: ipexctl run SCRIPT.py; a wrapper script must not clear the environment",
    ),
    KnownError(
        "ddp.unused_parameters",
        (r"Expected to have finished reduction in the prior iteration",),
        "some parameters of the model are not used in the loss, and DDP waits for their gradients",
        "use DistributedDataParallel(model, find_unused_parameters=True), or a loss that uses all parameters",
    ),
    KnownError(
        "ddp.models_differ",
        (r"DDP expects same model across all ranks",),
        "the ranks have built different models",
        "use the same arguments, seed and data on every rank; ipexctl sync uploads the same code to all hosts",
    ),
    KnownError(
        "ddp.steps_differ",
        (r"Detected mismatch between collectives on ranks",),
        "ranks have called different collectives: one rank took another branch of the script",
        "don't call all_reduce, barrier or a collective save under `if rank == 0`: every rank must call it",
    ),
    KnownError(
        "net.unreachable",
        (r"\[Errno 113\] No route to host", r"\[Errno 101\] Network is unreachable"),
        "{host} has no route to an address that the script connects to",
        "ipexctl doctor checks the network between the nodes",
    ),
    KnownError(
        "peer.timeout",
        (
            r"Timed out waiting \d+ms for (?:recv|send) operation",
            r"wait timeout after \d+ms",
            r"Wait timeout",
            r"Socket Timeout",
        ),
        "rank {rank} waited for another rank until its timeout: that rank hung, was cut off, or had ended",
        "the output of all ranks: ipexctl logs {run}; a longer timeout: init_process_group(timeout=…)",
        "follows",
        "possible",
    ),
    KnownError(
        "peer.gone",
        (
            r"Connection closed by peer",
            r"[Ff]ailed to recv, got 0 bytes",
            r"(?:gloo/|SocketImpl|TCPStore).*(?:Connection reset by peer|Broken pipe|Connection refused)",
            r"Read error \[.*Connection reset by peer",
        ),
        "rank {rank} lost its connection to another rank, which had ended before it or was cut off",
        "find the rank that ended at the same time: ipexctl logs {run}",
        "follows",
        "possible",
    ),
    KnownError(
        "gloo.loopback_fallback",
        (r"Unable to resolve hostname to a \(local\) address\. Using the loopback address as fallback",),
        "gloo couldn't resolve {host}'s own name and used the loopback address, which other nodes can't reach",
        _NO_IFNAME,
        "aside",
        "possible",
    ),
    KnownError(
        "meet.slow_names",
        (r"The hostname of the client socket cannot be retrieved\. err=-3",),
        "a node's address has no name, so torch starts slowly; this alone does not end a run",
        "add the nodes' names to /etc/hosts of each node; ipexctl doctor checks the names",
        "aside",
        "possible",
    ),
)

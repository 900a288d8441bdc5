"""Known texts of ranks that don't find one another, or have lost one another: rendezvous, gloo, DDP.

Rows go from special to common; a row's id is what docs/troubleshooting.md calls it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ipexctl.jobs.why.patterns.match import KnownError

if TYPE_CHECKING:
    from ipexctl.jobs.why.patterns.match import PatternMatch

_LOOPBACK: Final = re.compile(r"^(?:127\.|localhost$|::1$|\[::1\]$)")
_DOCTOR: Final = "ipexctl doctor shows which ways between the nodes are closed; another network: --iface NAME|CIDR"


def _timed_out(found: PatternMatch) -> tuple[str, str] | None:
    place, port = found.groups["place"], found.groups["port"]
    if f"network addresses of ({place}, {port}) cannot be retrieved" in found.words.text:
        return None  # it tried that name until the time was over
    if _LOOPBACK.match(place) and len(found.context.hosts) > 1:
        return (
            f"MASTER_ADDR is {place}, so each node looked for rank 0 on itself, and rank 0 waited for the others",
            "don't set MASTER_ADDR, in the script or with -x: ipexctl run sets node0's address for every rank",
        )
    if (found.context.master.addr or place) != place:
        return (
            f"ranks looked for rank 0 at {place}, and it is at {found.context.master.addr}: MASTER_ADDR was changed",
            "don't set MASTER_ADDR, in the script or with -x: ipexctl run sets node0's address for every rank",
        )
    return (
        f"rank 0 did not answer at {place}:{port} in time: it never got that far, or a firewall is between",
        f"what rank 0 did: ipexctl logs {found.context.run} -r 0; {_DOCTOR}",
    )


def _port_busy(found: PatternMatch) -> tuple[str, str]:
    port = found.groups.get("port") or ""
    own = str(found.context.master.port or "")
    if port and port == own:
        return (
            f"port {port} of node0, where the ranks were to meet, was taken by another program meanwhile",
            "run it again: node0 looks for a free port each time; where --master-port is given, leave it out",
        )
    where = f"port {port}" if port else "a port the script listens on"
    return (
        (
            f"{where} is in use on {found.words.host}: a port fixed in the script, which another run, or another "
            "rank of the node, has taken"
        ),
        (
            "leave MASTER_PORT and ports in the script out, a free one is found for each run; who has it: "
            "ipexctl exec -- ss -ltnp"
        ),
    )


def _joined(found: PatternMatch) -> tuple[str, str]:
    there, all_of_them = found.groups["there"], found.groups["all"]
    seconds = found.groups["seconds"]
    return (
        (
            f"only {there} of {all_of_them} ranks came to rank 0 within {seconds} s: others look for it elsewhere, or "
            "have not got that far"
        ),
        (
            "MASTER_ADDR belongs to ipexctl run: not in the script, not in -x; where the others stand: "
            f"ipexctl logs {found.context.run}"
        ),
    )


NETWORK: Final = (
    KnownError(
        "gloo.loopback",
        (r"connectFullMesh failed.*remote=\[?(?:127\.|::1|localhost)",),
        "gloo connected ranks over 127.0.0.1: a node's own name stands for the loopback in its /etc/hosts",
        "leave GLOO_SOCKET_IFNAME to ipexctl run, or -x GLOO_SOCKET_IFNAME=eth0; ipexctl doctor names the node",
    ),
    KnownError(
        "gloo.no_mesh",
        (r"connectFullMesh failed",),
        "gloo couldn't connect every rank with every other: a firewall between nodes, or the wrong network",
        _DOCTOR,
    ),
    KnownError(
        "gloo.no_interface",
        (r"Unable to find address for:? ?(?P<iface>\S*)",),
        "gloo was told to use the interface {iface}, which has no address on {host}",
        "leave GLOO_SOCKET_IFNAME out: it is set for each host; ipexctl run --dry-run shows it",
    ),
    KnownError(
        "meet.no_name",
        (r"network addresses of \((?P<place>[^,]+), (?P<port>\d+)\) cannot be retrieved",),
        "MASTER_ADDR is {place}, a name that {host} can't resolve",
        "don't set MASTER_ADDR: ipexctl run sets node0's address; or the name into /etc/hosts of every node",
        "anywhere",
    ),
    KnownError(
        "meet.nobody",
        (r"client socket has failed to connect to any network address of \((?P<place>[^,]+), (?P<port>\d+)\)",),
        "nobody answers at {place}:{port}, where rank 0 should be: MASTER_ADDR is another machine, or rank 0 has gone",
        "don't set MASTER_ADDR or MASTER_PORT: ipexctl run sets both; what rank 0 did: ipexctl logs {run} -r 0",
    ),
    KnownError(
        "meet.timeout",
        (
            (
                r"client socket has timed out after \d+ ?m?s while trying to connect to "
                r"\((?P<place>[^,]+), (?P<port>\d+)\)"
            ),
        ),
        "",
        "",
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
        "",
        "",
        tell=_joined,
    ),
    KnownError(
        "meet.port_busy",
        (
            r"failed to listen on any local network address\. port: (?P<port>\d+).*EADDRINUSE",
            r"EADDRINUSE",
            r"Address already in use",
        ),
        "",
        "",
        tell=_port_busy,
    ),
    KnownError(
        "meet.no_rank",
        (r"environment variable (?P<name>RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set",),
        "{name} was not set where the script asked for it: something between ipexctl and the script takes it away",
        "start the script itself: ipexctl run SCRIPT.py; a shell around it must not clear its environment",
    ),
    KnownError(
        "ddp.unused_parameters",
        (r"Expected to have finished reduction in the prior iteration",),
        "some parameters of the model had no part in the loss, and DDP waits for their gradients",
        "DistributedDataParallel(model, find_unused_parameters=True), or a loss that uses all of them",
    ),
    KnownError(
        "ddp.models_differ",
        (r"DDP expects same model across all ranks",),
        "the ranks have built different models",
        "the same arguments, seed and data on every rank; ipexctl sync brings the same code to all",
    ),
    KnownError(
        "ddp.steps_differ",
        (r"Detected mismatch between collectives on ranks",),
        "ranks have called different collectives: one went another way through the script",
        "no all_reduce, barrier or save under `if rank == 0` that others don't call as well",
    ),
    KnownError(
        "net.unreachable",
        (r"\[Errno 113\] No route to host", r"\[Errno 101\] Network is unreachable"),
        "{host} has no way to an address the script connects to",
        "ipexctl doctor looks at the network among the nodes",
    ),
    KnownError(
        "peer.timeout",
        (
            r"Timed out waiting \d+ms for (?:recv|send) operation",
            r"wait timeout after \d+ms",
            r"Wait timeout",
            r"Socket Timeout",
        ),
        "rank {rank} waited for another rank until its patience was over: that one hung, was cut off, or had ended",
        "where each rank stood: ipexctl logs {run}; a longer patience: init_process_group(timeout=…)",
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
        "look at the rank that ended at the same time: ipexctl logs {run}",
        "follows",
        "possible",
    ),
    KnownError(
        "gloo.loopback_fallback",
        (r"Unable to resolve hostname to a \(local\) address\. Using the loopback address as fallback",),
        "gloo couldn't resolve {host}'s own name and took the loopback address, where no other node finds it",
        "-x GLOO_SOCKET_IFNAME=eth0, or the node's name into its /etc/hosts; ipexctl doctor looks",
        "aside",
        "possible",
    ),
    KnownError(
        "meet.slow_names",
        (r"The hostname of the client socket cannot be retrieved\. err=-3",),
        "a node's address has no name: torch says so and starts slowly, which alone ends nothing",
        "the nodes' names into /etc/hosts of each; ipexctl doctor looks",
        "aside",
        "possible",
    ),
)

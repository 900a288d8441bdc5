"""The kinds of machines, and QEMU's options for each. Pure. A kind is a row: another topology needs no code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node."""

    memory: int
    """MiB; 0 for a node with cores alone."""
    cpus: str = ""
    """Such as `0-7`; empty for a node with memory alone."""
    near: int | None = None
    """Node with cores that memory alone belongs to."""


@dataclass(frozen=True, slots=True)
class Kind:
    smp: str
    """Sockets, cores of each socket, and threads of each core, as QEMU has them."""
    nodes: tuple[Node, ...]
    words: str = ""
    """For the kernel's command line."""
    has_systemd: bool = False
    """Else its first program starts sshd alone: that boots in a third of the time, without slices of users."""
    image: str = "bookworm"
    """Debian's suite and, unless it is amd64, the architecture: `bookworm-arm64`."""
    model: tuple[int, int, str] = (106, 6, "Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz")
    """Model, stepping and name of the processor, of Intel's family 6; not on arm64."""
    has_ipv4: bool = True

    @property
    def is_arm(self) -> bool:
        return self.image.endswith("-arm64")

    @property
    def memory(self) -> int:
        return sum(node.memory for node in self.nodes)


def distance(kind: Kind, one: int, other: int) -> int:
    """As BIOSes write it: 10 for the node itself, 12 on a socket, 21 across; memory without cores is 2 further."""
    if one == other:
        return 10
    cores = [number if node.near is None else node.near for number, node in enumerate(kind.nodes)]
    if cores[one] == cores[other]:
        return 13
    further = 2 * sum(kind.nodes[number].near is not None for number in (one, other))
    sockets = 2 if "sockets=2" in kind.smp else 1
    per_socket = max(1, len([node for node in kind.nodes if node.near is None]) // sockets)
    return further + (12 if cores[one] // per_socket == cores[other] // per_socket else 21)


_TWO_NODES: Final = (Node(2048, "0-7"), Node(2048, "8-15"))
_SNC: Final = tuple(Node(512, f"{2 * number}-{2 * number + 1}") for number in range(8))
_HBM: Final = tuple(Node(512, near=number) for number in range(8))
_TWO_SOCKETS: Final = "16,sockets=2,cores=4,threads=2"

KINDS: Final = {
    "two-sockets": Kind(_TWO_SOCKETS, _TWO_NODES),
    "small": Kind("4,sockets=1,cores=2,threads=2", (Node(2048, "0-3"),)),
    "snc4": Kind("16,sockets=2,cores=8,threads=1", _SNC),
    "hbm": Kind("16,sockets=2,cores=8,threads=1", (*_SNC, *_HBM), model=(143, 8, "Intel(R) Xeon(R) CPU Max 9480")),
    "big": Kind("128,sockets=2,cores=32,threads=2", (Node(2048, "0-63"), Node(2048, "64-127"))),
    "no-memory": Kind("8,sockets=2,cores=4,threads=1", (Node(3072, "0-3"), Node(0, "4-7"))),
    "asymmetric": Kind("8,sockets=2,cores=4,threads=1", (Node(3072, "0-5"), Node(1024, "6-7"))),
    "limits": Kind(_TWO_SOCKETS, _TWO_NODES, has_systemd=True),
    "cgroup-v1": Kind(
        _TWO_SOCKETS,
        _TWO_NODES,
        "systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1",
        has_systemd=True,
    ),
    "isolated": Kind(_TWO_SOCKETS, _TWO_NODES, "isolcpus=4-7 nohz_full=4-7"),
    "spare-slots": Kind("4,maxcpus=8,sockets=2,cores=2,threads=2", (Node(1024, "0-3"), Node(1024, "4-7"))),
    "no-smt": Kind(_TWO_SOCKETS, _TWO_NODES, "nosmt"),
    "no-ipv4": Kind(_TWO_SOCKETS, _TWO_NODES, has_ipv4=False),
    "trixie": Kind(_TWO_SOCKETS, _TWO_NODES, image="trixie"),
    "arm": Kind("4,sockets=1,cores=4,threads=1", (Node(1024, "0-1"), Node(1024, "2-3")), image="bookworm-arm64"),
}
"""`trixie`: Debian 13 with its kernel and Python 3.13."""


def topology(kind: Kind) -> Iterator[str]:
    """QEMU's options for the processors and the memory."""
    if kind.is_arm:
        yield from ("-machine", "virt", "-cpu", "neoverse-n1")
    else:
        model, stepping, title = kind.model
        name = f"max,-svm,-la57,xlevel=0x80000008,vendor=GenuineIntel,family=6,model={model},stepping={stepping}"
        yield from ("-cpu", f"{name},model-id={title}")  # without xlevel and -svm, Linux drops the title
    yield from ("-smp", kind.smp, "-m", f"{kind.memory}M")
    has_near = any(node.near is not None for node in kind.nodes)
    if has_near:
        yield from ("-machine", "hmat=on")
    for number, node in enumerate(kind.nodes):
        words = f"node,nodeid={number}"
        if node.memory:
            yield from ("-object", f"memory-backend-ram,id=m{number},size={node.memory}M")
            words += f",memdev=m{number}"
        if node.cpus:
            words += f",cpus={node.cpus}"
        if has_near:
            words += f",initiator={number if node.near is None else node.near}"
        yield from ("-numa", words)
    for one in range(len(kind.nodes)):
        for other in range(one + 1, len(kind.nodes)):
            yield from ("-numa", f"dist,src={one},dst={other},val={distance(kind, one, other)}")

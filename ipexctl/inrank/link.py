"""Connects all ranks of a process group through shared memory. Either all ranks get a link, or all get the reason why
there is none."""

from __future__ import annotations

import os
import weakref
from datetime import timedelta
from typing import Any, Mapping, Sequence

import torch
import torch.distributed as dist

from .agreement import Round
from .channel import DTYPES, SEGMENT_SIZE, Channel
from .segment import NONCE_SIZE, Segment, SegmentError, create_memfd, find_hosts, is_supported, open_memfd
from .waiting import Peer, read_state
from .wire import Between, Lost

CROSSOVER, CROSSOVER_BETWEEN, CROSSOVER_CODED = 4 << 10, 512 << 10, 64 << 10
"""Bytes from which the link is faster than gloo: on one host, on several hosts, and with encoding between hosts."""
BUILDING = 60.0
buckets = 0


class OffError(Exception):
    """The text is the reason, which is the same on all ranks."""


class SharedLink:
    def __init__(self, hosts: Sequence[Sequence[int]], channel: Channel, between: Between | None) -> None:
        self.hosts, self.channel, self.between = hosts, channel, between

    def confirm(self, store: Any, rank: int, name: str, reason: str) -> None:
        size = sum(len(ranks) for ranks in self.hosts)
        _published(Round(store, rank, size, f"{name}/confirmed").decide({"off": reason}, _all_agree))

    @property
    def ring_threshold(self) -> int:
        if self.between is None:
            return CROSSOVER
        return CROSSOVER_BETWEEN if self.between.codec is None else CROSSOVER_CODED

    def gains(self, tensor: Any) -> bool:
        """True if the link is better than the backend: ranks share a host, or values are encoded."""
        if self.channel.size > 1:
            return True
        return self.between is not None and self.between.compresses(tensor.dtype, tensor.element_size())

    def takes(self, tensor: Any) -> bool:
        is_large = tensor.numel() * tensor.element_size() >= self.ring_threshold
        return is_large and tensor.dtype in DTYPES and self.gains(tensor)

    def all_reduce(self, owner: Any, tensor: Any, factor: float, lost: dict[int, Lost] | None = None) -> Any:
        """Start summing a flat tensor, scaled, over all ranks. `lost`: rounding losses of this bucket in the previous
        step."""
        global buckets
        buckets += 1
        future: Any = torch.futures.Future()
        self.channel.start(owner, tensor, factor, future, lost)
        return future


def connect(store: Any, rank: int, size: int, name: str, reason: str, timeout: float, *, wire: str) -> SharedLink:
    """Link all ranks, or raise an OffError. `reason`: why this rank wants no link, or empty."""
    own, number, reason = _offered(reason)
    segments = {rank: own} if own is not None else {}
    try:
        offer = _offer(own, number, reason, wire)
        offers = _published(Round(store, rank, size, f"{name}/offers").decide(offer, _table))["offers"]
        problem = ""
        try:
            segments.update(_mapped(rank, offers))
        except SegmentError as error:
            problem = f"rank {rank}: {error}"
        mapped = {"off": problem, "ranks": sorted(segments), "fewest": 2 if wire == "fp32" else 1}
        hosts = _published(Round(store, rank, size, f"{name}/mapped").decide(mapped, _hosts))["hosts"]
    except BaseException:
        if number >= 0:
            os.close(number)
        raise
    ranks = next(ranks for ranks in hosts if rank in ranks)
    between = None
    if len(hosts) > 1:
        round_ = Round(store, rank, size, f"{name}/between", BUILDING)
        between = _between(round_, store, rank, hosts, name, timeout, wire)
    peers = [Peer(peer, offers[peer]["pid"], offers[peer]["started"]) for peer in ranks]
    channel = Channel([segments[peer] for peer in ranks], ranks.index(rank), peers, timeout, between)
    if len({core for peer in ranks for core in offers[peer]["cores"]}) < len(ranks):
        channel.waiter.spins = 0
    link = SharedLink(hosts, channel, between)
    weakref.finalize(link, os.close, number).atexit = False
    return link


def _between(
    round_: Round, store: Any, rank: int, hosts: Sequence[Sequence[int]], name: str, timeout: float, wire: str
) -> Between:
    """Make the groups of ranks with the same place on their hosts. torch does not list them."""
    number, ranks = next((number, ranks) for number, ranks in enumerate(hosts) if rank in ranks)
    groups, reason = [], ""
    try:
        for step in range(1 if wire == "fp32" or len(hosts) == 2 else 2):
            own = dist.PrefixStore(f"ipexctl/allreduce/{name}/place{ranks.index(rank)}/{step}", store)
            groups.append(dist.ProcessGroupGloo(own, number, len(hosts), timedelta(seconds=timeout)))
    except RuntimeError as error:
        reason = f"rank {rank}: {str(error).strip().partition(chr(10))[0]}"
    _published(round_.decide({"off": reason}, _all_agree))
    return Between(groups, number, len(hosts), wire)


def _offered(reason: str) -> tuple[Segment | None, int, str]:
    if reason:
        return None, -1, reason
    if not is_supported():
        return None, -1, "this processor is not x86-64"
    try:
        number = create_memfd(SEGMENT_SIZE)
    except SegmentError as error:
        return None, -1, str(error)
    try:
        own = Segment(number, SEGMENT_SIZE)
    except SegmentError as error:
        os.close(number)
        return None, -1, str(error)
    own.nonce = os.urandom(NONCE_SIZE)
    return own, number, ""


def _offer(own: Segment | None, number: int, reason: str, wire: str) -> dict[str, Any]:
    return {
        "off": reason,
        "wire": wire,
        "boot": _boot(),
        "pid": os.getpid(),
        "number": number,
        "started": read_state(os.getpid())[1],
        "nonce": own.nonce.hex() if own else "",
        "cores": sorted(os.sched_getaffinity(0)),
    }


def _boot() -> str:
    """The boot id. Different containers on one host have the same."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _table(offers: list[Any]) -> dict[str, Any]:
    off = next((offer["off"] for offer in offers if offer["off"]), "")
    if not off and len({offer["wire"] for offer in offers}) > 1:
        off = "the ranks have different values of IPEXCTL_WIRE"
    return {"off": off} if off else {"offers": offers}


def _all_agree(offers: list[Any]) -> dict[str, Any]:
    return {"off": next((offer["off"] for offer in offers if offer["off"]), "")}


def _hosts(mapped: list[Any]) -> dict[str, Any]:
    off = next((entry["off"] for entry in mapped if entry["off"]), "")
    if off:
        return {"off": off}
    try:
        ranks = {rank: entry["ranks"] for rank, entry in enumerate(mapped)}
        hosts = find_hosts(ranks, min(entry["fewest"] for entry in mapped))
    except ValueError as error:
        return {"off": str(error)}
    return {"hosts": hosts}


def _published(decision: Mapping[str, Any]) -> Mapping[str, Any]:
    if decision.get("off"):
        raise OffError(str(decision["off"]))
    return decision


def _mapped(rank: int, offers: Sequence[Mapping[str, Any]]) -> dict[int, Segment]:
    segments = {}
    for peer, offer in enumerate(offers):
        if peer != rank and offer["boot"] == offers[rank]["boot"]:
            segment = _map(offer)
            if segment is not None:
                segments[peer] = segment
    return segments


def _map(offer: Mapping[str, Any]) -> Segment | None:
    """Segment of another rank; None if the other rank's process is not visible from here."""
    number = open_memfd(offer["pid"], offer["number"])
    if number is None:
        return None
    try:
        if os.fstat(number).st_size != SEGMENT_SIZE:
            return None
        segment = Segment(number, SEGMENT_SIZE)
    finally:
        os.close(number)
    return segment if segment.nonce.hex() == offer["nonce"] else None

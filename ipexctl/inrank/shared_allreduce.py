"""Connect all ranks of a process group through shared memory. Either all ranks are connected, or all get the
reason why none is.

Anybody on the ranks' network can write into their store, so the ranks ask there only whether all take part. What they
offer goes over the connections that the group already has, and each rank makes the same table from the same values.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
import weakref
from datetime import timedelta
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import torch
import torch.distributed as dist

from .agreement import UNANSWERED, Round
from .channel import DTYPES, SEGMENT_SIZE, Channel
from .handlers import watch_handlers
from .segment import NONCE_SIZE, Segment, SegmentError, create_memfd, find_hosts, is_supported, open_memfd
from .waiting import Peer, read_state
from .wire import Between, Lost

CROSSOVER, CROSSOVER_BETWEEN, CROSSOVER_CODED = 4 << 10, 512 << 10, 64 << 10
"""Bytes from which this is faster than gloo: on one host, on several hosts, and with encoding between hosts."""
BUILDING = 60.0
"""Seconds in which all ranks join, once all have said that they take part."""
MARK = 0x1BEC711
HEAD = struct.Struct("<QQ")
"""MARK and the number of bytes."""
FRAME = 1024
"""Bytes of the first message of a rank, which all have."""
TIMEOUT = 1800.0
LARGEST = 1 << 20
"""Bytes of a rank's values."""
CLOSE_PORTS = "if somebody else can reach the network of the ranks, close its ports"
FIX = f"add --allreduce backend; {CLOSE_PORTS}"
buckets = 0
_missing = ""
"""Which rank did not answer, as every rank of its group was told."""
_answered = False
"""True once all ranks of the default group have answered."""


class OffError(Exception):
    """The text is the reason, which is the same on all ranks."""


class DisagreementError(RuntimeError):
    """The ranks would train apart, so the run must end."""


class Ranks(NamedTuple):
    """A process group, as this rank sees it."""

    backend: Any
    """None only if this rank has a reason against it."""
    rank: int
    size: int
    timeout: Callable[[], float]
    numbers: Sequence[int] = ()
    """Of the ranks in the default group; empty for this group."""
    subject: str = "shared memory"
    advice: str = FIX

    def ask(self, store: Any, name: str, reason: str) -> None:
        """Raise an OffError on all ranks if one of them has a reason, or takes no part. Once all ranks have answered,
        later groups are not asked; once one has not, nobody waits for it again."""
        global _answered, _missing
        if self.numbers and _answered:
            return
        off = _missing or Round(store, self.rank, self.size, name).decide(reason)
        if not off and not dist.is_initialized():  # the default group is being made
            _answered = True
        if UNANSWERED in off and not _answered:
            _missing = off
        if off:
            raise OffError(off)

    def gathered(self, value: Any, timeout: float = 0.0) -> list[Any]:
        """Return each rank's value, which is JSON, through the group's own connections. Raises a DisagreementError if
        not all ranks answer."""
        wire, room = json.dumps(value, separators=(",", ":")).encode(), FRAME - HEAD.size
        try:
            timeout = timeout or BUILDING
            frames = self._all_gather(HEAD.pack(MARK, len(wire)) + wire[:room], FRAME, timeout)
            heads = [HEAD.unpack_from(frame) for frame in frames]
            sizes = [size for _, size in heads]
            if any(mark != MARK for mark, _ in heads) or not 0 < min(sizes) <= max(sizes) <= LARGEST:
                raise RuntimeError("another collective of the script met it")
            rests = [b""] * self.size
            if max(sizes) > room:
                rests = self._all_gather(wire[room:], max(sizes) - room, timeout)
            rows = [frame[HEAD.size :] + rest for frame, rest in zip(frames, rests)]
            return [json.loads(row[:size]) for row, size in zip(rows, sizes)]
        except (RuntimeError, ValueError) as error:
            why = str(error).strip().partition("\n")[0]
            text = f"rank {self.rank} has no answer of all ranks about {self.subject}, though all take part"
            raise DisagreementError(f"ipexctl: {text}: {why}; fix: {self.advice}") from None

    def _all_gather(self, message: bytes, size: int, timeout: float) -> list[bytes]:
        """Return each rank's message, padded to so many bytes."""
        own = torch.frombuffer(bytearray(message.ljust(size, b"\0")), dtype=torch.uint8)
        rows = [torch.empty_like(own) for _ in range(self.size)]
        self.backend.allgather([rows], [own]).wait(timedelta(seconds=timeout))
        return [bytes(row.tolist()) for row in rows]

    def check_sums(self, value: int, exchange: int) -> None:
        """End the run if the ranks have different sums of the same gradients."""
        hashes = self.gathered(value, self.timeout())
        if len(set(hashes)) > 1:
            apart = [[rank for rank, own in enumerate(hashes) if own == one] for one in dict.fromkeys(hashes)]
            named = " and ".join(f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" for ranks in apart)
            text = f"{named} got different sums of their gradients at exchange {exchange}"
            raise DisagreementError(f"ipexctl: {text}, and would train apart; fix: {FIX}")


def limit_of(group: Any) -> Callable[[], float]:
    """Return a function that returns the group's time limit in seconds, which a script may change at any time. It keeps
    no group alive."""
    reference = weakref.ref(group)

    def limit() -> float:
        try:
            return float(reference()._get_backend(torch.device("cpu")).options._timeout.total_seconds())  # type: ignore[union-attr]
        except (AttributeError, RuntimeError):  # an old torch, or a group that was destroyed
            return TIMEOUT

    return limit


class SharedAllReduce:
    """Sums tensors over all ranks of a process group: in shared memory on a host, and between hosts."""

    def __init__(self, channel: Channel, between: Between | None) -> None:
        self.channel, self.between = channel, between

    @property
    def ring_threshold(self) -> int:
        """Return the bytes of a tensor from which this is faster than gloo."""
        if self.between is None:
            return CROSSOVER
        return CROSSOVER_BETWEEN if self.between.codec is None else CROSSOVER_CODED

    def gains(self, tensor: Any) -> bool:
        """True if this is better than the backend: ranks share a host, or values are encoded."""
        if self.channel.size > 1:
            return True
        return self.between is not None and self.between.compresses(tensor.dtype, tensor.element_size())

    def takes(self, tensor: Any) -> bool:
        """True if the tensor is large enough, and of a type that can be summed here."""
        is_large = tensor.numel() * tensor.element_size() >= self.ring_threshold
        return is_large and tensor.dtype in DTYPES and self.gains(tensor)

    def all_reduce(self, owner: Any, tensor: Any, factor: float, lost: dict[int, Lost] | None = None) -> Any:
        """Start summing a flat tensor, scaled, over all ranks; return a future of it. `lost`: rounding losses of this
        bucket in the previous step."""
        global buckets
        buckets += 1
        future: Any = torch.futures.Future()
        self.channel.start(owner, tensor, factor, future, lost)
        return future


def confirm(store: Any, ranks: Ranks, name: str, reason: str) -> None:
    """Ask whether the gradients of one more model are summed on all ranks; raise an OffError if one has a reason
    against it."""
    ranks.ask(store, name, reason)
    ranks.gathered(name)


class Members(NamedTuple):
    """The ranks of this rank's host, in order, once all ranks of the process group have agreed."""

    segments: list[Segment]
    peers: list[Peer]
    place: int
    is_crowded: bool
    """True if they have fewer cores than ranks."""
    between: Between | None
    """None if there is one host."""


def connect(store: Any, ranks: Ranks, name: str, reason: str, *, wire: str) -> SharedAllReduce:
    """Connect all ranks, or raise an OffError. `reason`: why this rank does not want that, or empty."""
    members = join(store, ranks, name, reason, size=SEGMENT_SIZE, wire=wire)
    channel = Channel(members.segments, members.place, members.peers, ranks.timeout, members.between)
    if members.is_crowded:
        channel.waiter.spins = 0
    return SharedAllReduce(channel, members.between)


def join(store: Any, ranks: Ranks, name: str, reason: str, *, size: int, wire: str) -> Members:
    """Map the memory of the other ranks of this host, and connect the hosts; or raise an OffError. Without a `wire`,
    the ranks of several hosts are not connected."""
    rank = ranks.rank
    own, number, reason = _offered(reason, size)
    segments = {rank: own} if own is not None else {}
    try:
        ranks.ask(store, name, reason)
        offers = ranks.gathered(_offer(own, number, wire, reason))
        if problem := next((str(offer["off"]) for offer in offers if offer["off"]), ""):
            raise OffError(problem)
        try:
            segments.update(_mapped(rank, offers, size))
        except SegmentError as error:
            problem = f"rank {rank}: {error}"
        maps = ranks.gathered({"off": problem, "ranks": sorted(segments), "table": _hash_of(offers)})
        _check_agreement(maps)
        hosts, between = _hosts(maps, offers), None
        if len(hosts) > 1:
            if not wire:
                raise OffError("its ranks are on several hosts")
            table, reason = _hash_of([hosts, offers]), ""
            try:
                between = _between(store, ranks, hosts, table, wire)
            except RuntimeError as error:
                reason = f"rank {rank}: {str(error).strip().partition(chr(10))[0]}"
            _check_agreement(ranks.gathered({"off": reason, "table": table}, 2 * BUILDING))
    except BaseException:
        if number >= 0:
            os.close(number)
        raise
    watch_handlers()
    weakref.finalize(segments[rank], os.close, number).atexit = False
    places = next(host for host in hosts if rank in host)
    numbers = ranks.numbers or range(ranks.size)
    peers = [Peer(numbers[peer], offers[peer]["pid"], offers[peer]["started"]) for peer in places]
    is_crowded = len({core for peer in places for core in offers[peer]["cores"]}) < len(places)
    return Members([segments[peer] for peer in places], peers, places.index(rank), is_crowded, between)


def _between(store: Any, ranks: Ranks, hosts: Sequence[Sequence[int]], table: str, wire: str) -> Between:
    """Make the groups of ranks with the same place on their hosts. torch does not list them. The table has nonces, so
    that only who has seen it knows where in the store the groups meet."""
    number, own = next((number, own) for number, own in enumerate(hosts) if ranks.rank in own)
    steps, groups, errors = range(1 if wire == "fp32" or len(hosts) == 2 else 2), [], []
    place = own.index(ranks.rank)

    def meet() -> None:
        try:
            for step in steps:
                keys = dist.PrefixStore(f"ipexctl/allreduce/{table}/place{place}/{step}", store)
                group = dist.ProcessGroupGloo(keys, number, len(hosts), timedelta(seconds=ranks.timeout()))
                met = ranks._replace(backend=group, size=len(hosts)).gathered(ranks.rank)
                if met != [host[place] for host in hosts]:
                    raise RuntimeError("the hosts were connected in another way than they agreed")
                groups.append(group)
        except RuntimeError as error:
            errors.append(error)

    meeting = threading.Thread(target=meet, daemon=True)  # gloo has one time limit, for this and for its collectives
    meeting.start()
    meeting.join(BUILDING)
    if errors or len(groups) < len(steps):
        raise errors[0] if errors else RuntimeError(f"the hosts did not connect within {BUILDING:g} s")
    return Between(groups, number, len(hosts), wire)


def _offered(reason: str, size: int) -> tuple[Segment | None, int, str]:
    """Return this rank's new segment, its descriptor, and why it has none. `reason`: an earlier reason against it, or
    empty."""
    if reason:
        return None, -1, reason
    if not is_supported():
        return None, -1, "this processor is not x86-64"
    try:
        number = create_memfd(size)
    except SegmentError as error:
        return None, -1, str(error)
    try:
        own = Segment(number, size)
    except SegmentError as error:
        os.close(number)
        return None, -1, str(error)
    own.nonce = os.urandom(NONCE_SIZE)
    return own, number, ""


def _offer(own: Segment | None, number: int, wire: str, reason: str) -> dict[str, Any]:
    """Return what the other ranks need to map this rank's memory, and to check that they may."""
    return {
        "off": reason,
        "wire": wire,
        "boot": boot_id(),
        "pid": os.getpid(),
        "number": number,
        "started": read_state(os.getpid())[1],
        "nonce": own.nonce.hex() if own else "",
        "cores": sorted(os.sched_getaffinity(0)),
    }


def boot_id() -> str:
    """Return the boot id, or an empty text if the kernel does not tell. Different containers on one host have the
    same."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _hosts(mapped: Sequence[Mapping[str, Any]], offers: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Return the ranks of each host. The table is the same on all ranks, because all have the same values. Raises an
    OffError if the ranks can't be connected this way."""
    wires = {offer["wire"] for offer in offers}
    if len(wires) > 1:
        raise OffError("the ranks have different values of IPEXCTL_WIRE")
    try:
        return find_hosts({rank: entry["ranks"] for rank, entry in enumerate(mapped)}, 2 if wires == {"fp32"} else 1)
    except ValueError as error:
        raise OffError(str(error)) from None


def _hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _check_agreement(found: Sequence[Mapping[str, Any]]) -> None:
    """Raise an OffError if a rank has a reason against it, or another table."""
    if off := next((str(entry["off"]) for entry in found if entry["off"]), ""):
        raise OffError(off)
    if len({entry["table"] for entry in found}) > 1:
        raise OffError("the ranks have different tables of their hosts")


def _mapped(rank: int, offers: Sequence[Mapping[str, Any]], size: int) -> dict[int, Segment]:
    """Return rank → segment of the other ranks whose memory this rank can map."""
    segments = {}
    for peer, offer in enumerate(offers):
        if peer != rank and offer["boot"] == offers[rank]["boot"]:
            segment = _map(offer, size)
            if segment is not None:
                segments[peer] = segment
    return segments


def _map(offer: Mapping[str, Any], size: int) -> Segment | None:
    """Return the segment of another rank; None if the other rank's process is not visible from here."""
    number = open_memfd(offer["pid"], offer["number"])
    if number is None:
        return None
    try:
        if os.fstat(number).st_size != size:
            return None
        segment = Segment(number, size)
    finally:
        os.close(number)
    return segment if segment.nonce.hex() == offer["nonce"] else None

"""Bounds of shards and pieces of a bucket, and the ranks that share a host. Every rank computes the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Collection, Mapping

LINE = 64
"""Bytes of a cache line: no two ranks write to the same one."""


def shard_bounds(elements: int, ranks: int, itemsize: int) -> list[int]:
    step = max(LINE // itemsize, 1)
    lines = -(-elements // step)
    return [min(lines * rank // ranks * step, elements) for rank in range(ranks)] + [elements]


def pieces(elements: int, itemsize: int, limit: int) -> list[tuple[int, int]]:
    step = max(LINE // itemsize, 1)
    most = limit // itemsize // step * step
    count = max(-(-elements // most), 1)
    size = min(-(-elements // count // step) * step, most) if count > 1 else elements
    return [(start, min(start + size, elements)) for start in range(0, elements, size)] if elements else []


def find_hosts(mapped: Mapping[int, Collection[int]], fewest: int = 2) -> list[list[int]]:
    """Ranks of each host, from the ranks whose memory each rank has mapped, including itself.

    Some host must have `fewest` ranks. Raises a ValueError with the reason if no usable division exists.
    """
    hosts: list[list[int]] = []
    for rank in sorted(mapped):
        ranks = sorted(mapped[rank])
        if rank == ranks[0]:
            hosts.append(ranks)
        elif ranks not in hosts:
            raise ValueError(f"rank {rank} and the others of its host can't all map each other's memory")
    if sum(map(len, hosts)) != len(mapped):
        raise ValueError("not all ranks of a host can map each other's memory")
    sizes = {len(ranks) for ranks in hosts}
    if sizes == {1} and fewest > 1:
        raise ValueError("there is one rank on each host")
    if len(sizes) > 1:
        raise ValueError("the hosts have different numbers of ranks")
    return hosts

"""The time of collectives: in shared memory beside gloo, from 16 KB to 256 MB. Prints a table.

    ipexctl run --allreduce shared -n 2 examples/allreduce_bench.py             # this machine
    ipexctl run --allreduce shared -H hostfile --ppn 8 examples/allreduce_bench.py --largest 64

Two ways take turns: the call of a script, which `--allreduce shared` makes in shared memory, and that of the group's
gloo. With `--allreduce backend` both are gloo's, and the ratios show how much they differ by chance.
"""

from __future__ import annotations

import argparse
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SMALLEST, LARGEST = 16, 256
"""KB and MB of the whole tensor, in powers of two: 1 MB is 1,048,576 bytes."""
WARM_UP = 3
MOST, FEWEST = 60, 8
"""Calls of each way for a size: as many as fit into the seconds."""
Way = Callable[[], object]


def ways_of(size: int) -> dict[str, tuple[Way, Way]]:
    """Collective → the call of gloo and the call of a script."""
    ranks, gloo = dist.get_world_size(), dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    part = torch.full((size // 4 // ranks,), 1e-30)
    whole = part.repeat(ranks)
    return {
        "all_reduce": (lambda: gloo.allreduce([whole]).wait(), lambda: dist.all_reduce(whole)),
        "all_gather": (
            lambda: gloo._allgather_base(whole, part).wait(),
            lambda: dist.all_gather_into_tensor(whole, part),
        ),
        "reduce_scatter": (
            lambda: gloo._reduce_scatter_base(part, whole).wait(),
            lambda: dist.reduce_scatter_tensor(part, whole),
        ),
    }


def seconds_of(way: Way) -> float:
    """All ranks begin together."""
    dist.barrier()
    begun = time.perf_counter()
    way()
    return time.perf_counter() - begun


def exchange(ways: tuple[Way, Way], seconds: float) -> tuple[list[float], list[float]]:
    """The seconds of each way, in turns; of the slowest rank."""
    agreed = torch.tensor([[seconds_of(way) for way in ways] for _ in range(WARM_UP)][-1])
    dist.all_reduce(agreed, dist.ReduceOp.MAX)
    rounds = max(FEWEST, min(MOST, int(seconds / agreed.sum().item())))
    times = torch.tensor([[seconds_of(ways[(turn + at) % 2]) for turn in range(2)] for at in range(rounds)])
    times[1::2] = times[1::2].flip(1)  # every other round begins with the other way
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times[:, 0].tolist(), times[:, 1].tolist()


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smallest", type=int, default=SMALLEST, metavar="KB")
    parser.add_argument("--largest", type=int, default=LARGEST, metavar="MB")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each size (default: 3)")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    hosts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    first = dist.get_rank() == 0
    if first:
        way = os.environ.get("IPEXCTL_ALLREDUCE", "backend")
        print(f"{processor()}; {os.cpu_count()} CPUs; torch {torch.__version__}; {platform.release()}")
        count = f"{len(set(hosts))} host{'s' * (len(set(hosts)) > 1)}"
        print(f"{len(hosts)} ranks on {count}, {torch.get_num_threads()} threads each; --allreduce {way}")
        print(f"{'':14} {'size':>8} {'gloo ms':>10} {way + ' ms':>12} {'ratio':>7}", flush=True)
    size = options.smallest << 10
    while size <= options.largest << 20:
        for name, ways in ways_of(size).items():
            gloo, ours = exchange(ways, options.seconds / 3)
            if first:
                ratio = statistics.median(mine / other for mine, other in zip(ours, gloo, strict=True))
                shown = f"{size >> 20} MB" if size >> 20 else f"{size >> 10} KB"
                other, mine = statistics.median(gloo) * 1e3, statistics.median(ours) * 1e3
                print(f"{name:14} {shown:>8} {other:10.3f} {mine:12.3f} {ratio:7.2f}", flush=True)
        size *= 4
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""The all-reduce of one bucket on the ranks of one host, in turns: over gloo, and as the plan of the run says.

The second is what the hook of DDP calls for a bucket, and divides by the number of ranks, too. Rank 0 prints a line
`sizes` with a JSON object: bytes → a list of pairs of seconds, of the slower rank.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZES = (16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20, 25 << 20, 64 << 20, 256 << 20)
WARM_UP = 3
MOST, FEWEST = 80, 6


def planned() -> Callable[[torch.Tensor], None]:
    """The all-reduce of the plan: from the size on for which DDP takes it, else gloo's."""
    model = DistributedDataParallel(nn.Linear(256, 256))  # connects the ranks
    found = [module for name, module in sys.modules.items() if name.endswith("inrank.ddp")]
    if not found or found[0]._connected is None:
        raise SystemExit("the ranks do not add up in shared memory")
    ddp = found[0]
    factor = 1.0 / dist.get_world_size()

    def reduce(tensor: torch.Tensor) -> None:
        if tensor.nbytes < ddp.CROSSOVER:
            dist.all_reduce(tensor)
        else:
            link = ddp._connected.link
            future = link.all_reduce(model, tensor, factor)
            link.channel.finish()
            future.wait()

    return reduce


def seconds_of(reduce: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> float:
    dist.barrier()
    begun = time.perf_counter()
    reduce(tensor)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=0.8, help="of each size")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    ways = (dist.all_reduce, planned())
    found = {}
    for size in SIZES:
        tensor = torch.full((size // 4,), 1e-30)
        last = [seconds_of(way, tensor) for _ in range(WARM_UP) for way in ways][-2:]
        agreed = torch.tensor([sum(last)])
        dist.all_reduce(agreed, dist.ReduceOp.MAX)
        rounds = max(FEWEST, min(MOST, int(options.seconds / agreed.item())))
        times = torch.zeros(rounds, 2)
        for number in range(rounds):
            tensor.fill_(1e-30)
            for at in (0, 1) if number % 2 == 0 else (1, 0):
                times[number, at] = seconds_of(ways[at], tensor)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        found[size] = times.tolist()
    if dist.get_rank() == 0:
        print("sizes", json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

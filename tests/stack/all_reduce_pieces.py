"""Run by each of some ranks of one host: random tensors through a channel with few slots. Prints `right` at the end.

Ranks pause, wait for each other between two tensors as scripts do in hooks of their own, and give up some passes. The
sums are whole numbers, so that they are the same in any order.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

PASSES = 30
FACTOR = 2.0


def main() -> None:
    sys.path.insert(0, os.environ["PYTHONPATH"])  # the hooks are imported from there, and hide it
    channel_module: Any = importlib.import_module("ipexctl_inrank.channel")
    channel_module.PIECE, channel_module.SPACE, channel_module.WHOLE = 1 << 16, 1 << 18, 1 << 14
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    link = importlib.import_module("ipexctl_inrank.link").connect(store, rank, ranks, "pieces", "", 60.0, wire="fp32")
    channel = link.channel
    common, own = random.Random(38), random.Random(rank)
    for _ in range(PASSES):
        futures, sums = [], []
        for bucket in range(common.randint(1, 5)):
            dtype = common.choice([torch.float32, torch.float64, torch.int64])
            elements = common.choice([common.randint(1, 40), common.randint(1, 5000), common.randint(1, 300_000)])
            added = [common.randint(0, 100) for _ in range(ranks)]
            numbers = torch.arange(elements) % 7
            factor = FACTOR if dtype.is_floating_point else None
            futures.append(torch.futures.Future())
            time.sleep(own.choice([0, 0, 0.01]))
            channel.start(bucket, (numbers + added[rank]).to(dtype), factor, futures[-1])
            sums.append(((numbers * ranks + sum(added)) * int(factor or 1)).to(dtype))
            if common.random() < 0.4:
                dist.barrier()
        if common.random() < 0.1:
            for bucket in range(5):
                channel.discard(bucket)
            continue
        time.sleep(own.choice([0, 0, 0.01]))
        channel.finish()
        for future, expected in zip(futures, sums, strict=True):
            assert future.done()
            assert torch.equal(future.value(), expected)
    channel.finish()
    sys.stdout.write("right\n")
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # gloo's threads may abort an exit


if __name__ == "__main__":
    main()

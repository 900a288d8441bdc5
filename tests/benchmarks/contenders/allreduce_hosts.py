"""Steps with 25 MB of gradients over several hosts: their time, and the bytes that each host sends, in turns.

One model has a second process group of the same ranks, which is gloo's, the other DDP's own. Rank 0 prints a line
`turn` with a JSON list for each pair: seconds a step and bytes a step of a host, over gloo and as the plan says.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gradients import Products
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 3


def sent() -> int:
    """Bytes that this host has sent over its network, as the kernel counts them."""
    cards = [card for card in Path("/sys/class/net").iterdir() if card.name != "lo"]
    return sum(int((card / "statistics/tx_bytes").read_text()) for card in cards)


def steps(model: Any, count: int) -> tuple[float, float]:
    """Seconds a step, and bytes a step of this host."""
    number = torch.tensor(1.0 + dist.get_rank())

    def step() -> None:
        model.zero_grad()
        model(number).backward()

    return timed(step, count)


def timed(action: Any, count: int) -> tuple[float, float]:
    """Seconds a call, and bytes a call of this host."""
    dist.barrier()
    before, begun = sent(), time.perf_counter()
    for _ in range(count):
        action()
    seconds = time.perf_counter() - begun
    dist.barrier()
    return seconds / count, (sent() - before) / count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    groups = (dist.new_group(backend="gloo"), None)
    models = [DistributedDataParallel(Products(), process_group=group) for group in groups]
    if not any(name.endswith("inrank.ddp") and module._connected for name, module in sys.modules.items()):
        raise SystemExit("the ranks do not add up in shared memory")
    for model in models:
        steps(model, WARM_UP)
    for turn in range(options.turns):
        found = torch.zeros(2, 2, dtype=torch.float64)
        for at in (0, 1) if turn % 2 == 0 else (1, 0):
            found[at] = torch.tensor(steps(models[at], options.steps), dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)  # of the slowest rank, and of the host that sends most
        if dist.get_rank() == 0:
            print("turn", json.dumps(found.tolist()), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

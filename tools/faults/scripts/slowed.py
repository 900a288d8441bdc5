"""A training that is slowed: DDP over gloo, each rank on a core of its own, slowed on demand.

A rank looks before each step whether /tmp/slow-RANK is there: {"work": S} computes for so many seconds more in each
step, {"read": S} lets each batch of its data arrive so much later. The model has 1.6 million parameters, so that a step
moves 6 MB.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

WIDTH, HIDDEN, BATCH = 256, 1024, 192
RANK = int(os.environ["RANK"])
ORDERS = Path(f"/tmp/slow-{RANK}")


def ordered(name: str) -> float:
    """Seconds that were ordered; a file that is being written counts with the next step."""
    try:
        return float(json.loads(ORDERS.read_text()).get(name, 0.0))
    except (OSError, ValueError):
        return 0.0


class Samples(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[torch.Tensor]:
        random = torch.Generator().manual_seed(RANK)
        while True:
            if late := ordered("read"):
                time.sleep(late)  # as a file server that answers late
            yield from torch.randn(BATCH, WIDTH, generator=random).unbind()


def main() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[RANK % len(allowed)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH)
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    block = torch.randn(256, 256)
    for step, batch in enumerate(DataLoader(Samples(), batch_size=BATCH)):
        until = time.thread_time() + ordered("work")
        while time.thread_time() < until:
            block @ block
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if RANK == 0 and step % 50 == 0:
            print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()

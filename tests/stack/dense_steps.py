"""Steps of four dense layers with 26 MB of gradients, for some seconds: `dense_steps.py SECONDS BATCH`."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS = 1280, 4


def main() -> None:
    seconds, batch = float(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data, begun = torch.randn(batch, WIDTH), time.monotonic()
    is_over = torch.zeros(1)
    while not is_over:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        is_over.fill_(time.monotonic() - begun > seconds)
        dist.broadcast(is_over, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

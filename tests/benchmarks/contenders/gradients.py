"""Exchanges 25 MB of gradients in each step, with little to compute, until it is ended."""

from __future__ import annotations

from itertools import count

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PARAMETERS, NUMBERS = 10, 655_360
"""Ten of 2.5 MiB."""


class Products(nn.Module):
    """The sum of all parameters, each times a number: its gradients are that number."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(NUMBERS)) for _ in range(PARAMETERS))

    def forward(self, number: torch.Tensor) -> torch.Tensor:
        return torch.stack([part.sum() for part in self.parts]).sum() * number


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    network = Products()
    model = DistributedDataParallel(network, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-6)
    if rank == 0:
        size = sum(parameter.nbytes for parameter in network.parameters()) / 2**20
        print(f"ranks: {ranks}, threads: {torch.get_num_threads()}, {size:.0f} MiB of gradients", flush=True)
    for step in count(1):
        loss = model(torch.tensor(1.0 + rank))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()

"""The time in which ranks exchange gradients: in shared memory beside gloo, from 16 KB to 256 MB. Prints a table.

    ipexctl run --allreduce shared -n 2 examples/allreduce_bench.py             # this machine
    ipexctl run --allreduce shared -H hostfile --ppn 8 examples/allreduce_bench.py --largest 64

Two models take turns. Each is one parameter in DDP, whose gradient costs nothing to compute: a step is one copy of the
gradient into DDP's bucket and the all-reduce of the bucket. One model has DDP's own process group, for which
`--allreduce shared` adds up in shared memory; the other has a second group of the same ranks, which is always gloo's.
With `--allreduce backend` both are gloo, and the ratios show how much they differ by chance.
"""

from __future__ import annotations

import argparse
import os
import platform
import socket
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SMALLEST, LARGEST = 16, 256
"""KB and MB, in powers of two: 1 MB is 1,048,576 bytes."""
WARM_UP = 3
MOST, FEWEST = 60, 8
"""Steps of each model for a size: as many as fit into the seconds."""


class Free(torch.autograd.Function):
    """A loss whose gradient is there already."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.gradient = gradient
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        del grad
        return ctx.gradient, None


class OneParameter(nn.Module):
    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(numbers))
        self.gradient = torch.full((numbers,), 1.0 + dist.get_rank())

    def forward(self) -> torch.Tensor:
        return Free.apply(self.weight, self.gradient)  # type: ignore[no-any-return,no-untyped-call]


def in_ddp(size: int, group: Any = None) -> DistributedDataParallel:
    model = OneParameter(size // 4)
    megabytes = size / 2**20 + 1  # one bucket, also for the largest
    return DistributedDataParallel(
        model,
        process_group=group,
        bucket_cap_mb=megabytes,
        gradient_as_bucket_view=True,  # type: ignore[arg-type]
    )


def step(model: DistributedDataParallel) -> float:
    """Seconds from the loss to the averaged gradient; all ranks begin together."""
    model.module.weight.grad = None
    loss = model()
    dist.barrier()
    begun = time.perf_counter()
    loss.backward()
    return time.perf_counter() - begun


def exchange(size: int, group: Any, seconds: float) -> tuple[list[float], list[float]]:
    """The seconds of each step over gloo and of the plan's own way, in turns; of the slowest rank."""
    ours = in_ddp(size)
    models = (in_ddp(size, group), ours)
    mean = (dist.get_world_size() + 1) / 2
    for model in models:
        for _ in range(WARM_UP):
            last = step(model)
        if not torch.allclose(model.module.weight.grad, torch.tensor(mean)):
            raise SystemExit(f"rank {dist.get_rank()}: the mean of the gradients is wrong for {size} bytes")
    agreed = torch.tensor([last])
    dist.all_reduce(agreed, dist.ReduceOp.MAX)
    rounds = max(FEWEST, min(MOST, int(seconds / 2 / agreed.item())))
    times = torch.tensor([[step(models[(turn + at) % 2]) for turn in range(2)] for at in range(rounds)])
    times[1::2] = times[1::2].flip(1)  # every other round begins with the other model
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
    in_ddp(1 << 20)  # ipexctl says on stderr whether the ranks share memory
    group = dist.new_group(backend="gloo")
    hosts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    first = dist.get_rank() == 0
    if first:
        way = os.environ.get("IPEXCTL_ALLREDUCE", "backend")
        print(f"{processor()}; {os.cpu_count()} CPUs; torch {torch.__version__}; {platform.release()}")
        count = f"{len(set(hosts))} host{'s' * (len(set(hosts)) > 1)}"
        print(f"{len(hosts)} ranks on {count}, {torch.get_num_threads()} threads each; --allreduce {way}")
        print(f"{'size':>8} {'gloo ms':>10} {way + ' ms':>12} {'ratio':>7}", flush=True)
    size = options.smallest << 10
    while size <= options.largest << 20:
        gloo, ours = exchange(size, group, options.seconds)
        if first:
            ratio = statistics.median(mine / other for mine, other in zip(ours, gloo, strict=True))
            shown = f"{size >> 20} MB" if size >> 20 else f"{size >> 10} KB"
            other, mine = statistics.median(gloo) * 1e3, statistics.median(ours) * 1e3
            print(f"{shown:>8} {other:10.3f} {mine:12.3f} {ratio:7.2f}", flush=True)
        size *= 4
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A training that does little but exchange 6 MB of gradients in three buckets, until it is told to end.

    exchange.py DIRECTORY FAULT VICTIM STEP

All ranks end after the step in which rank 0 finds `DIRECTORY/enough`: its gradients tell the others. At that step, the
victim raises an exception in its forward or its backward pass, or ends itself with code 3, if that is the fault.
"""

from __future__ import annotations

import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any

begun = threading.Event()


def say_that_it_begins() -> None:
    """A supervisor that waits for output is not to take a slow import for a hang."""
    while not begun.wait(1.0):
        print("not begun", flush=True)


if __name__ == "__main__":
    threading.Thread(target=say_that_it_begins, daemon=True).start()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

NUMBERS = 512 << 10
LAST = 1000.0
"""A number for gradients of rank 0 that is seen in their mean."""
EVERY = 50
WARM_UP = 5
"""Steps after which DDP has its final buckets, which ranks tell one another over gloo."""


class Products(nn.Module):  # type: ignore[misc]  # no torch where mypy runs
    """The sum of all parameters, each times a number: its gradients are that number."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(NUMBERS)) for _ in range(3))

    def forward(self, number: Any) -> Any:
        return torch.stack([part.sum() for part in self.parts]).sum() * number


def main() -> None:
    directory, fault, victim, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    network = Products()
    model = DistributedDataParallel(network, bucket_cap_mb=2)
    is_due = False

    def hook(gradient: Any) -> None:
        if is_due and fault == "raise-backward":
            raise ValueError("raised in the backward pass")

    network.parts[1].register_hook(hook)
    for step in count(1):
        is_due = rank == victim and step == last
        model.zero_grad()
        is_last = rank == 0 and step > WARM_UP and (directory / "enough").exists()
        loss = model(torch.tensor(LAST if is_last else 1.0))
        if is_due and fault == "raise-forward":
            raise ValueError("raised in the forward pass")
        if is_due and fault == "exit":
            sys.exit(3)
        loss.backward()
        mean = float(network.parts[0].grad[0])
        if step % EVERY == 0 or step == WARM_UP:
            begun.set()
            print("step", step, flush=True)
        if mean > LAST / 100:
            break
    print("ended after step", step, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

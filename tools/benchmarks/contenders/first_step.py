"""One step of a small training under any launcher; rank 0 says how long each part of it took.

A plain mpirun sets the variables of its own; torch wants other names.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise

for name, other in (("RANK", "PMI_RANK"), ("WORLD_SIZE", "PMI_SIZE")):
    os.environ.setdefault(name, os.environ.get(other, ""))
rank = os.environ["RANK"]
os.write(1, f"first line of rank {rank}\n".encode())
marks = [time.monotonic()]


def mark() -> None:
    marks.append(time.monotonic())


import torch  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

mark()
torch.distributed.init_process_group("gloo")
mark()
batches = DataLoader(TensorDataset(torch.randn(256, 64), torch.randn(256, 1)), batch_size=32)
features, labels = next(iter(batches))
mark()
model = DistributedDataParallel(torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.nn.functional.mse_loss(model(features), labels).backward()
optimizer.step()
mark()
if rank == "0":
    took = [round(after - before, 4) for before, after in pairwise(marks)]
    os.write(1, f"rank 0 took {took}\n".encode())
torch.distributed.barrier()  # else the group of one may go while the other still has messages in it
torch.distributed.destroy_process_group()

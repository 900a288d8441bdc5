"""Run by each rank of a profiled run: trains a little and prints a hash of all its losses.

profile_script.py plain | workers | own | own-live | ended | live | fsdp1 | fsdp2 [EPOCHS]
"""

from __future__ import annotations

import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WAY, EPOCHS = sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 2
IS_LIVE = WAY.endswith("live")
torch.manual_seed(0)
has_group = int(os.environ.get("WORLD_SIZE", "1")) > 1
if has_group:
    dist.init_process_group("gloo")
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
model = torch.nn.Sequential(layer, torch.nn.Linear(64, 4))
trained: torch.nn.Module
if WAY == "fsdp1":
    trained = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
elif WAY == "fsdp2":
    trained = fully_shard(model)
else:
    trained = DistributedDataParallel(model) if has_group else model
data = TensorDataset(torch.randn(96, 16, 64), torch.randint(0, 4, (96, 16)))
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2 * (WAY == "workers"))
optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
losses: list[float] = []
profiler = torch.profiler.profile() if WAY.startswith("own") else None
for _ in range(EPOCHS):
    for inputs, target in loader:
        if profiler is not None and len(losses) == 6:
            profiler.start()
        loss = torch.nn.functional.cross_entropy(trained(inputs).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if IS_LIVE:
            time.sleep(0.03)
            if len(losses) == 20:
                print("it trains", flush=True)
        if WAY == "ended" and len(losses) == 7:
            raise SystemExit(3)
if profiler is not None:
    profiler.stop()
    print("its own profile:", any(event.key == "aten::addmm" for event in profiler.key_averages()))
print("losses", hashlib.sha256(repr(losses).encode()).hexdigest(), flush=True)
if has_group:
    dist.destroy_process_group()

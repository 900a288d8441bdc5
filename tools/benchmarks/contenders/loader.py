"""An epoch with four forked loader workers, on one rank: prints its seconds, and the memory of all five processes.

Memory is their proportional share (PSS), so pages that the workers still share with the rank count once.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset

SAMPLES, WIDTH, BATCH, WORKERS = 8192, 2048, 64, 4


class Samples(Dataset):  # type: ignore[misc]  # no torch where mypy runs
    """In the memory of the rank, as many users have them; a worker makes a sample of it."""

    def __init__(self) -> None:
        self.all = torch.randn(SAMPLES, WIDTH)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, at: int) -> Any:
        return self.all[at].roll(at).mul(0.5)


def megabytes(pids: list[int]) -> float:
    shares = [re.search(r"^Pss: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M) for pid in pids]
    return sum(int(share[1]) for share in shares if share) / 1000


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(Samples(), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    for _ in range(2):  # the first starts the workers
        began = time.perf_counter()
        for batch in loader:
            optimizer.zero_grad()
            mse_loss(model(batch), batch).backward()
            optimizer.step()
        seconds = time.perf_counter() - began
    own = Path("/proc/self")
    children = [int(word) for path in own.glob("task/*/children") for word in path.read_text().split()]
    print(json.dumps({"seconds": seconds, "megabytes": megabytes([int(own.resolve().name), *children])}), flush=True)


if __name__ == "__main__":
    main()

"""What the evidence of a wrong training adds to the processor time of a small step, in percent; medians of rounds with
and without it in turns.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

STEPS, ROUNDS, WIDTH = 100, 40, 256


def main() -> None:
    torch.set_num_threads(1)
    own: Any = sys.modules["ipexctl_inrank.meter"].meter()
    loader = DataLoader(TensorDataset(torch.randn(STEPS * 32, WIDTH)), batch_size=32)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters())
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * ROUNDS):
        is_on = own.evidence.is_on = number % 2 == 0
        begun = time.process_time()
        for (batch,) in loader:
            optimizer.zero_grad()
            (model(batch) - batch).square().mean().backward()
            optimizer.step()
        times[is_on].append((time.process_time() - begun) / STEPS)
    assert own.is_on
    assert own.evidence.fields["backwards"] > STEPS * ROUNDS // 2
    print((median(times[True]) / median(times[False]) - 1) * 100)


main()

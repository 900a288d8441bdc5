"""Microseconds of processor time of an optimizer's step without work, with a batch of a DataLoader.

The first argument: nanoseconds between two records of the step meter at least; 0 for one with each step.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader

STEPS, ROUNDS = 2000, 9


def main() -> None:
    meter: Any = sys.modules.get("ipexctl_inrank.meter")
    if meter is not None:
        meter.INTERVAL = int(sys.argv[1])
    batch = torch.zeros(8, 2)
    loader = DataLoader(range(STEPS), batch_size=1, collate_fn=lambda _: batch)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))])
    times = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in loader:
            optimizer.step()
        times.append((time.process_time() - begun) / STEPS * 1e6)
    if meter is not None:
        own = meter.meter()
        assert own.is_on
        assert own.counter.steps == STEPS * ROUNDS
    print(sorted(times)[ROUNDS // 2])


main()

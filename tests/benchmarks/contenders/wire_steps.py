"""Steps with 25 MB of gradients over several hosts, as DDP sends them and in fewer bytes, in turns.

Each contender is a model with a process group of its own: DDP as it is, and with torch's bf16 hook, as under torchrun;
and one whose group is that of the run, which has `--wire`. Rank 0 prints a line `turn` with JSON: contender → seconds a
step, and bytes a step of the host that sends most. A `sum` is an all-reduce alone. torch's PowerSGD hook is no
contender: with torch 2.13 over gloo it hangs at the third or fourth step of many trainings, and its batched one fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from allreduce_hosts import steps, timed
from gradients import Products
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 4
NUMBERS = 25 * (1 << 20) // 4


def halved(group, bucket):  # type: ignore[no-untyped-def]  # DDP takes no annotations that are strings
    """torch's own hook, which DDP refuses on CPUs by its name."""
    return default_hooks.bf16_compress_hook(group, bucket)


def model_of(name: str) -> Any:
    if name == "ours":
        return DistributedDataParallel(Products())
    group = dist.new_group(backend="gloo")
    model = DistributedDataParallel(Products(), process_group=group)
    if name == "bf16 hook":
        model.register_comm_hook(group, halved)
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    actions: dict[str, Any] = {}
    for name in ("gloo", "bf16 hook", "ours"):
        actions[name] = partial(steps, model_of(name))
    modules = [module for name, module in sys.modules.items() if name.endswith("inrank.ddp")]
    if not modules or modules[0]._connected is None or modules[0]._connected.link.between.codec is None:
        raise SystemExit("gradients do not go in fewer bytes")
    link, values, lost = modules[0]._connected.link, torch.randn(NUMBERS), {}

    def add_up() -> None:
        link.all_reduce(link, values, 0.5, lost)
        link.channel.finish()

    actions["sum by gloo"] = partial(timed, lambda: dist.all_reduce(values))
    actions["sum by ours"] = partial(timed, add_up)
    for action in actions.values():
        action(WARM_UP)
    names = list(actions)
    for turn in range(options.turns):
        found = torch.zeros(len(names), 2, dtype=torch.float64)
        for place in range(len(names)):
            at = (place + turn) % len(names)
            values.normal_()
            found[at] = torch.tensor(actions[names[at]](options.steps), dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)  # of the slowest rank, and of the host that sends most
        if dist.get_rank() == 0:
            print("turn", json.dumps(dict(zip(names, found.tolist(), strict=True))), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

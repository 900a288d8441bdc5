"""Trains four steps on a batch that all ranks share, and says where it ran and where its memory lies. Its
argument: MiB that it holds beside the model."""

import collections
import json
import os
import re
import sys

import torch
import torch.distributed as dist


def status_of(task: str) -> dict[str, str]:
    with open(f"{task}/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def anonymous_memory() -> dict[str, int]:
    """NUMA node -> MiB."""
    pages: collections.Counter[str] = collections.Counter()
    with open("/proc/self/numa_maps") as file:
        for line in file:
            if "file=" not in line:
                pages.update({node: int(count) for node, count in re.findall(r" N(\d+)=(\d+)", line)})
    return {node: count >> 8 for node, count in pages.items()}


def main() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    touched = torch.ones(int(sys.argv[1]) << 20, dtype=torch.uint8)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    trained = torch.nn.parallel.DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(trained.parameters(), 0.1)
    samples, labels = torch.randn(240, 64), torch.randint(0, 10, (240,))
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(trained(samples[rank::world]), labels[rank::world])
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        if world > 1:
            dist.all_reduce(total)
        losses.append(total.item() / world)
    own, tasks = status_of("/proc/self"), os.listdir("/proc/self/task")
    said = {
        "rank": rank,
        "losses": losses,
        "cpus": own["Cpus_allowed_list"],
        "mems": own["Mems_allowed_list"],
        "threads": sorted({status_of(f"/proc/self/task/{task}")["Cpus_allowed_list"] for task in tasks}),
        "omp": torch.get_num_threads(),
        "memory": anonymous_memory(),
        "touched": len(touched) >> 20,
    }
    print(json.dumps(said), flush=True)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


main()

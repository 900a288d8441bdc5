"""Scripts of ranks that train models with frozen parameters under DDP: `share_weights_cases.py CASE…`, or `all`.

Each case prints a line of JSON on each rank: {"case": its name, "digest": of all parameters and losses after some
steps, "parameters": of the parameters alone, "mapped": bytes of frozen parameters that this rank shares with the
others of its host}. The digests of a case must be the same with --share-weights auto and off. `sleep` says `mapped`
once it shares, and then waits to be killed; `attacked` is a case while somebody writes into the ranks' store, which
the second host reads late.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, STEPS = 512, 4, 3
SIZE = LAYERS * 4 * WIDTH * WIDTH
"""Bytes of the frozen matrices."""


class Net(torch.nn.Module):  # type: ignore[misc]  # no torch where mypy runs
    def __init__(self, dtype: Any = torch.float32) -> None:
        super().__init__()
        self.base = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(LAYERS))
        self.adapter = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH // 64) for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH // 64, WIDTH)
        self.base.requires_grad_(False)

    def forward(self, data: Any) -> Any:
        for base, adapter in zip(self.base, self.adapter, strict=True):
            hidden = torch.tanh(base(data.to(base.weight.dtype))).float()
            data = hidden + self.head(adapter(data))
        return data


def make(seed: int = 7, dtype: Any = torch.float32) -> Any:
    torch.manual_seed(seed)
    return Net(dtype)


def train(model: Any, steps: int = STEPS, first: int = 0, data: Callable[[int], Any] | None = None) -> list[float]:
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.05)
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = model(data(step) if data else data_of(step)).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def data_of(step: int, *shape: int) -> Any:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(*(shape or (8, WIDTH)), generator=generator)


def trained(model: Any, **options: Any) -> tuple[Any, list[float]]:
    return model, train(DistributedDataParallel(model), **options)


def another_seed_on_each_rank() -> Any:
    return trained(make(dist.get_rank()))


def one_matrix_differs() -> Any:
    model = make()
    model.base[1].weight.data[3, 3] += dist.get_rank()
    return trained(model)


def not_a_number() -> Any:
    model = make()
    model.base[1].bias.data[0] = float("nan") if dist.get_rank() else -float("nan")
    model.base[2].weight.data[0, 0] = float("nan")
    DistributedDataParallel(model)
    return model, []


def frozen_view_of_a_trained_matrix() -> Any:
    model = make()
    model.base[0].weight.requires_grad_(True)
    model.base[1].weight.data = model.base[0].weight.data
    return trained(model)


def tied() -> Any:
    model = make()
    model.base[3].weight = model.base[2].weight
    return trained(model)


def other_strides() -> Any:
    model = make()
    model.base[0].weight.data = model.base[0].weight.data.t().contiguous().t()
    model.base[2].weight.data = torch.cat([model.base[2].weight.data] * 2)[::2]
    return trained(model)


class Images(torch.nn.Module):  # type: ignore[misc]
    """A frozen trunk with statistics."""

    def __init__(self) -> None:
        super().__init__()
        layers = [torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.Conv2d(64, 256, 3)]
        self.trunk = torch.nn.Sequential(*layers, torch.nn.Conv2d(256, 128, 3)).to(memory_format=torch.channels_last)
        self.trunk.requires_grad_(False)
        self.head = torch.nn.Linear(128, 8)

    def forward(self, data: Any) -> Any:
        return self.head(self.trunk(data).mean((2, 3)))


def frozen_trunk() -> Any:
    torch.manual_seed(dist.get_rank())
    return trained(Images(), data=lambda step: data_of(step, 4, 64, 8, 8))


def thawed_later() -> Any:
    model, losses = trained(make())
    model.base.requires_grad_(True)
    losses += train(DistributedDataParallel(model), first=STEPS)
    model.base[:2].requires_grad_(False)
    return model, losses + train(DistributedDataParallel(model), first=2 * STEPS)


def thawed_under_ddp() -> Any:
    """Their gradients are not added up then, so the ranks differ, as without ipexctl."""
    model = make()
    wrapped = DistributedDataParallel(model)
    losses = train(wrapped)
    model.base.requires_grad_(True)
    return model, losses + train(wrapped, first=STEPS)


def from_a_file() -> Any:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "base.pt"
        torch.save(make().base.state_dict(), path)
        model = make(9)
        model.base.load_state_dict(torch.load(path, mmap=True), assign=True)
        model.base.requires_grad_(False)
        before = [each.data_ptr() for each in model.base.parameters()]
        model.to(f"cpu:{dist.get_rank()}")
        losses = train(DistributedDataParallel(model))
        is_moved = before != [each.data_ptr() for each in model.base.parameters()]
        if os.environ.get("IPEXCTL_SHARE_WEIGHTS") and is_moved:
            raise AssertionError("a mapped parameter was copied")
        return model, losses


def own_writes() -> Any:
    """As merging an adapter into its base does."""
    model, losses = trained(make())
    with torch.no_grad():
        model.base[0].weight.add_(dist.get_rank() + 1)
    dist.barrier()
    return model, losses


def other_parts_frozen_on_each_rank() -> Any:
    model = make()
    model.base[dist.get_rank() % 2].weight.requires_grad_(True)
    return trained(model)


def first_two_ranks() -> Any:
    group = dist.new_group([0, 1])
    model = make(dist.get_rank())
    if dist.get_rank() > 1:
        return model, []
    return model, train(DistributedDataParallel(model, process_group=group))


def uneven_inputs() -> Any:
    model = make(dist.get_rank())
    wrapped = DistributedDataParallel(model)
    with Join([wrapped]):
        losses = train(wrapped, STEPS + dist.get_rank())
    return model, losses


def compiled() -> Any:
    model = make()
    wrapped = torch.compile(DistributedDataParallel(model), backend="eager")
    return model, train(wrapped)


CASES: dict[str, Callable[[], tuple[Any, list[float]]]] = {
    "frozen base": lambda: trained(make()),
    "bf16 base": lambda: trained(make(dtype=torch.bfloat16)),
    "nothing frozen": lambda: trained(make().requires_grad_(True)),
    "static graph": lambda: (lambda model: (model, train(DistributedDataParallel(model, static_graph=True))))(make()),
    "no first sync": lambda: (lambda model: (model, train(DistributedDataParallel(model, init_sync=False))))(make()),
    **{
        case.__name__.replace("_", " "): case
        for case in (
            *(another_seed_on_each_rank, one_matrix_differs, not_a_number, frozen_view_of_a_trained_matrix, tied),
            *(other_strides, frozen_trunk, thawed_later, thawed_under_ddp, from_a_file, own_writes),
            *(other_parts_frozen_on_each_rank, first_two_ranks, uneven_inputs, compiled),
        )
    },
}


def digest(model: Any, losses: list[float]) -> str:
    state = [each.detach().contiguous().reshape(-1).view(torch.uint8) for each in model.state_dict().values()]
    return hashlib.sha1(b"".join(bytes(each.tolist()) for each in state) + repr(losses).encode()).hexdigest()


def mapped() -> int:
    found = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:ipexctl-weights" in line:
            first, _, last = line.split()[0].partition("-")
            found += int(last, 16) - int(first, 16)
    return found


def read_late() -> None:
    sys.path.insert(0, os.environ["PYTHONPATH"].partition(":")[0])
    shared_allreduce: Any = importlib.import_module("ipexctl_inrank.shared_allreduce")
    rounds: Any = importlib.import_module("ipexctl_inrank.agreement")
    shared_allreduce.BUILDING = 4.0
    read = rounds.Round._read

    def read_after_a_while(self: Any, key: str) -> Any:
        time.sleep(0.4)
        return read(self, key)

    if 2 * dist.get_rank() >= dist.get_world_size():
        rounds.Round._read = read_after_a_while


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    if sys.argv[1] == "sleep":
        model = DistributedDataParallel(make())
        sys.stdout.write(f"mapped {mapped()}\n")
        time.sleep(600 * bool(model))
    if sys.argv[1] == "attacked":
        read_late()
        sys.argv[1] = "another seed on each rank"
    for name in [*CASES] if sys.argv[1] == "all" else sys.argv[1:]:
        model, losses = CASES[name]()
        row = {"case": name, "rank": dist.get_rank(), "digest": digest(model, losses), "mapped": mapped()}
        row["parameters"] = digest(model, [])
        sys.stdout.write(f"{json.dumps(row)}\n")
        sys.stdout.flush()
        del model
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

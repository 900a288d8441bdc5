"""Run by each of two ranks: ways to train with DDP, one line of JSON each with what came of it.

    {"case": its name, "digest": of all parameters after some steps, "buckets": those added up in shared memory}

The digests of a case must be equal with gloo and with shared memory, as two ranks have the same bits there.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WIDTH = 300
STEPS = 3


class Net(torch.nn.Module):  # type: ignore[misc]  # no torch where mypy runs
    """About 400,000 parameters; the second layer takes no part in odd steps if `skips` is set."""

    def __init__(self, skips: bool = False, sparse: bool = False, width: int = WIDTH) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, width)
        self.second = torch.nn.Linear(width, width)
        self.third = torch.nn.Linear(width, 1001)
        self.table = torch.nn.Embedding(10, 64, sparse=sparse)
        self.skips = skips
        self.count = 0

    def forward(self, data: Any) -> Any:
        self.count += 1
        hidden = torch.relu(self.first(data + self.table(torch.arange(data.shape[0]) % 10).to(data.dtype)))
        if not (self.skips and self.count % 2):
            hidden = torch.relu(self.second(hidden))
        return self.third(hidden)


def make(dtype: Any = torch.float32, **kwargs: Any) -> Any:
    torch.manual_seed(7)
    return Net(**kwargs).to(dtype)


def data_of(step: int, dtype: Any = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(8, 64, generator=generator).to(dtype)


def train(model: Any, steps: int = STEPS, dtype: Any = torch.float32, accumulate: bool = False) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad()
        if accumulate:
            with model.no_sync():
                model(data_of(step + 50, dtype)).float().pow(2).mean().backward()
        model(data_of(step, dtype)).float().pow(2).mean().backward()
        optimizer.step()
    return model


def digest(*models: Any) -> str:
    parts = [p.detach().contiguous().view(torch.uint8).numpy().tobytes() for m in models for p in m.parameters()]
    return hashlib.sha1(b"".join(parts)).hexdigest()


def dtype_case(dtype: Any) -> Any:
    return train(DistributedDataParallel(make(dtype)), dtype=dtype)


def two_models() -> Any:
    one, two = DistributedDataParallel(make()), DistributedDataParallel(make(width=201))
    optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        (one(data_of(step)) + two(data_of(step + 9))).pow(2).mean().backward()
        optimizer.step()
    return torch.nn.ModuleList([one, two])


def built_anew() -> Any:
    for _ in range(4):
        model = train(DistributedDataParallel(make()), 1)
    return model


def late_hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP takes no annotations that are strings
    """Twice the mean."""
    tensor = bucket.buffer().div_(dist.get_world_size()).mul_(2)
    return dist.all_reduce(tensor, async_op=True).get_future().then(lambda future: future.value()[0])


def hook_registered(when: str) -> Any:
    model = DistributedDataParallel(make())
    if when == "later":
        model(data_of(0)).sum()
    if when == "builtin":
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    else:
        model.register_comm_hook(None, late_hook)
        try:
            model.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
        except RuntimeError as error:
            assert "only be called once" in str(error)
        else:
            raise AssertionError("a second hook was taken")
    return train(model)


def uneven(divide_by_initial_world_size: bool) -> Any:
    model = DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Join([model], divide_by_initial_world_size=divide_by_initial_world_size):
        for step in range(2 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            model(data_of(step)).pow(2).mean().backward()
            optimizer.step()
    return model


class Rows(Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        return torch.full((64,), float(index * (1 + dist.get_rank()) if dist.is_initialized() else index))


def with_workers(method: str) -> Any:
    model = DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    train(model, 1)
    for rows in DataLoader(Rows(), batch_size=8, num_workers=2, multiprocessing_context=method):
        optimizer.zero_grad()
        model(rows).pow(2).mean().backward()
        optimizer.step()
    return model


def raised_between() -> Any:
    """All ranks lose a step halfway through backward, and go on, as scripts that run out of memory do."""
    model = DistributedDataParallel(make(), bucket_cap_mb=0.3)
    train(model, 2)
    with contextlib.suppress(RuntimeError):
        model(torch.zeros(8, 63))
    return train(model)


def copied() -> Any:
    model = DistributedDataParallel(make())
    train(model, 1)
    return train(copy.deepcopy(model), 1)


def compiled(backend: str) -> Any:
    return train(torch.compile(DistributedDataParallel(make()), backend=backend))


def compiled_inside(backend: str) -> Any:
    return train(DistributedDataParallel(torch.compile(make(), backend=backend)))


def without_a_name() -> Any:
    """Of a torch that has dropped what the hook needs."""
    name = "_match_all_reduce_for_bwd_pass"
    method = getattr(DistributedDataParallel, name)
    delattr(DistributedDataParallel, name)
    try:
        model = DistributedDataParallel(make())
    finally:
        setattr(DistributedDataParallel, name, method)
    return train(model)


def in_subgroup() -> Any:
    return train(DistributedDataParallel(make(), process_group=dist.new_group([0, 1])))


def group_made_anew() -> Any:
    train(DistributedDataParallel(make()), 1)
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=2)
    return train(DistributedDataParallel(make()))


CASES: dict[str, Callable[[], Any]] = {
    "float32": lambda: dtype_case(torch.float32),
    "float64": lambda: dtype_case(torch.float64),
    "bfloat16": lambda: dtype_case(torch.bfloat16),
    "float16": lambda: dtype_case(torch.float16),
    "wide": lambda: train(DistributedDataParallel(make(width=2100)), 2),
    "small buckets": lambda: train(DistributedDataParallel(make(), bucket_cap_mb=0.05)),
    "no_sync": lambda: train(DistributedDataParallel(make()), accumulate=True),
    "unused": lambda: train(DistributedDataParallel(make(skips=True), find_unused_parameters=True)),
    "static": lambda: train(DistributedDataParallel(make(), static_graph=True)),
    "views": lambda: train(DistributedDataParallel(make(), gradient_as_bucket_view=True)),
    "two models": two_models,
    "anew": built_anew,
    "hook": lambda: hook_registered("at once"),
    "hook later": lambda: hook_registered("later"),
    "builtin hook": lambda: hook_registered("builtin"),
    "join": lambda: uneven(True),
    "join, other divisor": lambda: uneven(False),
    "fork": lambda: with_workers("fork"),
    "spawn": lambda: with_workers("spawn"),
    "raised": raised_between,
    "copied": copied,
    "compiled": lambda: compiled("aot_eager"),
    "compiled inside": lambda: compiled_inside("aot_eager"),
    "sparse": lambda: train(DistributedDataParallel(make(sparse=True))),
    "name missing": without_a_name,
    "subgroup": in_subgroup,
    "small model": lambda: train(DistributedDataParallel(torch.nn.Linear(64, 8))),  # less than 4 KB
    "group anew": group_made_anew,
}

CASES_BY_NAME: dict[str, Callable[[], Any]] = {
    **CASES,
    "inductor": lambda: compiled("inductor"),
    "inductor inside": lambda: compiled_inside("inductor"),
}
"""Those that are also called by their name alone, as they need g++ and take minutes."""


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    for name in sys.argv[1:] or CASES:
        before = buckets()
        after = digest(CASES_BY_NAME[name]())
        line = json.dumps({"case": name, "digest": after, "buckets": buckets() - before})
        sys.stdout.write(f"{line}\n")  # in one write: the ranks share a pipe
        sys.stdout.flush()
    dist.destroy_process_group()


def buckets() -> int:
    """Those that this rank has added up in shared memory so far."""
    return int(getattr(sys.modules.get("ipexctl_inrank.link"), "buckets", 0))


if __name__ == "__main__":
    main()

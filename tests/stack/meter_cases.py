"""Run by each of two ranks: ways to train with torch, one line of JSON each with what the step meter has counted.

    {"case": its name, "steps": N, "samples": N, "unknown": bits, "is_on": whether the meter is still there}

A case takes STEPS steps of its optimizer, with a batch of BATCH samples each, unless its name says otherwise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

STEPS, BATCH = 6, 4


class Stream(IterableDataset):  # type: ignore[misc]  # no torch where mypy runs
    """Whole batches, which the loader gives as they are."""

    def __iter__(self) -> Iterator[Any]:
        return (torch.ones(BATCH, 8) for _ in range(STEPS))


def loader_of(steps: int = STEPS, **kwargs: Any) -> Any:
    return DataLoader(TensorDataset(torch.ones(steps * BATCH, 8)), batch_size=BATCH, **kwargs)


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


def adam(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(model: Any, loader: Any, optimizer: Any = None) -> None:
    optimizer = optimizer or adam(model)
    for batch in loader:
        data = batch[0] if isinstance(batch, list) else batch
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()


def ddp() -> None:
    train(DistributedDataParallel(net()), loader_of())


def workers() -> None:
    train(net(), loader_of(num_workers=2))


def persistent_workers_and_two_epochs() -> None:
    model, loader = net(), loader_of(STEPS // 2, num_workers=1, persistent_workers=True)
    optimizer = adam(model)
    train(model, loader, optimizer)
    train(model, loader, optimizer)


def accumulation_of_two() -> None:
    model = DistributedDataParallel(net())
    optimizer = adam(model)
    for number, (data,) in enumerate(loader_of(2 * STEPS)):
        model(data).sum().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def evaluation_between() -> None:
    model = net()
    optimizer = adam(model)
    for _ in range(2):
        train(model, loader_of(STEPS // 2), optimizer)
        with torch.no_grad():
            for (data,) in loader_of(5):
                model(data)


def several_optimizers() -> None:
    first, second = net(), net()
    one, two = adam(first), torch.optim.SGD(second.parameters(), lr=1e-3)
    for (data,) in loader_of():
        (first(data) + second(data)).sum().backward()
        one.step()
        two.step()


def closure() -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for (data,) in loader_of():

        def loss(data: Any = data) -> Any:
            optimizer.zero_grad()
            value = (model(data) ** 2).sum()
            value.backward()
            return value

        optimizer.step(loss)


def amp_bf16() -> None:
    model = net()
    optimizer = adam(model)
    for (data,) in loader_of():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(data).sum()
        loss.backward()
        optimizer.step()


def amp_with_scaler() -> None:
    model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = adam(model)
    for (data,) in loader_of():
        scaler.scale(model(data).sum()).backward()
        scaler.step(optimizer)
        scaler.update()


def amp_with_one_skipped_step() -> None:
    """The gradient of the first batch overflows: the scaler takes no step."""
    model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = adam(model)
    for number, (data,) in enumerate(loader_of(STEPS + 1)):
        optimizer.zero_grad()
        scaler.scale(model(data).sum() * (float("inf") if not number else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()


def compiled_model() -> None:
    train(torch.compile(net(), backend="aot_eager"), loader_of())


def compiled_ddp() -> None:
    train(torch.compile(DistributedDataParallel(net()), backend="aot_eager"), loader_of())


def compiled_step() -> None:
    """It is not counted, and must not break."""
    model = net()
    optimizer = adam(model)
    step = torch.compile(optimizer.step, backend="aot_eager")
    for (data,) in loader_of():
        optimizer.zero_grad()
        model(data).sum().backward()
        step()


def fsdp() -> None:
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model)
    train(model, loader_of())


def stream_without_batches() -> None:
    train(net(), DataLoader(Stream(), batch_size=None))


def without_loader() -> None:
    train(net(), [[torch.ones(BATCH, 8)]] * STEPS)


def fused_and_foreach() -> None:
    model = net()
    train(model, loader_of(STEPS // 2), torch.optim.AdamW(model.parameters(), fused=True))
    train(model, loader_of(STEPS // 2), torch.optim.AdamW(model.parameters(), foreach=True))


CASES = (
    ddp,
    workers,
    persistent_workers_and_two_epochs,
    accumulation_of_two,
    evaluation_between,
    several_optimizers,
    closure,
    amp_bf16,
    amp_with_scaler,
    amp_with_one_skipped_step,
    compiled_model,
    compiled_ddp,
    compiled_step,
    fsdp,
    stream_without_batches,
    without_loader,
    fused_and_foreach,
)


def main() -> None:
    dist.init_process_group("gloo")
    own = sys.modules["ipexctl_inrank.meter"].meter()
    write, seen = own._write, [0]

    def write_and_note(now: int) -> None:
        seen[0] |= own.counter.flags  # a record clears them
        write(now)

    own._write = write_and_note
    for case in CASES:
        counter = own.counter = type(own.counter)()
        seen[0] = 0
        case()
        unknown = seen[0] | counter.flags  # also those that no record has yet
        row = {"steps": counter.steps, "samples": counter.samples, "unknown": unknown, "is_on": own.is_on}
        print(json.dumps({"case": case.__name__, **row}), flush=True)
    dist.destroy_process_group()


main()

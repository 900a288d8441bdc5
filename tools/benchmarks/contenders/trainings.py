"""Trainings of all measurements but the digits: `trainings.py blocks|sizes|steps|turns|accuracy`.

- `blocks` trains transformer blocks with 30 million parameters on random tokens until it is ended. The batch is divided
  among the ranks, all tokens have one seed.
- `sizes`: four collectives on the ranks of one host, in turns: of gloo, and as a script of the run calls them. Rank 0
  prints `sizes` with a JSON object: collective → bytes of the whole tensor → a list of pairs of seconds, of the slower
  rank.
- `steps KIND`: steps of `blocks` with FSDP2 or TP on the ranks of one host, in turns: over gloo, and in shared
  memory. Rank 0 prints `steps` with a JSON object: sequences of a rank → a list of pairs of seconds.
- `turns`: steps with 25 MB of gradients over several hosts, in turns of the named contenders. Each is a model with a
  process group of its own: DDP as it is (`gloo`), with torch's bf16 hook, as under torchrun; and `ours`, whose group is
  that of the run. A `sum` is an all-reduce alone. Rank 0 prints lines `turn` with JSON: contender → seconds a step, and
  bytes a step of the host that sends most. torch's PowerSGD hook is no contender: with torch 2.13 over gloo it hangs at
  the third or fourth step of many trainings, and its batched one fails.
- `accuracy` trains scikit-learn's `digits`, a small language model on the texts of the installed packages (`words`), or
  the `trainer` of transformers, which tells from a line of these texts which package it is from. Rank 0 prints
  `trained` with a JSON object: `metric` (accuracy; for `words` the loss on texts that it has not seen, in bits for a
  byte) and `losses`, means of the same number of steps each. With --fp32-math bf16 on a CPU without AVX-512, where
  torch computes in fp32 all the same, inputs of products are rounded here (`emulated`).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

# Trainings that run until they are ended

VOCABULARY, WIDTH, HEADS, BLOCKS = 4096, 512, 8, 9
TOKENS, BATCH = 128, 8
"""Tokens of a sequence; sequences of a step, over all ranks."""
PARAMETERS, NUMBERS = 10, 655_360
"""Ten of 2.5 MiB."""


class Blocks(nn.Module):
    """Predicts the next token; the output layer has the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(TOKENS, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(BLOCKS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.positions
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        return nn.functional.linear(self.norm(hidden), self.tokens.weight)


class Products(nn.Module):
    """The sum of all parameters, each times a number: its gradients are that number."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(NUMBERS)) for _ in range(PARAMETERS))

    def forward(self, number: torch.Tensor) -> torch.Tensor:
        return torch.stack([part.sum() for part in self.parts]).sum() * number


def train_for_ever(
    network: nn.Module, optimizer: torch.optim.Optimizer, every: int, loss_of: Callable[[Any], torch.Tensor], **of: Any
) -> None:
    """Rank 0 first prints what the training is of, and then each so many steps, as in real training."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(network, **of)
    if rank == 0:
        size = sum(parameter.numel() for parameter in network.parameters()) / 1e6
        print(f"ranks: {ranks}, threads: {torch.get_num_threads()}, {size:.1f} M parameters", flush=True)
    for step in count(1):
        loss = loss_of(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % every == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


def blocks(dtype: str) -> None:
    torch.manual_seed(1)
    network, chance = Blocks(), generator(1)

    def loss_of(model: nn.Module) -> torch.Tensor:
        batch = torch.randint(VOCABULARY, (BATCH, TOKENS + 1), generator=chance)[
            dist.get_rank() :: dist.get_world_size()
        ]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            logits = model(batch[:, :-1])
        return cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())

    train_for_ever(network, torch.optim.AdamW(network.parameters(), lr=1e-4), 1, loss_of)


# Collectives of one size, and steps of sharded models, on one host

SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20)
WARM_UP = 3
MOST, FEWEST = 80, 6
SECONDS_OF_A_SIZE = 0.4
Way = Callable[[], object]


def in_rank(name: str) -> Any:
    """A module of the hooks of the run."""
    found = next((module for key, module in sys.modules.items() if key.endswith(f"inrank.{name}")), None)
    if found is None:
        raise SystemExit("the ranks do not add up as the run was told to")
    return found


def shared_groups() -> Any:
    """Process group → its shared memory, which the hooks of the run have."""
    return in_rank("collectives")._shared


def ways_of(size: int) -> dict[str, tuple[Way, Way]]:
    """Collective → the call of gloo, and that of the process group, as functions of torch.distributed make it."""
    from torch._C import _distributed_c10d as c10d

    ranks, group = dist.get_world_size(), dist.group.WORLD
    whole = torch.full((size // 4 // ranks * ranks,), 1e-30)
    part = whole[: len(whole) // ranks].clone()

    def both(name: str, options: Any, *values: Any) -> tuple[Way, Way]:
        options.asyncOp = False
        owners = group._get_backend(torch.device("cpu")), group
        first, second = (partial(getattr(owner, name), *values, options) for owner in owners)
        return lambda: first().wait(), lambda: second().wait()

    return {
        "all_reduce": both("allreduce", c10d.AllreduceOptions(), [whole]),
        "all_gather": both("_allgather_base", c10d.AllgatherOptions(), whole, part),
        "reduce_scatter": both("_reduce_scatter_base", c10d.ReduceScatterOptions(), part, whole),
        "broadcast": both("broadcast", c10d.BroadcastOptions(), [whole]),
    }


def seconds_of(way: Way) -> float:
    dist.barrier()
    begun = time.perf_counter()
    way()
    return time.perf_counter() - begun


def in_pairs(ways: Sequence[Way], seconds: float) -> list[list[float]]:
    """Seconds of both ways, in turns, of the slower rank."""
    last = [seconds_of(way) for _ in range(WARM_UP) for way in ways][-2:]
    agreed = torch.tensor([sum(last)])
    dist.all_reduce(agreed, dist.ReduceOp.MAX)
    rounds = max(FEWEST, min(MOST, int(seconds / agreed.item())))
    times = torch.zeros(rounds, 2)
    for number in range(rounds):
        for at in (0, 1) if number % 2 == 0 else (1, 0):
            times[number, at] = seconds_of(ways[at])
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def sizes() -> None:
    shared_groups()
    found: dict[str, dict[int, Any]] = {}
    for size in SIZES:
        for name, ways in ways_of(size).items():
            found.setdefault(name, {})[size] = in_pairs(ways, SECONDS_OF_A_SIZE)
    if dist.get_rank() == 0:
        print("sizes", json.dumps(found), flush=True)


STEPS_OF_KIND = 12.0
"""Seconds of a model and a batch."""
SEQUENCES = (2, 8)
"""Of a rank in a step, of 128 tokens."""


def sharded(kind: str) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(1)
    network = Blocks()
    for block in network.blocks:
        if kind == "FSDP2":
            fully_shard(block)
        else:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            parallelize_module(block, mesh, {"linear1": ColwiseParallel(), "linear2": RowwiseParallel()})
    return fully_shard(network) if kind == "FSDP2" else network


def steps(kind: str) -> None:
    """Steps over gloo and in shared memory take turns in one model."""
    groups = shared_groups()
    model, chance = sharded(kind), generator(1 if kind == "TP" else 1 + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=kind != "TP")
    kept, found = dict(groups), {}
    for sequences in SEQUENCES:

        def step(*, is_shared: bool, sequences: int = sequences) -> None:
            groups.clear()
            if is_shared:
                groups.update(kept)
            batch = torch.randint(VOCABULARY, (sequences, TOKENS + 1), generator=chance)
            loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        ways = (partial(step, is_shared=False), partial(step, is_shared=True))
        found[sequences] = in_pairs(ways, STEPS_OF_KIND)
    groups.update(kept)
    if dist.get_rank() == 0:
        print("steps", json.dumps(found), flush=True)


# Steps over several hosts, in turns

STEPS_BEFORE = 4


def sent() -> int:
    """Bytes that this host has sent over its network, as the kernel counts them."""
    cards = [card for card in Path("/sys/class/net").iterdir() if card.name != "lo"]
    return sum(int((card / "statistics/tx_bytes").read_text()) for card in cards)


def timed(action: Callable[[], object], times: int) -> tuple[float, float]:
    """Seconds a call, and bytes a call of this host."""
    dist.barrier()
    before, begun = sent(), time.perf_counter()
    for _ in range(times):
        action()
    seconds = time.perf_counter() - begun
    dist.barrier()
    return seconds / times, (sent() - before) / times


def halved(group, bucket):  # type: ignore[no-untyped-def]  # DDP takes no annotations that are strings
    """torch's own hook, which DDP refuses on CPUs by its name."""
    return default_hooks.bf16_compress_hook(group, bucket)


def step_of(name: str) -> Callable[[], None]:
    group = None if name == "ours" else dist.new_group(backend="gloo")
    if group is not None and any(key.endswith("inrank.collectives") for key in sys.modules):
        shared_groups().pop(group, None)
    model = DistributedDataParallel(Products(), process_group=group)
    if name == "bf16 hook":
        model.register_comm_hook(group, halved)
    number = torch.tensor(1.0 + dist.get_rank())

    def step() -> None:
        model.zero_grad()
        model(number).backward()

    return step


def turns(names: Sequence[str], turns: int, steps: int) -> None:
    values, lost = torch.randn(PARAMETERS * NUMBERS), {}
    gloo = dist.group.WORLD._get_backend(torch.device("cpu"))

    def sum_by_ours() -> None:
        shared = in_rank("ddp")._connected.shared
        shared.all_reduce(shared, values, 0.5, lost)
        shared.channel.finish()

    sums = {"sum by gloo": lambda: gloo.allreduce([values]).wait(), "sum by ours": sum_by_ours}
    actions = {name: partial(timed, sums.get(name) or step_of(name)) for name in names}
    between = in_rank("ddp")._connected.shared.between
    if "sum by ours" in names and between.codec is None:
        raise SystemExit("gradients do not go in fewer bytes")
    for action in actions.values():
        action(STEPS_BEFORE)
    for turn in range(turns):
        found = torch.zeros(len(names), 2, dtype=torch.float64)
        for place in range(len(names)):
            at = (place + turn) % len(names)
            values.normal_()
            found[at] = torch.tensor(actions[names[at]](steps), dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)  # of the slowest rank, and of the host that sends most
        if dist.get_rank() == 0:
            print("turn", json.dumps(dict(zip(names, found.tolist(), strict=True))), flush=True)


# What trainings learn

POINTS = 40
"""Losses of a curve."""
TEXTS = ("LICENSE", "LICENCE", "NOTICE", "COPYING", "METADATA", "README", "AUTHORS")
LENGTH, CLASSES = 64, 4


def texts() -> dict[str, bytes]:
    """Package → the licences and descriptions that are installed with it, the same on all hosts."""
    found: dict[str, bytes] = {}
    for package in importlib.metadata.distributions():
        files = [file for file in package.files or () if file.name.upper().split(".")[0] in TEXTS and is_there(file)]
        data = b"\n".join(file.read_binary() for file in sorted(files, key=str))
        found[package.metadata["Name"].lower()] = data
    return dict(sorted(found.items()))


def is_there(file: Any) -> bool:
    return bool(file.locate().is_file())


def generator(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(sum(number * 1009**power for power, number in enumerate(numbers)))


def descend(
    network: nn.Module, steps: int, loss_of: Callable[[nn.Module, int], torch.Tensor], rate: float
) -> list[float]:
    """Train with AdamW, and return the losses: means over ranks."""
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    losses = torch.zeros(steps)
    for step in range(steps):
        loss = loss_of(model, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses[step] = loss.detach()
    dist.all_reduce(losses)
    return (losses / dist.get_world_size()).tolist()


def digits(seed: int) -> tuple[float, list[float]]:
    from sklearn.datasets import load_digits

    data = load_digits()
    images, labels = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16, torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=generator(1))  # the same split for all seeds
    train, test = order[:1400], order[1400:]
    torch.manual_seed(seed)
    network = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10)),
    )

    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        batch = train[torch.randint(len(train), (32,), generator=generator(seed, step, dist.get_rank()))]
        return cross_entropy(model(images[batch]), labels[batch])

    losses = descend(network, 300, loss_of, 3e-3)
    with torch.no_grad():
        return float((network(images[test]).argmax(1) == labels[test]).float().mean()), losses


class Predictor(nn.Module):
    """The next byte, by a transformer with 1.3 million weights."""

    def __init__(self, width: int = 160, layers: int = 3) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.last = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        hidden = self.bytes(data) + self.places.weight
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask, is_causal=True)
        return self.last(hidden)


def words(seed: int) -> tuple[float, list[float]]:
    everything = torch.frombuffer(bytearray(b"\n".join(texts().values())), dtype=torch.uint8).long()
    cut = len(everything) * 9 // 10
    train, test = everything[:cut], everything[cut:]
    torch.manual_seed(seed)
    network = Predictor()

    def batch_of(data: torch.Tensor, size: int, *numbers: int) -> torch.Tensor:
        begins = torch.randint(len(data) - LENGTH - 1, (size, 1), generator=generator(*numbers))
        return data[begins + torch.arange(LENGTH + 1)]

    def loss_with(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    losses = descend(
        network, 280, lambda model, step: loss_with(model, batch_of(train, 8, seed, step, dist.get_rank())), 2e-3
    )
    with torch.no_grad():
        found = [loss_with(network, batch_of(test, 32, 5, number)) for number in range(8)]
    return float(torch.stack(found).mean()) / math.log(2), losses


def trainer(seed: int) -> tuple[float, list[float]]:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    found = sorted(texts().items(), key=lambda item: -len(item[1]))[:CLASSES]
    lines = [
        {"input_ids": list(line[:LENGTH].ljust(LENGTH)), "labels": label}
        for label, (_, text) in enumerate(sorted(found))
        for line in text.splitlines()[:400]
        if len(line.strip()) > 20
    ]
    random.Random(7).shuffle(lines)
    config = BertConfig(
        vocab_size=256,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=LENGTH,
        num_labels=CLASSES,
    )
    torch.manual_seed(seed)
    options = TrainingArguments(
        "trained",
        per_device_train_batch_size=16,
        per_device_eval_batch_size=64,
        max_steps=180,
        learning_rate=1e-3,
        warmup_steps=24,
        logging_steps=4,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=seed,
    )
    own = Trainer(
        BertForSequenceClassification(config),
        options,
        train_dataset=lines[300:],
        eval_dataset=lines[:300],
        compute_metrics=lambda given: {"right": float((given[0].argmax(1) == given[1]).mean())},
    )
    own.train()
    losses = [entry["loss"] for entry in own.state.log_history if "loss" in entry]
    return float(own.evaluate()["eval_right"]), losses


def curve(losses: Sequence[float]) -> list[float]:
    size = max(1, len(losses) // POINTS)
    return [round(sum(losses[at : at + size]) / len(losses[at : at + size]), 4) for at in range(0, len(losses), size)]


aten = torch.ops.aten
INPUTS = {
    aten.mm.default: range(2),
    aten.addmm.default: range(1, 3),
    aten.bmm.default: range(2),
    aten.baddbmm.default: range(1, 3),
    aten.convolution.default: range(2),
    aten.convolution_backward.default: range(3),
}
"""Products, forward and backward → the places of the arguments that are rounded."""


class RoundedInputs(TorchDispatchMode):
    """The products that AMX would give: values in bf16, whose products and sums are fp32."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        places = INPUTS.get(function, ())
        rounded = [each.bfloat16().float() if at in places else each for at, each in enumerate(args)]
        return function(*rounded, **(kwargs or {}))


def is_rounding_here() -> bool:
    """True if this CPU rounds 1 + 1/4096 to 1."""
    return bool(torch.equal(torch.full((64, 64), 1 + 2**-12) @ torch.ones(64, 64), torch.full((64, 64), 64.0)))


WORKLOADS = {"digits": digits, "words": words, "trainer": trainer}


def accuracy(workload: str, seed: int) -> None:
    emulated = torch.get_float32_matmul_precision() == "medium" and not is_rounding_here()
    with RoundedInputs() if emulated else nullcontext():
        metric, losses = WORKLOADS[workload](seed)
    if dist.get_rank() == 0:
        found = {"metric": metric, "losses": curve(losses), "emulated": emulated}
        print("trained", json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    kinds = parser.add_subparsers(required=True)
    for function in (blocks, sizes, steps, turns, accuracy):
        kind = kinds.add_parser(function.__name__)
        kind.set_defaults(train=function)
        if function is blocks:
            kind.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
        elif function is steps:
            kind.add_argument("kind", choices=("FSDP2", "TP"))
        elif function is turns:
            kind.add_argument("names", nargs="+")
            kind.add_argument("--turns", type=int)
            kind.add_argument("--steps", type=int)
        elif function is accuracy:
            kind.add_argument("workload", choices=WORKLOADS)
            kind.add_argument("--seed", type=int, default=1)
    options = vars(parser.parse_args())
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    options.pop("train")(**options)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

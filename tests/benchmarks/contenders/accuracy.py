"""Trains one workload over all ranks, and prints the loss on the way and a metric at the end.

    accuracy.py digits|words|trainer --seed 5

`digits` are scikit-learn's; `words` is a small language model on the texts of the installed packages; `trainer` is the
Trainer of transformers, which tells from a line of these texts which package it is from. Rank 0 prints a line `trained`
with a JSON object: `metric` (accuracy; for `words` the loss on texts that it has not seen, in bits for a
byte) and `losses`, means of the same number of steps each.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

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


WORKLOADS = {"digits": digits, "words": words, "trainer": trainer}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    metric, losses = WORKLOADS[options.workload](options.seed)
    if dist.get_rank() == 0:
        print("trained", json.dumps({"metric": metric, "losses": curve(losses)}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

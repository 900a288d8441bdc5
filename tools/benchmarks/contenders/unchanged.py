"""Trainings as users write them, which know nothing of ipexctl: `unchanged.py gpt|resnet|mlp`, until ended.

The batch is divided among the ranks. They train with a loop of their own and DDP.
"""

from __future__ import annotations

import argparse
import os
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, gelu, linear, relu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

WIDTH, HEADS, LAYERS, WORDS, TOKENS = 512, 8, 8, 8192, 128
CLASSES, BATCHES = 10, 4


class Layer(nn.Module):  # type: ignore[misc]  # no torch where mypy runs
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Any) -> Any:
        batch, tokens, _ = hidden.shape
        heads = self.heads(self.before(hidden)).view(batch, tokens, 3, HEADS, WIDTH // HEADS)
        mixed = scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4), is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return hidden + self.down(gelu(self.up(self.after(hidden))))


class Gpt(nn.Module):  # type: ignore[misc]
    """30 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        nn.init.normal_(self.words.weight, std=0.02)
        self.layers, self.norm = nn.Sequential(*(Layer() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)

    def forward(self, words: Any) -> Any:
        hidden = self.layers(self.words(words) + self.places.weight[: words.shape[1]])
        return linear(self.norm(hidden), self.words.weight)


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        self.aside = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else nn.Identity()

    def forward(self, images: Any) -> Any:
        hidden = relu(self.norms[0](self.first(images)))
        return relu(self.norms[1](self.second(hidden)) + self.aside(images))


def resnet() -> Any:
    """Blocks of ResNet18, for images of 32 x 32."""
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [Block(before, after, 1 + (after > before)) for before, after in pairwise(widths)]
    begin = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()
    return nn.Sequential(*begin, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def mlp() -> Any:
    hidden = [layer for _ in range(3) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(2048, CLASSES))


def train_in_a_loop(name: str, ranks: int) -> None:
    size = {"gpt": 4, "resnet": 16, "mlp": 256}[name] // ranks
    model = {"gpt": Gpt, "resnet": resnet, "mlp": mlp}[name]()
    if name == "gpt":
        inputs = torch.randint(0, WORDS, (BATCHES, size, TOKENS))
        labels = inputs.roll(-1, dims=2)
    else:
        inputs = torch.randn(BATCHES, size, 3, 32, 32) if name == "resnet" else torch.randn(BATCHES, size, 2048)
        labels = torch.randint(0, CLASSES, (BATCHES, size))
    if ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step = 0
    while True:
        outputs = model(inputs[step % BATCHES])
        optimizer.zero_grad()
        cross_entropy(outputs.flatten(0, -2), labels[step % BATCHES].flatten()).backward()
        optimizer.step()
        step += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=("gpt", "resnet", "mlp"))
    name, ranks = parser.parse_args().name, int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    print(f"ranks: {ranks}, {name}", flush=True)
    if ranks > 1:
        dist.init_process_group("gloo")
    train_in_a_loop(name, ranks)


if __name__ == "__main__":
    main()

"""Trainings in bf16, fp16 or fp32 as users write them: `half_steps.py lora|lora-1b|cnn TYPE STEPS`.

Rank 0 prints a line behind the word `trained`: the shortest step after the first, in seconds, and the last loss.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

SHAPES = {"lora": (1024, 2816, 4, 16, 8), "lora-1b": (2048, 8192, 16, 32, 8)}
"""Hidden and inner size, layers, heads and key-value heads."""
TOKENS = {"lora": 256, "lora-1b": 16}
WORDS, IMAGES, CLASSES = 8192, 32, 10


def lora(kind: str, dtype: Any, wrap: Callable[[Any], Any]) -> tuple[Any, Callable[[], Any]]:
    from peft import LoraConfig, get_peft_model  # type: ignore[import-not-found]
    from transformers import LlamaConfig, LlamaForCausalLM  # type: ignore[import-not-found]

    hidden, inner, layers, heads, pairs = SHAPES[kind]
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=pairs,
        vocab_size=WORDS,
    )
    torch.set_default_dtype(dtype)
    base = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model = wrap(get_peft_model(base.to(dtype), LoraConfig(r=16, target_modules="all-linear")))
    words = torch.randint(0, WORDS, (1, TOKENS[kind]))
    return model, lambda: model(input_ids=words, labels=words).loss


def cnn(dtype: Any, wrap: Callable[[Any], Any]) -> tuple[Any, Callable[[], Any]]:
    parts: list[Any] = []
    for before, after in pairwise((3, 32, 64, 128)):
        parts += [nn.Conv2d(before, after, 3, 1 + (before > 3), 1), nn.BatchNorm2d(after), nn.ReLU()]
    model = wrap(nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES)))
    images, labels = torch.randn(IMAGES, 3, 32, 32), torch.randint(0, CLASSES, (IMAGES,))

    def loss() -> Any:
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            return cross_entropy(model(images).float(), labels)

    return model, loss


def main() -> None:
    kind, dtype, steps = sys.argv[1], getattr(torch, sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(0)
    is_alone = os.environ.get("WORLD_SIZE", "1") == "1"
    if not is_alone:
        dist.init_process_group("gloo")
    wrap: Callable[[Any], Any] = (lambda model: model) if is_alone else DistributedDataParallel
    model, loss_of = cnn(dtype, wrap) if kind == "cnn" else lora(kind, dtype, wrap)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    took = []
    for _ in range(steps):
        begun = time.perf_counter()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        took.append(time.perf_counter() - begun)
    if os.environ.get("RANK", "0") == "0":
        print("trained", json.dumps({"seconds": min(took[1:]), "loss": float(loss.detach())}), flush=True)


if __name__ == "__main__":
    main()

"""Inference: what `ipex.optimize`, bfloat16 and graph fusion bring, on a ResNet-like and a BERT-like model made here.

    ipexctl run --install --stack ipex -n 1 examples/inference.py    # this machine, all of its cores
    ipexctl run -H hostfile --ppn 1 examples/inference.py            # every host by itself, to compare them

Weights are random and nothing is fetched. Each way takes turns with plain PyTorch in fp32, so that both meet the same
machine; times are the best of all rounds, and outputs are compared. Without IPEX, PyTorch alone does what it can.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib
import os
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    Model = Callable[[torch.Tensor], torch.Tensor]

try:
    ipex: Any = importlib.import_module("intel_extension_for_pytorch")
except ModuleNotFoundError:
    ipex = None


class Residual(nn.Module):
    """A block of ResNet-18: what fusion makes of it is two convolutions, with norm, sum and relu inside."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        short = (nn.Conv2d(inside, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.short = nn.Sequential(*short) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.short(x))


def resnet() -> nn.Module:
    """ResNet-18 for pictures of 64 by 64."""
    shapes = ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1))
    stem = (nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))
    return nn.Sequential(*stem, *(Residual(*shape) for shape in shapes), *head)


class Layer(nn.Module):
    """A layer of BERT, attention written out: what fusion looks for."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow, self.gelu = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], self.heads, -1)  # not unflatten: torch before 1.13 can't trace it
        query, key, value = (part(x).reshape(shape).transpose(1, 2) for part in (self.query, self.key, self.value))
        weights = torch.softmax(query @ key.transpose(-1, -2) * self.scale, dim=-1)
        x = self.norm1(x + self.out((weights @ value).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.narrow(self.gelu(self.wide(x))))


def bert() -> nn.Module:
    """Four layers of BERT's kind, of width 256."""
    return nn.Sequential(nn.Embedding(1000, 256), nn.LayerNorm(256), *(Layer(256, 4) for _ in range(4)))


def optimized(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model with weights in that precision, laid out as IPEX's kernels like them where IPEX is there."""
    model = model.eval()
    if not ipex:
        return model.to(dtype)
    gc.disable()
    model = ipex.optimize(model, dtype=dtype)
    # IPEX's modules share their __dict__ with those that they replace, and Python 3.13 may empty it when it frees these
    # (python/cpython#130327): each gets its own.
    for part in model.modules():
        part.__dict__ = dict(part.__dict__)
    gc.enable()
    return model


def fused(model: nn.Module, example: torch.Tensor) -> Model:
    """The traced, frozen graph. Two calls let it see shapes and fuse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit's own, from torch 2.9 on
        graph = torch.jit.freeze(torch.jit.trace(model, example, check_trace=False))
        if ipex is None:
            graph = torch.jit.optimize_for_inference(graph)
    graph(example)
    graph(example)
    return graph


def is_before(*version: int) -> bool:
    """Whether IPEX is there and older."""
    return ipex is not None and tuple(map(int, ipex.__version__.split(".")[:2])) < version


def milliseconds(models: tuple[Model, ...], example: torch.Tensor, rounds: int) -> list[float]:
    """A call's of each, the best; they take turns."""
    best = [float("inf")] * len(models)
    for _ in range(rounds + 1):
        for at, model in enumerate(models):
            begun = time.perf_counter()
            model(example)
            best[at] = min(best[at], 1000 * (time.perf_counter() - begun))
    return best


def autocast(bf16: bool) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16, cache_enabled=False)  # tracing forbids its cache


def cpu_has_bf16() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and any(flag in cpuinfo.read_text() for flag in ("avx512_bf16", "amx_bf16"))


def compare(name: str, build: Callable[[], nn.Module], example: torch.Tensor, given: argparse.Namespace) -> None:
    """A line a way: its time beside plain fp32's, the gain, and how far its outputs are from that one's."""
    torch.manual_seed(1)
    plain = build().eval()
    truth = plain(example)
    for dtype, short in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
        bf16 = dtype is torch.bfloat16
        if bf16 and is_before(1, 12):
            print(f"{name:6} bf16: left out, IPEX {ipex.__version__} computes it wrong or fails; 1.12 does not")
            continue
        if bf16 and not given.bf16 and not cpu_has_bf16():
            print(f"{name:6} bf16: left out, this CPU has no instructions for it (--bf16 tries all the same)")
            continue
        model = optimized(copy.deepcopy(plain), dtype)
        with autocast(bf16):
            # The fused convolutions of IPEX 1.10 fail on their own memory format.
            ways = {"": model} if is_before(1, 11) else {"": model, " fused": fused(model, example)}
        if not ipex and not bf16:
            del ways[""]  # it is the plain one
        for way, ready in ways.items():

            def call(x: torch.Tensor, ready: Model = ready, bf16: bool = bf16) -> torch.Tensor:
                with autocast(bf16):
                    return ready(x)

            before, now = milliseconds((plain, call), example, given.rounds)
            off = ((call(example).float() - truth).abs().max() / truth.abs().max()).item()
            made = f"{'ipex' if ipex else 'torch'} {short}{way}"
            print(
                f"{name:6} {made:16} {now:7.1f} ms, plain {before:7.1f} ms: {before / now:4.2f} x, off by {off:.0e}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--bf16", action="store_true", help="also where the CPU has no instructions for it")
    given = parser.parse_args()
    by = f"IPEX {ipex.__version__}" if ipex else "no IPEX here: PyTorch alone"
    print(f"{os.uname().nodename}: torch {torch.__version__}, {by}; threads: {torch.get_num_threads()}", flush=True)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        compare("resnet", resnet, torch.randn(given.batch, 3, 64, 64, generator=random), given)
        compare("bert", bert, torch.randint(1000, (given.batch, 64), generator=random), given)


if __name__ == "__main__":
    main()

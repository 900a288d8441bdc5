"""Int8 inference: a small network is trained in fp32, quantized after training, and compared with itself.

    ipexctl run -n 1 examples/int8_inference.py                      # this machine, all of its cores
    ipexctl run -H hostfile --ppn 1 examples/int8_inference.py       # every host, each with its share of the pictures

The script draws its pictures. Rank 0 trains; each rank then quantizes and runs its own share by itself, and prints its
throughput; rank 0 prints the accuracy over all shares. With IPEX, its `prepare` and `convert` and a traced graph are
used, else PyTorch's own FX quantization, which is deprecated for torchao: torch 2.15 still has it, and the same in
torchao needs a compiler on each host.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import os
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

if TYPE_CHECKING:
    from collections.abc import Callable

    Model = Callable[[torch.Tensor], torch.Tensor]

try:
    ipex: Any = importlib.import_module("intel_extension_for_pytorch")
except ModuleNotFoundError:
    ipex = None

SIDE = 16
KINDS = 8


def network() -> nn.Module:
    """Convolutions with norm and relu, which quantization fuses into one int8 operation each."""
    layers: list[nn.Module] = []
    for inside, width in ((1, 64), (64, 128), (128, 128)):
        layers += [nn.Conv2d(inside, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * (SIDE // 8) ** 2, KINDS))


def drawn(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Waves in noise; which of eight directions they run in is the label."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(KINDS, (count,), generator=random)
    angle = (labels * torch.pi / KINDS)[:, None, None]
    phase = 2 * torch.pi * torch.rand(count, 1, 1, generator=random)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    waves = torch.sin((x * torch.cos(angle) + y * torch.sin(angle)) * 0.9 + phase)
    return (waves + torch.randn(count, SIDE, SIDE, generator=random))[:, None], labels


def train(model: nn.Module, steps: int, seed: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, labels = drawn(32 * steps, seed)
    for batch, truth in zip(images.split(32), labels.split(32), strict=True):
        optimizer.zero_grad()
        cross_entropy(model(batch), truth).backward()
        optimizer.step()


def graph_of(model: nn.Module, example: torch.Tensor) -> Model:
    """The traced, frozen graph, which IPEX fuses in two calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit's own deprecation, and IPEX's notes while tracing
        graph = torch.jit.freeze(torch.jit.trace(model, example, check_trace=False).eval())
        graph(example)
        graph(example)
    return graph


def with_ipex(model: nn.Module, samples: torch.Tensor) -> tuple[Model, Model]:
    """The model in fp32 and in int8, both as IPEX runs them."""
    example = samples[:32]
    ready = ipex.quantization.prepare(
        copy.deepcopy(model), ipex.quantization.default_static_qconfig_mapping, example_inputs=example, inplace=False
    )
    for batch in samples.split(32):  # the range of each layer's values
        ready(batch)
    return graph_of(ipex.optimize(model), example), graph_of(ipex.quantization.convert(ready), example)


def with_torch(model: nn.Module, samples: torch.Tensor) -> tuple[Model, Model]:
    """The model in fp32 and in int8, by PyTorch alone."""
    try:
        quantization = importlib.import_module("torch.ao.quantization")
        fx = importlib.import_module("torch.ao.quantization.quantize_fx")
    except ModuleNotFoundError:
        raise SystemExit(f"torch {torch.__version__} has no quantization of its own any more: see torchao") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated: it moves to torchao
        ready = fx.prepare_fx(copy.deepcopy(model), quantization.get_default_qconfig_mapping("x86"), (samples[:32],))
        for batch in samples.split(32):  # the range of each layer's values
            ready(batch)
        return model, fx.convert_fx(ready)


def accuracy(model: Model, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """How many of this rank's share are right, over all ranks: as many as of all pictures."""
    right = sum(
        (model(batch).argmax(1) == truth).sum() for batch, truth in zip(images.split(32), labels.split(32), strict=True)
    )
    counts = torch.tensor([float(right), float(len(labels))])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item(), counts[1].item()


def throughput(models: tuple[Model, ...], example: torch.Tensor, rounds: int) -> list[float]:
    """Pictures a second of each, in its best round; they take turns."""
    best = [float("inf")] * len(models)
    for _ in range(rounds + 1):
        for at, model in enumerate(models):
            begun = time.perf_counter()
            model(example)
            best[at] = min(best[at], time.perf_counter() - begun)
    return [len(example) / seconds for seconds in best]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60, help="of the training in fp32")
    parser.add_argument("--pictures", type=int, default=2000, help="to classify, shared among the ranks")
    parser.add_argument("--batch", type=int, default=128, help="pictures at once when speed is measured")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = network()
    if rank == 0:
        train(model, given.steps, seed=1)
    for value in model.state_dict().values():
        dist.broadcast(value, 0)
    with torch.no_grad():
        fp32, int8 = (with_ipex if ipex else with_torch)(model.eval(), drawn(256, seed=2)[0])
        images, labels = (part[rank::ranks] for part in drawn(given.pictures, seed=3))
        shares = {name: accuracy(way, images, labels) for name, way in (("fp32", fp32), ("int8", int8))}
        speeds = throughput((fp32, int8), drawn(given.batch, seed=4)[0], given.rounds)
    by = f"IPEX {ipex.__version__}" if ipex else "PyTorch alone"
    if rank == 0:
        print(f"ranks: {ranks}; torch {torch.__version__}, {by}; threads: {torch.get_num_threads()}")
        (before, count), (after, _) = shares.values()
        print(f"accuracy fp32 {before:.1%}, int8 {after:.1%}, of {count:.0f} pictures", flush=True)
    print(f"{os.uname().nodename}: {len(labels)} pictures; fp32 {speeds[0]:.0f}/s, int8 {speeds[1]:.0f}/s", flush=True)
    dist.barrier()  # a rank that ends at once after a collective may abort (PyTorch 2.13 over gloo)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Distributed training to try ipexctl with: digits drawn here, a small network, under a minute on two cores.

    ipexctl run --install examples/train_digits.py                   # this machine
    ipexctl run -H hostfile --ppn 2 examples/train_digits.py         # two ranks on every host
    python examples/train_digits.py                                  # one process, no ipexctl

One process and any number of ranks go through the same losses (to rounding): a step's global batch depends on the seed
and the step alone, rank R of N takes every N-th picture of it from the R-th on, and gradients are sums over the batch.
The checkpoint lies beside this file, on node0; a run that was cut short goes on from it, at the same losses.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, interpolate
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = Path(__file__).resolve().parent / "checkpoints" / "train_digits.pt"
TRAINED = CHECKPOINT.with_name("train_digits-trained.pt")
SIDE = 24
GLYPHS = """
01110 00100 01110 11111 00010 11111 00110 11111 01110 01110
10001 01100 10001 00010 00110 10000 01000 00001 10001 10001
10011 00100 00001 00100 01010 11110 10000 00010 10001 10001
10101 00100 00010 00010 10010 00001 11110 00100 01110 01111
11001 00100 00100 00001 11111 00001 10001 01000 10001 00001
10001 00100 01000 10001 00010 10001 10001 01000 10001 00010
01110 01110 11111 01110 00010 01110 01110 01000 01110 01100
"""


class Net(nn.Module):
    """Chosen so that sharing a batch changes nothing one sees: no batch norm, whose statistics are each rank's own,
    and no kinks (relu, max pooling), where a difference in rounding grows into another curve."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.GELU(), nn.AvgPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.GELU(), nn.AvgPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * (SIDE // 4) ** 2, 64), nn.GELU(), nn.Linear(64, 10)),
        )
        for layer in list(self.layers)[:-1]:
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=3840, help="pictures of an epoch")
    parser.add_argument("--batch", type=int, default=64, help="pictures of a step, over all ranks")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", choices=("auto", "fp32", "bf16"), default="auto", help="auto: bf16 if CPUs have it")
    parser.add_argument("--log-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--fresh", action="store_true", help="drop the checkpoint and begin anew")
    return parser.parse_args()


def join() -> None:
    """Enter the process group a launcher described, or be one process by itself."""
    if "RANK" not in os.environ:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        return
    backend = os.environ.get("IPEXCTL_BACKEND", "gloo")
    if backend == "ccl":  # the import is what makes torch know the name
        try:
            importlib.import_module("oneccl_bindings_for_pytorch")
        except ModuleNotFoundError:
            importlib.import_module("torch_ccl")  # what it was called up to torch 1.12
    dist.init_process_group(backend)


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def total(value: torch.Tensor) -> float:
    """The sum over all ranks."""
    dist.all_reduce(value)
    return value.item()


def drawn(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Digits at some place in noise, and which they are. The same on every rank."""
    random = torch.Generator().manual_seed(seed)
    rows = [line.split() for line in GLYPHS.split("\n") if line]
    glyphs = torch.tensor([[[float(dot) for dot in row[digit]] for row in rows] for digit in range(10)])
    glyphs = interpolate(glyphs[:, None], scale_factor=3.0)  # 7 by 5 dots become 21 by 15
    labels = torch.randint(10, (count,), generator=random)
    images = 0.5 * torch.randn(count, 1, SIDE, SIDE, generator=random)
    down = torch.randint(SIDE - 21 + 1, (count,), generator=random)
    right = torch.randint(SIDE - 15 + 1, (count,), generator=random)
    for at, (label, y, x) in enumerate(torch.stack([labels, down, right], dim=1).tolist()):
        images[at, :, y : y + 21, x : x + 15] += glyphs[label]
    return images, labels


def share(step: int, given: argparse.Namespace) -> torch.Tensor:
    """Which pictures of that step's global batch are this rank's."""
    epoch, at = divmod(step, given.samples // given.batch)
    order = torch.randperm(given.samples, generator=torch.Generator().manual_seed(1000 * given.seed + epoch))
    return order[at * given.batch : (at + 1) * given.batch][dist.get_rank() :: dist.get_world_size()]


def bf16_suits(asked: str) -> bool:
    """The same answer on every rank, for they exchange gradients: bf16 only where each has it."""
    if asked != "auto":
        return asked == "bf16"
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text() if cpuinfo.exists() else ""
    lacking = torch.tensor(float("avx512_bf16" not in flags and "amx_bf16" not in flags))
    if total(lacking) > 0:
        return False
    try:
        total(torch.ones(1, dtype=torch.bfloat16))
    except RuntimeError:  # gloo before torch 2.3; gradients are in bf16 with IPEX
        return False
    return True


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, given: argparse.Namespace) -> int:
    """The step to go on with. Rank 0 has the file and tells the others, who need not see its disk."""
    first_start = os.environ.get("RESTART_COUNT", "0") == "0"  # a restarted run goes on from what it saved itself
    found: list[dict[str, Any] | None] = [None]
    if dist.get_rank() == 0 and CHECKPOINT.exists():
        if given.fresh and first_start:
            CHECKPOINT.unlink()
        else:
            found[0] = torch.load(CHECKPOINT, map_location="cpu")
    dist.broadcast_object_list(found)
    saved = found[0]
    if saved is None:
        return 0
    if saved["made_with"] != made_with(given):
        raise SystemExit(f"{CHECKPOINT} was made with {saved['made_with']}: give the same, or --fresh")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    say(f"going on from step {saved['step']} of {CHECKPOINT}")
    return int(saved["step"])


def save(model: nn.Module, optimizer: torch.optim.Optimizer, given: argparse.Namespace, step: int) -> None:
    """Rank 0's, whole or not at all: a kill meanwhile leaves the one before."""
    if dist.get_rank() != 0:
        return
    CHECKPOINT.parent.mkdir(exist_ok=True)
    aside = CHECKPOINT.with_suffix(".tmp")
    state = {"model": weights(model), "optimizer": optimizer.state_dict(), "step": step}
    torch.save({**state, "made_with": made_with(given)}, aside)
    aside.replace(CHECKPOINT)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Its state. The state_dict of IPEX 2.2 gives the model other parameters, and DDP would wait for those it knows."""
    if ipex_version().startswith("2.2."):
        return {name: parameter.detach() for name, parameter in model.named_parameters()}
    return model.state_dict()


def ipex_version() -> str:
    """Empty before IPEX is imported, and without it."""
    return str(getattr(sys.modules.get("intel_extension_for_pytorch"), "__version__", ""))


def made_with(given: argparse.Namespace) -> dict[str, Any]:
    """What must stay as it was for a training to go on."""
    return {name: getattr(given, name) for name in ("samples", "batch", "lr", "seed")}


def guesses(model: nn.Module, images: torch.Tensor, bf16: bool) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        return model(images)


def accuracy(model: nn.Module, seed: int, bf16: bool) -> float:
    """Over pictures nobody trained on, shared among the ranks."""
    images, labels = drawn(2000, seed)
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    with torch.no_grad():
        right = (guesses(model, images[mine], bf16).argmax(1) == labels[mine]).sum()
    return total(right) / len(images)


def main() -> None:
    given = arguments()
    join()
    torch.manual_seed(given.seed)
    net: nn.Module = Net()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=given.lr, momentum=0.9)
    first = resume(net, optimizer, given)
    bf16 = bf16_suits(given.dtype)
    precision = "bf16" if bf16 else "fp32"
    with contextlib.suppress(ModuleNotFoundError):
        ipex = importlib.import_module("intel_extension_for_pytorch")
        # IPEX 2.1 adds an empty parameter to each prepacked module, and DDP waits for its gradient. For 2.2, `weights`
        # wants parameters that are not prepacked.
        more = {"weights_prepack": False} if ipex_version().startswith(("2.1.", "2.2.")) else {}
        dtype = torch.bfloat16 if bf16 else torch.float32
        net, optimizer = ipex.optimize(net, optimizer=optimizer, dtype=dtype, **more)
        precision += " with IPEX"
    model = DistributedDataParallel(net)
    say(f"ranks: {dist.get_world_size()}, over {dist.get_backend()}; threads: {torch.get_num_threads()}; {precision}")

    images, labels = drawn(given.samples, given.seed)
    steps = given.samples // given.batch
    begun = time.monotonic()
    for step in range(first, given.epochs * steps):
        mine = share(step, given)
        guess = guesses(model, images[mine], bf16).float()
        loss = cross_entropy(guess, labels[mine], reduction="sum") / given.batch
        optimizer.zero_grad()
        (loss * dist.get_world_size()).backward()  # DDP divides by it
        optimizer.step()
        done = step + 1
        if done % given.log_every == 0:
            epoch, at = divmod(step, steps)
            say(f"epoch {epoch + 1}/{given.epochs} step {at + 1}/{steps} loss {total(loss.detach()):.3f}")
        if done % given.save_every == 0:
            save(net, optimizer, given, done)
    speed = max(0, given.epochs * steps - first) * given.batch / (time.monotonic() - begun)
    say(f"accuracy {accuracy(model, given.seed + 1, bf16):.1%}, {speed:.0f} images/s")
    save(net, optimizer, given, given.epochs * steps)
    if dist.get_rank() == 0:
        CHECKPOINT.replace(TRAINED)  # nothing is left to go on with: the next call begins anew
    say(f"the model is in {TRAINED}")
    dist.barrier()  # a rank that ends at once after a collective may abort (PyTorch 2.13 over gloo)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

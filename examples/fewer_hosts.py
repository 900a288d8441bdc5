"""DDP that keeps its global batch while hosts are lost and come back, and goes on from its newest checkpoint.

    ipexctl run -n 3 examples/fewer_hosts.py                                     # this machine
    ipexctl run -H hostfile --min-hosts 2 --max-restarts 5 \\
        --checkpoint checkpoints examples/fewer_hosts.py

A step has as many parts as there were ranks in the first attempt (IPEXCTL_FIRST_WORLD_SIZE). With fewer ranks, some
have two parts or more, add their gradients up, and talk to the others once. So each step has the same examples and the
same gradient, to rounding, however many ranks there are.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = Path(__file__).resolve().parent / "checkpoints" / "fewer_hosts.pt"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="examples of a part, so of a rank of the first attempt")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--log-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--pace", type=float, default=0.0, metavar="SECONDS", help="wait so long after each step")
    return parser.parse_args()


def drawn(step: int, part: int, given: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """The examples of a part depend on nothing but its number and the step."""
    random = torch.Generator().manual_seed(step * 1_009 + part)
    x = torch.rand(given.batch, 2, generator=random) * 4 - 2
    return x, (x[:, :1] * 3).sin() * x[:, 1:].cos()


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Under another name until it is whole."""
    CHECKPOINT.parent.mkdir(exist_ok=True)
    unfinished = CHECKPOINT.with_suffix(".part")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, unfinished)
    unfinished.replace(CHECKPOINT)


def resume(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    if not CHECKPOINT.exists():
        return 0
    state = torch.load(CHECKPOINT, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def main() -> None:
    given = arguments()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = int(os.environ.get("IPEXCTL_FIRST_WORLD_SIZE", ranks))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=given.lr)
    first = resume(net, optimizer)
    model = DistributedDataParallel(net)
    if rank == 0:
        print(f"{ranks} of {parts} ranks go on from step {first}", flush=True)
    own = range(rank, parts, ranks)
    for step in range(first, given.steps):
        total = torch.zeros(1)
        for part in own:
            x, y = drawn(step, part, given)
            with model.no_sync() if part != own[-1] else nullcontext():
                loss = nn.functional.mse_loss(model(x), y) / parts
                (loss * ranks).backward()  # DDP divides by it
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        done = step + 1
        if done % given.log_every == 0:
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {done}/{given.steps} loss {total.item():.4f}", flush=True)
        if rank == 0 and (done % given.save_every == 0 or done == given.steps):
            save(net, optimizer, done)
        time.sleep(given.pace)
    dist.barrier()  # a rank that ends at once after a collective may abort (PyTorch 2.13 over gloo)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""FSDP2: every rank keeps a part of the weights and of the optimizer, also on disk; any number of ranks goes on.

    ipexctl run -n 2 examples/fsdp_train.py --steps 40                 # this machine
    ipexctl run -n 4 examples/fsdp_train.py                            # goes on from step 40 with twice the ranks
    ipexctl run -H hostfile --ppn 2 --checkpoint checkpoints examples/fsdp_train.py

A small transformer learns to continue arithmetic sequences, which the script makes. The global batch depends on the
seed and the step alone, so any number of ranks has the same losses (to rounding). torch.distributed.checkpoint writes
one file for each rank, and every host needs all of them to load: from a shared home, or by `--checkpoint` as above.
It needs torch 2.6 or later.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

CHECKPOINTS = Path(__file__).resolve().parent / "checkpoints" / "fsdp_train"
NUMBERS = 23
LENGTH = 12
WIDTH = 64


class Block(nn.Module):
    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrow(gelu(self.wide(self.norm2(x))))


class Net(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.numbers, self.places = nn.Embedding(NUMBERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, NUMBERS)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        x = self.numbers(sequence) + self.places(torch.arange(sequence.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x).clone()  # FSDP2 warns of views, and a linear layer returns one


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=80, help="of the whole training, with those before a checkpoint")
    parser.add_argument("--batch", type=int, default=64, help="sequences of a step, over all ranks")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--fresh", action="store_true", help="remove the checkpoints and begin anew")
    return parser.parse_args()


def join() -> None:
    """Enter the process group a launcher described, or be one process by itself."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def total(value: torch.Tensor) -> float:
    """The sum over all ranks."""
    dist.all_reduce(value)
    return value.item()


def sharded(net: nn.Module) -> nn.Module:
    """Each block, and what is left, divided among all ranks; a block's weights are gathered while it computes."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def drawn(step: int, given: argparse.Namespace) -> torch.Tensor:
    """This rank's sequences of that step: every N-th of the global batch, from its own number on."""
    random = torch.Generator().manual_seed(given.seed * 1_000_003 + step)
    first, by = torch.randint(NUMBERS, (2, given.batch, 1), generator=random)
    return ((first + by * torch.arange(LENGTH + 1)) % NUMBERS)[dist.get_rank() :: dist.get_world_size()]


def loss_of(model: nn.Module, sequences: torch.Tensor, batch: int) -> torch.Tensor:
    """This rank's part of the global batch's mean. The first two numbers of a sequence tell all others."""
    guesses = model(sequences[:, :-1])[:, 1:]
    return cross_entropy(guesses.flatten(0, 1), sequences[:, 2:].flatten(), reduction="sum") / (batch * (LENGTH - 1))


def fingerprint(model: nn.Module) -> str:
    """Of all weights, put together: equal on any number of ranks if every bit is."""
    digest = hashlib.sha256()
    for _, weight in sorted(model.state_dict().items()):
        digest.update(weight.full_tensor().numpy().tobytes())
    return digest.hexdigest()[:12]


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, given: argparse.Namespace) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    made_with = {name: getattr(given, name) for name in ("batch", "lr", "seed")}
    return {"model": weights, "optimizer": moments, "made_with": made_with, "fingerprint": fingerprint(model)}


def save(model: nn.Module, optimizer: torch.optim.Optimizer, given: argparse.Namespace, step: int) -> None:
    """A directory a step, in which every rank writes a file. `.metadata` comes last: without it, it does not count."""
    state = state_of(model, optimizer, given)
    dcp.save(state, checkpoint_id=CHECKPOINTS / f"step-{step:06}")
    say(f"saved step {step}, weights {state['fingerprint']}")


def newest(given: argparse.Namespace) -> Path | None:
    """The checkpoint to go on from: rank 0 chooses, and every host must have the same files of it."""
    first_start = os.environ.get("RESTART_COUNT", "0") == "0"  # a restarted run goes on from what it saved itself
    if given.fresh and first_start and os.environ.get("LOCAL_RANK", "0") == "0":
        shutil.rmtree(CHECKPOINTS, ignore_errors=True)
    dist.barrier()
    whole = sorted(mark.parent.name for mark in CHECKPOINTS.glob("step-*/.metadata"))
    chosen = [whole[-1] if whole else None]
    dist.broadcast_object_list(chosen)
    if chosen[0] is None:
        return None
    found: list[Any] = [None] * dist.get_world_size()
    here = sorted(file.name for file in (CHECKPOINTS / chosen[0]).glob("*"))
    dist.all_gather_object(found, (socket.gethostname(), here))
    lacking = {host for host, files in found if files != found[0][1]}
    if lacking:
        raise SystemExit(f"{', '.join(lacking)}: other files of {chosen[0]} than node0; give ipexctl run --checkpoint")
    return CHECKPOINTS / chosen[0]


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, given: argparse.Namespace) -> int:
    """The step to go on with. However many ranks wrote the files, each reads what its own parts need."""
    place = newest(given)
    if place is None:
        return 0
    state = state_of(model, optimizer, given)
    made_with = dict(state["made_with"])  # load changes the one in the state
    dcp.load(state, checkpoint_id=place)
    if state["made_with"] != made_with:
        raise SystemExit(f"{place} was made with {state['made_with']}: give the same, or --fresh")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    if fingerprint(model) != state["fingerprint"]:
        raise SystemExit(f"{place}: the weights are not those that were saved")
    step = int(place.name.partition("-")[2])
    say(f"going on from step {step} of {place}, weights {state['fingerprint']}")
    return step


def main() -> None:
    given = arguments()
    join()
    torch.manual_seed(given.seed)
    model = sharded(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr)
    first = resume(model, optimizer, given)
    weights = [sum(weight.numel() for weight in model.parameters())]
    weights += [sum(weight.to_local().numel() for weight in model.parameters())]
    say(f"ranks: {dist.get_world_size()}; rank 0 keeps {weights[1]} of {weights[0]} weights")
    for step in range(first, given.steps):
        loss = loss_of(model, drawn(step, given), given.batch)
        optimizer.zero_grad()
        (loss * dist.get_world_size()).backward()  # FSDP divides by it
        optimizer.step()
        done = step + 1
        if done % given.log_every == 0:
            say(f"step {done}/{given.steps} loss {total(loss.detach()):.3f}")
        if done % given.save_every == 0 or done == given.steps:
            save(model, optimizer, given, done)
    with torch.no_grad():
        loss = total(loss_of(model, drawn(1_000_000, given), given.batch))
    say(f"loss of sequences it has not seen: {loss:.3f}")
    dist.barrier()  # a rank that ends at once after a collective may abort (PyTorch 2.13 over gloo)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Trains a stack of transformer blocks with 30 million parameters on random tokens, until it is ended.

The batch is divided among the ranks, and all tokens come from a seed.
"""

from __future__ import annotations

import argparse
import os
from itertools import count

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, WIDTH, HEADS, BLOCKS = 4096, 512, 8, 9
LENGTH, BATCH = 128, 8
"""Tokens of a sequence; sequences of a step, over all ranks."""


class Blocks(nn.Module):
    """Predicts the next token; the output layer has the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(BLOCKS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.positions
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        return nn.functional.linear(self.norm(hidden), self.tokens.weight)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    network = Blocks()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    if rank == 0:
        threads = torch.get_num_threads()
        print(f"ranks: {ranks}, threads: {threads}, {options.dtype}, {parameters / 1e6:.1f} M parameters", flush=True)

    random = torch.Generator().manual_seed(1)
    for step in count(1):
        batch = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=random)[rank::ranks]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.dtype == "bf16"):
            logits = model(batch[:, :-1])
        loss = cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:  # as in real training
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()

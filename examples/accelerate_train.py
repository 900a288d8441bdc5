"""Training with Hugging Face Accelerate, without `accelerate launch` and without its config: `Accelerator()` finds all.

    ipexctl install --env hf --with accelerate                              # once; -H hostfile for all nodes

    ipexctl run --env hf examples/accelerate_train.py                       # this machine
    ipexctl run --env hf -H hostfile --ppn 2 examples/accelerate_train.py   # two ranks on every host

The task is XOR's: points of 16 random signs, in noise; the label is the sign of a product of three of them.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def points(count: int, seed: int) -> TensorDataset:
    random = torch.Generator().manual_seed(seed)
    signs = torch.randint(2, (count, 16), generator=random) * 2.0 - 1
    labels = (signs[:, :3].prod(1) > 0).long()
    return TensorDataset(signs + 0.5 * torch.randn(count, 16, generator=random), labels)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--batch", type=int, default=128, help="points of a step, over all ranks, which share it evenly"
    )
    parser.add_argument("--mixed-precision", choices=("no", "bf16"), default="no")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    # --batch is what all ranks have together, in one order: more ranks are faster, and train the same.
    try:
        from accelerate.utils import DataLoaderConfiguration

        options = {"dataloader_config": DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)}
    except ImportError:  # before accelerate 0.27
        options = {"split_batches": True}
    accelerator = Accelerator(cpu=True, mixed_precision=given.mixed_precision, **options)
    set_seed(1)
    model = nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batch = max(1, given.batch // accelerator.num_processes) * accelerator.num_processes
    train = DataLoader(points(16384, seed=1), batch_size=batch, shuffle=True, drop_last=True)
    test = DataLoader(points(2048, seed=2), batch_size=batch)
    model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)
    accelerator.print(f"{accelerator.distributed_type}, ranks: {accelerator.num_processes}, {accelerator.device}")

    for epoch in range(given.epochs):
        model.train()
        for step, (signs, labels) in enumerate(train, 1):
            loss = cross_entropy(model(signs), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            if step % 32 == 0:
                mean = accelerator.reduce(loss.detach(), "mean").item()
                accelerator.print(f"epoch {epoch + 1}/{given.epochs} step {step}/{len(train)} loss {mean:.3f}")
    model.eval()
    with torch.no_grad():
        right = [accelerator.gather_for_metrics(model(signs).argmax(1) == labels) for signs, labels in test]
    accelerator.print(f"accuracy {torch.cat(right).float().mean():.1%}")
    accelerator.wait_for_everyone()  # a rank that ends at once after a collective may abort (PyTorch 2.13 over gloo)
    accelerator.end_training()


if __name__ == "__main__":
    main()

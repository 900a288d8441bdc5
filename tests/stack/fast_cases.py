"""Run by one rank: trainings that know nothing of --fast, one line of JSON with what each has found.

With `accelerate` as an argument, the script wraps its models' forward pass as accelerate's mixed precision does; with
`fused`, it asks for fused optimizers itself.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

STEPS = 12
KEPT = "fast-state.pt"


def network() -> Any:
    torch.manual_seed(1)
    layers: list[Any] = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(32, 10))
    if "accelerate" in sys.argv:
        forward = model.forward

        def mixed(images: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return forward(images).float()

        model.forward = mixed
    return model


def batch() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(64, 1, 8, 8, generator=generator), torch.randint(0, 10, (64,), generator=generator)


def train(model: Any, optimizer: Any, steps: int = STEPS) -> list[float]:
    losses, (images, labels) = [], batch()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Wrapped(torch.optim.AdamW):  # type: ignore[misc]  # no torch where mypy runs
    """As a user's own optimizer."""


def adam(model: Any, kind: Any = torch.optim.AdamW, **options: Any) -> Any:
    given = {"fused": True} if "fused" in sys.argv else {}
    return kind(model.parameters(), **{"lr": 0.003, **given, **options})


def losses() -> Any:
    return train(model := network(), adam(model))


def optimizers() -> Any:
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        "plain_sgd": (torch.optim.SGD, {}),
        "adam": (torch.optim.Adam, {"amsgrad": True}),
        "adagrad": (torch.optim.Adagrad, {}),
        "subclass": (Wrapped, {}),
        "own_loop": (torch.optim.AdamW, {"foreach": False, "fused": None}),
        "tensor_lr": (torch.optim.AdamW, {"lr": torch.tensor(0.003), "fused": None}),
    }
    found = {}
    for name, (kind, options) in kinds.items():
        optimizer = adam(model := network(), kind, **options)
        with torch.profiler.profile() as profile:
            last = train(model, optimizer)[-1]
        found[name] = last, sorted({event.key for event in profile.key_averages() if "_fused_" in event.key})
    return found


def refused() -> Any:
    """Tensors that fused kernels refuse, or compute wrongly: their memory is in another order than the gradient's."""
    embedding = nn.Embedding(6, 4, sparse=True, _weight=torch.ones(6, 4))
    sparse = torch.optim.SGD(embedding.parameters(), lr=0.1)
    embedding(torch.tensor([1])).sum().backward()
    sparse.step()
    values = [embedding.weight.sum().item()]
    for dtype in (torch.complex64, torch.float64, torch.bfloat16):
        parameter = nn.Parameter(torch.ones(3, dtype=dtype))
        parameter.grad = torch.ones_like(parameter)
        torch.optim.AdamW([parameter], lr=0.1).step()
        values.append(abs(parameter.sum().item()))
    parameter = nn.Parameter(torch.arange(60.0).view(2, 2, 3, 5).to(memory_format=torch.channels_last))
    parameter.grad = torch.arange(60.0).view(2, 2, 3, 5).sin().contiguous()
    torch.optim.SGD([parameter], lr=0.1).step()
    return [*values, (parameter * torch.arange(60.0).view(2, 2, 3, 5)).sum().item()]


def kept() -> Any:
    """A checkpoint of this call, and what follows from that of the call before."""
    optimizer = adam(model := network())
    if os.path.exists(KEPT):
        states = torch.load(KEPT)
        model.load_state_dict(states["model"])
        optimizer.load_state_dict(states["optimizer"])
    before = train(model, optimizer, 3)
    state = optimizer.state_dict()
    torch.save({"model": model.state_dict(), "optimizer": state}, KEPT)
    dtypes = {str(value.dtype) for each in state["state"].values() for value in each.values()}
    return before, sorted(dtypes), state["param_groups"][0]["fused"]


class Adapted(nn.Module):  # type: ignore[misc]
    """As a fine-tuned model: its first parameters are frozen, and in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = nn.Linear(2, 2, dtype=torch.bfloat16), nn.Linear(2, 2)
        self.base.requires_grad_(False)

    def forward(self, data: Any) -> Any:
        return self.adapter(data)


def precision() -> Any:
    """Types inside of models, and of what comes out, in different kinds of calls."""
    found: dict[str, Any] = {}
    model, (images, _) = network(), batch()
    inner = model[4].register_forward_hook(lambda *given: found.update(inner=str(given[2].dtype)))
    found["outer"] = str(model(images).dtype)
    inner.remove()
    with torch.no_grad():
        found["evaluation"] = str(model(images).dtype)
    found["method"] = str(model[:4](images).dtype)
    found["fp64"] = str(nn.Linear(2, 2, dtype=torch.float64)(torch.ones(1, 2, dtype=torch.float64)).dtype)
    found["bf16"] = str(nn.Linear(2, 2, dtype=torch.bfloat16)(torch.ones(1, 2, dtype=torch.bfloat16)).dtype)
    adapted = Adapted()
    adapted.adapter.register_forward_hook(lambda *given: found.update(adapter=str(given[2].dtype)))
    adapted(torch.ones(1, 2))
    found["compiled"] = str(torch.compile(model, backend="eager")(images).dtype)
    results: list[Any] = []

    def call() -> None:
        results.extend(model(images) for _ in range(20))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found["threads"] = sorted({str(result.dtype) for result in results})
    return found


class Careful(nn.Module):  # type: ignore[misc]
    """Turns autocast off for a part, and repeats another one in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.seen: list[str] = []

    def forward(self, values: Any) -> Any:
        hidden = checkpoint(self.first, values, use_reentrant=False)
        with torch.autocast("cpu", enabled=False):
            out = self.second(hidden.float())
        self.seen += [str(hidden.dtype), str(out.dtype)]
        return out


def careful() -> Any:
    torch.manual_seed(3)
    model = Careful()
    model(torch.ones(4, 8, requires_grad=True)).sum().backward()
    return model.seen, model.first.weight.grad.sum().item()


def own() -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return str(network()(batch()[0]).dtype)


CASES: tuple[Callable[[], Any], ...] = (losses, optimizers, refused, kept, precision, careful, own)

if __name__ == "__main__":
    torch.use_deterministic_algorithms(mode=True)
    print(json.dumps({case.__name__: case() for case in CASES}))

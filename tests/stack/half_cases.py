"""What `test_real_half.py` runs in a rank: operators in half precision with their gradients, whole trainings, and fp32.
Prints one line of JSON."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS = 200
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
Operator = tuple[Callable[..., Any], list[tuple[int, ...]]]


def operators() -> Iterator[tuple[str, Operator]]:
    def attend(q: Any, k: Any, v: Any, **options: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, **options)

    mask = torch.ones(24, 24, dtype=torch.bool).tril(3)
    yield "mm", (lambda a, b: a @ b, [(40, 70), (70, 90)])
    yield "mm_turned", (lambda a, b: a @ b.t(), [(40, 70), (90, 70)])
    yield "one_row", (lambda a, b: a @ b, [(1, 300), (300, 200)])
    yield "in_parts", (lambda a, b: F.linear(a, b), [(3, 5000), (1100, 5000)])
    yield "linear", (F.linear, [(8, 40, 70), (90, 70), (90,)])
    yield "addmm", (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), [(90,), (40, 70), (70, 90)])
    yield "bmm", (torch.bmm, [(6, 30, 50), (6, 50, 40)])
    yield "baddbmm", (lambda c, a, b: torch.baddbmm(c, a, b, beta=2), [(6, 30, 40), (6, 30, 50), (6, 50, 40)])
    yield "einsum", (lambda a, b: torch.einsum("bik,bjk->bij", a, b), [(6, 30, 50), (6, 40, 50)])
    yield "conv1d", (F.conv1d, [(3, 8, 60), (12, 8, 5), (12,)])
    yield "conv2d", (lambda x, w: F.conv2d(x, w, stride=2, padding=1), [(3, 16, 20, 20), (24, 16, 3, 3)])
    yield "conv3d", (F.conv3d, [(2, 4, 8, 8, 8), (6, 4, 3, 3, 3)])
    yield "depthwise", (lambda x, w: F.conv2d(x, w, groups=16, padding=1), [(3, 16, 20, 20), (16, 1, 3, 3)])
    yield "transposed", (lambda x, w: F.conv_transpose2d(x, w, stride=2), [(3, 16, 10, 10), (16, 8, 3, 3)])
    yield "attention", (attend, [(2, 4, 24, 16)] * 3)
    yield "causal", (lambda *qkv: attend(*qkv, is_causal=True), [(2, 4, 70, 16)] * 3)
    yield "masked", (lambda *qkv: attend(*qkv, attn_mask=mask), [(2, 4, 24, 16)] * 3)
    yield "checkpoint", (lambda a, b: checkpoint(torch.matmul, a, b, use_reentrant=False), [(40, 70), (70, 90)])


def results(operator: Operator, dtype: torch.dtype) -> list[torch.Tensor]:
    """The result of an operator and the gradient of each input, for the same inputs in each type."""
    torch.manual_seed(0)
    function, shapes = operator
    inputs = [torch.randn(shape).bfloat16().to(dtype).requires_grad_() for shape in shapes]
    result = function(*inputs)
    result.backward(torch.randn(result.shape).bfloat16().to(dtype))
    gradients = [each.grad for each in inputs]
    assert all(each is not None and each.dtype is dtype for each in [result, *gradients])
    return [each.detach().double() for each in [result, *gradients] if each is not None]


def error(operator: Operator, dtype: torch.dtype) -> float:
    """The largest relative error of a result and its gradients."""
    exact = results(operator, torch.float64)
    return max(
        float((own - right).norm() / right.norm()) for own, right in zip(results(operator, dtype), exact, strict=True)
    )


def classifier() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 10))


def convolutions() -> torch.nn.Module:
    parts = torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3, stride=2)
    return torch.nn.Sequential(torch.nn.Unflatten(1, (1, 8, 8)), *parts, torch.nn.Flatten(), torch.nn.Linear(144, 10))


def losses(make: Callable[[], torch.nn.Module], dtype: torch.dtype, *, is_autocast: bool) -> list[float]:
    torch.manual_seed(0)
    model, made = make().to(torch.float32 if is_autocast else dtype), []
    data = torch.randn(2000, 64)
    labels = (data @ torch.randn(64, 10)).argmax(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(STEPS):
        rows = slice(step * 50 % 2000, step * 50 % 2000 + 50)
        with torch.autocast("cpu", dtype, enabled=is_autocast):
            outputs = model(data[rows] if is_autocast else data[rows].to(dtype))
        loss = F.cross_entropy(outputs.float(), labels[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        made.append(float(loss.detach()))
    return made


def main() -> None:
    torch.set_num_threads(1)
    digests = [digest_of_fp32()]
    found: dict[str, Any] = {"errors": {}, "losses": {}, "before": "half_math" in acted()}
    for name, dtype in TYPES.items():
        torch.nn.Linear(2, 2).to(dtype)(torch.ones(1, 2).to(dtype))
        found["errors"][name] = {each: error(operator, dtype) for each, operator in operators()}
    digests.append(digest_of_fp32())
    trainings = {"classifier": (classifier, False), "convolutions": (convolutions, True)}
    for name, (make, is_autocast) in trainings.items():
        found["losses"][name] = {
            "fp32": losses(make, torch.float32, is_autocast=False),
            "bf16": losses(make, torch.bfloat16, is_autocast=is_autocast),
        }
    refused: list[Callable[[], Any]] = [
        lambda: ones(2, 3) @ ones(4, 5),
        lambda: ones(2, 3) @ torch.ones(3, 2),
        lambda: ones(2, 3) @ ones(3, 1, 2, 4),
    ]
    for call in refused:
        try:
            call()
        except RuntimeError as raised:
            found.setdefault("refused", []).append(str(raised))
    with torch.inference_mode():
        found["inference"] = float((ones(40, 300) @ ones(300, 200)).float().sum())
    compiled: Any = torch.compile(lambda a, b: a @ b, backend="aot_eager")
    found["compiled"] = float(compiled(ones(40, 300), ones(300, 200)).float().sum())
    print(json.dumps({**found, "fp32": digests}))


def together() -> None:
    """Train with DDP, and with FSDP2 in bf16 of fp32 parameters: all ranks keep the same parameters."""
    # Absent from older versions, which run the rest.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 300)).bfloat16()
    )
    made = trained_together(model, torch.bfloat16)
    parts = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.GELU()) for _ in range(2)))
    for part in (*parts, parts):
        fully_shard(
            part, mesh=init_device_mesh("cpu", (2,)), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        )
    made += trained_together(parts, torch.float32)
    print(json.dumps(made))
    dist.destroy_process_group()


def trained_together(model: torch.nn.Module, dtype: torch.dtype) -> list[float]:
    """The last loss, and the sum of all parameters."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for step in range(5):
        torch.manual_seed(10 * step + dist.get_rank())
        loss = model(torch.randn(64, 300).to(dtype)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters()]
    return [float(loss.detach()), sum(float(each.detach().double().sum()) for each in whole)]


def acted() -> dict[str, Any]:
    module = sys.modules.get("ipexctl_inrank.acted")
    return getattr(module, "acting_levers", {})


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bfloat16)


def digest_of_fp32() -> str:
    tensors = [each.float() for _, operator in operators() for each in results(operator, torch.float32)]
    return hashlib.sha256(b"".join(each.numpy().tobytes() for each in tensors)).hexdigest()


if __name__ == "__main__":
    together() if "together" in sys.argv else main()

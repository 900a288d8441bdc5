"""Measure what bf16 and a fused optimizer would bring to a profiled script: time its own matrix products, forward and
backward, and its optimizer's step, on tensors of the same sizes in each form.

Nothing of the script is touched: neither its tensors nor a random number generator, and settings of torch are put back.
Products beyond the limits of time and memory count as unchanged, and so do all other operators. Beside other programs,
one thread is measured by its processor time: threads that wait for a preempted one make any form look slow.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from typing import Any, Callable, Iterator, Mapping

from .acted import is_rounding

MOST_SECONDS = 3.0
LONGEST = 0.05
"""Seconds of a forward above which a product is timed with fewer rows."""
MOST_NUMBERS = 8 << 20
"""Numbers in a tensor; the products' tensors have fewer rows, the optimizer fewer parameters."""
ROUNDS = 3
HALF = {"bf16": "bfloat16", "fp16": "float16"}
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def measure_levers(
    torch: Any,
    forwards: Mapping[Any, Any],
    product_seconds: float,
    optimizer: Any,
    optimizer_seconds: float,
    *,
    is_busy: bool,
) -> list[dict[str, Any]]:
    """Return each lever with the seconds of all products, or of the optimizer, now and with it. Levers that these cores
    or this torch lack are left out.

    `forwards`: product of the forward, in fp32 or left to torch in half → its seconds and calls; None for the other
    products.
    """
    levers, threads = [], torch.get_num_threads()
    clock = time.process_time if is_busy or threads == 1 else time.perf_counter
    try:
        if is_busy:
            torch.set_num_threads(1)
        if any(forwards):
            forms = measure_products(torch, forwards, clock)
            names = (("autocast", "autocast"), ("fp32_math", "rounded"), ("half_math", "widened"))
            levers = [(name, product_seconds, forms[form]) for name, form in names]
        if optimizer_seconds:
            levers.append(("fused_optimizer", optimizer_seconds, measure_fused(torch, optimizer, clock)))
    finally:
        if is_busy:
            torch.set_num_threads(threads)
    return [{"lever": name, "now": now, "then": now * ratio} for name, now, ratio in levers if ratio]


def measure_products(torch: Any, forwards: Mapping[Any, Any], clock: Callable[[], float]) -> dict[str, float]:
    """Return form → time of all products in it, relative to now; 0 for a form that these cores or this torch lack."""
    until = time.monotonic() + MOST_SECONDS
    of_fp32 = [*(["autocast"] if has_bf16() else []), *([] if is_rounding(torch) else ["rounded"])]
    of_type = {"fp32": of_fp32, **{name: ["widened"] for name in HALF}}
    types = dict.fromkeys(kind[3] for kind in forwards if kind is not None)
    took = dict.fromkeys(["now", *(form for dtype in types for form in of_type[dtype])], 0.0)
    for kind in sorted(forwards, key=lambda each: -forwards[each][0]):
        seconds, calls = forwards[kind]
        best: dict[str, float] = {}
        if kind is not None and time.monotonic() < until:
            with contextlib.suppress(RuntimeError, TypeError, ValueError):  # counts as unchanged
                product = make_product(torch, kind, seconds / calls)
                forms = ("now", *of_type[kind[3]])
                runs = {form: functools.partial(run_product, torch, form, *product) for form in forms}
                best = fastest(runs, until, clock)
        for form in took:
            took[form] += seconds * (best[form] / best["now"] if form in best else 1.0)
    return {form: took[form] / took["now"] if form in took else 0.0 for form in ("autocast", "rounded", "widened")}


def fastest(forms: Mapping[str, Callable[[], object]], until: float, clock: Callable[[], float]) -> dict[str, float]:
    """Return the shortest time of each form, in turns, after one to warm up. A form gets fewer turns once the time is
    over, but at least one."""
    times: dict[str, list[float]] = {form: [] for form in forms}
    for _ in range(1 + ROUNDS):
        for form, run in forms.items():
            if time.monotonic() > until and len(times[form]) > 1:
                continue
            begun = clock()
            run()
            times[form].append(clock() - begun)
    return {form: min(turns[1:]) for form, turns in times.items()}


def make_product(torch: Any, kind: Any, seconds: float) -> tuple[Callable[..., Any], list[Any], Any]:
    """Return the function, its inputs, and the gradient of its result."""
    name, shapes, options, dtype = kind
    share = max(1.0, seconds / LONGEST, *(numbers(shape) / MOST_NUMBERS for shape in shapes))
    rows = max(1, int(shapes[0][0] / share))
    has_rows = (True, name != "linear" and name != "conv", True)
    shapes = [(rows, *shape[1:]) if each else shape for shape, each in zip(shapes, has_rows)]
    if name == "conv":
        sizes = dict(zip(("stride", "padding", "dilation", "groups"), options))
        function = functools.partial(getattr(torch, f"conv{len(shapes[0]) - 2}d"), **sizes)
    elif name == "attention":
        function = functools.partial(torch.nn.functional.scaled_dot_product_attention, is_causal=options)
    else:
        function = torch.nn.functional.linear if name == "linear" else torch.bmm
    of_torch = getattr(torch, HALF.get(dtype, "float32"))
    inputs = [torch.full(shape, 0.5, dtype=of_torch, requires_grad=True) for shape in shapes]
    with torch.no_grad():
        return function, inputs, torch.ones_like(function(*(each.float() for each in inputs)))


def numbers(shape: Any) -> int:
    """Return how many numbers a tensor of this shape has."""
    result = 1
    for size in shape:
        result *= int(size)
    return result


def run_product(torch: Any, form: str, function: Callable[..., Any], inputs: list[Any], gradient: Any) -> None:
    """Make a product and its gradients once, in this form: `now`, `autocast`, `rounded` or `widened`."""
    with torch.enable_grad(), rounding(torch) if form == "rounded" else contextlib.nullcontext():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=form == "autocast"):
            result = function(*((tensor.float() for tensor in inputs) if form == "widened" else inputs))
        torch.autograd.grad(result.float(), inputs, gradient)


@contextlib.contextmanager
def rounding(torch: Any) -> Iterator[None]:
    """Round the inputs of fp32 products to bf16 in the `with` block, as `--fp32-math bf16` does it
    (`rank_hooks.py`)."""
    before = torch.get_float32_matmul_precision()
    backends: list[Any] = [getattr(torch.backends.mkldnn, name, None) for name in ("conv", "rnn")]
    parts = [(part, part.fp32_precision) for part in backends if hasattr(part, "fp32_precision")]
    try:
        torch.set_float32_matmul_precision("medium")
        for part, _ in parts:
            part.fp32_precision = "bf16"
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        for part, precision in parts:
            part.fp32_precision = precision


def measure_fused(torch: Any, optimizer: Any, clock: Callable[[], float]) -> float:
    """Return the time of a fused step, relative to now; 0 if the optimizer is fused already, or has no such step."""
    kind, groups = type(optimizer), optimizer.param_groups
    if (
        os.environ.get("IPEXCTL_FUSED_OPTIMIZER")
        or kind not in [getattr(torch.optim, name) for name in FUSED]
        or any(
            group.get("fused") is not None or group.get("foreach") or group.get("differentiable") for group in groups
        )
    ):
        return 0.0
    parameters = [tensor for group in groups for tensor in group["params"] if tensor.grad is not None]
    if any(tensor.grad.is_sparse or tensor.dtype != torch.float32 for tensor in parameters):
        return 0.0
    every = 1 + sum(tensor.numel() for tensor in parameters) // MOST_NUMBERS
    sizes = [min(getattr(tensor, "_local_tensor", tensor).numel(), MOST_NUMBERS) for tensor in parameters[::every]]
    copies = [torch.full((size,), 0.5, dtype=torch.float32, requires_grad=True) for size in sizes if size]
    for tensor in copies:
        tensor.grad = torch.full_like(tensor, 0.5)
    options = {name: value for name, value in groups[0].items() if name not in ("params", "fused", "foreach")}
    step = getattr(kind.step, "__wrapped__", None)  # without the hooks, which would count it
    if not copies or step is None:
        return 0.0
    with contextlib.suppress(RuntimeError, TypeError, ValueError):  # this torch has no fused step for it
        forms = {form: kind([{**options, "params": copies}], fused=form == "fused") for form in ("now", "fused")}
        runs = {form: functools.partial(step, made) for form, made in forms.items()}
        best = fastest(runs, time.monotonic() + MOST_SECONDS, clock)
        return best["fused"] / best["now"]
    return 0.0


def is_half_left() -> bool:
    """True if the user leaves products of half precision to torch."""
    return os.environ.get("IPEXCTL_HALF_MATH") == "own"


def has_bf16() -> bool:
    """True if this processor has instructions for bf16."""
    with open("/proc/cpuinfo") as file:
        flags = next((line.split() for line in file if line.startswith("flags")), [])
    return "avx512_bf16" in flags or "amx_bf16" in flags

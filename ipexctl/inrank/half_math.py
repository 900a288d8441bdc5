"""Products of bf16 and fp16 matrices are computed in fp32 and rounded once, where that is faster: `run --half-math
auto`. `rank_hooks.py` calls `watch_half_types` once torch is imported.

- torch multiplies these types on processors without units for them in loops, 2 to 500 times slower than fp32
  (pytorch#146508). Here their kernels are replaced in torch's dispatcher, below autograd and autocast, so models,
  gradients, optimizers and checkpoints keep their types.
- Nothing is replaced before a module is called with half parameters or inputs, or an autocast is entered, and unless a
  measurement on the rank's own cores shows a gain. Each kind of product is measured when it is first met: by type,
  layout, rows and size, on matrices of its own.
- Memory stays half: large matrices are widened and multiplied in parts.
- fp32 products then go through Python, which takes a few microseconds; their kernel and bits stay the same.
- IPEX and compiled code have kernels of their own, which stay.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import time
import warnings
from typing import Any, Callable, NamedTuple, Sequence

import torch

from .acted import ActingLever
from .meter import COMPILER, is_new_enough

VARIABLE = "IPEXCTL_HALF_MATH"
HALF = frozenset((torch.bfloat16, torch.float16))
WORTH = 1.2
"""Least gain of a kind of product, so that noise does not decide."""
CLEAR = 8.0
"""Gain of a small sample that makes a larger one needless, which torch's loops would need 100 ms for."""
ROUNDS = 3
LARGE_CONVOLUTION = 1 << 18
"""Products of numbers from which a convolution is measured with 32 channels instead of 4."""
BLOCK, DEPTH = 4 << 20, 4096
"""Numbers of a matrix that are widened at once (16 MB), and rows of the second factor among them."""
aten = torch.ops.aten


class Product(NamedTuple):
    own: Callable[..., Any]
    """torch's own kernel, for all types."""
    wide: Callable[..., Any]
    """The same for half tensors, computed in fp32."""
    kind_of: Callable[..., tuple[Any, ...] | None]
    """Arguments of a call → what its speed depends on; None for a call that torch refuses."""
    samples: Callable[..., Sequence[tuple[Any, ...]]]
    """Type and kind → arguments of calls to measure, the smallest first."""


def is_turned(matrix: Any) -> bool:
    """True if the numbers of a column, not of a row, lie side by side."""
    return bool(matrix.stride(-2) == 1 and matrix.stride(-1) != 1)


def kind_of_factors(a: Any, b: Any) -> tuple[Any, ...] | None:
    """Layouts, rows of the first factor, and size of the second one, in a few classes."""
    dimensions = a.dim()
    if dimensions != b.dim() or a.dtype is not b.dtype or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        return None
    rows, numbers = a.shape[-2], b.shape[-2] * b.shape[-1]
    few = 1 if rows == 1 else 4 if rows < 8 else 16 if rows < 32 else 64
    size = 16 if numbers < 1 << 10 else 64 if numbers < 1 << 14 else 256
    return dimensions, is_turned(a), is_turned(b), few, size


def kind_of_sum(c: Any, a: Any, b: Any, **_: Any) -> tuple[Any, ...] | None:
    return kind_of_factors(a, b) if c.dtype is a.dtype else None


def filled(dtype: Any, *shape: int, turned: bool = False) -> Any:
    shape = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
    matrix = torch.full(shape, 0.5, dtype=dtype)
    return matrix.transpose(-1, -2) if turned else matrix


def sample_factors(dtype: Any, dimensions: int, first: bool, second: bool, rows: int, size: int) -> Any:
    batch = (2,) * (dimensions - 2)
    for most_rows, most in ((8, 128), (rows, size)):
        high, wide = min(rows, most_rows), min(size, most)
        yield filled(dtype, *batch, high, wide, turned=first), filled(dtype, *batch, wide, wide, turned=second)


def sample_sum(dtype: Any, *kind: Any) -> Any:
    for a, b in sample_factors(dtype, *kind):
        yield filled(dtype, b.shape[-1]), a, b


def own_mm(a: Any, b: Any) -> Any:
    return torch.mm(a, b, out=torch.empty(0, dtype=a.dtype))


def own_bmm(a: Any, b: Any) -> Any:
    return torch.bmm(a, b, out=torch.empty(0, dtype=a.dtype))


def own_addmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return torch.addmm(c, a, b, beta=beta, alpha=alpha, out=torch.empty(0, dtype=a.dtype))


def own_baddbmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return torch.baddbmm(c, a, b, beta=beta, alpha=alpha, out=torch.empty(0, dtype=a.dtype))


def wide_mm(a: Any, b: Any) -> Any:
    return wide_addmm(None, a, b, beta=0)


def wide_addmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    (rows, depth), columns = a.shape, b.shape[1]
    c = a.new_zeros(1) if c is None or beta == 0 else c  # with 0, torch ignores even nan
    deep = max(1, min(depth, DEPTH))
    wide = max(1, min(columns, BLOCK // deep))
    high = max(1, BLOCK // max(deep, wide))
    if rows <= high and columns <= wide and depth <= deep:
        return own_addmm(c.float(), a.float(), b.float(), beta=beta, alpha=alpha).to(a.dtype)
    c, result = c.expand(rows, columns), a.new_empty((rows, columns))
    for top in range(0, rows, high):
        for left in range(0, columns, wide):
            part = c[top : top + high, left : left + wide].float()
            for at in range(0, depth, deep):
                first = a[top : top + high, at : at + deep].float()
                second = b[at : at + deep, left : left + wide].float()
                part = own_addmm(part, first, second, beta=1 if at else beta, alpha=alpha)
            result[top : top + high, left : left + wide] = part
    return result


def wide_bmm(a: Any, b: Any) -> Any:
    return wide_baddbmm(a.new_zeros(1), a, b, beta=0)


def wide_baddbmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    batch, rows, columns = a.shape[0], a.shape[1], b.shape[2]
    c, result = c.expand(batch, rows, columns), a.new_empty((batch, rows, columns))
    step = max(1, BLOCK // max(1, rows * columns, a.shape[1] * a.shape[2], b.shape[1] * b.shape[2]))
    for at in range(0, batch, step):
        part = slice(at, at + step)
        result[part] = own_baddbmm(c[part].float(), a[part].float(), b[part].float(), beta=beta, alpha=alpha)
    return result


def widened(own: Callable[..., Any], kept: tuple[int, ...] = ()) -> Callable[..., Any]:
    """A kernel for half tensors that calls one for fp32. `kept`: results that the kernel for half has in fp32, too."""

    def to_fp32(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype in HALF else value

    def call(*args: Any, **options: Any) -> Any:
        half = args[0].dtype
        found = own(*map(to_fp32, args), **{name: to_fp32(value) for name, value in options.items()})
        if isinstance(found, torch.Tensor):
            return found.to(half)
        is_wide = [isinstance(each, torch.Tensor) and each.dtype is torch.float32 for each in found]
        return tuple(each.to(half) if is_wide[at] and at not in kept else each for at, each in enumerate(found))

    return call


def kind_of_convolution(x: Any, weight: Any, bias: Any, *options: Any) -> tuple[Any, ...] | None:
    if x.dtype is not weight.dtype or (bias is not None and bias.dtype is not x.dtype):
        return None
    transposed, groups = options[3], options[5]
    is_large = x.numel() // max(1, x.shape[1]) * weight.numel() > LARGE_CONVOLUTION
    return transposed, groups > 1, 32 if is_large else 4, tuple(min(size, 3) for size in weight.shape[2:])


def kind_of_convolution_backward(gradient: Any, x: Any, weight: Any, *options: Any) -> tuple[Any, ...] | None:
    return kind_of_convolution(x, weight, gradient, *options[1:-1])


def sample_convolution(dtype: Any, transposed: bool, is_grouped: bool, channels: int, kernel: tuple[int, ...]) -> Any:
    axes, groups = len(kernel), channels if is_grouped else 1
    x = filled(dtype, 1, channels, *(max(3, round(256 ** (1 / axes))),) * axes)
    weight = filled(dtype, channels, channels // groups, *kernel)
    yield x, weight, None, [1] * axes, [0] * axes, [1] * axes, transposed, [0] * axes, groups


def sample_convolution_backward(dtype: Any, *kind: Any) -> Any:
    for x, weight, _, *options in sample_convolution(dtype, *kind):
        gradient = torch.ones_like(own_convolution(x.float(), weight.float(), None, *options)).to(dtype)
        yield gradient, x, weight, None, *options, [True, True, False]


def composite(name: str) -> Callable[..., Any]:
    """torch's kernel of an operator that has one for all devices, which no kernel for CPUs replaces."""
    return functools.partial(getattr(aten, name).default._op_dk, torch._C.DispatchKey.CompositeExplicitAutograd)


own_convolution = composite("convolution")
own_convolution_backward = composite("convolution_backward")


def kind_of_attention(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> tuple[Any, ...] | None:
    is_alike = q.dtype is k.dtype and q.dtype is v.dtype
    return (q.shape[-1], *(min(64, 1 << x.shape[-2].bit_length()) for x in (q, k))) if is_alike else None


def kind_of_attention_backward(gradient: Any, *tensors: Any, **_: Any) -> tuple[Any, ...] | None:
    return kind_of_attention(*tensors) if gradient.dtype is tensors[0].dtype else None


def sample_attention(dtype: Any, numbers: int, rows: int, columns: int) -> Any:
    yield (filled(dtype, 1, 4, rows, numbers), *(filled(dtype, 1, 4, columns, numbers),) * 2)


PRODUCTS = {
    "mm": Product(own_mm, wide_mm, kind_of_factors, sample_factors),
    "bmm": Product(own_bmm, wide_bmm, kind_of_factors, sample_factors),
    "addmm": Product(own_addmm, wide_addmm, kind_of_sum, sample_sum),
    "baddbmm": Product(own_baddbmm, wide_baddbmm, kind_of_sum, sample_sum),
    "convolution": Product(own_convolution, widened(own_convolution), kind_of_convolution, sample_convolution),
    "convolution_backward": Product(
        own_convolution_backward,
        widened(own_convolution_backward),
        kind_of_convolution_backward,
        sample_convolution_backward,
    ),
}
FIRST_KINDS = (
    ("mm", (2, False, True, 64, 256)),
    ("mm", (2, False, False, 64, 256)),
    ("mm", (2, True, False, 64, 256)),
    ("convolution", (False, False, 32, (3, 3))),
)
"""Products of a forward and a backward pass that decide whether a type is slow."""


def attention_products() -> dict[str, Product]:
    """The kernels of attention, which only a torch with `get_kernel` can call once they are replaced. An older one
    keeps its own."""
    get_kernel = getattr(torch.library, "get_kernel", None)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    if get_kernel is None or not hasattr(aten, name):
        return {}
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    own, own_backward = (
        functools.partial(get_kernel(f"aten::{each}", "CPU").call_boxed, keys) for each in (name, f"{name}_backward")
    )

    def sample_backward(dtype: Any, *kind: Any) -> Any:
        for q, k, v in sample_attention(dtype, *kind):
            found = own(q.float(), k.float(), v.float(), 0.0, False)
            yield torch.ones_like(q), q, k, v, found[0].to(dtype), found[1], 0.0, False

    return {
        name: Product(own, widened(own, kept=(1,)), kind_of_attention, sample_attention),
        f"{name}_backward": Product(own_backward, widened(own_backward), kind_of_attention_backward, sample_backward),
    }


def measure_gain(product: Product, dtype: Any, kind: tuple[Any, ...]) -> float:
    """How many times as long torch's kernel takes; 0 if it cannot be told."""
    gain = 0.0
    try:
        for arguments in product.samples(dtype, *kind):
            wide, own = (fastest(call, arguments, ROUNDS) for call in (product.wide, product.own))
            gain = own / wide
            if gain >= CLEAR:
                break
    except RuntimeError:  # no memory, or no kernel for the type
        return 0.0
    return gain


def fastest(call: Callable[..., Any], arguments: tuple[Any, ...], rounds: int) -> float:
    """Shortest time after one to warm up; one round is enough for a slow call."""
    call(*arguments)
    shortest = math.inf
    for _ in range(rounds):
        begun = time.perf_counter()
        call(*arguments)
        shortest = min(shortest, time.perf_counter() - begun)
        if shortest > 1e-3:
            break
    return shortest


class HalfMath:
    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._slow: set[Any] = set()
        self.is_settled: dict[Any, bool] = dict.fromkeys(HALF, False)
        self._lever: Any = None
        self._library: Any = None
        self._gains: dict[tuple[Any, ...], float] = {}

    def meet(self, dtype: Any) -> None:
        """Measure a type when the process first uses it, and replace torch's kernels if it is slow."""
        if self.is_settled.get(dtype, True):
            return
        self.is_settled[dtype] = True
        if "intel_extension_for_pytorch" in sys.modules:
            return
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._settle(dtype, str(dtype).rpartition(".")[2])
        except Exception as error:  # noqa: BLE001  # the script trains without it
            print(f"ipexctl: --half-math auto is off: {type(error).__name__}", file=sys.stderr)  # noqa: T201

    def _settle(self, dtype: Any, name: str) -> None:
        gain = max(self._gain(product, PRODUCTS[product], dtype, kind) for product, kind in FIRST_KINDS)
        self._lever = self._lever or ActingLever("half_math", "--half-math auto", VARIABLE)
        if gain < WORTH:
            self._lever.leave(f"torch multiplies {name} as fast as fp32 here")
        elif self._mode == "own":
            self._lever.leave(
                f"--half-math own keeps torch's products of {name}, measured {gain:.1f}x as slow as in fp32"
            )
        else:
            self._slow.add(dtype)
            if self._library is None:
                self._lever.detail = (
                    f": {name} is multiplied in fp32, up to {gain:.1f}x as fast here; --half-math own leaves that out"
                )
                self._replace_kernels()

    def _replace_kernels(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that kernels are replaced
            for name, product in {**PRODUCTS, **attention_products()}.items():
                self._library.impl(name, self._kernel(name, product), "CPU")

    def _gain(self, name: str, product: Product, dtype: Any, kind: tuple[Any, ...]) -> float:
        key = (name, dtype, *kind)
        if key not in self._gains:
            self._gains[key] = measure_gain(product, dtype, kind)
        return self._gains[key]

    def _kernel(self, name: str, product: Product) -> Callable[..., Any]:
        slow, own = self._slow, product.own

        def multiply(*args: Any, **options: Any) -> Any:
            dtype = args[0].dtype
            with torch._C.DisableTorchFunction():
                kind = product.kind_of(*args, **options) if dtype in slow else None
                if kind is None or self._gain(name, product, dtype, kind) < WORTH:
                    return own(*args, **options)
                self._lever.act()
                return product.wide(*args, **options)

        return multiply


def watch_half_types(torch: Any) -> None:
    """Meet a type where a module is called with it, or an autocast entered."""
    own, module, autocast = HalfMath(os.environ.get(VARIABLE, "")), torch.nn.Module, torch.autocast
    compiler = torch.compiler if is_new_enough(torch.__version__, COMPILER) else torch._utils
    call, enter = module.__call__, autocast.__enter__

    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if compiler.is_compiling():
            return call(self, *args, **kwargs)
        for value in (*args[:1], *self._parameters.values()):
            dtype = getattr(value, "dtype", None)
            if dtype in HALF:
                own.meet(dtype)
                if all(own.is_settled.values()) and module.__call__ is __call__:
                    module.__call__ = call
                break
        return call(self, *args, **kwargs)

    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:  # noqa: N807
        if getattr(self, "_enabled", False) and getattr(self, "device", "") == "cpu":
            own.meet(getattr(self, "fast_dtype", None))
        return enter(self)

    module.__call__, autocast.__enter__ = __call__, __enter__

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
from typing import Any, Callable, Iterable, NamedTuple, Optional

import torch

from .acted import ActingLever, acting_levers
from .lever_times import fastest
from .meter import COMPILER, is_new_enough

VARIABLE = "IPEXCTL_HALF_MATH"
HALF = frozenset((torch.bfloat16, torch.float16))
WORTH = 1.2
"""Least gain of a kind of product, so that noise does not decide."""
CLEAR = 8.0
"""Gain of a small sample that makes a larger one needless, which torch's loops would need 100 ms for."""
SECONDS = 0.02
"""After that, a sample is timed once more at most."""
LARGE_CONVOLUTION = 1 << 18
"""Products of numbers from which a convolution is measured with 32 channels instead of 4."""
BLOCK, DEPTH = 4 << 20, 4096
"""Numbers of a matrix that are widened at once (16 MB), and rows of the second factor among them."""
aten, DispatchKey = torch.ops.aten, torch._C.DispatchKey
Kind = Optional[tuple]  # type: ignore[type-arg]  # Python 3.8 cannot subscript it here
"""What the speed of a call depends on; None for a call that torch refuses."""


class Product(NamedTuple):
    """A kind of product: torch's kernel, the widened one, and how to compare them."""

    own: Callable[..., Any]
    """torch's own kernel, for all types."""
    wide: Callable[..., Any]
    """The same for half tensors, computed in fp32."""
    kind_of: Callable[..., Kind]
    """Arguments of a call → its kind."""
    samples: Callable[..., Iterable[tuple[Any, ...]]] | None
    """Type and kind → arguments of calls to measure, the smallest first; None if the gain is known."""
    key: str = "CPU"
    """Dispatch key of the kernel."""


def into_new(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a product in its form with `out`, whose kernel stays torch's own."""
    return lambda *args, **options: function(*args, **options, out=torch.empty(0, dtype=args[0].dtype))


def composite(name: str, key: str = "CompositeExplicitAutograd") -> Callable[..., Any]:
    """Return torch's kernel of an operator that has one for all devices, which no kernel for CPUs replaces."""
    return functools.partial(getattr(aten, name).default._op_dk, getattr(DispatchKey, key))


own_addmm, own_baddbmm = into_new(torch.addmm), into_new(torch.baddbmm)
own_convolution, own_convolution_backward = composite("convolution"), composite("convolution_backward")


def wide_addmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return `beta * c + alpha * a @ b`, computed in fp32 and rounded once to the type of `a`. Large matrices are
    widened in parts."""
    (rows, depth), columns = a.shape, b.shape[1]
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


def wide_baddbmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return what `wide_addmm` does for each matrix of a batch, a few matrices at a time."""
    (batch, rows, depth), columns = a.shape, b.shape[2]
    c, result = c.expand(batch, rows, columns), a.new_empty((batch, rows, columns))
    step = max(1, BLOCK // max(1, rows * columns, rows * depth, depth * columns))
    for at in range(0, batch, step):
        part = slice(at, at + step)
        result[part] = own_baddbmm(c[part].float(), a[part].float(), b[part].float(), beta=beta, alpha=alpha)
    return result


def without_sum(wide: Callable[..., Any]) -> Callable[..., Any]:
    """Return the product alone, from a function that adds a matrix to it."""
    return lambda a, b: wide(a.new_zeros(1), a, b, beta=0)


def widened(own: Callable[..., Any], kept: int | None = None) -> Callable[..., Any]:
    """Return a kernel for half tensors that calls one for fp32. `kept`: position of a result that the kernel for half
    has in fp32, too; None if there is none."""

    def to_fp32(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype in HALF else value

    def call(*args: Any, **options: Any) -> Any:
        def to_half(result: Any) -> Any:
            is_wide = isinstance(result, torch.Tensor) and result.dtype is torch.float32
            return result.to(args[0].dtype) if is_wide else result

        results = own(*map(to_fp32, args), **{name: to_fp32(value) for name, value in options.items()})
        if isinstance(results, torch.Tensor):
            return to_half(results)
        return tuple(result if at == kept else to_half(result) for at, result in enumerate(results))

    return call


def kind_of_factors(a: Any, b: Any) -> Kind:
    """Return layouts, rows of the first factor, and size of the second one, in a few classes; None for factors that do
    not fit."""
    if a.dim() != b.dim() or a.dtype is not b.dtype or (a.shape[-1], *a.shape[:-2]) != (b.shape[-2], *b.shape[:-2]):
        return None
    rows, numbers = a.shape[-2], b.shape[-2] * b.shape[-1]
    few = 1 if rows == 1 else 4 if rows < 8 else 16 if rows < 32 else 64
    size = 16 if numbers < 1 << 10 else 64 if numbers < 1 << 14 else 256
    # A factor is turned if the numbers of a column, not of a row, lie side by side.
    return a.dim(), *(x.stride(-2) == 1 and x.stride(-1) != 1 for x in (a, b)), few, size


def kind_of_sum(c: Any, a: Any, b: Any, **_: Any) -> Kind:
    """Return the kind of the factors; None if the matrix that is added has another type."""
    return kind_of_factors(a, b) if c.dtype is a.dtype else None


def filled(dtype: Any, *shape: int, is_turned: bool = False) -> Any:
    """Return a matrix with a constant in all places. `is_turned`: the numbers of a column, not of a row, lie side by
    side."""
    matrix = torch.full((*shape[:-2], shape[-1], shape[-2]) if is_turned else shape, 0.5, dtype=dtype)
    return matrix.transpose(-1, -2) if is_turned else matrix


def sample_factors(dtype: Any, dimensions: int, first: bool, second: bool, rows: int, size: int) -> Any:
    """Yield two factors of this kind, small ones first."""
    for most_rows, most in ((8, 128), (rows, size)):
        batch, high, wide = (2,) * (dimensions - 2), min(rows, most_rows), min(size, most)
        yield filled(dtype, *batch, high, wide, is_turned=first), filled(dtype, *batch, wide, wide, is_turned=second)


def sample_sum(dtype: Any, *kind: Any) -> Any:
    """Yield arguments of a product with a sum, of this kind, small ones first."""
    return ((b.new_zeros(1), a, b) for a, b in sample_factors(dtype, *kind))


def kind_of_convolution(x: Any, weight: Any, bias: Any, *options: Any) -> Kind:
    """Return what the speed of a convolution depends on; None if its tensors have different types."""
    if x.dtype is not weight.dtype or (bias is not None and bias.dtype is not x.dtype):
        return None
    is_large = x.numel() // max(1, x.shape[1]) * weight.numel() > LARGE_CONVOLUTION
    return options[3], options[5] > 1, 32 if is_large else 4, tuple(min(size, 3) for size in weight.shape[2:])


def sample_convolution(dtype: Any, transposed: bool, is_grouped: bool, channels: int, kernel: Any) -> Any:
    """Yield the arguments of one convolution of this kind."""
    axes, groups = len(kernel), channels if is_grouped else 1
    x = filled(dtype, 1, channels, *(max(3, round(256 ** (1 / axes))),) * axes)
    weight = filled(dtype, channels, channels // groups, *kernel)
    yield x, weight, None, [1] * axes, [0] * axes, [1] * axes, transposed, [0] * axes, groups


def sample_convolution_backward(dtype: Any, *kind: Any) -> Any:
    """Yield the arguments of one backward of a convolution of this kind."""
    for x, weight, _, *options in sample_convolution(dtype, *kind):
        result = own_convolution(x.float(), weight.float(), None, *options)
        yield torch.ones_like(result, dtype=dtype), x, weight, None, *options, [True, True, False]


def kind_of_attention(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Kind:
    """Return what the speed of attention depends on; None if its tensors have different types."""
    is_alike = q.dtype is k.dtype and q.dtype is v.dtype
    return (q.shape[-1], *(min(64, 1 << x.shape[-2].bit_length()) for x in (q, k))) if is_alike else None


def sample_attention(dtype: Any, numbers: int, rows: int, columns: int) -> Any:
    """Yield query, key and value of one attention of this kind."""
    yield (filled(dtype, 1, 4, rows, numbers), *(filled(dtype, 1, 4, columns, numbers),) * 2)


def attention_products() -> dict[str, Product]:
    """Return name → kernels of attention. A torch without `get_kernel` cannot call them once they are replaced; there,
    attention is widened above autograd."""
    name = "_scaled_dot_product_flash_attention_for_cpu"
    if not hasattr(torch.library, "get_kernel"):
        name = "scaled_dot_product_attention"
        own = composite(name, "CompositeImplicitAutograd")
        # The backward pass is what is slow.
        kind_of = lambda q, *args, **_: kind_of_attention(q, *args) if q.requires_grad else None  # noqa: E731
        return {name: Product(own, widened(own), kind_of, None, "AutogradCPU")}
    keys = torch._C.DispatchKeySet(DispatchKey.CPU)
    own, own_backward = (
        functools.partial(torch.library.get_kernel(f"aten::{each}", "CPU").call_boxed, keys)
        for each in (name, f"{name}_backward")
    )

    def sample_backward(dtype: Any, *kind: Any) -> Any:
        for q, k, v in sample_attention(dtype, *kind):
            result, sums, *_ = own(q.float(), k.float(), v.float(), 0.0, False)
            yield torch.ones_like(q), q, k, v, result.to(dtype), sums, 0.0, False

    return {
        name: Product(own, widened(own, kept=1), kind_of_attention, sample_attention),
        f"{name}_backward": Product(
            own_backward,
            widened(own_backward),
            lambda gradient, *args, **_: kind_of_attention(*args) if gradient.dtype is args[0].dtype else None,
            sample_backward,
        ),
    }


PRODUCTS = {
    "mm": Product(into_new(torch.mm), without_sum(wide_addmm), kind_of_factors, sample_factors),
    "bmm": Product(into_new(torch.bmm), without_sum(wide_baddbmm), kind_of_factors, sample_factors),
    "addmm": Product(own_addmm, wide_addmm, kind_of_sum, sample_sum),
    "baddbmm": Product(own_baddbmm, wide_baddbmm, kind_of_sum, sample_sum),
    "convolution": Product(own_convolution, widened(own_convolution), kind_of_convolution, sample_convolution),
    "convolution_backward": Product(
        own_convolution_backward,
        widened(own_convolution_backward),
        lambda gradient, x, weight, _, *options: kind_of_convolution(x, weight, gradient, *options),
        sample_convolution_backward,
    ),
}
FIRST_KINDS = (
    *(("mm", (2, first, second, 64, 256)) for first, second in ((False, True), (False, False), (True, False))),
    ("convolution", (False, False, 32, (3, 3))),
)
"""Products of a forward and a backward pass that decide whether a type is slow."""


def measure_gain(product: Product, dtype: Any, kind: Any) -> float:
    """Return how many times as long torch's kernel takes as the widened one, by the largest sample that is worth
    measuring; infinity if the product has no samples, because its gain is known."""
    gain = 0.0 if product.samples else math.inf
    for arguments in product.samples(dtype, *kind) if product.samples else ():
        calls = {way: functools.partial(getattr(product, way), *arguments) for way in ("own", "wide")}
        times = fastest(calls, time.monotonic() + SECONDS, time.thread_time)
        gain = times["own"] / times["wide"]
        if gain >= CLEAR:
            break
    return gain


class HalfMath:
    """Decides for each half type, and for each kind of product, which kernel is used."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._slow: set[Any] = set()
        self.unmet = set(HALF)
        self._library: Any = None
        self._gains: dict[tuple[Any, ...], float] = {}

    def meet(self, dtype: Any) -> None:
        """Measure a type when the process first uses it, and replace torch's kernels if it is slow."""
        if dtype not in self.unmet:
            return
        self.unmet.discard(dtype)
        if "intel_extension_for_pytorch" not in sys.modules:
            try:
                with torch._C.DisableTorchFunction(), torch.no_grad():
                    self._measure(dtype, str(dtype).rpartition(".")[2])
            except Exception:  # noqa: BLE001  # a torch without what this uses; the script runs without it
                self._slow.clear()

    def _measure(self, dtype: Any, name: str) -> None:
        """Decide whether a type is slow on these cores, and note why not."""
        gain = max(self._gain(product, PRODUCTS[product], dtype, kind) for product, kind in FIRST_KINDS)
        self._lever = acting_levers.get("half_math") or ActingLever("half_math", "--half-math auto", VARIABLE)
        if gain < WORTH:
            self._lever.leave(f"torch multiplies {name} as fast as fp32 here")
        elif self._mode == "own":
            self._lever.leave(f"--half-math own keeps torch's products of {name}, up to {gain:.1f}x as slow as in fp32")
        else:
            how = f"{name} products are computed in fp32, measured up to {gain:.1f}x as fast here"
            self._lever.detail = f": {how}; --half-math own leaves them to torch"
            self._slow.add(dtype)
            if self._library is None:
                self._replace_kernels()

    def _replace_kernels(self) -> None:
        """Replace torch's kernels of all products. Types that are not slow keep the own kernel."""
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that kernels are replaced
            for name, product in {**PRODUCTS, **attention_products()}.items():
                self._library.impl(name, self._kernel(name, product), product.key)

    def _gain(self, name: str, product: Product, dtype: Any, kind: tuple[Any, ...]) -> float:
        """Return how many times as long torch's kernel takes; 0 if it cannot be told."""
        key = (name, dtype, *kind)
        if key not in self._gains:
            threads = torch.get_num_threads()
            try:
                torch.set_num_threads(1)  # whose processor time shows no other program
                self._gains[key] = measure_gain(product, dtype, kind)
            except RuntimeError:  # no memory, or no kernel for the type
                self._gains[key] = 0.0
            finally:
                torch.set_num_threads(threads)
        return self._gains[key]

    def _kernel(self, name: str, product: Product) -> Callable[..., Any]:
        """Return the kernel that replaces torch's: it widens calls of a slow type whose kind gains from that."""
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


def watch_half_types(module: Any) -> None:
    """Measure a half type once a module is called with it, or an autocast to it is entered. `module`: torch."""
    own, model, autocast = HalfMath(os.environ.get(VARIABLE, "")), module.nn.Module, module.autocast
    compiler = module.compiler if is_new_enough(module.__version__, COMPILER) else module._utils
    call, enter = model.__call__, autocast.__enter__

    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if not compiler.is_compiling():
            for value in (*args[:1], *self._parameters.values()):
                if getattr(value, "dtype", None) in own.unmet:
                    own.meet(value.dtype)
            if not own.unmet and model.__call__ is __call__:
                model.__call__ = call
        return call(self, *args, **kwargs)

    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:  # noqa: N807
        if getattr(self, "_enabled", False) and getattr(self, "device", "") == "cpu":
            own.meet(getattr(self, "fast_dtype", None))
        return enter(self)

    model.__call__, autocast.__enter__ = __call__, __enter__

"""Autocast and fused optimizers for scripts as they are: `run --fast` and its parts. `rank_hooks.py` calls
`autocast_models` and `fuse_optimizers` once torch is imported. Each says that it is on when it acts for the first time.

- Autocast is accelerate's mixed precision: a module that no other module calls runs under autocast, and its outputs
  become fp32. What the script computes from them, such as the loss, stays fp32.
- A model that trains no fp32 parameter, or under the script's own autocast, runs as it is. Inside a model, the script's
  autocast wins, also `enabled=False`.
- An optimizer passes lists of tensors to a function of its module. Only the kernel that this function chooses changes,
  so parameter groups, states and checkpoints stay as the script has them.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import re
import sys
import threading
from collections.abc import Mapping
from typing import Any, Callable, Iterable

from .acted import ActingLever
from .meter import COMPILER, is_new_enough

KERNELS = {"adam": "_fused_adam_", "adamw": "_fused_adamw_", "sgd": "_fused_sgd_", "adagrad": "_fused_adagrad_"}
"""Module of an optimizer, and name of its function → fused kernel."""
OF_TYPES = re.compile(
    r"bfloat16|^(?!.*\b(?:float|double|half|long|int|bool|short|byte|char)(?:8|16|32|64)?\b).*(?:dtype|scalar ?type)",
    re.IGNORECASE | re.DOTALL,
)
"""What torch says where bf16 meets another type, or two types that it does not name."""
CHECKED, MOST_ROUNDED = 1 << 14, 0.01
"""Numbers of the first inputs that are checked, and what rounding may change, in standard deviations."""
FEW_BITS = "are hard to tell apart in bf16: normalize them, or --autocast off"
SECOND_DERIVATIVES = "the script differentiates gradients, which errs far more in bf16: compare with --autocast off"
OWN_AUTOCAST = "the script has autocast of its own; --autocast bf16 changes nothing there"


class _Thread(threading.local):
    is_in_model = False


def autocast_models(torch: Any) -> None:
    """Run each module that no other module calls under autocast, from now on. Models that train no fp32 parameter,
    models under the script's own autocast, and compiled code stay as they are."""
    module, autocast, call = torch.nn.Module, torch.autocast, torch.nn.Module.__call__
    compiler = torch.compiler if is_new_enough(torch.__version__, COMPILER) else torch._utils
    half = (torch.bfloat16, torch.float16)
    thread, lever = _Thread(), ActingLever("autocast", "--autocast bf16", "IPEXCTL_AUTOCAST")
    runs_as_it_is = _runs_as_it_is(torch, lever)

    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        # torch.compile traces this only below a compiled module, which was called here before, or below a function.
        if compiler.is_compiling() or thread.is_in_model or runs_as_it_is(self):
            return call(self, *args, **kwargs)
        if not lever.has_acted:
            note_inputs(torch, lever, [*args, *kwargs.values()])
        lever.act()
        try:
            with autocast("cpu", dtype=torch.bfloat16):
                thread.is_in_model = True
                outputs = call(self, *args, **kwargs)
        except Exception as error:
            if OF_TYPES.search(str(error)):
                lever.tell(f"{type(self).__name__} failed under --autocast bf16; leave that out, or --autocast off")
                lever.failed = f"{type(self).__name__} failed under it"
            raise
        finally:
            thread.is_in_model = False
        return to_fp32(torch.Tensor, half, outputs)

    enter = autocast.__enter__

    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:  # noqa: N807
        if thread.is_in_model and getattr(self, "_enabled", False) and getattr(self, "device", "cpu") == "cpu":
            lever.tell(OWN_AUTOCAST)
            autocast.__enter__ = enter
        return enter(self)

    module.__call__, autocast.__enter__ = __call__, __enter__
    torch.autograd.grad = _noting_second_derivatives(torch.autograd.grad, lever)


def note_inputs(torch: Any, lever: ActingLever, values: list[Any]) -> None:
    """Tell if inputs are so far from zero that bf16, with its eight bits, tells few of them apart."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.dtype is torch.float32 and value.numel() > 1:
            part = value.detach().reshape(-1)[:CHECKED]
            if float((part - part.bfloat16()).abs().mean()) > MOST_ROUNDED * float(part.std()) > 0:
                lever.tell(f"inputs from {float(part.min()):g} to {float(part.max()):g} {FEW_BITS}")


def _noting_second_derivatives(grad: Callable[..., Any], lever: ActingLever) -> Callable[..., Any]:
    """Return torch.autograd.grad, which tells if a script differentiates gradients under autocast."""

    @functools.wraps(grad)
    def noting(*args: Any, **kwargs: Any) -> Any:
        if lever.has_acted and kwargs.get("create_graph"):
            lever.tell(SECOND_DERIVATIVES)
        return grad(*args, **kwargs)

    return noting


def _runs_as_it_is(torch: Any, lever: ActingLever) -> Callable[[Any], bool]:
    """Return a function that is True for a model to leave alone. It tells the user why if the script chooses its
    precision."""
    is_autocasting = functools.partial(torch.is_autocast_enabled, "cpu")
    if not is_new_enough(torch.__version__, (2, 4)):
        is_autocasting = torch.is_autocast_cpu_enabled

    def decide(model: Any) -> bool:
        # The first that trains: the frozen base of a fine-tuned model may be in bf16 already.
        parameter = next((other for other in model.parameters() if other.requires_grad), next(model.parameters(), None))
        if parameter is None:  # of a loss
            return True
        if parameter.dtype is not torch.float32 or parameter.device.type != "cpu":
            lever.leave(f"the parameters of {type(model).__name__} are {parameter.dtype} on {parameter.device.type}")
            return True
        if _has_own_precision(model):
            lever.tell("FSDP has a precision of its own; --autocast bf16 changes nothing there")
            lever.leave("FSDP has a precision of its own")
            return True
        # In a backward pass, a checkpoint repeats its part of the forward pass, with autocast as it was there.
        if is_autocasting() and torch._C._current_graph_task_id() == -1:
            lever.tell(OWN_AUTOCAST)
            lever.leave("the script has autocast of its own")
        return bool(is_autocasting())

    return decide


def _has_own_precision(model: Any) -> bool:
    """True for FSDP with a policy for mixed precision."""
    policy = getattr(model, "mixed_precision", None)
    if policy is None and hasattr(model, "_get_fsdp_state"):
        policy = getattr(model._get_fsdp_state(), "_mp_policy", None)
    return getattr(policy, "param_dtype", None) is not None


def to_fp32(tensor: type, half: tuple[Any, ...], value: Any) -> Any:
    """Return the outputs of a model with its half-precision tensors as fp32. Containers keep their type, or are the
    object itself if nothing in them changes."""
    if isinstance(value, tensor):
        return value.float() if value.dtype in half else value  # type: ignore[attr-defined]
    convert = functools.partial(to_fp32, tensor, half)
    if isinstance(value, Mapping):
        return _with_items(value, value.items(), convert, lambda found, name, item: found.__setitem__(name, item))
    if isinstance(value, (list, tuple)):
        items = [convert(item) for item in value]
        if all(new is old for new, old in zip(items, value)):
            return value
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return _with_items(value, fields, convert, object.__setattr__)
    return value


def _with_items(
    value: Any, items: Iterable[tuple[str, Any]], convert: Callable[[Any], Any], put: Callable[[Any, str, Any], None]
) -> Any:
    """Return a copy of a container with the converted items, or the container itself if no item changes."""
    converted = [(name, item, convert(item)) for name, item in items]
    changed = [(name, new) for name, old, new in converted if new is not old]
    if not changed:
        return value
    changed_copy = copy.copy(value)
    for name, new in changed:
        put(changed_copy, name, new)
    return changed_copy


def fuse_optimizers(torch: Any) -> None:
    """Let the optimizers of torch use their fused kernels, as far as this torch has them for CPUs. Says if it has
    none."""
    lever, count = ActingLever("fused_optimizer", "--fused-optimizer", "IPEXCTL_FUSED_OPTIMIZER"), 0
    for name, kernel in KERNELS.items():
        module = sys.modules.get(f"torch.optim.{name}")
        update = getattr(module, name, None)
        if update is not None and "fused" in inspect.signature(update).parameters and has_kernel(torch, kernel):
            setattr(module, name, _fused(torch, name, update, lever))
            count += 1
    if not count:
        reason = f"torch {torch.__version__} has no fused optimizers for CPUs; torch 2.4 has"
        lever.tell(f"--fused-optimizer is off: {reason}")
        lever.leave(reason)


def has_kernel(torch: Any, kernel: str) -> bool:
    """True if this torch has the operator's kernel for CPUs."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{kernel}", "CPU"))


def _fused(torch: Any, name: str, update: Callable[..., Any], lever: ActingLever) -> Callable[..., Any]:
    """Return the function of an optimizer's module, which chooses the fused kernel where all tensors fit it and the
    script does not choose."""

    def fits(tensor: Any) -> bool:
        # The kernel reads memory in order, so a parameter and its gradient must have the same.
        return bool(
            tensor.dtype is torch.float32
            and tensor.layout is torch.strided
            and tensor.device.type == "cpu"
            and tensor.is_contiguous()
            and (name in ("adam", "adamw") or not hasattr(tensor, "placements"))  # torch shards no other fused kernel
        )

    def can_fuse(lists: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
        if not all(isinstance(each, list) for each in lists) or isinstance(options.get("lr"), torch.Tensor):
            return False
        # SGD has no momentum before its first step.
        return all(all(each is None for each in tensors) or all(map(fits, tensors)) for tensors in lists)

    def is_chosen(options: Mapping[str, Any]) -> bool:
        """True if the script chooses how its optimizer steps."""
        is_named = options.get("fused") is not None or options.get("foreach") is not None
        return is_named or options.get("differentiable", False) or options.get("capturable", False)

    @functools.wraps(update)
    def choose_kernel(*lists: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return update(*lists, **options)
        if is_chosen(options):
            lever.leave("the script sets fused, foreach, differentiable or capturable")
            return update(*lists, **options)
        try:
            options["fused"] = True if can_fuse(lists, options) else None
        except Exception:  # noqa: BLE001  # unusual tensors
            options["fused"] = None
        if options["fused"] is None:
            lever.tell(f"--fused-optimizer leaves {name} as it is: not all its tensors are plain fp32")
            lever.leave("not all tensors of the optimizer are plain fp32")
        else:
            lever.act()
        return update(*lists, **options)

    return choose_kernel

"""A DistributedDataParallel communication hook that sums gradients in shared memory, if all ranks agree.

The first model of a process group connects the ranks; later models reuse that. All ranks make the same choice for a
bucket, because it depends only on values that all have. A hook that the script registers replaces this one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from typing import Any, Callable, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel.distributed import DistributedDataParallel

from .acted import SHARED, adding_levers
from .evidence import hash_of
from .handlers import is_exchanging, uninterrupted
from .shared_allreduce import CROSSOVER, DisagreementError, OffError, Ranks, SharedAllReduce, confirm, connect, limit_of
from .wire import MODES, Lost

OLDEST = (2, 1)
CHECKED = 64
"""The ranks compare their sums at exchanges 1, 2, 4, 8 and so on, and at each multiple of this. A comparison takes two
small messages."""
SAMPLES = 4096
"""Numbers of a bucket that they compare."""


class Gradients:
    """The state of the communication hook of one model."""

    def __init__(self, model: Any, shared: SharedAllReduce, group: Any, ranks: Ranks) -> None:
        self._model = weakref.ref(model)  # the reducer, owned by the model, owns this object
        self._shared, self._group, self._ranks = shared, group, ranks
        self._factor = 1.0 / group.size()
        self._lost: dict[int, tuple[tuple[int, ...], dict[int, Lost]]] = {}
        """Bucket → its parameters, and rounding losses by piece."""
        self._exchanges = 0
        self._sums: list[Any] = []
        self.script_hook: tuple[Any, Callable[[Any, Any], Any]] | None = None
        self.is_joined = False
        """True while this rank has no more input and joins the other ranks' backward passes (`Join`)."""

    def reduce(self, bucket: Any) -> Any:
        """Return a future of the bucket's gradients, averaged over all ranks. A bucket that shared memory does not take
        goes to the backend. If the script has a hook of its own, that is called instead."""
        if self.script_hook is not None:
            state, hook = self.script_hook
            return hook(state, bucket)
        model: Any = self._model()
        tensor = bucket.buffer()
        group = model.process_group
        if group is not self._group or not _divides_by_size(model):
            return self._reduce_with_backend(model, group, tensor)
        if bucket.index() == 0:
            self._sums.clear()
            if self._shared.channel.discard(self):
                self._lost.clear()
        if self._shared.takes(tensor):
            for lever in adding_levers():
                lever.act()
            is_exchanging[0] = True
            future = self._shared.all_reduce(self, tensor, self._factor, self._lost_of(bucket))
            self._sums.append(tensor)
        else:
            future = self._reduce_with_backend(model, group, tensor)
        if bucket.is_last():
            self._shared.channel.finish()
            is_exchanging[0] = False
            if self._sums:
                self._check_sums()
                self._sums.clear()
        return future

    def _check_sums(self) -> None:
        """Compare the sums with other ranks at some exchanges. All ranks get the same bits; an undefined value may have
        several, so it counts as 0."""
        self._exchanges += 1
        if self._exchanges % CHECKED and self._exchanges & (self._exchanges - 1):
            return
        with torch.no_grad():
            samples = [sums[:: -(-sums.numel() // SAMPLES)] for sums in self._sums]
            value = hash_of([sample.float().nan_to_num(0, 0, 0) for sample in samples])
        self._ranks.check_sums(value, self._exchanges)

    def _lost_of(self, bucket: Any) -> dict[int, Lost] | None:
        """Return the rounding losses of a bucket, by piece; None if values are sent unencoded. DDP rebuilds buckets
        after the first backward pass; then the losses of the old ones are dropped."""
        if self._shared.between is None or self._shared.between.codec is None:
            return None
        parameters = tuple(map(id, bucket.parameters()))
        kept = self._lost.get(bucket.index())
        if kept is None or kept[0] != parameters:
            kept = self._lost[bucket.index()] = (parameters, {})
        return kept[1]

    def _reduce_with_backend(self, model: Any, group: Any, tensor: Any) -> Any:
        """Return a future of the bucket, averaged by the backend. With `Join`, the divisor may be the number of ranks
        that still have input."""
        divisor = group.size()
        if not _divides_by_size(model):
            active = torch.tensor([0 if self.is_joined else 1])
            dist.all_reduce(active, group=group)
            divisor = int(active)
        with torch.no_grad():
            tensor.mul_(1.0 / divisor)  # as DDP does it without a hook
        return dist.all_reduce(tensor, group=group, async_op=True).get_future().then(_first)


def _first(future: Any) -> Any:
    return future.value()[0]


def _divides_by_size(model: Any) -> bool:
    config = getattr(model, "_join_config", None)
    return not getattr(config, "enable", False) or getattr(model, "_divide_by_initial_world_size", True)


@uninterrupted
def reduce_gradients(state: Gradients, bucket: Any) -> Any:
    """Reduce one bucket of gradients: the communication hook that DDP calls."""
    return state.reduce(bucket)


_attached: weakref.WeakKeyDictionary[Any, Gradients] = weakref.WeakKeyDictionary()


class _Connected(NamedTuple):
    group: Any
    """Weak reference, so that a destroyed process group is not kept."""
    shared: SharedAllReduce


_models = 0
"""Number of models so far, which is equal on all ranks."""
_connected: _Connected | None = None


@uninterrupted
def attach(model: Any) -> None:
    """Sum the model's gradients in shared memory if all ranks agree. No other error reaches the script."""
    try:
        reason = _attach(model)
    except OffError as off:
        reason = str(off)
    except DisagreementError:
        raise
    except Exception as error:  # noqa: BLE001  # the script trains without us
        reason = f"{type(error).__name__}: {error}"
    if reason:
        _report(reason, is_served=_is_served(getattr(model, "process_group", None)))


def _attach(model: Any) -> str:
    """Attach the hook, or raise an OffError. Returns why the backend keeps the model if no other rank need be asked."""
    global _models, _connected
    group = getattr(model, "process_group", None)
    world = dist.distributed_c10d._get_default_group()
    if group is not world:
        return "the model's process group does not include all ranks"
    _models += 1
    reason = reason_against(model, group)
    shared = _connected.shared if _connected is not None and _connected.group() is group else None
    store, name = dist.distributed_c10d._get_default_store(), str(_models)
    ranks = Ranks(backend_of(group), group.rank(), group.size(), limit_of(group))
    if shared is None:
        shared = connect(store, ranks, name, reason, wire=_wire())
        _connected = _Connected(weakref.ref(group), shared)
    else:
        confirm(store, ranks, name, reason)
    if not any(map(shared.gains, _trained(model))):
        return "its gradients would not take fewer bytes"
    _patch_registration()
    state = Gradients(model, shared, group, ranks)
    dist._register_comm_hook(model.reducer, state, reduce_gradients)
    _attached[model] = state
    return ""


def reason_against(model: Any, group: Any) -> str:
    """Return why the backend should keep this model's gradients; empty if there is no reason."""
    if _version() < OLDEST:
        return f"torch {torch.__version__} is older than {'.'.join(map(str, OLDEST))}"
    if group.size() < 2:
        return "there is only one rank"
    if not isinstance(backend_of(group), getattr(dist, "ProcessGroupGloo", ())):
        return "the process group's backend is not gloo"
    if missing := _missing_name(model):
        return f"torch {torch.__version__} has no {missing}"
    config = sys.modules.get("torch._dynamo.config")
    reasons = (
        (getattr(model, "device_type", "cpu") != "cpu", "the model is not on the CPU"),
        (getattr(model, "mixed_precision", None) is not None, "the model has DDP's mixed_precision"),
        (getattr(model, "_use_python_reducer", False), "torch.compile uses the Python reducer"),
        (getattr(config, "compiled_autograd", False), "torch.compile uses compiled autograd"),
        (getattr(model, "_delay_all_reduce_all_params", False), "DDP delays all all-reduces"),
        (bool(getattr(model, "_comm_hooks", None)), "the model has its own communication hook"),
        (any(getattr(part, "sparse", False) is True for part in model.module.modules()), "gradients are sparse"),
        (_gradient_bytes(model) < CROSSOVER, f"the model has less than {CROSSOVER >> 10} KB of gradients"),
    )
    return next((reason for is_against, reason in reasons if is_against), "")


def _missing_name(model: Any) -> str:
    """Return the first name that this code needs and torch does not have; empty if it has all. Using it would raise
    from the script's own calls."""
    needed = (
        (DistributedDataParallel, ("register_comm_hook", "_register_builtin_comm_hook", "_check_comm_hook")),
        (DistributedDataParallel, ("_match_all_reduce_for_bwd_pass",)),
        (dist, ("_register_comm_hook", "BuiltinCommHookType", "GradBucket")),
        (getattr(dist, "GradBucket", None), ("buffer", "index", "is_last", "parameters")),
        (model, ("reducer", "_module_parameters")),
        (getattr(model, "logger", None), ("_set_comm_hook_name",)),
    )
    return next((name for owner, names in needed for name in names if not hasattr(owner, name)), "")


def _version() -> tuple[int, ...]:
    parts = torch.__version__.split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def backend_of(group: Any) -> Any:
    """Return the group's backend for CPU tensors, or None. With TORCH_DISTRIBUTED_DEBUG=DETAIL it is a wrapper that
    checks collectives."""
    try:
        return group._get_backend(torch.device("cpu"))
    except (AttributeError, RuntimeError):
        return None


def _wire() -> str:
    """Return the encoding between hosts, from the environment. `connect` checks that all ranks have the same."""
    mode = os.environ.get("IPEXCTL_WIRE", "fp32")
    if mode not in MODES:
        raise OffError(f"IPEXCTL_WIRE is none of {', '.join(MODES)}")
    return mode


def _gradient_bytes(model: Any) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in _trained(model))


def _trained(model: Any) -> list[Any]:
    return [parameter for parameter in model._module_parameters if parameter.requires_grad]


def _is_served(group: Any) -> bool:
    """True if the group's collectives use shared memory without the hook, too."""
    collectives = sys.modules.get(f"{__package__}.collectives")
    return collectives is not None and collectives.serves(group)


def _report(reason: str, *, is_served: bool) -> None:
    """Say why the backend keeps a model. Each text is printed once, because models may differ."""
    for lever in adding_levers():
        if is_served and lever.name == SHARED:
            continue
        lever.leave(reason)
        with contextlib.suppress(OSError, ValueError):
            lever.tell(f"{lever.option} is off: {reason}")


@functools.lru_cache(maxsize=None)
def _patch_registration() -> None:
    """Let a hook that the script registers replace this one, because the reducer accepts only one hook."""
    register, register_builtin = (
        DistributedDataParallel.register_comm_hook,
        DistributedDataParallel._register_builtin_comm_hook,
    )
    match = DistributedDataParallel._match_all_reduce_for_bwd_pass

    @functools.wraps(register)
    def register_comm_hook(self: Any, state: Any, hook: Any) -> None:
        own = _attached.get(self)
        if own is None:
            register(self, state, hook)
            return
        self._check_comm_hook(hook)
        _replace(own, state, hook)
        self.logger._set_comm_hook_name(hook.__qualname__)
        if hasattr(self, "_comm_hooks"):  # not in torch 2.1
            self._comm_hooks.append((hook, state))

    @functools.wraps(register_builtin)
    def _register_builtin_comm_hook(self: Any, comm_hook_type: Any) -> None:
        own = _attached.get(self)
        if own is None:
            register_builtin(self, comm_hook_type)
            return
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        is_plain = comm_hook_type == dist.BuiltinCommHookType.ALLREDUCE
        hook = default_hooks.allreduce_hook if is_plain else default_hooks.fp16_compress_hook
        _replace(own, self.process_group, hook)
        self.logger._set_comm_hook_name(str(comm_hook_type))

    @functools.wraps(match)
    def _match_all_reduce_for_bwd_pass(self: Any) -> None:
        own = _attached.get(self)
        if own is not None:
            own.is_joined = True
        try:
            match(self)
        finally:
            if own is not None:
                own.is_joined = False

    DistributedDataParallel.register_comm_hook = register_comm_hook
    DistributedDataParallel._register_builtin_comm_hook = _register_builtin_comm_hook
    DistributedDataParallel._match_all_reduce_for_bwd_pass = _match_all_reduce_for_bwd_pass


def _replace(own: Gradients, state: Any, hook: Any) -> None:
    if own.script_hook is not None:
        raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
    own.script_hook = state, hook

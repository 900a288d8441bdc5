"""gloo in place of NCCL, and models of several ranks without numbers of GPUs: for scripts written for GPUs."""

from __future__ import annotations

import functools
from typing import Any, Callable

from .gpu_state import NCCL, GpuCode, wrap

POSITIONS = (("tensor", "op"), ("tensor", "dst", "op"), ("output", "input_list", "op"), ("output", "input", "op"))
"""Names of the first arguments of the calls that can average."""


def install(gpu: GpuCode) -> None:
    """Replace NCCL by gloo, let gloo average, and drop numbers of GPUs from models, if this torch has process
    groups."""
    if gpu.torch.distributed.is_available():
        use_gloo(gpu)
        average(gpu)
        wrap_models(gpu)


def use_gloo(gpu: GpuCode) -> None:
    """Let calls that name NCCL make gloo's process groups, and drop devices of GPUs from these calls."""
    torch = gpu.torch
    dist, c10d = torch.distributed, torch.distributed.distributed_c10d

    def is_nccl(backend: Any) -> bool:
        """True for `nccl` and `cpu:gloo,cuda:nccl`."""
        return isinstance(backend, str) and "nccl" in backend.lower()

    def with_gloo(old: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            if any(map(is_nccl, (*args, kwargs.get("backend")))):
                gpu.note(NCCL)
                args = tuple("gloo" if is_nccl(value) else value for value in args)
                kwargs.update({"backend": "gloo"} if is_nccl(kwargs.get("backend")) else {})
                kwargs.pop("pg_options", None)
            if kwargs.get("device_id") is not None and gpu.is_gpu(kwargs["device_id"]):
                del kwargs["device_id"]
            return old(*args, **kwargs)

        return make

    def barrier(old: Any) -> Any:
        return lambda group=None, async_op=False, **_: old(group, async_op)

    for name in ("init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group"):
        _wrap_call(dist, c10d, name, with_gloo)
    _wrap_call(dist, c10d, "barrier", barrier)

    meshes = getattr(dist, "device_mesh", None)  # of torch 2.2

    def on_cpus(old: Any) -> Any:
        """torch 2.13 names the kind of device when it makes a mesh; scripts give it by its position."""

        def make(*args: Any, **kwargs: Any) -> Any:
            kind = {"device_type": "cpu"} if kwargs.get("device_type") == "cuda" else {}
            placed = ("cpu" if isinstance(argument, str) and argument == "cuda" else argument for argument in args)
            return old(*placed, **{**kwargs, **kind})

        return make

    _wrap_call(dist, meshes, "init_device_mesh", on_cpus)
    if meshes is not None:
        wrap(meshes.DeviceMesh, "__init__", on_cpus)


def _wrap_call(dist: Any, module: Any, name: str, make: Callable[[Any], Any]) -> None:
    if hasattr(module, name):
        wrap(module, name, make)
        setattr(dist, name, getattr(module, name))


def average(gpu: GpuCode) -> None:
    """Let gloo average, which it can't: divide numbers before they are added up, as NCCL does, and integers after
    that."""
    dist, c10d = gpu.torch.distributed, gpu.torch.distributed.distributed_c10d

    def averaging(old: Any, position: int, source: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            names = (*POSITIONS[position], "group", "async_op")
            values = {**dict(zip(names, args)), **kwargs}
            if values.get("op") != dist.ReduceOp.AVG or "gloo" not in str(dist.get_backend(values.get("group"))):
                return old(*args, **kwargs)
            values["op"] = dist.ReduceOp.SUM
            ranks, result = dist.get_world_size(values.get("group")), values[names[0]]
            if not (result.is_floating_point() or result.is_complex()):
                work = old(**values)
                if work is not None:
                    work.wait()
                result.div_(ranks, rounding_mode="trunc")
                return work
            if source == "tensor":
                result.div_(ranks)
            else:
                given = values[source]
                values[source] = [part / ranks for part in given] if isinstance(given, list) else given / ranks
            return old(**values)

        return call

    for name, position, source in (
        ("all_reduce", 0, "tensor"),
        ("reduce", 1, "tensor"),
        ("reduce_scatter", 2, "input_list"),
        ("reduce_scatter_tensor", 3, "input"),
    ):
        _wrap_call(dist, c10d, name, functools.partial(averaging, position=position, source=source))


def wrap_models(gpu: GpuCode) -> None:
    """Drop numbers of GPUs, which DistributedDataParallel refuses for models on CPUs."""

    def without_ids(old: Any) -> Any:
        @functools.wraps(old)
        def init(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            kwargs = {name: value for name, value in kwargs.items() if name not in ("device_ids", "output_device")}
            old(self, module, None, None, *args[2:], **kwargs)

        return init

    wrap(gpu.torch.nn.parallel.DistributedDataParallel, "__init__", without_ids)

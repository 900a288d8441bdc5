"""Run scripts that are written for GPUs on CPUs, as they are: `run --gpu-code`. `rank_hooks.py` calls `install` once
torch is imported; `gpu_stand_ins.py` has the parts of torch.cuda, and `gpu_end.py` says whether a script ended for want
of a GPU.

- What a script places on a GPU is placed on the CPU. `x.device` says cpu and `x.is_cuda` is False, so libraries and a
  script's own code for CPUs work; `torch.device("cuda")` stays a value.
- A move between a GPU and the CPU is a copy, as between two memories: otherwise weights that a script keeps with
  `.cpu()` would follow the model, and a NumPy buffer that it reuses would change a batch. Libraries' own moves copy
  nothing: they ask torch, and are told that there is no GPU.
- The dispatcher's key CUDA has no kernels in a torch for CPUs: whatever reaches it asks for a device. So one fallback
  covers all factory functions. Functions are wrapped only where C++ refuses the device before it dispatches.
- A torch that was built for GPUs, as pip installs it, is changed, too, if it finds none.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import warnings
from importlib import import_module
from typing import Any, Callable

from . import gpu_ranks, gpu_stand_ins
from .gpu_state import VARIABLE, GpuCode, of_project, refusal, replace, states, wrap

MAKERS = (
    *("empty.memory_format", "empty_strided", "tril_indices", "triu_indices", "_efficientzerotensor"),
    *("_empty_affine_quantized", "_empty_per_channel_affine_quantized"),
)
"""Operators that all factory functions end in; for a torch whose `Library` has no `fallback`, or which was built for
GPUs and so has kernels of them."""
MORE_FACTORIES = (
    *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like", "normal"),
    *("frombuffer", "sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor"),
    *("sparse_bsc_tensor", "sparse_compressed_tensor"),
)
"""Functions of torch with `device=` that `_device_constructors` leaves out, at least in some versions."""
NEW = ("new_tensor", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided")


GPU_MODULES = frozenset(
    (
        *("triton", "flash_attn", "flash_attn_interface", "flashinfer", "apex", "amp_C", "bitsandbytes", "cupy"),
        *("xformers", "pycuda", "mamba_ssm", "causal_conv1d", "transformer_engine", "pynvml", "tensorrt"),
        *("torch_tensorrt", "rotary_emb", "selective_scan_cuda", "xentropy_cuda_lib"),
    )
)
"""Modules that work on GPUs alone."""


class GpuModuleFinder:
    """Says of a module that is missing why it is, where a script imports it. A library that only looks for a module, as
    transformers does for flash_attn, is told nothing."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> None:
        """Raise a ModuleNotFoundError that says why, if a missing module for GPUs is imported. Return None otherwise,
        also to a library that only looks for it. This is the last finder, so no other has found the module."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_name not in ("_find_and_load_unlocked", "find_spec"):
            frame = frame.f_back
        if name in GPU_MODULES and frame is not None and frame.f_code.co_name == "_find_and_load_unlocked":
            raise ModuleNotFoundError(refusal(f"No module named {name!r}: it"), name=name)


def traced(value: Any) -> Any:
    """Return the CPU for a GPU, and any other value as it is, in code that torch.compile traces."""
    if isinstance(value, str):
        return "cpu" if value.startswith("cuda") else value
    is_gpu = type(value) is int or getattr(value, "type", "") == "cuda"
    return "cpu" if is_gpu else value


def compiler_of(torch: Any) -> Any:
    """Return the module whose `is_compiling` is True in code that torch.compile traces: before torch 2.3, another
    one."""
    compiler = getattr(torch, "compiler", None)
    return compiler if hasattr(compiler, "is_compiling") else torch._utils


def install(torch: Any) -> None:
    """Change torch, unless it finds a GPU: its own kernels answer then."""
    if states or torch.cuda.device_count():
        return
    for name in ("torch.jit._builtins", "torch.utils._device"):
        import_module(name)

    gpu = GpuCode(torch, os.environ[VARIABLE])
    states.append(gpu)
    place_factories(gpu)
    place_tensors(gpu)
    place_modules(gpu)
    place_types(gpu)
    gpu_stand_ins.install(gpu)
    gpu_ranks.install(gpu)
    tell_later(gpu)
    sys.meta_path.append(GpuModuleFinder)


def tell_later(gpu: GpuCode) -> None:
    """Print what happened to GPUs after steps of optimizers, and at exit."""
    optimizers = sys.modules["torch.optim.optimizer"]
    if hasattr(optimizers, "register_optimizer_step_post_hook"):
        optimizers.register_optimizer_step_post_hook(gpu.tell)
    atexit.register(gpu.tell)


def place_factories(gpu: GpuCode) -> None:
    """Make tensors on the CPU that the script makes on a GPU."""
    torch, cuda = gpu.torch, gpu.torch.cuda
    start, of_cuda = cuda._lazy_init, os.path.dirname(cuda.__file__) + os.sep

    def _lazy_init() -> None:
        """Let C++ go on, and raise torch's own error for functions of torch.cuda, which libraries may have called."""
        if sys._getframe(1).f_code.co_filename.startswith(of_cuda):
            start()

    cuda._lazy_init = _lazy_init

    def make_on_cpu(operator: Any, *args: Any, **kwargs: Any) -> Any:
        gpu.place()
        args = tuple(gpu.cpu if type(value) is gpu.device_type else value for value in args)
        return operator(*args, **{name: gpu.cpu if name == "device" else value for name, value in kwargs.items()})

    gpu.libraries = register_fallback(torch, make_on_cpu)

    place = functools.partial(_placing, gpu, compiler_of(torch))
    constructors = torch.utils._device._device_constructors()
    for module in (torch, torch.fft, torch.nested):
        for name, function in list(vars(module).items()):
            if (module is torch and name in MORE_FACTORIES) or (callable(function) and function in constructors):
                wrap(module, name, place)
    for name in NEW:
        wrap(torch.Tensor, name, place)
    wrap(torch.utils._device.DeviceContext, "__init__", lambda old: lambda self, device: old(self, gpu.on_cpu(device)))


def _placing(gpu: GpuCode, compiler: Any, old: Any) -> Any:
    """Return a factory function that makes a GPU's tensors on the CPU, and copies what it would share there."""
    is_move = old.__name__ in ("as_tensor", "asarray")

    def make(*args: Any, **kwargs: Any) -> Any:
        if "device" not in kwargs:
            return old(*args, **kwargs)
        if compiler.is_compiling():
            kwargs["device"] = traced(kwargs["device"])
        elif gpu.is_gpu(kwargs["device"]):
            kwargs["device"] = gpu.on_cpu(kwargs["device"])
            return old(*args, **kwargs).clone() if is_move else old(*args, **kwargs)
        return old(*args, **kwargs)

    return make


def register_fallback(torch: Any, make: Callable[..., Any]) -> list[Any]:
    """Let `make` answer all operators that are asked for a GPU. Return the libraries, which the caller keeps: torch
    forgets what they have registered once they are gone."""
    library = torch.library.Library
    if torch.backends.cuda.is_built() or not hasattr(library, "fallback"):  # before torch 2.5
        aten = library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of kernels that are replaced
            for name in MAKERS:
                operator = functools.reduce(getattr, f"{name}.default".split(".")[:2], torch.ops.aten)
                with contextlib.suppress(RuntimeError):  # an operator that this version lacks
                    aten.impl(name, functools.partial(make, operator), "CUDA")
        return [aten]
    every = library("_", "IMPL")
    every.fallback(make, "CUDA")  # 30 ms a key: functions for sparse tensors are wrapped
    return [every]


def place_tensors(gpu: GpuCode) -> None:
    """Move tensors to the CPU that the script moves to a GPU."""
    torch = gpu.torch
    uncovered = torch.Tensor.__base__.to

    def to(old: Any) -> Any:
        def move(self: Any, *args: Any, **kwargs: Any) -> Any:
            device = args[0] if args else kwargs.get("device")
            kind = type(device)
            if kind is not str and kind is not gpu.device_type and kind is not int:
                return old(self, *args, **kwargs)
            is_gpu = gpu.is_gpu(device)
            if is_gpu:
                gpu.place()
            elif not gpu.is_placed or str(device) != "cpu":
                return old(self, *args, **kwargs)
            kwargs = {**dict(zip(("device", "dtype", "non_blocking", "copy"), args)), **kwargs, "device": gpu.cpu}
            if self.device.type == "cpu" and gpu.copies(sys._getframe(1).f_code.co_filename, self if is_gpu else None):
                kwargs["copy"] = True
            return old(self, **kwargs)

        return move

    def cuda(self: Any, *_: Any, memory_format: Any = torch.preserve_format, **__: Any) -> Any:
        gpu.place()
        is_copy = gpu.copies(sys._getframe(1).f_code.co_filename, self)
        return uncovered(self, gpu.cpu, copy=is_copy, memory_format=memory_format)

    def cpu(self: Any, memory_format: Any = torch.preserve_format) -> Any:
        is_copy = gpu.is_placed and gpu.copies(sys._getframe(1).f_code.co_filename)
        return uncovered(self, gpu.cpu, copy=is_copy, memory_format=memory_format)

    wrap(torch.Tensor, "to", to)
    wrap(torch.Tensor, "cuda", lambda _: cuda)
    wrap(torch.Tensor, "cpu", lambda _: cpu)
    wrap(torch.Tensor, "pin_memory", lambda _: lambda self, *_, **__: self)
    wrap(torch.Tensor, "record_stream", lambda _: lambda *_: None)
    for storage in (torch.UntypedStorage, torch.TypedStorage):
        wrap(storage, "cuda", lambda _: lambda self, *_, **__: self.clone())
        wrap(storage, "pin_memory", lambda _: lambda self, *_, **__: self)
    # Before torch's own function for `cuda`, which raises.
    torch.serialization.register_package(15, lambda _: None, lambda storage, tag: storage if is_tag(tag) else None)


def wrap_fsdp(module: Any) -> None:
    """Drop the number of a GPU that FSDP is told. `module`: torch.distributed.fsdp, which few scripts import."""

    def without_id(old: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            if states and states[0].is_gpu(kwargs.get("device_id")):
                kwargs["device_id"] = None
            old(self, *args, **kwargs)

        return init

    wrap(module.FullyShardedDataParallel, "__init__", without_id)


def refuse_kernels(builder: Any) -> None:
    """Say of an extension of the script that it is CUDA. `builder`: torch.utils.cpp_extension, which looks for a GPU
    or a compiler of CUDA, and fails there."""

    def refusing(old: Any) -> Any:
        def load(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
            paths = [sources] if isinstance(sources, str) else sources
            kernels = [os.path.basename(path) for path in paths if str(path).endswith(".cu")]
            if kernels and states:
                raise RuntimeError(refusal(f"the extension {name}, of {', '.join(kernels)},"))
            return old(name, sources, *args, **kwargs)

        return load

    wrap(builder, "load", refusing)


def keep_in_graphs(dynamo: Any) -> None:
    """Let torch.compile call the methods of tensors as a whole, as it traces none that is C++ inside, and take the
    answers about autocast when it compiles."""
    if not states:
        return
    torch = states[0].torch
    for name in ("to", "cuda", "cpu", "type", "pin_memory"):
        dynamo.allow_in_graph(getattr(torch.Tensor, name))
    for answer in filter(None, (getattr(torch, name, None) for name in gpu_stand_ins.OF_AUTOCAST)):
        dynamo.assume_constant_result(answer)


def is_tag(location: str) -> bool:
    """True if a checkpoint's storage was on a GPU, by its location such as `cuda:0`."""
    return location.startswith("cuda")


def place_modules(gpu: GpuCode) -> None:
    """Move modules to the CPU that the script moves to a GPU. A script's own moves copy parameters, as between two
    memories."""
    module = gpu.torch.nn.Module

    def to(old: Any) -> Any:
        def move(self: Any, *args: Any, **kwargs: Any) -> Any:
            by_project = of_project()
            if args and gpu.is_gpu(args[0]):
                args = (gpu.on_cpu(args[0]), *args[1:])
            if gpu.is_gpu(kwargs.get("device")):
                kwargs["device"] = gpu.on_cpu(kwargs["device"])
            with gpu.moving(by_project=by_project):
                return old(self, *args, **kwargs)

        return move

    def plain(old: Any) -> Any:
        def move(self: Any, *args: Any, **kwargs: Any) -> Any:
            with gpu.moving(by_project=of_project()):
                return old(self, *args, **kwargs)

        return move

    wrap(module, "to", to)
    wrap(module, "cuda", plain)
    wrap(module, "cpu", plain)


def place_types(gpu: GpuCode) -> None:
    """Replace names of types, generators and numbers of devices that mean a GPU."""
    torch = gpu.torch
    for name in dir(torch.cuda):
        if name.endswith(("Tensor", "Storage")) and hasattr(torch, name):
            setattr(torch.cuda, name, getattr(torch, name))

    def type_of(old: Any) -> Any:
        def convert(self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
            if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
                gpu.place()
                dtype = dtype.replace("torch.cuda.", "torch.")
            return old(self) if dtype is None else old(self, dtype, non_blocking, **kwargs)

        return convert

    def set_type(old: Any) -> Any:
        return lambda kind: old(kind.replace("torch.cuda.", "torch.") if isinstance(kind, str) else kind)

    wrap(torch.Tensor, "type", type_of)
    wrap(torch, "set_default_tensor_type", set_type)
    make_generator, make_device = torch._C.Generator, gpu.device_type

    def device(*args: Any, **kwargs: Any) -> Any:
        values = [*args, *kwargs.values()]
        is_number = len(values) == 1 and type(values[0]) is int
        return make_device("cuda", values[0]) if is_number else make_device(*args, **kwargs)

    generator = stand_in("Generator", make_generator, lambda device="cpu": make_generator(gpu.on_cpu(device)))
    replace(torch, "Generator", generator)
    replace(torch, "device", stand_in("device", make_device, device))


class _StandIn(type):
    real: Any
    make: Any

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.real)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.real)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.make(*args, **kwargs)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.real

    def __hash__(cls) -> int:
        return hash(cls.real)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.real, name)


def stand_in(name: str, real: Any, make: Callable[..., Any]) -> Any:
    """Return a class in place of one of torch's that no class can inherit from; its objects are torch's own."""
    fields = {"real": real, "make": staticmethod(make), "__module__": "torch", "__doc__": real.__doc__}
    return _StandIn(name, (), fields)

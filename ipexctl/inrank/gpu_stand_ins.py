"""Stand-ins for torch.cuda, torch.accelerator, autocast and GradScaler, where a script asks a GPU for something: seeds
and random states are the CPU's, times are those of calls, memory is that of the process. Libraries are told the truth:
what a function of torch.cuda did for them before, an error included, it still does.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import resource
import sys
import time
import types
from abc import ABCMeta
from typing import Any, Callable

from .gpu_state import AUTOCAST, SCALER, GpuCode, is_project_file, of_project, refusal, wrap

SILENT = frozenset(
    (
        *("synchronize", "empty_cache", "ipc_collect", "set_stream", "init", "set_per_process_memory_fraction"),
        *("set_sync_debug_mode", "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"),
        *("reset_accumulated_memory_stats", "reset_accumulated_host_memory_stats", "reset_peak_host_memory_stats"),
    )
)
"""Functions that do nothing for a script."""
REFUSED = ("CUDAGraph", "graph", "make_graphed_callables", "graph_pool_handle", "cudart")
NOW = ("memory_allocated", "memory_reserved", "memory_cached", "device_memory_used", "host_memory_allocated")
PEAK = ("max_memory_allocated", "max_memory_reserved", "max_memory_cached")
OF_AUTOCAST = ("is_autocast_enabled", "get_autocast_dtype", "get_autocast_gpu_dtype")
FOR_LIBRARIES = ("mem_get_info", "current_device")
"""What libraries ask of a GPU that the script names to them: transformers for a `device_map`."""


class PastEvent:
    """An event that happens at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at = 0.0

    def record(self, *_: Any, **__: Any) -> None:
        """Note the time at which the event happens."""
        self._at = time.perf_counter()

    def elapsed_time(self, end_event: PastEvent) -> float:
        """Return milliseconds."""
        return (end_event._at - self._at) * 1000

    def synchronize(self) -> None:
        """Return at once: the event has happened."""
        return

    def wait(self, *_: Any, **__: Any) -> None:
        """Return at once: the event has happened."""
        return

    def query(self) -> bool:
        """Return True: the event has happened."""
        return True


class Nothing(contextlib.ContextDecorator):
    """A context that changes nothing: of a stream or a device."""

    def __init__(self, *_: Any, **__: Any) -> None:
        return

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: Any) -> None:
        return


class Device(Nothing):
    pass


class StreamContext(Nothing):
    pass


class Stream(Nothing):
    """A stream whose calls are over when they return."""

    cuda_stream = stream_id = device_index = 0

    def synchronize(self) -> None:
        """Return at once: the calls of the stream are over."""
        return

    def wait_event(self, event: Any) -> None:
        """Return at once: the event has happened."""
        del event

    def wait_stream(self, stream: Any) -> None:
        """Return at once: the calls of the other stream are over."""
        del stream

    def query(self) -> bool:
        """Return True: the calls of the stream are over."""
        return True

    def record_event(self, event: PastEvent | None = None) -> PastEvent:
        """Return an event that happens now, `event` if one is given."""
        event = event or PastEvent()
        event.record()
        return event


def memory_now() -> int:
    """Return the bytes of memory that the process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def memory_peak() -> int:
    """Return the most bytes of memory that the process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_of_host() -> tuple[int, int]:
    """Return free and total bytes."""
    page = resource.getpagesize()
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


class MemoryStats(dict):  # type: ignore[type-arg]
    """Statistics of memory by torch's names: those of the process, and 0 for all others."""

    def __missing__(self, name: str) -> int:
        if name.endswith(".peak"):
            return memory_peak()
        return memory_now() if name.endswith(".current") and "bytes" in name else 0


def install(gpu: GpuCode) -> None:
    """Replace what a script asks of GPUs, of their memory and of their precision."""
    stand_in_for_cuda(gpu)
    answer_questions(gpu)
    stand_in_for_precision(gpu)
    answer_for_autocast(gpu)


def _ask(gpu: GpuCode) -> bool:
    """Answer the project's question for a GPU; libraries are told that there is none."""
    frame = sys._getframe(2)
    name = frame.f_code.co_filename
    if not is_project_file(name):
        return False
    if not gpu.claims:
        gpu.asked.add((name, frame.f_lineno, frame.f_code.co_name))
    return gpu.claims


def answer_questions(gpu: GpuCode) -> None:
    """Answer the script's questions for GPUs: whether there is one, and how many. Note where it asked, if the answer is
    no."""
    torch = gpu.torch

    def is_available() -> bool:
        return _ask(gpu)

    def device_count() -> int:
        return gpu.devices if _ask(gpu) else 0

    def current_accelerator(old: Any) -> Any:
        return lambda *args, **kwargs: torch.device("cuda") if _ask(gpu) else old(*args, **kwargs)

    def is_nccl_available() -> bool:
        return _ask(gpu)

    for module in filter(None, (torch.cuda, getattr(torch, "accelerator", None))):
        wrap(module, "is_available", lambda _: is_available)
        wrap(module, "device_count", lambda _: device_count)
    if hasattr(torch, "accelerator"):
        wrap(torch.accelerator, "current_accelerator", current_accelerator)
    if torch.distributed.is_available():
        wrap(torch.distributed.distributed_c10d, "is_nccl_available", lambda _: is_nccl_available)
        torch.distributed.is_nccl_available = torch.distributed.distributed_c10d.is_nccl_available

    def spawn(old: Any) -> Any:
        def start(function: Any, args: Any = (), nprocs: int = 1, *more: Any, **kwargs: Any) -> Any:
            if not nprocs and gpu.asked and of_project():
                frame = sys._getframe(1)
                gpu.ended = f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"
            return old(function, args, nprocs, *more, **kwargs)

        return start

    spawning = sys.modules["torch.multiprocessing.spawn"]  # whose name in torch.multiprocessing is the function
    wrap(spawning, "spawn", spawn)
    wrap(spawning, "start_processes", spawn)
    torch.multiprocessing.spawn, torch.multiprocessing.start_processes = spawning.spawn, spawning.start_processes


def stand_in_for_cuda(gpu: GpuCode) -> None:  # noqa: C901
    """Replace the functions and classes of torch.cuda and torch.accelerator. Functions keep their old answers for
    libraries; classes are replaced for them, too."""
    torch, cuda = gpu.torch, gpu.torch.cuda

    def index_of(device: Any) -> int:
        return device if isinstance(device, int) else int(getattr(torch.device(device), "index", None) or 0)

    def set_device(device: Any) -> None:
        gpu.index = gpu.index if device is None else index_of(device)

    def manual_seed(seed: int) -> None:
        """Seed the CPU, unless the script's own way for CPUs does so."""
        if gpu.is_placed or not gpu.asked:
            torch.default_generator.manual_seed(int(seed))

    def set_rng_state(new_state: Any, *_: Any, **__: Any) -> None:
        of_cpu = torch.default_generator.get_state().numel()
        if getattr(new_state, "numel", int)() == of_cpu:  # not that of a real GPU
            torch.default_generator.set_state(new_state)

    def set_rng_state_all(new_states: Any) -> None:
        for state in new_states:
            set_rng_state(state)

    properties = types.SimpleNamespace(
        name="CPU", major=0, minor=0, total_memory=memory_of_host()[1], multi_processor_count=os.cpu_count()
    )
    answers: dict[str, Callable[[], Any]] = {
        "current_device": lambda: gpu.index,
        "is_initialized": lambda: gpu.claims or gpu.is_placed,
        "is_bf16_supported": lambda: True,
        "get_device_name": lambda: "CPU",
        "get_device_properties": lambda: properties,
        "get_device_capability": lambda: (0, 0),
        "get_arch_list": list,
        "mem_get_info": memory_of_host,
        "memory_summary": lambda: f"{memory_now():,} bytes of the process",
        "memory_stats": MemoryStats,
        "memory_snapshot": list,
        "utilization": int,
        "can_device_access_peer": bool,
        "list_gpu_processes": str,
        "get_sync_debug_mode": int,
        "is_current_stream_capturing": bool,
        "current_stream": Stream,
        "default_stream": Stream,
        "seed": torch.default_generator.seed,
        "seed_all": torch.default_generator.seed,
        "initial_seed": torch.initial_seed,
        "get_rng_state": torch.default_generator.get_state,
        "get_rng_state_all": lambda: [torch.default_generator.get_state()] * gpu.devices,
        **dict.fromkeys(NOW, memory_now),
        **dict.fromkeys(PEAK, memory_peak),
        **dict.fromkeys(SILENT, lambda: None),
    }
    """Whatever they are asked with: a device, in most cases."""
    values: dict[str, Callable[..., Any]] = {
        "set_device": set_device,
        "stream": StreamContext,
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed,
        "set_rng_state": set_rng_state,
        "set_rng_state_all": set_rng_state_all,
        **{name: _answering(answer) for name, answer in answers.items()},
    }

    def for_project(value: Callable[..., Any]) -> Callable[[Any], Any]:
        def make(old: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                return (value if of_project() or old.__name__ in FOR_LIBRARIES else old)(*args, **kwargs)

            return call

        return make

    owners = (cuda, cuda.random, cuda.memory, getattr(torch, "accelerator", None))
    for name, value in values.items():
        for owner in filter(None, owners):
            if isinstance(getattr(owner, name, None), types.FunctionType):
                wrap(owner, name, for_project(value))
    # Classes stay classes: torch._dynamo and annotations ask for their type.
    for name, kind in {"Event": PastEvent, "Stream": Stream, "ExternalStream": Stream, "StreamContext": StreamContext,
                       "device": Device, "device_of": Device}.items():  # fmt: skip
        setattr(cuda, name, kind)
    bases = sys.modules.get("torch._streambase")  # abstract classes, up to torch 2.6
    for kind, name in (PastEvent, "_EventBase"), (Stream, "_StreamBase"):
        base = getattr(bases, name, None)
        if isinstance(base, ABCMeta):
            base.register(kind)
    for name in REFUSED:
        old = getattr(cuda, name, None)
        if old is not None:
            setattr(cuda, name, _refusing(name, is_class=isinstance(old, type)))
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        wrap(cuda.nvtx, name, lambda _: lambda *_, **__: 0)
    cuda.nvtx.range = Nothing
    cuda.profiler.start = cuda.profiler.stop = lambda: None
    accelerator = getattr(torch, "accelerator", None)
    for name in ("set_device_index", "set_device_idx"):
        if accelerator is not None and hasattr(accelerator, name):
            wrap(accelerator, name, for_project(set_device))
    for name in ("current_device_index", "current_device_idx"):
        if accelerator is not None and hasattr(accelerator, name):
            wrap(accelerator, name, for_project(lambda: gpu.index))

    def fork_rng(old: Any) -> Any:
        def fork(devices: Any = None, *args: Any, **kwargs: Any) -> Any:
            return old(() if of_project() else devices, *args, **kwargs)

        return fork

    wrap(torch.random, "fork_rng", fork_rng)


def _answering(answer: Callable[[], Any]) -> Callable[..., Any]:
    return lambda *_, **__: answer()


def _refusing(name: str, *, is_class: bool) -> Any:
    """Return a function or a class that raises the error for a part of CUDA graphs or CUDA's runtime."""
    what = f"torch.cuda.{name}" + ("" if name == "cudart" else ", a part of CUDA graphs,")

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(refusal(what))

    return type(name, (), {"__init__": refuse, "__module__": "torch.cuda"}) if is_class else refuse


def answer_for_autocast(gpu: GpuCode) -> None:
    """Answer for the CPU's autocast, once something was placed on a GPU, where torch asks for that of GPUs."""
    torch = gpu.torch

    def answering(of_cpu: Callable[[], Any]) -> Callable[[Any], Any]:
        def make(old: Any) -> Any:
            def answer(*kind: str) -> Any:
                return of_cpu() if gpu.is_placed and kind in ((), ("cuda",)) else old(*kind)

            return answer

        return make

    is_on, type_of = torch.is_autocast_enabled, getattr(torch, "get_autocast_dtype", None)
    type_on_cpu = functools.partial(type_of, "cpu") if type_of else torch.get_autocast_cpu_dtype
    is_on_cpu = functools.partial(is_on, "cpu") if type_of else torch.is_autocast_cpu_enabled  # before torch 2.4
    for name in OF_AUTOCAST:
        wrap(torch, name, answering(is_on_cpu if name == "is_autocast_enabled" else type_on_cpu))

    def cast_inputs(old: Any) -> Any:
        def cast(value: Any, kind: str, dtype: Any) -> Any:
            return old(value, "cpu" if kind == "cuda" and gpu.is_placed else kind, dtype)

        return cast

    wrap(torch.amp.autocast_mode, "_cast", cast_inputs)  # of torch.amp.custom_fwd


def stand_in_for_precision(gpu: GpuCode) -> None:
    """Let autocast and GradScaler for GPUs, as the script makes them, work on the CPU: float16 becomes bfloat16, and
    scaling is off."""
    torch = gpu.torch

    def of_script() -> bool:
        """True if the script asks, or has placed something on a GPU, so that a library's answer counts there, too."""
        frame: Any = sys._getframe(2)
        inside = os.path.dirname(torch.__file__) + os.sep
        while frame is not None and frame.f_code.co_filename.startswith(inside):
            frame = frame.f_back
        return gpu.is_placed or (frame is not None and is_project_file(frame.f_code.co_filename))

    def init_autocast(old: Any) -> Any:
        @functools.wraps(old)
        def init(
            self: Any, device_type: Any = "cuda", dtype: Any = None, enabled: bool = True, *args: Any, **kw: Any
        ) -> None:
            if device_type == "cuda" and of_script():
                device_type = "cpu"
                if dtype is torch.float16 or (dtype is None and enabled):
                    dtype = torch.bfloat16
                    if enabled:
                        gpu.note(AUTOCAST)
            old(self, device_type, dtype, enabled, *args, **kw)

        return init

    autocast = torch.amp.autocast_mode.autocast
    autocast.__init__ = init_autocast(autocast.__init__)

    def init_scaler(old: Any) -> Any:
        signature = inspect.signature(old)

        @functools.wraps(old)
        def init(*args: Any, **kwargs: Any) -> None:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            if given.arguments.get("device", "cuda") == "cuda" and of_script():
                if given.arguments["enabled"]:
                    gpu.note(SCALER)
                given.arguments["enabled"] = False
            old(*given.args, **given.kwargs)

        return init

    # Before torch 2.3, the class of torch.cuda.amp is the only one.
    scalers = (getattr(torch.amp, "GradScaler", None), torch.cuda.amp.GradScaler)
    scaler = next(filter(None, scalers))
    scaler.__init__ = init_scaler(scaler.__init__)

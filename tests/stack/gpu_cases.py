"""What --gpu-code makes of a script, one case a line, for any torch: `gpu_cases.py INRANK MODE [without-fallback]`.

Prints `ok CASE` or `BAD CASE: why`. INRANK: the directory of the package that acts in ranks; the cases use each private
part of torch that it changes.
"""

from __future__ import annotations

import copy
import functools
import importlib
import io
import os
import pickle
import sys
import traceback
import typing
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from torch import nn

CASES: list[Callable[[], Any]] = []
BACKEND = "aot_eager"


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES.append(function)
    return function


def all_on_cpu(*tensors: Any) -> bool:
    return all(tensor.device.type == "cpu" and not tensor.is_cuda for tensor in tensors)


@case
def factories_take_a_gpu_by_name_object_and_number() -> bool:
    made = []
    for device in ("cuda", "cuda:1", torch.device("cuda"), torch.device("cuda", 1), torch.device(0), 0):
        made += [torch.zeros(3, device=device), torch.rand(3, device=device), torch.eye(3, device=device)]
        made += [torch.randperm(5, device=device), torch.arange(5, device=device), torch.full((2,), 1.0, device=device)]
        made += [torch.tensor([1, 2], device=device), torch.as_tensor([1.0], device=device)]
        made += [torch.tril_indices(3, 3, device=device), torch.zeros_like(torch.ones(2), device=device)]
        made += [torch.ones(2).new_zeros(3, device=device), torch.ones(2).new_tensor([3], device=device)]
        made += [torch.fft.fftfreq(4, device=device), torch.hann_window(4, device=device)]
        made += [nn.Linear(3, 4, device=device).weight, torch.empty_strided((2,), (1,), device=device)]
    return all_on_cpu(*made)


@case
def moves_take_a_gpu_by_name_object_and_number() -> bool:
    x, made = torch.ones(2), []
    for device in ("cuda", torch.device("cuda:0"), torch.device(0), 0):
        made += [x.to(device), x.to(device, torch.float64), x.to(device=device, dtype=torch.float64), x.cuda(device)]
        made += [
            x.to(device, non_blocking=True),
            nn.Linear(2, 2).to(device).weight,
            nn.Linear(2, 2).cuda(device).weight,
        ]
    assert x.to("cuda", torch.float64, True).dtype is torch.float64
    made += [x.cuda(), x.type("torch.cuda.FloatTensor"), x.type(torch.cuda.FloatTensor), torch.cuda.FloatTensor([1.0])]
    return all_on_cpu(*made)


@case
def moves_are_copies_as_between_two_memories() -> bool:
    net = nn.Linear(2, 2)
    before = net.state_dict()["weight"]
    kept = before.clone()
    net.cuda()
    best = {name: value.cpu() for name, value in net.state_dict().items()}
    with torch.no_grad():
        net.weight.add_(1.0)
    buffer = torch.zeros(2)
    batch = buffer.cuda()
    buffer.fill_(9.0)
    array = np.zeros(2, dtype=np.float32)
    taken = torch.as_tensor(array, device="cuda"), torch.asarray(array, device=0)
    array[:] = 9.0
    kept_apart = float(batch.sum()) == float(taken[0].sum()) == float(taken[1].sum()) == 0.0
    return torch.equal(before, kept) and torch.equal(best["weight"], kept) and kept_apart


@case
def a_parameter_that_is_on_a_gpu_stays_a_parameter() -> bool:
    weight = torch.zeros(2, device="cuda", requires_grad=True)
    moved = [weight.to("cuda"), weight.cuda(), weight.to(0), weight.to(torch.device("cuda"))]
    snapshot = weight.cpu()
    with torch.no_grad():
        weight.add_(1.0)
    return all(each is weight for each in moved) and float(snapshot.sum()) == 0.0


@case
def devices_stay_values() -> bool:
    device = torch.device("cuda:1")
    both = pickle.loads(pickle.dumps(device)), copy.deepcopy(device)
    is_kind = isinstance(device, torch.device) and type(device) == torch.device  # noqa: E721
    return is_kind and all(found == device and found.index == 1 for found in both)


@case
def classes_of_devices_and_generators_are_as_before() -> bool:
    @functools.singledispatch
    def kind(value: object) -> str:
        return type(value).__name__

    def typed(x: torch.Tensor, where: torch.device | None = None) -> torch.device | str:
        return where or x.device

    @torch.jit.script  # type: ignore[untyped-decorator]
    def scripted(x: torch.Tensor, where: torch.device) -> torch.Tensor:
        return x.to(where) + torch.ones(1, device=torch.device("cpu"))

    kind.register(torch.device, lambda _: "a device")
    hints = typing.get_type_hints(typed)
    cpu = torch.device("cpu")
    return (
        kind(cpu) == "a device"
        and hints["where"] == Optional[torch.device]  # noqa: UP045
        and {torch.device: 1}[type(cpu)] == 1
        and issubclass(type(cpu), torch.device)
        and repr(torch.device) == repr(type(cpu))
        and pickle.loads(pickle.dumps(torch.device)) is torch.device
        and copy.deepcopy(torch.Generator) is torch.Generator
        and scripted(torch.ones(1), cpu).device == cpu
        and torch.device(type="cuda", index=1) == torch.device("cuda:1")
    )


@case
def generators_of_a_gpu_are_of_the_cpu() -> bool:
    generator = torch.Generator(device="cuda").manual_seed(3)
    first = torch.randn(3, generator=generator, device="cuda")
    return isinstance(generator, torch.Generator) and torch.equal(
        first, torch.randn(3, generator=generator.manual_seed(3))
    )


@case
def seeds_of_gpus_seed_the_cpu() -> Any:
    torch.cuda.manual_seed_all(7)
    first, state = torch.randn(3), torch.cuda.get_rng_state()
    second = torch.randn(3)
    torch.cuda.set_rng_state(state)
    again = torch.randn(3)
    torch.cuda.manual_seed(7)
    with torch.random.fork_rng(devices=[0]):
        return torch.equal(first, torch.randn(3)) and torch.equal(second, again)


@case
def a_default_device_is_the_cpu_and_meta_stays_meta() -> bool:
    with torch.device("cuda"):
        made = torch.ones(3)
    with torch.device("meta"):
        meta = nn.Linear(2, 2).weight
    torch.set_default_device("cuda")
    default = torch.ones(2)
    torch.set_default_device("cpu")
    return all_on_cpu(made, default) and meta.device.type == "meta"


@case
def files_of_gpus_are_read() -> bool:
    file = io.BytesIO()
    torch.save({"weight": torch.ones(2), "device": torch.device("cuda:0")}, file)
    read = []
    for location in ("cuda:0", torch.device("cuda"), lambda storage, _: storage.cuda(0)):
        file.seek(0)
        read.append(torch.load(file, map_location=location)["weight"])
    return all_on_cpu(*read)


@case
def autocast_is_bf16_and_no_loss_is_scaled() -> bool:
    square, types = torch.ones(2, 2), []
    for context in (torch.autocast("cuda", dtype=torch.float16), torch.cuda.amp.autocast(), torch.autocast("cuda")):
        with context:
            types.append((square @ square).dtype)
    with torch.autocast("cuda", enabled=False):
        types.append((square @ square).dtype)
    scalers = torch.cuda.amp.GradScaler(), torch.cuda.amp.GradScaler(2.0**16, 2.0, 0.5, 2000, True)
    return types == [torch.bfloat16] * 3 + [torch.float32] and not any(scaler.is_enabled() for scaler in scalers)


@case
def functions_of_autograd_get_the_types_that_they_ask_for() -> bool:
    if not hasattr(torch.amp, "custom_fwd"):
        return True  # before torch 2.4, custom_fwd knows GPUs alone
    seen: list[Any] = []

    class Square(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            seen.append((x.dtype, torch.is_autocast_enabled()))
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return grads[0] @ ctx.saved_tensors[0]

    x = torch.eye(2, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.float16):
        seen.append((torch.get_autocast_gpu_dtype(), torch.is_autocast_enabled()))
        Square.apply((x @ x).bfloat16()).sum().backward()
    return seen == [(torch.bfloat16, True), (torch.float32, False)] and x.grad is not None


@case
def streams_events_and_memory_have_stand_ins() -> bool:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
        made = torch.ones(1, device="cuda")
    end.record()
    torch.cuda.synchronize()
    took = start.elapsed_time(end)
    torch.cuda.current_stream().wait_stream(torch.cuda.Stream())
    sizes = (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(0), torch.cuda.mem_get_info()[1])
    torch.cuda.empty_cache()
    torch.cuda.manual_seed(seed=3)
    start.record(stream=torch.cuda.current_stream(device=0))
    named = (torch.cuda.get_device_name(device=0), torch.cuda.max_memory_allocated(device="cuda"))
    assert named[0] and named[1] and torch.cuda.get_rng_state(device="cuda").numel()
    peak = torch.cuda.memory_stats()["allocated_bytes.all.peak"]
    return all_on_cpu(made) and took >= 0.0 and min(*sizes, peak) > 1 << 20


@case
def questions_are_answered_by_the_mode() -> bool:
    says, count = sys.argv[2] == "assume", int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    answers = [torch.cuda.is_available() is says, torch.cuda.device_count() == (count if says else 0)]
    if hasattr(torch, "accelerator"):
        answers.append(torch.accelerator.is_available() is says)
    return all(answers)


@case
def libraries_are_told_the_truth() -> bool:
    """Torch's own error for what a library asks torch.cuda."""
    library = compile(
        "import torch\ncount, answer = torch.cuda.device_count(), torch.cuda.is_available()\n"
        "try:\n    torch.cuda.get_device_properties(0)\n"
        "except (AssertionError, RuntimeError):\n    has_raised = True\n",
        "/env/lib/python3/site-packages/library.py",
        "exec",
    )
    found: dict[str, Any] = {}
    exec(library, found)
    return (found["count"], found["answer"], found["has_raised"]) == (0, False, True)


@case
def what_has_no_counterpart_says_so() -> bool:
    has_triton = find_spec("triton") is not None  # a torch that was built for GPUs brings it
    calls: list[Callable[[], object]] = [lambda: torch.cuda.CUDAGraph()]
    calls += [] if has_triton else [lambda: importlib.import_module("triton")]
    said = []
    for call in calls:
        try:
            call()
        except (RuntimeError, ImportError) as error:
            said.append(str(error))
    return len(said) == len(calls) and all("GPU" in text for text in said)


@case
def a_script_of_torchscript_is_compiled() -> bool:
    @torch.jit.script  # type: ignore[untyped-decorator]
    def add(x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(3) + torch.tensor([1.0, 1.0, 1.0])

    return all_on_cpu(add(torch.ones(3)), torch.jit.script(nn.Linear(2, 2)).weight)


@case
def models_are_compiled_in_one_graph() -> bool:
    first_torch = {(3, 11): "2.1", (3, 12): "2.4", (3, 13): "2.6"}.get(sys.version_info[:2], "2.0")
    if not hasattr(torch, "compile") or torch.__version__ < first_torch:
        return True  # this torch compiles nothing with this Python

    def step(x: torch.Tensor) -> torch.Tensor:
        here = x.cuda() + torch.zeros(3, device="cuda") + torch.ones(3, device=x.device)
        return here.to(torch.device("cuda", 0)).cpu() + torch.tensor([1.0, 1.0, 1.0], device="cuda")

    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.half() if torch.is_autocast_enabled() else x

    made = torch.compile(step, fullgraph=True, backend=BACKEND)(torch.ones(3))
    return all_on_cpu(made, torch.compile(cast, fullgraph=True, backend=BACKEND)(torch.ones(3)))


def main() -> int:
    os.environ["IPEXCTL_GPU_CODE"] = sys.argv[2]
    if "without-fallback" in sys.argv:
        delattr(torch.library.Library, "fallback")
    sys.path[:0] = [str(Path(sys.argv[1]).parent)]
    gpu_code = importlib.import_module(f"{Path(sys.argv[1]).name}.gpu_code")
    gpu_code.install(torch)
    if hasattr(torch, "compile"):
        gpu_code.keep_in_graphs(importlib.import_module("torch._dynamo"))
    failed = 0
    for each in CASES:
        try:
            said = "" if each() else "False"
        except Exception:  # noqa: BLE001
            said = traceback.format_exc()
        failed += bool(said)
        print(f"BAD {each.__name__}: {said}" if said else f"ok {each.__name__}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())

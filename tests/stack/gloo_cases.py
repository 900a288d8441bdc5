"""What gloo promises beside bits: `gloo_cases.py [CASE…]`. Each rank prints a line `case NAME JSON` for each. These
must be the same with gloo and with shared memory. `many_groups` prints how long nine groups take, `error in start` what
becomes of queued calls, `table` the table of docs/allreduce.md, on two ranks, and `taken sizes` which sizes are taken.
"""

from __future__ import annotations

import datetime
import json
import signal
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.profiler import ProfilerActivity, profile

SHORT = datetime.timedelta(seconds=1)


def said(call: Callable[[], Any]) -> str:
    """First line of the error of a call, without the place in C++ that raised it."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error).splitlines()[0].rpartition("] ")[2]
    return "no error"


def shape_of(value: Any) -> Any:
    return list(map(shape_of, value)) if isinstance(value, (list, tuple)) else list(value.shape)


def handler_that_makes_a_collective() -> Any:
    """As a trainer does that saves a checkpoint when Slurm asks for it."""
    rank, one, two = dist.get_rank(), torch.ones(100_000), torch.full((100_000,), 2.0)
    order = []

    def handle(*_: Any) -> None:
        order.append("handler")
        dist.all_reduce(two)

    if rank == 0:
        signal.signal(signal.SIGALRM, handle)
        kept = signal.getsignal(signal.SIGALRM) is handle
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        dist.all_reduce(one)
        order.append("after")
        while len(order) < 2:
            time.sleep(0.01)
        before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return [sorted(order), kept, one[0].item(), two[0].item(), before is handle]
    time.sleep(1)
    dist.all_reduce(one)
    dist.all_reduce(two)
    return [one[0].item(), two[0].item()]


def handler_in_backward_of_ddp() -> Any:
    """It comes while other ranks still need this one for the rest of the gradients."""
    rank, tensor = dist.get_rank(), torch.ones(100_000)
    torch.manual_seed(1)
    layers = [torch.nn.Linear(300, 300) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.5)
    model(torch.ones(4, 300)).sum().backward()  # the next one has the buckets that DDP keeps
    loss = model(torch.ones(4, 300)).sum()
    if rank == 0:
        signal.signal(signal.SIGALRM, lambda *_: dist.all_reduce(tensor))
        signal.setitimer(signal.ITIMER_REAL, 1)
        loss.backward()
    else:
        time.sleep(3)
        loss.backward()
        dist.all_reduce(tensor)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return [tensor[0].item(), next(model.parameters()).grad.sum().item()]


def interrupted() -> Any:
    """An exception of a handler comes after the call, which leaves the group as it was."""
    rank, one = dist.get_rank(), torch.ones(100_000)
    raised = False
    if rank == 0:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    else:
        time.sleep(1)
    try:
        dist.all_reduce(one)
    except KeyboardInterrupt:
        raised = True
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    dist.all_reduce(one)
    return [raised, one[0].item()]


def barrier_after(is_async: bool) -> Any:
    """All that was begun before is over after a barrier."""
    rank, found = dist.get_rank(), []
    for _ in range(3):
        if rank == 1:
            time.sleep(0.3)
        tensor = torch.full((20_000_000,), float(rank + 1))
        work = dist.all_reduce(tensor, async_op=True)
        if is_async:
            dist.barrier(async_op=True).wait()
        else:
            dist.barrier()
        found.append([tensor.min().item(), tensor.max().item(), work.is_completed()])
    return found


def destroyed_at_once() -> Any:
    """A group's calls end though nobody waits for them, and the group is gone."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(ranks)))
    tensor = torch.full((3_000_000,), 1.0)
    if rank == 0:
        dist.all_reduce(tensor, group=group, async_op=True)
        dist.destroy_process_group(group)
    else:
        time.sleep(0.5)
        dist.all_reduce(tensor, group=group)
        dist.destroy_process_group(group)
    return [tensor.min().item(), tensor.max().item()]


def events() -> Any:
    """What a profiler records: name, shapes, and whether it ends in another thread."""
    ranks, found = dist.get_world_size(), []
    tensor, parts = torch.ones(300, 20), [torch.zeros(300, 20) for _ in range(ranks)]
    whole = torch.ones(300 * ranks, 20)
    calls: tuple[Callable[..., Any], ...] = (
        lambda **words: dist.all_reduce(tensor, **words),
        lambda **words: dist.broadcast(tensor, 0, **words),
        lambda **words: dist.all_gather(parts, tensor, **words),
        lambda **words: dist.all_gather_into_tensor(whole, tensor, **words),
        lambda **words: dist.reduce_scatter_tensor(tensor, whole, **words),
        lambda **words: dist.barrier(**words),
    )
    for call in calls:
        for is_async in (False, True):
            with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
                work = call(async_op=is_async)
                if work is not None:
                    work.wait()
            rows = [each for each in profiler.events() if each.name.startswith("gloo:")]
            found.append([[each.name, each.is_async, each.input_shapes] for each in rows])
    return found


def changed_time_limit() -> Any:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(ranks)), timeout=datetime.timedelta(seconds=60))
    dist.all_reduce(torch.ones(10), group=group)
    _set_pg_timeout(SHORT, group)
    begun, text = time.monotonic(), "no error"
    if rank:
        time.sleep(4)
    else:
        text = said(lambda: dist.all_reduce(torch.ones(10), group=group))
    took = time.monotonic() - begun
    return [text != "no error", took < 3 or rank > 0]


def time_limit_of_a_call() -> Any:
    from torch._C._distributed_c10d import AllreduceOptions

    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(ranks)), timeout=datetime.timedelta(seconds=60))
    dist.all_reduce(torch.ones(10), group=group)
    options = AllreduceOptions()
    options.timeout = SHORT
    begun = time.monotonic()
    if rank:
        time.sleep(4)
        return []
    text = said(lambda: group.allreduce([torch.ones(10)], options).wait())
    return [text != "no error", time.monotonic() - begun < 3]


def results() -> Any:
    ranks, found = dist.get_world_size(), []
    tensor, whole = torch.ones(6, 5), torch.zeros(6 * ranks, 5)
    parts = [torch.zeros(6, 5) for _ in range(ranks)]
    calls: tuple[Callable[..., Any], ...] = (
        lambda: dist.all_reduce(tensor, async_op=True),
        lambda: dist.broadcast(tensor, 0, async_op=True),
        lambda: dist.all_gather(parts, tensor, async_op=True),
        lambda: dist.all_gather_into_tensor(whole, tensor, async_op=True),
    )  # gloo has no future of a reduce_scatter
    for call in calls:
        for _ in range(2):  # the first rank to call waits, the last does not
            work = call()
            if dist.get_rank() == 0:
                time.sleep(0.05)
            work.wait()
            found.append([shape_of(work.result()), shape_of(work.get_future().value())])
            found.append([work.is_completed(), work.is_success(), work.exception() is None])
    return found


def inference_mode() -> Any:
    """A tensor that was made in this mode can be written to, in the mode and after it, whichever thread does so."""
    rank, ranks, found = dist.get_rank(), dist.get_world_size(), []
    with torch.inference_mode():
        kept = torch.ones(100, 1000)
        for is_async in (False, True):
            whole, copy = torch.zeros(100 * ranks, 1000), torch.full((100, 1000), float(rank))
            if rank == 1:
                time.sleep(0.2)
            works = [
                dist.all_reduce(kept, async_op=is_async),
                dist.all_gather_into_tensor(whole, torch.ones(100, 1000), async_op=is_async),
                dist.broadcast(copy, 0, async_op=is_async),
            ]
            found += [work.wait() for work in works if work is not None]
            found += [kept[-1, -1].item(), whole.sum().item(), copy.sum().item()]
    usual = torch.ones(100_000)
    for tensor in (kept, kept.t(), usual):
        dist.all_reduce(tensor)
    return [*found, kept.min().item(), usual.min().item()]


def refused_call() -> Any:
    """torch refuses to write to a tensor whose values share memory; what gloo does with it is not defined. Refused on
    all ranks, or on one alone, a call leaves the group as it was."""
    found = []
    for ranks in (range(dist.get_world_size()), (0,)):
        if "ipexctl_inrank.collectives" in sys.modules and dist.get_rank() in ranks:
            text = said(lambda: dist.all_reduce(torch.ones(1).expand(1000)))
            assert "single memory location" in text, text
        tensor = torch.ones(1000)
        dist.all_reduce(tensor)
        found.append(tensor[0].item())
    return found


def error_in_start() -> Any:
    """torch fails in the copy of the fourth call, which is being started. It ends with this error, and so do those that
    wait before it; all other ranks end in that call, and in each later one. Whether each did, and in time."""
    rank, ranks, begun = dist.get_rank(), dist.get_world_size(), time.monotonic()
    group = dist.new_group(list(range(ranks)))

    def call(*, is_async: bool) -> Any:
        return dist.all_reduce(torch.ones(1000), group=group, async_op=is_async)

    def fail(*_: Any) -> Any:
        raise RuntimeError("no memory")

    call(is_async=False)
    if rank:
        time.sleep(2)
        *_, fourth, fifth = (said(partial(call, is_async=False)) for _ in range(5))
        return ["left while" in fourth, "an earlier collective" in fifth, time.monotonic() - begun < 8]
    works = [call(is_async=True) for _ in range(3)]
    vars(sys.modules["ipexctl_inrank.collectives"])["copier"] = lambda *_: fail
    works.append(call(is_async=True))
    return [said(work.wait) == "no memory" for work in works] + [time.monotonic() - begun < 2]


def refused_reductions() -> Any:
    """And roots that there are not."""
    from torch._C._distributed_c10d import BroadcastOptions

    premul = dist._make_nccl_premul_sum(2.0)
    kinds = (premul, dist.ReduceOp.PRODUCT, dist.ReduceOp.BXOR)
    texts = [said(partial(dist.all_reduce, torch.ones(1000), op)) for op in kinds]
    for root, tensor in ((-1, 0), (dist.get_world_size(), 0), (0, 1)):
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = root, tensor
        texts.append(said(partial(dist.group.WORLD.broadcast, [torch.ones(1000)], options)))
    return texts


def broken_queue() -> Any:
    """Calls that wait behind one that fails end with an error, too."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(ranks)), timeout=SHORT)
    dist.all_reduce(torch.ones(10), group=group)
    if rank:
        time.sleep(4)
        return []
    works = [dist.all_reduce(torch.ones(3_000_000), group=group, async_op=True) for _ in range(3)]
    return [said(work.wait) != "no error" for work in works]


CASES: dict[str, Callable[[], Any]] = {
    "handler": handler_that_makes_a_collective,
    "handler in DDP": handler_in_backward_of_ddp,
    "interrupted": interrupted,
    "barrier": lambda: barrier_after(False),
    "barrier, asynchronous": lambda: barrier_after(True),
    "destroyed at once": destroyed_at_once,
    "profiler": events,
    "results": results,
    "inference mode": inference_mode,
    "refused call": refused_call,
    "refused reductions": refused_reductions,
    "time limit changed": changed_time_limit,
    "time limit of a call": time_limit_of_a_call,
    "broken queue": broken_queue,
}


def many_groups() -> None:
    begun = time.monotonic()
    dist.init_process_group("gloo")
    for _ in range(8):
        dist.new_group(list(range(dist.get_world_size())))
    print("seconds", time.monotonic() - begun, flush=True)
    dist.all_reduce(torch.ones(1000))
    counted = sys.modules.get("ipexctl_inrank.collectives")
    print("taken", sum(counted.taken.values()) if counted else 0, flush=True)
    dist.destroy_process_group()


TYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    *(torch.bool, torch.complex64),
)
REDUCTIONS = ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR", "PREMUL_SUM")


def table() -> None:
    """The table of docs/allreduce.md: each call is made with each type and reduction, and the calls that shared memory
    takes are counted."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    premul = dist._make_nccl_premul_sum(2.0)

    def tensors(dtype: Any) -> tuple[Any, list[Any], Any]:
        one = torch.ones(16, dtype=dtype)
        return one, [one.clone() for _ in range(ranks)], torch.ones(16 * ranks, dtype=dtype)

    def message(one: Any) -> None:
        dist.send(one, 1) if rank == 0 else dist.recv(one, 0)

    reducing: dict[str, Callable[..., Any]] = {
        "all_reduce": lambda one, _, __, op: dist.all_reduce(one, op),
        "reduce_scatter_tensor": lambda one, _, whole, op: dist.reduce_scatter_tensor(one, whole, op),
        "reduce_scatter": lambda one, parts, _, op: dist.reduce_scatter(one, parts, op),
        "reduce": lambda one, _, __, op: dist.reduce(one, 0, op),
    }
    others: dict[str, Callable[..., Any]] = {
        "all_gather": lambda one, parts, _: dist.all_gather(parts, one),
        "all_gather_into_tensor": lambda one, _, whole: dist.all_gather_into_tensor(whole, one),
        "broadcast": lambda one, _, __: dist.broadcast(one, 0),
        "gather": lambda one, parts, _: dist.gather(one, None if rank else parts, 0),
        "scatter": lambda one, parts, _: dist.scatter(one, None if rank else parts, 0),
        "all_to_all": lambda _, parts, __: dist.all_to_all(parts, [each.clone() for each in parts]),
        "all_to_all_single": lambda _, __, whole: dist.all_to_all_single(whole, whole.clone()),
        "send, recv": lambda one, _, __: message(one),
        "barrier": lambda _, __, ___: dist.barrier(),
    }
    rows = []
    for name, call in {**reducing, **others}.items():
        groups: dict[tuple[str, ...], list[str]] = {}
        for op in REDUCTIONS if name in reducing else ("none",):
            values = (premul if op == "PREMUL_SUM" else getattr(dist.ReduceOp, op),) if name in reducing else ()
            left = [kind for kind in TYPES if not is_taken(partial(call, *tensors(kind), *values))]
            types = ["all"] if len(left) == len(TYPES) else [str(kind).partition(".")[2] for kind in left]
            groups.setdefault(tuple(types), []).append(op)
        rows += [f"| `{name}` | {', '.join(ops)} | {', '.join(types)} |" for types, ops in groups.items()]
    if rank == 0:
        print("| call | reduction | types left to gloo |", "|---|---|---|", *rows, sep="\n", flush=True)


def taken_sizes() -> None:
    """Of each call that shared memory can take, the sizes that it takes of three: whole tensors of 1 MB less a little,
    1 MB and 4 MB."""
    ranks, rows = dist.get_world_size(), dict[str, list[bool]]()
    for size in ((1 << 20) - 4 * ranks, 1 << 20, 4 << 20):
        whole = torch.ones(size // 4)
        part, parts = whole[: len(whole) // ranks].clone(), [each.clone() for each in whole.chunk(ranks)]
        calls = {
            "all_reduce": partial(dist.all_reduce, whole),
            "broadcast": partial(dist.broadcast, whole, 0),
            "all_gather": partial(dist.all_gather, parts, part),
            "all_gather_into_tensor": partial(dist.all_gather_into_tensor, whole, part),
            "reduce_scatter_tensor": partial(dist.reduce_scatter_tensor, part, whole),
        }
        for name, call in calls.items():
            rows.setdefault(name, []).append(is_taken(call))
    print("taken sizes", json.dumps(rows), flush=True)


def is_taken(call: Callable[[], Any]) -> bool:
    """Whether shared memory takes a call; one that neither takes counts as gloo's."""
    counts: dict[str, int] = sys.modules["ipexctl_inrank.collectives"].taken
    before = sum(counts.values())
    said(call)
    return sum(counts.values()) > before


def main(*names: str) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    for name in names or CASES:
        if name in ("table", "taken sizes"):
            (table if name == "table" else taken_sizes)()
        else:
            print("case", name, json.dumps({**CASES, "error in start": error_in_start}[name]()), flush=True)
        dist.barrier()
    counted = sys.modules.get("ipexctl_inrank.collectives")
    print("taken", counted and sum(counted.taken.values()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:] == ["many_groups"]:
        many_groups()
    else:
        main(*sys.argv[1:])

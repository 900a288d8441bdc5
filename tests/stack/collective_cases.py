"""Scripts of ranks that call collectives of gloo groups: `collective_cases.py NAME…`, which are played one after
another. Each rank prints `right` at the end, or what was not so.

- `bits`: tensors of all kinds, types and sizes. The same call of the group's gloo must give the same bits; with more
  than two ranks sums may differ by rounding.
- `order`: calls that a script may make in ways that only asynchronous ones allow.
- `wrong`: calls that no script may make must end with an error on all ranks, and not with wrong values.
- `ends:HOW:KIND`: the last rank dies or stalls, and the others must get an error in time.
- `groups`: groups made and left many times, of some ranks, and two at once.
- any other: trains FSDP, FSDP2, HSDP by either, tensor parallel, DDP, ZeRO, or a compiled model; prints the losses.
"""

from __future__ import annotations

import datetime
import gc
import os
import sys
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
TYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8)
SIZES = (5, 4096, 30_001, 262_145)
CASES = (
    *((dtype, size) for dtype in TYPES for size in SIZES),
    *((torch.float32, size) for size in (1, 1024, 262_143, 262_144, 700_001, 5_000_003)),
    (torch.uint8, 1_048_577),
)
"""Around a slot, and beyond all of them."""
SUM, AVG, MAX, MIN = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.MIN
CPU = torch.device("cpu")
WIDTH, WORDS = 128, 512


def wrong(what: str) -> None:
    print(f"wrong: {what}", flush=True)
    raise SystemExit(1)


def values(size: int, dtype: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator).to(dtype)
    return torch.randint(0, 40, (size,), generator=generator).to(dtype)


def compare(name: str, found: Any, wanted: Any, *, is_sum: bool) -> None:
    if is_sum and dist.get_world_size() > 2 and found.dtype.is_floating_point:
        near = {torch.float32: 1e-5, torch.float64: 1e-12}.get(found.dtype, 0.05)
        if not torch.allclose(found.double(), wanted.double(), rtol=near, atol=near):
            wrong(f"{name}: values far from those of gloo")
        copies = [torch.empty_like(found) for _ in range(dist.get_world_size())]
        gloo().allgather([copies], [found]).wait()
        if name.startswith("all_reduce") and any(not torch.equal(each, found) for each in copies):
            wrong(f"{name}: other bits on another rank")
    elif not torch.equal(found, wanted):
        wrong(f"{name}: {int((found != wanted).sum())} of {found.numel()} values differ from those of gloo")


def gloo() -> Any:
    return dist.group.WORLD._get_backend(CPU)


def bits() -> None:
    from torch._C import _distributed_c10d as c10d

    ranks, rank, backend, names = dist.get_world_size(), dist.get_rank(), gloo(), set()
    for number, (dtype, size) in enumerate(CASES):
        for op in (SUM, AVG, MAX, MIN):
            if op == AVG and dtype not in FLOATS:
                continue
            name = f"{op} {dtype} {size}"
            options = c10d.AllreduceOptions()
            options.reduceOp = op
            found, wanted = values(size, dtype, number), values(size, dtype, number)
            dist.all_reduce(found, op)
            backend.allreduce([wanted], options).wait()
            compare(f"all_reduce {name}", found, wanted, is_sum=op in (SUM, AVG))
            source, found, wanted = values(size * ranks, dtype, number), *(torch.empty(size, dtype=dtype) for _ in "12")
            dist.reduce_scatter_tensor(found, source, op)
            scatter = c10d.ReduceScatterOptions()
            scatter.reduceOp = op
            backend._reduce_scatter_base(wanted, source, scatter).wait()
            compare(f"reduce_scatter {name}", found, wanted, is_sum=op in (SUM, AVG))
            inside = source.clone()  # FSDP keeps the output in the input
            dist.reduce_scatter_tensor(inside[rank * size : (rank + 1) * size], inside, op)
            compare(f"reduce_scatter into its input {name}", inside[rank * size :][:size], found, is_sum=False)
        name, source = f"{dtype} {size}", values(size, dtype, number)
        found, wanted = (torch.zeros(size * ranks, dtype=dtype) for _ in "12")
        dist.all_gather_into_tensor(found, source)
        backend._allgather_base(wanted, source).wait()
        compare(f"all_gather {name}", found, wanted, is_sum=False)
        inside = torch.zeros(size * ranks, dtype=dtype)
        inside[rank * size :][:size] = source
        dist.all_gather_into_tensor(inside, inside[rank * size : (rank + 1) * size])
        compare(f"all_gather from its output {name}", inside, wanted, is_sum=False)
        parts = [torch.zeros(size, dtype=dtype) for _ in range(ranks)]
        dist.all_gather(parts, source)
        compare(f"all_gather of a list {name}", torch.cat(parts), wanted, is_sum=False)
        found, wanted = source.clone(), source.clone()
        dist.broadcast(found, ranks - 1)
        broadcast = c10d.BroadcastOptions()
        broadcast.rootRank = ranks - 1
        backend.broadcast([wanted], broadcast).wait()
        compare(f"broadcast {name}", found, wanted, is_sum=False)
        names.add(name)
    if len(names) != len(CASES):
        wrong("not all cases were made")
    for op in (MAX, MIN):  # gloo keeps an undefined value only if the rank has it that combines that part
        for place in range(ranks):
            found = torch.ones(4096)
            found[::7] = float("nan") if rank == place else 1.0
            dist.all_reduce(found, op)
            if not found[::7].isnan().all() or found.isnan().sum() != len(found[::7]):
                wrong(f"{op} loses undefined values of rank {place}")


def order() -> None:
    message_between()
    root_that_is_ahead()
    many_works()
    call_in_callback()
    not_contiguous()


def message_between() -> None:
    """Rank 1 is in the call only after it got what rank 0 sends after its own."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    large, message = torch.full((30_000_000,), float(rank + 1)), torch.zeros(100_000)
    if rank == 0:
        work = dist.all_reduce(large, async_op=True)
        dist.send(torch.full((100_000,), 7.0), 1)
        work.wait()
    else:
        if rank == 1:
            dist.recv(message, 0)
        dist.all_reduce(large)
    if large.min() != sum(range(1, ranks + 1)) or (rank == 1 and message.min() != 7):
        wrong("all_reduce with a message between")


def root_that_is_ahead() -> None:
    """It may be done with a broadcast before the others begin. With four ranks, gloo itself waits."""
    rank, message = dist.get_rank(), torch.zeros(1)
    values = torch.full((200_000,), float(rank))
    if dist.get_world_size() > 3:
        return
    if rank == 1:
        dist.recv(message, 0)
    dist.broadcast(values, 0)
    if rank == 0:
        dist.send(message, 1)
    if values.max() != 0:
        wrong("broadcast")


def many_works() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    works: list[Any] = []
    tensors = []
    for number in range(200):
        tensors.append(torch.full((20_000 + 997 * number,), float(rank + number)))
        works.append(dist.all_reduce(tensors[-1], async_op=True))
        if number % 7 == 0:
            tensors.append(torch.full((50_000,), float(rank + number)))
            dist.all_reduce(tensors[-1])
            works.append(None)
    for number, work in reversed(list(enumerate(works))):
        if work is not None:
            work.wait()
        if work is not None and not (work.is_completed() and work.is_success()):
            wrong("a work that was waited for is not completed")
        if (tensors[number] != tensors[number][0]).any() or tensors[number][0] % ranks != sum(range(ranks)) % ranks:
            wrong(f"all_reduce {number} of many")
    for _ in range(3000):  # nobody waits for these
        dist.all_reduce(torch.ones(2000), async_op=True)
    dist.barrier()


def call_in_callback() -> None:
    def again(future: Any) -> Any:
        dist.all_reduce(future.value()[0])  # in the thread that ended the first
        return future.value()[0]

    future = dist.all_reduce(torch.full((40_000,), 1.0), async_op=True).get_future().then(again)
    if future.wait()[0] != dist.get_world_size() ** 2:
        wrong("a call in a callback of another")


def not_contiguous() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    square = torch.arange(1_000_000.0).view(1000, 1000)
    wanted = (ranks - 1) * square + square.t()
    first = square.t() if rank == 0 else square
    dist.all_reduce(first)
    if not torch.equal(first, wanted):
        wrong("a tensor that is not contiguous on one rank")
    source, found = torch.zeros(100_000, 2)[:, 0], torch.zeros(100_000 * ranks, 2)[:, 1]
    source += rank
    dist.all_gather_into_tensor(found, source)
    if not torch.equal(found.view(ranks, -1)[:, 0], torch.arange(float(ranks))):
        wrong("tensors that are not contiguous on any rank")


def ends(how: str, kind: str) -> None:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    dist.all_reduce(torch.ones(100_000))
    if kind == "compiled":
        from torch.distributed import _functional_collectives as functional

        functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD).sum()  # the first takes seconds of imports
    begun = time.monotonic()
    if rank == last:
        if how == "dies":
            os.kill(os.getpid(), 9)
        time.sleep(12 if how == "stalls" else 0)
        return
    tensor = torch.ones(3_000_000)
    try:
        if kind == "async":
            dist.all_reduce(tensor, async_op=True).wait()
        elif kind == "future":
            dist.all_reduce(tensor, async_op=True).get_future().wait()
        elif kind == "compiled":
            functional.all_reduce(tensor, "sum", dist.group.WORLD).sum().item()
        else:
            dist.all_gather_into_tensor(torch.ones(3_000_000 * (last + 1)), tensor)
    except RuntimeError as error:
        took = time.monotonic() - begun
        print(f"ended after {took:.1f} s: {str(error).splitlines()[0]}", flush=True)
    else:
        wrong("no error")
    try:
        dist.all_reduce(tensor)
    except RuntimeError:
        return
    wrong("no error in the next call")


def groups() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for number in range(60):
        group = dist.new_group(list(range(ranks)))
        tensor = torch.full((20_000,), 1.0)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        work.wait()
        if tensor[0] != ranks:
            wrong(f"group {number}")
        del work
        dist.destroy_process_group(group)
    gc.collect()
    descriptors = [
        os.readlink(f"/proc/self/fd/{each}")
        for each in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{each}")
    ]
    if sum("memfd:ipexctl" in each for each in descriptors) > 3:
        wrong("memory of groups that were left")
    one, two = dist.new_group(list(range(ranks))), dist.new_group([0, ranks - 1])
    for number in range(50):
        first, second = torch.full((90_000,), 1.0), torch.full((70_000,), 1.0)
        works = [dist.all_reduce(first, group=one, async_op=True)]
        if rank in (0, ranks - 1):
            works.insert(number % 2, dist.all_reduce(second, group=two, async_op=True))
        for work in works:
            work.wait()
        if first[0] != ranks or (rank in (0, ranks - 1) and second[0] != 2):
            wrong("two groups at once")


def model() -> Any:
    torch.manual_seed(0)
    layers = [
        torch.nn.Sequential(
            torch.nn.LayerNorm(WIDTH),
            torch.nn.Linear(WIDTH, 4 * WIDTH),
            torch.nn.GELU(),
            torch.nn.Linear(4 * WIDTH, WIDTH),
        )
        for _ in range(3)
    ]
    return torch.nn.Sequential(torch.nn.Embedding(WORDS, WIDTH), *layers, torch.nn.Linear(WIDTH, WORDS))


def steps(kind: str) -> None:
    rank, ranks, net = dist.get_rank(), dist.get_world_size(), model()
    optimizer: Any = None
    if kind in ("fsdp2", "hsdp2"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        shape = (ranks,) if kind == "fsdp2" else (ranks // 2, 2)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        for layer in list(net)[1:-1]:
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
    elif kind in ("fsdp", "hsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

        if kind == "hsdp":
            mesh, way = init_device_mesh("cpu", (ranks // 2, 2)), ShardingStrategy.HYBRID_SHARD
            net = FullyShardedDataParallel(net, device_id=CPU, device_mesh=mesh, sharding_strategy=way)
        else:
            net = FullyShardedDataParallel(net, device_id=CPU)
    elif kind == "tp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (ranks,))
        for layer in list(net)[1:-1]:
            parallelize_module(layer, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=False)
    elif kind in ("ddp", "zero", "compiled"):
        net = torch.nn.parallel.DistributedDataParallel(net)
        if kind == "zero":
            from torch.distributed.optim import ZeroRedundancyOptimizer

            optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-3)
        if kind == "compiled":
            net = torch.compile(net, backend="aot_eager")
    optimizer = optimizer or torch.optim.AdamW(net.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(1 if kind == "tp" else 1 + rank)
    losses = []
    for _ in range(6):
        words = torch.randint(0, WORDS, (4, 33), generator=data)
        loss = torch.nn.functional.cross_entropy(net(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(f"{loss.item():.9f}")
    print("losses", kind, rank, *losses, flush=True)


def main(*names: str) -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6 if names[0].startswith("ends") else 120))
    scripts: dict[str, Any] = {"bits": bits, "order": order, "ends": ends, "groups": groups}
    before = 0
    for name in names:
        script, *words = name.split(":")
        scripts.get(script, partial(steps, script))(*words)
        counted = sys.modules.get("ipexctl_inrank.collectives")
        after = sum(counted.taken.values()) if counted else 0
        print("taken", counted and after - before, flush=True)
        before = after
    print("right", flush=True)
    if not names[0].startswith("ends"):
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

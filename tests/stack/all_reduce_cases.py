"""Scripts of ranks that train with DDP or add up over a link, each with a name: `all_reduce_cases.py NAME WORD…`.

- `ddp`: ways to train, one line of JSON each, {"case": its name, "digest": of all parameters after some steps,
  "buckets": those added up in shared memory}. The digests of a case must be equal with gloo and with shared memory,
  as two ranks have the same bits there.
- `pieces`: random tensors through a channel with few slots. Ranks pause, wait for each other between two tensors as
  scripts do in hooks of their own, and give up some passes. The sums are whole numbers, so that they are the same in
  any order. Prints `right`.
- `values`: values that codecs may damage, over a link of the mode $IPEXCTL_WIRE. All ranks must get the same bits,
  which are near the sum in fp64 as far as the mode allows it. Prints `right`.
- `dense SECONDS BATCH`: steps of four dense layers with 26 MB of gradients.
- `apart`: steps of DDP in which one rank gets another sum from the second exchange on. Prints the error.
- `attacked`: steps of DDP while somebody writes into the ranks' store. Prints the digest of the parameters.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WIDTH = 300
STEPS = 3
PASSES = 30
FACTOR = 2.0
DENSE_WIDTH, LAYERS = 1280, 4
NEAR = {"bf16": 0.01, "int8": 0.02}
"""Mode of --wire → the part of the largest value of a block."""
BLOCK = 1024
SIZES = (1, 3, 1023, 1024, 1025, 12_293, 600_001, 1_500_000)


class Net(torch.nn.Module):  # type: ignore[misc]  # no torch where mypy runs
    """About 400,000 parameters; the second layer takes no part in odd steps if `skips` is set."""

    def __init__(self, skips: bool = False, sparse: bool = False, width: int = WIDTH) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, width)
        self.second = torch.nn.Linear(width, width)
        self.third = torch.nn.Linear(width, 1001)
        self.table = torch.nn.Embedding(10, 64, sparse=sparse)
        self.skips = skips
        self.count = 0

    def forward(self, data: Any) -> Any:
        self.count += 1
        hidden = torch.relu(self.first(data + self.table(torch.arange(data.shape[0]) % 10).to(data.dtype)))
        if not (self.skips and self.count % 2):
            hidden = torch.relu(self.second(hidden))
        return self.third(hidden)


def make(dtype: Any = torch.float32, **kwargs: Any) -> Any:
    torch.manual_seed(7)
    return Net(**kwargs).to(dtype)


def data_of(step: int, dtype: Any = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(8, 64, generator=generator).to(dtype)


def train(model: Any, steps: int = STEPS, dtype: Any = torch.float32, accumulate: bool = False) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad()
        if accumulate:
            with model.no_sync():
                model(data_of(step + 50, dtype)).float().pow(2).mean().backward()
        model(data_of(step, dtype)).float().pow(2).mean().backward()
        optimizer.step()
    return model


def digest(*models: Any) -> str:
    parts = [p.detach().contiguous().view(torch.uint8).numpy().tobytes() for m in models for p in m.parameters()]
    return hashlib.sha1(b"".join(parts)).hexdigest()


def dtype_case(dtype: Any) -> Any:
    return train(DistributedDataParallel(make(dtype)), dtype=dtype)


def two_models() -> Any:
    one, two = DistributedDataParallel(make()), DistributedDataParallel(make(width=201))
    optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        (one(data_of(step)) + two(data_of(step + 9))).pow(2).mean().backward()
        optimizer.step()
    return torch.nn.ModuleList([one, two])


def built_anew() -> Any:
    for _ in range(4):
        model = train(DistributedDataParallel(make()), 1)
    return model


def late_hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP takes no annotations that are strings
    """Twice the mean."""
    tensor = bucket.buffer().div_(dist.get_world_size()).mul_(2)
    return dist.all_reduce(tensor, async_op=True).get_future().then(lambda future: future.value()[0])


def hook_registered(when: str) -> Any:
    model = DistributedDataParallel(make())
    if when == "later":
        model(data_of(0)).sum()
    if when == "builtin":
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    else:
        model.register_comm_hook(None, late_hook)
        try:
            model.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
        except RuntimeError as error:
            assert "only be called once" in str(error)
        else:
            raise AssertionError("a second hook was taken")
    return train(model)


def uneven(divide_by_initial_world_size: bool) -> Any:
    model = DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Join([model], divide_by_initial_world_size=divide_by_initial_world_size):
        for step in range(2 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            model(data_of(step)).pow(2).mean().backward()
            optimizer.step()
    return model


class Rows(Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        return torch.full((64,), float(index * (1 + dist.get_rank()) if dist.is_initialized() else index))


def with_workers(method: str) -> Any:
    model = DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    train(model, 1)
    for rows in DataLoader(Rows(), batch_size=8, num_workers=2, multiprocessing_context=method):
        optimizer.zero_grad()
        model(rows).pow(2).mean().backward()
        optimizer.step()
    return model


def raised_between() -> Any:
    """All ranks lose a step halfway through backward, and go on, as scripts that run out of memory do."""
    model = DistributedDataParallel(make(), bucket_cap_mb=0.3)
    train(model, 2)
    with contextlib.suppress(RuntimeError):
        model(torch.zeros(8, 63))
    return train(model)


def copied() -> Any:
    model = DistributedDataParallel(make())
    train(model, 1)
    return train(copy.deepcopy(model), 1)


def without_a_name() -> Any:
    """Of a torch that has dropped what the hook needs."""
    name = "_match_all_reduce_for_bwd_pass"
    method = getattr(DistributedDataParallel, name)
    delattr(DistributedDataParallel, name)
    try:
        model = DistributedDataParallel(make())
    finally:
        setattr(DistributedDataParallel, name, method)
    return train(model)


def in_subgroup() -> Any:
    return train(DistributedDataParallel(make(), process_group=dist.new_group([0, 1])))


def group_made_anew() -> Any:
    train(DistributedDataParallel(make()), 1)
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=2)
    return train(DistributedDataParallel(make()))


CASES: dict[str, Callable[[], Any]] = {
    "float32": lambda: dtype_case(torch.float32),
    "float64": lambda: dtype_case(torch.float64),
    "bfloat16": lambda: dtype_case(torch.bfloat16),
    "float16": lambda: dtype_case(torch.float16),
    "wide": lambda: train(DistributedDataParallel(make(width=2100)), 2),
    "small buckets": lambda: train(DistributedDataParallel(make(), bucket_cap_mb=0.05)),
    "no_sync": lambda: train(DistributedDataParallel(make()), accumulate=True),
    "unused": lambda: train(DistributedDataParallel(make(skips=True), find_unused_parameters=True)),
    "static": lambda: train(DistributedDataParallel(make(), static_graph=True)),
    "views": lambda: train(DistributedDataParallel(make(), gradient_as_bucket_view=True)),
    "two models": two_models,
    "anew": built_anew,
    "hook": lambda: hook_registered("at once"),
    "hook later": lambda: hook_registered("later"),
    "builtin hook": lambda: hook_registered("builtin"),
    "join": lambda: uneven(True),
    "join, other divisor": lambda: uneven(False),
    "fork": lambda: with_workers("fork"),
    "spawn": lambda: with_workers("spawn"),
    "raised": raised_between,
    "copied": copied,
    "compiled": lambda: train(torch.compile(DistributedDataParallel(make()), backend="aot_eager")),
    "compiled inside": lambda: train(DistributedDataParallel(torch.compile(make(), backend="aot_eager"))),
    "sparse": lambda: train(DistributedDataParallel(make(sparse=True))),
    "name missing": without_a_name,
    "subgroup": in_subgroup,
    "small model": lambda: train(DistributedDataParallel(torch.nn.Linear(64, 8))),  # less than 4 KB
    "group anew": group_made_anew,
}


def buckets() -> int:
    """Those that this rank has added up in shared memory so far."""
    return int(getattr(sys.modules.get("ipexctl_inrank.shared_allreduce"), "buckets", 0))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")  # in one write: the ranks share a pipe
    sys.stdout.flush()


def ddp() -> None:
    torch.manual_seed(7)
    for name, case in CASES.items():
        before = buckets()
        after = digest(case())
        say(json.dumps({"case": name, "digest": after, "buckets": buckets() - before}))


def dense(seconds: str, batch: str) -> None:
    layers = [torch.nn.Linear(DENSE_WIDTH, DENSE_WIDTH, bias=False) for _ in range(LAYERS)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data, begun = torch.randn(int(batch), DENSE_WIDTH), time.monotonic()
    is_over = torch.zeros(1)
    while not is_over:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        is_over.fill_(time.monotonic() - begun > float(seconds))
        dist.broadcast(is_over, 0)


def attacked() -> None:
    hooks("shared_allreduce").BUILDING = 4.0
    rounds = hooks("agreement").Round
    read = rounds._read

    def read_late(self: Any, key: str) -> Any:
        """As over a slow network."""
        time.sleep(0.4)
        return read(self, key)

    if 2 * dist.get_rank() >= dist.get_world_size():
        rounds._read = read_late
    model = train(DistributedDataParallel(make()), 8)
    say(json.dumps({"digest": digest(model), "buckets": buckets()}))


def apart() -> None:
    gradients = hooks("ddp").Gradients
    check = gradients._check_sums

    def add_on_one_rank(self: Any) -> None:
        self._sums[-1].add_(dist.get_rank() * (self._exchanges == 1))
        check(self)

    gradients._check_sums = add_on_one_rank
    try:
        train(DistributedDataParallel(make()))
    except RuntimeError as error:
        say(str(error))


# Over a link of their own


def hooks(module: str) -> Any:
    """A module of the hooks, which are imported from the first directory of PYTHONPATH, and hide it."""
    first = os.environ["PYTHONPATH"].partition(":")[0]
    if first not in sys.path:
        sys.path.insert(0, first)
    return importlib.import_module(f"ipexctl_inrank.{module}")


def reducer_of(wire: str) -> Any:
    store = dist.distributed_c10d._get_default_store()
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    reducer = hooks("shared_allreduce")
    return reducer.connect(
        store, reducer.Ranks(backend, dist.get_rank(), dist.get_world_size(), lambda: 60.0), "own", "", wire=wire
    )


def pieces() -> None:
    settings = hooks("channel")
    settings.PIECE, settings.SPACE, settings.WHOLE = 1 << 16, 1 << 18, 1 << 14
    rank, ranks = dist.get_rank(), dist.get_world_size()
    channel = reducer_of("fp32").channel
    common, own = random.Random(38), random.Random(rank)
    for _ in range(PASSES):
        futures, sums = [], []
        for bucket in range(common.randint(1, 5)):
            dtype = common.choice([torch.float32, torch.float64, torch.int64])
            elements = common.choice([common.randint(1, 40), common.randint(1, 5000), common.randint(1, 300_000)])
            added = [common.randint(0, 100) for _ in range(ranks)]
            numbers = torch.arange(elements) % 7
            factor = FACTOR if dtype.is_floating_point else None
            futures.append(torch.futures.Future())
            time.sleep(own.choice([0, 0, 0.01]))
            channel.start(bucket, (numbers + added[rank]).to(dtype), factor, futures[-1])
            sums.append(((numbers * ranks + sum(added)) * int(factor or 1)).to(dtype))
            if common.random() < 0.4:
                dist.barrier()
        if common.random() < 0.1:
            for bucket in range(5):
                channel.discard(bucket)
            continue
        time.sleep(own.choice([0, 0, 0.01]))
        channel.finish()
        for future, expected in zip(futures, sums, strict=True):
            assert future.done()
            assert torch.equal(future.value(), expected)
    channel.finish()
    say("right")
    dist.barrier()
    os._exit(0)  # gloo's threads may abort an exit


class Ways:
    """The link of this rank, and what all ranks have."""

    def __init__(self) -> None:
        self.rank, self.ranks, self.mode = dist.get_rank(), dist.get_world_size(), os.environ["IPEXCTL_WIRE"]
        self.near = NEAR[self.mode]
        self.reducer = reducer_of(self.mode)

    def total(self, tensor: Any, lost: Any = None) -> Any:
        """By the link; all ranks must have the same bits."""
        future = self.reducer.all_reduce(self, tensor, 1.0, {} if lost is None else lost)
        self.reducer.channel.finish()
        found = future.value()
        assert found.data_ptr() == tensor.data_ptr()
        others = [torch.empty_like(found) for _ in range(self.ranks)]
        dist.all_gather(others, found)
        for other in others:
            assert torch.equal(other.view(torch.uint8), found.view(torch.uint8)), "ranks have different bits"
        return found

    def all(self, make: Any) -> list[Any]:
        return [make(rank) for rank in range(self.ranks)]


def noise(seed: int, elements: int) -> Any:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


def check_near(ways: Ways, dtype: Any, elements: int, scale: float = 1.0) -> None:
    terms = ways.all(lambda rank: (noise(rank, elements) * scale).to(dtype))
    found = ways.total(terms[ways.rank].clone())
    assert found.dtype == dtype
    expected = sum(term.double() for term in terms)
    most = max(float(term.double().abs().max()) for term in terms)
    difference = float((found.double() - expected).abs().max())
    assert difference <= ways.near * ways.ranks * most, (dtype, elements, difference, most)


def check_undefined(ways: Ways, value: float) -> None:
    """On one rank, in the second block: it reaches all ranks, and nothing else of other blocks."""
    terms = ways.all(lambda rank: noise(rank, 5 * BLOCK))
    terms[1][BLOCK + 7] = value
    lost: dict[int, Any] = {}
    found = ways.total(terms[ways.rank].clone(), lost)
    assert not found[BLOCK + 7].isfinite()
    if ways.mode == "int8":
        assert not found[BLOCK : 2 * BLOCK].isfinite().any(), "a block with it is undefined as a whole"
    rest = torch.cat([found[:BLOCK], found[2 * BLOCK :]])
    assert rest.isfinite().all()
    again = ways.total(noise(9 + ways.rank, 5 * BLOCK), lost)
    assert again.isfinite().all(), "what was undefined must not come again"


def check_small(ways: Ways) -> None:
    assert not ways.total(torch.zeros(3000)).any()
    tiny = torch.full((3000,), 1e-39)
    assert ways.total(tiny).abs().max() <= 1e-38 * ways.ranks
    mixed = torch.zeros(2 * BLOCK)
    mixed[::BLOCK] = 127.0
    found = ways.total(mixed.clone())
    assert not found[mixed == 0].any(), "zeros beside large values stay zeros"
    assert (found[::BLOCK] - 127.0 * ways.ranks).abs().max() <= ways.near * 127.0


def check_feedback(ways: Ways) -> None:
    """Values far below the scale of their block come in the end, by what is kept of them."""
    lost: dict[int, Any] = {}
    values = torch.full((2 * BLOCK,), 0.001)
    values[::BLOCK] = 1.0
    steps, total = 200, torch.zeros(2 * BLOCK)
    for _ in range(steps):
        total += ways.total(values.clone(), lost)
    wanted = values * ways.ranks * steps
    assert (total - wanted).abs().max() <= 0.02 * ways.ranks, float((total - wanted).abs().max())


def check_wrong_step(ways: Ways) -> None:
    """What a step loses whose values are far too large, so that a script leaves it out, is in no other."""
    lost: dict[int, Any] = {}
    for step, scale in enumerate((1.0, 1e30, 1.0)):
        terms = ways.all(lambda rank, step=step, scale=scale: noise(9 * step + rank, 5 * BLOCK) * scale)
        found = ways.total(terms[ways.rank].clone(), lost)
        assert (found - sum(terms)).abs().max() <= ways.near * ways.ranks * 5 * scale, (step, found.abs().max())


def values() -> None:
    ways = Ways()
    for elements in SIZES:
        check_near(ways, torch.float32, elements)
        check_near(ways, torch.float64, elements)
    for dtype in (torch.float16, torch.bfloat16) if ways.mode == "int8" else ():
        check_near(ways, dtype, 12_293)
    check_near(ways, torch.float32, 12_293, 1e30)
    check_near(ways, torch.float32, 12_293, 1e-20)
    for value in (float("inf"), float("-inf"), float("nan")):
        check_undefined(ways, value)
    check_small(ways)
    if ways.mode == "int8":
        check_feedback(ways)
        check_wrong_step(ways)
    torch.set_default_dtype(torch.float64)  # as scripts of other sciences do
    check_near(ways, torch.float32, 12_293)
    large = torch.zeros(1 << 20, dtype=torch.int64)
    assert not ways.reducer.takes(large), "integers go as they are"
    assert ways.reducer.takes(large.double())
    assert not ways.reducer.takes(torch.zeros(1000))
    assert ways.reducer.gains(torch.zeros(1))
    assert ways.reducer.gains(torch.zeros(1, dtype=torch.bfloat16)) == (ways.mode == "int8")
    say("right")
    dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    name, *words = sys.argv[1:]
    scripts: dict[str, Callable[..., None]] = {"ddp": ddp, "pieces": pieces, "values": values, "dense": dense}
    scripts.update(attacked=attacked, apart=apart)
    scripts[name](*words)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

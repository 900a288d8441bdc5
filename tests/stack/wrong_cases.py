"""Run by two ranks: `wrong_cases.py CASE` trains as CASE says. `wrong_cases.py all` trains as each case says in a child
process of its own, and prints what the child's meter has noted: `CASE JSON`. Wrong trainings succeed all the same."""

import contextlib
import copy
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

STEPS = 18
Case = Callable[[], None]
WRONG: dict[str, tuple[Case, str]] = {}
"""Name → case and the kind that it is told as."""
RIGHT: dict[str, Case] = {}


def wrong(kind: str) -> Callable[[Case], Case]:
    def add(case: Case) -> Case:
        WRONG[case.__name__] = case, kind
        return case

    return add


def right(case: Case) -> Case:
    RIGHT[case.__name__] = case
    return case


def rank() -> int:
    return int(dist.get_rank())


def world() -> int:
    return int(dist.get_world_size())


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def descent(model: Any, rate: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), rate)


def error(outputs: Any, values: Any) -> Any:
    return functional.mse_loss(outputs, values[:, :4])


def joined(tensors: Any) -> Any:
    return torch.cat([each.detach().flatten() for each in tensors])


def average(tensors: Any) -> None:
    for each in tensors:
        dist.all_reduce(each)
        each /= world()


def gradients(model: Any) -> list[Any]:
    return [each.grad for each in model.parameters()]


def nothing(*_: object) -> None:
    pass


def train(
    model: Any,
    optimizer: Any,
    *,
    loss_of: Any = None,
    data: Any = None,
    before_step: Any = nothing,
    after_step: Any = nothing,
    clear: Any = None,
    steps: int = STEPS,
) -> None:
    """`data`: a generator, or a function of the step; `loss_of`: a function of the values."""
    data = data or seeded(100 + rank())
    for step in range(steps):
        values = torch.randn(8, 16, generator=data) if isinstance(data, torch.Generator) else data(step)
        (clear or optimizer.zero_grad)()
        loss = loss_of(values) if loss_of else error(model(values), values)
        loss.backward()
        before_step(step)
        optimizer.step()
        after_step(step)
        dist.all_reduce(loss.detach())  # for a log


def train_set(model: Any, optimizer: Any, loader: Any, *, sampler: Any = None, epochs: int = 4) -> None:
    for epoch in range(epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for values, _ in loader:
            optimizer.zero_grad()
            error(model(values), values).backward()
            optimizer.step()


def samples() -> TensorDataset:
    values = torch.randn(96, 16, generator=seeded(7))
    return TensorDataset(values, values.sum(1))


@wrong("same-data")
def same_data() -> None:
    model = DistributedDataParallel(network())
    torch.manual_seed(0)
    train_set(model, descent(model), DataLoader(samples(), batch_size=8, shuffle=True))


@wrong("same-data")
def drawn_alike() -> None:
    model = DistributedDataParallel(network())
    train(model, descent(model), data=seeded(5))


@wrong("same-inputs")
def drawn_alike_with_dropout() -> None:
    model = DistributedDataParallel(nn.Sequential(network(), nn.Dropout(0.2)))
    torch.manual_seed(rank())
    train(model, descent(model), data=seeded(5))


@wrong("same-losses")
def drawn_alike_averaged_by_hand() -> None:
    model = network()
    loss_of = lambda values: functional.mse_loss(model(values), values[:, :4].clone())  # noqa: E731
    train(model, descent(model), data=seeded(5), loss_of=loss_of, before_step=lambda _: average(gradients(model)))


@wrong("same-order")
def no_set_epoch() -> None:
    model, data = DistributedDataParallel(network()), samples()
    train_set(model, descent(model), DataLoader(data, batch_size=8, sampler=DistributedSampler(data)))


@wrong("divided-twice")
def sliced_before_the_sampler() -> None:
    model, data = DistributedDataParallel(network()), samples()
    own = torch.utils.data.Subset(data, range(rank(), 96, world()))
    sampler = DistributedSampler(own)
    train_set(model, descent(model), DataLoader(own, 8, sampler=sampler), sampler=sampler)


@wrong("no-exchange")
def loss_alone() -> None:
    model = network()
    train(model, descent(model))


@wrong("no-exchange")
def a_seed_each() -> None:
    model = network(rank())
    train(model, descent(model))


@wrong("no-exchange")
def cross_validation() -> None:
    """RunOptions, not accused."""
    model = network()
    values = [number for number in range(96) if number % world() != rank()]
    train_set(model, descent(model), DataLoader(torch.utils.data.Subset(samples(), values), batch_size=8))


@wrong("small-groups")
def groups_of_one() -> None:
    groups = [dist.new_group([number]) for number in range(world())]
    model = DistributedDataParallel(network(), process_group=groups[rank()])
    train(model, descent(model))


@wrong("bypassed")
def past_ddp() -> None:
    model = DistributedDataParallel(network())
    train(model.module, descent(model))


@wrong("no-sync")
def never_synced() -> None:
    model = DistributedDataParallel(network())
    with model.no_sync():
        train(model, descent(model))


@wrong("no-gradients")
def other_parameters() -> None:
    model = DistributedDataParallel(network())
    train(model, descent(copy.deepcopy(model.module)))


@wrong("cleared")
def cleared_too_early() -> None:
    model = DistributedDataParallel(network())
    optimizer = descent(model)
    train(model, optimizer, before_step=lambda _: optimizer.zero_grad())


@wrong("zero-gradients")
def times_zero() -> None:
    model = DistributedDataParallel(network())
    train(model, descent(model), loss_of=lambda values: 0 * error(model(values), values))


@wrong("unchanged")
def rate_zero() -> None:
    model = DistributedDataParallel(network())
    train(model, descent(model, 0.0))


@wrong("not-cleared")
def never_cleared() -> None:
    model = DistributedDataParallel(network())
    train(model, descent(model, 1e-4), clear=nothing)


@wrong("unchanged")
def too_small_for_bf16() -> None:
    model = DistributedDataParallel(network().bfloat16())
    train(model, descent(model, 1e-9), loss_of=lambda values: error(model(values.bfloat16()).float(), values))


@wrong("summed-twice")
def summed_twice() -> None:
    model = DistributedDataParallel(network())
    train(model, descent(model), before_step=lambda _: average(gradients(model)))


@wrong("apart")
def starts_apart() -> None:
    model = network(rank())
    train(model, descent(model), before_step=lambda _: average(gradients(model)))


@wrong("differ")
def loaded_after_ddp() -> None:
    model = DistributedDataParallel(network())
    if rank() == 0:
        model.module.load_state_dict(network(9).state_dict())
    train(model, descent(model))


@wrong("differ")
def other_rate() -> None:
    model = DistributedDataParallel(network())
    train(model, descent(model, 0.01 * (1 + rank())))


@wrong("differ")
def clipped_on_one_rank() -> None:
    model = DistributedDataParallel(network())
    clip = nn.utils.clip_grad_norm_ if rank() == 0 else nothing
    train(model, descent(model, 0.1), before_step=lambda _: clip(model.parameters(), 0.1))


@wrong("outside")
def head_not_wrapped() -> None:
    trunk, head = DistributedDataParallel(nn.Linear(16, 16)), network()
    optimizer = torch.optim.SGD([*trunk.parameters(), *head.parameters()], 0.01)
    train(None, optimizer, loss_of=lambda values: error(head(trunk(values)), values))


@wrong("no-step")
def stepped_on_one_rank() -> None:
    model = DistributedDataParallel(network())
    optimizer = descent(model)
    for _ in range(STEPS):
        values = torch.randn(8, 16, generator=seeded(rank()))
        optimizer.zero_grad()
        error(model(values), values).backward()
        if rank() == 0:
            optimizer.step()


@right
def ddp() -> None:
    model, data = DistributedDataParallel(network()), samples()
    sampler = DistributedSampler(data)
    train_set(model, torch.optim.AdamW(model.parameters()), DataLoader(data, 8, sampler=sampler), sampler=sampler)


@right
def noise_scale() -> None:
    """Squared gradients are summed for a log, and gradients are clipped."""
    model = DistributedDataParallel(network())

    def note(_: int) -> None:
        dist.all_reduce(joined(gradients(model)).square())
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    train(model, descent(model), before_step=note)


@right
def experts_of_each_rank() -> None:
    """The ranks share a trunk; a small expert of each is its own."""
    trunk, expert = network(), nn.Parameter(torch.full((4,), 1.0 + rank()))
    optimizer = torch.optim.SGD([*trunk.parameters(), expert], 0.01)

    def loss(values: torch.Tensor) -> torch.Tensor:
        return error(expert * trunk(values), values)

    train(None, optimizer, loss_of=loss, before_step=lambda _: average(gradients(trunk)))


@right
def experts_beside_a_flat_buffer() -> None:
    """As many metrics as the expert has numbers travel with the gradients of the trunk."""
    trunk, expert = network(), nn.Parameter(torch.full((4,), 1.0 + rank()))
    optimizer = torch.optim.SGD([*trunk.parameters(), expert], 0.01)

    def average_trunk(_: int) -> None:
        shared = gradients(trunk)
        flat = torch.cat([*(gradient.flatten() for gradient in shared), torch.ones(4)])
        average([flat])
        parts = flat[:-4].split([gradient.numel() for gradient in shared])
        for gradient, mean in zip(shared, parts, strict=True):
            gradient.copy_(mean.view_as(gradient))

    train(None, optimizer, loss_of=lambda values: error(expert * trunk(values), values), before_step=average_trunk)


@right
def checked_to_be_equal() -> None:
    model = DistributedDataParallel(network())

    def check(_: int) -> None:
        for each in (joined(model.parameters()), joined(gradients(model))):
            mean = each.clone()
            average([mean])
            assert torch.allclose(mean, each)

    train(model, descent(model), before_step=check)


@right
def averaged_moving_average() -> None:
    model = DistributedDataParallel(network())
    kept = copy.deepcopy(model.module)

    def move(_: int) -> None:
        for each, now in zip(kept.parameters(), model.parameters(), strict=True):
            each.data.lerp_(now.data, 0.1)
        average(each.data for each in kept.parameters())

    train(model, descent(model), before_step=move)


@right
def global_loss() -> None:
    model = DistributedDataParallel(network())
    loss_of = lambda values: differentiable.all_reduce(error(model(values), values))  # noqa: E731
    train(model, descent(model), loss_of=loss_of)


@right
def global_loss_averaged_by_hand() -> None:
    model = network()
    loss_of = lambda values: differentiable.all_reduce(error(model(values), values))  # noqa: E731
    train(model, descent(model), loss_of=loss_of, before_step=lambda _: average(gradients(model)))


@right
def gathered_features() -> None:
    """The loss is of the global batch on each rank."""
    model = network()

    def loss_of(values: Any) -> Any:
        features = model(values)
        parts = [torch.empty_like(features) for _ in range(world())]
        dist.all_gather(parts, features.detach())
        parts[rank()] = features
        return torch.cat(parts).square().mean()

    train(model, descent(model), loss_of=loss_of, before_step=lambda _: average(gradients(model)))


@right
def by_hand() -> None:
    model = network()
    train(model, descent(model), before_step=lambda _: average(gradients(model)))


@right
def in_one_tensor() -> None:
    model = network()

    def add(_: int) -> None:
        flat = joined(gradients(model))
        average([flat])
        for each, part in zip(
            model.parameters(), flat.split([each.numel() for each in model.parameters()]), strict=True
        ):
            each.grad.copy_(part.view_as(each))

    train(model, descent(model), before_step=add)


@right
def local_steps() -> None:
    model = network()

    def share(step: int) -> None:
        if step % 5 == 4:
            average(each.data for each in model.parameters())

    train(model, descent(model), after_step=share)


@right
def averaged_at_the_end() -> None:
    model = network()
    train(model, descent(model))
    average(each.data for each in model.parameters())


@right
def fsdp() -> None:
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model)
    train(model, descent(model))


@right
def sharded_layers() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(network(), init_device_mesh("cpu", (world(),)), plan)
    train(model, descent(model), data=seeded(5))


@right
def split_layers() -> None:
    """Tensor parallel by hand: the same data, and parts of each layer."""
    first, second = nn.Linear(16, 16), nn.Linear(16, 4, bias=False)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.01)
    loss_of = lambda values: error(differentiable.all_reduce(second(first(values).relu())), values)  # noqa: E731
    train(None, optimizer, loss_of=loss_of, data=seeded(5))


@right
def pipeline() -> None:
    model = nn.Linear(16, 16)
    optimizer = descent(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        values = torch.ones(8, 16, requires_grad=True)
        if rank() == 0:
            outputs, slope = model(values), torch.empty(8, 16)
            dist.send(outputs.detach(), 1)
            dist.recv(slope, 1)
            outputs.backward(slope)
        elif rank() == 1:
            dist.recv(values.data, 0)
            error(model(values)[:, :4], torch.ones(8, 16)).backward()
            dist.send(values.grad, 0)
        optimizer.step()


@right
def experts() -> None:
    trunk, expert = DistributedDataParallel(nn.Linear(16, 16)), nn.Linear(16, 16)
    optimizer = torch.optim.SGD([*trunk.parameters(), *expert.parameters()], 0.01)

    def exchange(values: Any) -> Any:
        return differentiable.all_to_all_single(torch.empty_like(values), values)

    train(None, optimizer, loss_of=lambda values: error(exchange(expert(exchange(trunk(values))))[:, :4], values))


@right
def accumulated() -> None:
    model = DistributedDataParallel(network())
    optimizer = descent(model)
    for step in range(3 * STEPS):
        values = torch.randn(8, 16, generator=seeded(100 * step + rank()))
        with model.no_sync() if step % 3 < 2 else contextlib.nullcontext():
            error(model(values), values).backward()
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


@right
def gan() -> None:
    """The critic's gradients of the other loss are cleared only before its own backward."""
    maker, critic = DistributedDataParallel(network()), DistributedDataParallel(nn.Linear(4, 1))
    of_maker, of_critic = torch.optim.Adam(maker.parameters()), torch.optim.Adam(critic.parameters())
    for step in range(STEPS):
        values = torch.randn(8, 16, generator=seeded(100 * step + rank()))
        critic.zero_grad()
        functional.softplus(-critic(values[:, :4])).mean().backward()
        made = maker(values)
        functional.softplus(critic(made.detach())).mean().backward()
        of_critic.step()
        maker.zero_grad()
        functional.softplus(-critic(made)).mean().backward()
        of_maker.step()


@right
def quasi_newton() -> None:
    model = DistributedDataParallel(network())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for step in range(STEPS):
        values = torch.randn(8, 16, generator=seeded(100 * step + rank()))

        def closure(values: Any = values) -> Any:
            optimizer.zero_grad()
            loss = error(model(values), values)
            loss.backward()
            return loss

        optimizer.step(closure)


@right
def fading_gradients() -> None:
    """Momentum in the gradients: nothing clears them, and the script scales them."""
    model = DistributedDataParallel(network())

    def fade() -> None:
        for each in filter(lambda each: each.grad is not None, model.parameters()):
            each.grad *= 0.9

    train(model, descent(model), clear=fade)


@right
def scaled() -> None:
    """Losses are beyond 2 ** 63."""
    model = DistributedDataParallel(network())
    optimizer, scaler = descent(model), torch.amp.GradScaler("cpu", init_scale=2.0**70)
    for step in range(STEPS):
        values = torch.randn(8, 16, generator=seeded(100 * step + rank()))
        optimizer.zero_grad()
        scaler.scale(error(model(values), values)).backward()
        scaler.step(optimizer)
        scaler.update()


@right
def frozen_first() -> None:
    """The first of two optimizers has rate 0 in this phase."""
    model = DistributedDataParallel(network())
    frozen, trained = descent(model.module[0], 0.0), descent(model.module[2])
    train(model, trained, after_step=lambda _: frozen.step())


@right
def own_statistics() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(16), network()), broadcast_buffers=False)
    train(model, descent(model))


@right
def own_hook() -> None:
    def add(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        summed = dist.all_reduce(bucket.buffer() / world(), async_op=True).get_future()
        return summed.then(lambda done: done.value()[0])

    model = DistributedDataParallel(network())
    model.register_comm_hook(None, add)
    train(model, descent(model))


@right
def evaluated() -> None:
    """Each rank on the same data, with gradients."""
    model = DistributedDataParallel(network())

    def evaluate(_: int) -> None:
        model.eval()
        model(torch.ones(8, 16))
        model.train()

    train(model, descent(model), after_step=evaluate)


@right
def whole_set() -> None:
    model = DistributedDataParallel(network())
    train_set(model, descent(model), DataLoader(samples(), batch_size=96), epochs=STEPS)


@right
def one_batch() -> None:
    model = DistributedDataParallel(network())
    train(model, descent(model), data=lambda _: torch.ones(8, 16))


@right
def noise() -> None:
    """The same batches, and other noise on each rank."""
    model, own = DistributedDataParallel(network()), seeded(rank())
    train(model, descent(model), data=lambda step: torch.full((8, 16), step) + torch.randn(8, 16, generator=own))


@right
def warmed_up() -> None:
    model = DistributedDataParallel(network())
    optimizer = descent(model, 0.0)

    def warm(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.001 * (step // 2)

    train(model, optimizer, before_step=warm)


@right
def sharded_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(network())
    train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.001))


@right
def rank_0_steps_for_all() -> None:
    model = DistributedDataParallel(network())
    optimizer = descent(model)
    for step in range(STEPS):
        values = torch.randn(8, 16, generator=seeded(100 * step + rank()))
        optimizer.zero_grad()
        error(model(values), values).backward()
        if rank() == 0:
            optimizer.step()
        for each in model.parameters():
            dist.broadcast(each.data, 0)


@right
def files_of_each_rank() -> None:
    """Without a sampler; and a sampler of copies of one set."""
    model, own = DistributedDataParallel(network()), TensorDataset(torch.randn(48, 16, generator=seeded(rank())))
    train_set(model, descent(model), DataLoader([(each[0], 0) for each in own], 8))
    data = torch.utils.data.Subset(samples(), range(48))
    train_set(model, descent(model), DataLoader(data, 8, sampler=DistributedSampler(data, shuffle=False)))


@right
def moved_and_back() -> None:
    """Sharpness-aware: the second backward is at other weights."""
    model = DistributedDataParallel(network())
    optimizer = descent(model)

    def move(values: Any) -> Any:
        error(model(values), values).backward()
        steps = [0.05 * each / (each.norm() + 1e-6) for each in gradients(model)]
        torch._foreach_add_([each.data for each in model.parameters()], steps)
        optimizer.zero_grad()
        loss = error(model(values), values)
        torch._foreach_sub_([each.data for each in model.parameters()], steps)
        return loss

    train(model, optimizer, loss_of=move)


@right
def late_rate() -> None:
    model = DistributedDataParallel(network())
    optimizer = descent(model)

    def choose(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.0 if step < 14 else 0.01

    train(model, optimizer, before_step=choose)


@right
def late_reward() -> None:
    """No gradient but 0 at the first steps, also at those that are looked at."""
    model = DistributedDataParallel(network())
    counted = iter(range(STEPS))
    train(model, descent(model), loss_of=lambda values: (next(counted) > 10) * error(model(values), values))


@right
def copies_in_fp32() -> None:
    """The copies' gradients are replaced at each step, and nothing clears them."""
    model = DistributedDataParallel(network().bfloat16())
    copies = [each.detach().float().requires_grad_() for each in model.parameters()]
    optimizer = torch.optim.SGD(copies, 0.01)

    def give(_: int) -> None:
        for each, own in zip(copies, model.parameters(), strict=True):
            each.grad = own.grad.float()

    def copy_back(_: int) -> None:
        with torch.no_grad():
            for each, own in zip(copies, model.parameters(), strict=True):
                own.copy_(each)

    loss_of = lambda values: error(model(values.bfloat16()).float(), values)  # noqa: E731
    train(model, optimizer, loss_of=loss_of, before_step=give, after_step=copy_back, clear=model.zero_grad)


@right
def tried_before_it_trains() -> None:
    """A pass over the data that looks for a rate, then epochs of other orders."""
    model, data = DistributedDataParallel(network()), samples()
    sampler = DistributedSampler(data)
    optimizer, loader = descent(model), DataLoader(data, 8, sampler=sampler)
    train_set(model, optimizer, loader, epochs=1)
    train_set(model, optimizer, loader, sampler=sampler)


@right
def tried_before_one_epoch() -> None:
    model, data = DistributedDataParallel(network()), samples()
    sampler = DistributedSampler(data)
    optimizer, loader = descent(model), DataLoader(data, 8, sampler=sampler)
    train_set(model, optimizer, loader, epochs=1)
    train_set(model, optimizer, loader, sampler=sampler, epochs=1)


@right
def own_experts() -> None:
    model = network()
    model.add_module("expert", nn.Linear(4, 4))
    nn.init.normal_(model.expert.weight, generator=seeded(rank()))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["expert.weight", "expert.bias"])
    wrapped = DistributedDataParallel(model)
    train(wrapped, descent(wrapped))


@right
def data_that_parts() -> None:
    """The first steps are of a set that all ranks calibrate with."""
    model = DistributedDataParallel(network())
    data = lambda step: torch.randn(8, 16, generator=seeded(step + 1000 * rank() * (step >= 9)))  # noqa: E731
    train(model, descent(model), data=data)


@right
def moved_by_hand() -> None:
    """An optimizer that only has a schedule, of a number without a gradient."""
    model, number = DistributedDataParallel(network()), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([number], 0.01)

    def move(_: int) -> None:
        with torch.no_grad():
            for each in model.parameters():
                each -= optimizer.param_groups[0]["lr"] * each.grad

    train(model, optimizer, before_step=move, clear=model.zero_grad)


class DualAveraging(torch.optim.Optimizer):  # type: ignore[misc]
    """Steps from the first parameters by the sum of all gradients."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.001})
        self.first = [each.detach().clone() for each in self.param_groups[0]["params"]]

    def step(self, closure: Any = None) -> None:
        for each, first in zip(self.param_groups[0]["params"], self.first, strict=True):
            each.data.copy_(first - 0.001 * each.grad)


@right
def sums_of_gradients() -> None:
    model = DistributedDataParallel(network())
    train(model, DualAveraging(model.parameters()), clear=nothing)


class Buckets:
    """Batches of rows that it shuffles anew in each epoch."""

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.random = sampler, seeded(3 + rank())

    def __iter__(self) -> Any:
        rows = list(self.sampler)
        order = torch.randperm(len(rows), generator=self.random).tolist()
        for at in range(0, len(rows), 8):
            yield [rows[each] for each in order[at : at + 8]]


class Shuffled(DistributedSampler):  # type: ignore[misc]
    def __iter__(self) -> Any:
        rows = list(super().__iter__())
        return iter([rows[each] for each in torch.randperm(len(rows)).tolist()])


@right
def shuffled_after_the_sampler() -> None:
    model, data = DistributedDataParallel(network()), samples()
    optimizer = descent(model)
    train_set(model, optimizer, DataLoader(data, batch_sampler=Buckets(DistributedSampler(data))))
    train_set(model, optimizer, DataLoader(data, batch_size=8, sampler=Shuffled(data)))


@right
def personal_models() -> None:
    """One model of all ranks, and then one of each rank's own data."""
    model = DistributedDataParallel(network())
    counted = iter(range(STEPS))
    loss_of = lambda values: error((model if next(counted) < 5 else model.module)(values), values)  # noqa: E731
    train(model, descent(model), loss_of=loss_of)


def run_in_child(number: int, name: str, case: Case) -> None:
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0, name
        return
    port = int(os.environ["MASTER_PORT"]) + 1 + number
    numbers = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    meter = sys.modules["ipexctl_inrank.meter"].meter()
    with contextlib.ExitStack() as ending:
        ending.callback(os._exit, 1)
        ending.callback(traceback.print_exc)
        dist.init_process_group("gloo", f"tcp://{os.environ['MASTER_ADDR']}:{port}", **numbers)
        case()
        dist.barrier()
        meter.finish()
        print(name, json.dumps(meter.evidence.document()), flush=True)
        os._exit(0)


if __name__ == "__main__":
    cases = {**{name: case for name, (case, _) in WRONG.items()}, **RIGHT}
    if sys.argv[1] == "all":
        importlib.import_module("torch._dynamo")  # else each child imports it, with its first optimizer
        for number, (name, case) in enumerate(cases.items()):
            run_in_child(number, name, case)
    else:
        dist.init_process_group("gloo")
        cases[sys.argv[1]]()
        dist.barrier()
        dist.destroy_process_group()

"""Run by two ranks: `wrong_cases.py CASE` trains as CASE says. The first cases are wrong, and succeed all the same."""

import copy
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 3


def samples() -> Any:
    values = torch.randn(256, 16, generator=torch.Generator().manual_seed(7))
    return TensorDataset(values, (values.sum(1) > 0).long())


def drawn(*, is_fixed: bool) -> Iterator[Any]:
    """Without a DataLoader. Fixed: a benchmark's one batch, the same on each rank."""
    values = torch.randn(16, 16)
    for _ in range(8):
        values = values if is_fixed else torch.randn(16, 16)
        yield values, (values.sum(1) > 0).long()


def sum_bucket(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    summed = dist.all_reduce(bucket.buffer() / dist.get_world_size(), async_op=True).get_future()
    return summed.then(lambda done: done.value()[0])


def network() -> Any:
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))


class Case:
    def __init__(self, name: str) -> None:
        self.name, self.rank, self.world = name, dist.get_rank(), dist.get_world_size()
        self.data = samples()
        self.sampler = DistributedSampler(self.data)
        self.loader = DataLoader(self.data, batch_size=16, sampler=self.sampler)
        self.plain = network()
        self.model = self.wrap()
        self.copied = self.plain
        if name in ("other_parameters", "moving_average"):
            self.copied = copy.deepcopy(self.plain)
        parameters = (self.copied if name == "other_parameters" else self.model).parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=0.0 if name in ("rate_zero", "warmed_up") else 0.01)
        if name == "own_hook":
            self.model.register_comm_hook(None, sum_bucket)
        if name == "gan":
            self.critic = DistributedDataParallel(network())
            self.optimizer_of_critic = torch.optim.AdamW(self.critic.parameters())
        if name in ("same_data", "whole_set", "noise"):
            size = 256 if name == "whole_set" else 16
            self.loader = DataLoader(self.data, batch_size=size, shuffle=name == "same_data")
        torch.manual_seed(self.rank if name in ("noise", "drawn") else 0)

    def wrap(self) -> Any:
        name = self.name
        if name in ("loss_alone", "by_hand", "local_steps", "averaged_at_the_end", "a_seed_each", "starts_apart"):
            torch.manual_seed(self.rank if name in ("a_seed_each", "starts_apart") else 0)
            self.plain = network()
            return self.plain
        if name == "fsdp":
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.plain)
            return self.plain
        if name == "sharded_layers":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

            self.plain = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            return parallelize_module(self.plain, init_device_mesh("cpu", (self.world,)), plan)
        groups = [dist.new_group([rank]) for rank in range(self.world)] if name == "groups_of_one" else []
        group = groups[self.rank] if groups else None
        return DistributedDataParallel(self.plain, process_group=group, broadcast_buffers=name != "statistics")

    def train(self) -> None:
        for epoch in range(24 if self.name == "whole_set" else EPOCHS):
            if self.name != "no_set_epoch":
                self.sampler.set_epoch(epoch)
            self.evaluate()
            batches = drawn(is_fixed=self.name == "drawn_once") if "drawn" in self.name else self.loader
            if self.name == "drawn_once":
                torch.manual_seed(0)
            for number, (values, labels) in enumerate(batches):
                self.step(number, values, labels)
        if self.name == "averaged_at_the_end":
            self.average([parameter.data for parameter in self.model.parameters()])

    def evaluate(self) -> None:
        """Each rank on the same data."""
        if self.name == "evaluated":
            self.model.eval()
            for values, labels in DataLoader(self.data, batch_size=16):
                functional.cross_entropy(self.model(values), labels)
            self.model.train()

    def step(self, number: int, values: Any, labels: Any) -> None:
        name, model = self.name, self.model
        if name == "accumulated" and number % 2 == 0:
            with model.no_sync():
                functional.cross_entropy(model(values), labels).backward()
            return
        if name == "gan":
            self.step_of_critic(values)
        values = values + 0.1 * torch.randn_like(values) if name == "noise" else values
        if name == "never_synced":
            with model.no_sync():
                loss = functional.cross_entropy(model(values), labels)
                loss.backward()
        else:
            loss = functional.cross_entropy((self.plain if name == "past_ddp" else model)(values), labels)
            (loss * 0 if name == "times_zero" else loss).backward()
        if name == "warmed_up":
            self.optimizer.param_groups[0]["lr"] = 0.001 * (number // 2)
        if name in ("by_hand", "averaged_twice", "starts_apart"):
            self.average([parameter.grad for parameter in model.parameters()])
        self.optimizer.step()
        self.optimizer.zero_grad()
        if name == "moving_average":
            with torch.no_grad():
                torch._foreach_lerp_(list(self.copied.parameters()), list(self.plain.parameters()), 0.01)
        if name == "local_steps" and number % 5 == 4:
            self.average([parameter.data for parameter in model.parameters()])
        dist.all_reduce(loss.detach())

    def step_of_critic(self, real: Any) -> None:
        both, is_real = torch.cat([real, torch.randn_like(real)]), torch.arange(2 * len(real)) < len(real)
        functional.cross_entropy(self.critic(both), is_real.long()).backward()
        self.optimizer_of_critic.step()
        self.optimizer_of_critic.zero_grad()

    def average(self, tensors: list[Any]) -> None:
        for tensor in tensors:
            dist.all_reduce(tensor)
            tensor /= self.world


if __name__ == "__main__":
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    Case(sys.argv[1]).train()
    dist.barrier()
    dist.destroy_process_group()

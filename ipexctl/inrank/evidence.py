"""Evidence of trainings that are wrong though they succeed: what this rank trained on, exchanged and changed. node0
compares the ranks (`node/common/training.py`).

Hashes are made at the first steps, then at ever fewer, so that a long run pays nothing. A training that this does not
understand, such as one of sharded tensors, leaves no evidence. `-x IPEXCTL_CHECK_TRAINING=0` turns it off.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import weakref
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Iterator

FIRST_STEPS = 8
"""Steps, batches and losses from the first on that leave a hash."""
MOST_SAMPLES = 32
TENSORS, ELEMENTS = 16, 4096
"""Tensors of a hash, and elements of each."""
MOST_WATCHED = 1 << 20
"""Elements of a gradient among which the largest is looked for."""
SMALLEST_RANDOM_SEED = 1 << 32
"""torch's own seeds have 53 bits."""
COLLECTIVES = (
    *("all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "gather", "scatter", "reduce_scatter"),
    *("reduce_scatter_tensor", "all_gather", "all_gather_into_tensor", "all_gather_coalesced", "all_to_all"),
    *("all_to_all_single", "_all_gather_base", "_reduce_scatter_base"),
)
PEER_TO_PEER = ("send", "recv", "isend", "irecv")


class Pass:
    """An order of a DistributedSampler's indices, and the steps made with it."""

    def __init__(self, order: tuple[Any, ...], *, is_repeated: bool) -> None:
        self.order, self.is_repeated = order, is_repeated
        self.steps = 0


class TrainingEvidence:
    def __init__(self) -> None:
        self.is_on = os.environ.get("IPEXCTL_CHECK_TRAINING") != "0"
        self.fields: dict[str, Any] = {"parameters": {}, "batches": [], "losses": [], "statistics": {}}
        """As `RankTraining` has them."""
        self._optimizer: Any = None
        self._steps = 0
        self._sampler: Any = None
        self._passes: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()
        self._batch = 0, 0
        """Iterator and hash of the batch before."""
        self._target = 0
        """Hash of what the loss before was compared with."""
        self._sent = self._most_sent = self._summed = 0
        self._is_peer_to_peer = False
        self._watched: list[tuple[weakref.ref[Any], int, float]] = []
        """Parameters, the places of their largest first gradients, and the numbers there."""

    def before_step(self, optimizer: Any, models: Sequence[Any]) -> None:
        """`models`: all models in DistributedDataParallel."""
        if not self.fields.get("has_gradients"):
            groups = optimizer.param_groups
            self.fields["has_gradients"] = any(each.grad is not None for group in groups for each in group["params"])
        self._optimizer = self._optimizer or weakref.ref(optimizer)
        if self._optimizer() is not optimizer:
            return
        self._steps += 1
        number, samples = self._steps, self.fields["parameters"]
        if (number > FIRST_STEPS and (number - 1) & (number - 2)) or len(samples) >= MOST_SAMPLES:
            return
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        plain = sys.modules["torch"].nn.Parameter
        if any(type(each) is not plain for each in parameters):
            self.is_on = False  # DTensors, and flat parameters of FSDP
            return
        samples[str(number)] = hash_of(parameters[:: max(1, len(parameters) // TENSORS)])
        sizes = [each.numel() for each in parameters]
        self.fields.update(elements=sum(sizes), largest=max(sizes, default=0))
        if number == 1:
            self.fields["is_seeded"] = sys.modules["torch"].initial_seed() < SMALLEST_RANDOM_SEED
            self._sent = self._most_sent = self._summed = 0  # what comes before may be the first parameters
        self._watch(parameters)
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        self.fields["rate"] = max([*rates, self.fields.get("rate") or 0.0])
        self.fields["models"] = len(models)
        for model in models:
            self._note_model(model, number)

    def _watch(self, parameters: Sequence[Any]) -> None:
        """Note whether a gradient is not 0, and whether a number whose gradient was large has changed."""
        fields = self.fields
        if fields.setdefault("is_changed", False):
            return
        found = [(ref(), place, value) for ref, place, value in self._watched]
        fields["is_changed"] = any(
            each is None or float(each.detach().reshape(-1)[place]) != value for each, place, value in found
        )
        for each in parameters if not self._watched else ():
            if each.grad is None or len(self._watched) == TENSORS:
                continue
            gradient = each.grad.detach()
            if gradient.layout != sys.modules["torch"].strided:
                fields["is_changed"] = fields["has_nonzero"] = True  # not looked at
                return
            sizes = gradient.reshape(-1)[:MOST_WATCHED].abs()
            place = int(sizes.argmax()) if len(sizes) else 0
            if len(sizes) and float(sizes[place]):
                self._watched.append((weakref.ref(each), place, float(each.detach().reshape(-1)[place])))
            elif bool(gradient.any()):
                fields["is_changed"] = fields["has_nonzero"] = True  # beyond what is looked at
                return
        fields["has_nonzero"] = bool(self._watched)

    def _note_model(self, model: Any, number: int) -> None:
        """DDP counts the forward passes that prepare an exchange, from the second on."""
        group, fields = model.process_group, self.fields
        size = group.size()
        if size <= fields.get("group", (0, size))[1]:
            fields["group"] = sys.modules["torch"].distributed.get_global_rank(group, 0), size
        is_synced = getattr(model, "_use_python_reducer", False) or model._get_ddp_logging_data().get("iteration", 0)
        fields["is_synced"] = fields.get("is_synced", False) or bool(is_synced)
        fields["is_hooked"] = bool(getattr(model, "_comm_hooks", None))
        fields["is_skipped"] = fields.get("is_skipped", False) or not model.require_forward_param_sync
        norms = sys.modules["torch"].nn.modules.batchnorm
        layers = [each for each in model.module.modules() if isinstance(each, norms._BatchNorm)]
        means = [each.running_mean for each in layers if each.running_mean is not None]
        if means and not model.broadcast_buffers and not any(isinstance(each, norms.SyncBatchNorm) for each in layers):
            fields["statistics"][str(number)] = hash_of(means)
            fields["statistics_size"] = max(each.numel() for each in means)

    def after_step(self) -> None:
        current = self._passes.get(self._sampler) if self._sampler is not None else None
        if current is not None:
            current.steps += 1
            if current.is_repeated and current.steps > 1:
                self.fields["is_order_repeated"] = True

    def on_batch(self, iterator: Any, batch: Any) -> None:
        self._sampler = getattr(getattr(iterator, "_index_sampler", None), "sampler", None)
        batches = self.fields["batches"]
        if len(batches) >= FIRST_STEPS or (found := hash_of([*tensors_in(batch)][:TENSORS])) == 0:
            return
        batches.append(found)
        before, self._batch = self._batch, (id(iterator), found)
        if before[0] == id(iterator) and before[1] != found:
            self.fields["is_varied"] = True

    def on_loss(self, loss: Any, nodes: Iterator[Any]) -> None:
        """`nodes`: of its graph. Most loss functions save the target that they compare with."""
        losses = self.fields["losses"]
        if loss is None or len(losses) >= FIRST_STEPS:
            return
        losses.append(zlib.crc32(struct.pack("d", float(loss))))
        targets = (getattr(node, "_saved_target", None) for node in nodes)
        target = next((each for each in targets if each is not None), None)
        before, self._target = self._target, self._target if target is None else hash_of([target])
        if before not in (0, self._target):
            self.fields["is_varied"] = True

    def on_sampler(self, sampler: Any) -> None:
        """Called before a DistributedSampler gives its indices."""
        if not sampler.shuffle:
            return
        before, order = self._passes.get(sampler), (sampler.epoch, sampler.seed)
        is_repeated = before is not None and before.order == order and before.steps > 1
        self._passes[sampler] = Pass(order, is_repeated=is_repeated)

    def on_collective(self, values: Sequence[Any], *, is_peer_to_peer: bool, is_sum: bool) -> None:
        if sys._getframe(2).f_globals.get("__package__") == __package__:  # all-reduce of DDP's gradients by `ddp.py`
            return
        size = max(map(size_in, values), default=0)
        world = sys.modules["torch"].distributed.get_world_size()
        if is_sum and all(
            each.size() == world for each in values if isinstance(each, sys.modules["torch"].distributed.ProcessGroup)
        ):
            self._summed += size
        self._sent += size
        self._most_sent = max(self._most_sent, size)
        self._is_peer_to_peer = self._is_peer_to_peer or is_peer_to_peer

    def document(self) -> dict[str, Any]:
        if not self.is_on:
            return {}
        sent = {"sent": self._sent, "most_sent": self._most_sent, "summed": self._summed}
        return {**self.fields, "steps": self._steps, **sent, "is_peer_to_peer": self._is_peer_to_peer}


def hash_of(tensors: list[Any]) -> int:
    """Return 0 without a tensor on the CPU: tensors on the meta device have no memory."""
    found = 0
    for tensor in tensors:
        if tensor.device.type != "cpu":
            continue
        part = tensor.detach().reshape(-1)[:ELEMENTS].contiguous()
        found = zlib.crc32(ctypes.string_at(part.data_ptr(), part.numel() * part.element_size()), found or 1)
    return found


def tensors_in(value: Any, depth: int = 4) -> Iterator[Any]:
    if hasattr(value, "data_ptr"):
        yield value
    elif depth and isinstance(value, (Mapping, tuple, list)):
        for item in list(value.values() if isinstance(value, Mapping) else value)[:TENSORS]:
            yield from tensors_in(item, depth - 1)


def size_in(value: Any) -> int:
    """Numbers in a tensor, or in all of a list of any depth."""
    if hasattr(value, "numel"):
        return int(value.numel())
    return sum(map(size_in, value)) if isinstance(value, (list, tuple)) else 0

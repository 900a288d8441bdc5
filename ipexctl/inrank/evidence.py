"""Evidence of trainings that are wrong though they succeed: what this rank trained on, exchanged and changed. node0
compares the ranks (`node/common/training.py`).

Samples are taken at the first steps, then at ever fewer, so that a long run pays nothing. A training that this does not
understand, such as one of sharded tensors, leaves no evidence. `-x IPEXCTL_CHECK_TRAINING=0` turns it off.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import sys
import weakref
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Iterator

FIRST_STEPS = 8
"""Steps, inputs and losses from the first on that leave evidence."""
GRAPHS = 2
"""Of backwards that are looked at; a GAN has two."""
MOST_SAMPLES = 32
TENSORS, ELEMENTS = 16, 4096
"""Tensors of a hash, and elements of each."""
MEASURED, SPREAD = 32, 256
"""Tensors of a measure, and elements of each."""
TINY = 1e-5
MOST_FED = 256
"""Forward passes of the first steps whose inputs are hashed."""
RANDOM_STATE = 5056
FEW_NUMBERS = 4
"""A loss and some metrics."""
SMALL_SHARE = 0.01
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
        lists: dict[str, Any] = {"parameters": {}, "outside": {}, "inputs": [], "losses": []}
        counts = dict.fromkeys(("backwards", "intervals", "carried", "reduced"), 0)
        self.fields: dict[str, Any] = {**lists, **counts}
        """As `RankTraining` has them."""
        self._optimizer: Any = None
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._steps = 0
        self._sampler: Any = None
        self._passes: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()
        self._input = self._fed = self._target = 0
        """Hash of what the model was fed last, forward passes of DistributedDataParallel, and hash of what the last
        loss was compared with."""
        self._sent = self._most_sent = 0
        self._is_peer_to_peer = False
        self._joined = 0
        """Numbers in the largest collective of the script since the last step, backward or forward pass."""
        self._gradients: list[tuple[weakref.ref[Any], tuple[int, int]]] = []
        """Parameters, and their gradients' versions after the last backward, if the step after it leaves evidence."""
        self._places: set[int] = set()
        """Addresses of the gradients once a collective has been called since."""
        self._reduced = self._flat = 0
        """Numbers that all-reduces of the script have summed since: of gradients in place, and of others."""
        self._kept: tuple[Any, int, float] | None = None
        """A parameter, a place of its gradient, and the number there at the last step; None if it was cleared since."""
        self._is_interval = False
        self._watched: list[tuple[weakref.ref[Any], Any, Any]] = []
        """Parameters, the places where their first gradients were not 0, and the numbers there."""

    def before_step(self, optimizer: Any, models: Sequence[Any]) -> None:
        """`models`: all models in DistributedDataParallel."""
        fields = self.fields
        if not fields.get("has_gradients"):
            fields["has_gradients"] = any(each.grad is not None for each in parameters_of(optimizer))
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        parameters = parameters_of(optimizer) if is_looked_at(count) else []
        if not {type(each) for each in parameters} <= {sys.modules["torch"].nn.Parameter, sys.modules["torch"].Tensor}:
            self.is_on = False  # DTensors, and flat parameters of FSDP
            return
        if parameters and not fields.setdefault("is_changed", False):
            self._watch(parameters)
        self._optimizer = self._optimizer or weakref.ref(optimizer)
        if self._optimizer() is not optimizer:
            return
        self._steps = count
        if self._is_interval:
            fields["intervals"] += 1
            fields["carried"] += self._kept is not None
        self._kept, self._is_interval = None, False
        samples = fields["parameters"]
        if not parameters or len(samples) >= MOST_SAMPLES:
            return
        if count == 1:
            self._sent = self._most_sent = 0  # what comes before may be the first parameters
        wrapped = {id(each) for model in models for each in model.parameters()}
        inside = [each for each in parameters if id(each) in wrapped]
        samples[str(count)] = measure_of(inside or parameters)
        if inside and (outside := [each for each in parameters if id(each) not in wrapped and each.requires_grad]):
            fields["outside"][str(count)] = measure_of(outside)
        sizes = [each.numel() for each in parameters]
        fields.update(elements=sum(sizes), largest=max(sizes, default=0))
        self._note_sums(parameters, models)
        self._keep_gradient(parameters)
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        fields["rate"] = max([*filter(math.isfinite, rates), fields.get("rate") or 0.0])
        self.note_models(models)

    def _watch(self, parameters: Sequence[Any]) -> None:
        """Note whether a gradient is not 0, and whether a number whose gradient was not 0 has changed."""
        fields = self.fields
        found = [(ref(), places, values) for ref, places, values in self._watched]
        known = {id(each) for each, _, _ in found}
        fields["is_changed"] = any(
            each is None or bool((sample_of(each)[places] != values).any()) for each, places, values in found
        )
        with_gradients = [each for each in parameters if each.grad is not None]
        if len(found) >= 4 * TENSORS or not known.isdisjoint(map(id, parameters)):
            return
        for each in with_gradients[:: 1 + len(with_gradients) // TENSORS]:
            if is_plain(each.grad) and each.grad.stride() == each.stride():
                places = sample_of(each.grad) != 0
                if bool(places.any()):
                    self._watched.append((weakref.ref(each), places, sample_of(each)[places]))
        fields["has_nonzero"] = bool(self._watched)
        if not self._watched and not all(is_plain(each.grad) and not each.grad.any() for each in with_gradients):
            fields["is_changed"] = fields["has_nonzero"] = True  # not looked at

    def _note_sums(self, parameters: Sequence[Any], models: Sequence[Any]) -> None:
        """Note whether the script has cleared the gradients since the backward, or summed them over all ranks."""
        now = [(before, getattr(parameter(), "grad", None)) for parameter, before in self._gradients]
        written = [gradient for before, gradient in now if gradient is None or version_of(gradient) != before]
        if any(gradient is None or not float(sample_of(gradient).abs().max()) for gradient in written):
            self.fields["is_cleared"] = True
        size, self._gradients = sum(each.grad.numel() for each in parameters if each.grad is not None), []
        is_flat = bool(written) and not models and 1 - SMALL_SHARE < self._flat / max(size, 1) < 1 + 2 * SMALL_SHARE
        self.fields["reduced"] += is_flat or self._reduced > (1 - SMALL_SHARE) * max(size, 1)

    def _keep_gradient(self, parameters: Sequence[Any]) -> None:
        """Keep a number of a gradient, to see whether it is still there at the next backward."""
        for each in parameters[: -TENSORS - 1 : -1]:
            if is_plain(each.grad) and float((sample := sample_of(each.grad).abs()).max()):
                place = int(sample.argmax())
                self._kept = weakref.ref(each), place, float(sample_of(each.grad)[place])
                return

    def note_models(self, models: Sequence[Any]) -> None:
        """DDP counts the forward passes that prepare an exchange, from the second on."""
        fields = self.fields
        fields["models"] = len(models)
        for model in models:
            group = model.process_group
            size = group.size()
            if size <= fields.get("group", (0, size))[1]:
                fields["group"] = sys.modules["torch"].distributed.get_global_rank(group, 0), size
            is_synced = getattr(model, "_use_python_reducer", False)
            is_synced = is_synced or model._get_ddp_logging_data().get("iteration", 0)
            fields["is_synced"] = fields.get("is_synced", False) or bool(is_synced)
            fields["is_hooked"] = fields.get("is_hooked", False) or bool(getattr(model, "_comm_hooks", None))

    def after_step(self) -> None:
        self._joined = 0
        current = self._passes.get(self._sampler) if self._sampler is not None else None
        if current is not None:
            current.steps += 1
            if current.is_repeated and current.steps > 1:
                self.fields["is_order_repeated"] = True

    def on_batch(self, iterator: Any, batch: Any) -> None:
        self._sampler = getattr(getattr(iterator, "_index_sampler", None), "sampler", None)
        if not self._fed and len(self.fields["losses"]) < FIRST_STEPS:
            self._feed(batch)

    def on_forward(self, model: Any, inputs: Any) -> None:
        """Called for models in DistributedDataParallel: what they are fed counts, not what a loader gave."""
        self._joined = 0
        if not model.require_backward_grad_sync:
            self.fields["is_skipped"] = True
        if self._fed < MOST_FED and len(self.fields["losses"]) < FIRST_STEPS:
            self._fed += 1
            self._feed(inputs)

    def _feed(self, values: Any) -> None:
        self._input = hash_of([*tensors_in(values)][:TENSORS])

    def before_backward(self, loss: Any, nodes: Iterator[Any]) -> None:
        """`nodes`: of its graph."""
        fields = self.fields
        fields["backwards"] += 1
        self._check_kept()
        if loss is None or len(fields["losses"]) >= FIRST_STEPS:
            return
        fields["inputs"].append(self._input)
        fields["losses"].append(zlib.crc32(struct.pack("d", float(loss))))
        fields["is_varied"] = fields.get("is_varied", False) or len({*fields["inputs"][-2:]} - {0}) > 1
        fields["is_joint"] = fields.get("is_joint", False) or self._joined > FEW_NUMBERS
        if len(fields["losses"]) <= GRAPHS or not fields["is_varied"]:
            self._read_graph(list(nodes))

    def _read_graph(self, nodes: Sequence[Any]) -> None:
        """Most loss functions save the target that they compare with."""
        fields = self.fields
        fields["is_joint"] = fields["is_joint"] or any(map(may_exchange, nodes))
        targets = (getattr(node, "_saved_target", None) for node in nodes)
        target = next((each for each in targets if each is not None), None)
        before, self._target = self._target, self._target if target is None else hash_of([target])
        fields["is_varied"] = fields["is_varied"] or before not in (0, self._target)

    def _check_kept(self) -> None:
        """A script clears gradients between two steps, or scales them to use them again."""
        if self._kept is not None:
            parameter, place, value = self._kept
            gradient = getattr(parameter(), "grad", None)
            number = float(sample_of(gradient)[place]) if is_plain(gradient) else 0.0
            if not number or (number != value and not self._is_interval):
                self._kept = None
            self._is_interval = True

    def after_backward(self) -> None:
        self._joined = 0
        optimizer = self._optimizer() if self._optimizer is not None else None
        self._gradients, self._places, self._reduced, self._flat = [], set(), 0, 0
        if optimizer is not None and is_looked_at(self._steps + 1):
            parameters = parameters_of(optimizer)
            some = [each for each in parameters[:: 1 + len(parameters) // TENSORS] if is_plain(each.grad)]
            self._gradients = [(weakref.ref(each), version_of(each.grad)) for each in some]

    def on_sampler(self, sampler: Any) -> None:
        """Called before a DistributedSampler gives its indices."""
        self.fields.setdefault("divided", (rows_of(sampler.dataset), len(sampler.dataset), sampler.num_replicas))
        if not sampler.shuffle:
            return
        before, order = self._passes.get(sampler), (sampler.epoch, sampler.seed)
        is_repeated = before is not None and before.order == order and before.steps > 1
        self._passes[sampler] = Pass(order, is_repeated=is_repeated)

    def on_collective(self, values: Sequence[Any], *, is_peer_to_peer: bool, is_sum: bool) -> None:
        size = max(map(size_in, values), default=0)
        self._sent += size
        self._joined = max(self._joined, size)
        self._most_sent = max(self._most_sent, size)
        self._is_peer_to_peer = self._is_peer_to_peer or is_peer_to_peer
        optimizer, distributed = self._optimizer, sys.modules["torch"].distributed
        groups = [each for each in values if isinstance(each, distributed.ProcessGroup)]
        if not (is_sum and self._gradients) or any(each.size() != distributed.get_world_size() for each in groups):
            return
        if not self._places:
            self._places = {each.grad.data_ptr() for each in parameters_of(optimizer()) if each.grad is not None}
        in_place = sum(each.numel() for each in tensors_in(values) if each.data_ptr() in self._places)
        self._reduced += in_place
        self._flat += 0 if in_place else size

    def document(self) -> dict[str, Any]:
        if not self.is_on:
            return {}
        sent = {"sent": self._sent, "most_sent": self._most_sent, "is_peer_to_peer": self._is_peer_to_peer}
        return {**self.fields, "steps": self._steps, **sent}


def rows_of(dataset: Any) -> int:
    """Hash of a dataset's rows; 0 for one of another kind."""
    if isinstance(getattr(dataset, "tensors", None), tuple):
        return hash_of([*dataset.tensors])
    chosen = getattr(dataset, "indices", None)
    return zlib.crc32(repr([*chosen[:ELEMENTS]]).encode()) if isinstance(chosen, Sequence) else 0


def is_looked_at(step: int) -> bool:
    return step <= FIRST_STEPS or not (step - 1) & (step - 2)


def parameters_of(optimizer: Any) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def is_plain(gradient: Any) -> bool:
    return gradient is not None and gradient.layout == sys.modules["torch"].strided and gradient.numel() > 0


def version_of(gradient: Any) -> tuple[int, int]:
    return gradient.data_ptr(), gradient._version


def sample_of(tensor: Any) -> Any:
    """Elements of a dense tensor in the order of its memory, because `reshape` would copy some tensors."""
    size = tensor.numel()
    return tensor.detach().as_strided((min(size, SPREAD),), (max(1, size // SPREAD),), tensor.storage_offset())


def measure_of(tensors: Sequence[Any]) -> float:
    """A number that rounding hardly changes, and other values do: the sum of the logarithms of mean sizes."""
    some = tensors[:: 1 + (len(tensors) - 1) // MEASURED]
    some = [each for each in some if each.numel() and each.device.type == "cpu"]
    samples = [sample_of(each).double() for each in some]
    sums = [float(each) for each in sys.modules["torch"]._foreach_norm(samples, 1)] if samples else []
    means = [total / len(sample) for total, sample in zip(sums, samples)]
    return sum(math.log(mean + TINY) for mean in means if math.isfinite(mean))


def may_exchange(node: Any) -> bool:
    """True for a differentiable collective, and for functions that torch does not know, which may contain one."""
    module = str(getattr(getattr(type(node), "_forward_cls", None), "__module__", "torch."))
    return "CppNode" in node.name() or module.startswith("torch.distributed") or not module.startswith("torch.")


def hash_of(tensors: list[Any]) -> int:
    """Return 0 without a tensor on the CPU: tensors on the meta device have no memory."""
    found = 0
    for tensor in tensors:
        if tensor.device.type != "cpu":
            continue
        part = tensor.detach().reshape(-1)[:: 1 + tensor.numel() // (ELEMENTS + 1)].contiguous()
        found = zlib.crc32(ctypes.string_at(part.data_ptr(), part.numel() * part.element_size()), found or 1)
    return found


def tensors_in(value: Any, depth: int = 4) -> Iterator[Any]:
    if hasattr(value, "data_ptr"):
        yield value
    elif depth and isinstance(value, (Mapping, tuple, list)):
        for item in list(value.values() if isinstance(value, Mapping) else value)[:TENSORS]:
            yield from tensors_in(item, depth - 1)


def size_in(value: Any) -> int:
    """Numbers in a tensor, or in all of a list of any depth. accelerate sends torch's random state."""
    if hasattr(value, "numel"):
        size = int(value.numel())
        return 0 if size == RANDOM_STATE else size
    return sum(map(size_in, value)) if isinstance(value, (list, tuple)) else 0

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
LEFT = 4
"""Gradients that are looked at after each step, until one was cleared."""
MOST_FED = 256
"""Forward passes of the first steps whose inputs are hashed."""
RANDOM_STATE = 5056
FEW_NUMBERS = 4
"""A loss and some metrics."""
COLLECTIVES = (
    *("all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "gather", "scatter", "reduce_scatter"),
    *("reduce_scatter_tensor", "all_gather", "all_gather_into_tensor", "all_gather_coalesced", "all_to_all"),
    *("all_to_all_single", "_all_gather_base", "_reduce_scatter_base"),
)
PEER_TO_PEER = ("send", "recv", "isend", "irecv")


FEWEST_EPOCHS = 3
"""Epochs in one order that are none by chance, if the script calls `set_epoch`."""


class Passes:
    """The orders of a DistributedSampler's indices, one for each pass over it in which steps were made."""

    def __init__(self) -> None:
        self.orders: set[tuple[Any, ...]] = set()
        self.epochs = self.steps = 0
        """Passes with more than one step, and steps of the current pass."""
        self.now: tuple[Any, ...] = ()
        self.is_told = False
        """True once the script has called `set_epoch`."""

    def after_step(self) -> None:
        """Count a step of the pass; from its second step on, the pass counts as an epoch."""
        self.steps += 1
        if self.steps == FEWEST_STEPS_OF_EPOCH:
            self.epochs += 1
            self.orders.add(self.now)

    @property
    def is_repeated(self) -> bool:
        """True if each of the epochs had the same order."""
        return len(self.orders) == 1 and self.epochs >= (FEWEST_EPOCHS if self.is_told else 2)


FEWEST_STEPS_OF_EPOCH = 2


class Weights:
    """The parameters of an optimizer and the sum of each before its first step, kept for as long as the optimizer
    lives: what a whole training changed is seen at its end, where the script may have left only the optimizer.

    `leaves`: other tensors that had gradients by then. A script may change them by itself.
    """

    def __init__(self, optimizer: Any, at_end: Any, leaves: Sequence[Any]) -> None:
        self.optimizer = weakref.ref(optimizer, at_end)
        self.steps = 0
        """Of the optimizer."""
        self._groups, self._first = optimizer.param_groups, parameters_of(optimizer)
        others = {id(tensor): tensor for tensor in leaves if id(tensor) not in {*map(id, self._first)}}.values()
        self._sums = [(tensor, sum_of(tensor)) for tensor in (*self._first, *others)]
        self.inside: list[Any] = []
        """Parameters in DistributedDataParallel if there are some, else all."""
        self.outside: list[Any] = []
        """The others, then, without those that the wrapper was told to leave out."""

    def has_changed(self) -> bool:
        """Return True if a tensor has another checksum than before the first step, or the optimizer has other ones."""
        now = [each for group in self._groups for each in group["params"]]
        is_other = [*map(id, now)] != [*map(id, self._first)]
        return is_other or any(sum_of(each) != before for each, before in self._sums)

    def divide(self, models: Sequence[Any]) -> None:
        """Divide the parameters into those in a model of DistributedDataParallel and the others."""
        named = [(model, *pair) for model in models for pair in model.module.named_parameters()]
        ignored = {id(tensor) for model, name, tensor in named if name in getattr(model, "parameters_to_ignore", ())}
        wrapped = {id(tensor) for _, _, tensor in named} - ignored
        self.inside = [tensor for tensor in self._first if id(tensor) in wrapped]
        others = [tensor for tensor in self._first if id(tensor) not in wrapped | ignored]
        self.outside = [tensor for tensor in others if tensor.requires_grad] if self.inside else []
        self.inside = self.inside or others

    def measures(self) -> tuple[float, float]:
        """Return the measures of the parameters inside and outside; 0 for none."""
        inside, outside = (measure_of(tensors) if tensors else 0.0 for tensors in (self.inside, self.outside))
        return inside, outside


class TrainingEvidence:
    """Collects evidence from the calls of a training. The hooks of a rank call its methods around torch's own."""

    def __init__(self) -> None:
        self.is_on = os.environ.get("IPEXCTL_CHECK_TRAINING") != "0"
        lists: dict[str, Any] = {"parameters": {}, "outside": {}, "inputs": [], "losses": []}
        counts = dict.fromkeys(("backwards", "intervals", "carried", "reduced"), 0)
        self.fields: dict[str, Any] = {**lists, **counts}
        """As `RankTraining` has them."""
        self._optimizer: Any = None
        self._steps = 0
        self._sampler: Any = None
        self._passes: weakref.WeakKeyDictionary[Any, Passes] = weakref.WeakKeyDictionary()
        self._all_passes: list[Passes] = []
        """Also of samplers that are gone."""
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
        self._kept: tuple[Any, Any] | None = None
        """A parameter and numbers of its gradient at the last step; None if they were changed since, or if a backward
        did not add to them."""
        self._is_interval = self._is_grown = False
        self._left: list[tuple[weakref.ref[Any], tuple[int, int]]] = []
        """Parameters, and their gradients' versions after the last step or backward, as long as nothing has ever
        changed them before the next backward."""
        self._weights: dict[int, Weights] = {}
        self._leaves: list[weakref.ref[Any]] = []
        """Tensors that had gradients before the first step of any optimizer."""
        self._forwards = 0
        """Forward passes of DistributedDataParallel that prepare an exchange."""
        self._prepared = 0
        """Those that no backward has followed yet."""

    def before_step(self, optimizer: Any, models: Sequence[Any]) -> None:
        """Look at the gradients and parameters before an optimizer's step. `models`: all models in
        DistributedDataParallel."""
        fields = self.fields
        weights = self._weights.get(id(optimizer))
        count = weights.steps + 1 if weights is not None else 1
        parameters = parameters_of(optimizer) if is_looked_at(count) else []
        if parameters:
            torch = sys.modules["torch"]
            if not {*map(type, parameters)} <= {torch.nn.Parameter, torch.Tensor}:
                self.turn_off()  # DTensors, and flat parameters of FSDP
                return
        weights = weights or self._begin(optimizer)
        weights.steps = count
        if not fields["has_nonzero"]:
            self._note_gradients(parameters or parameters_of(optimizer))
        if parameters and count > 1 and not fields["is_changed"]:
            fields["is_changed"] = weights.has_changed()
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
        weights.divide(models)
        samples[str(count)], outside = weights.measures()
        if weights.outside:
            fields["outside"][str(count)] = outside
        sizes = [each.numel() for each in parameters]
        fields.update(elements=sum(sizes), largest=max(sizes, default=0))
        self._note_sums(parameters, models)
        self._keep_gradient(parameters)
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        fields["rate"] = max([*filter(math.isfinite, rates), fields.get("rate") or 0.0])
        self.note_models(models)

    def _begin(self, optimizer: Any) -> Weights:
        """Keep the sums of an optimizer's parameters, before its first step."""
        key, own = id(optimizer), weakref.ref(self)
        leaves = [leaf for each in self._leaves if (leaf := each()) is not None]
        self._weights[key] = Weights(optimizer, lambda _: getattr(own(), "_end", int)(key), leaves)
        self._leaves = []
        if not type(optimizer).__module__.startswith("torch."):
            self.fields["is_written"] = True  # it may use the sum of all gradients on purpose
        for name in ("is_changed", "has_gradients", "has_nonzero"):
            self.fields.setdefault(name, False)
        return self._weights[key]

    def _note_gradients(self, parameters: Sequence[Any]) -> None:
        """Note whether there is a gradient, and one that is not 0. Called before each step until there was one."""
        gradients = [each.grad for each in parameters if each.grad is not None]
        self.fields["has_gradients"] = self.fields["has_gradients"] or bool(gradients)
        self.fields["has_nonzero"] = any(not is_plain(each) or bool(each.any()) for each in gradients)

    def _end(self, key: int) -> None:
        """Look at the parameters of an optimizer for the last time."""
        weights = self._weights.pop(key, None)
        if weights is None or not self.is_on:
            return
        self.fields["is_changed"] = self.fields["is_changed"] or weights.has_changed()
        if self._optimizer is not None and weights.optimizer() in (None, self._optimizer()):
            self.fields["ends"] = [self._steps + 1, *weights.measures()]

    def end(self) -> None:
        """Look at all weights and let them go, at exit: torch 2.13 aborts a process in which they are kept until Python
        clears its modules."""
        for key in list(self._weights):
            self._end(key)

    def turn_off(self) -> None:
        """Give up on a training that this does not understand."""
        self.is_on = False
        self._weights.clear()

    def _note_sums(self, parameters: Sequence[Any], models: Sequence[Any]) -> None:
        """Note whether the script has cleared the gradients since the backward, or summed them all over the ranks."""
        now = [(before, getattr(parameter(), "grad", None)) for parameter, before in self._gradients]
        written = [gradient for before, gradient in now if gradient is None or version_of(gradient) != before]
        if any(gradient is None or not float(sample_of(gradient).abs().max()) for gradient in written):
            self.fields["is_cleared"] = True
        size, self._gradients = sum(other.grad.numel() for other in parameters if other.grad is not None), []
        is_flat = 0 < len(written) == len(now) and not models and self._flat == size
        self.fields["reduced"] += bool(size) and (is_flat or self._reduced >= size)

    def _keep_gradient(self, parameters: Sequence[Any]) -> None:
        """Keep numbers of a gradient, to see whether the next backward adds to them."""
        for parameter in parameters[: -TENSORS - 1 : -1]:
            if is_plain(parameter.grad) and bool((sample := sample_of(parameter.grad)).any()):
                self._kept = weakref.ref(parameter), sample.clone()
                return

    def note_models(self, models: Sequence[Any]) -> None:
        """Note the process group of the models, and whether DDP exchanges their gradients. DDP counts the forward
        passes that prepare an exchange, from the second on."""
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
        """Called after each step of each optimizer."""
        self._joined = 0
        self._note_left()
        current = self._passes.get(self._sampler) if self._sampler is not None else None
        if current is not None:
            current.after_step()

    def on_batch(self, iterator: Any, batch: Any) -> None:
        """Called with each batch of a DataLoader, and its iterator."""
        indices = getattr(iterator, "_index_sampler", None)
        is_torch_order = type(indices).__module__ == "torch.utils.data.sampler"  # other batch samplers may shuffle rows
        sampler = getattr(indices, "sampler", None) if is_torch_order else indices
        self._sampler = sampler if hasattr(sampler, "set_epoch") else None
        if not self._fed and self._is_sampled(1):
            self._feed(batch)

    def on_forward(self, model: Any, inputs: Any) -> None:
        """Called for models in DistributedDataParallel: what they are fed counts, not what a loader gave."""
        self._joined = 0
        if not model.require_backward_grad_sync:
            self.fields["is_skipped"] = True
        else:
            self._forwards += 1
            self._prepared += sys.modules["torch"].is_grad_enabled()
            self.fields["is_synced"] = self.fields.get("is_synced", False) or self._forwards > 1
        if self._fed < MOST_FED and self._is_sampled(1):
            self._fed += 1
            self._feed(inputs)

    def _is_sampled(self, more: int = 0) -> bool:
        """True if the input and the loss of this backward, or of one that follows, leave evidence."""
        return len(self.fields["losses"]) < MOST_SAMPLES and is_looked_at(self.fields["backwards"] + more)

    def _feed(self, values: Any) -> None:
        self._input = hash_of([*tensors_in(values)][:TENSORS])

    def before_backward(self, loss: Any, nodes: Iterator[Any]) -> None:
        """Note the loss and the inputs of a backward. `loss`: None if it is not one number on the CPU. `nodes`: of the
        graph of the backward."""
        fields = self.fields
        fields["backwards"] += 1
        fields["is_bypassed"] = fields.get("is_bypassed", False) or not self._prepared
        self._prepared = max(0, self._prepared - 1)
        if self._left:
            self._check_left()
        self._check_kept()
        if loss is None or not self._is_sampled():
            return
        fields["inputs"].append(self._input)
        fields["losses"].append(zlib.crc32(struct.pack("d", float(loss))))
        fields["is_varied"] = fields.get("is_varied", False) or len({*fields["inputs"][-2:]} - {0}) > 1
        fields["is_joint"] = fields.get("is_joint", False) or self._joined > FEW_NUMBERS
        if len(fields["losses"]) <= GRAPHS or not fields["is_varied"]:
            self._read_graph(list(nodes))

    def on_loss(self, value: float) -> None:
        """Called at each step, with the sum of the losses of its backwards."""
        self.fields["all_losses"] = zlib.crc32(struct.pack("d", value), self.fields.get("all_losses", 0))

    def _read_graph(self, nodes: Sequence[Any]) -> None:
        """Note whether the graph may contain an exchange, and whether its target differs from the last one. Most loss
        functions save the target that they compare with."""
        fields = self.fields
        fields["is_joint"] = fields["is_joint"] or any(map(may_exchange, nodes))
        if not self._weights:
            self._leaves += [weakref.ref(node.variable) for node in nodes if hasattr(node, "variable")]
        targets = (getattr(node, "_saved_target", None) for node in nodes)
        target = next((each for each in targets if each is not None), None)
        before, self._target = self._target, self._target if target is None else hash_of([target])
        fields["is_varied"] = fields["is_varied"] or before not in (0, self._target)

    def _note_left(self) -> None:
        """Called after a step and after a backward."""
        if self._optimizer is None or self.fields.get("is_written"):
            return
        if (optimizer := self._optimizer()) is not None:
            some = [parameter for parameter in parameters_of(optimizer) if is_plain(parameter.grad)][:LEFT]
            self._left = [(weakref.ref(parameter), version_of(parameter.grad)) for parameter in some]

    def _check_left(self) -> None:
        """Note whether the script has changed the gradients since the last step or backward: a script clears them, or
        scales them to use them again."""
        now = [(before, getattr(parameter(), "grad", None)) for parameter, before in self._left]
        if any(gradient is None or version_of(gradient) != before for before, gradient in now):
            self.fields["is_written"] = True
        self._left = []

    def _check_kept(self) -> None:
        """Forget the kept gradient unless it is as it was at the last step. Only the first backward after the step is
        preceded by this check."""
        if self._kept is not None and not self._is_interval:
            gradient = getattr(self._kept[0](), "grad", None)
            if not is_plain(gradient) or bool((sample_of(gradient) != self._kept[1]).any()):
                self._kept = None
        self._is_grown = self._kept is not None and not self._is_interval
        self._is_interval = True

    def _check_growth(self) -> None:
        """Forget the kept gradient unless that backward has added to it. A script that keeps fp32 copies of its weights
        gives these their gradients later."""
        if self._is_grown and self._kept is not None:
            gradient = getattr(self._kept[0](), "grad", None)
            if not is_plain(gradient) or not bool((sample_of(gradient) != self._kept[1]).any()):
                self._kept = None
        self._is_grown = False

    def after_backward(self) -> None:
        """Called after each backward."""
        self._joined = 0
        if self._is_grown:
            self._check_growth()
        self._note_left()
        optimizer = self._optimizer() if self._optimizer is not None else None
        self._gradients, self._places, self._reduced, self._flat = [], set(), 0, 0
        if optimizer is not None and is_looked_at(self._steps + 1):
            parameters = parameters_of(optimizer)
            some = [tensor for tensor in parameters[:: 1 + len(parameters) // TENSORS] if is_plain(tensor.grad)]
            self._gradients = [(weakref.ref(tensor), version_of(tensor.grad)) for tensor in some]

    def on_sampler(self, sampler: Any) -> None:
        """Called before a DistributedSampler gives its indices."""
        self.fields.setdefault("divided", (rows_of(sampler.dataset), len(sampler.dataset), sampler.num_replicas))
        is_torch_order = type(sampler).__iter__ is sys.modules["torch"].utils.data.DistributedSampler.__iter__
        if not (sampler.shuffle and is_torch_order):
            return
        passes = self._passes_of(sampler)
        passes.now, passes.steps = (sampler.epoch, sampler.seed), 0

    def _passes_of(self, sampler: Any) -> Passes:
        if sampler not in self._passes:
            self._passes[sampler] = passes = Passes()
            self._all_passes = [*self._all_passes[-MOST_SAMPLES:], passes]
        return self._passes[sampler]

    def on_epoch(self, sampler: Any) -> None:
        """Called if the script tells a DistributedSampler its epoch."""
        self._passes_of(sampler).is_told = True

    def on_collective(self, values: Sequence[Any], *, is_peer_to_peer: bool, is_sum: bool) -> None:
        """Called before a collective of the script, with its arguments; `is_sum`: it adds numbers of all ranks."""
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
        """Return the fields of `RankTraining`; empty if nothing is known."""
        if not self.is_on:
            return {}
        sent = {"sent": self._sent, "most_sent": self._most_sent, "is_peer_to_peer": self._is_peer_to_peer}
        self.fields["is_order_repeated"] = any(passes.is_repeated for passes in self._all_passes)
        return {**self.fields, "steps": self._steps, **sent}


def rows_of(dataset: Any) -> int:
    """Return a hash of a dataset's rows; 0 for a dataset of another kind."""
    if isinstance(getattr(dataset, "tensors", None), tuple):
        return hash_of([*dataset.tensors])
    chosen = getattr(dataset, "indices", None)
    return zlib.crc32(repr([*chosen[:ELEMENTS]]).encode()) if isinstance(chosen, Sequence) else 0


def is_looked_at(step: int) -> bool:
    """Return True for the first steps, and then for each that follows a power of two."""
    return step <= FIRST_STEPS or not (step - 1) & (step - 2)


def parameters_of(optimizer: Any) -> list[Any]:
    """Return the parameters of all groups of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def sum_of(tensor: Any) -> int:
    """Checksum of all bytes of a dense tensor, in a third of a second for 400 MB; 0 if it has no memory."""
    if tensor.device.type != "cpu" or not tensor.numel():
        return 0
    values = tensor.detach().contiguous()
    return zlib.crc32((ctypes.c_char * (values.numel() * values.element_size())).from_address(values.data_ptr()))


def is_plain(gradient: Any) -> bool:
    """Return True for a dense gradient with numbers."""
    return gradient is not None and gradient.layout == sys.modules["torch"].strided and gradient.numel() > 0


def version_of(gradient: Any) -> tuple[int, int]:
    """Return address and version of a gradient: both stay as long as nothing writes to it or replaces it."""
    return gradient.data_ptr(), gradient._version


def sample_of(tensor: Any) -> Any:
    """Return some elements of a dense tensor in the order of its memory, because `reshape` would copy some tensors."""
    size = tensor.numel()
    return tensor.detach().as_strided((min(size, SPREAD),), (max(1, size // SPREAD),), tensor.storage_offset())


def measure_of(tensors: Sequence[Any]) -> float:
    """Return a number that rounding hardly changes, and other values do: the sum of the logarithms of mean sizes."""
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
    checksum = 0
    for tensor in tensors:
        if tensor.device.type != "cpu":
            continue
        part = tensor.detach().reshape(-1)[:: 1 + tensor.numel() // (ELEMENTS + 1)].contiguous()
        checksum = zlib.crc32(ctypes.string_at(part.data_ptr(), part.numel() * part.element_size()), checksum or 1)
    return checksum


def tensors_in(value: Any, depth: int = 4) -> Iterator[Any]:
    """Yield the tensors in a batch or in arguments, up to TENSORS of each container and `depth` containers deep."""
    if hasattr(value, "data_ptr"):
        yield value
    elif depth and isinstance(value, (Mapping, tuple, list)):
        for item in list(value.values() if isinstance(value, Mapping) else value)[:TENSORS]:
            yield from tensors_in(item, depth - 1)


def size_in(value: Any) -> int:
    """Return how many numbers are in a tensor, or in all tensors of a list of any depth. torch's random state, which
    accelerate sends, counts as 0."""
    if hasattr(value, "numel"):
        size = int(value.numel())
        return 0 if size == RANDOM_STATE else size
    return sum(map(size_in, value)) if isinstance(value, (list, tuple)) else 0

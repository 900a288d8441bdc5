"""Frozen parameters that all ranks hold alike are not sent when DistributedDataParallel starts, and the ranks of a host
keep one copy of them: `run --share-weights auto`. `rank_hooks.py` calls `install` once torch is imported.

- The ranks compare a hash of each frozen parameter. Those that differ are sent by rank 0, as without ipexctl.
- The copy is a memfd for each parameter, sealed once written, which each rank maps copy-on-write: what a rank writes
  later, it alone sees. A rank compares the bytes before it gives up its own.
- Parameters that are mapped from a file are one copy already, which `Module.to("cpu:0")` would end: torch copies each
  tensor to a numbered CPU, which is the device that accelerate gives its ranks.
- A parameter whose memory another tensor uses, too, stays as it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import json
import os
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Callable, Collection, Iterator, NamedTuple, Sequence

import torch
import torch.distributed as dist

from .acted import is_first
from .ddp import backend_of
from .segment import NONCE_SIZE, SegmentError, create_memfd, is_supported, open_memfd
from .shared_allreduce import CLOSE_PORTS, TIMEOUT, DisagreementError, OffError, Ranks, boot_id, limit_of

NAME = "ipexctl-weights"
LEAST, LEAST_SHARED = 1 << 20, 64 << 10
"""Bytes of all frozen parameters from which ranks compare them, and of one that the ranks of a host share."""
MOST_BYTES, MOST_TOGETHER = 64 << 20, 64
"""Bytes and parameters that are copied before the ranks give up their own, unless one parameter has more."""
FIX = f"add --share-weights off; {CLOSE_PORTS}"
_ADD_SEALS, _SEALS = 1033, 1 | 2 | 4 | 8
"""Neither size, nor content, nor these seals can change any more."""
_compared: dict[str, int] = {}
"""Name of a group → how often its ranks have compared parameters, which is the same on all of them."""
_told: set[str] = set()


class Weight(NamedTuple):
    """A frozen parameter of a model."""

    name: str
    parameter: Any
    size: int
    """Bytes."""

    @property
    def memory(self) -> memoryview:
        """Return the parameter's own memory as bytes, not a copy."""
        return memoryview((ctypes.c_ubyte * self.size).from_address(self.parameter.data_ptr())).cast("B")


class FrozenWeights(NamedTuple):
    """The same on all ranks, but for the parameters."""

    ranks: Ranks
    weights: Sequence[Weight]
    alike: Sequence[Weight]
    private: Sequence[Weight]
    """Those of which some rank has a copy of its own once all have been sent."""


def install(module: Any) -> None:
    """Let DistributedDataParallel send less, and `Module.to` keep parameters where they are. `module`: torch."""
    distributed = module.nn.parallel.distributed
    distributed._sync_module_states = sending_less(distributed._sync_module_states)
    module.nn.Module.to = staying(module.nn.Module.to)


def staying(to: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `Module.to` that leaves the parameters of a model with frozen ones where they are, if they are on the
    CPU."""

    def without_number(value: Any) -> Any:
        is_device = isinstance(value, (str, torch.device))
        return torch.device("cpu") if is_device and str(value).startswith("cpu:") else value

    @functools.wraps(to)
    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        changed = [without_number(value) for value in args]
        fields = {name: without_number(value) for name, value in kwargs.items()}
        is_changed = any(new is not old for new, old in zip((*changed, *fields.values()), (*args, *kwargs.values())))
        if is_changed and any(not parameter.requires_grad for parameter in self.parameters()):
            args, kwargs = tuple(changed), fields
        return to(self, *args, **kwargs)

    return move


def sending_less(send: Callable[..., None]) -> Callable[..., None]:
    """Return torch's function by which all ranks get the parameters and buffers of one, without what all have alike.
    DDP calls it once all ranks have compared the sizes of their trained parameters."""

    @functools.wraps(send)
    def send_rest(**call: Any) -> None:
        frozen, ignored = None, call["params_and_buffers_to_ignore"]
        if call["process_group"].size() == 1:  # torch would copy all of them, in pieces of 250 MB, for nobody
            names = {weight.name for weight in frozen_weights(call["module"], ignored)}
            send(**{**call, "params_and_buffers_to_ignore": {*ignored, *names}})
            return
        with contextlib.suppress(OffError):
            frozen = compare(call["module"], call["process_group"], ignored)
        if frozen is None:
            send(**call)
            return
        names = {weight.name for weight in frozen.alike}
        send(**{**call, "params_and_buffers_to_ignore": {*ignored, *names}})
        is_shared = keep_one_copy(frozen.ranks, frozen.private)
        trained = sum(parameter.numel() for parameter in call["module"].parameters() if parameter.requires_grad)
        tell(describe(frozen, trained, is_shared=is_shared))

    return send_rest


def frozen_weights(model: Any, ignored: Collection[str]) -> list[Weight]:
    """Return the parameters that are not trained. Empty ones, those in `ignored`, and those whose memory is not simply
    their values, are left out."""
    return [
        Weight(name, parameter, parameter.numel() * parameter.element_size())
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad and name not in ignored and parameter.numel() and is_plain(parameter)
    ]


def is_plain(parameter: Any) -> bool:
    """True if the bytes of a parameter are its values, in one piece."""
    if parameter.device.type != "cpu" or type(parameter.data) is not torch.Tensor or parameter.is_quantized:
        return False
    if parameter.layout is not torch.strided:
        return False
    kept = torch.empty_like(parameter, device="meta")  # has the strides of a tensor in one piece
    return bool(kept.stride() == parameter.stride())


def compare(model: Any, group: Any, ignored: Collection[str]) -> FrozenWeights | None:
    """Ask all ranks of the group for their frozen parameters, and return which are alike. Raises an OffError on all of
    them if one takes no part; returns None if there are few, or if the backend is not gloo."""
    weights = frozen_weights(model, ignored)
    backend = backend_of(group)
    if sum(weight.size for weight in weights) < LEAST:
        return None
    if not isinstance(backend, getattr(dist, "ProcessGroupGloo", ())):
        return None
    limit = limit_of(group)

    def timeout() -> float:
        return max(limit(), TIMEOUT)  # a rank may read its parameters from a slow disk

    ranks = Ranks(backend, group.rank(), group.size(), timeout, subject="frozen parameters", advice=FIX)
    name = str(group.group_name)
    _compared[name] = number = _compared.get(name, 0) + 1
    ranks.ask(dist.distributed_c10d._get_default_store(), f"weights/{name}/{number}", "")
    layout = [(w.name, [*w.parameter.shape], [*w.parameter.stride()], str(w.parameter.dtype)) for w in weights]
    if len(set(ranks.gathered(hashlib.sha256(json.dumps(layout).encode()).hexdigest()))) > 1:
        raise OffError("the ranks have different models")
    files = mapped_files()
    is_private = [int(not any(low <= w.parameter.data_ptr() < high for low, high in files)) for w in weights]
    numbers = [number for each in digests(weights) for number in struct.unpack("2q", each)]
    highest = greatest(ranks, [*numbers, *(~number for number in numbers), *is_private])
    count = len(numbers)
    is_alike = [highest[at : at + 2] == [~each for each in highest[count + at :][:2]] for at in range(0, count, 2)]
    alike = [weight for weight, is_one in zip(weights, is_alike) if is_one]
    private = [w for w, is_one, is_own in zip(weights, is_alike, highest[2 * count :]) if is_own or not is_one]
    return FrozenWeights(ranks, weights, alike, private)


def digests(weights: Sequence[Weight]) -> Iterator[bytes]:
    """Yield a hash of each parameter."""

    def digest(weight: Weight) -> bytes:
        return hashlib.sha256(weight.memory).digest()[:16]

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        try:
            yield from pool.map(digest, weights)
        except RuntimeError:  # no more threads
            yield from map(digest, weights)


def greatest(ranks: Ranks, values: Sequence[int]) -> list[int]:
    """Return the greatest of all ranks, number by number. Raises a DisagreementError if the ranks get no answer, or
    different ones."""
    tensor = torch.tensor(values, dtype=torch.int64)
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    try:
        ranks.backend.allreduce([tensor], options).wait(timedelta(seconds=ranks.timeout()))
    except RuntimeError as error:
        why = str(error).strip().partition("\n")[0]
        text = f"rank {ranks.rank} could not compare its frozen parameters with those of all ranks: {why}"
        raise DisagreementError(f"ipexctl: {text}; fix: {FIX}") from None
    numbers = [int(value) for value in tensor.tolist()]
    if len(set(ranks.gathered(hashlib.sha256(repr(numbers).encode()).hexdigest(), ranks.timeout()))) > 1:
        text = "the ranks got different answers about their frozen parameters, and would train apart"
        raise DisagreementError(f"ipexctl: {text}; fix: {FIX}")
    return numbers


def mapped_files() -> list[tuple[int, int]]:
    """Return the addresses where this process has mapped files: the first of each, and the one after its last."""
    spans = []
    with open("/proc/self/maps") as file:
        for line in file:
            span, _, _, _, inode = line.split(None, 5)[:5]
            if inode != "0":
                first, _, last = span.partition("-")
                spans.append((int(first, 16), int(last, 16)))
    return spans


def keep_one_copy(ranks: Ranks, weights: Sequence[Weight]) -> bool:
    """Replace parameters by one copy for the ranks of each host. Return True if no own copy is left, on any rank."""
    weights = [weight for weight in weights if weight.size >= LEAST_SHARED]
    if not weights or not hasattr(torch._C, "_storage_Use_Count"):
        return not weights
    with contextlib.ExitStack() as stack:
        offers = ranks.gathered(make_offer(stack), ranks.timeout())
        choices = ranks.gathered(find_leader(ranks.rank, offers), ranks.timeout())
        leaders = [leader if choices[leader] == leader else rank for rank, leader in enumerate(choices)]
        if leaders == [*range(ranks.size)]:
            return len({offer["boot"] for offer in offers}) == ranks.size
        is_leader = leaders.count(ranks.rank) > 1
        leader, kept = leaders[ranks.rank], 0
        for batch in batches(weights):
            with contextlib.ExitStack() as copies:
                numbers = [copy_of(weight, copies) for weight in batch] if is_leader else []
                rows = ranks.gathered(numbers, ranks.timeout())
                for weight, number in zip(batch, rows[leader]):
                    kept += not adopt(weight, offers[leader]["pid"], number)
                release_memory()
                ranks.gathered(None, ranks.timeout())
        return not any(ranks.gathered(kept, ranks.timeout()))


def make_offer(stack: contextlib.ExitStack) -> dict[str, Any]:
    """Return what shows the other ranks of this host, and no others, that this process is on it."""
    nonce, number = os.urandom(NONCE_SIZE), -1
    if is_supported():
        with contextlib.suppress(SegmentError, OSError):
            number = create_memfd(NONCE_SIZE, NAME)
            stack.callback(os.close, number)
            os.pwrite(number, nonce, 0)
    return {"boot": boot_id(), "pid": os.getpid(), "number": number, "nonce": nonce.hex()}


def find_leader(rank: int, offers: Sequence[dict[str, Any]]) -> int:
    """Return the first rank of this host whose memory this rank can map; else this rank."""
    for other, offer in enumerate(offers[:rank]):
        number = open_memfd(offer["pid"], offer["number"], NAME) if offer["boot"] == offers[rank]["boot"] else None
        if number is not None:
            with contextlib.closing(os.fdopen(number, "rb", 0)) as file:
                if file.read(NONCE_SIZE).hex() == offer["nonce"]:
                    return other
    return rank


def batches(weights: Sequence[Weight]) -> Iterator[list[Weight]]:
    """Yield the parameters in groups that are copied before the ranks give up their own."""
    batch: list[Weight] = []
    for weight in weights:
        if batch and (len(batch) >= MOST_TOGETHER or sum(other.size for other in batch) + weight.size > MOST_BYTES):
            yield batch
            batch = []
        batch.append(weight)
    yield batch


def copy_of(weight: Weight, stack: contextlib.ExitStack) -> int:
    """Return the descriptor of a memfd with the parameter's bytes, or -1 if there is no memory for it."""
    try:
        number = create_memfd(weight.size, NAME)
        stack.callback(os.close, number)
        written = 0
        while written < weight.size:
            written += os.pwrite(number, weight.memory[written:], written)
        fcntl.fcntl(number, _ADD_SEALS, _SEALS)
    except (SegmentError, OSError):
        return -1
    return number


def adopt(weight: Weight, pid: int, number: int) -> bool:
    """Give up this rank's own copy if the other one has the same bytes, and no other tensor uses it; return whether
    that was done."""
    own = weight.parameter
    if uses_of(own) != uses_of(torch.empty(1)) or (opened := open_memfd(pid, number, NAME)) is None:
        return False
    try:
        storage = torch.UntypedStorage.from_file(f"/proc/self/fd/{opened}", False, weight.size)
        shared = torch.empty(0, dtype=torch.uint8).set_(storage)
        if not torch.equal(shared, own.data.as_strided((own.numel(),), (1,)).view(torch.uint8)):
            return False
        own.data = torch.empty(0, dtype=own.dtype).set_(storage, 0, own.shape, own.stride())
    except (RuntimeError, AttributeError):  # no memory to map; a torch without these functions
        return False
    finally:
        os.close(opened)
    return True


def uses_of(tensor: Any) -> int:
    """Return how many tensors, and a few Python objects, use the memory."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def release_memory() -> None:
    """Give freed memory back to the kernel, which the allocator settings of a run keep for the next tensor."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def describe(found: FrozenWeights, trained: int, *, is_shared: bool) -> str:
    """Return the sentence about frozen weights for the user. `trained`: number of parameters that are trained."""
    alike, size = (sum(weight.size for weight in weights) for weights in (found.alike, found.weights))
    part = f"{'all' if alike == size else size_text(alike)} are equal on all ranks and not sent"
    part = part if alike else "none are equal on all ranks, so all were sent"
    kept = "; one copy on each host" if is_shared else ""
    text = f"of {size_text(size)} of frozen weights, {part}{kept}"
    return f"{text}; {trained / 1e6:.3g} M parameters train"


def size_text(size: int) -> str:
    """Return `1.2 GB` or `340 MB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def tell(text: str) -> None:
    """Print a text to stderr, once, and only in rank 0."""
    if is_first() and text not in _told:
        _told.add(text)
        print(f"ipexctl: {text}", file=sys.stderr, flush=True)  # noqa: T201

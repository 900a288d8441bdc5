"""Collectives of the CPU in shared memory, whoever calls them.

`dist.*`, DDP's reducer, FSDP, DTensor and compiled code all call the operators `c10d::…` with the process group as an
argument. Once a group whose ranks share a host has a `SharedGroup`, kernels of this module replace those of torch for
the CPU. What a kernel does not take goes to the group's gloo, as it would with the kernel of torch.

Whether a kernel takes a call depends only on what all ranks of a legal call have: the operator, the type, the size of a
part, and the reduction. What one rank may have alone, such as a list of sizes, never decides.
"""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections import deque
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from .acted import SHARED, adding_levers
from .channel import DTYPES, WHOLE
from .handlers import uninterrupted
from .segment import shard_bounds
from .shared_allreduce import DisagreementError, OffError, Ranks, join, limit_of
from .shared_group import NOBODY, PIECE, SEGMENT_SIZE, Collective, Piece, SharedGroup

CPU = torch.device("cpu")
ARGUMENTS = {
    "allreduce_": ("tensors", "reduce_op"),
    "broadcast_": ("tensors", "root_rank", "root_tensor"),
    "_allgather_base_": ("output_tensor", "input_tensor"),
    "allgather_": ("output_tensors", "input_tensors"),
    "_reduce_scatter_base_": ("output_tensor", "input_tensor", "reduce_op"),
    "barrier": ("device_ids",),
}
"""Operator → what is used of its arguments, beside `process_group` and `timeout`. Versions of torch may differ."""
OPERATORS = tuple(ARGUMENTS)
EVENTS = {
    "allreduce_": "gloo:all_reduce",
    "broadcast_": "gloo:broadcast",
    "_allgather_base_": "gloo:all_gather",
    "allgather_": "gloo:all_gather",
    "_reduce_scatter_base_": "gloo:all_reduce",
}
"""Operator → name of what a profiler gets from gloo."""
LEAST_OF_AUTO, LEAST_OF_PARTS = {"allreduce_": 1 << 62, "broadcast_": 4 << 20}, 1 << 20
"""Bytes of the whole tensor from which `auto` takes a call, because it was at least as fast as gloo's wherever it was
measured (docs/allreduce.md): of these operators, and of the others, to which a rank gives its part."""
MOST_UNSEEN, MOST_RECENT = 1 << 14, 64
SMALL = 64 << 10
"""Bytes."""
SUM, AVG, MAX, MIN, PREMUL_SUM = (
    int(getattr(dist.ReduceOp.RedOpType, name)) for name in ("SUM", "AVG", "MAX", "MIN", "PREMUL_SUM")
)
REDUCTIONS: dict[int, Callable[..., Any]] = {SUM: torch.add, AVG: torch.add, MAX: torch.maximum, MIN: torch.minimum}
taken: dict[str, int] = {}
"""Operator → calls in shared memory."""
_shared: weakref.WeakKeyDictionary[Any, SharedGroup] = weakref.WeakKeyDictionary()
_made: dict[str, int] = {}
"""Name of a group → how often this process has made one, which is the same on all its ranks."""


class SharedWork(c10d.Work):  # type: ignore[misc]
    """A call. The work that torch makes of a future has no result, and its `wait` does not raise the future's error."""

    def __init__(self, shared: SharedGroup, call: Collective, results: list[Any], parts: int) -> None:
        super().__init__()
        self._shared: SharedGroup | None = shared
        """None once the call is over, so that a group that was left keeps no memory."""
        self._call, self._parts = call, parts
        self._kept: list[Any] | None = results
        self._references: list[weakref.ref[Any]] = []
        while len(_unseen) >= MOST_UNSEEN:
            del _unseen[next(iter(_unseen))]
        _unseen[self] = None
        _recent.append(self)
        if len(_recent) > MOST_RECENT:
            _recent.popleft()._release()

    def _release(self, most: int = 0) -> None:
        """Keep results of more than so many bytes only as long as somebody else has them."""
        results = self._kept
        if results is not None and sum(tensor.nbytes for tensor in results) > most:
            self._kept, self._references = None, [weakref.ref(tensor) for tensor in results]

    def _results(self) -> list[Any]:
        return [reference() for reference in self._references] if self._kept is None else self._kept

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is over. Raises the error of the call, or a RuntimeError after the timeout."""
        _unseen.pop(self, None)
        until = time.monotonic() + timeout.total_seconds() if timeout else 0.0
        while until and not self._call.future.done():
            if time.monotonic() > until:
                raise RuntimeError("Operation timed out!")
            time.sleep(0.001)
        shared = self._shared
        if shared is not None:
            shared.finish(self._call)
        self._value([], None)
        self._release(SMALL)
        return True

    def is_completed(self) -> bool:
        """True once the call is over, also if it failed."""
        return bool(self._call.future.done())

    def is_success(self) -> bool:
        """True once the call is over without an error."""
        return self.is_completed() and self._call.error is None

    def result(self) -> list[Any]:
        """Return the tensors with the result. Raises a RuntimeError before the call is over, or the error of the
        call."""
        if not self.is_completed():
            raise RuntimeError("Work needs to be completed before calling result(), so call wait() before it")
        return self._value(self._results(), None)

    def get_future(self) -> Any:
        """Return a future with the result, which raises the error of the call."""
        _unseen.pop(self, None)
        future = self._call.future.then(partial(self._value, self._results()))
        self._release(SMALL)
        return future

    def _value(self, results: list[Any], _: Any) -> list[Any]:
        self._shared = None
        if self._call.error is not None:
            raise self._call.error
        return list(results[0].chunk(self._parts)) if results and self._parts > 1 else results


_unseen: dict[SharedWork, None] = {}
"""Calls for which nobody has waited. C++ does not keep the Python half of a work, without which its `wait` never
ends."""


_recent: deque[SharedWork] = deque()
"""The last calls, because DDP's C++ asks for the future after it has waited. They keep their results for that: small
ones, and those of calls for which nobody has waited."""


class Arguments:
    """Of an operator's call, by name. Trailing arguments with their default values are not passed to Python."""

    def __init__(self, operator: str, values: Sequence[Any]) -> None:
        self._copies: list[tuple[Any, Any]] = []
        self._values = dict(_defaults(operator), **dict(zip(_names(operator), values)))
        self.operator = operator
        reduce_op = self._values.get("reduce_op")
        self.reduction = int(reduce_op.op()) if reduce_op is not None else -1
        self.group = c10d.ProcessGroup.unbox(self["process_group"])
        shared = _shared.get(self.group)
        self.shared = shared if shared is not None and shared.pid == os.getpid() else None

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def reduces(self, dtype: Any) -> bool:
        """True if shared memory has the reduction of this call for tensors of this type."""
        return self.reduction in REDUCTIONS and (dtype.is_floating_point or self.reduction != AVG)

    def shared_for(self, *tensors: Any) -> SharedGroup | None:
        """Return the shared memory of the group if it takes tensors like these, of which all ranks have the same; else
        None, and gloo takes them."""
        first = tensors[0]
        if self.shared is None or first.dtype not in DTYPES:
            return None
        least = LEAST_OF_AUTO.get(self.operator, LEAST_OF_PARTS / self.group.size())
        if first.nbytes < least and os.environ.get("IPEXCTL_ALLREDUCE") == "auto":
            return None
        return self.shared if all(tensor.dtype == first.dtype for tensor in tensors) else None

    def flat(self, tensor: Any, *, is_output: bool) -> Any:
        """Return a flat view of a tensor, or a copy if it is not contiguous, for which gloo would take the memory that
        begins there. The copy of an output is written back at the end of the call."""
        if tensor.is_contiguous():
            return tensor.data.view(-1)  # .data, because gloo does not count versions either
        copy = tensor.data.contiguous()
        if is_output:
            tensor.data.copy_(copy)  # raises if torch refuses to write there, before the call has begun
            self._copies.append((tensor.data, copy))
        return copy.view(-1)

    def with_gloo(self, call: str, options: Any, *values: Any, **fields: Any) -> Any:
        """Let gloo make the call, and return its work. `call`: method of the backend. `options`: its options, to which
        `fields` and the reduction are added."""
        for name, value in fields.items():
            setattr(options, name, value)
        if self.reduction == PREMUL_SUM:
            options.reduceOp = c10d._make_nccl_premul_sum(1.0)  # which gloo refuses
        elif self.reduction >= 0:
            options.reduceOp = dist.ReduceOp(dist.ReduceOp.RedOpType(self.reduction))
        if self["timeout"] != -1:
            options.timeout = timedelta(milliseconds=self["timeout"])
        if hasattr(options, "asyncOp"):
            options.asyncOp = self["async_op"]
        return getattr(self.group._get_backend(CPU), call)(*values, options).boxed()

    def with_shared(
        self, pieces: list[Piece], source: Any, results: list[Any], *, detail: int = 0, parts: int = 1
    ) -> Any:
        """Start the call in shared memory, and return its work. `detail`: reduction or root, which all ranks must have
        alike. `parts`: number of tensors that gloo makes of the result."""
        shared: Any = self.shared
        taken[self.operator] = taken.get(self.operator, 0) + 1
        for lever in adding_levers():
            if lever.name == SHARED:
                lever.act()
        kind = OPERATORS.index(self.operator) << 12 | detail
        call = Collective(kind, source.dtype, pieces, self._copies)
        if self["timeout"] != -1:
            call.limit = self["timeout"] / 1000
        if torch.autograd._profiler_enabled():
            call.record = torch.autograd._record_function_with_args_enter(EVENTS[self.operator], source)
        shared.start(call, is_async=self["async_op"])
        return SharedWork(shared, call, results, parts).boxed()


@lru_cache(maxsize=None)
def _names(operator: str) -> tuple[str, ...]:
    return tuple(argument.name for argument in getattr(torch.ops.c10d, operator).default._schema.arguments)


@lru_cache(maxsize=None)
def _defaults(operator: str) -> dict[str, Any]:
    arguments = getattr(torch.ops.c10d, operator).default._schema.arguments
    return {"async_op": True, **{field.name: field.default_value for field in arguments if field.has_default_value()}}


def allreduce_(*values: Any) -> Any:
    """Reduce a tensor over all ranks of the group, for `c10d::allreduce_`. What shared memory does not take, such as
    several tensors, goes to gloo."""
    arguments = Arguments("allreduce_", values)
    tensors = arguments["tensors"]
    shared = arguments.shared_for(*tensors)
    if shared is None or len(tensors) > 1 or not arguments.reduces(tensors[0].dtype):
        return tensors, arguments.with_gloo("allreduce", c10d.AllreduceOptions(), tensors)
    tensor, reduction = arguments.flat(tensors[0], is_output=True), arguments.reduction
    pieces = reduce_pieces(shared, tensor, reduction)
    return tensors, arguments.with_shared(pieces, tensors[0], tensors, detail=reduction)


def broadcast_(*values: Any) -> Any:
    """Copy a tensor from one rank to all, for `c10d::broadcast_`."""
    arguments = Arguments("broadcast_", values)
    tensors, root = arguments["tensors"], arguments["root_rank"]
    shared = arguments.shared_for(*tensors)
    fields = {"rootRank": root, "rootTensor": arguments["root_tensor"]}
    if shared is None or len(tensors) > 1 or not 0 <= root < shared.size or fields["rootTensor"]:  # gloo refuses these
        return tensors, arguments.with_gloo("broadcast", c10d.BroadcastOptions(), tensors, **fields)
    pieces = broadcast_pieces(shared, arguments.flat(tensors[0], is_output=True), root)
    return tensors, arguments.with_shared(pieces, tensors[0], tensors, detail=root)


def _allgather_base_(*values: Any) -> Any:
    """Collect the tensors of all ranks in one, for `c10d::_allgather_base_`. An output of another size goes to gloo."""
    arguments = Arguments("_allgather_base_", values)
    output, source = arguments["output_tensor"], arguments["input_tensor"]
    shared = arguments.shared_for(source, output)
    ranks = arguments.group.size()
    if shared is None or output.numel() != source.numel() * ranks:
        return output, arguments.with_gloo("_allgather_base", c10d.AllgatherOptions(), output, source)
    parts = list(arguments.flat(output, is_output=True).chunk(ranks))
    pieces = gather_pieces(shared, parts, arguments.flat(source, is_output=False))
    return output, arguments.with_shared(pieces, source, [output], parts=ranks)


def allgather_(*values: Any) -> Any:
    """Collect the tensors of all ranks in a list, for `c10d::allgather_`. Tensors of different sizes go to gloo."""
    arguments = Arguments("allgather_", values)
    outputs, sources = arguments["output_tensors"], arguments["input_tensors"]
    shared = arguments.shared_for(*sources, *(tensor for part in outputs for tensor in part))
    sizes = {tensor.numel() for part in (*outputs, sources) for tensor in part}
    if shared is None or len(sources) > 1 or len(sizes) > 1 or len(outputs[0]) != shared.size:
        return outputs, arguments.with_gloo("allgather", c10d.AllgatherOptions(), outputs, sources)
    targets = [arguments.flat(tensor, is_output=True) for tensor in outputs[0]]
    pieces = gather_pieces(shared, targets, arguments.flat(sources[0], is_output=False))
    return outputs, arguments.with_shared(pieces, sources[0], outputs[0])


def _reduce_scatter_base_(*values: Any) -> Any:
    """Reduce a tensor and give each rank its part, for `c10d::_reduce_scatter_base_`."""
    arguments = Arguments("_reduce_scatter_base_", values)
    output, source = arguments["output_tensor"], arguments["input_tensor"]
    shared = arguments.shared_for(output, source)
    ranks = arguments.group.size()
    if shared is None or not arguments.reduces(output.dtype) or not is_divided(source, output, ranks):
        return output, arguments.with_gloo("_reduce_scatter_base", c10d.ReduceScatterOptions(), output, source)
    parts = list(arguments.flat(source, is_output=False).chunk(ranks))
    own, reduction = arguments.flat(output, is_output=True), arguments.reduction
    pieces = scatter_pieces(shared, own, parts, reduction)
    return output, arguments.with_shared(pieces, source, [output], detail=reduction)


def barrier(*values: Any) -> Any:
    """Wait for all ranks, for `c10d::barrier`: first for the calls that the group has begun in shared memory, as gloo's
    barrier would, and then with gloo."""
    arguments = Arguments("barrier", values)
    shared, is_async = arguments.shared, arguments["async_op"]
    if shared is not None and not is_async:
        shared.finish_all()
    work = arguments.with_gloo("barrier", c10d.BarrierOptions(), device_ids=list(arguments["device_ids"]))
    if shared is None or shared.is_over:
        return work
    call = Collective(0, torch.uint8, [])
    call.work = c10d.Work.unbox(work)
    shared.start(call, is_async=True)
    return SharedWork(shared, call, [], 1).boxed()


KERNELS = (allreduce_, broadcast_, _allgather_base_, allgather_, _reduce_scatter_base_, barrier)


def own_copy(source: Any, target: Any) -> Any:
    """Return the source, or a copy if it shares memory with the target, which is written first."""
    is_same = source.untyped_storage().data_ptr() == target.untyped_storage().data_ptr()
    return source.clone() if is_same else source


def chunks(elements: int, dtype: Any, parts: int = 1) -> list[tuple[int, int]]:
    """Return the bounds of equal pieces, each of which has room in a slot `parts` times."""
    step = max(PIECE // (dtype.itemsize * parts) // 64 * 64, 1)
    return [(low, min(low + step, elements)) for low in range(0, elements, step)]


def copier(source: Any, start: int = 0) -> Callable[[Any], None]:
    """Return a function that writes the source into a slot, beginning at the element `start`."""

    def write(slot: Any) -> None:
        slot[start : start + source.numel()].copy_(source)

    return write


def combine(terms: Sequence[Any], target: Any, reduction: int) -> None:
    """Reduce the terms into the target, in the order of the ranks, so that all have the same bits."""
    REDUCTIONS[reduction](terms[0], terms[1], out=target)
    for term in terms[2:]:
        REDUCTIONS[reduction](target, term, out=target)
    if reduction == AVG:
        target.div_(len(terms))


def reduce_pieces(shared: SharedGroup, tensor: Any, reduction: int) -> list[Piece]:
    """Return the pieces of an all-reduce. Each rank combines all of a small piece, or its shard of a large one, which
    then takes a second piece."""
    size, place = shared.size, shared.place
    pieces: list[Piece] = []
    for low, high in chunks(tensor.numel(), tensor.dtype):
        part, count = tensor[low:high], high - low
        is_whole = size == 2 or count * tensor.element_size() * size <= WHOLE
        bounds = [0, count] if is_whole else shard_bounds(count, size, tensor.element_size())
        first, last = bounds[0 if is_whole else place :][:2]

        def read(slots: Any, part: Any = part, first: int = first, last: int = last) -> None:
            if first < last:
                combine([slot[first:last] for slot in slots], part[first:last], reduction)

        def collect(slots: Any, part: Any = part, bounds: Sequence[int] = tuple(bounds)) -> None:
            for rank, (start, end) in enumerate(zip(bounds[:-1], bounds[1:])):
                if rank != place and start < end:
                    part[start:end].copy_(slots[rank][start:end])

        pieces.append(Piece(count, copier(part), read))
        if not is_whole:
            pieces.append(Piece(count, copier(part[first:last], first), collect, after=len(pieces)))
    return pieces


def broadcast_pieces(shared: SharedGroup, tensor: Any, root: int) -> list[Piece]:
    """Return the pieces of a broadcast: the rank at place `root` writes, and the others read."""
    pieces = []
    for low, high in chunks(tensor.numel(), tensor.dtype):
        part = tensor[low:high]
        if shared.place == root:
            pieces.append(Piece(high - low, copier(part), None, NOBODY))
        else:
            pieces.append(Piece(high - low, None, partial(_take, part, root), root))
    return pieces


def _take(part: Any, rank: int, slots: Sequence[Any]) -> None:
    part.copy_(slots[rank][: part.numel()])


def gather_pieces(shared: SharedGroup, outputs: list[Any], source: Any) -> list[Piece]:
    """Return the pieces of an all-gather. The outputs may differ in size."""
    place = shared.place
    if outputs[place].data_ptr() != source.data_ptr():
        source = own_copy(source, outputs[place])
        outputs[place].copy_(source)

    def read(slots: Any, low: int, high: int) -> None:
        for rank, output in enumerate(outputs):
            if rank != place:
                part = output[low:high]
                part.copy_(slots[rank][: part.numel()])

    return [
        Piece(high - low, copier(source[low:high]), partial(read, low=low, high=high))
        for low, high in chunks(max(tensor.numel() for tensor in outputs), source.dtype)
    ]


def scatter_pieces(shared: SharedGroup, output: Any, parts: list[Any], reduction: int) -> list[Piece]:
    """Return the pieces of a reduce-scatter. Other ranks' parts, which may differ in size, are written side by side;
    the own part is combined from where it is."""
    place = shared.place
    own = parts[place]
    if place > 1 or own.data_ptr() != output.data_ptr():
        own = own_copy(own, output)

    def write(slot: Any, low: int, high: int) -> None:
        for rank, part in enumerate(parts):
            if rank != place:
                copier(part[low:high], rank * (high - low))(slot)

    def read(slots: Any, low: int, high: int) -> None:
        target = output[low:high]
        first, count = place * (high - low), target.numel()
        if count:
            terms = [slot[first : first + count] for slot in slots]
            terms[place] = own[low:high]
            combine(terms, target, reduction)

    return [
        Piece(high - low, partial(write, low=low, high=high), partial(read, low=low, high=high))
        for low, high in chunks(max(tensor.numel() for tensor in parts), output.dtype, shared.size)
    ]


def is_divided(source: Any, output: Any, ranks: int) -> bool:
    """True if the output is one rank's part of the source. If not, gloo refuses the call on this rank."""
    if source.dim() == 0 or output.dim() == 0:
        return False
    return bool(source.numel() == output.numel() * ranks and source.shape[0] == output.shape[0] * ranks)


@uninterrupted
def on_group(group: Any, store: Any, numbers: Sequence[int]) -> None:
    """Give a new process group shared memory if all its ranks agree. No other error reaches the script."""
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    try:
        reason = connect(group, store, numbers)
    except OffError as off:
        reason = str(off)
    except DisagreementError:
        raise
    except Exception as error:  # noqa: BLE001  # the script trains without us
        reason = f"{type(error).__name__}: {error}"
    if reason and not numbers:
        for lever in adding_levers():
            if lever.name == SHARED:
                lever.leave(reason)


def connect(group: Any, store: Any, numbers: Sequence[int]) -> str:
    """Connect the ranks of a group, or raise an OffError on all of them. Return why not if no other rank need be asked,
    else an empty text."""
    if group.size() < 2:
        return "there is only one rank"
    backend, name = group._get_backend(CPU), group.group_name
    if reason := reason_against(backend):
        return reason
    _made[name] = number = _made.get(name, 0) + 1
    ranks = Ranks(backend, group.rank(), group.size(), limit_of(group), numbers)
    members = join(store, ranks, f"group/{name}/{number}", "", size=SEGMENT_SIZE, wire="")
    shared = SharedGroup(members, ranks.timeout)
    _replace_kernels()
    _shared[group] = shared
    return ""


def reason_against(backend: Any) -> str:
    """Return why a group with this backend can't have shared memory here; empty if it can."""
    if not isinstance(backend, getattr(dist, "ProcessGroupGloo", ())):
        return "the process group's backend is not gloo"
    needed = (
        (c10d.ProcessGroup, ("unbox", "_get_backend")),
        (c10d.Work, ("boxed", "unbox")),
        (c10d, ("BarrierOptions", "BroadcastOptions")),
        (torch.autograd, ("_profiler_enabled", "_record_function_with_args_enter", "_record_function_with_args_exit")),
        (torch.classes.c10d.ReduceOp(), ("op",)),
        (torch.ops.c10d, OPERATORS),
    )
    missing = next((name for owner, names in needed for name in names if not hasattr(owner, name)), "")
    for operator in () if missing else OPERATORS:
        wanted = {*ARGUMENTS[operator], "process_group", "timeout"} - {*_names(operator)}
        missing = missing or next((f"{name} in {operator}" for name in sorted(wanted)), "")
    return f"torch {torch.__version__} has no {missing}" if missing else ""


@lru_cache(maxsize=None)
def _replace_kernels() -> Any:
    """Replace torch's kernels for the CPU by those of this module, once per process."""
    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a replaced kernel
        for kernel in KERNELS:
            # In this mode any tensor can be written to, also one that was made in it, as gloo does.
            written = torch.inference_mode()(kernel)
            library.impl(kernel.__name__, _untraced(uninterrupted(written)), "CPU")
    return library  # the kernels live as long as it does


def _untraced(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel so that torch.compile does not compile it with a model that calls it. Preventing that takes
    time at each call, so it is done only while something is compiled."""
    disabled = torch._disable_dynamo(kernel)
    callback = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: disabled)

    def call(*values: Any) -> Any:
        is_traced = torch.compiler.is_compiling() or callback() is not None
        return disabled(*values) if is_traced else kernel(*values)

    return call


def serves(group: Any) -> bool:
    """True if collectives of this group use shared memory."""
    return group is not None and group in _shared

"""Adding up a tensor over the ranks of one host, in shared memory, and over hosts where there are several.

In comes a flat tensor, and a factor by which each rank's values are multiplied first; the sum is written into the same
tensor. Each rank adds up one part of each piece, its shard:

    1. it writes the shards of the others, multiplied, into its own segment, and counts up PROGRESS
    2. it waits for all ranks, adds up its shard in the order of the ranks, leaves the sum in its segment, counts up
    3. it waits for all ranks, and copies the sums of the others

A small piece takes one step less: each rank writes all of it, waits, and adds up all of it in the same order. Pieces
use the slots of a segment in turn. A rank writes to a slot again only after all ranks have counted up for a later
piece, which they do after they have read everything of the piece before. The rule: the same bits on each rank.

With several hosts, the ranks of all hosts with the same place add up their shards over a group of gloo between steps 2
and 3. Meanwhile the next pieces take steps 1 and 2, also those of later buckets; the last bucket of a backward pass
waits for all. When a piece is finished depends on the sizes of buckets alone, so that all ranks count up in one order.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Sequence

import torch

from .layout import pieces, shard_bounds
from .segment import HEADER
from .waiting import MASK, Waiter

if TYPE_CHECKING:
    from .segment import Segment
    from .waiting import Peer

PIECE = 2 << 20
"""Bytes of a piece on one host: what is written stays in the processor's caches until the others read it."""
PIECE_BETWEEN = 16 << 20
"""Bytes of a piece with several hosts: the network takes longer than the memory, and each message takes a while."""
SLOTS, SLOTS_BETWEEN = 2, 4
WHOLE = 512 << 10
"""Bytes, divided by the number of ranks, up to which each rank adds up all of a piece: 256 KB with two."""
SEGMENT_SIZE = HEADER + SLOTS_BETWEEN * PIECE_BETWEEN
"""Pages that no rank touches take no memory."""
MAX_PLANS = 64
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
)


class _Piece(NamedTuple):
    """A piece of a bucket with the parts of the segments' slots for it."""

    start: int
    end: int
    is_whole: bool
    own: slice
    """The own shard, in the bucket."""
    written: Sequence[tuple[slice, Any]]
    """Parts of the bucket, and of the own segment, for shards of others."""
    result: Any
    terms: Sequence[Any]
    """Of each rank of the host, what it has written for the own shard; the own one is None in a piece with shards."""
    sums: Sequence[tuple[slice, Any]]
    """Parts of the bucket, and of the others' segments that hold their sums."""


class _Pending(NamedTuple):
    """A piece whose shards are on their way between hosts."""

    owner: Any
    """The model."""
    piece: _Piece
    tensor: Any
    work: Any
    future: Any
    """Of the bucket, with its last piece; otherwise None."""


class Channel:
    """The segments of all ranks of this host, in the same order on each."""

    def __init__(
        self, segments: Sequence[Segment], place: int, peers: Sequence[Peer], timeout: float, between: Any = None
    ) -> None:
        self._between = between
        """The backend of the ranks of all hosts with this place; None with one host."""
        self._pending: deque[_Pending] = deque()
        self._piece_size, self._slots = (PIECE, SLOTS) if between is None else (PIECE_BETWEEN, SLOTS_BETWEEN)
        self.place, self.size = place, len(segments)
        self._segments = segments
        self._own = segments[place]
        self.waiter = Waiter(self._own, segments, peers, timeout)
        self.count = 0
        self._slot = 0
        self._plans: dict[tuple[Any, int, int], list[_Piece]] = {}
        self._lock = threading.Lock()
        self._is_interrupted = False

    def all_reduce(self, tensor: Any, factor: float | None) -> None:
        """Add up a flat, contiguous tensor over the ranks of the host."""
        with self._whole(), torch.no_grad():
            plan = self._plan(tensor.dtype, tensor.numel())
            self._own.checks[self._slot & 1] = tensor.numel() << 8 | DTYPES.index(tensor.dtype)
            for number, piece in enumerate(plan):
                if piece.is_whole:
                    self._add_whole(piece, tensor, factor, is_first=number == 0)
                else:
                    self._add_shards(piece, tensor, factor, is_first=number == 0)
                self._slot = (self._slot + 1) % self._slots

    def start(self, owner: Any, tensor: Any, factor: float, future: Any) -> None:
        """Add up a tensor over all hosts; the future gets it once it is finished, at `finish` at the latest."""
        with self._whole(), torch.no_grad():
            plan = self._plan(tensor.dtype, tensor.numel())
            for number, piece in enumerate(plan):
                if len(self._pending) == self._slots - 1:
                    self._finish_piece()
                self._own.checks[self._slot & 1] = tensor.numel() << 8 | DTYPES.index(tensor.dtype)
                self._add_own_shard(piece, tensor, factor, is_first=number == 0)
                work = None if piece.own.start == piece.own.stop else self._between.allreduce([piece.result])
                is_last = number == len(plan) - 1
                self._pending.append(_Pending(owner, piece, tensor, work, future if is_last else None))
                self._slot = (self._slot + 1) % self._slots

    def finish(self) -> None:
        """Wait for all that was started."""
        if self._pending:
            with self._whole(), torch.no_grad():
                while self._pending:
                    self._finish_piece()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """One call at a time, and none after one that an error has ended: other ranks would mistake its values.

        A handler of a signal, for example, may raise an error while this rank waits.
        """
        with self._lock:
            if self._is_interrupted:
                raise RuntimeError("an error has ended an earlier all-reduce of this rank, so no other can follow")
            self._is_interrupted = True
            yield
            self._is_interrupted = False

    def discard(self, owner: Any) -> None:
        """Forget the tensors of that model's last backward pass, if it raised an error: they have new values."""
        if self._pending:
            for number, pending in enumerate(self._pending):
                if pending.owner is owner:
                    self._pending[number] = pending._replace(tensor=None, future=None)

    def _finish_piece(self) -> None:
        pending = self._pending.popleft()
        piece, tensor = pending.piece, pending.tensor
        if pending.work is not None:
            pending.work.wait()
        self.waiter.wait_for_all(self._signal())
        if tensor is not None:
            tensor[piece.own].copy_(piece.result)
            for part, source in piece.sums:
                tensor[part].copy_(source)
        if pending.future is not None:
            pending.future.set_result(tensor)

    def _signal(self) -> int:
        self.count = count = (self.count + 1) & MASK
        self._own.progress[0] = count
        self._own.wake()
        return count

    def _add_shards(self, piece: _Piece, tensor: Any, factor: float | None, *, is_first: bool) -> None:
        self._add_own_shard(piece, tensor, factor, is_first=is_first)
        count = self._signal()
        tensor[piece.own].copy_(piece.result)
        self.waiter.wait_for_all(count)
        for part, source in piece.sums:
            tensor[part].copy_(source)

    def _add_own_shard(self, piece: _Piece, tensor: Any, factor: float | None, *, is_first: bool) -> None:
        for part, target in piece.written:
            _scale(tensor[part], factor, target)
        self.waiter.wait_for_all(self._signal())
        if is_first:
            self._check()
        own = tensor[piece.own]
        if factor is not None:
            own.mul_(factor)  # rounded as the others' terms are: a fused multiply-add has other bits, if it underflows
        _add_in_order(piece.terms, own, piece.result)

    def _add_whole(self, piece: _Piece, tensor: Any, factor: float | None, *, is_first: bool) -> None:
        part, target = piece.written[0]
        own = tensor[part]
        _scale(own, factor, target)
        self.waiter.wait_for_all(self._signal())
        if is_first:
            self._check()
        terms = piece.terms
        torch.add(terms[0], terms[1], out=own)
        for term in terms[2:]:
            own.add_(term)

    def _check(self) -> None:
        """Raise an error if the ranks are about to add up different tensors, as of models that differ."""
        slot = self._slot & 1
        own = self._own.checks[slot]
        for segment in self._segments:
            if segment.checks[slot] != own:
                raise RuntimeError("the ranks of this host add up gradients of different sizes or types")

    def _plan(self, dtype: Any, elements: int) -> list[_Piece]:
        key = dtype, elements, self._slot
        plan = self._plans.get(key)
        if plan is None:
            while len(self._plans) >= MAX_PLANS:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[key] = self._make_plan(dtype, elements)
        return plan

    def _make_plan(self, dtype: Any, elements: int) -> list[_Piece]:
        size = dtype.itemsize if hasattr(dtype, "itemsize") else torch.empty((), dtype=dtype).element_size()
        plan, slot = [], self._slot
        for start, end in pieces(elements, size, self._piece_size):
            views = [self._view(segment, slot, dtype, end - start, size) for segment in self._segments]
            plan.append(self._piece(start, end, size, views))
            slot = (slot + 1) % self._slots
        return plan

    def _view(self, segment: Segment, slot: int, dtype: Any, elements: int, size: int) -> Any:
        start = HEADER + slot * self._piece_size
        return torch.frombuffer(segment.bytes[start : start + elements * size], dtype=dtype)

    def _piece(self, start: int, end: int, size: int, views: list[Any]) -> _Piece:
        elements, place = end - start, self.place
        whole = slice(start, end)
        if elements * size * self.size <= WHOLE and self._between is None:
            return _Piece(start, end, True, whole, [(whole, views[place])], None, views, ())
        bounds = shard_bounds(elements, self.size, size)
        low, high = bounds[place], bounds[place + 1]
        written = [
            (slice(start + first, start + last), views[place][first:last])
            for first, last in ((0, low), (high, elements))
            if first < last
        ]
        terms = [None if number == place else view[low:high] for number, view in enumerate(views)]
        sums = [
            (slice(start + first, start + last), view[first:last])
            for number, (view, first, last) in enumerate(zip(views, bounds[:-1], bounds[1:]))
            if number != place and first < last
        ]
        own = slice(start + low, start + high)
        return _Piece(start, end, False, own, written, views[place][low:high], terms, sums)


def _scale(source: Any, factor: float | None, target: Any) -> None:
    if factor is None:
        target.copy_(source)
    else:
        torch.mul(source, factor, out=target)


def _add_in_order(terms: Sequence[Any], own: Any, result: Any) -> None:
    """The sum over ranks, in their order; `own` stands for the term that is None."""
    first, second, *more = (own if term is None else term for term in terms)
    torch.add(first, second, out=result)
    for term in more:
        result.add_(term)

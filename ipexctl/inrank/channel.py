"""Sum tensors over the ranks of one host in shared memory, and over hosts.

A flat tensor is scaled by a factor and summed in place, in pieces. Each rank sums one part of a piece, its shard:

    1. It writes the other ranks' shards, scaled, into a free slot of its own segment, and raises WRITTEN.
    2. Once all ranks have raised WRITTEN, it sums its shard in rank order into its slot, and raises SUMMED.
    3. Once all ranks have raised SUMMED, it copies the other ranks' sums, and raises COPIED.

Once all ranks have raised COPIED, the slot is free.

Small pieces, and all pieces with two ranks, take one step less: each rank writes and sums all of the piece.

`start` takes step 1 for all pieces of a tensor, and any step that needs no other rank, while backward continues; it
only waits for a free slot. `finish`, at the last bucket of a backward pass, waits for everything. With several hosts,
the ranks with the same place on each host sum their shards (`wire.py`) before they raise SUMMED. A rank alone on its
host sends its own tensor to the other hosts.

All ranks get the same bits. Each counter passes the pieces in order, so gloo's calls have the same order on all hosts.
When a rank leaves `start`, it has done everything that others need to leave it too, because it may wait for them
elsewhere.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterator, NamedTuple, Sequence

import torch

from .segment import COPIED, HEADER, MOST_PIECES, SUMMED, WRITTEN, pieces, shard_bounds
from .waiting import HALF, MASK, Waiter
from .wire import Lost

if TYPE_CHECKING:
    from .segment import Segment
    from .waiting import Peer
    from .wire import Between

PIECE = 2 << 20
"""Bytes of a piece on one host, which stays in the processor's caches until the other ranks read it; also of a piece
encoded for other hosts, so that the next piece can be encoded while it is sent."""
PIECE_BETWEEN = 16 << 20
"""Bytes of a piece sent unencoded to other hosts. It is larger, because each message has a cost."""
SPACE = 64 << 20
"""Bytes of all slots: two DDP buckets, so that a rank that is one bucket ahead does not wait."""
WHOLE = 512 << 10
"""A piece with fewer bytes than this divided by the number of ranks is summed by each rank. Two ranks always do that,
because they move as many bytes as with shards and wait once less."""
SEGMENT_SIZE = HEADER + SPACE
"""Bytes. Pages that are never touched take no memory."""
MAX_PLANS, MAX_VIEWS = 64, 4096
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
    start: int
    end: int
    is_whole: bool
    shards: Sequence[tuple[int, int]]


class _Pending:
    __slots__ = ("factor", "future", "lost", "number", "owner", "piece", "result", "target", "tensor", "work")

    def __init__(
        self, owner: Any, piece: _Piece, tensor: Any, factor: float | None, number: int, lost: Lost | None
    ) -> None:
        self.owner = owner
        self.piece, self.tensor, self.factor, self.lost = piece, tensor, factor, lost
        self.number, self.target = number, (number + 1) & MASK
        self.future: Any = None
        self.result: Any = None
        """Sum of the own shard, in the own segment; part of the tensor itself if this rank is alone on its host."""
        self.work: Any = None
        """`wire.Work` that sums `result` between hosts; None before that."""


class Channel:
    """Sums tensors over the ranks of a host in shared memory; see the beginning of this module."""

    def __init__(
        self,
        segments: Sequence[Segment],
        place: int,
        peers: Sequence[Peer],
        timeout: Callable[[], float],
        between: Between | None = None,
    ) -> None:
        self._between = between
        self._piece_size = PIECE if between is None or between.codec is not None else PIECE_BETWEEN
        slots = min(SPACE // self._piece_size, MOST_PIECES)
        self.place, self.size = place, len(segments)
        self._segments = segments
        self._own = segments[place]
        self.waiter = Waiter(self._own, segments, peers, timeout)
        self._number = 0
        self._to_add: deque[_Pending] = deque()
        self._to_send: deque[_Pending] = deque()
        self._to_spread: deque[_Pending] = deque()
        self._to_copy: deque[_Pending] = deque()
        """Pieces waiting for step 2, for the first and for the second step between hosts, and for step 3."""
        self._used: deque[tuple[int, int]] = deque()
        """Slots that other ranks may still read, with the COPIED count that frees each."""
        self._free = list(range(slots))[::-1]
        """Free slots. The last is taken first, because it is most likely in the caches."""
        self._plans: dict[tuple[Any, int], list[_Piece]] = {}
        self._views: dict[tuple[int, int, Any, int, int], Any] = {}
        self._lock = threading.Lock()
        self._is_interrupted = False

    def start(
        self, owner: Any, tensor: Any, factor: float | None, future: Any, lost: dict[int, Lost] | None = None
    ) -> None:
        """Start summing a flat, contiguous tensor. Nobody else may write to it until `finish` has set its future.

        `owner`: who may `discard` it. `factor`: scales each rank's values first; None to leave them. `lost`: rounding
        losses of each piece in the previous step, or None.
        """
        with self._only_caller(), torch.no_grad():
            plan, pending = self._plan(tensor.dtype, tensor.numel()), None
            for number, piece in enumerate(plan):
                self._advance()
                slot = self._free_slot(len(plan) - number)
                rest = None if lost is None else lost.setdefault(number, Lost())
                pending = self._write(piece, slot, _Pending(owner, piece, tensor, factor, self._number, rest))
            if pending is None:
                future.set_result(tensor)
                return
            pending.future = future
            self._advance()

    def finish(self) -> None:
        """Wait until all tensors that were started are summed, and their futures set."""
        if self._oldest():
            with self._only_caller(), torch.no_grad():
                self._advance()
                while self._oldest():
                    self._wait(self._number)
                    self._advance()

    @contextmanager
    def _only_caller(self) -> Iterator[None]:
        """Allow one call at a time, and none after a call that raised, because other ranks would mix up values."""
        with self._lock:
            if self._is_interrupted:
                raise RuntimeError("an earlier all-reduce of this rank failed, so this one can't run")
            self._is_interrupted = True
            yield
            self._is_interrupted = False

    def discard(self, owner: Any) -> bool:
        """Forget the tensors of a model whose backward pass raised; return whether there were any."""
        has_any = False
        for queue in (self._to_add, self._to_send, self._to_spread, self._to_copy):
            for pending in queue:
                if pending.owner is owner:
                    pending.tensor = pending.future = None
                    has_any = True
        return has_any

    def _advance(self) -> None:
        """Take every step that needs no other rank. Oldest pieces go first, because the caches may still hold them."""
        have_reached = self.waiter.have_reached
        while True:
            if self._to_copy and (self._to_copy[0].piece.is_whole or have_reached(SUMMED, self._to_copy[0].target)):
                self._copy(self._to_copy.popleft())
            elif self._to_spread and self._to_spread[0].work.is_completed():
                self._receive(self._to_spread.popleft())
            elif self._to_send and self._to_send[0].work.is_completed():
                self._receive(self._to_send.popleft())
            elif self._to_add and have_reached(WRITTEN, self._to_add[0].target):
                self._add(self._to_add.popleft())
            else:
                return

    def _oldest(self) -> deque[_Pending]:
        return self._to_copy or self._to_spread or self._to_send or self._to_add

    def _wait(self, until: int) -> None:
        """Wait until half of the oldest queue's pieces can take their next step, but not for pieces after `until`. One
        sleep per piece could take longer than copying the piece, if other programs use the cores."""
        queue = self._oldest()
        pending = queue[min(len(queue) // 2, (until - queue[0].target) & MASK)]
        if queue is self._to_send or queue is self._to_spread:
            queue[0].work.wait()
        else:
            self.waiter.wait_for_all(SUMMED if queue is self._to_copy else WRITTEN, pending.target)

    def _free_slot(self, needed: int) -> int:
        """Take a free slot. Waits for at most `needed` slots, which the tensor still needs: other ranks that have
        already written the tensor freed as many, and may be elsewhere now."""
        used, until = self._used, None
        while True:
            while used and self.waiter.have_reached(COPIED, used[0][1]):
                self._free.append(used.popleft()[0])
            if self._free:
                return self._free.pop()
            if until is None:
                until = used[min(needed - 1, len(used) // 4)][1]
            oldest = self._oldest()
            if oldest and (until - oldest[0].target) & MASK < HALF:
                self._wait(until)
                self._advance()
            else:
                self.waiter.wait_for_all(COPIED, until)

    def _write(self, piece: _Piece, slot: int, pending: _Pending) -> _Pending:
        """Take step 1 of a piece: write what the other ranks need into a free slot."""
        tensor, factor, dtype, number = pending.tensor, pending.factor, pending.tensor.dtype, pending.number
        self._number = pending.target
        self._used.append((slot, pending.target))
        self._own.pieces[number % MOST_PIECES] = (piece.end - piece.start) << 16 | DTYPES.index(dtype) << 8 | slot
        place, start, end = self.place, piece.start, piece.end
        if piece.is_whole:
            _scale(tensor[start:end], factor, self._view(place, slot, dtype, 0, end - start))
        else:
            low, high = piece.shards[place]
            for first, last in ((start, low), (high, end)):
                if first < last:
                    _scale(tensor[first:last], factor, self._view(place, slot, dtype, first - start, last - start))
            is_alone = self.size == 1
            pending.result = tensor[low:high] if is_alone else self._view(place, slot, dtype, low - start, high - start)
        self.waiter.count_up(WRITTEN, pending.target)
        self._to_add.append(pending)
        return pending

    def _add(self, pending: _Pending) -> None:
        """Take step 2 of a piece: sum this rank's shard, or all of a small piece. With several hosts, begin to sum it
        between them."""
        slots = self._slots(pending.number)
        piece, tensor, place = pending.piece, pending.tensor, self.place
        start, end = piece.start, piece.end
        if piece.is_whole:
            if tensor is not None:
                views = [self._view(rank, slot, tensor.dtype, 0, end - start) for rank, slot in enumerate(slots)]
                _add_in_order(views, tensor[start:end])
            self._own.counters[SUMMED][0] = pending.target  # nobody waits for this counter here
            self._to_copy.append(pending)  # COPIED passes all pieces in order
            return
        low, high = piece.shards[place]
        if tensor is not None and low < high:
            own = tensor[low:high]
            if pending.factor is not None:
                own.mul_(pending.factor)  # rounds as other ranks do; a fused multiply-add has other bits
            views = [
                own if rank == place else self._view(rank, slot, tensor.dtype, low - start, high - start)
                for rank, slot in enumerate(slots)
            ]
            _add_in_order(views, pending.result)
        if self._between is None:
            self.waiter.count_up(SUMMED, pending.target)
            self._to_copy.append(pending)
            if tensor is not None:
                tensor[low:high].copy_(pending.result)
        else:
            pending.work = self._between.begin(pending.result, pending.lost)
            self._to_send.append(pending)

    def _receive(self, pending: _Pending) -> None:
        """Take the own shard to its next step between hosts. After the last step, it is summed over all hosts."""
        pending.work.wait()
        further = pending.work.next_step()
        if further is not None:
            pending.work = further
            self._to_spread.append(pending)
            return
        is_alone = self.size == 1
        if pending.tensor is not None or not is_alone:
            pending.work.store(pending.result)
        self.waiter.count_up(SUMMED, pending.target)
        self._to_copy.append(pending)
        low, high = pending.piece.shards[self.place]
        if pending.tensor is not None and not is_alone:
            pending.tensor[low:high].copy_(pending.result)

    def _copy(self, pending: _Pending) -> None:
        """Take step 3 of a piece: copy the other ranks' sums. The last piece of a tensor sets its future."""
        tensor, start = pending.tensor, pending.piece.start
        if tensor is not None:
            slots = self._slots(pending.number)
            for rank, (low, high) in enumerate(pending.piece.shards):
                if rank != self.place and low < high:
                    tensor[low:high].copy_(self._view(rank, slots[rank], tensor.dtype, low - start, high - start))
        self.waiter.count_up(COPIED, pending.target)
        if pending.future is not None:
            pending.future.set_result(pending.tensor)

    def _slots(self, number: int) -> list[int]:
        """Return each rank's slot of a piece that all ranks have written. Raises a RuntimeError if their tensors
        differ."""
        words = [segment.pieces[number % MOST_PIECES] for segment in self._segments]
        own = words[self.place] >> 8
        for word in words:
            if word >> 8 != own:
                raise RuntimeError("the ranks of this host have gradients of different sizes or types")
        return [word & 0xFF for word in words]

    def _view(self, rank: int, slot: int, dtype: Any, low: int, high: int) -> Any:
        """Return a part of a rank's slot as a tensor. Views are kept for later pieces."""
        key = rank, slot, dtype, low, high
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            start, size = HEADER + slot * self._piece_size, _item_size(dtype)
            memory = self._segments[rank].bytes[start + low * size : start + high * size]
            view = torch.frombuffer(memory, dtype=dtype) if low < high else torch.empty(0, dtype=dtype)
            self._views[key] = view
        return view

    def _plan(self, dtype: Any, elements: int) -> list[_Piece]:
        """Return the pieces of tensors with this type and size. Plans are kept for later tensors."""
        plan = self._plans.get((dtype, elements))
        if plan is None:
            while len(self._plans) >= MAX_PLANS:
                del self._plans[next(iter(self._plans))]
            size = _item_size(dtype)
            plan = [self._piece(start, end, size) for start, end in pieces(elements, size, self._piece_size)]
            self._plans[dtype, elements] = plan
        return plan

    def _piece(self, start: int, end: int, size: int) -> _Piece:
        """Return one piece, with its shards unless each rank sums all of it."""
        elements = end - start
        if self._between is None and (self.size == 2 or elements * size * self.size <= WHOLE):
            return _Piece(start, end, True, ())
        bounds = [start + bound for bound in shard_bounds(elements, self.size, size)]
        return _Piece(start, end, False, list(zip(bounds[:-1], bounds[1:])))


def _item_size(dtype: Any) -> int:
    return int(dtype.itemsize) if hasattr(dtype, "itemsize") else torch.empty((), dtype=dtype).element_size()


def _scale(source: Any, factor: float | None, target: Any) -> None:
    if factor is None:
        target.copy_(source)
    else:
        torch.mul(source, factor, out=target)


def _add_in_order(terms: Sequence[Any], result: Any) -> None:
    """Sum the terms in order. A single term is the result itself."""
    if len(terms) == 1:
        return
    torch.add(terms[0], terms[1], out=result)
    for term in terms[2:]:
        result.add_(term)

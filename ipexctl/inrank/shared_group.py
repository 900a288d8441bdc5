"""Take the collectives of a process group through shared memory.

A call is a list of pieces. A rank writes a piece into slot NUMBER % SLOTS of its own segment and raises WRITTEN. Once
the ranks that it reads have written theirs, it reads, and raises COPIED. Once all ranks have raised COPIED, the slot is
free. Pieces have the same numbers on all ranks, because all ranks make the same calls in the same order.

A blocking call waits in its own thread. An asynchronous one takes every step that needs no other rank; a thread of the
group takes the others, so a rank may start a call and do something else that its peers need first.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Sequence

import torch

from .channel import DTYPES
from .segment import COPIED, HEADER, MOST_PIECES, WRITTEN
from .waiting import MASK, Waiter

if TYPE_CHECKING:
    from .segment import Segment
    from .shared_allreduce import Members

PIECE = 1 << 20
"""Bytes of a slot."""
SLOTS = 16
SEGMENT_SIZE = HEADER + SLOTS * PIECE
EVERYONE, NOBODY = -1, -2
SPINS = 2500
"""As in `waiting.py`. A call of Python has more to do between two steps than the hook of DDP."""
IDLE_LIMIT = 1.0
"""Seconds that the end of the process waits for a thread that copies."""


class Piece(NamedTuple):
    """A part of a call that fits into a slot."""

    size: int
    """Elements, as all ranks have it."""
    write: Callable[[Any], None] | None
    read: Callable[[Sequence[Any]], None] | None
    source: int = EVERYONE
    """Place of the only rank whose slot this rank reads, or EVERYONE or NOBODY."""
    after: int = 0
    """Pieces of the call that this rank must have read before it writes this one."""


class Collective:
    """One call of a collective."""

    __slots__ = (
        *("copies", "dtype", "error", "first", "future", "kind"),
        *("limit", "pieces", "read", "record", "work", "written"),
    )

    def __init__(self, kind: int, dtype: Any, pieces: list[Piece], copies: Sequence[tuple[Any, Any]] = ()) -> None:
        self.kind, self.dtype, self.pieces = kind, dtype, pieces
        self.copies = copies
        """Tensors, each with the copy that the pieces write, because it is not contiguous."""
        self.limit = 0.0
        """Seconds in which another rank must take its step; 0 for those of the group."""
        self.work: Any = None
        """Work of gloo that ends before this call does."""
        self.record: Any = None
        """What a profiler gave out for the call."""
        self.first = self.read = self.written = 0
        self.error: BaseException | None = None
        self.future: Any = torch.futures.Future()
        """Its value is None; `error` says more once it is set."""

    def end(self) -> None:
        """End the profiler's record of the call, and let go what holds tensors."""
        if self.record is not None:
            torch.autograd._record_function_with_args_exit(self.record)
        self.pieces, self.copies, self.work, self.record = [], (), None, None  # which hold tensors


class SharedGroup:
    """The shared memory of a process group whose ranks are all on one host."""

    def __init__(self, members: Members, timeout: Callable[[], float]) -> None:
        self.place, self.size = members.place, len(members.segments)
        """Among the ranks of this host."""
        self._segments, self._own = members.segments, members.segments[members.place]
        self.waiter = Waiter(self._own, self._segments, members.peers, timeout)
        self.waiter.spins = 0 if members.is_crowded else SPINS
        self.pid = os.getpid()
        self._number = 0
        self._queue: deque[Collective] = deque()
        self._last: Collective | None = None
        self._lock = threading.Lock()
        self._todo = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._views: dict[tuple[Any, int], list[Any]] = {}
        weakref.finalize(self, _leave, self._own, self._todo).atexit = False
        _groups.add(self)

    def start(self, call: Collective, *, is_async: bool) -> None:
        """Start a call. Its future says when it is over, which may be at once."""
        failed: list[Collective] = []
        with self._lock:
            if self._error is not None:
                raise RuntimeError(f"an earlier collective of this process group failed: {self._error}")
            self._queue.append(call)
            self._last = call
            try:
                if self._queue[0] is not call:
                    self._write(call)
                elif call.record is None:  # a profiler wants to see gloo's thread
                    while (wait := self._advance(call)) is not None and not is_async:
                        wait()
                    if wait is None:
                        call.future.set_result(None)
                        self._queue.popleft()
                        return
            except BaseException as error:  # noqa: BLE001  # `finish` raises it
                failed = self._fail(error)
            if self._thread is None and not failed:
                arguments = weakref.ref(self), self._todo
                self._thread = threading.Thread(target=_finish_calls, args=arguments, daemon=True)
                self._thread.start()
            self._todo.set()
        for ended in failed:
            ended.future.set_result(None)

    @property
    def is_over(self) -> bool:
        """True if all calls that were started have ended."""
        return self._last is None or self._last.future.done()

    def finish_all(self) -> None:
        """Wait until all calls that were started are over. Raises the error of the last one."""
        if self._last is not None:
            self.finish(self._last)

    def finish(self, call: Collective) -> None:
        """Wait until the call is over. Raises the error of the call."""
        if threading.current_thread() is self._thread:  # a callback of another call
            while not call.future.done():
                self.finish_oldest()
        call.future.wait()
        if call.error is not None:
            raise call.error

    def finish_oldest(self) -> bool:
        """Finish the oldest call; return False if there is none."""
        while True:
            with self._lock:
                if not self._queue:
                    self._todo.clear()
                    return False
                call = self._queue[0]
                try:
                    with torch.inference_mode():  # as in the kernels
                        wait = self._advance(call)
                except BaseException as error:  # noqa: BLE001  # `finish` raises it
                    failed = self._fail(error)
                    break
                if wait is None:
                    self._queue.popleft()
                    failed = [call]
                    break
            try:
                wait()
            except BaseException as error:  # noqa: BLE001
                with self._lock:
                    failed = self._fail(error)
                break
        for ended in failed:
            ended.future.set_result(None)  # its callbacks may start calls
        return True

    @property
    def is_idle(self) -> bool:
        """True if the group's thread copies nothing: no call is left, or this rank waits for another."""
        return not self._queue or self.waiter.own.waits_for[0] != 0

    def _fail(self, error: BaseException) -> list[Collective]:
        """End all calls, and tell the other ranks, which would wait for this one."""
        self._error = error
        failed = list(self._queue)
        self._queue.clear()
        for call in failed:
            call.error = error
            call.end()
        self._own.leave()
        return failed

    def _write(self, call: Collective) -> None:
        """Write what has a free slot, unless an earlier call still has something to write."""
        if next(queued for queued in self._queue if queued.written < len(queued.pieces) or queued is call) is not call:
            return
        while call.written < len(call.pieces):
            piece, number = call.pieces[call.written], self._number
            if piece.after > call.read or not self.waiter.have_reached(COPIED, (number - SLOTS + 1) & MASK):
                return
            if call.written == 0:
                call.first = number
            self._own.pieces[number % MOST_PIECES] = self._word(call, piece)
            if piece.write is not None:
                piece.write(self._slots(call.dtype, number)[self.place])
            self._number = (number + 1) & MASK
            self.waiter.count_up(WRITTEN, self._number)
            call.written += 1

    @staticmethod
    def _word(call: Collective, piece: Piece) -> int:
        return piece.size << 24 | call.kind << 8 | DTYPES.index(call.dtype)

    def _advance(self, call: Collective) -> Callable[[], None] | None:
        """Take every step that needs no other rank. Returns what waits for the next step; None at the end."""
        while True:
            self._write(call)
            if call.read == len(call.pieces):
                if call.work is not None:
                    if not call.work.is_completed():
                        return call.work.wait  # type: ignore[no-any-return]
                    call.work.wait()  # raises its error
                for tensor, copy in call.copies:
                    tensor.copy_(copy)
                call.end()
                return None
            number = (call.first + call.read) & MASK
            if call.read == call.written:
                return partial(self.waiter.wait_for_all, COPIED, (self._number - SLOTS + 1) & MASK, call.limit)
            piece, target = call.pieces[call.read], (number + 1) & MASK
            sources = range(self.size) if piece.source == EVERYONE else (piece.source,) if piece.source >= 0 else ()
            if not all(self.waiter.has_reached(place, WRITTEN, target) for place in sources):
                return partial(self.waiter.wait_for, sources, WRITTEN, target, call.limit)
            own = self._word(call, piece)
            if any(self._segments[place].pieces[number % MOST_PIECES] != own for place in sources):
                raise RuntimeError(
                    "the ranks of this process group make different calls, or with different sizes or types"
                )
            if piece.read is not None:
                piece.read(self._slots(call.dtype, number))
            self.waiter.count_up(COPIED, target)
            call.read += 1

    def _slots(self, dtype: Any, number: int) -> list[Any]:
        """Return each rank's slot of a piece."""
        key = dtype, number % SLOTS
        views = self._views.get(key)
        if views is None:
            start = HEADER + key[1] * PIECE
            with torch.inference_mode(False):  # or calls outside of this mode could not write there
                views = [torch.frombuffer(part.bytes[start : start + PIECE], dtype=dtype) for part in self._segments]
            self._views[key] = views
        return views


_groups: weakref.WeakSet[SharedGroup] = weakref.WeakSet()


def _leave(own: Segment, todo: threading.Event) -> None:
    own.leave()
    todo.set()


def _finish_calls(reference: Any, todo: threading.Event) -> None:
    """Finish calls as long as the group exists: the work of its thread. `reference`: weak, so that the thread keeps no
    group alive."""
    with suppress(AttributeError):  # torch without OpenMP
        ctypes.CDLL(None).omp_set_num_threads(1)  # of this thread: a team of its own would take the ranks' cores
    while True:
        todo.wait()
        group = reference()
        if group is None:
            return
        with torch.no_grad():
            group.finish_oldest()
        del group


@atexit.register
def _wait_until_idle() -> None:
    """Wait until no thread of a group copies: Python would end such a thread inside torch, which aborts the process."""
    until = time.monotonic() + IDLE_LIMIT
    while any(group.pid == os.getpid() and not group.is_idle for group in _groups) and time.monotonic() < until:
        time.sleep(0.001)

"""Python's signal handlers wait until a collective in shared memory is over, as they do while gloo's C++ code runs.

A handler that interrupts a collective may make another, as a trainer does that saves a checkpoint when Slurm asks for
it. The second would wait for the first, and the first for the handler. The gradients of DDP are one exchange from the
first bucket to the last: other ranks need this one for the rest of it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what functions of `signal` call, also for who has imported them before
import functools
import signal
import threading
from collections import deque
from contextlib import suppress
from typing import Any, Callable, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])
_depth = [0]
"""Calls that the main thread is in."""
is_exchanging = [False]
"""True from the first bucket of DDP that shared memory takes until the last one is finished."""
_waiting: deque[tuple[Any, int, Any]] = deque()
"""Handlers to call, with their arguments."""


def _is_held() -> bool:
    return bool(_depth[0]) or (is_exchanging[0] and torch._C._current_graph_task_id() != -1)


class _Handler:
    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: Any) -> None:
        _waiting.append((self.handler, number, frame))
        _call_waiting()


def _call_waiting() -> None:
    while _waiting and not _is_held():
        handler, number, frame = _waiting.popleft()
        handler(number, frame)


def uninterrupted(function: Function) -> Function:
    """Let signal handlers wait until the function returns or raises."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != threading.main_thread().ident:  # which alone calls handlers
            return function(*args, **kwargs)
        _depth[0] += 1
        try:
            return function(*args, **kwargs)
        finally:
            _depth[0] -= 1
            _call_waiting()

    return call  # type: ignore[return-value]


@functools.lru_cache(maxsize=None)
def watch_handlers() -> None:
    """Wrap the handlers that there are, and those to come. `signal.getsignal` still returns the script's own."""
    set_handler, get_handler = _signal.signal, _signal.getsignal

    def unwrap(handler: Any) -> Any:
        return handler.handler if isinstance(handler, _Handler) else handler

    def set_wrapped(number: int, handler: Any) -> Any:
        return unwrap(set_handler(number, _Handler(handler) if callable(handler) else handler))

    _signal.signal = set_wrapped
    _signal.getsignal = lambda number: unwrap(get_handler(number))
    with suppress(ValueError):  # another thread than the main one makes the group
        for number in signal.valid_signals():
            if callable(handler := get_handler(number)):
                set_wrapped(number, handler)

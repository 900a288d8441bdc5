"""Child processes that end with the agent."""

from __future__ import annotations

import functools
from typing import Any, Callable

_PDEATHSIG = 1


@functools.lru_cache(maxsize=None)
def _prctl() -> Any:
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):  # a Python without ctypes, or no Linux
        return None


def end_with_parent(number: int) -> Callable[[], None]:
    """A preexec_fn: the kernel sends this signal to the child when the thread that started it ends."""
    prctl = _prctl()  # nothing may be imported between fork and exec

    def set_signal() -> None:
        if prctl is not None:
            prctl(_PDEATHSIG, int(number))

    return set_signal

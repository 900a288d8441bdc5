"""Child processes that do not outlive the agent."""

from __future__ import annotations

import functools
from typing import Any, Callable

_PDEATHSIG = 1


@functools.lru_cache(maxsize=None)
def _prctl() -> Any:
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):  # a Python without ctypes, a kernel that isn't Linux
        return None


def end_with_parent(number: int) -> Callable[[], None]:
    """A preexec_fn that has the kernel send this signal to the child when the thread that started it is gone."""
    prctl = _prctl()  # between fork and exec nothing may be imported

    def ask_kernel() -> None:
        if prctl is not None:
            prctl(_PDEATHSIG, int(number))

    return ask_kernel

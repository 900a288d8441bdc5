"""Wait until the threads in which PyTorch runs gloo's collectives sleep: one may mark a collective as done before it
notes its end for a profiler, and before it releases its tensors."""

from __future__ import annotations

import os
import time

NAME = b"pt_gloo_runloop\n"
LIMIT = 1.0


def wait_for_gloo() -> None:
    """Wait until all threads of gloo sleep, at most `LIMIT` seconds."""
    threads = [f"/proc/self/task/{thread}" for thread in os.listdir("/proc/self/task")]
    threads = [path for path in threads if read_bytes(f"{path}/comm") == NAME]
    until, idle = time.monotonic() + LIMIT, 0
    while threads and idle < 2 and time.monotonic() < until:
        time.sleep(0.001)  # releases the GIL: a thread that waits for it can take it, and then counts as running
        idle = idle + 1 if all(is_asleep(path) for path in threads) else 0


def is_asleep(thread: str) -> bool:
    """True if the thread sleeps or has ended. `thread`: its path in /proc."""
    return read_bytes(f"{thread}/stat").rpartition(b")")[2].split()[:1] in ([], [b"S"])


def read_bytes(path: str) -> bytes:
    """Return the beginning of a file in /proc; empty if the thread has ended."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(4096) or b""
    except OSError:  # the thread has ended
        return b""

"""Runs on a host: measures memory copies and matrix products, to a few percent.

Argv: how many cores it may use, seconds in all. Stdout: `memory BYTES/S HOW`, `fp32 FLOP/S HOW`, `bf16 FLOP/S HOW`,
`none WHY`. Python 3.8, standard library, and torch or numpy where they are.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_ROUND = 0.25
"""Seconds for one measurement."""


def say(what: str, figure: float, how: str) -> None:
    os.write(1, f"{what} {figure:.0f} {how}\n".encode())


def copy_speed(cores: int) -> tuple[float, int]:
    """Bytes per second, read and written, by one process per core, at most sixteen."""
    size, workers = 48 << 20, max(1, min(cores, 16))
    usable = available_memory()
    if usable is not None:
        workers = max(1, min(workers, usable // (size * 6)))
        if usable < size * 6:
            return 0.0, 0
    may_use = sorted(os.sched_getaffinity(0))
    readers = []
    for index in range(workers):
        reader, writer = os.pipe()
        if os.fork() == 0:
            try:
                os.sched_setaffinity(0, {may_use[index * len(may_use) // workers]})
                os.write(writer, f"{copy_alone(size):.0f}".encode())
            finally:
                os._exit(0)
        os.close(writer)
        readers.append(reader)
    total = 0.0
    for reader in readers:
        total += float(os.read(reader, 64) or b"0")
        os.close(reader)
    for _ in readers:
        os.wait()
    return total, workers


def copy_alone(size: int) -> float:
    source, target = bytearray(b"x") * size, bytearray(size)
    target[:] = source  # allocates the pages
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < _ROUND:
        target[:] = source
        count += 1
    return 2 * size * count / (time.perf_counter() - started)


def available_memory() -> int | None:
    try:
        with open("/proc/meminfo") as file:  # noqa: PTH123
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def product_speed(make: Callable[[int], Any], multiply: Callable[[Any], Any], deadline: float) -> float | None:
    """Operations per second, with square matrices as large as the time allows."""
    size = 256
    while True:
        matrix = make(size)
        multiply(matrix)
        started = time.perf_counter()
        multiply(matrix)
        took = max(1e-6, time.perf_counter() - started)
        if size >= 2048 or took * 8 * 3 > _ROUND or time.monotonic() > deadline:
            break
        size *= 2
    count, took, started = 1, took, time.perf_counter()
    while time.perf_counter() - started < _ROUND and time.monotonic() < deadline:
        once = time.perf_counter()
        multiply(matrix)
        # The best: other programs can only make it slower.
        took = min(took, time.perf_counter() - once)
        count += 1
    return 2 * size**3 / took


def main() -> None:
    cores, seconds = int(sys.argv[1]), float(sys.argv[2])
    deadline = time.monotonic() + seconds
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(seconds) + 3)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(cores)
    speed, workers = copy_speed(cores)
    if workers:
        say("memory", speed, f"by {workers} processes" if workers > 1 else "by one process")
    else:
        os.write(1, b"none too little free memory to measure how fast it is\n")
    try:
        multiply_matrices(deadline)
    except ImportError:
        os.write(1, b"none neither torch nor numpy to multiply matrices with\n")


def multiply_matrices(deadline: float) -> None:
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]  # there or not
    except Exception:  # noqa: BLE001  # a broken installation counts as none
        import numpy  # type: ignore[import-not-found, unused-ignore]

        def filled(size: int) -> Any:
            return numpy.full((size, size), 0.5, dtype=numpy.float32)

        figure = product_speed(filled, lambda matrix: matrix @ matrix, deadline)
        if figure:
            say("fp32", figure, "with numpy")
        return
    torch.set_grad_enabled(False)
    for name, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16)):

        def full(size: int, kind: Any = kind) -> Any:
            return torch.full((size, size), 0.5, dtype=kind)

        figure = product_speed(full, lambda matrix: matrix @ matrix, deadline) if time.monotonic() < deadline else None
        if figure:
            say(name, figure, "with torch")


if __name__ == "__main__":
    main()

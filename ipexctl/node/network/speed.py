"""Measure to a few percent how fast this host computes, and how fast its links to other hosts are.

Actions, and the events that they print:

host     → {"event": "figure", "kind": "memory" | "fp32" | "bf16" | "rounded", "value": per second, "how",
           "is_busy"}, or {"event": "none", "reason"}, one per measurement; {"event": "loading"} before it imports torch
serve    → {"event": "ready", "port": N or null, "reason"}; until the end of stdin
connect  reads lines of SECONDS ADDRESS PORT TOKEN ADDRESS PORT TOKEN …
         → {"event": "result", "number", "round_trip": seconds, "bits": per second} or with "reason", one per target

All figures are short measurements on a machine that others may use, so `is_busy` tells when one may be too low.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any, BinaryIO, Callable, TypedDict

from ipexctl.node.common.answer import Action, Json, answer, emit
from ipexctl.node.common.authenticated_socket import AuthenticatingServer, ProvenLines, connect
from ipexctl.node.common.processes import read_text
from ipexctl.node.common.token_proof import LINK_SPEED
from ipexctl.node.network.imports import extend_search_path
from ipexctl.node.network.ports import parse_order

_ROUND = 0.25
"""Seconds for one measurement."""
_LONG_PRODUCT = 0.01
"""Seconds from which a product is large enough: in shorter ones, starting it counts."""
_PREEMPTED = 1.2
"""Wall-clock time per processor time from which other programs have used this core."""
_PING, _STREAM = b"ping..!\n", b"stream!\n"
"""Messages of equal length: the server sends both back, and after the second one it reads a stream."""
_MOST_BYTES = 256 << 20
"""Bytes of a stream."""


class SmokeRequest(TypedDict):
    """Request of `connect`, and base of the others."""

    lifetime: int
    """Seconds after which the process is killed."""


class SpeedRequest(SmokeRequest):
    """Request to measure this host."""

    cores: int
    """Processors of the host that this account may use."""
    seconds: float
    """Time for all measurements, without the import of torch."""


class LinkServerRequest(SmokeRequest):
    """Request to answer the measurements of other hosts."""

    address: str
    token: str


def limit_lifetime(request: SmokeRequest) -> None:
    """Let the kernel kill this process after the request's lifetime, whatever the process does then."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(request["lifetime"])


def measure_host(request: SpeedRequest, _: BinaryIO) -> Json:
    """Report how fast this host copies memory and multiplies matrices; an event `none` says why a figure is missing."""
    limit_lifetime(request)
    cores, deadline = request["cores"], time.monotonic() + request["seconds"]
    is_loaded = os.getloadavg()[0] >= max(2.0, cores / 4)  # as doctor's activity.load
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # threads that wait for a preempted one would count
    speed, workers = copy_speed(cores)
    if workers:
        how = f"by {workers} processes" if workers > 1 else "by one process"
        emit("figure", kind="memory", value=speed, how=how, is_busy=is_loaded)
    else:
        emit("none", reason="too little memory is free to measure its speed")
    extend_search_path()
    try:
        multiply_matrices(deadline, is_loaded=is_loaded)
    except ImportError:
        emit("none", reason="neither torch nor numpy is installed to multiply matrices")
    return {}


def copy_speed(cores: int) -> tuple[float, int]:
    """Return the bytes per second that processes on different cores read and write, and the number of processes.

    One process per core, at most sixteen, and fewer if little memory is free; none (0) if it does not even suffice for
    one.
    """
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
    """Return the bytes per second that this process reads and writes when it copies blocks of this size."""
    source, target = bytearray(b"x") * size, bytearray(size)
    target[:] = source  # allocates the pages
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < _ROUND:
        target[:] = source
        count += 1
    return 2 * size * count / (time.perf_counter() - started)


def available_memory() -> int | None:
    """Return the bytes that programs can get without swapping; None if the kernel does not tell."""
    for line in read_text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def multiply_matrices(deadline: float, *, is_loaded: bool) -> None:
    """Report the speed of products in float32, in bf16, and in float32 rounded to bf16; the last two with torch alone.

    The time that importing torch takes does not count. Raises an ImportError without torch and numpy.
    """
    left = deadline - time.monotonic()
    emit("loading")
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]  # may be missing
    except Exception:  # noqa: BLE001  # a broken installation counts as none
        import numpy  # type: ignore[import-not-found, unused-ignore]

        emit_product("fp32", "numpy", lambda size: numpy.full((size, size), 0.5, numpy.float32), deadline, is_loaded)
        return
    torch.set_grad_enabled(False)
    deadline = time.monotonic() + left

    def matrix_of(dtype: Any) -> Callable[[int], Any]:
        return lambda size: torch.full((size, size), 0.5, dtype=dtype)

    emit_product("fp32", "torch", matrix_of(torch.float32), deadline, is_loaded)
    if time.monotonic() < deadline:
        emit_product("bf16", "torch", matrix_of(torch.bfloat16), deadline, is_loaded)
    if time.monotonic() < deadline and hasattr(torch, "set_float32_matmul_precision"):
        torch.set_float32_matmul_precision("medium")  # bf16 inputs, in torch 2.3 or newer on CPUs
        emit_product("rounded", "torch", matrix_of(torch.float32), deadline, is_loaded)


def emit_product(kind: str, library: str, make: Callable[[int], Any], deadline: float, is_loaded: bool) -> None:
    """Report the operations per second of processor time on one core, for square matrices that take long enough.

    `make`: returns a matrix of a size.
    """
    size = 256
    while True:
        matrix = make(size)
        matrix @ matrix  # the first product sets up the library
        took = processor_time(matrix)
        if size >= 2048 or took >= _LONG_PRODUCT or time.monotonic() > deadline:
            break
        size *= 2
    started, used = time.monotonic(), time.process_time()
    while time.monotonic() - started < _ROUND and time.monotonic() < deadline:
        took = min(took, processor_time(matrix))  # take the best, because other programs can only slow it down
    waited = time.monotonic() - started > _PREEMPTED * (time.process_time() - used)
    how = f"with {library} on one core"
    emit("figure", kind=kind, value=2 * size**3 / took, how=how, is_busy=is_loaded or waited)


def processor_time(matrix: Any) -> float:
    """Return the seconds of processor time that multiplying the matrix by itself takes."""
    started = time.process_time()
    matrix @ matrix
    return max(1e-6, time.process_time() - started)


class LinkServer(AuthenticatingServer):
    """Sends each message back; after `_STREAM`, reads a stream to its end and sends its bits per second."""

    def handle(self, lines: ProvenLines) -> None:
        """Serve one measurement: send messages back, then read a stream and send how fast it came. A client that ends
        early gets no answer."""
        conn = lines.conn
        conn.settimeout(2)
        with conn.makefile("rb") as stream:
            while (message := stream.read(len(_STREAM))) != _STREAM:
                if not message:
                    return
                conn.sendall(message)
            conn.sendall(message)
            count, buffer = 0, bytearray(1 << 20)
            started = time.perf_counter()
            while received := stream.readinto(buffer):
                count += received
        conn.sendall(f"{count * 8 / max(1e-6, time.perf_counter() - started):.0f}\n".encode())


def serve(request: LinkServerRequest, stdin: BinaryIO) -> Json:
    """Answer the measurements of other hosts until stdin ends. The event `ready` has the port, or why there is none."""
    limit_lifetime(request)
    try:
        server = LinkServer(request["address"], request["token"], LINK_SPEED)
    except OSError as error:
        emit("ready", port=None, reason=error.strerror or str(error))
        return {}
    emit("ready", port=server.port, reason="")
    server.run(stdin.fileno())
    return {}


def measure_link(address: str, port: int, token: str, seconds: float) -> Json:
    """Return the median seconds of a round trip, and the bits per second of a stream of at most `seconds`.

    Raises an OSError or a ValueError if the server is lost or does not have the token.
    """
    conn = connect(address, port, token, LINK_SPEED, patience=1.0, reply_time=1.0).conn
    with conn, conn.makefile("rb") as stream:
        conn.settimeout(1 + seconds)
        trips: list[float] = []
        started = time.perf_counter()
        while len(trips) < 200 and time.perf_counter() - started < min(0.1, seconds):
            trips.append(round_trip(conn, stream, _PING))
        round_trip(conn, stream, _STREAM)
        chunk, sent = b"\0" * (1 << 20), 0
        started = time.perf_counter()
        while sent < _MOST_BYTES and time.perf_counter() - started < seconds:
            conn.sendall(chunk)
            sent += len(chunk)
        conn.shutdown(socket.SHUT_WR)
        return {"round_trip": sorted(trips)[len(trips) // 2], "bits": float(stream.readline(64))}


def round_trip(conn: socket.socket, stream: BinaryIO, message: bytes) -> float:
    """Return the seconds until a message has come back. Raises a ConnectionError if it does not."""
    started = time.perf_counter()
    conn.sendall(message)
    if stream.read(len(message)) != message:
        raise ConnectionError("the connection was closed")
    return time.perf_counter() - started


def measure_links(request: SmokeRequest, stdin: BinaryIO) -> Json:
    """Measure the links that each line of stdin names, and report a result for each; stop when stdin ends."""
    limit_lifetime(request)
    for line in stdin:
        all_seconds, targets = parse_order(line)
        deadline = time.monotonic() + all_seconds
        # One after the other, because all targets share this host's link.
        seconds = min(0.5, max(0.03, 0.7 * all_seconds / max(1, len(targets))))
        for number, (address, port, token) in enumerate(targets):
            try:
                if time.monotonic() > deadline:
                    result = {"reason": "there was no time left for it"}
                else:
                    result = measure_link(address, port, token, seconds)
            except (OSError, ValueError) as error:
                result = {"reason": getattr(error, "strerror", None) or str(error)}
            emit("result", number=number, **result)
    return {}


def main(action: str) -> int:
    """Answer a call of `network.speed`: measure this host, serve measurements, or measure links."""
    actions: dict[str, Action] = {"host": measure_host, "serve": serve, "connect": measure_links}
    return answer(actions[action])

"""Run one rank of a small all-reduce, and check the sum. `verify.py` starts two with the environment's Python.

Results and failures are lines of stdout that begin with `MARK`, because mpirun merges the output of its ranks.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from typing import Any

from ipexctl.node.common.json_records import parse_json
from ipexctl.node.common.mpi import each_of
from ipexctl.node.common.processes import end_with_parent

MARK = "@ipexctl-rank "
"""Prefix of a line with a rank's result or failure (`records.Detail`) as JSON."""
RANK = (*each_of(lambda mpi: mpi.number), "RANK")
LOCAL = (*each_of(lambda mpi: mpi.local_number), "LOCAL_RANK")
"""Variables in which each MPI gives a rank its number, and its number on this host."""
SIZES = (1024, 1 << 20)
"""Numbers in a tensor: 4 KB and 4 MB."""


class VerificationError(Exception):
    """Raised if the all-reduce is wrong. The text is for people, `kind` for programs."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.detail = {"kind": kind, "fields": {"what": text}}


def first_of(names: tuple[str, ...], default: str | None = None) -> str:
    """Return the first of these variables that is set, else the default.

    Raises a VerificationError if there is neither: the mpirun is of another MPI.
    """
    for name in names:
        if os.environ.get(name):
            return os.environ[name]
    if default is None:
        raise VerificationError("wrong-mpi", f"mpirun set none of {', '.join(names)}, so this rank has no number")
    return default


def reduce_once(torch: Any, dist: Any, rank: int, world: int, size: int) -> float:
    """Return the seconds of one all-reduce. Raises a VerificationError if the sum is wrong."""
    values = torch.ones(size) * (rank + 1)
    began = time.perf_counter()
    dist.all_reduce(values)
    seconds = time.perf_counter() - began
    expected = float(world * (world + 1) // 2)
    low, high = float(values.min()), float(values.max())
    if low != expected or high != expected:
        raise VerificationError(
            "wrong-result", f"the sum over {world} ranks is {low:g} to {high:g} instead of {expected:g}"
        )
    return seconds


def work(backend: str, module: str, world: int) -> None:
    """Join the group, reduce tensors of each size, and report the times. `module`: of the oneCCL bindings."""
    rank = int(first_of(RANK))
    local = first_of(LOCAL, str(rank))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=local, LOCAL_WORLD_SIZE=str(world))
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    if backend == "ccl":
        importlib.import_module(module)
    began = time.perf_counter()
    dist.init_process_group(backend, rank=rank, world_size=world, timeout=timedelta(days=1))
    ready = time.perf_counter() - began
    first = [reduce_once(torch, dist, rank, world, size) for size in SIZES]
    again = [min(reduce_once(torch, dist, rank, world, size) for _ in range(3)) for size in SIZES]
    dist.barrier()
    result = {"rank": rank, "init": ready, "first": first, "again": again}
    write(result)
    # gloo's thread may still have to free the barrier's tensor, which needs the GIL, while destroying the group waits
    # for that thread with the GIL held: a deadlock. Seen with torch 2.5.
    time.sleep(0.5)
    dist.destroy_process_group()


def write(result: dict[str, Any]) -> None:
    """Print a line that `verify.results` reads."""
    sys.stdout.write(f"{MARK}{json.dumps(result)}\n")
    sys.stdout.flush()


def main(options_text: str) -> int:
    """Do the work of one rank, and exit with 1 if it fails. `options_text`: JSON of the backend, the module of the
    bindings, and the number of ranks."""
    backend, module, world = parse_json(options_text)
    end_with_parent(signal.SIGKILL)()  # no rank may keep spinning
    try:
        work(backend, module, world)
    except BaseException as error:  # noqa: BLE001  # with oneCCL, a rank that only raises waits for ever
        traceback.print_exc()
        if isinstance(error, VerificationError):
            write({"detail": error.detail})
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    return 0

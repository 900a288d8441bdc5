"""Runs a script under any launcher; rank 0 appends the time at the end of each optimizer step to a file.

timed_script.py FILE SCRIPT ARGUMENT…
"""

from __future__ import annotations

import os
import runpy
import sys
import time

from torch.optim.optimizer import register_optimizer_step_post_hook

NAMES = {
    "RANK": ("PMI_RANK", "OMPI_COMM_WORLD_RANK"),
    "WORLD_SIZE": ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"),
    "LOCAL_RANK": ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK"),
}

for name, names_of_mpi in NAMES.items():  # torch's variables of a rank, where mpirun has set only its own
    value = next((os.environ[other] for other in names_of_mpi if other in os.environ), None)
    if value is not None:
        os.environ.setdefault(name, value)
if os.environ.get("RANK", "0") == "0":
    times = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    register_optimizer_step_post_hook(lambda *_: os.write(times, b"%.6f\n" % time.monotonic()) and None)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")

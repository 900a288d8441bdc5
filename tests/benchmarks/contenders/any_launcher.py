"""Runs a script under any launcher: sets torch's variables of a rank where mpirun has set only its own.

any_launcher.py SCRIPT ARGUMENT…
"""

from __future__ import annotations

import os
import runpy
import sys

NAMES = {
    "RANK": ("PMI_RANK", "OMPI_COMM_WORLD_RANK"),
    "WORLD_SIZE": ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"),
    "LOCAL_RANK": ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK"),
}

for name, names_of_mpi in NAMES.items():
    value = next((os.environ[other] for other in names_of_mpi if other in os.environ), None)
    if value is not None:
        os.environ.setdefault(name, value)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")

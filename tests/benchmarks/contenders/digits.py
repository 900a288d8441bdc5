"""The digits example under any launcher: where mpirun has named the ranks in words of its own, in torch's words."""

from __future__ import annotations

import os
import runpy
import sys

WORDS = {
    "RANK": ("PMI_RANK", "OMPI_COMM_WORLD_RANK"),
    "WORLD_SIZE": ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"),
    "LOCAL_RANK": ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK"),
}

for name, others in WORDS.items():
    found = next((os.environ[other] for other in others if other in os.environ), None)
    if found is not None:
        os.environ.setdefault(name, found)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")

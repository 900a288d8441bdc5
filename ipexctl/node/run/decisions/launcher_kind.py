"""What messages and decisions say of a launcher."""

from __future__ import annotations

from typing import NamedTuple


class LauncherKind(NamedTuple):
    """Words for the launcher in messages and records."""

    name: str
    """mpirun or srun; empty if ipexctl starts the ranks."""
    program: str
    """Subject of a sentence: mpirun, srun, or the rank."""
    failure: str
    """`Detail.kind` of a launcher that can't be started."""
    fix: str
    in_job: bool
    """True in a Slurm job: the launcher then needs the job's variables, and the run ends with the job."""
    is_hydra: bool = False
    """True for Intel MPI and MPICH, whose SIGTERM may be endless (`supervisor_machine.py: end_launcher`)."""

    @property
    def is_direct(self) -> bool:
        """True if host starters start the ranks, without an mpirun."""
        return not self.name

"""Ranks without an mpirun: the supervisor starts those of node0, and a starter those of each other host. Pure.

The control machine begins the starters over its own sessions, so no node logs in to another and no MPI is needed
(`node/run/host_starter.py`). This suffices for gloo and independent copies; oneCCL and the MPI backend take a rank's
number from an mpirun.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

RankFlavor = Literal["srun", "none"]
"""What starts ranks without an MPI. `srun`: Slurm. `none`: ipexctl itself."""
LaunchFlavor = Literal["intel", "openmpi", "mpich", RankFlavor]


class DirectStart:
    """Needs no words before those of the rank wrapper."""

    flavor: Final[RankFlavor] = "none"
    title: Final = "ipexctl itself"
    started: Final = "started directly"
    why: Final = "a single rank needs no mpirun; --mpi takes one"
    is_preferred: Final = False
    no_logins: Final = "ranks that are started directly need no logins between nodes"
    has_starters: Final = True

    def may_start(self, counts: Mapping[str, int], node0: str, backend: str) -> bool:
        return backend != "mpi" if self.is_single(counts, node0) else backend in ("gloo", "none")

    def is_single(self, counts: Mapping[str, int], node0: str) -> bool:
        """True if the plan has one rank, on node0: it needs no mpirun with any backend."""
        return list(counts.items()) == [(node0, 1)]

    def words(self, counts: Mapping[str, int], hostfile: str, *, is_crowded: bool) -> tuple[str, ...]:
        del counts, hostfile, is_crowded
        return ()


DIRECT: Final = DirectStart()

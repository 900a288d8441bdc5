"""mpirun over ssh, and the single rank that needs no mpirun. Pure.

Over ssh node0 logs in to the other nodes, and the control machine to all of them: the way that is taken unless
something speaks for another. A single rank on node0 is started by the supervisor itself, over whichever starter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.starters.starter import RankStarter


RankFlavor = Literal["srun", "none"]
"""What starts ranks without an MPI. `srun`: Slurm does. `none`: the supervisor itself, a single rank."""


@dataclass(frozen=True, slots=True)
class MpirunOverSsh:
    """The nodes of a hostfile."""

    name: str = "ssh"
    uses_ssh: bool = True
    no_logins: str = ""
    remote_shell: str = ""
    ranks: RankStarter | None = None
    waits: bool = False

    def job(self, environ: Mapping[str, str]) -> str:
        del environ
        return ""

    def job_title(self, job: str) -> str:
        return f"job {job}"

    def seconds_left(self, job: str) -> int | None:
        del job
        return None

    def announcement(self, environ: Mapping[str, str]) -> str:
        del environ
        return ""


OVER_SSH: Final = MpirunOverSsh()


@dataclass(frozen=True, slots=True)
class SingleRank:
    """Its words are those of the rank wrapper."""

    flavor: RankFlavor = "none"
    title: str = "ipexctl itself"
    started: str = "started directly"
    why: str = "a single rank needs no mpirun; --mpi takes one"

    def may_start(self, counts: Mapping[str, int], node0: str, backend: str) -> bool:
        return list(counts.items()) == [(node0, 1)] and backend != "mpi"

    def words(self, counts: Mapping[str, int], hostfile: str, *, is_crowded: bool) -> tuple[str, ...]:
        del counts, hostfile, is_crowded
        return ()

    def hostfile(self, counts: Mapping[str, int]) -> str:
        del counts
        return ""


SINGLE_RANK: Final = SingleRank()

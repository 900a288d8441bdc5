"""Slurm's srun, within a job: one step starts all ranks, or one daemon of an mpirun on each node. Pure.

Nobody logs in to a node, and trust is not needed. The step runs beside all others and has the job's memory. It binds
nothing, because the wrappers bind by the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ipexctl.hosts.batch_systems import job_name, job_number
from ipexctl.node.common.slurm import ask, seconds_left, show_time_left
from ipexctl.starters.direct import RankFlavor
from ipexctl.starters.starter import RankStarter
from ipexctl.text import printable

_IN_PLACE_OF_SSH: Final = """\
#!/bin/sh
# In place of the ssh of mpirun on node0: its daemons are started in steps of Slurm's job.
while case $1 in -*) ;; *) false ;; esac; do shift; done
node=$1
shift
exec srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" --mem=0 --cpu-bind=none --mpi=none --export=ALL \\
    --quiet --job-name=ipexctl /bin/sh -c "$*"
"""


@dataclass(frozen=True, slots=True)
class SrunStep:
    """One step of the job that starts all ranks of a plan over several hosts."""

    flavor: RankFlavor = "srun"
    title: str = "Slurm's srun"
    started: str = "started by Slurm's srun"
    why: str = "ranks over gloo need no MPI, and within Slurm's job it starts them"
    is_preferred: bool = True
    no_logins: str = "Slurm starts all on the nodes"
    has_starters: bool = False

    def may_start(self, counts: Mapping[str, int], node0: str, backend: str) -> bool:
        del node0
        return len(counts) > 1 and backend not in ("ccl", "mpi")

    def words(self, counts: Mapping[str, int], hostfile: str, *, is_crowded: bool) -> tuple[str, ...]:
        """Words of srun. Without --cpus-per-task: it implies --exact, and the step would get only CPUs that Slurm
        chooses, fewer than the plan's where they don't divide evenly. So it has all CPUs of the job, from which the
        plan was made."""
        options = (
            *("srun", "--overlap", f"--nodes={len(counts)}", f"--ntasks={sum(counts.values())}"),
            # Rank N is on line N of the file, whatever order Slurm has for the nodes.
            *("--distribution=arbitrary", f"--nodelist={hostfile}", "--mem=0", "--cpu-bind=none", "--mpi=none"),
            # When a rank or node fails, the supervisor ends the others, and not before their last lines have come.
            *(
                "--no-kill",
                "--kill-on-bad-exit=0",
                "--wait=0",
                "--input=none",
                "--export=ALL",
                "--quiet",
                "--job-name=ipexctl",
            ),
        )
        return (*options, "--overcommit") if is_crowded else options


STEP: Final = SrunStep()


@dataclass(frozen=True, slots=True)
class WithinJob:
    name: str = "srun"
    uses_ssh: bool = False
    no_logins: str = (
        "trust is not needed over srun, because Slurm starts everything on the nodes; for ssh between them: "
        "ipexctl trust --transport ssh"
    )
    remote_shell: str = field(default=_IN_PLACE_OF_SSH, repr=False)
    ranks: RankStarter = STEP
    waits: bool = False

    def job(self, environ: Mapping[str, str]) -> str:
        return job_number(environ)

    def job_title(self, job: str) -> str:
        return f"Slurm job {printable(job)}"

    def seconds_left(self, job: str) -> int | None:
        return seconds_left(ask(show_time_left(job)))

    def announcement(self, environ: Mapping[str, str]) -> str:
        return f"over srun, in {self.job_title(job_name(environ))} (--transport ssh logs in instead)"


OVER_SRUN: Final = WithinJob()

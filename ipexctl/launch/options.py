"""The options of a launch that the command line, ipexctl.toml and playbooks have: ranks, cores, backend, MPI.

`option_declaration.py` says what follows from a declaration. A rule of the plan reads the value from `LaunchOptions`
(`launch/request.py`), which has these fields and those that are made from a call. Checks beside the limits, such as the
names of `--mpi`, are in `launch/overrides.py: check_options`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ipexctl.option_declaration import declare

_MOST_RANKS: Final = 100_000
CCL_WORKERS: Final = 1
"""Of a rank over ccl, unless the call, an accelerate config or a variable says otherwise."""
_RANKS, _COMMUNICATION, _ENDING = "Ranks and cores", "Communication", "Ending"


# Without eq and repr, which the requests made from it have: it is made at each start.
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RankOptions:
    """Options of the ranks and of their connections."""

    n: int | None = declare(
        "-n N",
        "Ranks in total, spread evenly over the hosts (default: --ppn on every host).",
        panel=_RANKS,
        least=1,
        most=_MOST_RANKS,
    )
    ppn: int | None = declare(
        "--ppn N",
        "Ranks per host (default: hostfile slots, else one per NUMA node).",
        panel=_RANKS,
        least=1,
        most=_MOST_RANKS,
    )
    bind: Literal["auto", "socket", "numa", "cores", "none"] = declare(
        "--bind", "Binding of ranks to cores (default: {default}).", "auto", panel=_RANKS
    )
    omp: int | None = declare(
        "--omp N",
        "OMP_NUM_THREADS of a rank (default: its cores minus oneCCL workers).",
        panel=_RANKS,
        least=1,
        most=_MOST_RANKS,
    )
    ccl_workers: int | None = declare(
        "--ccl-workers N",
        f"oneCCL worker threads per rank; 0 for none (default: {CCL_WORKERS}).",
        panel=_RANKS,
        least=0,
        most=_MOST_RANKS,
    )
    nice: int = declare(
        "--nice N",
        "Niceness of the ranks, 0 to 19, for machines that others use (default: {default}).",
        0,
        panel=_RANKS,
        least=0,
        most=19,
        by_wrapper=True,
        in_sh="nice -n {}",
        lost_in=("accelerate", "mpijob"),
        consequence="the ranks have the usual priority",
    )
    backend: Literal["auto", "ccl", "gloo", "mpi", "none"] = declare(
        "--backend",
        "Backend of torch.distributed; none for independent copies (default: {default}).",
        "auto",
        panel=_COMMUNICATION,
    )
    allreduce: Literal["auto", "shared", "backend"] = declare(
        "--allreduce",
        "Sum of gradients: shared memory on each host, or the backend's own way (default: {default}).",
        "auto",
        panel=_COMMUNICATION,
    )
    wire: Literal["fp32", "bf16", "int8"] = declare(
        "--wire",
        "Gradients between hosts: as they are, or in half or a quarter of the bytes, rounded (default: {default}).",
        "fp32",
        panel=_COMMUNICATION,
        lost_in=("accelerate", "mpijob", "shell", "slurm", "trainjob"),
        consequence="gradients go between hosts as they are",
    )
    mpi: str = declare(
        "--mpi NAME|PATH",
        "MPI: auto, intel, openmpi, mpich, or the path of an mpirun (default: {default}).",
        "auto",
        panel=_COMMUNICATION,
    )
    master_port: int | None = declare(
        "--master-port P",
        "MASTER_PORT of the ranks (default: a free port).",
        panel=_COMMUNICATION,
        least=1,
        most=(1 << 16) - 1,
    )
    time_limit: float | None = declare(
        "--time-limit S",
        "Stop the run after S seconds (default: no limit).",
        panel=_ENDING,
        least=1,
        lost_in=("accelerate", "shell"),
        consequence="nothing ends it",
    )

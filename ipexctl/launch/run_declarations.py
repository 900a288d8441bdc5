"""Declare the options of a run: flag, help and limits of each field of `RunOptions` that users may set.

`node/common/run_options.py` has their types and defaults. The command line, config files, playbooks and
`Cluster.run` all read these declarations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ipexctl.node.common.mpi import MPIS
from ipexctl.node.common.run_options import RunOptions
from ipexctl.option_declaration import PROJECT, Declaration, SyncOptions, TypedCall, declarations_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import TypedDict

    from ipexctl.node.common.run_options import (
        AskedAllReduce,
        AskedBackend,
        AskedLauncher,
        Autocast,
        Bind,
        Fp32Math,
        GpuCode,
        HalfMath,
        OnHang,
        OnNan,
        ShareWeights,
        Wire,
    )

_MOST_RANKS: Final = 100_000
CCL_WORKERS: Final = 1
"""oneCCL workers of a rank over ccl, unless the command, an accelerate config or a variable says otherwise."""
_RANKS, _COMMUNICATION, _ENVIRONMENT = "Ranks and cores", "Communication", "Environment"
_WATCHING, _ENDING = "Watching", "Ending"

DECLARED: Final[Mapping[str, Declaration]] = {
    "n": Declaration(
        "-n N",
        "Ranks in total, spread evenly over the hosts (default: --ppn on every host).",
        panel=_RANKS,
        minimum=1,
        maximum=_MOST_RANKS,
    ),
    "ppn": Declaration(
        "--ppn N",
        "Ranks per host (default: hostfile slots, else one per NUMA node).",
        panel=_RANKS,
        minimum=1,
        maximum=_MOST_RANKS,
    ),
    "oversubscribe": Declaration(
        "--oversubscribe", "Allow more ranks than a host has cores or memory for.", panel=_RANKS
    ),
    "bind": Declaration("--bind", "Binding of ranks to cores (default: {default}).", panel=_RANKS),
    "omp": Declaration(
        "--omp N",
        "OMP_NUM_THREADS of a rank (default: its cores minus oneCCL workers).",
        panel=_RANKS,
        minimum=1,
        maximum=_MOST_RANKS,
    ),
    "ccl_workers": Declaration(
        "--ccl-workers N",
        f"oneCCL worker threads per rank; 0 for none (default: {CCL_WORKERS}).",
        panel=_RANKS,
        minimum=0,
        maximum=_MOST_RANKS,
    ),
    "backend": Declaration(
        "--backend",
        "Backend of torch.distributed; none for independent copies (default: {default}).",
        panel=_COMMUNICATION,
    ),
    "allreduce": Declaration(
        "--allreduce",
        "Make collectives in shared memory on each host, or with the backend (default: {default}).",
        panel=_COMMUNICATION,
    ),
    "wire": Declaration(
        "--wire",
        "Send gradients between hosts as they are, or rounded to half or a quarter of the bytes (default: {default}).",
        panel=_COMMUNICATION,
    ),
    "share_weights": Declaration(
        "--share-weights",
        "Keep one copy a host of frozen parameters, and send none that all ranks hold alike (default: {default}).",
        panel=_COMMUNICATION,
    ),
    "gpu_code": Declaration(
        "--gpu-code",
        "Place on CPUs what a script places on GPUs; assume: also say that there are GPUs (default: {default}).",
        panel=_RANKS,
    ),
    "fp32_math": Declaration(
        "--fp32-math",
        "Multiply fp32 matrices as they are, or with inputs rounded to bf16, for AMX (default: {default}).",
        panel=_RANKS,
    ),
    "half_math": Declaration(
        "--half-math",
        "Multiply bf16 and fp16 in fp32 where that is faster, or leave them to torch (default: {default}).",
        panel=_RANKS,
    ),
    "fast": Declaration(
        "--fast",
        "Train an unchanged script faster: --autocast bf16 if all processors have it, and --fused-optimizer.",
        panel=_RANKS,
    ),
    "autocast": Declaration(
        "--autocast",
        "Run models under autocast, as mixed precision does; auto: with --fast (default: {default}).",
        panel=_RANKS,
    ),
    "fused_optimizer": Declaration(
        "--fused-optimizer",
        "Step Adam, AdamW, SGD and Adagrad with one kernel, unless the script says otherwise.",
        panel=_RANKS,
    ),
    "mpi": Declaration(
        "--mpi NAME|PATH",
        f"MPI: auto, {', '.join(mpi.flavor for mpi in MPIS)}, or the path of an mpirun (default: {{default}}).",
        panel=_COMMUNICATION,
    ),
    "master_port": Declaration(
        "--master-port P",
        "MASTER_PORT of the ranks (default: a free port).",
        panel=_COMMUNICATION,
        minimum=1,
        maximum=(1 << 16) - 1,
    ),
    "time_limit": Declaration(
        "--time-limit S",
        "Stop the run after S seconds (default: no limit).",
        panel=_ENDING,
        minimum=1,
    ),
    "launcher": Declaration(
        "--launcher",
        "Start the ranks with mpirun on node0, or direct: without MPI (default: {default}).",
        panel=_COMMUNICATION,
    ),
    **declarations_of(SyncOptions),
    "env": Declaration("--env NAME", "Environment of the ranks (default: {default}).", panel=_ENVIRONMENT, kind="env"),
    "python": Declaration(
        "--python PATH", "Python on every host, instead of an environment.", panel=_ENVIRONMENT, kind="path"
    ),
    "setup": Declaration(
        "--setup FILE",
        "File on every host to source in bash; ranks keep its variables, ulimit and umask.",
        panel=_ENVIRONMENT,
        kind="path",
    ),
    "slurm_env": Declaration(
        "--slurm-env",
        "Give ranks Slurm's variables (SLURM_PROCID …), for scripts that read only those.",
        panel=_ENVIRONMENT,
    ),
    "cwd": Declaration(
        "--cwd DIR", "Project directory (default: found from SCRIPT upward).", panel=PROJECT, kind="directory"
    ),
    "sync": Declaration(
        "--sync/--no-sync", "Sync the project to the hosts before the launch (default: --sync).", panel=PROJECT
    ),
    "max_restarts": Declaration(
        "--max-restarts N",
        "Restart the run up to N times after a rank failed (default: {default}).",
        panel=_ENDING,
        minimum=0,
    ),
    "keep_going": Declaration(
        "--keep-going",
        "Let the other copies of --backend none run on if one fails; --max-restarts then counts for each copy.",
        panel=_ENDING,
    ),
    "checkpoint": Declaration(
        "--checkpoint PATH",
        "File or directory; before each start, every host gets its newest copy (default: none).",
        panel=_ENDING,
    ),
    "min_hosts": Declaration(
        "--min-hosts N",
        "After a loss, restart on the hosts that answer, at least N (default: on all).",
        panel=_ENDING,
        minimum=1,
        maximum=_MOST_RANKS,
    ),
    "hang_after": Declaration(
        "--hang-after S",
        "Report a hang after S seconds without output, 0 for never (default: {default}).",
        panel=_ENDING,
        minimum=0,
    ),
    "exclusive": Declaration(
        "--exclusive",
        "Start only if no other run of ipexctl, of any account, is on the hosts.",
        panel=_RANKS,
    ),
    "wait": Declaration(
        "--wait S",
        "Wait up to S seconds until no other run is on the hosts (default: start anyway).",
        panel=_RANKS,
        minimum=0,
    ),
    "on_hang": Declaration(
        "--on-hang",
        "What to do when a run hangs: report it, dump all stacks, or dump them and stop (default: {default}).",
        panel=_ENDING,
    ),
    "on_nan": Declaration(
        "--on-nan",
        "What to do when a rank's loss is nan: report it, or stop the run (default: {default}).",
        panel=_ENDING,
    ),
    "meter": Declaration(
        "--meter/--no-meter", "Count optimizer steps and samples in the ranks (default: --meter).", panel=_WATCHING
    ),
    "profile": Declaration(
        "--profile",
        "Profile two optimizer steps of each rank: where their time goes, and what the cores could do.",
        panel=_WATCHING,
    ),
    "tag": Declaration(
        "--tag TEXT",
        "Text that ipexctl ps shows for the run.",
        panel=_WATCHING,
    ),
}


if TYPE_CHECKING:

    class RunKeywords(TypedDict, total=False):
        """The options above as keywords of `Cluster.run`, for type checkers: `IPEXCTL_GOLDEN=write` writes them."""

        n: int | None
        ppn: int | None
        oversubscribe: bool
        bind: Bind
        omp: int | None
        ccl_workers: int | None
        backend: AskedBackend
        allreduce: AskedAllReduce
        wire: Wire
        share_weights: ShareWeights
        gpu_code: GpuCode
        fp32_math: Fp32Math
        half_math: HalfMath
        fast: bool
        autocast: Autocast
        fused_optimizer: bool
        mpi: str
        master_port: int | None
        time_limit: float | None
        launcher: AskedLauncher
        exclude: Sequence[str]
        include: Sequence[str]
        data: Sequence[str]
        allow_big: bool
        env: str
        python: str | None
        setup: str | None
        slurm_env: bool
        cwd: str | Path | None
        sync: bool
        max_restarts: int
        keep_going: bool
        checkpoint: str | None
        min_hosts: int | None
        hang_after: float
        exclusive: bool
        wait: float | None
        on_hang: OnHang
        on_nan: OnNan
        meter: bool
        profile: bool
        tag: str | None


def changed_options(asked: RunOptions) -> Iterator[tuple[str, Declaration, Any]]:
    """Yield name, declaration and value of each option that does not have its default."""
    for name, declaration in DECLARED.items():
        value = getattr(asked, name)
        if value != RunOptions._field_defaults[name]:
            yield name, declaration, value


def call_of(asked: RunOptions) -> TypedCall:
    """Return the command `ipexctl run` that asks for the same, for a run whose typed words are not known here: a
    program or a playbook began it, or somebody else, in whose records alone the words are.
    """
    options = list[str]()
    for _, declaration, value in changed_options(asked):
        on, _, off = declaration.flag.partition("/")
        if isinstance(value, bool):
            options.append(on if value else off)
        else:
            for part in value if isinstance(value, tuple) else (value,):
                options += [on, f"{part:g}" if isinstance(part, float) else str(part)]
    exports = (export.name if export.value is None else f"{export.name}={export.value}" for export in asked.exports)
    repeated = {
        "-x": exports, "--with": asked.packages, "-r": asked.requirements, "--extra": asked.extra,
        "--group": asked.group, "--build": asked.builds,
        "--stack": filter(None, (asked.stack,)), "--torch": filter(None, (asked.torch,)),
    }  # fmt: skip
    for option, values in repeated.items():
        for value in values:
            options += [option, value]
    options += ["--install"] if asked.install else []
    if asked.kind == "module":
        return TypedCall((*options, *asked.program[:2]), asked.argv[1:])
    return TypedCall(tuple(options), asked.program)

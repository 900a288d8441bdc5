"""The other variables of a rank: Python's, Hugging Face's, its environment's, and those taken away. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.launch.context import each_host
from ipexctl.launch.plan import Setting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.launch.context import LaunchContext, NodeLayout, Said

RANK_NAMES: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""What each rank is told of itself; nobody else may set them."""
_STRAYS: Final = (
    "NODE_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_PROCID", "SLURM_LOCALID",
    "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
)  # fmt: skip
"""Left by another launcher, a script would take its rank from them."""
_THREADS: Final = ("OMP_", "KMP_", "GOMP_", "MKL_NUM_THREADS")
_PYTHON: Final = ("PYTHONPATH", "PYTHONHOME")
_TUNING: Final = ("CCL_", "FI_", "I_MPI_", "OMPI_MCA_", "ONEDNN_", "DNNL_", "ATEN_", "MALLOC_CONF")
"""A site's own settings: good where all hosts have them, and a hang where one rank has another than the next."""
_OF_LAUNCHERS: Final = ("I_MPI_", "HYDRA_", "MPIEXEC_", "PRTE_MCA_", "OMPI_MCA_")


def settings(context: LaunchContext) -> Iterator[Setting]:
    """What goes first: all that other rules set stands against it."""
    yield from _own_rank(context)
    yield from _environment(context)
    yield Setting("PYTHONUNBUFFERED", "1", "a line is seen when it is printed, not when a block is full")
    yield Setting("PYTHONFAULTHANDLER", "1", "a rank that crashes in C code shows where in Python it was")
    yield Setting(
        "TOKENIZERS_PARALLELISM", "false", "tokenizers' own threads would fight with OpenMP's, and warn at every fork"
    )
    yield Setting("ACCELERATE_USE_CPU", "true", "a script that uses accelerate gets CPUs without `accelerate launch`")
    yield Setting("IPEXCTL_BACKEND", context.backend, "for scripts that ask: init_process_group(os.environ[...])")


def strays(context: LaunchContext, chosen: frozenset[str]) -> Iterator[Setting]:
    """What a login or another launcher left behind; `chosen` are set by a rule, or by the user, and stay."""
    for name in _STRAYS:
        if name not in chosen:
            yield Setting(name, None, "another launcher's: a script that finds it would take it for its own rank")
    of_logins = sorted({name for node in context.nodes for name in node.facts.environment.variables} - chosen)
    for name in of_logins:
        values = {node.facts.environment.variables.get(name) for node in context.nodes}
        if name.startswith(_TUNING) and len(values) == 1:
            yield Setting(name, values.pop(), "a login on every host sets it: whoever set up the hosts knows")
        elif name.startswith(_TUNING):
            yield from _removed(context, name, "not every host's login does, and ranks must not differ in it")
        elif name.startswith(_THREADS):
            yield from _removed(context, name, "not chosen for this run")
        elif name in _PYTHON and context.request.env.name:
            why = "what lies there would hide the environment's own; -x with the name keeps it"
            yield from _removed(context, name, why)


def _removed(context: LaunchContext, name: str, why: str) -> Iterator[Setting]:
    def say(node: NodeLayout) -> Said | None:
        value = node.facts.environment.variables.get(name)
        return None if value is None else (None, f"a login sets it to {value[:40]}: {why}")

    yield from each_host(context.nodes, name, say)


def for_launcher(context: LaunchContext) -> Iterator[Setting]:
    """What mpirun, too, has to know of the user's and the site's settings, such as its range of ports."""
    exported = {export.name for export in context.request.options.exports}
    ports = "I_MPI_PORT_RANGE"
    node0 = context.nodes[0]
    if context.flavor == "intel" and ports not in exported and (value := node0.facts.environment.variables.get(ports)):
        yield Setting(ports, value, f"a login on {node0.name} sets it, perhaps for a firewall's sake")
    for export in context.request.options.exports:
        if export.name.startswith(_OF_LAUNCHERS) and not export.secret:
            yield Setting(export.name, export.value, f"you said so: {export.said}")


def _own_rank(context: LaunchContext) -> Iterator[Setting]:
    yield Setting("WORLD_SIZE", str(context.world_size), "how many ranks there are in all")
    yield from each_host(
        context.nodes, "LOCAL_WORLD_SIZE", lambda node: (str(node.count), "how many of them this host has")
    )
    for node in context.nodes:
        for at in range(node.count):
            rank = node.first + at
            yield Setting("RANK", str(rank), "which it is: torch and accelerate read it", node.name, rank)
            yield Setting("LOCAL_RANK", str(at), "which it is on its host", node.name, rank)


def _environment(context: LaunchContext) -> Iterator[Setting]:
    env = context.request.env
    place = f"the environment {env.name}" if env.name else "the environment"
    for name, value in env.variables.items():
        in_front = name in env.prepended
        reason = f"what lies in {place} is found first" if in_front else f"{place} says so in its env.json"
        yield Setting(name, value, reason, prepend=in_front)

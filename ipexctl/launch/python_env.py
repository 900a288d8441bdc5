"""Choose the variables that a rank gets for Python, Hugging Face and torchrun's kin, and those that are removed.
Nothing here reads a file or contacts a host.

A variable that a login left is removed if it would mislead the ranks: the rank of another launcher, threads for other
cores, modules that hide those of the environment, or a tuning value that is not the same on all hosts.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Final

from ipexctl.launch.comm_env import over_mpi
from ipexctl.launch.plan_draft import ChosenValue, NodeLayout, PlanDraft
from ipexctl.node.common.mpi import each_of
from ipexctl.node.common.plan import PlannedProject, Setting
from ipexctl.projects.dist_info import DIRECTORY
from ipexctl.text import join_words

_STRAYS: Final = (
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE",
    "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
)  # fmt: skip
"""Variables of other launchers. A script would read its rank from them."""
_THREADS: Final = ("OMP_", "KMP_", "GOMP_", "MKL_NUM_THREADS")
"""Prefixes of variables for threads. What a login sets does not fit the cores that this run chose."""
_PYTHON: Final = ("PYTHONPATH", "PYTHONHOME")
_TUNING: Final = ("CCL_", "FI_", "I_MPI_", "OMPI_MCA_", "ONEDNN_", "DNNL_", "ATEN_", "MALLOC_", "GLIBC_TUNABLES")
"""A site's tuning variables are kept if all hosts have the same value. Ranks with different values hang."""
_LAUNCHER_PREFIXES: Final = each_of(lambda mpi: mpi.own_prefixes)


def settings(draft: PlanDraft) -> Iterator[Setting]:
    """Yield the variables of a rank: its number, those of the environment, and those that make its output and libraries
    usable.
    """
    yield from _own_rank(draft)
    yield from _environment(draft)
    yield Setting("PYTHONUNBUFFERED", "1", "a line appears when it is printed, not when a block is full")
    yield Setting("PYTHONFAULTHANDLER", "1", "a rank that crashes in C code prints its Python stack")
    yield Setting(
        "TOKENIZERS_PARALLELISM", "false", "threads of tokenizers compete with those of OpenMP, and warn at every fork"
    )
    yield Setting(
        "ACCELERATE_USE_CPU", "true", "a script that uses accelerate runs on CPUs without `accelerate launch`"
    )
    if draft.plan.backend == "none":
        yield Setting("IPEXCTL_BACKEND", "none", "for scripts: there is no process group")
        return
    yield Setting(
        "IPEXCTL_BACKEND", draft.plan.backend, "for scripts: init_process_group(os.environ['IPEXCTL_BACKEND'])"
    )


def own_paths(project: PlannedProject, tree: str, rundir: str = "") -> tuple[Setting, ...]:
    """Return the setting for the directories from which ranks import the project's modules; none if a path contains a
    colon.

    `tree`: the project's directory on the hosts. `rundir`: the run's directory, with the metadata of own packages.
    """
    paths = [posixpath.normpath(f"{tree}/{path}") for path in project.paths]
    if rundir and project.own:
        paths.insert(-1, f"{rundir}/{DIRECTORY}")  # the root is the last
    if not paths or any(":" in path for path in paths):
        return ()
    own = (
        f"own package{'s' * (len(project.own) > 1)} {join_words(project.own)}"
        if project.own
        else "the project's modules"
    )
    return (Setting("PYTHONPATH", ":".join(paths), own, append=True),)


def leftover_variables(draft: PlanDraft, chosen: frozenset[str]) -> Iterator[Setting]:
    """Yield settings that remove variables of a login or another launcher; variables in `chosen` stay.

    A site's tuning variable is kept instead, if it is the same on all hosts.
    """
    gives_slurm = draft.context.asked.slurm_env
    for name in _STRAYS:
        if name not in chosen and not (gives_slurm and name.startswith("SLURM_")):
            yield Setting(name, None, "a variable of another launcher: a script would take it for its own rank")
    of_logins = sorted({name for node in draft.nodes for name in node.facts.environment.variables} - chosen)
    for name in of_logins:
        values = {node.facts.environment.variables.get(name) for node in draft.nodes}
        if name.startswith(_TUNING) and len(values) == 1:
            yield Setting(name, values.pop(), "a login on every host sets it, so the site has chosen it")
        elif name.startswith(_TUNING):
            yield from _removed(draft, name, "not on every host alike, and ranks must not differ in it")
        elif name.startswith(_THREADS):
            yield from _removed(draft, name, "not chosen for this run")
        elif name in _PYTHON and draft.context.env.name:
            reason = "modules there would hide those of the environment; -x with the name keeps it"
            yield from _removed(draft, name, reason)


def _removed(draft: PlanDraft, name: str, reason: str) -> Iterator[Setting]:
    """Yield settings that remove a variable on the hosts where a login sets it."""

    def choose(node: NodeLayout) -> ChosenValue | None:
        """Return no value, with the reason; None if no login sets the variable on the host."""
        value = node.facts.environment.variables.get(name)
        return None if value is None else (None, f"a login sets it to {value[:40]}: {reason}")

    yield from draft.per_node(name, choose)


def for_launcher(draft: PlanDraft) -> Iterator[Setting]:
    """Yield variables of the user and the site that mpirun needs too, such as its port range."""
    exported = {export.name for export in draft.context.asked.exports}
    node0 = draft.nodes[0]
    for name in draft.mpi.site_variables if draft.mpi is not None else ():
        if name not in exported and (value := node0.facts.environment.variables.get(name)):
            yield Setting(name, value, f"a login on {node0.name} sets it, perhaps because of a firewall")
    for export in draft.context.asked.exports:
        if export.name.startswith(_LAUNCHER_PREFIXES) and export.value is not None:
            yield Setting(export.name, export.value, f"set by {export.source}")


def _own_rank(draft: PlanDraft) -> Iterator[Setting]:
    """Yield the variables that number a rank; copies without a process group (backend `none`) get IPEXCTL_RANK."""
    if draft.plan.backend == "none":
        yield Setting("IPEXCTL_WORLD_SIZE", str(draft.world_size), "the number of copies of the run")
        for node in draft.nodes:
            for rank in range(node.first, node.first + node.count):
                yield Setting("IPEXCTL_RANK", str(rank), "the number of this copy, which has no RANK", node.name, rank)
        return
    yield Setting("WORLD_SIZE", str(draft.world_size), "the number of ranks of the run")
    yield from draft.per_node("LOCAL_WORLD_SIZE", lambda node: (str(node.count), "the number of ranks on this host"))
    for number, node in enumerate(draft.nodes):
        for at in range(node.count):
            rank = node.first + at
            yield Setting("RANK", str(rank), "the number of this rank; torch and accelerate read it", node.name, rank)
            yield Setting("LOCAL_RANK", str(at), "its number among the ranks of its host", node.name, rank)
            yield Setting("ROLE_RANK", str(rank), "the same as RANK", node.name, rank)
            for name in ("GROUP_RANK", "NODE_RANK"):
                yield Setting(name, str(number), "the number of its host", node.name, rank)
    run = draft.plan.id
    restarts = draft.context.asked.max_restarts
    yield Setting("TORCHELASTIC_RUN_ID", run, "tells Lightning and torch that all ranks are started")
    yield Setting("TORCHELASTIC_MAX_RESTARTS", str(restarts), "--max-restarts")
    yield Setting("TORCHELASTIC_RESTART_COUNT", "0", "the number of the attempt")
    yield Setting("GROUP_WORLD_SIZE", str(len(draft.nodes)), "the number of hosts")
    yield Setting("ROLE_WORLD_SIZE", str(draft.world_size), "the same as WORLD_SIZE")
    yield Setting("ROLE_NAME", "default", "as torchrun's")


def _environment(draft: PlanDraft) -> Iterator[Setting]:
    """Yield the variables that the environment needs, such as the path of its MPI."""
    env = draft.context.env
    env_name = f"the environment {env.name}" if env.name else "the environment"
    for name, value in env.variables.items():
        if name == "CCL_OFI_LIBRARY_PATH" and over_mpi(draft):
            continue  # useless there, and oneCCL prints a warning for each variable
        in_front = name in env.prepended
        reason = f"files of {env_name} are found first" if in_front else f"env.json of {env_name} sets it"
        if not env.is_installed:
            reason = f"{env_name} will set it"
        yield Setting(name, value, reason, prepend=in_front)

"""Helpers of all exports: variables that are the same on all hosts, shell lines, the command of a rank. Pure. An export
has only the name of a secret. All text of the plan is untrusted: words of shell lines are quoted with `shlex`, and a
comment never has a line break, because the rest would be executed.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ipexctl.errors import UserError
from ipexctl.launch.python_env import own_paths
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.plan import (
    ALLREDUCE,
    AUTOCAST,
    FP32_MATH,
    FUSED_OPTIMIZER,
    RANK_NAMES,
    WIRE,
    WRAPPER_NAMES,
    Plan,
    Setting,
)
from ipexctl.text import printable, variable_in_sh

MASTER: Final = ("MASTER_ADDR", "MASTER_PORT")
_OF_RANK: Final = {*RANK_NAMES, *MASTER, "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE"}
"""Variables that each rank sets itself. torchrun's other variables are the same for all ranks, and are in the plan."""
_RANK_OF_MPI: Final = (
    "export RANK=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-}} WORLD_SIZE=${PMI_SIZE:-${OMPI_COMM_WORLD_SIZE:-}}",
    "export LOCAL_RANK=${MPI_LOCALRANKID:-${OMPI_COMM_WORLD_LOCAL_RANK:-}}",
    "export LOCAL_WORLD_SIZE=${MPI_LOCALNRANKS:-${OMPI_COMM_WORLD_LOCAL_SIZE:-}}",
)


def host_of_rank(host: object, hosts: object) -> tuple[str, str]:
    """Shell lines that set torchrun's variables from RANK, WORLD_SIZE, the host's number and the number of hosts."""
    return (
        f"export ROLE_RANK=$RANK ROLE_WORLD_SIZE=$WORLD_SIZE GROUP_WORLD_SIZE={hosts}",
        f"export GROUP_RANK={host}; export NODE_RANK=$GROUP_RANK",
    )


def rank_of_mpi(hosts: object) -> tuple[str, ...]:
    """Set a rank's variables from those of Intel MPI, MPICH and Open MPI, which don't number the hosts."""
    return (*_RANK_OF_MPI, *host_of_rank("$(( (RANK - LOCAL_RANK) * GROUP_WORLD_SIZE / ${WORLD_SIZE:-1} ))", hosts))


TAKING_TURNS: Final = "chrt -b 0"
"""Put before a command: its threads get SCHED_BATCH. BusyBox has no long option for this."""
WHY_TURNS: Final = "# threads of a rank with one core take turns, where the machine allows that"


@dataclass(frozen=True, slots=True)
class ExportResult:
    text: str
    notes: tuple[str, ...] = ()


def at_project(plan: Plan, root: str) -> Plan:
    """The plan for a project in this directory, without what only a run has: its directory, with the metadata of own
    packages."""
    settings = [setting for setting in plan.settings if not setting.append]
    return plan._replace(settings=(*settings, *own_paths(plan.project, root)))


def common_settings(plan: Plan, *, without: Iterable[str] = ()) -> tuple[Setting, ...]:
    """Settings that are the same for all ranks on all hosts, without rank variables and secrets. The variables for our
    hooks are left out, because the hooks' files are in a run's directory.
    """
    excluded = {*_OF_RANK, ALLREDUCE, WIRE, FP32_MATH, AUTOCAST, FUSED_OPTIMIZER, *without}
    differing = differing_settings(plan)
    kept: dict[tuple[str, bool], Setting] = {}
    for setting in plan.settings:
        if setting.name not in excluded and setting.name not in differing and not setting.secret:
            kept.setdefault((setting.name, setting.append), setting)
    return tuple(kept.values())


def differing_settings(plan: Plan) -> dict[str, tuple[Setting, ...]]:
    by_name: dict[str, list[Setting]] = {}
    for setting in plan.settings:
        if setting.name not in _OF_RANK and not (setting.secret or setting.append):
            by_name.setdefault(setting.name, []).append(setting)
    hosts = {host.name for host in plan.hosts}

    def is_same(settings: Sequence[Setting]) -> bool:
        is_global = all(setting.host is None and setting.rank is None for setting in settings)
        is_per_host = {setting.host for setting in settings} == hosts and all(
            setting.rank is None for setting in settings
        )
        return len({(setting.value, setting.prepend) for setting in settings}) == 1 and (is_global or is_per_host)

    return {name: tuple(settings) for name, settings in by_name.items() if not is_same(settings)}


NO_RANKS: Final = (
    f"unset {' '.join((*RANK_NAMES, *MASTER))}",
    f"unset {' '.join(name for name in WRAPPER_NAMES if name not in RANK_NAMES)}",
    "unset PMI_RANK PMI_SIZE PMI_FD PMI_PORT PMI_ID PMIX_RANK MPI_LOCALRANKID MPI_LOCALNRANKS",
    "unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE",
)
"""Lines for independent copies; otherwise a script would take its rank from these variables."""


def require_process_group(plan: Plan, purpose: str) -> None:
    if plan.backend == "none":
        raise UserError(
            f"{purpose} can't express independent copies, without a process group",
            fix=Fix("`ipexctl export shell` with the same options, or another --backend"),
        )


def secrets_of(plan: Plan) -> tuple[str, ...]:
    return tuple(dict.fromkeys(variable_in_sh(setting.name) for setting in plan.settings if setting.secret))


def assignment(setting: Setting) -> str:
    """Return `export NAME=VALUE`, or `unset NAME`, for a POSIX shell."""
    name = variable_in_sh(setting.name)
    if setting.value is None:
        return f"unset {name}"
    value = shlex.quote(setting.value)
    if setting.append:
        value = f'"${{{name}:+${name}:}}"{value}'
    if setting.prepend:
        value += f'"${{{name}:+:${name}}}"'
    return f"export {name}={value}"


def comment_settings(settings: Iterable[Setting]) -> list[str]:
    """Each variable below the reason for its value; variables unset for the same reason share a line."""
    lines: list[str] = []
    unset: dict[str, list[str]] = {}
    last_reason = ""
    for setting in settings:
        if setting.value is None:
            unset.setdefault(setting.reason, []).append(variable_in_sh(setting.name))
            continue
        lines += [comment(setting.reason)] * (setting.reason != last_reason) + [assignment(setting)]
        last_reason = setting.reason
    for reason, names in unset.items():
        lines += [comment(reason), *fold_line(["unset", *names])]
    return lines


def fold_line(parts: Sequence[str]) -> list[str]:
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) < 100:
            lines[-1] += f" {part}"
        else:
            lines[-1] += " \\"
            lines.append(f"  {part}")
    return lines


def require_mpirun(plan: Plan, purpose: str) -> None:
    if plan.is_direct:
        fix = "use --mpi intel, openmpi or mpich, or the path of an mpirun"
        ranks = "this single rank is" if plan.world_size == 1 else "these ranks are"
        raise UserError(f"{purpose} starts ranks with mpirun, but {ranks} planned without it", fix=fix)


def title(plan: Plan) -> str:
    return f"{printable(portable_command_line(plan))}: {plan.size}, {plan.connection}"


def header(text: str) -> list[str]:
    """Comment lines that say what the target machines must have."""
    return [f"# {line}" for line in textwrap.wrap(printable(text), 118, break_long_words=False, break_on_hyphens=False)]


def source(setup: str) -> str:
    """The line of bash that sources a setup file. It comes before `set -eu`, under which many such files fail. oneAPI's
    setvars.sh fails if SETVARS_COMPLETED is set, which means that it has been sourced before.
    """
    return f"unset -v SETVARS_COMPLETED; . {shlex.quote(setup)} </dev/null >&2 || exit"


def comment(text: str) -> str:
    """A comment line of sh or YAML. Line breaks in the text are removed, because a second line would be executed."""
    return f"# {printable(text)}"


def command_line(plan: Plan) -> str:
    return shlex.join(plan.command)


def portable_command_line(plan: Plan) -> str:
    """The command line with `python` from PATH, as in an image."""
    return command_line(plan).replace(shlex.quote(plan.python), "python", 1)


def note_omitted(plan: Plan, names: Iterable[str], reason: str) -> tuple[str, ...]:
    present = [name for name in names if any(setting.name == name for setting in plan.settings)]
    return (f"{', '.join(present)}: {reason}",) if present else ()

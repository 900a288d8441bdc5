"""What every export needs of a plan: which variables are the same everywhere, and what a rank executes. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ipexctl.launch.rank_env import RANK_NAMES
from ipexctl.text import printable, variable_in_sh

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ipexctl.launch.plan import LaunchPlan, Setting

MASTER: Final = ("MASTER_ADDR", "MASTER_PORT")
RANK_OF_MPI: Final = (
    "export RANK=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-}} WORLD_SIZE=${PMI_SIZE:-${OMPI_COMM_WORLD_SIZE:-}}",
    "export LOCAL_RANK=${MPI_LOCALRANKID:-${OMPI_COMM_WORLD_LOCAL_RANK:-}}",
    "export LOCAL_WORLD_SIZE=${MPI_LOCALNRANKS:-${OMPI_COMM_WORLD_LOCAL_SIZE:-}}",
)
"""Which rank it is, as Intel MPI, MPICH and Open MPI say it, in the words torch reads."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A text for stdout, and what is to be said beside it."""

    text: str
    notes: tuple[str, ...] = ()


def everywhere(plan: LaunchPlan, *, without: Iterable[str] = ()) -> tuple[Setting, ...]:
    """The variables that are the same for all ranks on all hosts, those of the ranks' places left out."""
    left_out = {*RANK_NAMES, *MASTER, *without}
    apart = differing(plan)
    kept: dict[str, Setting] = {}
    for setting in plan.settings:
        if setting.name not in left_out and setting.name not in apart and not setting.secret:
            kept.setdefault(setting.name, setting)
    return tuple(kept.values())


def differing(plan: LaunchPlan) -> dict[str, tuple[Setting, ...]]:
    """Variable → its settings, where hosts or ranks differ in it."""
    found: dict[str, list[Setting]] = {}
    for setting in plan.settings:
        if setting.name not in RANK_NAMES and setting.name not in MASTER and not setting.secret:
            found.setdefault(setting.name, []).append(setting)
    hosts = {host.name for host in plan.hosts}

    def is_alike(settings: Sequence[Setting]) -> bool:
        everyone = all(one.host is None and one.rank is None for one in settings)
        all_hosts = {one.host for one in settings} == hosts and all(one.rank is None for one in settings)
        return len({(one.value, one.prepend) for one in settings}) == 1 and (everyone or all_hosts)

    return {name: tuple(settings) for name, settings in found.items() if not is_alike(settings)}


def secrets_of(plan: LaunchPlan) -> tuple[str, ...]:
    """Names whose values are in no export: whoever runs it has them in the environment."""
    return tuple(dict.fromkeys(variable_in_sh(setting.name) for setting in plan.settings if setting.secret))


def assignment(setting: Setting) -> str:
    """`export NAME=VALUE`, or `unset NAME`, for a POSIX shell."""
    name = variable_in_sh(setting.name)
    if setting.value is None:
        return f"unset {name}"
    value = shlex.quote(setting.value)
    if setting.prepend:
        value += f'"${{{name}:+:${name}}}"'
    return f"export {name}={value}"


def commented(settings: Iterable[Setting]) -> list[str]:
    """Each variable below the reason for its value; those that are taken away for one reason on one line."""
    lines: list[str] = []
    unset: dict[str, list[str]] = {}
    said = ""
    for setting in settings:
        if setting.value is None:
            unset.setdefault(setting.reason, []).append(variable_in_sh(setting.name))
            continue
        lines += [f"# {printable(setting.reason)}"] * (setting.reason != said) + [assignment(setting)]
        said = setting.reason
    for reason, names in unset.items():
        lines += [f"# {printable(reason)}", *folded(["unset", *names])]
    return lines


def folded(parts: Sequence[str], width: int = 100) -> list[str]:
    """A line of sh's, in several where it is long."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) < width:
            lines[-1] += f" {part}"
        else:
            lines[-1] += " \\"
            lines.append(f"  {part}")
    return lines


def title(plan: LaunchPlan) -> str:
    count = "1 rank" if plan.world_size == 1 else f"{plan.world_size} ranks"
    where = "1 host" if len(plan.hosts) == 1 else f"{len(plan.hosts)} hosts"
    return f"{printable(executed(plan))}: {count} on {where}, over {plan.backend}"


def source(setup: str) -> str:
    """A line of bash's, before any `set -eu`: such files seldom bear it. oneAPI's fails where it was sourced before."""
    return f"unset -v SETVARS_COMPLETED; . {shlex.quote(setup)} </dev/null >&2 || exit"


def words(plan: LaunchPlan) -> str:
    return shlex.join(plan.command)


def executed(plan: LaunchPlan) -> str:
    """The same where the right Python is first on the path, as in an image."""
    return words(plan).replace(shlex.quote(plan.python), "python", 1)


def known_hosts_option(path: Path) -> str:
    """Of ssh's, to which blanks divide several files."""
    return f'UserKnownHostsFile="{path}"' if " " in str(path) else f"UserKnownHostsFile={path}"


def left_out(plan: LaunchPlan, names: Iterable[str], why: str) -> tuple[str, ...]:
    some = [name for name in names if any(setting.name == name for setting in plan.settings)]
    return (f"{', '.join(some)}: {why}",) if some else ()

"""What every export needs of a plan: which variables are the same everywhere, and what a rank executes. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ipexctl.launch.surroundings import RANK_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ipexctl.launch.plan import LaunchPlan, Setting

MASTER: Final = ("MASTER_ADDR", "MASTER_PORT")


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
    return tuple(dict.fromkeys(setting.name for setting in plan.settings if setting.secret))


def assignment(setting: Setting) -> str:
    """`export NAME=VALUE`, or `unset NAME`, for a POSIX shell."""
    if setting.value is None:
        return f"unset {setting.name}"
    value = shlex.quote(setting.value)
    if setting.prepend:
        value += f'"${{{setting.name}:+:${setting.name}}}"'
    return f"export {setting.name}={value}"


def commented(settings: Iterable[Setting], indent: str = "") -> list[str]:
    """Each variable below the reason for its value."""
    lines = []
    for setting in settings:
        lines += [f"{indent}# {setting.reason}", f"{indent}{assignment(setting)}"]
    return lines


def source(setup: str) -> str:
    """A line of bash's, before any `set -eu`: such files seldom bear it."""
    return f". {shlex.quote(setup)} </dev/null >&2 || exit"


def words(plan: LaunchPlan) -> str:
    return shlex.join(plan.command)


def left_out(plan: LaunchPlan, names: Iterable[str], why: str) -> tuple[str, ...]:
    some = [name for name in names if any(setting.name == name for setting in plan.settings)]
    return (f"{', '.join(some)}: {why}",) if some else ()

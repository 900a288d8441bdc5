"""A job that is one for all hosts of a play: refused where some have left, or where hosts want it differently. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.hosts.nodeset import fold
from ipexctl.playbook.result import failed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.playbook.result import Call, Result


def missing_hosts(calls: Sequence[Call], missing: Mapping[str, str]) -> Result | None:
    """`missing` are the hosts that left the play, and why."""
    if missing and not calls[0].args.get("fewer"):
        left = fold([call.host.name for call in calls])
        return failed(
            f"it would be on {left} alone: " + "; ".join(f"{name} {why}" for name, why in missing.items()),
            f"mend {fold(missing)} and play again; fewer: true does it with the hosts that are left",
        )
    for name, value in calls[0].args.items():
        if any(call.args[name] != value for call in calls):
            said = ", ".join(f"{call.args[name]} on {call.host.name}" for call in calls)
            return failed(
                f"{calls[0].task.spec.name} is one for all hosts, and {name} is {said}",
                f"{name}: one value for all, such as that of hostvars[node0]; or a play for each kind of host",
            )
    return None

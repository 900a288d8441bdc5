"""Checks for a task that is one job on all hosts of a play: no host is missing, all options are the same. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.hosts.nodeset import fold
from ipexctl.playbook.result import failed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.playbook.result import Call, Result


def missing_hosts(calls: Sequence[Call], missing: Mapping[str, str]) -> Result | None:
    """The refusal, or None. `missing` maps each host that left the play to the reason."""
    if missing and not calls[0].args.get("fewer"):
        remaining = fold([call.host.name for call in calls])
        return failed(
            f"it would be on {remaining} alone: " + "; ".join(f"{name} {reason}" for name, reason in missing.items()),
            f"mend {fold(missing)} and play again; fewer: true does it with the hosts that are left",
        )
    for name, value in calls[0].args.items():
        if any(call.args[name] != value for call in calls):
            values = ", ".join(f"{call.args[name]} on {call.host.name}" for call in calls)
            return failed(
                f"{calls[0].task.spec.name} is one for all hosts, and {name} is {values}",
                f"{name}: one value for all, such as that of hostvars[node0]; or a play for each kind of host",
            )
    return None

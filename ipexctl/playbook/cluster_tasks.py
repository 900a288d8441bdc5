"""Tasks that are one call for all hosts: refusals before the call, and results in the words of a playbook. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ipexctl.hosts.nodeset import fold
from ipexctl.playbook.result import Call, Result, failed

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence


def missing_hosts(calls: Sequence[Call], missing: Mapping[str, str]) -> Result | None:
    """The refusal, or None. `missing` maps each host that left the play to the reason."""
    if missing and not calls[0].args.get("fewer"):
        remaining = fold([call.host.name for call in calls])
        return failed(
            f"{calls[0].task.spec.name} needs all hosts: "
            + "; ".join(f"{name} {reason}" for name, reason in missing.items()),
            f"repair {fold(missing)} and play again; to use {remaining} only: fewer: true",
        )
    for name, value in calls[0].args.items():
        if any(call.args[name] != value for call in calls):
            values = ", ".join(f"{call.args[name]} on {call.host.name}" for call in calls)
            return failed(
                f"{calls[0].task.spec.name} is one for all hosts, and {name} is {values}",
                f"{name}: one value for all, such as that of hostvars[node0]; or a play for each kind of host",
            )
    return None


_COMMAND: Final = re.compile(r"\bipexctl (install|trust)\b(?: --env ([^\s;,]+))?")
_FLAG: Final = re.compile(r"(?<![\w-])--(no-)?([a-z][a-z0-9-]*)")


def as_playbook(result: Result, options: Container[str]) -> Result:
    """`--python PATH` is `python: PATH` where the module has that option."""
    if not result.reason and not result.fix:
        return result
    return replace(result, reason=_rephrased(result.reason, options), fix=_rephrased(result.fix, options))


def _rephrased(text: str, options: Container[str]) -> str:
    text = _COMMAND.sub(_as_task, text.replace(", or run --install", ""))
    return _FLAG.sub(lambda match: _as_option(match, options), text)


def _as_task(match: re.Match[str]) -> str:
    return f"a task {match[1]}:" + (f" {{env: {match[2]}}}" if match[2] else "")


def _as_option(match: re.Match[str], options: Container[str]) -> str:
    name = match[2].replace("-", "_")
    if name not in options:
        return match[0]
    return f"{name}: false" if match[1] else f"{name}:"

"""Injects faults of `faults.py` into a lab's hosts, and removes them.

A fault is recorded before its script runs, so that `mend` can undo it after a crash. Breaking twice changes nothing;
mending takes the last fault first. The record on disk counts, because the caller's value may be older.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.extras.lab import state, system
from ipexctl.extras.lab.faults import Fault, check_possible, find_fault, read_arguments, steps
from ipexctl.extras.lab.state import SWITCH, Lab, LabHost, lab_lock, netns_name

_SCRIPTS: Final = Path(__file__).with_name("fault_scripts")


def find_host(name: str, lab: str | None = None) -> LabHost:
    """`node1` of $IPEXCTL_HOSTFILE's lab or the only lab that has it, else `LAB/node1`."""
    if "/" in name:
        prefix, name = name.split("/", 1)
        lab = lab or prefix
    labs = [candidate for candidate in state.load_all() if candidate.ready]
    hostfile = os.environ.get("IPEXCTL_HOSTFILE")
    lab = lab or next((candidate.name for candidate in labs if str(candidate.hostfile) == hostfile), None)
    return pick_host(labs, name, lab)


def pick_host(labs: Sequence[Lab], name: str, lab: str | None = None) -> LabHost:
    if not labs:
        raise UserError("there is no lab on this machine", fix="ipexctl lab up")
    candidates = [candidate for candidate in labs if lab is None or candidate.name == lab]
    if not candidates:
        raise UserError(f"there is no lab {lab!r}", fix=f"one of: {', '.join(candidate.name for candidate in labs)}")
    matches = [host for candidate in candidates if (host := candidate.host(name))]
    if len(matches) == 1:
        return matches[0]
    if matches:
        full_names = [f"{host.lab}/{host.name}" for host in matches]
        raise UserError(f"more than one lab has a {name}", fix=f"one of: {', '.join(full_names)}")
    names = [host.name for candidate in candidates for host in candidate.nodes]
    raise UserError(f"no lab has a host {name!r}", fix=f"one of: {', '.join(dict.fromkeys(names))}")


def ssh_argv(host: LabHost, command: Sequence[str] = ()) -> list[str]:
    return ["ssh", "-F", str(state.LABS / host.lab / "ssh_config"), host.name, *command]


def break_host(host: LabHost, fault: str, args: Sequence[str] = ()) -> LabHost:
    """Inject a fault; repeating changes nothing, other arguments replace the previous ones."""
    system.require()
    definition = find_fault(fault)
    values = read_arguments(definition, args)
    with lab_lock(host.lab):
        lab, current = _reload(host)
        check_possible(definition, values, current)
        if definition.program and system.find(definition.program) is None:
            raise UserError(
                f"{definition.name} needs {definition.program}, not on this machine",
                fix=f"apt-get install {definition.package}",
            )
        if current.faults.get(definition.name) == values:
            return current
        if definition.name in current.faults:
            lab, current = _mend(lab, current, definition)
        return inject(lab, current, definition, values).host(current.name) or current


def inject(lab: Lab, host: LabHost, definition: Fault, values: tuple[str, ...] = ()) -> Lab:
    """The caller holds the lab's lock."""
    # Recorded first, so that `mend` can undo it after a crash.
    broken = replace(host, faults={**host.faults, definition.name: values})
    lab = lab.with_host(broken)
    state.save(lab)
    try:
        _run_scripts(definition, "break", values, broken)
    except BaseException as error:
        _mend(lab, broken, definition)
        if isinstance(error, system.CommandError):
            raise UserError(f"{definition.name} could not be put on {host.name}: {error}") from error
        raise
    return lab


def mend_host(host: LabHost, fault: str | None = None) -> LabHost:
    """Remove one fault, or with None all, last one first; an inactive fault is no error."""
    system.require()
    only = find_fault(fault) if fault is not None else None
    with lab_lock(host.lab):
        lab, current = _reload(host)
        for name in reversed(list(current.faults)):
            if only is None or name == only.name:
                lab, current = _mend(lab, current, find_fault(name))
        return current


def _reload(host: LabHost) -> tuple[Lab, LabHost]:
    """Lab and host as on disk: the caller's values may be older."""
    lab = state.load(host.lab)
    current = lab.host(host.name) if lab else None
    if lab is None or current is None:
        raise UserError(f"the lab {host.lab!r} is gone", fix="ipexctl lab list")
    return lab, current


def _mend(lab: Lab, host: LabHost, definition: Fault) -> tuple[Lab, LabHost]:
    try:
        _run_scripts(definition, "mend", host.faults[definition.name], host)
    except system.CommandError as error:
        others = [name for name in host.faults if name != definition.name]
        fix = f"ipexctl lab mend {host.lab}/{host.name} {others[-1]}, then again" if others else ""
        raise UserError(f"{definition.name} could not be mended on {host.name}: {error}", fix=fix) from error
    mended = replace(host, faults={name: args for name, args in host.faults.items() if name != definition.name})
    lab = lab.with_host(mended)
    state.save(lab)
    return lab, mended


def _run_scripts(definition: Fault, action: str, args: Sequence[str], host: LabHost) -> None:
    common = (_SCRIPTS / "common.sh").read_text(encoding="utf-8")
    body = (_SCRIPTS / f"{definition.script_name}.sh").read_text(encoding="utf-8")
    for step in steps(definition, action, args, host):
        if not step.in_host:
            system.at_switch(netns_name(host.lab, SWITCH), f"set -eu\n{body}", step.argv)
            continue
        before = '[ "$1" = mend ] || mkdir -p "$SAVE"\n'
        after = '[ "$1" = break ] || rm -rf "$SAVE"\n'
        system.in_host(host, f"{common}{before}(\n{body}\n)\n{after}", step.argv)

"""Finding a lab's host, breaking it and mending it. What a fault is lives in `faults`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.lab import namespaces as inside
from ipexctl.lab import state, system
from ipexctl.lab.faults import check_possible, find_fault, read_arguments, steps
from ipexctl.lab.locks import lab_lock
from ipexctl.lab.state import SWITCH, netns_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.lab.faults import Fault
    from ipexctl.lab.state import Lab, LabHost

_SCRIPTS: Final = Path(__file__).with_name("fault_scripts")


def find_host(name: str, lab: str | None = None) -> LabHost:
    """The host of that name: `node1` where only one lab has it, else `LAB/node1` or with the lab's name."""
    if "/" in name:
        in_name, name = name.split("/", 1)
        lab = lab or in_name
    state.require_readable()
    return pick_host([each for each in state.load_all() if each.ready], name, lab)


def pick_host(labs: Sequence[Lab], name: str, lab: str | None = None) -> LabHost:
    """`find_host` among these labs."""
    if not labs:
        raise UserError("there is no lab on this machine", fix="ipexctl lab up")
    among = [each for each in labs if lab is None or each.name == lab]
    if not among:
        raise UserError(f"there is no lab {lab!r}", fix=f"one of: {', '.join(each.name for each in labs)}")
    found = [host for each in among if (host := each.host(name))]
    if len(found) == 1:
        return found[0]
    if found:
        full = [f"{host.lab}/{host.name}" for host in found]
        raise UserError(f"more than one lab has a {name}: {', '.join(full)}", fix=f"say {full[0]}")
    names = [host.name for each in among for host in each.nodes]
    raise UserError(f"no lab has a host {name!r}", fix=f"one of: {', '.join(dict.fromkeys(names))}")


def ssh_argv(host: LabHost, command: Sequence[str] = ()) -> list[str]:
    """The plain client's argv that logs in to the host."""
    return ["ssh", "-F", str(state.LABS / host.lab / "ssh_config"), host.name, *command]


def break_host(host: LabHost, fault: str, args: Sequence[str] = ()) -> LabHost:
    """Put a fault in force; the same one again changes nothing, with other arguments it replaces the old."""
    system.require()
    kind = find_fault(fault)
    values = read_arguments(kind, args)
    with lab_lock(host.lab):
        lab, now = _reload(host)
        check_possible(kind, values, now)
        _check_installed(kind)
        if now.faults.get(kind.name) == values:
            return now
        if kind.name in now.faults:
            lab, now = _mend(lab, now, kind)
        # On record first: a crash in the middle leaves something that mend knows how to undo.
        broken = replace(now, faults={**now.faults, kind.name: values})
        state.save(lab.with_host(broken))
        try:
            _act(kind, "break", values, broken)
        except BaseException as error:
            _mend(lab, broken, kind)
            if isinstance(error, system.CommandError):
                raise UserError(f"{kind.name} could not be put on {host.name}: {error}") from error
            raise
        return broken


def mend_host(host: LabHost, fault: str | None = None) -> LabHost:
    """Undo one fault, or with None all of them, the last one first; one that isn't in force is no error."""
    system.require()
    only = find_fault(fault) if fault is not None else None
    with lab_lock(host.lab):
        lab, now = _reload(host)
        for name in reversed(list(now.faults)):
            if only is None or name == only.name:
                lab, now = _mend(lab, now, find_fault(name))
        return now


def _reload(host: LabHost) -> tuple[Lab, LabHost]:
    """What the disk says now: the caller's value may be older than another break."""
    lab = state.load(host.lab)
    now = lab.host(host.name) if lab else None
    if lab is None or now is None:
        raise UserError(f"the lab {host.lab!r} is gone", fix="ipexctl lab list")
    return lab, now


def _mend(lab: Lab, host: LabHost, kind: Fault) -> tuple[Lab, LabHost]:
    try:
        _act(kind, "mend", host.faults[kind.name], host)
    except system.CommandError as error:
        others = [name for name in host.faults if name != kind.name]
        fix = f"ipexctl lab mend {host.lab}/{host.name} {others[-1]}, then again" if others else ""
        raise UserError(f"{kind.name} could not be mended on {host.name}: {error}", fix=fix) from error
    mended = replace(host, faults={name: args for name, args in host.faults.items() if name != kind.name})
    lab = lab.with_host(mended)
    state.save(lab)
    return lab, mended


def _act(kind: Fault, verb: str, args: Sequence[str], host: LabHost) -> None:
    common = (_SCRIPTS / "common.sh").read_text(encoding="utf-8")
    body = (_SCRIPTS / f"{kind.script_name}.sh").read_text(encoding="utf-8")
    for step in steps(kind, verb, args, host):
        if not step.in_host:
            inside.at_switch(netns_name(host.lab, SWITCH), f"set -eu\n{body}", step.argv)
            continue
        before = '[ "$1" = mend ] || mkdir -p "$SAVE"\n'
        after = '[ "$1" = break ] || rm -rf "$SAVE"\n'
        inside.in_host(host, f"{common}{before}(\n{body}\n)\n{after}", step.argv)


def _check_installed(kind: Fault) -> None:
    if kind.program and system.find(kind.program) is None:
        raise UserError(f"{kind.name} needs {kind.program}, not on this machine", fix=f"apt-get install {kind.package}")

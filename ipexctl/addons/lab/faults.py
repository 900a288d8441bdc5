"""Define the faults that a lab's host can have, with names, arguments and effects; inject and remove them.

A fault's script is fault_scripts/NAME.sh, run as `NAME.sh break|mend ARGS…` in the host or at the switch. A fault is
recorded before its script runs, so that `mend` can undo it after a crash.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ipexctl.addons.lab import lab_files, lab_record, lab_system
from ipexctl.addons.lab.lab_record import SWITCH, Lab, LabHost, find_named, lab_lock, netns_name
from ipexctl.errors import UserError
from ipexctl.node.common.fix import Fix

ALL_INTERFACES: Final = "all"


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a fault."""

    name: str
    default: str
    parse: Callable[[str], str]
    """Text → the value for the script. Raises a ValueError that says what is expected."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that a host of a lab can have."""

    name: str
    summary: str
    arguments: tuple[Argument, ...] = ()
    clashes: str = ""
    """A host can have only one fault of the same value. Empty: no limit."""
    program: str = ""
    """Program that the script needs; empty if it needs none."""
    package: str = ""
    """Debian package of `program`."""
    script: str = ""
    """Name of the script, if it is not the fault's."""
    on_interface: bool = False
    """True if its last argument is an interface."""
    in_home: bool = False
    """The fault writes to the homes, so they must be writable when it is injected and removed."""
    at_switch: bool = False
    """The script also works on the switch's end of the link."""
    in_host: bool = True
    """False if the script works only on the switch's end of the link."""

    @property
    def usage(self) -> str:
        """Return the name and the arguments as a user types them: `slow-link [RATE] [INTERFACE]`."""
        return " ".join([self.name, *(f"[{argument.name}]" for argument in self.arguments)])

    @property
    def script_name(self) -> str:
        """Return the name of the script, without `.sh`; several faults may share one."""
        return self.script or self.name


_RATE = re.compile(r"(\d+(?:\.\d+)?)(bit|kbit|mbit|gbit)")
_UNITS: Final = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def bits_per_second(rate: str) -> int:
    """Return 10,000,000 for `10mbit`. Raises a ValueError, whose text says what is expected, for another text or a rate
    out of range."""
    match = _RATE.fullmatch(rate.lower())
    bits = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if not 8000 <= bits <= 100 * 10**9:
        raise ValueError("a rate from 8kbit to 100gbit, such as 10mbit")
    return bits


def _rate(text: str) -> str:
    bits_per_second(text)
    return text.lower()


def _number(maximum: int, unit: str, expected: str) -> Callable[[str], str]:
    """Return a function that reads a positive number with an optional unit. `expected`: text of its ValueError."""

    def parse(text: str) -> str:
        number = text.removesuffix(unit)
        if not re.fullmatch(r"\d+(\.\d+)?", number) or not 0 < float(number) <= maximum:
            raise ValueError(expected)
        return f"{float(number):g}"

    return parse


def _skew(text: str) -> str:
    if not re.fullmatch(r"[+-]?\d{1,9}s?", text) or int(text.removesuffix("s")) == 0:
        raise ValueError("whole seconds ahead or, with a minus, behind, such as 90")
    return str(int(text.removesuffix("s")))


def _interface(text: str) -> str:
    if text not in ("eth0", "eth1", ALL_INTERFACES):
        raise ValueError("eth0 (in front), eth1 (the second network) or all")
    return text


_INTERFACE = Argument("INTERFACE", ALL_INTERFACES, _interface)

FAULTS: Final = (
    Fault(
        "link-down",
        "the cable is unplugged: packets vanish, connections hang",
        (_INTERFACE,),
        on_interface=True,
        at_switch=True,
        in_host=False,
    ),
    Fault(
        "slow-link",
        "RATE in each direction, default 10mbit",
        (Argument("RATE", "10mbit", _rate), _INTERFACE),
        program="tc",
        package="iproute2",
        on_interface=True,
        at_switch=True,
    ),
    Fault(
        "packet-loss",
        "PERCENT of the packets are lost in each direction, default 5",
        (Argument("PERCENT", "5", _number(100, "%", "a percentage above 0 and up to 100, such as 5")), _INTERFACE),
        program="iptables",
        package="iptables",
        on_interface=True,
    ),
    Fault(
        "firewall",
        "its firewall lets connections in only at port 22",
        program="iptables",
        package="iptables",
    ),
    Fault("sshd-hang", "accepts connections and never answers", clashes="sshd"),
    Fault("sshd-dead", "nothing listens: connections are refused", clashes="sshd"),
    Fault("changed-host-key", "sshd has a new, unknown host key", clashes="sshd"),
    Fault("full-disk", "its disk and a shared home are full", program="fallocate", package="util-linux"),
    Fault("read-only-home", "no home can be written to"),
    Fault("noisy-rc", "every shell prints on stdout and stderr before it does anything", script="rc", in_home=True),
    Fault(
        "slow-rc",
        "every shell takes SECONDS to start, default 3",
        (Argument("SECONDS", "3", _number(600, "s", "seconds above 0 and up to 600, such as 3")),),
        script="rc",
        in_home=True,
    ),
    Fault(
        "csh-shell", "the user's login shell is tcsh", clashes="shell", program="tcsh", package="tcsh", script="shell"
    ),
    Fault(
        "fish-shell", "the user's login shell is fish", clashes="shell", program="fish", package="fish", script="shell"
    ),
    Fault("no-python", "no python in any directory of PATH"),
    Fault(
        "clock-skew",
        "`date` is SECONDS ahead, or behind with a minus; default 90",
        (Argument("SECONDS", "90", _skew),),
    ),
    Fault("no-names", "it can't resolve the names of other hosts"),
)
_BY_NAME: Final = {fault.name: fault for fault in FAULTS}


def find_fault(name: str) -> Fault:
    """Return the fault of this name. Raises a UserError that lists the names if there is none."""
    return find_named("fault", name, _BY_NAME)


def read_arguments(fault: Fault, given: Sequence[str]) -> tuple[str, ...]:
    """Normalize the arguments and add defaults. An interface may be given without the arguments before it."""
    texts = list(given)
    if (
        fault.on_interface
        and len(texts) == 1
        and len(fault.arguments) > 1
        and texts[0].startswith(("eth", ALL_INTERFACES))
    ):
        texts.insert(0, fault.arguments[0].default)
    if len(texts) > len(fault.arguments):
        takes = f"takes {len(fault.arguments)} at most" if fault.arguments else "takes no argument"
        raise UserError(f"{fault.name} {takes}: {' '.join(given)!r}", fix=f"as in its usage: {fault.usage}")
    values = []
    for position, argument in enumerate(fault.arguments):
        text = texts[position] if position < len(texts) else argument.default
        try:
            values.append(argument.parse(text))
        except ValueError as error:
            raise UserError(f"{fault.name}: {text!r} is not {error}", fix=f"as in its usage: {fault.usage}") from None
    return tuple(values)


def check_possible(fault: Fault, args: Sequence[str], host: LabHost) -> None:
    """Refuse a missing interface, and a conflict with an active fault."""
    if fault.on_interface and args[-1] != ALL_INTERFACES and args[-1] not in lab_files.interfaces(host):
        raise UserError(f"{host.name} has no {args[-1]}", fix=f"it has {' and '.join(lab_files.interfaces(host))}")
    for other in host.faults:
        same_kind = fault.clashes and find_fault(other).clashes == fault.clashes
        blocks_writing = fault.in_home and other in _READ_ONLY_FAULTS
        if other != fault.name and (same_kind or blocks_writing):
            raise UserError(
                f"{other} is active on {host.name}: {fault.name} can't be combined with it",
                fix=Fix(f"`ipexctl lab mend {host.lab}/{host.name} {other}`"),
            )


_READ_ONLY_FAULTS: Final = ("full-disk", "read-only-home")


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a fault's script."""

    argv: tuple[str, ...]
    in_host: bool


def steps(fault: Fault, action: str, args: Sequence[str], host: LabHost) -> tuple[Step, ...]:
    """Return the calls of a fault's script on a host: one, or one per interface, in the host or at the switch's end of
    the link. `action`: `break` or `mend`."""
    if not fault.on_interface:
        return (Step((action, fault.name, *args), in_host=True),)
    selected = lab_files.interfaces(host) if args[-1] == ALL_INTERFACES else (args[-1],)
    script_args = _script_args(fault, args[:-1])
    result = []
    for interface in selected:
        if fault.in_host:
            result.append(Step((action, fault.name, interface, *script_args), in_host=True))
        if fault.at_switch:
            port = lab_files.port_name(host, interface)
            result.append(Step((action, fault.name, port, *script_args), in_host=False))
    return tuple(result)


def _script_args(fault: Fault, args: Sequence[str]) -> tuple[str, ...]:
    """Return a fault's arguments in the form that its script needs."""
    if fault.name == "slow-link":
        bits = bits_per_second(args[0])
        # A bucket of 10 ms, and at least one unsegmented packet of 64 KB.
        return (f"{bits}bit", f"{max(bits // 8 // 100, 65536)}b")
    if fault.name == "packet-loss":
        return (f"{float(args[0]) / 100:.6f}",)
    return tuple(args)


_SCRIPTS: Final = Path(__file__).with_name("fault_scripts")


def find_host(name: str, lab: str | None = None) -> LabHost:
    """Return the host `node1` of $IPEXCTL_HOSTFILE's lab, or of the only lab that has one; `LAB/node1` is unambiguous.
    Raises a UserError if there is none, or more than one."""
    if "/" in name:
        prefix, name = name.split("/", 1)
        lab = lab or prefix
    labs = [candidate for candidate in lab_record.load_all() if candidate.ready]
    hostfile = os.environ.get("IPEXCTL_HOSTFILE")
    lab = lab or next((candidate.name for candidate in labs if str(candidate.hostfile) == hostfile), None)
    return pick_host(labs, name, lab)


def pick_host(labs: Sequence[Lab], name: str, lab: str | None = None) -> LabHost:
    """Return the host of this name in the lab of this name, or in any lab if `lab` is None. Raises a UserError if there
    is none, or more than one."""
    if not labs:
        raise UserError("there is no lab on this machine", fix=Fix("`ipexctl lab up`"))
    candidates = [candidate for candidate in labs if lab is None or candidate.name == lab]
    if not candidates:
        raise UserError(f"there is no lab {lab!r}", fix=f"one of: {', '.join(candidate.name for candidate in labs)}")
    matches = [host for candidate in candidates if (host := candidate.host(name))]
    if len(matches) == 1:
        return matches[0]
    if matches:
        full_names = [f"{host.lab}/{host.name}" for host in matches]
        raise UserError(f"more than one lab has a host {name}", fix=f"one of: {', '.join(full_names)}")
    names = [host.name for candidate in candidates for host in candidate.nodes]
    raise UserError(f"no lab has a host {name!r}", fix=f"one of: {', '.join(dict.fromkeys(names))}")


def ssh_argv(host: LabHost, command: Sequence[str] = ()) -> list[str]:
    """Return the ssh call that logs in to a host, or runs a command there."""
    return ["ssh", "-F", str(lab_record.LABS / host.lab / "ssh_config"), host.name, *command]


def break_host(host: LabHost, fault: str, args: Sequence[str] = ()) -> LabHost:
    """Inject a fault. Repeating it changes nothing; new arguments replace the previous ones."""
    lab_system.require()
    definition = find_fault(fault)
    values = read_arguments(definition, args)
    with lab_lock(host.lab):
        lab, current = _reload(host)
        check_possible(definition, values, current)
        if definition.program and lab_system.find(definition.program) is None:
            raise UserError(
                f"{definition.name} needs {definition.program}, which is not on this machine",
                fix=f"apt-get install {definition.package}",
            )
        if current.faults.get(definition.name) == values:
            return current
        if definition.name in current.faults:
            lab, current = _mend(lab, current, definition)
        return inject(lab, current, definition, values).host(current.name) or current


def inject(lab: Lab, host: LabHost, definition: Fault, values: tuple[str, ...] = ()) -> Lab:
    """Record and inject a fault, and return the lab with it. A fault that can't be injected is removed again. The
    caller holds the lab's lock."""
    broken = replace(host, faults={**host.faults, definition.name: values})
    lab = lab.with_host(broken)
    lab_record.save(lab)
    try:
        _run_scripts(definition, "break", values, broken)
    except BaseException as error:
        _mend(lab, broken, definition)
        if isinstance(error, lab_system.CommandError):
            raise UserError(f"{definition.name} could not be injected on {host.name}: {error}") from error
        raise
    return lab


def mend_host(host: LabHost, fault: str | None = None) -> LabHost:
    """Remove one fault or, with None, all, newest first. An inactive fault is not an error."""
    lab_system.require()
    only = find_fault(fault) if fault is not None else None
    with lab_lock(host.lab):
        lab, current = _reload(host)
        for name in reversed(list(current.faults)):
            if only is None or name == only.name:
                lab, current = _mend(lab, current, find_fault(name))
        return current


def _reload(host: LabHost) -> tuple[Lab, LabHost]:
    """Return lab and host as they are on disk, because the caller's values may be older. Raises a UserError if the lab
    is gone."""
    lab = lab_record.load(host.lab)
    current = lab.host(host.name) if lab else None
    if lab is None or current is None:
        raise UserError(f"the lab {host.lab!r} is gone", fix=Fix("`ipexctl lab list`"))
    return lab, current


def _mend(lab: Lab, host: LabHost, definition: Fault) -> tuple[Lab, LabHost]:
    """Remove one fault from a host, and record that. Raises a UserError if its script fails; the fault stays recorded
    then."""
    try:
        _run_scripts(definition, "mend", host.faults[definition.name], host)
    except lab_system.CommandError as error:
        others = [name for name in host.faults if name != definition.name]
        fix = Fix(f"`ipexctl lab mend {host.lab}/{host.name} {others[-1]}`, then try again") if others else ""
        raise UserError(f"{definition.name} could not be removed from {host.name}: {error}", fix=fix) from error
    mended = replace(host, faults={name: args for name, args in host.faults.items() if name != definition.name})
    lab = lab.with_host(mended)
    lab_record.save(lab)
    return lab, mended


def _run_scripts(definition: Fault, action: str, args: Sequence[str], host: LabHost) -> None:
    """Run all calls of a fault's script on a host. `action`: `break` or `mend`."""
    common = (_SCRIPTS / "common.sh").read_text(encoding="utf-8")
    body = (_SCRIPTS / f"{definition.script_name}.sh").read_text(encoding="utf-8")
    for step in steps(definition, action, args, host):
        if not step.in_host:
            lab_system.at_switch(netns_name(host.lab, SWITCH), f"set -eu\n{body}", step.argv)
            continue
        before = '[ "$1" = mend ] || mkdir -p "$SAVE"\n'
        after = '[ "$1" = break ] || rm -rf "$SAVE"\n'
        lab_system.in_host(host, f"{common}{before}(\n{body}\n)\n{after}", step.argv)

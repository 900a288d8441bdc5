"""The faults of a lab's hosts: names, arguments, effects. Pure; `fault_injection.py` runs them.

A fault's script is fault_scripts/NAME.sh, run as `NAME.sh break|mend ARGS…` in the host or at the switch. Faults can be
removed and repeated. Two that would undo one another, such as a full disk and a read-only home, are refused with the
command that mends the first.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ipexctl.errors import UserError
from ipexctl.extras.lab import network
from ipexctl.extras.lab.state import LabHost

ALL_INTERFACES: Final = "all"


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    default: str
    parse: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    summary: str
    arguments: tuple[Argument, ...] = ()
    clashes: str = ""
    """Of the faults with the same value, a host has at most one."""
    program: str = ""
    package: str = ""
    """The required program, and its Debian package."""
    script: str = ""
    on_interface: bool = False
    """Acts on interfaces: the last argument names one, or all."""
    in_home: bool = False
    """Writes to the homes, so they must be writable to break and to mend."""
    at_switch: bool = False
    """Also acts on the switch's end of the link."""
    in_host: bool = True

    @property
    def usage(self) -> str:
        return " ".join([self.name, *(f"[{argument.name}]" for argument in self.arguments)])

    @property
    def script_name(self) -> str:
        return self.script or self.name


_RATE = re.compile(r"(\d+(?:\.\d+)?)(bit|kbit|mbit|gbit)")
_UNITS: Final = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def bits_per_second(rate: str) -> int:
    match = _RATE.fullmatch(rate.lower())
    bits = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if not 8000 <= bits <= 100 * 10**9:
        raise ValueError("a rate from 8kbit to 100gbit, such as 10mbit")
    return bits


def _rate(text: str) -> str:
    bits_per_second(text)
    return text.lower()


def _number(most: int, unit: str, expected: str) -> Callable[[str], str]:
    """Parses numbers above 0 and up to `most`, with or without the unit."""

    def parse(text: str) -> str:
        number = text.removesuffix(unit)
        if not re.fullmatch(r"\d+(\.\d+)?", number) or not 0 < float(number) <= most:
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
        "the cable is out: packets vanish, connections hang",
        (_INTERFACE,),
        on_interface=True,
        at_switch=True,
        in_host=False,
    ),
    Fault(
        "slow-link",
        "RATE in each direction, 10mbit unless given",
        (Argument("RATE", "10mbit", _rate), _INTERFACE),
        program="tc",
        package="iproute2",
        on_interface=True,
        at_switch=True,
    ),
    Fault(
        "packet-loss",
        "PERCENT of the packets are lost in each direction, 5 unless given",
        (Argument("PERCENT", "5", _number(100, "%", "a percentage above 0 and up to 100, such as 5")), _INTERFACE),
        program="iptables",
        package="iptables",
        on_interface=True,
    ),
    Fault(
        "firewall",
        "nothing may connect to it except to port 22",
        program="iptables",
        package="iptables",
    ),
    Fault("sshd-hang", "connections are accepted and never answered", clashes="sshd"),
    Fault("sshd-dead", "nothing listens: connections are refused", clashes="sshd"),
    Fault("changed-host-key", "sshd shows a key nobody has seen before", clashes="sshd"),
    Fault("full-disk", "no byte is left on its disk, nor on a shared home", program="fallocate", package="util-linux"),
    Fault("read-only-home", "no home can be written to"),
    Fault("noisy-rc", "every shell prints on stdout and stderr before it does anything", script="rc", in_home=True),
    Fault(
        "slow-rc",
        "every shell takes SECONDS to start, 3 unless given",
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
        "`date` is SECONDS ahead, or behind with a minus; 90 unless given",
        (Argument("SECONDS", "90", _skew),),
    ),
    Fault("no-names", "it knows no host but itself by name"),
)
_BY_NAME: Final = {fault.name: fault for fault in FAULTS}


def find_fault(name: str) -> Fault:
    fault = _BY_NAME.get(name)
    if fault is None:
        near = difflib.get_close_matches(name, _BY_NAME, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"there is no fault {name!r}{hint}", fix=f"one of: {', '.join(_BY_NAME)}")
    return fault


def read_arguments(fault: Fault, given: Sequence[str]) -> tuple[str, ...]:
    """All arguments in normal form, with defaults. An interface may be given without the arguments before it."""
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
    if fault.on_interface and args[-1] != ALL_INTERFACES and args[-1] not in network.interfaces(host):
        raise UserError(f"{host.name} has no {args[-1]}", fix=f"it has {' and '.join(network.interfaces(host))}")
    for other in host.faults:
        same_kind = fault.clashes and find_fault(other).clashes == fault.clashes
        blocks_writing = fault.in_home and other in _READ_ONLY_FAULTS
        if other != fault.name and (same_kind or blocks_writing):
            raise UserError(
                f"{other} is in force on {host.name}, and {fault.name} cannot be added to it",
                fix=f"ipexctl lab mend {host.lab}/{host.name} {other}",
            )


_READ_ONLY_FAULTS: Final = ("full-disk", "read-only-home")


@dataclass(frozen=True, slots=True)
class Step:
    argv: tuple[str, ...]
    in_host: bool


def steps(fault: Fault, action: str, args: Sequence[str], host: LabHost) -> tuple[Step, ...]:
    if not fault.on_interface:
        return (Step((action, fault.name, *args), in_host=True),)
    selected = network.interfaces(host) if args[-1] == ALL_INTERFACES else (args[-1],)
    script_args = _script_args(fault, args[:-1])
    result = []
    for interface in selected:
        if fault.in_host:
            result.append(Step((action, fault.name, interface, *script_args), in_host=True))
        if fault.at_switch:
            port = network.port_name(host, interface)
            result.append(Step((action, fault.name, port, *script_args), in_host=False))
    return tuple(result)


def _script_args(fault: Fault, args: Sequence[str]) -> tuple[str, ...]:
    if fault.name == "slow-link":
        bits = bits_per_second(args[0])
        # A bucket of 10 ms, and at least one unsegmented packet of 64 KB.
        return (f"{bits}bit", f"{max(bits // 8 // 100, 65536)}b")
    if fault.name == "packet-loss":
        return (f"{float(args[0]) / 100:.6f}",)
    return tuple(args)

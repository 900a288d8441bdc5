"""Output of the lab commands: a new lab's files, the list of labs, active faults.

Only a new lab's hostfile path goes to stdout, so that `"$(ipexctl lab up)"` works. Equal hosts share a row. JSON names
(`costumes`) are older than today's words, and stay.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any, Final

from ipexctl.hosts.nodeset import fold
from ipexctl.text import counted
from ipexctl.ui.messages import print_message, print_with_fix
from ipexctl.ui.results import group_by, print_json, value_json
from ipexctl.ui.table import show_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.extras.lab.labs import FoundLab, Lab, LabHost, RemovedLabs

_NOT_IN_JSON: Final = ("lab", "cpu_profile", "is_bastion", "behind_bastion")


def show_lab(lab: Lab, *, json: bool, quiet: bool) -> None:
    if json:
        print_json({"schema": "ipexctl.lab-up/1", "lab": _as_json(lab)})
        return
    if not quiet:
        behind = ", behind a bastion" if lab.bastion else ""
        print_message(f"lab {lab.name}: {counted(len(lab.hosts), 'host')} up{behind}")
        for label, path in _paths(lab).items():
            print_message(f"  {label:<12} {path}")
        if lab.slurm:
            first, *others = (host.name for host in lab.hosts)
            print_message(f"  {'Slurm':<12} {first} for logins, {fold(others)} to compute, without sshd")
            print_message(f"next: ipexctl lab ssh {lab.name}/{first} salloc -N {len(others)} ipexctl exec -- hostname")
        else:
            print_message(f"next: ipexctl exec -H {shlex.quote(str(lab.hostfile))} -- hostname")
        if len(lab.hosts) > 1:
            print_message(
                "note: the hosts share the cores of this machine; type run --omp 1, or ranks slow one another"
            )
    sys.stdout.write(f"{lab.hostfile}\n")
    sys.stdout.flush()


def show_removed(removed: RemovedLabs, *, json: bool, quiet: bool) -> None:
    if json:
        print_json({"schema": "ipexctl.lab-down/1", "labs": list(removed.labs), "hosts": removed.hosts})
    elif quiet:
        return
    elif removed.labs:
        print_message(f"removed {', '.join(removed.labs)} ({counted(removed.hosts, 'host')})")
    else:
        print_message("there was no lab to remove")


def show_labs(found: Sequence[FoundLab], *, json: bool) -> None:
    if json:
        print_json({"schema": "ipexctl.lab-list/1", "labs": [_found_as_json(lab) for lab in found]})
        return
    if not found:
        print_message("there is no lab; make one: ipexctl lab up --hosts 3")
        return
    rows = [row for item in found for row in _rows(item)]
    show_table(("lab", "host", "address", "internal", "user", "cpu", "broken"), rows)
    for item in found:
        if item.lab and item.condition == "up":
            print_message(f"{item.name}: -H {item.lab.hostfile}")
        text, fix = condition_text(item)
        if text:
            print_with_fix(f"{item.name}: {text}", fix)


def condition_text(found: FoundLab) -> tuple[str, str]:
    """What to know about a lab besides its hosts, and what to type; empty for a complete lab."""
    down = f"ipexctl lab down {shlex.quote(found.name)}"
    if found.condition == "busy":
        return f"process {found.holder} is making or removing it", ""
    if found.condition == "cut-short":
        return "it is not complete: its creation or removal was cut short", down
    if found.condition == "abandoned":
        pid = found.lab.maker.pid if found.lab and found.lab.maker else 0
        return f"a temporary lab of process {pid}, which has ended", down
    if found.condition == "unreadable":
        return "it has no record that this version can read", f"if it is yours: {down}"
    return (f"a temporary lab of process {found.holder}, which removes it", "") if found.holder else ("", "")


def show_cpu_profiles(*, json: bool) -> None:
    from ipexctl.extras.lab.cpu_profiles import CPU_PROFILES

    if json:
        print_json({"schema": "ipexctl.lab-costumes/1", "costumes": [c.name for c in CPU_PROFILES]})
        return
    show_table(
        ("cpu", "sockets x cores", "numa", "known for", "calls itself"),
        [
            (c.name, f"{c.sockets} x {c.cores}", str(c.sockets * c.numa_per_socket), c.known_for, c.model_name)
            for c in CPU_PROFILES
        ],
    )


def show_faults() -> None:
    from ipexctl.extras.lab.faults import FAULTS

    show_table(("fault", "what goes wrong"), [(fault.usage, fault.summary) for fault in FAULTS])


def show_broken(host: LabHost, fault: str) -> None:
    print_message(f"{host.name}: {fault} is in force; ipexctl lab mend {host.lab}/{host.name} {fault} takes it back")


def show_mended(before: LabHost, after: LabHost) -> None:
    mended = [name for name in before.faults if name not in after.faults]
    still = f"; still broken: {_faults(after)}" if after.faults else ""
    done = f"mended {', '.join(mended)}" if mended else "nothing to mend"
    print_message(f"{after.name}: {done}{still}")


def _rows(found: FoundLab) -> list[tuple[str, ...]]:
    lab = found.lab
    if lab is None:
        return [(found.name, *[""] * 6)]
    alike = group_by(lab.nodes, lambda host: (host.user, host.cpu_profile or "", _faults(host)))
    return [
        (
            lab.name,
            fold([host.name for host in hosts]),
            fold([host.address for host in hosts]),
            fold([host.internal for host in hosts if host.internal]),
            *kind,
        )
        for kind, hosts in alike.items()
    ]


def _paths(lab: Lab) -> dict[str, str]:
    return {name: str(getattr(lab, name)) for name in ("hostfile", "ssh_config", "key", "known_hosts", "inventory")}


def _found_as_json(found: FoundLab) -> dict[str, Any]:
    nothing = {"name": found.name, "hosts": []}
    return {
        **(_as_json(found.lab) if found.lab else nothing),
        "condition": found.condition,
        "process": found.holder,
    }


def _as_json(lab: Lab) -> dict[str, Any]:
    return {
        "name": lab.name,
        **_paths(lab),
        "hosts": [
            {**value_json(host, without=_NOT_IN_JSON), "cpu": host.cpu_profile, "bastion": host.is_bastion}
            for host in lab.nodes
        ],
    }


def _faults(host: LabHost) -> str:
    return ", ".join(" ".join((name, *args)) for name, args in host.faults.items())

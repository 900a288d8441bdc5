"""`ipexctl lab`: a cluster of real SSH hosts on one machine. `up` prints only the hostfile's path to stdout, so that
`"$(ipexctl lab up)"` works. The JSON name `costumes` is an old name of the CPU profiles and stays.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import typer

from ipexctl.addons.lab.cpu_profiles import CPU_PROFILES
from ipexctl.addons.lab.down import RemovedLabs, find_labs
from ipexctl.addons.lab.down import down as remove_labs
from ipexctl.addons.lab.faults import FAULTS, break_host, find_host, mend_host, ssh_argv
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import FoundLab, Lab, LabHost
from ipexctl.addons.lab.lab_record import load_all as list_labs
from ipexctl.addons.lab.up import up as make_lab
from ipexctl.commands.app import CommandGroup
from ipexctl.commands.option_groups import Output, argument, flag, option, subcommand
from ipexctl.errors import UserError
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import encode
from ipexctl.option_declaration import LAB_HOMES, LAB_HOSTS, LAB_USER
from ipexctl.text import format_count
from ipexctl.ui.message_output import print_message, print_with_fix
from ipexctl.ui.results import group_by, print_json
from ipexctl.ui.text_table import print_lines, show_table

_NOT_IN_JSON: Final = ("lab", "cpu_profile", "is_bastion", "behind_bastion")


def show_lab(lab: Lab, *, json: bool, quiet: bool) -> None:
    """Print the path of the hostfile to stdout, and what else there is to know to stderr; with `json`, print only the
    lab as JSON."""
    if json:
        print_json({"schema": "ipexctl.lab-up/1", "lab": _as_json(lab)})
        return
    if not quiet:
        behind = ", behind a bastion" if lab.bastion else ""
        print_message(f"lab {lab.name}: {format_count(len(lab.hosts), 'host')} up{behind}")
        for label, path in _paths(lab).items():
            print_message(f"  {label:<12} {path}")
        if lab.slurm:
            first, *others = (host.name for host in lab.hosts)
            print_message(f"  {'Slurm':<12} {first} for logins, {fold(others)} to compute, without sshd")
            print_message(f"next: ipexctl lab ssh {lab.name}/{first} salloc -N {len(others)} ipexctl exec -- hostname")
        else:
            print_message(Fix("next: `ipexctl exec -H {hostfile} -- hostname`", hostfile=str(lab.hostfile)))
        if len(lab.hosts) > 1:
            print_message(
                "note: the hosts share the cores of this machine; use run --omp 1, or the ranks slow each other down"
            )
    print_lines([str(lab.hostfile)])


def show_removed(removed: RemovedLabs, *, json: bool, quiet: bool) -> None:
    """Print which labs were removed."""
    if json:
        print_json({"schema": "ipexctl.lab-down/1", "labs": list(removed.labs), "hosts": removed.hosts})
    elif quiet:
        return
    elif removed.labs:
        print_message(f"removed {', '.join(removed.labs)} ({format_count(removed.hosts, 'host')})")
    else:
        print_message("there is no lab to remove")


def show_labs(found: Sequence[FoundLab], *, json: bool) -> None:
    """Print the hosts of each lab, where its hostfile is, and what is wrong with it."""
    if json:
        print_json({"schema": "ipexctl.lab-list/1", "labs": [_found_as_json(lab) for lab in found]})
        return
    if not found:
        print_message(Fix("there is no lab; to make one: `ipexctl lab up --hosts 3`"))
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
    """Return what to know about a lab besides its hosts, and the command to type; both empty for a complete lab."""
    down = Fix("`ipexctl lab down {found}`", found=found.name)
    if found.condition == "busy":
        return f"process {found.holder} is making or removing it", ""
    if found.condition == "cut-short":
        return "it is not complete: its creation or removal was cut short", down
    if found.condition == "abandoned":
        pid = found.lab.maker.pid if found.lab and found.lab.maker else 0
        return f"a temporary lab of process {pid}, which has exited", down
    if found.condition == "unreadable":
        return "this version can't read its record", "if it is yours: " + down
    return (f"a temporary lab of process {found.holder}, which removes it", "") if found.holder else ("", "")


def show_cpu_profiles(*, json: bool) -> None:
    """Print the CPU profiles; with `json`, only their names."""
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
    """Print the faults that a host can have."""
    show_table(("fault", "what goes wrong"), [(fault.usage, fault.summary) for fault in FAULTS])


def show_broken(host: LabHost, fault: str) -> None:
    """Say that a fault is active now, and how to undo it."""
    print_message(Fix(f"{host.name}: {fault} is active; to undo it: `ipexctl lab mend {host.lab}/{host.name} {fault}`"))


def show_mended(before: LabHost, after: LabHost) -> None:
    """Say which faults are gone, and which remain."""
    mended = [name for name in before.faults if name not in after.faults]
    still = f"; still broken: {_faults(after)}" if after.faults else ""
    done = f"mended {', '.join(mended)}" if mended else "nothing to mend"
    print_message(f"{after.name}: {done}{still}")


def _rows(found: FoundLab) -> list[tuple[str, ...]]:
    """Return the rows of a lab in the table: one for hosts that are alike."""
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
    """Return a lab in any condition for `--json`."""
    nothing = {"name": found.name, "hosts": []}
    return {
        **(_as_json(found.lab) if found.lab else nothing),
        "condition": found.condition,
        "process": found.holder,
    }


def _as_json(lab: Lab) -> dict[str, Any]:
    """Return a lab with its files and hosts for `--json`."""
    return {
        "name": lab.name,
        **_paths(lab),
        "hosts": [
            {**encode(host, without=_NOT_IN_JSON), "cpu": host.cpu_profile, "bastion": host.is_bastion}
            for host in lab.nodes
        ],
    }


def _faults(host: LabHost) -> str:
    return ", ".join(" ".join((name, *args)) for name, args in host.faults.items())


lab_command = typer.Typer(
    cls=CommandGroup,
    help="Create, break, mend and remove a cluster of real SSH hosts on one machine (Linux, root).",
    epilog="Example: ipexctl lab up --hosts 3",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


def _lab_names() -> list[str]:
    return [lab.name for lab in list_labs()]


def _hosts_of_labs(ctx: typer.Context) -> list[str]:
    chosen = ctx.params.get("lab")
    hosts = [host for lab in list_labs() if chosen in (None, lab.name) for host in lab.hosts]
    count = Counter(host.name for host in hosts)
    return [host.name if count[host.name] == 1 else f"{host.lab}/{host.name}" for host in hosts]


def _fault_names() -> list[str]:
    return ["list", *(fault.name for fault in FAULTS)]


def _active_faults(ctx: typer.Context) -> list[str]:
    try:
        return list(find_host(ctx.params.get("name") or "", ctx.params.get("lab")).faults)
    except UserError:
        return []


LAB = option("--lab LAB", "Name of the lab, if there are several.", autocompletion=_lab_names)
NODE = argument("NAME", "Host of the lab: node2, or LAB/node2.", autocompletion=_hosts_of_labs)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip()) if text else ()


def _one_name(command: str, name: str | None, lab: str | None) -> str | None:
    """Return the lab that a call names in one of two ways, or None. Raises a UserError if it names two."""
    if name is not None and lab not in (None, name):
        raise UserError(
            f"two lab names: {name} and --lab {lab}",
            fix=Fix("`ipexctl lab {command} {name}`", command=command, name=name),
        )
    return name or lab


def _exit_on_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda received, _: sys.exit(128 + received))


@subcommand(lab_command, "up")
def up(
    *,
    name: str | None = argument("[NAME]", "Name of the lab (default: lab, else lab2, …).", default=None),
    hosts: int = option("--hosts -n N", "Number of hosts (default: {default}).", LAB_HOSTS, min=1, max=400),
    lab: str | None = option("--lab LAB", "The same."),
    cpu: str | None = option("--cpu NAME,…", "CPU profiles, assigned to the hosts in turn; 'list' shows all."),
    shared_home: bool = flag("--shared-home", "Share one home directory between all hosts, as on NFS."),
    bastion: bool = flag("--bastion", "Put the hosts behind a bastion host."),
    internal: bool = flag("--internal", "Add a second network that only the hosts can reach."),
    slurm: bool = flag("--slurm", "Set up Slurm: the first host for logins, the others as compute nodes without sshd."),
    names: bool = flag("--names/--no-names", "Let the hosts resolve each other's names (default: --names).", True),
    users: str = option("--users NAME,…", "Accounts, assigned to the hosts in turn (default: {default}).", LAB_USER),
    homes: str = option(
        "--homes DIR,…", "Parents of the home directories, assigned in turn (default: {default}).", LAB_HOMES
    ),
    output: Output,
) -> None:
    """Create a lab, as root, and print the path of its hostfile.

    `ipexctl lab down NAME` removes it.

    \b
    Example: ipexctl exec -H "$(ipexctl lab up --hosts 3)" -- hostname
    """
    if cpu == "list":
        show_cpu_profiles(json=output.json)
        return

    _exit_on_signals()  # both signals remove the unfinished lab, like Ctrl-C
    spec = LabSpec(
        hosts=hosts,
        name=_one_name("up", name, lab),
        cpus=_listed(cpu),
        shared_home=shared_home,
        bastion=bastion,
        internal=internal,
        names=names,
        slurm=slurm,
        users=_listed(users),
        homes=_listed(homes),
    )
    show_lab(make_lab(spec), json=output.json, quiet=output.quiet)


@subcommand(lab_command, "down")
def down(
    *,
    name: str | None = argument(
        "[NAME]", "Name of the lab, if there are several.", default=None, autocompletion=_lab_names
    ),
    lab: str | None = option("--lab LAB", "The same."),
    remove_all: bool = flag("--all", "Remove all labs of this machine."),
    output: Output,
) -> None:
    """Remove a lab.

    Without a name: the only lab, and the remains of labs whose creation or removal was cut short.

    \b
    Example: ipexctl lab down lab2
    """
    show_removed(remove_labs(_one_name("down", name, lab), remove_all=remove_all), json=output.json, quiet=output.quiet)


@subcommand(lab_command, "list")
def list_command(
    *,
    output: Output,
) -> None:
    """List the labs on this machine, including incomplete ones, with their hosts and active faults.

    \b
    Example: ipexctl lab list --json
    """
    show_labs(find_labs(), json=output.json)


@subcommand(lab_command, "ssh", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def ssh(
    name: str = NODE,
    command: list[str] | None = argument("[CMD ARGS…]", default=None),
    lab: str | None = LAB,
) -> None:
    """Log in to a host of the lab with ssh, or run a command there.

    \b
    Example: ipexctl lab ssh node2
    """

    argv = ssh_argv(find_host(name, lab), command or ())
    os.execvp(argv[0], argv)  # noqa: S606  # ssh takes over the terminal


# `clock-skew -90`: -90 is not an option.
@subcommand(lab_command, "break", context_settings={"ignore_unknown_options": True})
def break_command(
    name: str = NODE,
    fault: str | None = argument(
        "[FAULT]", "Fault to inject; 'list' shows all.", default=None, autocompletion=_fault_names
    ),
    args: list[str] | None = argument("[ARGS…]", default=None),
    lab: str | None = LAB,
) -> None:
    """Inject a fault on a host.

    \b
    Example: ipexctl lab break node2 slow-link 10mbit
    """
    if "list" in (name, fault):
        show_faults()
        return
    if fault is None:
        raise UserError("which fault?", fix=Fix("`ipexctl lab break list` shows all"))
    show_broken(break_host(find_host(name, lab), fault, tuple(args or ())), fault)


@subcommand(lab_command, "mend")
def mend(
    name: str = NODE,
    fault: str | None = argument("[FAULT]", default=None, autocompletion=_active_faults),
    lab: str | None = LAB,
) -> None:
    """Remove one fault or all faults of a host.

    \b
    Example: ipexctl lab mend node2
    """
    before = find_host(name, lab)
    show_mended(before, mend_host(before, fault))

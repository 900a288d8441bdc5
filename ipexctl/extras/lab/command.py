"""`ipexctl lab`: a cluster of real SSH hosts on one machine, for tests and fault injection.

`up` prints the hostfile's path to stdout, for use in another command. SIGTERM and SIGHUP remove an unfinished lab like
Ctrl-C. `ssh` replaces this process.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter

import typer

from ipexctl.commands.shared_options import Output, argument, flag, option, subcommand
from ipexctl.errors import UserError
from ipexctl.extras.lab import labs
from ipexctl.extras.lab import view as ui
from ipexctl.option_defaults import LAB_HOMES, LAB_HOSTS, LAB_USER

lab_command = typer.Typer(
    help="Create, break, mend and remove a cluster of real SSH hosts on one machine (Linux, root).",
    epilog="Example: ipexctl lab up --hosts 3",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


def _lab_names() -> list[str]:
    return [lab.name for lab in labs.list_labs()]


def _hosts_of_labs(ctx: typer.Context) -> list[str]:
    chosen = ctx.params.get("lab")
    hosts = [host for lab in labs.list_labs() if chosen in (None, lab.name) for host in lab.hosts]
    count = Counter(host.name for host in hosts)
    return [host.name if count[host.name] == 1 else f"{host.lab}/{host.name}" for host in hosts]


def _faults() -> list[str]:
    return ["list", *(fault.name for fault in labs.FAULTS)]


def _active_faults(ctx: typer.Context) -> list[str]:
    try:
        return list(labs.find_host(ctx.params.get("name") or "", ctx.params.get("lab")).faults)
    except UserError:
        return []


LAB = option("--lab LAB", "Name of the lab, if there are several.", autocompletion=_lab_names)
NODE = argument("NAME", "Host of the lab: node2, or LAB/node2.", autocompletion=_hosts_of_labs)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip()) if text else ()


def _one_name(command: str, name: str | None, lab: str | None) -> str | None:
    if name is not None and lab not in (None, name):
        raise UserError(f"two names of a lab: {name} and --lab {lab}", fix=f"ipexctl lab {command} {name}")
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
    slurm: bool = flag("--slurm", "Make a Slurm: the first host for logins, the others compute nodes without sshd."),
    names: bool = flag("--names/--no-names", "Let the hosts resolve one another's names (default: --names).", True),
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
        ui.show_cpu_profiles(json=output.json)
        return

    _exit_on_signals()  # like Ctrl-C, they remove the unfinished lab
    spec = labs.LabSpec(
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
    ui.show_lab(labs.up(spec), json=output.json, quiet=output.quiet)


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
    ui.show_removed(
        labs.down(_one_name("down", name, lab), remove_all=remove_all), json=output.json, quiet=output.quiet
    )


@subcommand(lab_command, "list")
def list_command(
    *,
    output: Output,
) -> None:
    """List the labs on this machine, their hosts and the active faults; also labs that are not complete.

    \b
    Example: ipexctl lab list --json
    """
    ui.show_labs(labs.find_labs(), json=output.json)


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

    argv = labs.ssh_argv(labs.find_host(name, lab), command or ())
    os.execvp(argv[0], argv)  # noqa: S606  # ssh takes over the terminal


# `clock-skew -90`: -90 is no option.
@subcommand(lab_command, "break", context_settings={"ignore_unknown_options": True})
def break_command(
    name: str = NODE,
    fault: str = argument("FAULT", "Fault to inject; 'list' shows all.", autocompletion=_faults),
    args: list[str] | None = argument("[ARGS…]", default=None),
    lab: str | None = LAB,
) -> None:
    """Inject a fault on a host.

    \b
    Example: ipexctl lab break node2 slow-link 10mbit
    """
    if fault == "list":
        ui.show_faults()
        return

    ui.show_broken(labs.break_host(labs.find_host(name, lab), fault, tuple(args or ())), fault)


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
    before = labs.find_host(name, lab)
    ui.show_mended(before, labs.mend_host(before, fault))

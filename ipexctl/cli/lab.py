"""`ipexctl lab`: a cluster of real SSH hosts on one machine, for tests and fault injection."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from ipexctl.cli.defaults import ConfiguredCommand
from ipexctl.cli.options import Output, grouped, option

lab_command = typer.Typer(
    help="Create, break, mend and remove a cluster of real SSH hosts on one machine (Linux, root).",
    epilog="Example: ipexctl lab up --hosts 3",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

LabName = Annotated[str | None, option("--lab", metavar="LAB", help="Name of the lab, if there are several.")]
NodeName = Annotated[str, typer.Argument(metavar="NAME", help="Host of the lab: node2, or LAB/node2.")]


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip()) if text else ()


@lab_command.command("up", cls=ConfiguredCommand)
@grouped
def up(
    *,
    hosts: Annotated[
        int,
        option("--hosts", "-n", min=1, max=400, metavar="N", help="Number of hosts (default: 3)."),
    ] = 3,
    lab: Annotated[
        str | None, option("--lab", metavar="LAB", help="Name of the lab (default: lab, else lab2, …).")
    ] = None,
    cpu: Annotated[
        str | None,
        option("--cpu", metavar="NAME,…", help="CPU profiles, assigned to the hosts in turn; 'list' shows all."),
    ] = None,
    shared_home: Annotated[
        bool, option("--shared-home", help="Share one home directory between all hosts, as on NFS.")
    ] = False,
    bastion: Annotated[bool, option("--bastion", help="Put the hosts behind a bastion host.")] = False,
    internal: Annotated[bool, option("--internal", help="Add a second network that only the hosts can reach.")] = False,
    names: Annotated[
        bool,
        option("--names/--no-names", help="Let the hosts resolve one another's names (default: --names)."),
    ] = True,
    users: Annotated[
        str,
        option("--users", metavar="NAME,…", help="Accounts, assigned to the hosts in turn (default: ipex)."),
    ] = "ipex",
    homes: Annotated[
        str,
        option("--homes", metavar="DIR,…", help="Parents of the home directories, assigned in turn (default: /home)."),
    ] = "/home",
    output: Output,
) -> None:
    """Create a lab and print the path of its hostfile.

    \b
    Example: ipexctl exec -H "$(ipexctl lab up --hosts 3)" -- hostname
    """
    from ipexctl.ui import lab as ui

    if cpu == "list":
        ui.show_cpu_profiles(json=output.json)
        return
    from ipexctl.lab import LabSpec
    from ipexctl.lab import up as make

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # like Ctrl-C, it removes the unfinished lab
    spec = LabSpec(
        hosts=hosts,
        name=lab,
        cpus=_listed(cpu),
        shared_home=shared_home,
        bastion=bastion,
        internal=internal,
        names=names,
        users=_listed(users),
        homes=_listed(homes),
    )
    ui.show_lab(make(spec), json=output.json, quiet=output.quiet)


@lab_command.command("down", cls=ConfiguredCommand)
@grouped
def down(
    *,
    lab: LabName = None,
    remove_all: Annotated[bool, option("--all", help="Remove all labs of this machine.")] = False,
    output: Output,
) -> None:
    """Remove a lab and the remains of crashed ones; with several labs, --lab or --all says which.

    \b
    Example: ipexctl lab down --lab lab2
    """
    from ipexctl.lab import down as remove
    from ipexctl.ui import lab as ui

    ui.show_removed(remove(lab, remove_all=remove_all), json=output.json, quiet=output.quiet)


@lab_command.command("list", cls=ConfiguredCommand)
@grouped
def list_command(
    *,
    output: Output,
) -> None:
    """List the labs on this machine, their hosts and the active faults.

    \b
    Example: ipexctl lab list --json
    """
    from ipexctl.lab import list_labs
    from ipexctl.ui import lab as ui

    ui.show_labs(list_labs(), json=output.json)


@lab_command.command("ssh", cls=ConfiguredCommand, context_settings={"ignore_unknown_options": True})
def ssh(
    name: NodeName,
    command: Annotated[list[str] | None, typer.Argument(metavar="[CMD ARGS…]", show_default=False)] = None,
    lab: LabName = None,
) -> None:
    """Log in to a host of the lab with ssh, or run a command there.

    \b
    Example: ipexctl lab ssh node2
    """
    from ipexctl.lab import find_host, ssh_argv

    argv = [*ssh_argv(find_host(name, lab)), *(command or [])]
    os.execvp(argv[0], argv)  # noqa: S606  # ssh takes over the terminal


# `clock-skew -90`: -90 is no option.
@lab_command.command("break", cls=ConfiguredCommand, context_settings={"ignore_unknown_options": True})
def break_command(
    name: NodeName,
    fault: Annotated[str, typer.Argument(metavar="FAULT", help="Fault to inject; 'list' shows all.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="[ARGS…]", show_default=False)] = None,
    lab: LabName = None,
) -> None:
    """Inject a fault on a host.

    \b
    Example: ipexctl lab break node2 slow-link 10mbit
    """
    from ipexctl.ui import lab as ui

    if fault == "list":
        ui.show_faults()
        return
    from ipexctl.lab import break_host, find_host

    ui.show_broken(break_host(find_host(name, lab), fault, tuple(args or ())), fault)


@lab_command.command("mend", cls=ConfiguredCommand)
def mend(
    name: NodeName,
    fault: Annotated[str | None, typer.Argument(metavar="[FAULT]", show_default=False)] = None,
    lab: LabName = None,
) -> None:
    """Remove one fault or all faults of a host.

    \b
    Example: ipexctl lab mend node2
    """
    from ipexctl.lab import find_host, mend_host
    from ipexctl.ui import lab as ui

    before = find_host(name, lab)
    ui.show_mended(before, mend_host(before, fault))

"""`ipexctl lab`: a cluster of real SSH hosts on this machine, to try things on and to break."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from ipexctl.cli.options import Output, shared

app = typer.Typer(
    help="Make a cluster of real SSH hosts on this machine (Linux, root), break it, mend it, remove it.",
    epilog="Example: ipexctl lab up --hosts 3",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

LabName = Annotated[str | None, typer.Option("--lab", metavar="LAB", help="Which lab, where there are several.")]
NodeName = Annotated[str, typer.Argument(metavar="NAME", help="A host of the lab: node2, or LAB/node2.")]


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip()) if text else ()


@app.command("up")
@shared(Output)
def up(
    output: Output,
    hosts: Annotated[int, typer.Option("--hosts", "-n", min=1, max=200, metavar="N", help="How many hosts.")] = 3,
    lab: Annotated[str | None, typer.Option("--lab", metavar="LAB", help="Its name; else lab, lab2, …")] = None,
    cpu: Annotated[
        str | None,
        typer.Option("--cpu", metavar="NAME,…", help="CPU costumes, for the hosts in turn; 'list' shows all."),
    ] = None,
    shared_home: Annotated[bool, typer.Option("--shared-home", help="One home directory on all, as on NFS.")] = False,
    bastion: Annotated[bool, typer.Option("--bastion", help="Put the hosts behind a bastion.")] = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="A second network among the hosts, apart from the one you reach.")
    ] = False,
    names: Annotated[
        bool, typer.Option("--names/--no-names", help="Whether the hosts know one another's names.")
    ] = True,
    users: Annotated[str, typer.Option("--users", metavar="NAME,…", help="Accounts, for the hosts in turn.")] = "ipex",
    homes: Annotated[
        str, typer.Option("--homes", metavar="DIR,…", help="Where homes lie, for the hosts in turn.")
    ] = "/home",
) -> None:
    """Make a lab; its hostfile's path is the answer on stdout.

    \b
    Example: ipexctl exec -H "$(ipexctl lab up --hosts 3)" -- hostname
    """
    from ipexctl.ui import lab as ui

    if cpu == "list":
        ui.show_cpu_profiles(json=output.json)
        return
    from ipexctl.lab import LabSpec
    from ipexctl.lab import up as make

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C does, it takes the unfinished lab away
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


@app.command("down")
@shared(Output)
def down(output: Output, lab: LabName = None) -> None:
    """Remove a lab; without --lab every lab of this machine, and what crashed ones have left.

    \b
    Example: ipexctl lab down --lab lab2
    """
    from ipexctl.lab import down as remove
    from ipexctl.ui import lab as ui

    ui.show_removed(remove(lab), json=output.json, quiet=output.quiet)


@app.command("list")
@shared(Output)
def list_command(output: Output) -> None:
    """Show the labs of this machine, their hosts, and the faults in force.

    \b
    Example: ipexctl lab list --json
    """
    from ipexctl.lab import list_labs
    from ipexctl.ui import lab as ui

    ui.show_labs(list_labs(), json=output.json)


@app.command("ssh", context_settings={"ignore_unknown_options": True})
def ssh(
    name: NodeName,
    command: Annotated[list[str] | None, typer.Argument(metavar="[CMD ARGS…]", show_default=False)] = None,
    lab: LabName = None,
) -> None:
    """Log into a host of the lab, or run a command there, with the plain ssh program.

    \b
    Example: ipexctl lab ssh node2
    """
    from ipexctl.lab import find_host, ssh_argv

    argv = [*ssh_argv(find_host(name, lab)), *(command or [])]
    os.execvp(argv[0], argv)  # noqa: S606  # the terminal is ssh's from here on


@app.command("break", context_settings={"ignore_unknown_options": True})  # clock-skew -90
def break_command(
    name: NodeName,
    fault: Annotated[str, typer.Argument(metavar="FAULT", help="What goes wrong; 'list' shows all faults.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="[ARGS…]", show_default=False)] = None,
    lab: LabName = None,
) -> None:
    """Let something go wrong on a host.

    \b
    Example: ipexctl lab break node2 slow-link 10mbit
    """
    from ipexctl.ui import lab as ui

    if fault == "list":
        ui.show_faults()
        return
    from ipexctl.lab import break_host, find_host

    ui.say_broken(break_host(find_host(name, lab), fault, tuple(args or ())), fault)


@app.command("mend")
def mend(
    name: NodeName,
    fault: Annotated[str | None, typer.Argument(metavar="[FAULT]", show_default=False)] = None,
    lab: LabName = None,
) -> None:
    """Take back a fault, or all faults of a host.

    \b
    Example: ipexctl lab mend node2
    """
    from ipexctl.lab import find_host, mend_host
    from ipexctl.ui import lab as ui

    before = find_host(name, lab)
    ui.say_mended(before, mend_host(before, fault))

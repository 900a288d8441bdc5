"""`ipexctl trust`: sets up or revokes ssh logins from node0 to every node."""

from __future__ import annotations

from typing import Annotated

import typer

from ipexctl.cli.options import Home, HostKeyPolicy, Output, Targets, shared

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
@shared(Targets, Home, Output)
def trust_command(
    targets: Targets,
    home: Home,
    output: Output,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Remove the key, lines and files that trust added, and nothing else.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would change; change nothing.")] = False,
) -> None:
    """Let node0, the first host, log in to every node by ssh, as mpirun needs.

    The private key is created on node0 and never leaves it. Each
    authorized_keys gets one line, which accepts the key only from node0's
    addresses and only for commands. If node0 can log in already, nothing
    changes.

    \b
    Example: ipexctl trust --hosts 'node[1-4]'
    """
    from ipexctl.cli.hosts import check_home, choose_hosts, connect_options, host_options
    from ipexctl.cli.interrupt import cancelling
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.connector import Connector
    from ipexctl.trust import setup as trust_setup
    from ipexctl.trust.host_steps import TrustSteps
    from ipexctl.ui.messages import print_message
    from ipexctl.ui.trust import show, show_json

    home_dir = check_home(home)
    hosts = choose_hosts(targets)
    cancel = Cancel()

    with (
        cancelling(cancel) as interrupt,
        Connector(connect_options(targets, output)) as connector,
        TrustSteps(hosts, connector, cancel, forks=targets.forks, timeout=targets.timeout) as pool,
    ):
        if revoke:
            report = trust_setup.revoke(pool, home=home_dir, dry_run=dry_run)
        else:
            report = trust_setup.trust(pool, home=home_dir, iface=home.iface, dry_run=dry_run)
    if targets.host_keys is HostKeyPolicy.off and report.by == "config":
        print_message("note: with --host-keys off nobody has checked the host keys that node0 was given")
    if output.json:
        show_json(report)
    else:
        show(report, quiet=output.quiet, no_color=output.no_color, options=host_options(targets, home))
    raise typer.Exit(interrupt.code if interrupt.code is not None else report.exit_code)

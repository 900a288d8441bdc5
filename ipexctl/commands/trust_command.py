"""`ipexctl trust`: sets up or revokes ssh logins from node0 to every node."""

from __future__ import annotations

from ipexctl.commands.shared_options import Home, Output, Targets, command, flag


@command()
def trust_command(
    *,
    revoke: bool = flag("--revoke", "Remove the key, lines and files that trust added, and nothing else."),
    dry_run: bool = flag("--dry-run", "Print what would change; change nothing."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Let node0, the first host, log in to every node by ssh, as mpirun needs.

    The private key is created on node0 and never leaves it. Each
    authorized_keys gets one line: the key works only from node0's addresses,
    without a terminal or tunnels. If node0 can log in already, nothing
    changes.

    \b
    Example: ipexctl trust --hosts 'node[1-4]'
    """
    from ipexctl.api.hosts import trust
    from ipexctl.commands.target_hosts import open_hosts
    from ipexctl.ui.messages import print_message
    from ipexctl.ui.trust import as_json, show

    with open_hosts(targets, home, output, announces=False) as (opened, interrupt):
        report = trust(opened, revoke=revoke, dry_run=dry_run)
    if targets.host_keys == "off" and report.by == "config":
        print_message("note: with --host-keys off, the host keys on node0 are not verified")
    output.print_report(report, as_json, show, options=opened.options.hosts)
    raise interrupt.or_exit(report.exit_code)

"""`ipexctl trust`: sets up or revokes ssh logins from node0 to every node."""

from __future__ import annotations

from ipexctl.cli.options import Home, Output, Targets, command, flag


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
    from ipexctl.cli.hosts import call_options, check_home, choose_hosts, session_pool
    from ipexctl.trust import setup
    from ipexctl.ui.messages import print_message
    from ipexctl.ui.trust import as_json, show

    home_dir = check_home(home)
    hosts = choose_hosts(targets)
    call = call_options(targets, home)
    options = setup.TrustOptions(home_dir, home.iface, targets.timeout, dry_run)
    with session_pool(targets, output, hosts=hosts, quiet=True) as (pool, interrupt):
        report = (setup.revoke if revoke else setup.trust)(hosts, pool, options)
    if targets.host_keys == "off" and report.by == "config":
        print_message("note: with --host-keys off, the host keys on node0 are not verified")
    output.print_report(call.in_report(report), as_json, show, options=call.hosts)
    raise interrupt.or_exit(report.exit_code)

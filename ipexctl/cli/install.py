"""`ipexctl install`: one matching stack on every node, verified."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ipexctl.cli import complete
from ipexctl.cli.options import Home, Output, Targets, shared

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
@shared(Targets, Home, Output)
def install_command(
    targets: Targets,
    home: Home,
    output: Output,
    torch: Annotated[str | None, typer.Option("--torch", metavar="V", help="This torch: 2.8, 2.8.0.")] = None,
    stack: Annotated[
        str | None,
        typer.Option("--stack", metavar="NAME", help="A row by its name, or the newest of a kind: ipex, torch."),
    ] = None,
    ipex: Annotated[str | None, typer.Option("--ipex", metavar="V", help="This IPEX.")] = None,
    oneccl: Annotated[str | None, typer.Option("--oneccl", metavar="V", help="These oneCCL bindings.")] = None,
    python: Annotated[str | None, typer.Option("--python", metavar="V", help="This Python: 3.11.")] = None,
    require_oneccl: Annotated[
        bool, typer.Option("--require-oneccl", help="Refuse where the oneCCL bindings can't be had.")
    ] = False,
    env: Annotated[
        str, typer.Option("--env", metavar="NAME", autocompletion=complete.environments, help="The environment's name.")
    ] = "default",
    requirements: Annotated[
        list[Path] | None,
        typer.Option(
            "--requirement", "-r", readable=False, metavar="FILE", help="Your packages too, torch stays as it is."
        ),
    ] = None,
    packages: Annotated[
        list[str] | None, typer.Option("--with", metavar="PKG", help="This package too: 'peft>=0.17'. May be repeated.")
    ] = None,
    index_url: Annotated[
        str | None, typer.Option("--index-url", metavar="URL", help="This index instead of all others.")
    ] = None,
    extra_index_url: Annotated[
        list[str] | None, typer.Option("--extra-index-url", metavar="URL", help="This index, too.")
    ] = None,
    find_links: Annotated[
        list[str] | None, typer.Option("--find-links", metavar="DIR|URL", help="Wheels that lie here, too.")
    ] = None,
    wheelhouse: Annotated[
        str | None,
        typer.Option("--wheelhouse", metavar="DIR|URL", help="Wheels from here first; indexes for what it lacks."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no index; only directories the call names.")] = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Decide anew, also where an environment for this request is there.")
    ] = False,
    download_only: Annotated[
        Path | None,
        typer.Option("--download-only", readable=False, metavar="DIR", help="Fill a wheelhouse here; touch no host."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be installed; install nothing.")] = False,
) -> None:
    """Put PyTorch, IPEX, oneCCL bindings and MPI that belong together on every host.

    Needs no root, and nothing on the hosts but Python and sshd. Each wheel
    crosses your link once; the hosts hand it on. An environment is there
    whole or not at all, and each host proves that it works.

    \b
    Example: ipexctl install --hosts 'node[1-4]' --with transformers
    """
    from ipexctl.cli.hosts import check_home, choose_hosts, reach_options
    from ipexctl.cli.interrupt import cancelling
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.connector import Connector
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.stack.catalog.user_table import known_rows
    from ipexctl.stack.env.names import check_env_name
    from ipexctl.stack.install import install
    from ipexctl.stack.install_context import InstallRequest
    from ipexctl.stack.lock.request import check_request, sources_of, wanted_packages
    from ipexctl.stack.resolve.request import EnvRequest, StackRequest
    from ipexctl.ui.install import show, show_json
    from ipexctl.ui.install_view import InstallView

    where = check_home(home)
    wanted = wanted_packages(packages or (), requirements or ())
    asked = StackRequest(torch, stack, ipex, oneccl, python, require_oneccl)
    rows = known_rows(os.environ)
    check_request(asked, rows)
    wishes = InstallRequest(
        env=EnvRequest(
            StackRequest(torch, stack, ipex, oneccl, python, require_oneccl), wanted.lines, wanted.constraints
        ),
        sources=sources_of(
            wanted.sources,
            index_url=index_url,
            extra_index_urls=tuple(extra_index_url or ()),
            find_links=tuple(find_links or ()),
            wheelhouse=wheelhouse,
            offline=offline,
        ),
        rows=rows,
        origins=wanted.origins,
        name=check_env_name(env),
        home=where,
        iface=home.iface,
        timeout=targets.timeout,
        dry_run=dry_run,
        upgrade=upgrade,
    )
    named = targets.hosts is not None or targets.hostfile is not None
    hosts = () if download_only is not None and not named else choose_hosts(targets)
    cancel = Cancel()
    view = InstallView(quiet=output.quiet, verbose=output.verbose > 0, no_color=output.no_color)
    with (
        cancelling(cancel) as interrupt,
        Connector(reach_options(targets, output if output.verbose > 1 else None)) as connector,
        SessionPool(connector, cancel, forks=targets.forks) as pool,
        view,
    ):
        if download_only is not None:
            from ipexctl.stack.download import download

            report = download(hosts, wishes, pool, download_only, view.watch)
        else:
            report = install(hosts, wishes, pool, view.watch)
    if output.json:
        show_json(report)
    else:
        show(report, quiet=output.quiet, no_color=output.no_color)
    sys.stdout.flush()
    raise typer.Exit(interrupt.code if interrupt.code is not None else report.exit_code)

"""`ipexctl install`: installs and verifies one matching stack on every node."""

from __future__ import annotations

from pathlib import Path

from ipexctl.commands import complete
from ipexctl.commands.shared_options import (
    PACKAGES,
    REQUIREMENTS,
    Home,
    Output,
    StackOptions,
    Targets,
    command,
    flag,
    option,
)
from ipexctl.option_defaults import DEFAULT_ENV


@command()
def install_command(
    *,
    stack: StackOptions,
    env: str = option(
        "--env NAME", "Name of the environment (default: {default}).", DEFAULT_ENV, autocompletion=complete.environments
    ),
    requirements: list[Path] | None = REQUIREMENTS,
    packages: list[str] | None = PACKAGES,
    build: list[str] | None = option(
        "--build NAME", "Package that one host builds from its source for all, which runs its code; repeatable."
    ),
    index_url: str | None = option("--index-url URL", "Package index in place of all others."),
    extra_index_url: list[str] | None = option("--extra-index-url URL", "Further package index; repeatable."),
    find_links: list[str] | None = option("--find-links DIR|URL", "Further directory or page of wheels; repeatable."),
    wheelhouse: str | None = option("--wheelhouse DIR|URL", "Wheels to prefer; the indexes serve what is missing."),
    offline: bool = flag("--offline", "Use no index, only directories of wheels (--wheelhouse, --find-links)."),
    upgrade: bool = flag("--upgrade", "Resolve again, even if an environment for this request exists."),
    downgrade: bool = flag("--downgrade", "Accept lower versions and lost packages in the environment of this name."),
    download_only: Path | None = option("--download-only DIR", "Download wheels to this directory; touch no host."),
    dry_run: bool = flag("--dry-run", "Print what would be installed; install nothing."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Install one matching PyTorch stack on every host.

    A stack is PyTorch and MPI, with IPEX and oneCCL if it has them. The
    default is the stack that is installed, else IPEX with oneCCL if the
    indexes have all of it, else the newest PyTorch. The hosts need Python and
    sshd, but no root and no internet: the first host gets each wheel once, and
    the others copy it. Each host verifies that the environment works.

    \b
    Example: ipexctl install --hosts 'node[1-4]' --with transformers
    """
    from ipexctl.api.hosts import InstallOptions, install
    from ipexctl.commands.target_hosts import open_hosts

    hosts = () if download_only is not None and not targets.names_hosts else None
    with open_hosts(targets, home, output, hosts=hosts, steps_from=2) as (opened, interrupt):
        opened.pool.warm(opened.hosts)  # connect while modules are imported
        from ipexctl.stack.resolve.model import Sources, StackRequest
        from ipexctl.ui.install import as_json, show
        from ipexctl.ui.progress_view import ProgressView

        with ProgressView(quiet=output.quiet, verbose=output.verbose > 0, no_color=output.no_color) as view:
            report = install(
                opened,
                StackRequest(**vars(stack)),
                Sources(index_url, tuple(extra_index_url or ()), tuple(find_links or ()), wheelhouse, offline),
                env=env,
                packages=packages or (),
                requirements=requirements or (),
                options=InstallOptions(upgrade, downgrade, dry_run, download_only, build or ()),
                watch=view.watch,
            )
    output.print_report(report, as_json, show)
    raise interrupt.or_exit(report.exit_code)

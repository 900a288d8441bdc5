"""`ipexctl envs`: lists, removes or verifies the environments on every host."""

from __future__ import annotations

from ipexctl.commands import complete
from ipexctl.commands.shared_options import Home, Output, Targets, command, flag, option
from ipexctl.errors import UserError
from ipexctl.option_defaults import DEFAULT_ENV


@command()
def envs_command(
    *,
    remove: list[str] | None = option(
        "--remove NAME", "Remove this environment; repeatable.", autocompletion=complete.environments
    ),
    prune: bool = flag(
        "--prune", "Remove cached wheels, leftovers of interrupted installs, and environments without a name."
    ),
    verify: bool = flag("--verify", "Verify on every host that an environment works."),
    env: str | None = option(
        "--env NAME", f"Environment for --verify (default: {DEFAULT_ENV}).", autocompletion=complete.environments
    ),
    python: str | None = option("--python PATH", "Python of a venv or conda environment for --verify."),
    setup: str | None = option("--setup FILE", "File on the hosts to source before --python."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """List the environments on every host, remove some, or verify one.

    \b
    Example: ipexctl envs --hosts 'node[1-4]' --remove default
    """
    from ipexctl.api.hosts import EnvsRequest, envs
    from ipexctl.commands.target_hosts import open_hosts
    from ipexctl.ui.envs import as_json, show

    request = EnvsRequest(remove=tuple(remove or ()), prune=prune, verify=verify, env=env, python=python, setup=setup)
    named = {"env": env, "python": python, "setup": setup}
    if not verify and any(value and name not in targets.defaults for name, value in named.items()):
        raise UserError("--env, --python and --setup need --verify", fix="add --verify, or leave them out")
    with open_hosts(targets, home, output) as (opened, interrupt):
        report = envs(opened, request)
    output.print_report(report, as_json, show, options=opened.options.hosts)
    raise interrupt.or_exit(report.exit_code)

"""`ipexctl envs`: lists, compares, removes or verifies the environments on every host."""

from __future__ import annotations

import shlex

from ipexctl.cli import complete
from ipexctl.cli.options import Home, Output, Targets, command, flag, option
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
    diff: tuple[str, str] | None = option("--diff A B", "Show in which packages environment B differs from A."),
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
    """List the environments on every host, compare two, remove some, or verify one.

    \b
    Example: ipexctl envs --hosts 'node[1-4]' --remove default
    """
    from ipexctl.cli.hosts import call_options, check_home, choose_hosts, session_pool
    from ipexctl.stack.env import envs
    from ipexctl.stack.env.record import check_env_name
    from ipexctl.ui.envs import as_json, show

    if sum(map(bool, (remove, prune, verify, diff))) > 1:
        raise UserError("--remove, --prune, --verify and --diff exclude each other", fix="use one of them at a time")
    named = {"env": env, "python": python, "setup": setup}
    if not verify and any(value and name not in targets.defaults for name, value in named.items()):
        raise UserError("--env, --python and --setup need --verify", fix="ipexctl envs --verify …")
    if setup and not python:
        fix = f"ipexctl envs --verify --python PATH --setup {shlex.quote(setup)}"
        raise UserError("--setup needs --python PATH", fix=fix)
    for name, path in (("--python", python), ("--setup", setup)):
        if path is not None and not path.startswith("/"):
            raise UserError(
                f"{name} {path!r} is not an absolute path", fix="use a path on the hosts: /opt/train/bin/python"
            )
    for name in (*(remove or ()), *(diff or ()), *([env] if env is not None else [])):
        check_env_name(name)
    home_dir = check_home(home)
    hosts = choose_hosts(targets)
    with session_pool(targets, output, hosts=hosts, quiet=output.quiet) as (pool, interrupt):
        if remove:
            report = envs.remove_envs(hosts, pool, remove, home=home_dir, timeout=targets.timeout)
        elif diff:
            report = envs.diff_envs(hosts, pool, *diff, home=home_dir, timeout=targets.timeout)
        elif prune:
            report = envs.prune_envs(hosts, pool, home=home_dir, timeout=targets.timeout)
        elif verify:
            report = envs.verify_envs(
                hosts, pool, env or DEFAULT_ENV, python=python, setup=setup, home=home_dir, timeout=targets.timeout
            )
        else:
            report = envs.list_envs(hosts, pool, home=home_dir, timeout=targets.timeout)
    options = call_options(targets, home)
    output.print_report(options.in_report(report), as_json, show, options=options.hosts)
    raise interrupt.or_exit(report.exit_code)

"""`ipexctl doctor`: facts and findings of every host, and a recommendation."""

from __future__ import annotations

from typing import Literal

import typer

from ipexctl.commands.shared_options import Home, Output, Targets, command, flag, option


@command()
def doctor_command(
    *,
    require: Literal["avx2", "avx512", "avx512_bf16", "amx"] | None = option(
        "--require", "Fail hosts whose CPU lacks this instruction set."
    ),
    network: bool = flag("--network/--no-network", "Check the network between the hosts (default: --network).", True),
    smoke: bool = flag("--smoke", "Measure compute, memory and network for a few seconds."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Check whether the hosts can train together, and recommend settings and fixes.

    \b
    Example: ipexctl doctor --hosts 'node[1-4]' --require avx512_bf16
    """
    from ipexctl.api.hosts import doctor
    from ipexctl.commands.target_hosts import open_hosts

    with open_hosts(targets, home, output) as (opened, interrupt):
        report = doctor(opened, require=require, network=network, smoke=smoke)
    interrupt.check()
    from ipexctl.ui.doctor import as_json, show_doctor

    output.print_report(report, as_json, show_doctor, verbose=output.verbose > 0, options=opened.options)
    raise typer.Exit(report.exit_code)

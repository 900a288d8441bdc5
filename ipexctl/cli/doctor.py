"""`ipexctl doctor`: facts and findings of every host, and a recommendation."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Literal

import typer

from ipexctl.cli.options import Home, Output, Targets, command, flag, option
from ipexctl.errors import Interrupted

if TYPE_CHECKING:
    from ipexctl.doctor.finding import DoctorReport


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
    report = examine(targets, home, output, require=require, network=network, smoke=smoke)
    from ipexctl.cli.hosts import call_options
    from ipexctl.ui.doctor import as_json, show_doctor

    options = call_options(targets, home)
    report = options.in_report(report)

    output.print_report(report, as_json, show_doctor, verbose=output.verbose > 0, options=options)
    raise typer.Exit(report.exit_code)


def examine(targets: Targets, home: Home, output: Output, **checks: Any) -> DoctorReport:
    """Check the hosts of the call; `checks` are options of doctor. Raises Interrupted after a signal."""
    from ipexctl.cli.hosts import check_home, choose_hosts, session_pool
    from ipexctl.facts.gather import gather_facts
    from ipexctl.remote.fanout import run_in_background

    hosts = choose_hosts(targets)
    home_on_hosts = check_home(home)
    started = time.monotonic()
    with session_pool(targets, output, hosts=hosts, quiet=output.quiet) as (pool, interrupt):
        probed = gather_facts(hosts, pool, home=home_on_hosts, timeout=targets.timeout)
        answers = run_in_background(lambda: list(probed), "facts")
        pool.connector.load(hosts)
        # Imported while the hosts answer: it takes as long as a connection.
        from ipexctl.doctor.run import DoctorRequest, run_doctor
        from ipexctl.run.registry import RunRegistry
        from ipexctl.stack.catalog.user_table import known_rows

        request = DoctorRequest(
            home=home_on_hosts,
            iface=home.iface,
            rows=known_rows(os.environ),
            node0_of=RunRegistry().node0_of,
            **checks,
        )
        report = run_doctor(hosts, answers.result(), request, pool)
    if interrupt.code is not None:
        raise Interrupted(interrupt.code)
    return report._replace(seconds=time.monotonic() - started)  # connecting is part of it

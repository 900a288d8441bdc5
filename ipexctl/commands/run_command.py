"""Declares `ipexctl run`."""

from __future__ import annotations

import typer

from ipexctl.commands.launch_options import RunCall
from ipexctl.commands.resumed_call import ResumingCommand
from ipexctl.commands.shared_options import command


@command(cls=ResumingCommand, no_args_is_help=True, context_settings={"allow_interspersed_args": False})
def run_command(*, ctx: typer.Context, call: RunCall) -> None:
    """Run a script on all hosts, one process per rank.

    ipexctl syncs the project to the nodes, starts the ranks with mpirun or
    directly (--launcher), and shows the output of every rank. Ctrl-C stops
    the run on every host; a closed terminal does not.

    \b
    Example: ipexctl run --hosts 'node[1-4]' --ppn 2 train.py --epochs 3
    """
    from ipexctl.commands.run_call import run_of_call  # 0.15 s, which help does not need

    raise run_of_call(ctx, call)

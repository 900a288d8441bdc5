"""`ipexctl fetch`: checkpoints, logs and other files of a run, or of a host, brought here."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ipexctl.cli import complete
from ipexctl.cli.options import Output, Targets, shared
from ipexctl.errors import UserError

if TYPE_CHECKING:
    from ipexctl.jobs.fetch.fetch import Order
    from ipexctl.jobs.fetch.fetched import Source
    from ipexctl.remote.reach import Reach

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(no_args_is_help=True)
@shared(Targets, Output)
def fetch_command(
    targets: Targets,
    output: Output,
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN[:PATH]|HOST:PATH",
            autocompletion=complete.runs,
            help="A run (id, its beginning, `last`) or a host.",
        ),
    ],
    dest: Annotated[str, typer.Argument(metavar="DEST", help="Where it goes on this machine.")],
    rank: Annotated[
        int | None, typer.Option("--rank", "-r", min=0, metavar="RANK", help="From the host this rank was on.")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--from", metavar="HOST", help="From this host of the run, not from node0.")
    ] = None,
) -> None:
    """Bring files of a run here: checkpoints, logs, whatever it wrote.

    A PATH is from the run's working directory on. `DIR/` brings what is in
    it, `DIR` the directory itself, `'*.pt'` what matches there. A run alone:
    its record and all it wrote, as DEST/RUN. What is here already isn't
    brought again, and what broke off goes on from where it was.

    \b
    Example: ipexctl fetch last:checkpoints/ ./out
    """
    from ipexctl.cli.interrupt import cancelling
    from ipexctl.jobs.fetch.fetch import fetch
    from ipexctl.jobs.fetch.fetched import parse_source
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.outcome import Cancelled, HostError
    from ipexctl.ui.fetch import FetchView, say_failed, show, show_json

    if rank is not None and host is not None:
        raise UserError("-r and --from both name the host", fix="one of them")
    wanted = parse_source(source)
    order, ways = _order(wanted, dest, rank, host, targets)
    cancel = Cancel()
    with cancelling(cancel) as interrupt, ways as reach, FetchView(quiet=output.quiet or output.json) as view:
        try:
            done = fetch(order, lambda: reach.open(order.host, cancel), view.watch, cancel)
        except Cancelled:
            view.stop()
            stopped = HostError("stopped", "the same command goes on from there")
            say_failed(order, stopped, as_json=output.json)
            raise typer.Exit(interrupt.code or 1) from None
        except HostError as error:
            view.stop()
            say_failed(order, error, as_json=output.json)
            raise typer.Exit(3 if error.status == "unreachable" else 1) from None
    if output.json:
        show_json(done)
    else:
        show(done, quiet=output.quiet)
    sys.stdout.flush()
    raise typer.Exit(done.exit_code)


def _order(source: Source, dest: str, rank: int | None, host: str | None, targets: Targets) -> tuple[Order, Reach]:
    """What the word before the colon is: a run of this machine's, unless the call names hosts and one is called so."""
    from ipexctl.cli.hosts import choose_hosts, reach_options
    from ipexctl.cli.reached import reach_of
    from ipexctl.hosts.home import home_on_nodes
    from ipexctl.jobs.fetch.fetch import order_of_host, order_of_run
    from ipexctl.jobs.record import Register
    from ipexctl.remote.reach import Reach

    names_hosts = targets.hosts is not None or targets.hostfile is not None
    of_run = rank is not None or host is not None or source.path is None
    register = Register()
    if of_run or (not names_hosts and register.knows(source.word)):
        record = register.find(source.word)
        others = choose_hosts(targets) if names_hosts else ()
        return order_of_run(record, source.path, dest, rank=rank, host=host, others=others), reach_of(record)
    try:
        order = order_of_host(source, dest, choose_hosts(targets), home_on_nodes(None, os.environ))
    except UserError:
        if not register.knows(source.word):
            raise
        record = register.find(source.word)
        return order_of_run(record, source.path, dest, rank=None, host=None, others=()), reach_of(record)
    return order, Reach(reach_options(targets))

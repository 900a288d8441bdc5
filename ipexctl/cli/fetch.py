"""`ipexctl fetch`: fetches checkpoints, logs and other files of a run or a host to the control machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from ipexctl.cli import complete
from ipexctl.cli.options import Home, Output, Targets, command, option
from ipexctl.errors import UserError

if TYPE_CHECKING:
    from ipexctl.jobs.fetch.fetch import FetchRequest
    from ipexctl.jobs.fetch.manifest import FetchSource
    from ipexctl.jobs.registry import RunRecord
    from ipexctl.remote.connector import ConnectOptions
    from ipexctl.remote.session import Session


@command(no_args_is_help=True)
def fetch_command(
    *,
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN[:PATH]|HOST:PATH",
            autocompletion=complete.runs,
            help="Run (id, a unique prefix of it, or `last`) or host, and a path.",
        ),
    ],
    dest: Annotated[str, typer.Argument(metavar="DEST", help="Destination on the control machine.")],
    rank: Annotated[
        int | None,
        option("--rank", "-r", min=0, metavar="RANK", help="Fetch from the host of this rank (default: node0)."),
    ] = None,
    host: Annotated[
        str | None, option("--from", metavar="HOST", help="Fetch from this host of the run (default: node0).")
    ] = None,
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Fetch files of a run or a host: checkpoints, logs and other output.

    A PATH of a run is relative to its working directory. `DIR/` fetches the
    contents of a directory, `DIR` the directory itself, `'*.pt'` all matches.
    RUN alone fetches its record and all files it wrote, to DEST/RUN. At DEST,
    identical files are skipped, different files are replaced, and partial
    files are resumed.

    \b
    Example: ipexctl fetch last:checkpoints/ ./out
    """
    from ipexctl.cli.hosts import check_home, open_pool
    from ipexctl.jobs.fetch.fetch import fetch
    from ipexctl.jobs.fetch.manifest import FetchResult, parse_source
    from ipexctl.remote.outcome import Cancelled, HostError
    from ipexctl.ui.fetch import show, show_json, show_other_hosts
    from ipexctl.ui.progress_view import ProgressView

    if rank is not None and host is not None:
        raise UserError("-r and --from exclude each other", fix="use one of them to name the host")
    parsed = parse_source(source)
    timeout_source = ctx.get_parameter_source("connect_timeout")
    call = FetchCall(
        targets,
        output,
        check_home(home),
        has_connect_timeout=timeout_source is not None and timeout_source.name == "COMMANDLINE",
    )
    request, options = _resolve_request(parsed, dest, rank, host, call)
    progress = ProgressView(quiet=output.quiet or output.json, verbose=output.verbose > 0, no_color=output.no_color)
    with open_pool(options) as (pool, interrupt), progress as view:

        def open_session() -> Session:
            return pool.connector.open(request.host, pool.cancel)

        try:
            result = fetch(request, open_session, view.watch, pool.cancel, targets.timeout)
        except Cancelled:
            result = FetchResult(request.host, "failed", "stopped", "the same command resumes", dest=request.dest)
        except HostError as error:
            result = FetchResult(request.host, error.status, error.reason, error.fix, dest=request.dest)
    if output.json:
        show_json(result, request.other_hosts)
    else:
        show(result, quiet=output.quiet)
        if request.other_hosts and not output.quiet:
            show_other_hosts(request)
    sys.stdout.flush()
    raise interrupt.or_exit(result.exit_code)


@dataclass(frozen=True, slots=True)
class FetchCall:
    """The options of the call that concern hosts."""

    targets: Targets
    output: Output
    home: str
    has_connect_timeout: bool
    """True if --connect-timeout is on the command line."""


def _resolve_request(
    source: FetchSource, dest: str, rank: int | None, host: str | None, call: FetchCall
) -> tuple[FetchRequest, ConnectOptions]:
    """Resolve the name before the colon: a known run, unless the call names hosts and a host has this name."""
    from ipexctl.cli.hosts import choose_hosts, connect_options
    from ipexctl.jobs.fetch.fetch import order_of_host, order_of_run
    from ipexctl.jobs.registry import RunRegistry

    targets = call.targets
    of_run = rank is not None or host is not None or source.path is None
    register = RunRegistry()
    if not (of_run or (not targets.names_hosts and register.knows(source.word))):
        try:
            request = order_of_host(source, dest, choose_hosts(targets), call.home)
        except UserError:
            if not register.knows(source.word):
                raise
        else:
            return request, connect_options(targets, call.output)
    if targets.limit is not None and "limit" not in targets.defaults and not targets.names_hosts:
        fix = "use --from HOST or -r RANK to name the host of a run"
        raise UserError("-l limits the hosts of a call, and a run has its own hosts", fix=fix)
    record = register.find(source.word)
    others = choose_hosts(targets) if targets.names_hosts and of_run else ()
    request = order_of_run(record, source.path, dest, rank=rank, host=host, others=others)
    return _with_call_options(request, record, call)


def _with_call_options(
    request: FetchRequest, record: RunRecord, call: FetchCall
) -> tuple[FetchRequest, ConnectOptions]:
    """Connect to a host of a run as its record says; options of the call override the record."""
    from ipexctl.cli.hosts import with_call_options
    from ipexctl.cli.run_hosts import run_options

    targets = call.targets.without_defaults()  # the record is more specific
    if targets.host_keys is not None:
        record = replace(record, host_keys=targets.host_keys)
    if call.has_connect_timeout:
        record = replace(record, connect_timeout=targets.connect_timeout)
    return replace(request, host=with_call_options(request.host, targets)), run_options(record, call.output)

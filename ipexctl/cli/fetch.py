"""`ipexctl fetch`: fetches checkpoints, logs and other files of a run or a host to the control machine.

Decides whether the word before the colon is a run or a host: a run that the registry knows, unless the call names hosts
and one of them has this name. The host of a run is reached as its record says, and options of this call override the
record; defaults of files do not, as the record is more specific. `run/fetch.py` does the work; out come a result with
reason and fix, and an exit code. An interrupted call is a result, too: the same command resumes it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from ipexctl.cli import complete
from ipexctl.cli.options import RECONNECT, Home, Output, Targets, argument, command, flag, is_on_command_line, option
from ipexctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.files.requested import FetchResult, FetchSource
    from ipexctl.remote.connector import ConnectOptions
    from ipexctl.remote.session import Session
    from ipexctl.run.fetch import FetchRequest, PathOnHosts
    from ipexctl.run.registry import RunRecord


@command(no_args_is_help=True)
def fetch_command(
    *,
    ctx: typer.Context,
    source: str = argument(
        "RUN[:PATH]|HOST:PATH",
        "Run (id, a unique prefix of it, or `last`) or host, and a path.",
        autocompletion=complete.sources,
    ),
    dest: str = argument("DEST", "Destination on the control machine."),
    rank: int | None = option("--rank -r RANK", "Fetch from the host of this rank (default: node0).", min=0),
    host: str | None = option("--from HOST", "Fetch from this host of the run (default: node0)."),
    all_hosts: bool = flag("--all-hosts", "Fetch from every host of the run, each to DEST/HOST."),
    results: bool = flag("--results", "Fetch what ranks wrote to IPEXCTL_RUN_DIR, from every host of the run."),
    follow: bool = flag("--follow", "Mirror the files of a run, every 10 seconds, until it ends."),
    reconnect: float = RECONNECT,
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Fetch files of a run or a host: checkpoints, logs and other output.

    A PATH of a run is relative to its working directory. `DIR/` fetches the
    contents of a directory, `DIR` the directory itself, `'*.pt'` all matches.
    RUN alone fetches its record and the files that it wrote on node0, to
    DEST/RUN. --results fetches what ranks wrote to the directory IPEXCTL_RUN_DIR of
    their host. At DEST, identical files are skipped, different files are
    replaced, and partial files are resumed. With --follow, files that grow on the
    host grow at DEST, and nothing is removed there; Ctrl-C ends only this call.

    \b
    Example: ipexctl fetch last:checkpoints/ ./out
    """
    from ipexctl.cli.hosts import check_home, connect_options
    from ipexctl.files.requested import parse_source
    from ipexctl.ui.fetch import show, show_hosts_with_path, show_json, show_other_hosts

    if rank is not None and host is not None:
        raise UserError("-r and --from exclude each other", fix="use one of them to name the host")
    if (all_hosts or results) and (rank is not None or host is not None):
        raise UserError("-r and --from name one host, --all-hosts and --results take all", fix="leave one of them out")
    if follow:
        raise typer.Exit(
            _follow(
                parse_source(source), dest, rank, host, targets, output,
                all_hosts=all_hosts, results=results, reconnect=reconnect,
                has_connect_timeout=is_on_command_line(ctx, "connect_timeout"),
            )
        )  # fmt: skip
    if all_hosts or results:
        raise typer.Exit(
            _fetch_from_all(
                parse_source(source), dest, targets, output,
                results=results, has_connect_timeout=is_on_command_line(ctx, "connect_timeout"),
            )
        )  # fmt: skip
    request, record = _resolve_request(parse_source(source), dest, rank, host, targets, check_home(home), output)
    options = connect_options(targets, output)
    has_connect_timeout = is_on_command_line(ctx, "connect_timeout")
    if record is not None:
        request, options = _with_call_options(request, record, targets, output, has_connect_timeout=has_connect_timeout)
    others: Sequence[FetchRequest] = ()
    if record is not None and request.request["path"] is not None and request.other_hosts:
        others = _of_other_hosts(request, record, targets, output, has_connect_timeout=has_connect_timeout)
    result, code, found = _fetch_one(request, options, targets, output, others)
    if output.json:
        show_json(result, request.other_hosts, found.having)
    else:
        show(result, quiet=output.quiet)
        if others:
            show_hosts_with_path(request, result, found, quiet=output.quiet)
        elif request.other_hosts and not output.quiet:
            show_other_hosts(request)
    sys.stdout.flush()
    raise typer.Exit(code)


def _of_other_hosts(
    request: FetchRequest, record: RunRecord, targets: Targets, output: Output, *, has_connect_timeout: bool
) -> list[FetchRequest]:
    """The same request to the other hosts of the run, to ask them whether they have the path."""
    from ipexctl.run.fetch import orders_of_all_hosts

    orders = orders_of_all_hosts(record, request.request["path"], request.dest, results=False)
    return [
        _with_call_options(order, record, targets, output, has_connect_timeout=has_connect_timeout)[0]
        for order in orders
        if order.host.name in request.other_hosts
    ]


def _fetch_one(
    request: FetchRequest,
    options: ConnectOptions,
    targets: Targets,
    output: Output,
    others: Sequence[FetchRequest] = (),
) -> tuple[FetchResult, int, PathOnHosts]:
    """The result, and the exit code: that of a signal, if one came. `others` are asked meanwhile for the path."""
    from ipexctl.cli.hosts import open_pool
    from ipexctl.files.requested import FetchResult
    from ipexctl.remote.fanout import run_in_background
    from ipexctl.remote.outcome import Cancelled, HostError
    from ipexctl.run.fetch import PathOnHosts, fetch, find_hosts_with_path
    from ipexctl.ui.progress_view import ProgressView

    progress = ProgressView(quiet=output.quiet or output.json, verbose=output.verbose > 0, no_color=output.no_color)
    found = PathOnHosts()
    with open_pool(options, targets.forks) as (pool, interrupt), progress as view:
        asking = run_in_background(lambda: find_hosts_with_path(others, pool), "others") if others else None

        def open_session() -> Session:
            return pool.connector.open(request.host, pool.cancel)

        try:
            result = fetch(request, open_session, view.watch, pool.cancel, targets.timeout)
        except Cancelled:
            result = FetchResult(request.host, "failed", "stopped", "the same command resumes", dest=request.dest)
        except HostError as error:
            result = FetchResult.of_error(request.host, error, dest=request.dest)
        if asking is not None:
            found = asking.result()
    return result, result.exit_code if interrupt.code is None else interrupt.code, found


def _follow(
    source: FetchSource,
    dest: str,
    rank: int | None,
    host: str | None,
    targets: Targets,
    output: Output,
    *,
    all_hosts: bool,
    results: bool,
    reconnect: float,
    has_connect_timeout: bool,
) -> int:
    """Mirror the files until the run ends; the exit code. Ctrl-C leaves what has arrived."""
    from ipexctl.cli.hosts import choose_hosts, open_pool, with_call_options
    from ipexctl.cli.run_hosts import begun, find_run
    from ipexctl.remote.outcome import HostError, exit_code
    from ipexctl.run.fetch import found_nothing, order_of_run, orders_of_all_hosts
    from ipexctl.run.local_copy import read_final_status
    from ipexctl.run.mirror import RunMirror
    from ipexctl.run.registry import RunRegistry
    from ipexctl.ui.fetch import show_all_json, show_followed, show_json, show_no_results, show_other_hosts
    from ipexctl.ui.progress_view import ProgressView

    _check_results_path(source, dest, results=results)
    record = begun(find_run(source.word, output), output, waits=True)
    others = choose_hosts(targets) if targets.names_hosts and host is not None else ()
    requests = (
        orders_of_all_hosts(record, source.path, dest, results=results)
        if all_hosts or results
        else [order_of_run(record, source.path, dest, rank=rank, host=host, others=others)]
    )
    _, options = _with_call_options(requests[0], record, targets, output, has_connect_timeout=has_connect_timeout)
    if requests[0].other_hosts and not output.quiet and not output.json:
        show_other_hosts(requests[0])
    is_over = read_final_status(RunRegistry().directory / record.id) is not None
    of_call = targets.without_defaults()
    progress = ProgressView(quiet=output.quiet or output.json, verbose=output.verbose > 0, no_color=output.no_color)
    ended: HostError | None = None
    with open_pool(options, targets.forks) as (pool, interrupt), progress as view:
        mirror = RunMirror(
            record,
            requests,
            lambda host: pool.lend(with_call_options(host, of_call), pool.cancel),
            view.watch,
            pool.cancel,
            reconnect=reconnect,
            timeout=targets.timeout,
        )
        try:
            mirror.follow(is_over=is_over)
        except HostError as error:
            ended = error
    found = mirror.results(ended)
    if not output.json:
        show_followed(found, quiet=output.quiet)
    elif all_hosts or results:
        show_all_json(found)
    else:
        show_json(found[0], requests[0].other_hosts, ())
    if results and ended is None and not output.quiet and found_nothing(found):
        show_no_results(record.id, dest)
    sys.stdout.flush()
    return interrupt.code or exit_code([result.status for result in found])


def _check_results_path(source: FetchSource, dest: str, *, results: bool) -> None:
    if results and source.path is not None:
        raise UserError("--results has its own path", fix=f"ipexctl fetch {source.word} {dest} --results")


def _fetch_from_all(
    source: FetchSource, dest: str, targets: Targets, output: Output, *, results: bool, has_connect_timeout: bool
) -> int:
    """Fetch from one host after the other, as they share the link of the control machine; the exit code."""
    from ipexctl.cli.run_hosts import begun, find_run
    from ipexctl.remote.outcome import exit_code
    from ipexctl.run.fetch import found_nothing, orders_of_all_hosts
    from ipexctl.ui.fetch import show, show_all_json, show_no_results

    _check_results_path(source, dest, results=results)
    record = begun(find_run(source.word, output), output)
    found: list[FetchResult] = []
    interrupted = 0
    for order in orders_of_all_hosts(record, source.path, dest, results=results):
        request, options = _with_call_options(order, record, targets, output, has_connect_timeout=has_connect_timeout)
        result, code, _ = _fetch_one(request, options, targets, output)
        found.append(result)
        if not output.json:
            show(result, quiet=output.quiet)
        if code > 128:
            interrupted = code
            break
    if output.json:
        show_all_json(found)
    if results and not interrupted and not output.quiet and found_nothing(found):
        show_no_results(record.id, dest)
    return interrupted or exit_code([result.status for result in found])


def _resolve_request(
    source: FetchSource, dest: str, rank: int | None, host: str | None, targets: Targets, home: str, output: Output
) -> tuple[FetchRequest, RunRecord | None]:
    """Resolve the name before the colon: a known run, unless the call names hosts and a host has this name."""
    from ipexctl.cli.hosts import choose_hosts
    from ipexctl.cli.run_hosts import begun, find_run
    from ipexctl.run.fetch import order_of_host, order_of_run
    from ipexctl.run.registry import RunRegistry

    of_run = rank is not None or host is not None or source.path is None
    register = RunRegistry()
    if not (of_run or (not targets.names_hosts and register.knows(source.word))):
        try:
            return order_of_host(source, dest, choose_hosts(targets), home), None
        except UserError:
            if not register.knows(source.word):
                raise
    if targets.limit is not None and "limit" not in targets.defaults and not targets.names_hosts:
        fix = "use --from HOST or -r RANK to name the host of a run"
        raise UserError("-l limits the hosts of a call, and a run has its own hosts", fix=fix)
    record = begun(find_run(source.word, output, register), output)
    others = choose_hosts(targets) if targets.names_hosts and of_run else ()
    return order_of_run(record, source.path, dest, rank=rank, host=host, others=others), record


def _with_call_options(
    request: FetchRequest, record: RunRecord, targets: Targets, output: Output, *, has_connect_timeout: bool
) -> tuple[FetchRequest, ConnectOptions]:
    """Connect to a host of a run as its record says; options of the call override the record."""
    from ipexctl.cli.hosts import with_call_options
    from ipexctl.cli.run_hosts import run_options

    targets = targets.without_defaults()  # the record is more specific
    if targets.host_keys is not None:
        record = replace(record, host_keys=targets.host_keys)
    if has_connect_timeout:
        record = replace(record, connect_timeout=targets.connect_timeout)
    return replace(request, host=with_call_options(request.host, targets)), run_options(record, output)

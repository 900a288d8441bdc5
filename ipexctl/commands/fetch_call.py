"""One call of `fetch`: which hosts it means, the files of one or all of them, and what is shown.

The word before the colon is a known run, unless the call names hosts and one of them has this name. A run's host is
reached as its record says; options of this call override the record, defaults of files don't. An interrupted call has a
result too, because the same command resumes it.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ipexctl.api.fetch import fetch_files, fetch_from_all, mirror_files
from ipexctl.commands.interrupt import cancelling
from ipexctl.commands.run_calls import begun, find_run
from ipexctl.commands.target_hosts import check_home, choose_hosts, connect_options, step_printer, with_call_options
from ipexctl.errors import UserError
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import exit_code
from ipexctl.remote.progress import ignore_event
from ipexctl.run.fetch import FetchRequest, found_nothing, order_of_host, order_of_run, orders_of_all_hosts
from ipexctl.run.node0 import options_of
from ipexctl.run.registry import RunRegistry
from ipexctl.ui.fetch import (
    show,
    show_all_json,
    show_followed,
    show_hosts_with_path,
    show_json,
    show_no_results,
    show_other_hosts,
)
from ipexctl.ui.messages import print_message
from ipexctl.ui.progress_view import ProgressView

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.commands.shared_options import Home, Output, Targets
    from ipexctl.files.requested import FetchSource
    from ipexctl.remote.connector import ConnectOptions
    from ipexctl.remote.progress import Watch
    from ipexctl.run.registry import RunRecord


@dataclass(frozen=True)
class FetchCall:
    """Each method fetches in one way, shows the results and returns the exit code."""

    source: FetchSource
    dest: str
    rank: int | None
    host: str | None
    targets: Targets
    output: Output
    has_connect_timeout: bool

    def from_one(self, home: Home) -> int:
        output, others = self.output, list[FetchRequest]()
        request, record = self._resolve(check_home(home))
        options = connect_options(self.targets, output)
        if record is not None:
            request, options = self._reached(request), self._options(record)
            if request.request["path"] is not None and request.other_hosts:
                orders = orders_of_all_hosts(record, request.request["path"], request.dest, results=False)
                others = [self._reached(order) for order in orders if order.host.name in request.other_hosts]
        cancel = Cancel()
        with cancelling(cancel) as interrupt:
            result, found = fetch_files(
                request,
                options,
                cancel,
                others=others,
                forks=self.targets.forks,
                timeout=self.targets.timeout,
                watching=self._progress,
            )
        if output.json:
            show_json(result, request.other_hosts, found.having)
        else:
            show(result, quiet=output.quiet)
            if others:
                show_hosts_with_path(request, result, found, quiet=output.quiet)
            elif request.other_hosts and not output.quiet:
                show_other_hosts(request)
        sys.stdout.flush()
        return result.exit_code if interrupt.code is None else interrupt.code

    def from_all(self, *, results: bool) -> int:
        output = self.output
        record = begun(find_run(self.source.word, output), output)
        orders = orders_of_all_hosts(record, self.source.path, self.dest, results=results)
        cancel = Cancel()
        with cancelling(cancel) as interrupt:
            found = fetch_from_all(
                [self._reached(order) for order in orders],
                self._options(record),
                cancel,
                timeout=self.targets.timeout,
                watching=self._progress,
                on_result=ignore_event if output.json else partial(show, quiet=output.quiet),
            )
        if output.json:
            show_all_json(found)
        if results and interrupt.code is None and not output.quiet and found_nothing(found):
            show_no_results(record.id, self.dest)
        return interrupt.code or exit_code([result.status for result in found])

    def follow(self, *, all_hosts: bool, results: bool, reconnect: float) -> int:
        output, targets, path = self.output, self.targets, self.source.path
        record = begun(find_run(self.source.word, output), output, waits=True)
        others = choose_hosts(targets) if targets.names_hosts and self.host is not None else ()
        requests = (
            orders_of_all_hosts(record, path, self.dest, results=results)
            if all_hosts or results
            else [order_of_run(record, path, self.dest, rank=self.rank, host=self.host, others=others)]
        )
        if requests[0].other_hosts and not output.quiet and not output.json:
            show_other_hosts(requests[0])
        cancel = Cancel()
        with cancelling(cancel) as interrupt:
            found, is_whole = mirror_files(
                record,
                requests,
                self._options(record),
                cancel,
                reached_by=partial(with_call_options, targets=targets.without_defaults()),
                forks=targets.forks,
                timeout=targets.timeout,
                reconnect=reconnect,
                watching=self._progress,
            )
        if not output.json:
            show_followed(found, quiet=output.quiet)
        elif all_hosts or results:
            show_all_json(found)
        else:
            show_json(found[0], requests[0].other_hosts, ())
        if results and is_whole and not output.quiet and found_nothing(found):
            show_no_results(record.id, self.dest)
        sys.stdout.flush()
        return interrupt.code or exit_code([result.status for result in found])

    @contextmanager
    def _progress(self) -> Iterator[Watch]:
        output = self.output
        quiet = output.quiet or output.json
        with ProgressView(quiet=quiet, verbose=output.verbose > 0, no_color=output.no_color) as view:
            yield view.watch

    def _resolve(self, home: str) -> tuple[FetchRequest, RunRecord | None]:
        source, targets, output = self.source, self.targets, self.output
        of_run = self.rank is not None or self.host is not None or source.path is None
        register = RunRegistry()
        if not (of_run or (not targets.names_hosts and register.knows(source.word))):
            try:
                return order_of_host(source, self.dest, choose_hosts(targets), home), None
            except UserError:
                if not register.knows(source.word):
                    raise
        if targets.limit is not None and "limit" not in targets.defaults and not targets.names_hosts:
            fix = "use --from HOST or -r RANK to name the host of a run"
            raise UserError("-l limits the hosts of a call, and a run has its own hosts", fix=fix)
        record = begun(find_run(source.word, output, register), output)
        others = choose_hosts(targets) if targets.names_hosts and of_run else ()
        return order_of_run(record, source.path, self.dest, rank=self.rank, host=self.host, others=others), record

    def _reached(self, request: FetchRequest) -> FetchRequest:
        """Reach the host as its run's record says, unless options of the call override that."""
        # Not defaults of files: the record is more specific.
        return replace(request, host=with_call_options(request.host, self.targets.without_defaults()))

    def _options(self, record: RunRecord) -> ConnectOptions:
        options = options_of(record, on_step=step_printer(self.output), on_warning=print_message)
        targets = self.targets.without_defaults()
        if targets.host_keys is not None:
            options = options._replace(host_keys=targets.host_keys)
        if self.has_connect_timeout:
            options = options._replace(connect_timeout=targets.connect_timeout)
        return options

"""The steps of fetch: files of one host, or of all hosts of a run.

An interrupted fetch is a result too, because the same call resumes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from ipexctl.api.open_hosts import open_sessions
from ipexctl.files.requested import FetchResult
from ipexctl.node.files.file_sender import OVERWRITTEN
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import Cancelled, HostError, Watch, ignore_event
from ipexctl.run.fetch import FetchRequest, PathOnHosts, fetch, find_hosts_with_path, from_other_host


def watch_nothing() -> AbstractContextManager[Watch]:
    return nullcontext(ignore_event)


def fetch_files(
    request: FetchRequest,
    options: ConnectOptions,
    cancel: Cancel,
    *,
    others: Sequence[FetchRequest] = (),
    forks: int = 1,
    timeout: float | None = None,
    watching: Callable[[], AbstractContextManager[Watch]] = watch_nothing,
) -> tuple[FetchResult, PathOnHosts]:
    """Fetch from the host of the request, or if the path is not there, from the first of the others that has it. One
    that was overwritten there is not looked for elsewhere: ranks of two hosts may write different files to one path."""
    found, is_overwritten = PathOnHosts(), False
    with open_sessions(options, cancel, forks=forks) as pool, watching() as watch:
        asking = run_in_background(lambda: find_hosts_with_path(others, pool), "others") if others else None
        try:
            result = fetch(request, partial(pool.connector.open, request.host, cancel), watch, cancel, timeout)
        except Cancelled:
            result = FetchResult(request.host, "failed", "stopped", "the same command resumes", dest=request.dest)
        except HostError as error:
            result, is_overwritten = (
                FetchResult.of_error(request.host, error, dest=request.dest),
                error.kind == OVERWRITTEN,
            )
        if asking is not None:
            found = asking.result()
    if result.status == "failed" and result.reason and found.having and not is_overwritten and not cancel.thrown:
        other = next(order for order in others if order.host.name == found.having[0])
        request = from_other_host(request, other)
        result, _ = fetch_files(request, options, cancel, timeout=timeout, watching=watching)
    return result, found


def fetch_from_all(
    requests: Sequence[FetchRequest],
    options: ConnectOptions,
    cancel: Cancel,
    *,
    timeout: float | None = None,
    watching: Callable[[], AbstractContextManager[Watch]] = watch_nothing,
    on_result: Callable[[FetchResult], object] = ignore_event,
) -> list[FetchResult]:
    """One host after another, because they share this machine's link, until the call is cancelled."""
    results = []
    for request in requests:
        result, _ = fetch_files(request, options, cancel, timeout=timeout, watching=watching)
        results.append(result)
        on_result(result)
        if cancel.thrown:
            break
    return results

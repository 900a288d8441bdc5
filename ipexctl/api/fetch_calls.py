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
    """Return a context without progress."""
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
    """Fetch from the host of the request; if the path is not there, from the first of the others that has it.

    Returns the result, and which of the others have the path. A path that another run has overwritten is not looked for
    elsewhere: ranks of two hosts may write different files to one path.
    """
    path_on_hosts, is_overwritten = PathOnHosts(), False
    with open_sessions(options, cancel, forks=forks) as pool, watching() as watch:
        search = run_in_background(lambda: find_hosts_with_path(others, pool), "others") if others else None
        try:
            result = fetch(request, partial(pool.connector.open, request.host, cancel), watch, cancel, timeout)
        except Cancelled:
            result = FetchResult(request.host, "failed", "stopped", "the same command resumes", dest=request.dest)
        except HostError as error:
            result, is_overwritten = (
                FetchResult.of_error(request.host, error, dest=request.dest),
                error.kind == OVERWRITTEN,
            )
        if search is not None:
            path_on_hosts = search.result()
    if (
        result.status == "failed"
        and result.reason
        and path_on_hosts.having
        and not is_overwritten
        and not cancel.thrown
    ):
        other = next(candidate for candidate in others if candidate.host.name == path_on_hosts.having[0])
        request = from_other_host(request, other)
        result, _ = fetch_files(request, options, cancel, timeout=timeout, watching=watching)
    return result, path_on_hosts


def fetch_from_all(
    requests: Sequence[FetchRequest],
    options: ConnectOptions,
    cancel: Cancel,
    *,
    timeout: float | None = None,
    watching: Callable[[], AbstractContextManager[Watch]] = watch_nothing,
    on_result: Callable[[FetchResult], object] = ignore_event,
) -> list[FetchResult]:
    """Fetch from one host after another, until the call is cancelled. The hosts share the link of this machine."""
    results = []
    for request in requests:
        result, _ = fetch_files(request, options, cancel, timeout=timeout, watching=watching)
        results.append(result)
        on_result(result)
        if cancel.thrown:
            break
    return results

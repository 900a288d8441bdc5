"""The steps of fetch: files of one host, of all hosts of a run, or repeatedly while the run continues.

An interrupted fetch is a result too, because the same call resumes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from ipexctl.api.open_hosts import open_sessions
from ipexctl.files.requested import FetchResult
from ipexctl.hosts.host import Host
from ipexctl.option_declaration import RECONNECT_SECONDS
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import Cancelled, HostError, Watch, ignore_event
from ipexctl.run.fetch import FetchRequest, PathOnHosts, fetch, find_hosts_with_path
from ipexctl.run.local_copy import read_final_status
from ipexctl.run.mirror import RunMirror
from ipexctl.run.registry import RunRecord, RunRegistry


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
    found = PathOnHosts()
    with open_sessions(options, cancel, forks=forks) as pool, watching() as watch:
        asking = run_in_background(lambda: find_hosts_with_path(others, pool), "others") if others else None
        try:
            result = fetch(request, partial(pool.connector.open, request.host, cancel), watch, cancel, timeout)
        except Cancelled:
            result = FetchResult(request.host, "failed", "stopped", "the same command resumes", dest=request.dest)
        except HostError as error:
            result = FetchResult.of_error(request.host, error, dest=request.dest)
        if asking is not None:
            found = asking.result()
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


def mirror_files(
    record: RunRecord,
    requests: Sequence[FetchRequest],
    options: ConnectOptions,
    cancel: Cancel,
    *,
    reached_by: Callable[[Host], Host] = lambda host: host,
    forks: int = 1,
    timeout: float | None = None,
    reconnect: float = RECONNECT_SECONDS,
    watching: Callable[[], AbstractContextManager[Watch]] = watch_nothing,
) -> tuple[list[FetchResult], bool]:
    """Mirror the files until the run ends or the call is cancelled. Also return whether the run was seen to its end.
    `reached_by`: host of the run → host to connect to.
    """
    is_over = read_final_status(RunRegistry().directory / record.id) is not None
    ended: HostError | None = None
    with open_sessions(options, cancel, forks=forks) as pool, watching() as watch:
        mirror = RunMirror(
            record,
            requests,
            lambda host: pool.borrow(reached_by(host), cancel),
            watch,
            cancel,
            reconnect=reconnect,
            timeout=timeout,
        )
        try:
            mirror.follow(is_over=is_over)
        except HostError as error:
            ended = error
    return list(mirror.results(ended)), ended is None

"""Brings wheels to the first host: it downloads them itself, or the control machine sends them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from concurrent import futures
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from ipexctl.node.common.files import make_private_directory, sha256_of
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.progress import BytesMoved, HostFinished
from ipexctl.remote.transfer import store_client
from ipexctl.remote.transfer.relay import ArrivingFiles
from ipexctl.remote.transfer.store_client import Download, NotInStore, StoredFile, StoreLocation
from ipexctl.stack.lock.indexes import IndexAnswer, directory_of, pip_settings, unqueried, without_credentials
from ipexctl.stack.lock.pipeline import query_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ipexctl.remote.session import Session
    from ipexctl.stack.env.build import EnvSpec
    from ipexctl.stack.install_context import InstallContext
    from ipexctl.stack.lock.lock import Wheel
    from ipexctl.stack.resolve.model import EnvRequest, Sources


def stage_wheels(context: InstallContext, spec: EnvSpec, session: Session, location: StoreLocation) -> None:
    """Complete the host's store. Wheels that have arrived stay there for the next call.

    Raises NotInStore if a wheel can't be obtained anywhere; any other HostError is a failure of the host.
    """
    cancel, sources = context.pool.cancel, context.request.sources
    files = {wheel.sha256: wheel.stored_file for wheel in spec.files}
    missing = {file.sha256 for file in store_client.missing(session, location, tuple(files.values()), cancel=cancel)}
    wanted = [wheel for wheel in spec.files if wheel.sha256 in missing]
    if spec.index_answer is None:
        wanted = [_find_in_directories(wheel, sources) for wheel in wanted]
    reasons: dict[str, str] = {}
    if spec.by_node0 and not sources.offline:
        by_url = [wheel for wheel in wanted if wheel.url and not wheel.path]
        reasons = _download_on_host(context, session, location, by_url, spec.index_answer)
        wanted = [wheel for wheel in wanted if wheel not in by_url or wheel.sha256 in reasons]
    if wanted:
        _send_from_here(context, spec, session, location, wanted, reasons)


def _find_in_directories(wheel: Wheel, sources: Sources) -> Wheel:
    """A wheel of an older lock may be in a directory that this call names."""
    for option in (sources.wheelhouse, *sources.find_links):
        directory = directory_of(option) if option and not wheel.path else None
        if directory is not None and is_intact(path := Path(directory, wheel.filename), wheel):
            return replace(wheel, path=str(path))
    return wheel


def is_intact(path: Path, wheel: Wheel) -> bool:
    """Whether that file is the wheel, by its size and hash."""
    try:
        if not path.is_file() or (wheel.size is not None and path.stat().st_size != wheel.size):
            return False
        return sha256_of(path) == wheel.sha256
    except OSError:
        return False


def _download_on_host(
    context: InstallContext,
    session: Session,
    location: StoreLocation,
    wheels: Sequence[Wheel],
    index_answer: IndexAnswer | None,
) -> dict[str, str]:
    """Let the host download; returns the reason for each wheel that it could not download."""
    if not wheels:
        return {}
    if index_answer is None:
        settings = pip_settings(session, location.python, cancel=context.pool.cancel)
        index_answer = unqueried(context.request.sources, settings)
    return download_wheels(
        context,
        session,
        location,
        wheels,
        index_answer,
        name=location.host.name,
        timeout=context.request.timeout,
        cancel=context.pool.cancel,
    )


def download_wheels(
    context: InstallContext,
    session: Session,
    location: StoreLocation,
    wheels: Sequence[Wheel],
    index_answer: IndexAnswer,
    *,
    name: str = "",
    on_got: Callable[[str], None] = lambda _: None,
    timeout: float | None = None,
    cancel: Cancel,
) -> dict[str, str]:
    """Let the machine of that name download into its store; returns hash → reason for each wheel that failed."""
    total = _total(wheels)
    result = store_client.fetch(
        session,
        location,
        [Download(w.stored_file, w.url, index_answer.headers_for(w.url)) for w in wheels if w.url],
        settings=index_answer.settings.transport(),
        on_bytes=lambda done: context.watch(BytesMoved(name, "downloading", done, total)),
        on_got=on_got,
        timeout=timeout,
        cancel=cancel,
    )
    context.downloaded += sum(wheel.size or 0 for wheel in wheels if wheel.sha256 in result.got)
    return dict(result.failed)


def _send_from_here(
    context: InstallContext,
    spec: EnvSpec,
    session: Session,
    location: StoreLocation,
    wheels: Sequence[Wheel],
    reasons: Mapping[str, str],
) -> None:
    """Send wheels from the control machine; those it has to download are sent while others are still arriving."""
    to_send = [(wheel.stored_file, Path(wheel.path)) for wheel in wheels if wheel.path]
    to_download, index_answer = [wheel for wheel in wheels if not wheel.path], spec.index_answer
    if context.request.sources.offline:
        to_download = [replace(wheel, url=None) for wheel in to_download]
    elif to_download and (spec.by_node0 or index_answer is None):
        to_download, index_answer = _find_in_own_indexes(context, to_download)
    unknown = [wheel.filename for wheel in to_download if not wheel.url]
    if unknown:
        name = unknown[0] if len(unknown) == 1 else f"{unknown[0]} and {len(unknown) - 1} more"
        raise NotInStore(
            f"this machine finds {name} in no index and no directory, and {location.host.name}'s store lacks it",
            "name the directory that has it: --wheelhouse DIR; or choose versions anew: --upgrade",
        )
    total, name = _total(wheels), location.host.name
    with (
        _transit(Path(context.control.location.store), clears=bool(to_download)),
        _downloading(context, to_download, index_answer, reasons) as arriving,
    ):
        store_client.push(
            session,
            location,
            (entry for entries in (to_send, arriving) for entry in entries),
            on_bytes=lambda done: context.watch(BytesMoved(name, "receiving", done, total)),
            timeout=context.request.timeout,
            cancel=context.pool.cancel,
        )
        context.watch(BytesMoved(name, "receiving", total or 0, total))
        if not isinstance(session, LocalSession):
            context.uplink += sum(wheel.size or 0 for wheel in wheels)


def _find_in_own_indexes(context: InstallContext, wheels: Sequence[Wheel]) -> tuple[list[Wheel], IndexAnswer]:
    """The wheels with the URLs that this machine's own indexes give, or None.

    A URL or a proxy that a host names is not used here: the host could reach any server of this machine's network.
    """
    index_answer = query_here(context, tuple(wheel.name for wheel in wheels))
    urls = {item.filename: item.url for items in index_answer.availability.candidates.values() for item in items}
    direct = direct_urls(context.request.env)
    found = [replace(w, url=w.url if w.url in direct else urls.get(w.filename)) for w in wheels]
    return found, index_answer


def direct_urls(env: EnvRequest) -> frozenset[str]:
    """The URLs that the request's own requirements name (`pkg @ URL`). Pure."""
    found = set()
    for line in env.extras:
        with contextlib.suppress(InvalidRequirement):
            found.add(without_credentials(Requirement(line).url or ""))
    return frozenset(found - {""})


@contextmanager
def _transit(store: Path, *, clears: bool) -> Iterator[None]:
    """Share the control machine's store with all calls at work; the last one that succeeds removes it."""
    lock = None
    with contextlib.suppress(OSError):  # without the lock, other calls may have to download again
        make_private_directory(store.parent)
        lock = os.open(store.with_name("transit.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        yield
        if clears:
            with contextlib.suppress(OSError):
                if lock is not None:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(store, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)


@contextmanager
def _downloading(
    context: InstallContext, wheels: Sequence[Wheel], index_answer: IndexAnswer | None, reasons: Mapping[str, str]
) -> Iterator[Iterator[tuple[StoredFile, Path]]]:
    """Download wheels to the control machine in the background; yields an iterator of those that have arrived."""
    files = [wheel.stored_file for wheel in wheels]
    stop = Cancel()
    arriving = ArrivingFiles(context.control.location.store, stop)

    def download(index_answer: IndexAnswer) -> None:
        error: HostError = NotInStore("the download on this machine ended early")
        try:
            with context.pool.cancel.waking(stop.throw):
                _download_here(context, wheels, index_answer, reasons, arriving, stop)
        except (Cancelled, NotInStore) as caught:
            error = caught
        except HostError as caught:
            error = NotInStore(f"on this machine: {caught.reason}", caught.fix)
        finally:
            arriving.end(files, error)

    if not wheels or index_answer is None:
        yield iter(())
        return
    running = run_in_background(partial(download, index_answer), "download")
    try:
        yield arriving.files(files)
    except BaseException:
        stop.throw()  # no wheel is sent any more
        raise
    finally:
        futures.wait([running])


def _download_here(
    context: InstallContext,
    wheels: Sequence[Wheel],
    index_answer: IndexAnswer,
    reasons: Mapping[str, str],
    arriving: ArrivingFiles,
    cancel: Cancel,
) -> None:
    here = context.control
    # An earlier call that failed may have left some of them.
    files = [wheel.stored_file for wheel in wheels]
    missing = store_client.missing(here.session, here.location, files, verify=True, cancel=cancel)
    for file in set(files) - set(missing):
        arriving.add(file.sha256)
    absent = [wheel for wheel in wheels if wheel.stored_file in missing]
    failed = download_wheels(
        context, here.session, here.location, absent, index_answer, on_got=arriving.add, cancel=cancel
    )
    if failed:
        sha256, reason = next(iter(failed.items()))
        name = next(wheel.filename for wheel in wheels if wheel.sha256 == sha256)
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        on_host = f"; on the first host: {reasons[sha256]}" if sha256 in reasons else ""
        raise NotInStore(
            f"{name}{more} can't be downloaded: {reason}{on_host}", "run it again: wheels that have arrived are kept"
        )
    context.watch(HostFinished("", "downloaded", ok=True))


def _total(wheels: Sequence[Wheel]) -> int | None:
    sizes = [wheel.size for wheel in wheels]
    return sum(size for size in sizes if size) if all(sizes) else None

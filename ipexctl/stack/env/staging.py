"""Bring the wheels of an environment to the first host's store, from which the other hosts get them; fill wheelhouses,
too.

The host downloads what it can reach; the control machine sends the rest while later wheels still download. It never
uses a URL or proxy named by a host, because the host could then reach any server of its network.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from ipexctl.errors import Refusal, UserError, place_fix
from ipexctl.files.store_client import ArrivingFiles, DownloadItem, StoreClient, StoredFile, StoreLocation
from ipexctl.files.stream import NotInStore
from ipexctl.hosts.host import Host
from ipexctl.node.common.files import make_private_directory, sha256_of, write_atomically
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.urls import strip_login
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import BytesMoved, Cancelled, HostError, HostFinished, Notice, Watch, ignore_event
from ipexctl.remote.session import Session
from ipexctl.stack.env.environment import EnvSpec
from ipexctl.stack.install_context import (
    ControlMachine,
    InstallContext,
    InstallReport,
    InstallRequest,
    inspect_hosts,
    summary_of,
)
from ipexctl.stack.lock.stack_locking import LockedStack, announce_stack, lock_stack, query_here
from ipexctl.stack.lock.wheel_indexes import IndexAnswer, directory_of, pip_settings, unqueried
from ipexctl.stack.lock.wheel_lock import Wheel
from ipexctl.stack.resolve.model import Sources
from ipexctl.text import expand_tilde


def is_intact(path: Path, wheel: Wheel) -> bool:
    """True if the file exists and has the wheel's size and hash. False also if it can't be read."""
    try:
        if not path.is_file() or (wheel.size is not None and path.stat().st_size != wheel.size):
            return False
        return sha256_of(path) == wheel.sha256
    except OSError:
        return False


def download_wheels(
    context: InstallContext,
    store: StoreClient,
    wheels: Sequence[Wheel],
    index_answer: IndexAnswer,
    *,
    name: str = "",
    on_got: Callable[[str], None] = lambda _: None,
) -> dict[str, str]:
    """Download the wheels into the store of the machine `name`; return hash → reason for each wheel that failed. A
    wheel without a URL is skipped."""
    total = _total(wheels)
    result = store.fetch(
        [DownloadItem(w.stored_file, w.url, index_answer.headers_for(w.url)) for w in wheels if w.url],
        settings=index_answer.settings.transport(),
        on_bytes=lambda done: context.watch(BytesMoved(name, "downloading", done, total)),
        on_got=on_got,
    )
    context.downloaded += sum(wheel.size or 0 for wheel in wheels if wheel.sha256 in result.got)
    return dict(result.failed)


class Staging:
    """Brings wheels into the store of one host, from which the other hosts get them."""

    def __init__(self, context: InstallContext, spec: EnvSpec, session: Session, location: StoreLocation) -> None:
        self._context = context
        self._spec = spec
        self._session = session
        self._location = location
        self._store = StoreClient(location, session, context.opened.timeout)
        self._reasons: dict[str, str] = {}
        self._missing: dict[str, StoredFile] = {}
        """Wheels that the host's store lacks, by hash, with the bytes it has of each."""

    def stage(self, wheels: Sequence[Wheel]) -> None:
        """Bring the wheels into the host's store; what has arrived stays there for the next call. Raises NotInStore if
        a wheel can't be obtained anywhere."""
        sources = self._context.request.sources
        wanted = self._find_missing(wheels)
        if self._spec.index_answer is None:
            wanted = [_find_in_directories(wheel, sources) for wheel in wanted]
        if self._spec.by_node0 and not sources.offline:
            by_url = [wheel for wheel in wanted if wheel.url and not wheel.path]
            if by_url:
                self._download_on_host(by_url)
                wanted = self._find_missing(wanted)
        if wanted:
            self._send_from_here(wanted)

    def _find_missing(self, wheels: Sequence[Wheel]) -> list[Wheel]:
        """Return the wheels that the host's store lacks, and keep in `_missing` how much it has of each."""
        self._missing = {file.sha256: file for file in self._store.missing([wheel.stored_file for wheel in wheels])}
        return [wheel for wheel in wheels if wheel.sha256 in self._missing]

    def _download_on_host(self, wheels: Sequence[Wheel]) -> None:
        """Let the host download the wheels, and keep why some failed."""
        context, index_answer = self._context, self._spec.index_answer
        if index_answer is None:
            settings = pip_settings(self._session, self._location.python)
            index_answer = unqueried(context.request.sources, settings)
        self._reasons = download_wheels(context, self._store, wheels, index_answer, name=self._location.host.name)

    def _send_from_here(self, wheels: Sequence[Wheel]) -> None:
        """Send the wheels from this machine, which downloads those that it does not have. Raises NotInStore if it can't
        get one."""
        context, name = self._context, self._location.host.name
        to_send = [(self._missing[wheel.sha256], Path(wheel.path)) for wheel in wheels if wheel.path]
        to_download, index_answer = [wheel for wheel in wheels if not wheel.path], self._spec.index_answer
        if context.request.sources.offline:
            to_download = [replace(wheel, url=None) for wheel in to_download]
        elif to_download and (self._spec.by_node0 or index_answer is None):
            to_download, index_answer = find_in_own_indexes(context, to_download)
        unknown = [wheel.filename for wheel in to_download if not wheel.url]
        if unknown:
            names = unknown[0] if len(unknown) == 1 else f"{unknown[0]} and {len(unknown) - 1} more"
            raise NotInStore(
                f"this machine finds {names} in no index or directory, and {name}'s store does not have it",
                "name the directory that has it: --wheelhouse DIR; or the URL it was installed from: "
                "--with 'NAME @ URL'; or choose versions again: --upgrade",
            )
        total = _total(wheels)
        with (
            _transit(Path(context.control.location.store), clears=bool(to_download)),
            self._downloading(to_download, index_answer) as arriving,
        ):
            self._store.push(
                (entry for entries in (to_send, arriving) for entry in entries),
                expected=[self._missing[wheel.sha256] for wheel in wheels],
                on_bytes=lambda done: context.watch(BytesMoved(name, "receiving", done, total)),
            )
            context.watch(BytesMoved(name, "receiving", total or 0, total))
            if not isinstance(self._session, LocalSession):
                context.uplink += sum((wheel.size or 0) - self._missing[wheel.sha256].have for wheel in wheels)

    @contextmanager
    def _downloading(
        self, wheels: Sequence[Wheel], index_answer: IndexAnswer | None
    ) -> Iterator[Iterator[tuple[StoredFile, Path]]]:
        """Download in the background; yields an iterator over the wheels that arrived."""
        files = [self._missing[wheel.sha256] for wheel in wheels]
        stop = Cancel()
        arriving = ArrivingFiles(self._context.control.location.store, stop)

        def download(index_answer: IndexAnswer) -> None:
            error: HostError = NotInStore("the download on this machine ended early")
            try:
                with self._context.pool.cancel.waking(stop.throw):
                    self._download_here(wheels, index_answer, arriving, stop)
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
            stop.throw()  # stop sending wheels
            raise
        finally:
            futures.wait([running])

    def _download_here(
        self, wheels: Sequence[Wheel], index_answer: IndexAnswer, arriving: ArrivingFiles, cancel: Cancel
    ) -> None:
        """Download the wheels into this machine's store. Each is passed to `arriving` as soon as it is complete."""
        here = ControlMachine.find(cancel).store
        # An earlier call that failed may have left some wheels.
        files = [wheel.stored_file for wheel in wheels]
        missing = here.missing(files, verify=True)
        for file in set(files) - set(missing):
            arriving.add(file.sha256)
        absent = [wheel for wheel in wheels if wheel.stored_file in missing]
        failed = download_wheels(self._context, here, absent, index_answer, on_got=arriving.add)
        if failed:
            sha256, reason = next(iter(failed.items()))
            name = next(wheel.filename for wheel in wheels if wheel.sha256 == sha256)
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            on_host = f"; on the first host: {self._reasons[sha256]}" if sha256 in self._reasons else ""
            raise NotInStore(
                f"{name}{more} can't be downloaded: {reason}{on_host}",
                Fix(
                    "check the network there: `ipexctl doctor`; or get the wheels on another machine with `ipexctl "
                    "install --download-only DIR`, then add --wheelhouse DIR here; wheels that arrived are kept"
                ),
            )
        self._context.watch(HostFinished("", "downloaded", ok=True))


def _find_in_directories(wheel: Wheel, sources: Sources) -> Wheel:
    """Return the wheel with its path in a directory that the call names, if an intact file of it is there."""
    for option in (sources.wheelhouse, *sources.find_links):
        directory = directory_of(option) if option and not wheel.path else None
        if directory is not None and is_intact(path := Path(directory, wheel.filename), wheel):
            return replace(wheel, path=str(path))
    return wheel


def find_in_own_indexes(context: InstallContext, wheels: Sequence[Wheel]) -> tuple[list[Wheel], IndexAnswer]:
    """Replace the wheels' URLs by URLs of this machine's own indexes, or by None if these lack the file. Only `pkg @
    URL` of the call keeps its URL."""
    index_answer = query_here(context, tuple(wheel.name for wheel in wheels))
    urls = {item.filename: item.url for items in index_answer.availability.candidates.values() for item in items}
    direct = set()
    for line in context.typed.env.packages:
        if url := Requirement(line).url:
            direct.add(strip_login(url))
    return [replace(w, url=w.url if w.url in direct else urls.get(w.filename)) for w in wheels], index_answer


@contextmanager
def _transit(store: Path, *, clears: bool) -> Iterator[None]:
    """Share the control machine's store with other running calls; the last one that succeeds removes it."""
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


def _total(wheels: Sequence[Wheel]) -> int | None:
    sizes = [wheel.size for wheel in wheels]
    return sum(size for size in sizes if size) if all(sizes) else None


LOCK: Final = "ipexctl-lock.json"
_PARTS: Final = ".ipexctl-parts"


def download(opened: OpenHosts, request: InstallRequest, directory: Path, watch: Watch = ignore_event) -> InstallReport:
    """Fill a wheelhouse on the control machine, for hosts without internet; without hosts, for this machine's Python.
    Each file is renamed once it matches the lock, so a repeated call downloads only what is missing."""
    directory = expand_tilde(directory).absolute()
    if not request.dry_run:
        _make_directory(directory)
    context = InstallContext(opened, _for_some_python(request.for_project(), opened.hosts, watch), watch)
    inspect_hosts(context)
    if opened.hosts and not context.pending:
        return context.report()
    try:
        locked = lock_stack(context, node0_may=False)
        if isinstance(locked, Refusal):
            return replace(context.report(), refusal=locked)  # the hosts were only inspected
        context.notes += [note.text for note in locked.plan.notes]
        announce_stack(context, locked, by="the control machine downloads them")
        if not request.dry_run:
            _fetch(context, locked, directory)
    except HostError as error:
        return replace(context.report(), refusal=Refusal(error.reason, error.fix))
    return context.report(stack=summary_of(locked.plan, locked.lock), lock=locked.lock, path=str(directory))


def _make_directory(directory: Path) -> None:
    """Make the directory for the wheels. Raises a UserError if that fails."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--download-only {directory}: {error.strerror or error}", fix="choose a directory that you can create"
        ) from None


def _for_some_python(request: InstallRequest, hosts: Sequence[Host], watch: Watch) -> InstallRequest:
    """Return the request with this machine's Python, if there are no hosts and no --python that decide it."""
    stack = request.env.stack
    if hosts or stack.python is not None:
        return request
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    watch(Notice(f"for Python {own}, as on the control machine; for another one on the nodes: --python V"))
    return replace(request, env=replace(request.env, stack=replace(stack, python=own)))


def _fetch(context: InstallContext, locked: LockedStack, directory: Path) -> None:
    """Put the wheels and the lock into a directory on this machine. Files that are intact stay."""
    wheels = [*locked.lock.wheels, locked.installer]
    wanted = [wheel for wheel in wheels if not is_intact(directory / wheel.filename, wheel)]
    try:
        for wheel in wanted:
            if wheel.path is not None:
                _copy(wheel.path, directory / wheel.filename)
        _download(context, locked, [wheel for wheel in wanted if wheel.path is None], directory)
        text = json.dumps(locked.lock.to_json(), indent=1)
        write_atomically(directory / LOCK, f"{text}\n".encode(), durable=False, mode=0o644, is_of_user=True)
    except OSError as error:
        raise HostError(
            f"{error.filename or directory}: {error.strerror or error}", place_fix(error, "choose another directory")
        ) from None


def _copy(source: Path | str, target: Path) -> None:
    """Write a new file and rename it: the existing one may be a link that another account made."""
    temporary = target.with_name(f".{target.name}.{os.getpid():06x}{os.urandom(1).hex()}.new")
    try:
        with open(source, "rb") as old, open(temporary, "xb") as new:  # noqa: PTH123
            shutil.copyfileobj(old, new, 1 << 20)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _download(context: InstallContext, locked: LockedStack, wheels: Sequence[Wheel], directory: Path) -> None:
    """Download wheels into a store inside the directory, and move each to its place once it is complete."""
    if not wheels:
        return
    control, parts = context.control, directory / _PARTS
    store = parts / "wheels"  # a store closes its parent directory to others
    location = StoreLocation(control.session.host, control.python, str(store))
    client = StoreClient(location, control.session)
    failed = download_wheels(context, client, wheels, locked.index_answer)
    for wheel in wheels:
        path = store / wheel.sha256 / wheel.filename
        if wheel.url and wheel.sha256 not in failed:
            path.chmod(0o644)
            path.replace(directory / wheel.filename)
    if failed:
        missing = next(wheel for wheel in wheels if wheel.sha256 in failed)
        raise HostError(
            f"{missing.filename} cannot be downloaded: {failed[missing.sha256]}",
            "check the network and the proxy (https_proxy), or use another index: --index-url URL; complete wheels are "
            "kept",
        )
    shutil.rmtree(parts, ignore_errors=True)

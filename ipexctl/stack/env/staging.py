"""Bytes on their way to node0: by itself where it can, else through this machine, each wheel once."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import queue
import shutil
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.remote.cancel import Cancel
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.transfer import store_client as stores
from ipexctl.remote.transfer.store_client import Download, NotInStore, StoredFile
from ipexctl.stack.lock.indexes import directory_of, pip_settings, unasked
from ipexctl.stack.lock.pipeline import web_of
from ipexctl.stack.progress import BytesMoved, Ended

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ipexctl.remote.session import Session
    from ipexctl.remote.transfer.store_client import StoreLocation
    from ipexctl.stack.install_context import InstallContext
    from ipexctl.stack.lock.indexes import IndexAnswer
    from ipexctl.stack.lock.lock import Wheel
    from ipexctl.stack.resolve.model import Sources


@dataclass(frozen=True, slots=True)
class WheelDelivery:
    """What node0 is to have, and who may fetch it."""

    wheels: tuple[Wheel, ...]
    asked: IndexAnswer | None = field(default=None, repr=False)
    """The sources' answer; None where an older lock is gone by."""
    by_node0: bool = True
    """Whether node0 is to try itself first."""


def blob_of(wheel: Wheel) -> StoredFile:
    return StoredFile(wheel.sha256, wheel.filename, wheel.size)


def stage_wheels(context: InstallContext, session: Session, place: StoreLocation, delivery: WheelDelivery) -> None:
    """Fill node0's store. What has come stays for the next try.

    Raises a HostError: a NotHere where a wheel can't be had, any other where that host can't take them.
    """
    cancel = context.pool.cancel
    blobs = {wheel.sha256: blob_of(wheel) for wheel in delivery.wheels}
    need = {blob.sha256 for blob in stores.missing(session, place, tuple(blobs.values()), cancel=cancel)}
    if not need:
        return
    wanted = [wheel for wheel in delivery.wheels if wheel.sha256 in need]
    if delivery.asked is None:
        wanted = [_found(wheel, context.wishes.sources) for wheel in wanted]
    failed: dict[str, str] = {}
    if delivery.by_node0 and not context.wishes.sources.offline:
        failed = _node0_fetches(context, session, place, [w for w in wanted if w.url and not w.path], delivery.asked)
        wanted = [wheel for wheel in wanted if wheel.path or not wheel.url or wheel.sha256 in failed]
    if wanted:
        _through_here(context, session, place, wanted, delivery.asked, failed)


def _found(wheel: Wheel, sources: Sources) -> Wheel:
    """A wheel of an older lock may lie in a directory that this call names."""
    for word in (sources.wheelhouse, *sources.find_links):
        directory = directory_of(word) if word and not wheel.path else None
        if directory is not None and is_whole(path := Path(directory, wheel.filename), wheel):
            return replace(wheel, path=str(path))
    return wheel


def is_whole(path: Path, wheel: Wheel) -> bool:
    """Whether the file there is that wheel."""
    try:
        if not path.is_file() or (wheel.size is not None and path.stat().st_size != wheel.size):
            return False
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:
        return False
    return digest.hexdigest() == wheel.sha256


def _node0_fetches(
    context: InstallContext, session: Session, place: StoreLocation, wheels: Sequence[Wheel], asked: IndexAnswer | None
) -> dict[str, str]:
    """What node0 could not fetch, and why."""
    if not wheels:
        return {}
    if asked is None:
        settings = pip_settings(session, place.python, cancel=context.pool.cancel)
        asked = unasked(context.wishes.sources, settings, here=False)
    total, name = _total(wheels), place.host.name
    fetched = stores.fetch(
        session,
        place,
        _downloads(wheels, asked),
        web=web_of(asked.settings),
        on_bytes=lambda done: context.watch(BytesMoved(name, "downloading", done, total)),
        timeout=context.wishes.timeout,
        cancel=context.pool.cancel,
    )
    context.downloaded += sum(wheel.size or 0 for wheel in wheels if wheel.sha256 in fetched.got)
    return dict(fetched.failed)


def _through_here(
    context: InstallContext,
    session: Session,
    place: StoreLocation,
    wheels: Sequence[Wheel],
    asked: IndexAnswer | None,
    failed: dict[str, str],
) -> None:
    """Downloads and uploads overlap: a wheel is on its way to node0 while the next is on its way here."""
    lost = [wheel for wheel in wheels if not wheel.path and (not wheel.url or context.wishes.sources.offline)]
    if lost:
        raise NotInStore(
            f"{lost[0].filename} is neither in {place.host.name}'s store nor in a directory of this machine",
            "name the directory that has it: --wheelhouse DIR; or have it decided anew: --upgrade",
        )
    total, name = _total(wheels), place.host.name
    to_fetch = [wheel for wheel in wheels if not wheel.path]
    near = isinstance(session, LocalSession)
    with _Transit(Path(context.here.place.store)) as transit:
        with _Pipe(context, to_fetch, asked, failed) as pipe:
            stores.push(
                session,
                place,
                pipe.files([wheel for wheel in wheels if wheel.path]),
                on_bytes=lambda done: context.watch(BytesMoved(name, "receiving", done, total)),
                timeout=context.wishes.timeout,
                cancel=context.pool.cancel,
            )
        context.watch(BytesMoved(name, "receiving", total or 0, total))
        if not near:
            context.uplink += sum(wheel.size or 0 for wheel in wheels)
        if to_fetch:
            transit.clear()


class _Transit:
    """What has come to this machine lies there for all calls at work; the last that ends well takes it away."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock: int | None = None

    def __enter__(self) -> _Transit:
        with contextlib.suppress(OSError):  # without a lock it is as if we were alone
            self._store.parent.mkdir(0o700, parents=True, exist_ok=True)
            self._lock = os.open(self._store.with_name("transit.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def clear(self) -> None:
        try:
            if self._lock is not None:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        shutil.rmtree(self._store, ignore_errors=True)


class _Pipe:
    """Wheels fetched by this machine, handed on as each is whole."""

    def __init__(
        self, context: InstallContext, wheels: Sequence[Wheel], asked: IndexAnswer | None, failed: dict[str, str]
    ) -> None:
        self._course = context
        self._wheels = {wheel.sha256: wheel for wheel in wheels}
        self._asked = asked
        self._failed = failed
        self._stop = Cancel()
        self._whole: queue.SimpleQueue[str | HostError | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._fetch, name="fetch", daemon=True)

    def __enter__(self) -> _Pipe:
        if self._wheels:
            self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._stop.throw()  # nobody takes what would still come
        if self._wheels:
            self._thread.join()

    def files(self, present: Sequence[Wheel]) -> Iterator[tuple[StoredFile, Path]]:
        """Those that lie on this machine already, then the others as they come."""
        for wheel in present:
            yield blob_of(wheel), Path(wheel.path or "")
        store = Path(self._course.here.place.store)
        for _ in self._wheels:
            found = self._whole.get()
            if isinstance(found, HostError):
                raise found
            if found is None:
                return
            wheel = self._wheels[found]
            yield blob_of(wheel), store / wheel.sha256 / wheel.filename

    def _fetch(self) -> None:
        try:
            with self._course.pool.cancel.waking(self._stop.throw):
                self._whole.put(self._fetched())
        except Cancelled as error:
            self._whole.put(error)
        except HostError as error:
            self._whole.put(NotInStore(f"on this machine: {error.reason}", error.fix))

    def _fetched(self) -> HostError | None:
        context, here = self._course, self._course.here
        total = _total(list(self._wheels.values()))
        handed: set[str] = set()

        def whole(sha256: str) -> None:
            handed.add(sha256)
            self._whole.put(sha256)

        blobs = [blob_of(wheel) for wheel in self._wheels.values()]
        # An earlier call that ended badly may have left some.
        need = {blob.sha256 for blob in stores.missing(here.session, here.place, blobs, verify=True, cancel=self._stop)}
        for blob in blobs:
            if blob.sha256 not in need:
                whole(blob.sha256)
        asked = self._asked
        if asked is None:
            settings = pip_settings(here.session, here.python, cancel=self._stop)
            asked = unasked(context.wishes.sources, settings, here=True)
        fetched = stores.fetch(
            here.session,
            here.place,
            _downloads([wheel for wheel in self._wheels.values() if wheel.sha256 in need], asked),
            web=web_of(asked.settings),
            on_bytes=lambda done: context.watch(BytesMoved("", "downloading", done, total)),
            on_got=whole,
            cancel=self._stop,
        )
        for sha256 in fetched.got:
            if sha256 not in handed:
                self._whole.put(sha256)
        context.downloaded += sum(self._wheels[sha256].size or 0 for sha256 in fetched.got)
        if fetched.failed:
            return self._why(fetched.failed)
        context.watch(Ended("", "downloaded", ok=True))
        return None

    def _why(self, reasons: Mapping[str, str]) -> HostError:
        first = next(iter(reasons))
        more = f", nor {len(reasons) - 1} more" if len(reasons) > 1 else ""
        also = f"; by node0: {self._failed[first]}" if first in self._failed else ""
        return NotInStore(
            f"{self._wheels[first].filename} can't be had{more}: {reasons[first]}{also}",
            "run it again: what has come is kept",
        )


def _downloads(wheels: Sequence[Wheel], asked: IndexAnswer) -> list[Download]:
    return [Download(blob_of(wheel), wheel.url, asked.headers_for(wheel.url)) for wheel in wheels if wheel.url]


def _total(wheels: Sequence[Wheel]) -> int | None:
    sizes = [wheel.size for wheel in wheels]
    return sum(size for size in sizes if size) if all(sizes) else None

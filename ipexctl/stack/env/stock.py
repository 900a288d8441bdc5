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

from ipexctl.remote import stores
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.stores import Blob, Download, NotHere
from ipexctl.stack.lock.indexes import directory_of, pip_settings, unasked
from ipexctl.stack.lock.supply import web_of
from ipexctl.stack.progress import Ended, Moved

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ipexctl.remote.session import Session
    from ipexctl.remote.stores import Place
    from ipexctl.stack.choice.request import Sources
    from ipexctl.stack.course import Course
    from ipexctl.stack.lock.indexes import Asked
    from ipexctl.stack.lock.lock import Wheel


@dataclass(frozen=True, slots=True)
class Goods:
    """What node0 is to have, and who may fetch it."""

    wheels: tuple[Wheel, ...]
    asked: Asked | None = field(default=None, repr=False)
    """The sources' answer; None where an older lock is gone by."""
    by_node0: bool = True
    """Whether node0 is to try itself first."""


def blob_of(wheel: Wheel) -> Blob:
    return Blob(wheel.sha256, wheel.filename, wheel.size)


def stock(course: Course, session: Session, place: Place, goods: Goods) -> None:
    """Fill node0's store. What has come stays for the next try.

    Raises a HostError: a NotHere where a wheel can't be had, any other where that host can't take them.
    """
    cancel = course.crew.cancel
    blobs = {wheel.sha256: blob_of(wheel) for wheel in goods.wheels}
    need = {blob.sha256 for blob in stores.missing(session, place, tuple(blobs.values()), cancel=cancel)}
    if not need:
        return
    wanted = [wheel for wheel in goods.wheels if wheel.sha256 in need]
    if goods.asked is None:
        wanted = [_found(wheel, course.wishes.sources) for wheel in wanted]
    failed: dict[str, str] = {}
    if goods.by_node0 and not course.wishes.sources.offline:
        failed = _node0_fetches(course, session, place, [w for w in wanted if w.url and not w.path], goods.asked)
        wanted = [wheel for wheel in wanted if wheel.path or not wheel.url or wheel.sha256 in failed]
    if wanted:
        _through_here(course, session, place, wanted, goods.asked, failed)


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
    course: Course, session: Session, place: Place, wheels: Sequence[Wheel], asked: Asked | None
) -> dict[str, str]:
    """What node0 could not fetch, and why."""
    if not wheels:
        return {}
    if asked is None:
        settings = pip_settings(session, place.python, cancel=course.crew.cancel)
        asked = unasked(course.wishes.sources, settings, here=False)
    total, name = _total(wheels), place.host.name
    fetched = stores.fetch(
        session,
        place,
        _downloads(wheels, asked),
        web=web_of(asked.settings),
        on_bytes=lambda done: course.watch(Moved(name, "downloading", done, total)),
        timeout=course.wishes.timeout,
        cancel=course.crew.cancel,
    )
    course.downloaded += sum(wheel.size or 0 for wheel in wheels if wheel.sha256 in fetched.got)
    return dict(fetched.failed)


def _through_here(
    course: Course,
    session: Session,
    place: Place,
    wheels: Sequence[Wheel],
    asked: Asked | None,
    failed: dict[str, str],
) -> None:
    """Downloads and uploads overlap: a wheel is on its way to node0 while the next is on its way here."""
    lost = [wheel for wheel in wheels if not wheel.path and (not wheel.url or course.wishes.sources.offline)]
    if lost:
        raise NotHere(
            f"{lost[0].filename} is neither in {place.host.name}'s store nor in a directory of this machine",
            "name the directory that has it: --wheelhouse DIR; or have it decided anew: --upgrade",
        )
    total, name = _total(wheels), place.host.name
    to_fetch = [wheel for wheel in wheels if not wheel.path]
    near = isinstance(session, LocalSession)
    with _Transit(Path(course.here.place.store)) as transit:
        with _Pipe(course, to_fetch, asked, failed) as pipe:
            stores.push(
                session,
                place,
                pipe.files([wheel for wheel in wheels if wheel.path]),
                on_bytes=lambda done: course.watch(Moved(name, "receiving", done, total)),
                timeout=course.wishes.timeout,
                cancel=course.crew.cancel,
            )
        course.watch(Moved(name, "receiving", total or 0, total))
        if not near:
            course.uplink += sum(wheel.size or 0 for wheel in wheels)
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

    def __init__(self, course: Course, wheels: Sequence[Wheel], asked: Asked | None, failed: dict[str, str]) -> None:
        self._course = course
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

    def files(self, present: Sequence[Wheel]) -> Iterator[tuple[Blob, Path]]:
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
            with self._course.crew.cancel.waking(self._stop.throw):
                self._whole.put(self._fetched())
        except Cancelled as error:
            self._whole.put(error)
        except HostError as error:
            self._whole.put(NotHere(f"on this machine: {error.reason}", error.fix))

    def _fetched(self) -> HostError | None:
        course, here = self._course, self._course.here
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
            asked = unasked(course.wishes.sources, settings, here=True)
        fetched = stores.fetch(
            here.session,
            here.place,
            _downloads([wheel for wheel in self._wheels.values() if wheel.sha256 in need], asked),
            web=web_of(asked.settings),
            on_bytes=lambda done: course.watch(Moved("", "downloading", done, total)),
            on_got=whole,
            cancel=self._stop,
        )
        for sha256 in fetched.got:
            if sha256 not in handed:
                self._whole.put(sha256)
        course.downloaded += sum(self._wheels[sha256].size or 0 for sha256 in fetched.got)
        if fetched.failed:
            return self._why(fetched.failed)
        course.watch(Ended("", "downloaded", ok=True))
        return None

    def _why(self, reasons: Mapping[str, str]) -> HostError:
        first = next(iter(reasons))
        more = f", nor {len(reasons) - 1} more" if len(reasons) > 1 else ""
        also = f"; by node0: {self._failed[first]}" if first in self._failed else ""
        return NotHere(
            f"{self._wheels[first].filename} can't be had{more}: {reasons[first]}{also}",
            "run it again: what has come is kept",
        )


def _downloads(wheels: Sequence[Wheel], asked: Asked) -> list[Download]:
    return [Download(blob_of(wheel), wheel.url, asked.headers_for(wheel.url)) for wheel in wheels if wheel.url]


def _total(wheels: Sequence[Wheel]) -> int | None:
    sizes = [wheel.size for wheel in wheels]
    return sum(size for size in sizes if size) if all(sizes) else None

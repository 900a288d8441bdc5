"""Bytes on their way to node0: by itself where it can, else through this machine, each wheel once."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.remote import stores
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import HostError
from ipexctl.remote.stores import Blob, Download
from ipexctl.stack.indexes import pip_settings
from ipexctl.stack.progress import Ended, Moved
from ipexctl.stack.supply import web_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ipexctl.remote.session import Session
    from ipexctl.remote.stores import Place
    from ipexctl.stack.course import Course
    from ipexctl.stack.indexes import Asked
    from ipexctl.stack.lock import Wheel


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
    """Fill node0's store; raises a HostError that says what can't be had. What has come stays for the next try."""
    cancel = course.crew.cancel
    blobs = {wheel.sha256: blob_of(wheel) for wheel in goods.wheels}
    need = {blob.sha256 for blob in stores.missing(session, place, tuple(blobs.values()), cancel=cancel)}
    if not need:
        return
    wanted = [wheel for wheel in goods.wheels if wheel.sha256 in need]
    failed: dict[str, str] = {}
    if goods.by_node0 and not course.wishes.sources.offline:
        failed = _node0_fetches(course, session, place, [w for w in wanted if w.url], goods.asked)
        wanted = [wheel for wheel in wanted if not wheel.url or wheel.sha256 in failed]
    if wanted:
        _through_here(course, session, place, wanted, goods.asked, failed)


def _node0_fetches(
    course: Course, session: Session, place: Place, wheels: Sequence[Wheel], asked: Asked | None
) -> dict[str, str]:
    """What node0 could not fetch, and why."""
    settings = asked.settings if asked else pip_settings(session, place.python, cancel=course.crew.cancel)
    total, name = _total(wheels), place.host.name
    fetched = stores.fetch(
        session,
        place,
        _downloads(wheels, asked),
        web=web_of(settings),
        on_bytes=lambda done: course.watch(Moved(name, "downloading", done, total)),
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
        raise HostError(
            f"{lost[0].filename} is neither in its store nor in a directory of this machine",
            "run it without --offline, or with --wheelhouse DIR",
        )
    total, name = _total(wheels), place.host.name
    to_fetch = [wheel for wheel in wheels if not wheel.path]
    near = isinstance(session, LocalSession)
    pipe = _Pipe(course, to_fetch, asked, failed)
    with pipe:
        stores.push(
            session,
            place,
            pipe.files([wheel for wheel in wheels if wheel.path]),
            on_bytes=lambda done: course.watch(Moved(name, "receiving", done, total)),
            cancel=course.crew.cancel,
        )
    course.watch(Moved(name, "receiving", total or 0, total))
    if not near:
        course.uplink += sum(wheel.size or 0 for wheel in wheels)
    here = course.here
    stores.drop(here.session, here.place, [blob_of(wheel) for wheel in to_fetch], cancel=course.crew.cancel)


class _Pipe:
    """Wheels fetched by this machine, handed on as each is whole."""

    def __init__(self, course: Course, wheels: Sequence[Wheel], asked: Asked | None, failed: dict[str, str]) -> None:
        self._course = course
        self._wheels = {wheel.sha256: wheel for wheel in wheels}
        self._asked = asked
        self._failed = failed
        self._whole: queue.SimpleQueue[str | HostError | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._fetch, name="fetch", daemon=True)

    def __enter__(self) -> _Pipe:
        if self._wheels:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
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
            self._whole.put(self._fetched())
        except HostError as error:
            self._whole.put(error)

    def _fetched(self) -> HostError | None:
        course, here = self._course, self._course.here
        total = _total(list(self._wheels.values()))
        handed: set[str] = set()

        def whole(sha256: str) -> None:
            handed.add(sha256)
            self._whole.put(sha256)

        settings = self._asked.settings if self._asked else pip_settings(here.session, here.python)
        fetched = stores.fetch(
            here.session,
            here.place,
            _downloads(list(self._wheels.values()), self._asked),
            web=web_of(settings),
            on_bytes=lambda done: course.watch(Moved("", "downloading", done, total)),
            on_got=whole,
            cancel=course.crew.cancel,
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
        return HostError(
            f"{self._wheels[first].filename} can't be had{more}: {reasons[first]}{also}",
            "run it again: what has come is kept",
        )


def _downloads(wheels: Sequence[Wheel], asked: Asked | None) -> list[Download]:
    return [Download(blob_of(w), w.url, asked.headers_for(w.url) if asked else None) for w in wheels if w.url]


def _total(wheels: Sequence[Wheel]) -> int | None:
    sizes = [wheel.size for wheel in wheels]
    return sum(size for size in sizes if size) if all(sizes) else None

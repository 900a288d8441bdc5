"""A run's copy on this machine, written while it is followed: for when node0, or its record there, is gone.

    RUNS/ID/ranks/NNNN.out, NNNN.err    what the ranks printed, the bytes as they came
    RUNS/ID/status.json                 as node0 had it; a final one says that the copy is whole

Every byte is written at its own offset, so that two who follow at once write the same files, twice the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import time
from typing import TYPE_CHECKING, Any, Final

from ipexctl.jobs.events import FINAL, Chunk, read_status
from ipexctl.node.common.frames import SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ipexctl.jobs.events import RunStatus, Stream

_NOTED_EVERY: Final = 5.0
_OPEN_AT_ONCE: Final = 256
_PIECE: Final = 1 << 18


class LocalCopy:
    """The copy as it is written. What can't be written ends it: `broken` says why, and nothing else suffers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.broken: OSError | None = None
        self._open: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._state = ""
        self._noted = 0.0

    def take(self, chunk: Chunk) -> None:
        """A piece of a rank's output. Pieces of one stream come in order, the first at its beginning."""
        if self.broken is not None:
            return
        name = f"{chunk.rank:04}.{SUFFIXES[chunk.stream]}"
        data, offset = chunk.data, chunk.offset
        try:
            number = self._opened(name)
            if offset > self._sizes[name]:
                raise OSError(0, f"{name} is shorter than it was")
            while data and offset + len(data) > self._sizes[name]:
                written = os.pwrite(number, data, offset)
                offset, data = offset + written, data[written:]
                self._sizes[name] = max(self._sizes[name], offset)
        except OSError as error:
            self._give_up(error)

    def note(self, document: Mapping[str, Any]) -> None:
        """How the run stands, now and then. How it ended is written last, by `finish`."""
        now = time.monotonic()
        state = str(document.get("state"))
        if state in FINAL or (state == self._state and now - self._noted < _NOTED_EVERY):
            return
        self._state, self._noted = state, now
        self._save(document)

    def finish(self, document: Mapping[str, Any]) -> None:
        """All was told, and this is how it ended."""
        if document.get("state") in FINAL:
            self._save(document)
        self.close()

    def close(self) -> None:
        for number in self._open.values():
            os.close(number)
        self._open.clear()

    def _opened(self, name: str) -> int:
        number = self._open.get(name)
        if number is None:
            if len(self._open) >= _OPEN_AT_ONCE:
                os.close(self._open.pop(next(iter(self._open))))
            place = self.directory / "ranks"
            for made in (self.directory, place):  # a parent made along the way would be open to all
                made.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = self._open[name] = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._sizes[name] = os.fstat(number).st_size
        return number

    def _save(self, document: Mapping[str, Any]) -> None:
        if self.broken is not None:
            return
        aside = self.directory / f"status.{secrets.token_hex(4)}.part"
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                json.dump(document, file)
            aside.replace(self.directory / "status.json")
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink()
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.broken = error
        self.close()


class ReadCopy:
    """A copy as it is read again."""

    def __init__(self, directory: Path, status: RunStatus, seen: float) -> None:
        self.directory = directory
        self.status = status
        self.seen = seen
        """When the run was last heard of, in seconds since the epoch."""

    @property
    def is_whole(self) -> bool:
        """All that was ever said is here, and how it ended."""
        return self.status.state in FINAL

    def chunks(self, ranks: Sequence[int] | None, streams: Sequence[Stream]) -> Iterator[Chunk]:
        """What these ranks have printed, one after the other."""
        for rank in range(self.status.world_size) if ranks is None else ranks:
            for stream in streams:
                yield from self._read(rank, stream)

    def _read(self, rank: int, stream: Stream) -> Iterator[Chunk]:
        offset = 0
        path = self.directory / "ranks" / f"{rank:04}.{SUFFIXES[stream]}"
        with contextlib.suppress(OSError), path.open("rb") as file:
            while data := file.read(_PIECE):
                yield Chunk(rank, stream, data, offset)
                offset += len(data)


def read_copy(directory: Path) -> ReadCopy | None:
    """What there is of a run on this machine; None where it was never followed."""
    path = directory / "status.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        seen = path.stat().st_mtime
    except (OSError, ValueError):
        return None
    return ReadCopy(directory, read_status(document), seen) if isinstance(document, dict) else None


def remove_copy(runs: Path, run: str) -> None:
    """Take a run's copy away, of which there may be none; `runs` is the register's directory."""
    shutil.rmtree(runs / run / "ranks", ignore_errors=True)  # the status last: a copy without one is nobody's to remove
    shutil.rmtree(runs / run, ignore_errors=True)


def size_of_copy(runs: Path, run: str) -> int:
    """Bytes it takes on this machine's disk."""
    size = 0
    for path in (runs / run).rglob("*"):
        with contextlib.suppress(OSError):
            size += path.stat().st_blocks * 512
    return size

"""The two questions a host is asked: what it has of a project, and to make it what the project is."""

from __future__ import annotations

import io
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError
from ipexctl.sync.manifest import encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.reply import Reply
    from ipexctl.remote.session import Session
    from ipexctl.sync.manifest import Entry
    from ipexctl.sync.project import Project

_CHUNK: Final = 1 << 18
END: Final = b'{"end": true}\n'


@dataclass(frozen=True, slots=True)
class Generation:
    """One tree of the project on a host."""

    number: int
    path: str
    digest: str | None
    whole: bool
    """It is what was asked for."""
    held: tuple[str, ...]
    """Other runs that use it."""
    ended: tuple[str, ...]
    """Runs that said they use it, and have ended by their own record."""
    staged: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TreeState:
    """What a host has of a project."""

    home: str
    store: str | None
    """The same on hosts that share this home."""
    python: str
    generations: tuple[Generation, ...]

    def generation(self, number: int) -> Generation | None:
        return next((each for each in self.generations if each.number == number), None)


@dataclass(frozen=True, slots=True)
class TreeRequest:
    """What both questions say."""

    home: str
    project: Project
    lease: str | None = None
    ended: tuple[str, ...] = ()
    pythons: Mapping[str, str] = field(default_factory=dict)
    """Host → an interpreter that is known to be there."""

    def to_json(self) -> dict[str, Any]:
        return {
            "home": self.home,
            "project": self.project.name,
            "digest": self.project.manifest.digest,
            "lease": self.lease,
            "ended": list(self.ended),
        }


def query_tree(
    session: Session,
    order: TreeRequest,
    *,
    dry_run: bool = False,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> TreeState:
    said = call(
        session,
        "files.tree",
        "inspect",
        {**order.to_json(), "dry_run": dry_run},
        python=order.pythons.get(session.host.name, ""),
        home=order.home,
        cached=not dry_run,
        label="look at the tree",
        timeout=timeout,
        cancel=cancel,
    )
    return TreeState(
        said.text("home"),
        said.text_or_none("store"),
        said.text("python"),
        tuple(
            Generation(
                entry.integer("generation"),
                entry.text("path"),
                entry.text_or_none("digest"),
                entry.flag("whole"),
                entry.texts("held"),
                entry.texts("ended"),
                entry.texts("staged"),
                entry.optional_texts("kept"),
            )
            for entry in said.records("generations")
        ),
    )


def put_tree(
    session: Session,
    order: TreeRequest,
    generation: int,
    contents: Sequence[bytes | Entry],
    *,
    blobs: Sequence[str] = (),
    dry_run: bool = False,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> tuple[Reply, int]:
    """Make that generation what the project is; what the host says, and how many bytes went there.

    `contents` are frames that are made already, and files to be read on the way. `blobs` lie on the host.
    """
    packed = order.project.manifest.packed
    request = {
        **order.to_json(),
        "generation": generation,
        "manifest": len(packed),
        "blobs": list(blobs),
        "dry_run": dry_run,
    }
    parcel = UploadStream(os.fsencode(order.project.root), (packed, *contents, END))
    try:
        said = call(
            session,
            "files.tree_upload",
            "put",
            request,
            python=order.pythons.get(session.host.name, ""),
            home=order.home,
            cached=not dry_run,
            label="change the tree",
            stdin=cast("BinaryIO", parcel),
            timeout=timeout,
            cancel=cancel,
        )
    except HostError as error:
        if parcel.error is not None:
            raise parcel.error from error
        raise
    return said, parcel.read_bytes


def frame(root: bytes, entry: Entry) -> bytes:
    """One small file, whole. Raises a HostError where it isn't what it was."""
    where = os.path.join(root, encode(entry.path))
    try:
        with open(where, "rb") as file:
            data = file.read(entry.size + 1)
    except OSError as error:
        raise _changed(where, error.strerror or str(error)) from None
    if len(data) != entry.size:
        raise _changed(where, "it changed since it was looked at")
    return header(entry) + data


def header(entry: Entry) -> bytes:
    return json.dumps({"sha256": entry.content, "size": entry.size}).encode() + b"\n"


def _changed(where: bytes, said: str) -> HostError:
    return HostError(f"{os.fsdecode(where)} on this machine: {said}", "run it again")


class UploadStream(io.RawIOBase):
    """Bytes and files one behind the other, as a stream; each file is opened when it is its turn."""

    def __init__(self, root: bytes, parts: Sequence[bytes | Entry]) -> None:
        self._pieces = self._cut(root, parts)
        self.error: HostError | None = None
        """What ended the stream early; the host only sees that it did."""
        self.read_bytes = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        del size  # whoever reads takes pieces as they are
        try:
            piece = next(self._pieces, b"")
        except HostError as error:
            self.error = error
            return b""
        self.read_bytes += len(piece)
        return piece

    @staticmethod
    def _cut(root: bytes, parts: Sequence[bytes | Entry]) -> Iterator[bytes]:
        held = bytearray()
        for part in parts:
            if isinstance(part, bytes):
                held += part
            elif part.size <= _CHUNK:
                held += frame(root, part)
            else:
                yield bytes(held) + header(part)
                held.clear()
                yield from _pieces(root, part)
            while len(held) >= _CHUNK:
                yield bytes(held[:_CHUNK])
                del held[:_CHUNK]
        if held:
            yield bytes(held)


def _pieces(root: bytes, entry: Entry) -> Iterator[bytes]:
    where, left = os.path.join(root, encode(entry.path)), entry.size
    try:
        with open(where, "rb", buffering=0) as file:
            while left:
                piece = file.read(min(_CHUNK, left))
                if not piece:
                    raise _changed(where, "it became shorter while it was read")
                left -= len(piece)
                yield piece
    except OSError as error:
        raise _changed(where, error.strerror or str(error)) from None

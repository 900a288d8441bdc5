"""Calls to the agent for a project's tree: its state, and an update with the contents that are missing."""

from __future__ import annotations

import io
import json
import os
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, cast

from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError
from ipexctl.sync.manifest import encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.reply import Reply
    from ipexctl.remote.session import Session
    from ipexctl.sync.manifest import ManifestEntry
    from ipexctl.sync.project import Project

_CHUNK: Final = 1 << 18
END: Final = b'{"end": true}\n'


class Generation(NamedTuple):
    """One tree of the project on a host."""

    number: int
    path: str
    digest: str | None
    whole: bool
    """It is up to date."""
    held: tuple[str, ...]
    """Other runs that use it."""
    ended: tuple[str, ...]
    """Runs with a lease on it that have ended by their record."""
    staged: tuple[str, ...]
    kept: tuple[str, ...]


class TreeChange(NamedTuple):
    """The changes that a host has made to a tree, or would make."""

    changed: bool
    path: str
    placed: int
    """Files and links that were written."""
    deleted: int
    kept: tuple[str, ...]
    blocked: tuple[str, ...]
    moved_away: tuple[str, ...]
    would_send: tuple[str, ...]
    would_delete: tuple[str, ...]
    sent_bytes: int


class TreeState(NamedTuple):
    """The trees of a project on a host."""

    home: str
    store: str | None
    """The same on hosts that share this home."""
    python: str
    generations: tuple[Generation, ...]
    change: TreeChange | None = None
    """The change by `update_tree`."""

    def generation(self, number: int) -> Generation | None:
        return next((generation for generation in self.generations if generation.number == number), None)


class TreeRequest(NamedTuple):
    """The part that both requests have."""

    home: str
    project: Project
    lease: str | None = None
    ended: tuple[str, ...] = ()
    pythons: Mapping[str, str] = {}
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
    request: TreeRequest,
    *,
    dry_run: bool = False,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> TreeState:
    reply = call(
        session,
        "files.tree",
        "inspect",
        {**request.to_json(), "dry_run": dry_run},
        python=request.pythons.get(session.host.name, ""),
        home=request.home,
        cached=not dry_run,
        label="look at the tree",
        timeout=timeout,
        cancel=cancel,
    )
    return _read_state(reply)


def _read_state(reply: Reply) -> TreeState:
    return TreeState(
        reply.text("home"),
        reply.text_or_none("store"),
        reply.text("python"),
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
            for entry in reply.records("generations")
        ),
    )


def read_change(reply: Reply, sent_bytes: int) -> TreeChange:
    return TreeChange(
        reply.flag("changed"),
        reply.text("path"),
        reply.integer("placed"),
        reply.integer("deleted"),
        reply.texts("kept"),
        reply.texts("blocked"),
        reply.texts("aside"),
        reply.optional_texts("place"),
        reply.optional_texts("delete"),
        sent_bytes,
    )


def update_tree(
    session: Session,
    request: TreeRequest,
    expected: str,
    contents: Sequence[bytes],
    *,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> TreeState:
    """Like `query_tree`, but a host updates its tree at once if it has only that one, as expected, and no run."""
    fields = {"expected": expected, "dry_run": False}
    reply, sent = _upload(session, request, "update", fields, contents, dry_run=False, timeout=timeout, cancel=cancel)
    state = _read_state(reply)
    if "updated" not in reply:
        return state
    return state._replace(change=read_change(reply.record("updated"), sent))


def put_tree(
    session: Session,
    request: TreeRequest,
    generation: int,
    contents: Sequence[bytes | ManifestEntry],
    *,
    blobs: Sequence[str] = (),
    dry_run: bool = False,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> tuple[Reply, int]:
    """Update that generation to the project; returns the host's reply and the number of bytes sent.

    `contents` are complete frames, and files that are read while they are sent. `blobs` are paths in the host's store.
    """
    fields = {"generation": generation, "blobs": list(blobs), "dry_run": dry_run}
    return _upload(session, request, "put", fields, contents, dry_run=dry_run, timeout=timeout, cancel=cancel)


def _upload(
    session: Session,
    request: TreeRequest,
    action: str,
    fields: Mapping[str, Any],
    contents: Sequence[bytes | ManifestEntry],
    *,
    dry_run: bool,
    timeout: float | None,
    cancel: Cancel | None,
) -> tuple[Reply, int]:
    packed = request.project.manifest.packed
    upload = UploadStream(os.fsencode(request.project.root), (packed, *contents, END))
    try:
        reply = call(
            session,
            "files.tree_upload",
            action,
            {**request.to_json(), **fields, "manifest": len(packed)},
            python=request.pythons.get(session.host.name, ""),
            home=request.home,
            cached=not dry_run,
            label="change the tree",
            stdin=cast("BinaryIO", upload),
            timeout=timeout,
            cancel=cancel,
        )
    except HostError as error:
        if upload.error is not None:
            raise upload.error from error
        raise
    return reply, upload.read_bytes


def frame(root: bytes, entry: ManifestEntry) -> bytes:
    """One small file as a frame. Raises a HostError if it has changed since the scan."""
    path = os.path.join(root, encode(entry.path))
    try:
        with open(path, "rb") as file:
            data = file.read(entry.size + 1)
    except OSError as error:
        raise _read_error(path, error.strerror or str(error)) from None
    if len(data) != entry.size:
        raise _read_error(path, "it changed since it was scanned")
    return header(entry) + data


def header(entry: ManifestEntry) -> bytes:
    return json.dumps({"sha256": entry.content, "size": entry.size}).encode() + b"\n"


def _read_error(path: bytes, reason: str) -> HostError:
    return HostError(f"{os.fsdecode(path)} on this machine: {reason}", "run it again")


class UploadStream(io.RawIOBase):
    """Bytes and files as one stream; each file is opened when the stream reaches it."""

    def __init__(self, root: bytes, parts: Sequence[bytes | ManifestEntry]) -> None:
        self._chunks = self._make_chunks(root, parts)
        self.error: HostError | None = None
        """The error that ended the stream early; the host only sees the end."""
        self.read_bytes = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        del size  # readers accept chunks of any size
        try:
            chunk = next(self._chunks, b"")
        except HostError as error:
            self.error = error
            return b""
        self.read_bytes += len(chunk)
        return chunk

    @staticmethod
    def _make_chunks(root: bytes, parts: Sequence[bytes | ManifestEntry]) -> Iterator[bytes]:
        buffer = bytearray()
        for part in parts:
            if isinstance(part, bytes):
                buffer += part
            elif part.size <= _CHUNK:
                buffer += frame(root, part)
            else:
                yield bytes(buffer) + header(part)
                buffer.clear()
                yield from _read_chunks(root, part)
            while len(buffer) >= _CHUNK:
                yield bytes(buffer[:_CHUNK])
                del buffer[:_CHUNK]
        if buffer:
            yield bytes(buffer)


def _read_chunks(root: bytes, entry: ManifestEntry) -> Iterator[bytes]:
    path, left = os.path.join(root, encode(entry.path)), entry.size
    try:
        with open(path, "rb", buffering=0) as file:
            while left:
                chunk = file.read(min(_CHUNK, left))
                if not chunk:
                    raise _read_error(path, "it became shorter while it was read")
                left -= len(chunk)
                yield chunk
    except OSError as error:
        raise _read_error(path, error.strerror or str(error)) from None

"""Calls to the agent for a project's tree: its state, and an update with the contents that are missing.

In come the manifest of the project and a host; out come the `TreeState` of that host and the reply to an update. With
an `Expected`, a host that has that tree updates it in the same round trip, which saves most syncs the second one.
Files are read while they are sent, so a file that has changed since the scan is an error of the call and never half of
it. The agent checks every content by its hash (`node/files/tree_upload.py`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from ipexctl.file_reader import open_regular
from ipexctl.node.common.files import encode_name
from ipexctl.node.files.file_stream import END, SEND_CHUNK, header_line, read_chunks
from ipexctl.node.files.replies import Generation, PutReply, TreeChanges, TreesReply
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import ChunkStream
from ipexctl.sync.report import SyncResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.node.files.tree import TreeRequest
    from ipexctl.node.files.tree_upload import PutRequest
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.reply import Reply
    from ipexctl.remote.session import Readable, Session
    from ipexctl.sync.manifest import ManifestEntry
    from ipexctl.sync.project import Project


class TreeState(NamedTuple):
    """The trees of a project on a host."""

    home: str
    store: str
    """The same on hosts that share this home; that of a host whose home is not known to be shared is its own."""
    python: str
    generations: tuple[Generation, ...]
    updated: SyncResult | None = None
    """The result of an update in the same call, if it changed or checked the tree."""

    @property
    def is_changed(self) -> bool:
        """Whether the same call changed a tree."""
        return self.updated is not None and self.updated.status == "changed"

    def generation(self, number: int) -> Generation | None:
        return next((generation for generation in self.generations if generation.number == number), None)


class TreeCalls(NamedTuple):
    """The options of all calls of a sync."""

    home: str
    dry_run: bool
    timeout: float | None
    cancel: Cancel

    def call(
        self,
        session: Session,
        command: str,
        action: str,
        request: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        *,
        label: str,
        stdin: Readable,
    ) -> Reply:
        return call(
            session,
            command,
            action,
            request,
            home=self.home,
            cached=not self.dry_run,
            label=label,
            stdin=stdin,
            timeout=self.timeout,
            cancel=self.cancel,
        )


class TreeCallOptions(NamedTuple):
    """The part that all requests of a sync have."""

    calls: TreeCalls
    project: Project
    lease: str | None = None
    ended: tuple[str, ...] = ()

    def fields(self) -> TreeRequest:
        return {
            "home": self.calls.home,
            "project": self.project.name,
            "digest": self.project.manifest.digest,
            "lease": self.lease,
            "ended": list(self.ended),
            "dry_run": self.calls.dry_run,
            "data": list(self.project.data),
        }


class Expected(NamedTuple):
    """The tree that hosts are expected to have, by its digest, and the contents that the project has besides."""

    digest: str | None
    """None: no tree of the project."""
    contents: bytes


def query_tree(
    session: Session, calls: TreeCalls, query: Callable[[], tuple[TreeCallOptions, Expected | None]]
) -> TreeState:
    """The state of the trees. With an `Expected`, a host that has it, and no run, updates it at once.

    `query` is called when the agent is being started; it may wait.
    """
    sent = 0

    def fields() -> TreeRequest:
        request, expected = query()
        if expected is None:
            return request.fields()
        size = len(request.project.manifest.packed)
        return {**request.fields(), "manifest": size, "expected": expected.digest}

    def contents() -> Iterator[bytes]:
        nonlocal sent
        request, expected = query()
        if expected is not None:
            data = request.project.manifest.packed + expected.contents + END
            sent = len(data)
            yield data

    stdin = ChunkStream(contents())
    reply = calls.call(session, "files.tree_command", "inspect", fields, label="look at the tree", stdin=stdin)
    trees = reply.decode(TreesReply)
    updated = sync_result(session.host, trees.updated, sent) if trees.updated is not None else None
    store = trees.store or f"alone:{session.host.name}"
    return TreeState(trees.home, store, trees.python, trees.generations, updated)


def sync_result(host: Host, changes: TreeChanges, sent_bytes: int) -> SyncResult:
    return SyncResult(
        host,
        "changed" if changes.changed else "ok",
        path=changes.path,
        sent_bytes=sent_bytes,
        files_sent=changes.placed,
        files_deleted=changes.deleted,
        kept=changes.kept,
        blocked=changes.blocked,
        moved_away=changes.moved_away,
        would_send=changes.would_place,
        would_delete=changes.would_delete,
    )


def put_tree(
    session: Session,
    request: TreeCallOptions,
    generation: int,
    contents: Sequence[bytes | ManifestEntry],
    blobs: Sequence[str],
) -> tuple[PutReply, int]:
    """Update that generation to the project; returns the host's reply and the number of bytes sent.

    `contents` are parts of a `file_stream`, and files that are read while they are sent. `blobs` are paths in the
    host's store.
    """
    packed = request.project.manifest.packed
    upload = ChunkStream(_make_chunks(os.fsencode(request.project.root), (packed, *contents, END)))
    fields: PutRequest = {
        **request.fields(),
        "manifest": len(packed),
        "generation": generation,
        "blobs": list(blobs),
    }
    try:
        reply = request.calls.call(session, "files.tree_upload", "put", fields, label="change the tree", stdin=upload)
    except HostError as error:
        if upload.error is not None:
            raise upload.error from error
        raise
    return reply.decode(PutReply), upload.read_bytes


def pack_file(root: bytes, entry: ManifestEntry) -> bytes:
    """One small file, with its header, for a `file_stream`. Raises a HostError if it has changed since the scan."""
    path = os.path.join(root, encode_name(entry.path))
    try:
        with open(path, "rb", opener=open_regular) as file:
            data = file.read(entry.size + 1)
    except OSError as error:
        raise _read_error(path, error.strerror or str(error)) from None
    if len(data) != entry.size:
        raise _read_error(path, "it changed since it was scanned")
    return header(entry) + data


def header(entry: ManifestEntry) -> bytes:
    return header_line({"sha256": entry.content, "size": entry.size})


def _read_error(path: bytes, reason: str) -> HostError:
    return HostError(f"{os.fsdecode(path)} on this machine: {reason}", "run it again")


def _make_chunks(root: bytes, parts: Sequence[bytes | ManifestEntry]) -> Iterator[bytes]:
    """Bytes and files as one stream; each file is opened when the stream reaches it."""
    buffer = bytearray()
    for part in parts:
        if isinstance(part, bytes):
            buffer += part
        elif part.size <= SEND_CHUNK:
            buffer += pack_file(root, part)
        else:
            yield bytes(buffer) + header(part)
            buffer.clear()
            yield from _read_chunks(root, part)
        while len(buffer) >= SEND_CHUNK:
            yield bytes(buffer[:SEND_CHUNK])
            del buffer[:SEND_CHUNK]
    if buffer:
        yield bytes(buffer)


def _read_chunks(root: bytes, entry: ManifestEntry) -> Iterator[bytes]:
    path = os.path.join(root, encode_name(entry.path))
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            yield from read_chunks(file, entry.size)
    except OSError as error:
        raise _read_error(path, error.strerror or str(error)) from None

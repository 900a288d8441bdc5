"""Calls to the agent for a project's tree: its state, and an update with the contents that are missing.

In come the manifest of the project and a host; out come the `TreeState` of that host and the reply to an update. With
an `Expected`, a host that has that tree updates it in the same round trip, which saves most syncs the second one.
Contents travel as `files/stream.py` sends them; the agent checks each by its hash (`node/files/tree_upload.py`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from ipexctl.files.stream import stream_entries
from ipexctl.node.files.file_stream import END
from ipexctl.node.files.replies import Generation, PutReply, TreeChanges, TreesReply
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import ChunkStream
from ipexctl.sync.report import SyncResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.node.files.manifest import ManifestEntry
    from ipexctl.node.files.tree import TreeRequest
    from ipexctl.node.files.tree_upload import PutRequest
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.reply import Reply
    from ipexctl.remote.session import Readable, Session
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
    upload = ChunkStream(stream_entries(os.fsencode(request.project.root), (packed, *contents, END)))
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

"""Calls to the agent for a project's tree: its state, and an update with missing contents.

A host that has the `Expected` tree updates it in the same round trip, which saves most syncs the second one. The agent
checks each content by its hash (`node/files/tree_upload.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ipexctl.files.stream import stream_entries
from ipexctl.hosts.host import Host
from ipexctl.node.files.file_stream import END
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.node.files.replies import Generation, PutReply, TreeChanges, TreesReply
from ipexctl.node.files.tree import TreeRequest, tree_directory
from ipexctl.node.files.tree_upload import PutRequest
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError, HostResult, Report
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import ChunkStream, Readable, Session
from ipexctl.sync.project import Project


@dataclass(frozen=True, slots=True)
class SyncResult(HostResult):
    path: str | None = None
    generation: int | None = None
    sent_bytes: int = 0
    """From this machine to that host, without transfers between hosts."""
    files_sent: int = 0
    files_deleted: int = 0
    kept: tuple[str, ...] = ()
    """Files from an earlier sync that changed on the host and were left unchanged."""
    blocked: tuple[str, ...] = ()
    """Files of the host that the project has too; not overwritten."""
    moved_away: tuple[str, ...] = ()
    """Replaced files; the host's version is kept as NAME.node-1."""
    would_send: tuple[str, ...] = ()
    would_delete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncReport(Report[SyncResult]):
    root: Path
    project: str
    digest: str
    files: int
    size: int
    path: str | None = None
    generation: int | None = None
    notes: tuple[str, ...] = ()
    dry_run: bool = False
    left_out: tuple[str, ...] = ()
    """Paths that may contain credentials; a directory has a trailing slash."""
    fetched: tuple[str, ...] = ()


class TreeState(NamedTuple):
    home: str
    store: str
    """Equal on hosts that share this home; a host whose home is not known to be shared has its own."""
    python: str
    generations: tuple[Generation, ...]
    updated: SyncResult | None = None
    """Result of an update in the same call, if it changed or checked the tree."""

    @property
    def is_changed(self) -> bool:
        return self.updated is not None and self.updated.status == "changed"

    def generation(self, number: int) -> Generation | None:
        return next((generation for generation in self.generations if generation.number == number), None)

    def tree_path(self, project: str, number: int) -> str:
        return f"{self.home}/code/{tree_directory(project, number)}"


class TreeCalls(NamedTuple):
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
    """The tree that hosts should have, by digest, and the project's contents that it lacks."""

    digest: str | None
    """None: no tree of the project."""
    contents: bytes


def query_tree(
    session: Session, calls: TreeCalls, query: Callable[[], tuple[TreeCallOptions, Expected | None]]
) -> TreeState:
    """Return the trees' state. A host with the `Expected` tree, and no run using it, updates it at once.

    `query` is called while the agent starts; it may wait.
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
    reply = calls.call(session, "files.tree_upload", "inspect", fields, label="look at the tree", stdin=stdin)
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
    parcels: Sequence[str],
) -> tuple[PutReply, int]:
    """Update that generation to the project; return the host's reply and the number of bytes sent.

    `contents`: parts of a `file_stream`, and files read while they are sent. `parcels`: hashes, in the tree's stage.
    """
    packed = request.project.manifest.packed
    upload = ChunkStream(stream_entries(os.fsencode(request.project.root), (packed, *contents, END)))
    fields: PutRequest = {
        **request.fields(),
        "manifest": len(packed),
        "size": sum(len(part) if isinstance(part, bytes) else part.size for part in contents),
        "generation": generation,
        "parcels": list(parcels),
    }
    try:
        reply = request.calls.call(session, "files.tree_upload", "put", fields, label="change the tree", stdin=upload)
    except HostError as error:
        if upload.error is not None:
            raise upload.error from error
        raise
    return reply.decode(PutReply), upload.read_bytes

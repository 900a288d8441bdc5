"""Calls to the agent for a project's tree: its state, and an update with missing contents.

A host that has the `ExpectedTree` updates it in the same round trip, which saves most syncs the second one. The agent
checks each content by its hash (`node/files/tree_upload.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from ipexctl.files.stream import stream_entries
from ipexctl.hosts.nodeset import fold
from ipexctl.node.files.call_replies import PutReply, TreesReply
from ipexctl.node.files.file_stream import END
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError, HostResult, Report
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import ChunkStream, Session
from ipexctl.sync.project import Project
from ipexctl.text import printable

if TYPE_CHECKING:
    from ipexctl.node.files.call_requests import PutRequest, TreeRequest

_LISTED: Final = 5


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

    @property
    def warnings(self) -> Iterator[str]:
        """Files of hosts in the way of the project's."""
        yield from self.differences(
            "blocked", "not written by a sync, and kept instead of the project's; to sync them, move them away there"
        )
        replaced = "to be replaced" if self.dry_run else "replaced"
        yield from self.differences(
            "moved_away",
            f"changed on the host and in the project: {replaced}, with the host's version kept as NAME.node-1",
        )

    def differences(self, name: str, what: str) -> Iterator[str]:
        paths_of = attrgetter(name)
        for paths in dict.fromkeys(filter(None, map(paths_of, self.hosts))):
            names = fold(result.host.name for result in self.hosts if paths_of(result) == paths)
            more = f" and {len(paths) - _LISTED} more" if len(paths) > _LISTED else ""
            yield f"{names}: {what}: {', '.join(map(printable, paths[:_LISTED]))}{more}"


class TreeCalls(NamedTuple):
    home: str
    dry_run: bool
    timeout: float | None
    cancel: Cancel

    def call(
        self,
        session: Session,
        action: Literal["inspect", "put"],
        request: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        stdin: ChunkStream,
    ) -> Reply:
        try:
            return call(
                session,
                "files.tree_upload",
                action,
                request,
                home=self.home,
                cached=not self.dry_run,
                label="look at the tree" if action == "inspect" else "change the tree",
                stdin=stdin,
                timeout=self.timeout,
                cancel=self.cancel,
            )
        except HostError as error:
            raise stdin.error or error from None


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


class ExpectedTree(NamedTuple):
    """The tree that hosts should have, by digest, and the project's contents that it lacks."""

    digest: str | None
    """None: no tree of the project."""
    contents: bytes


def query_tree(
    session: Session, calls: TreeCalls, query: Callable[[], tuple[TreeCallOptions, ExpectedTree | None]]
) -> tuple[TreesReply, int]:
    """Return the trees' state and the number of bytes that were used.

    A host with the `ExpectedTree`, and no run using it, updates it at once. `query` is called while the agent starts;
    it may wait.
    """

    def fields() -> TreeRequest:
        request, expected = query()
        if expected is None:
            return request.fields()
        size = len(request.project.manifest.packed)
        return {**request.fields(), "manifest": size, "expected": expected.digest, "size": len(expected.contents)}

    def contents() -> Iterator[bytes]:
        request, expected = query()
        if expected is not None:
            yield request.project.manifest.packed + expected.contents + END

    stdin = ChunkStream(contents())
    reply = calls.call(session, "inspect", fields, stdin).decode(TreesReply)
    return reply, stdin.read_bytes if reply.updated is not None else 0


def put_tree(
    session: Session,
    request: TreeCallOptions,
    generation: int,
    contents: bytes | Sequence[ManifestEntry],
    parcels: Sequence[str],
) -> tuple[PutReply, int]:
    """Update that generation to the project; return the host's reply and the number of bytes sent.

    `contents`: part of a `file_stream`, or files read while they are sent. `parcels`: hashes, in the tree's stage.
    """
    packed = request.project.manifest.packed
    if isinstance(contents, bytes):
        parts, size = iter((contents + END,)), len(contents)
    else:
        parts = chain(stream_entries(os.fsencode(request.project.root), contents), (END,))
        size = sum(entry.size for entry in contents)
    stdin = ChunkStream(chain((packed,), parts))
    fields: PutRequest = {
        **request.fields(),
        "manifest": len(packed),
        "size": size,
        "generation": generation,
        "parcels": list(parcels),
    }
    return request.calls.call(session, "put", fields, stdin).decode(PutReply), stdin.read_bytes

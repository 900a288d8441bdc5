"""Call the agent for a project's tree: it tells its state, and then gets the contents that it lacks.

Both go over one call, because starting an agent takes longer than a small update. The agent checks each content by its
hash (`node/files/tree_upload.py`).
"""

from __future__ import annotations

import json
import os
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ipexctl.files.stream import stream_entries
from ipexctl.hosts.nodeset import fold
from ipexctl.limits import STEP_SILENCE
from ipexctl.node.files.call_replies import PutReply, TreesReply
from ipexctl.node.files.file_stream import END
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.node_call import AgentPlace, call
from ipexctl.remote.outcome import HostError, HostResult, Report
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import ChunkStream, Session
from ipexctl.sync.project import Project

if TYPE_CHECKING:
    from ipexctl.node.files.call_requests import PutRequest, TreeRequest

_MOST_PATHS_LISTED: Final = 5


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
        """Yield a line for files of the hosts that are in the way of the project's files."""
        yield from self.differences(
            "blocked", "not written by a sync, and kept instead of the project's; to sync them, move them away there"
        )
        replaced = "to be replaced" if self.dry_run else "replaced"
        yield from self.differences(
            "moved_away",
            f"changed on the host and in the project: {replaced}, with the host's version kept as NAME.node-1",
        )

    def differences(self, name: str, summary: str) -> Iterator[str]:
        """Yield a line for each group of hosts with the same paths in the field `name`. `summary`: what happened to the
        paths."""
        paths_of = attrgetter(name)
        for paths in dict.fromkeys(filter(None, map(paths_of, self.hosts))):
            names = fold(result.host.name for result in self.hosts if paths_of(result) == paths)
            more = f" and {len(paths) - _MOST_PATHS_LISTED} more" if len(paths) > _MOST_PATHS_LISTED else ""
            yield f"{names}: {summary}: {', '.join(paths[:_MOST_PATHS_LISTED])}{more}"


class TreeCallOptions(NamedTuple):
    home: str
    project: Project
    dry_run: bool = False
    lease: str | None = None
    ended: tuple[str, ...] = ()

    def fields(self) -> TreeRequest:
        """Return the request to the agent."""
        return {
            "home": self.home,
            "project": self.project.name,
            "digest": self.project.manifest.digest,
            "lease": self.lease,
            "ended": list(self.ended),
            "dry_run": self.dry_run,
            "data": list(self.project.data),
        }


class TreeCall:
    """One call on a host: it describes the project's trees, and changes one when it is asked to, until `end`."""

    def __init__(
        self, session: Session, opened: OpenHosts, request: Callable[[], TreeRequest], *, dry_run: bool = False
    ) -> None:
        """Wait until the host has described its trees. `request` is called while the agent starts, and may wait. The
        time limit holds for each answer of the host."""
        self._requests: queue.SimpleQueue[Iterable[bytes] | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Reply | Exception] = queue.SimpleQueue()
        self._stdin = ChunkStream(chain.from_iterable(iter(self._requests.get, None)))
        is_limited = opened.timeout is not None
        seconds = opened.timeout if is_limited else STEP_SILENCE
        self._deadline = Deadline(seconds, session.cancel, is_of_silence=not is_limited)
        self._waiting = ExitStack()
        """Pauses the deadline while the host waits for a request."""
        self._is_asked = False
        self._call = run_in_background(lambda: self._run(session, opened.home, request, dry_run), "tree")
        try:
            self.trees = self._reply().decode(TreesReply)
        except BaseException:
            self.end()
            raise

    def _run(self, session: Session, home: str, request: Callable[[], TreeRequest], dry_run: bool) -> None:
        """Make the call in its thread. Any error, and the end of the call, go to the thread that waits for a reply."""

        def first() -> TreeRequest:
            with self._deadline.paused():
                fields = request()
            self._deadline.restart()
            self._is_asked = True
            return fields

        error: Exception = HostError("its call about the tree ended without an answer", "run it again")
        try:
            call(
                session,
                "files.tree_upload",
                "",
                first,
                AgentPlace("", home),
                cached=not dry_run,
                label="compare the tree" if dry_run else "sync the tree",
                stdin=self._stdin,
                on_event=self._on_event,
                deadline=self._deadline,
            )
        except Exception as caught:  # noqa: BLE001  # raised where the reply is awaited
            error = caught
        finally:
            self._replies.put(error)

    def _on_event(self, event: Reply) -> None:
        """Hand a reply to the thread that waits for it, and pause the deadline until the next request. Raises a
        MalformedReply for a reply to nothing."""
        if not self._is_asked:  # such an event would pause the deadline of a host that then stays silent
            raise event.error("an event out of order")
        self._is_asked = False
        self._waiting.enter_context(self._deadline.paused())
        self._replies.put(event)

    def _continue(self) -> None:
        self._waiting.close()
        self._deadline.restart()

    def _reply(self) -> Reply:
        """Return the next reply. Raises the error of the call, or of the contents that it was sending."""
        reply = self._replies.get()
        if isinstance(reply, HostError) and self._stdin.error is not None:
            raise self._stdin.error from None
        if isinstance(reply, Exception):
            raise reply
        return reply

    def put(
        self,
        request: TreeCallOptions,
        generation: int,
        contents: bytes | Sequence[ManifestEntry],
        parcels: Sequence[str],
    ) -> tuple[PutReply, int]:
        """Change that generation to the project; return the host's reply and the number of bytes sent.

        `contents`: part of a `file_stream`, or files that are read while they are sent. `parcels`: hashes, in the
        tree's stage.
        """
        packed = request.project.manifest.packed
        if isinstance(contents, bytes):
            parts, size = iter((contents + END,)), len(contents)
        else:
            parts = chain(stream_entries(os.fsencode(request.project.root), contents), (END,))
            size = sum(entry.size for entry in contents)
        fields: PutRequest = {
            **request.fields(),
            "manifest": len(packed),
            "size": size,
            "generation": generation,
            "parcels": list(parcels),
        }
        line = json.dumps(fields).encode() + b"\n"
        before = self._stdin.read_bytes + len(line)
        self._continue()
        self._is_asked = True
        self._requests.put(chain((line, packed), parts))
        return self._reply().decode(PutReply), self._stdin.read_bytes - before

    def end(self) -> Future[None]:
        """Let the agent end. Return a future that is done when the call has ended."""
        self._continue()
        self._requests.put(None)
        return self._call

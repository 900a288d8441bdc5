"""Copy a file or a directory to the same path of every host: `ipexctl push`. Hosts need no ipexctl.

1. Each host compares its path with the list of SRC (`node/files/push.py`). Without `force`, a host with other content
   is refused and gets nothing.
2. A `FileTransfer` brings what the hosts lack: local files, or files of a hub that one host has downloaded. If it is
   cut off, what has arrived stays, and the next push resumes.
3. When a host has all contents, they get their names there.

Of hosts that share the directory, the first does all this, and the others only look whether they see the files.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ipexctl.facts.facts import Facts
from ipexctl.files.file_transfer import FileTransfer, Origin, local_files
from ipexctl.files.push_source import PushSource
from ipexctl.files.store_client import StoreLocation
from ipexctl.hosts.host import Host, find_leaders
from ipexctl.node.files.call_replies import InspectReply
from ipexctl.node.files.call_requests import InspectRequest, PlaceRequest
from ipexctl.remote.caller import identify_caller
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.node_call import AgentPlace, call
from ipexctl.remote.outcome import (
    BytesMoved,
    Cancelled,
    HostError,
    HostResult,
    NotStarted,
    ProgressEvent,
    Report,
    Watch,
    ignore_event,
)
from ipexctl.remote.reply import MalformedReply, Reply
from ipexctl.remote.session import Session
from ipexctl.text import format_count, readable

STORE: Final = "store"
"""Directory for contents in the push's own directory on a host."""
_NAMES_SHOWN: Final = 3
_LARGE_SOURCE: Final = 1 << 28
"""Bytes of a SRC that take longer to read than a question to the hosts."""


@dataclass(frozen=True, slots=True)
class PushResult(HostResult):
    """Result of a push on one host. Lists of names are cut after twenty names."""

    path: str | None = None
    """Absolute path on the host; None if the host did not answer what it lacks, so that nothing was sent."""
    files_sent: int = 0
    """Files and links written (dry_run: to write). For a hub: files of its repositories."""
    sent_bytes: int = 0
    """From this machine to that host, without transfers between hosts."""
    same: int = 0
    """Files and links that the host had already."""
    differing: tuple[str, ...] = ()
    """Existing files with other content: refused; or replaced, with --force or because a push had written them."""
    replaced: int = 0
    """Number of files with other content that were replaced (dry_run: to replace); 0 if they were refused."""
    refused: bool = False
    """True if nothing was sent, because the path has other content."""
    would_send: tuple[str, ...] = ()
    """In a dry run, names of files and links to write."""


@dataclass(frozen=True, slots=True)
class PushReport(Report[PushResult]):
    source: str
    """SRC as typed."""
    path: str
    """PATH as typed, or the cache of a hub in the home."""
    files: int
    """Files and links of SRC."""
    size: int
    """Bytes of SRC."""
    force: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class PushOptions:
    path: str
    """A path on the hosts outside of the home of ipexctl, where no data may go."""
    force: bool = False
    dry_run: bool = False
    repos: str = ""
    """Set for a hub: the path is its cache's, below the home."""


@dataclass
class Push:
    """One push: `run`, after `has_room` if SRC is still to be read. A host that failed there is not asked again."""

    source: PushSource
    name: str
    """SRC, for the report."""
    opened: OpenHosts
    options: PushOptions
    watch: Watch = ignore_event
    origin: Origin | None = None
    """Where the files come from if SRC is on another machine, `sender`; None for this machine."""
    sender: Host | None = None
    facts: dict[str, Facts] = field(default_factory=dict)
    """Host → known facts."""

    def __post_init__(self) -> None:
        self._inspected: dict[str, InspectReply] = {}
        """Host → what its path lacks."""
        self._done: dict[str, PushResult] = {}
        """Host → its result, once it is known."""
        self._received: dict[str, BytesMoved] = {}
        """Host → the last event of its transfer."""
        self._began = time.monotonic()

    def has_room(self) -> bool:
        """Ask the hosts whether a large SRC fits, before it is read. False if all of them have failed.

        A smaller SRC is read as fast as they would answer, so they are not asked.
        """
        if self.source.manifest.size >= _LARGE_SOURCE:
            for done in self.opened.each(lambda host, session: self._inspect(host, session, quick=True)):
                if done.error is not None:
                    self._fail(done.host, done.error)
        return len(self._done) < len(self.opened.hosts)

    def run(self) -> PushReport:
        """Compare, send and write. A failed host does not affect the others; its result has the reason."""
        hosts = [host for host in self.opened.hosts if host.name not in self._done]
        for done in self.opened.only(hosts).each(self._inspect):
            if done.error is not None:
                self._fail(done.host, done.error)
            elif done.result is not None:
                self._inspected[done.host.name] = done.result
        answered = [host for host in self.opened.hosts if host.name in self._inspected]
        waiting = [host for host in answered if not self._decide(host)]
        if waiting and not self.options.dry_run:
            leaders = find_leaders(waiting, lambda host: self._inspected[host.name].token)
            self._send([host for host in waiting if leaders[host] is host])
            followers = [host for host in waiting if leaders[host] is not host]
            self._each(followers, lambda host, session: self._follow(host, leaders[host], session))
        manifest = self.source.manifest
        results = tuple(self._done[host.name] for host in self.opened.hosts if host.name in self._done)
        return PushReport(
            results,
            self._seconds,
            self.name,
            self.options.path,
            manifest.count,
            manifest.size,
            self.options.force,
            self.options.dry_run,
        )

    def _inspect(self, host: Host, session: Session, *, quick: bool = False, dry_run: bool = False) -> InspectReply:
        """Ask a host what its path lacks. `quick`: compare sizes, not hashes. `dry_run`: prepare nothing there."""
        packed = self.source.manifest.packed
        request: InspectRequest = {
            "path": self.options.path,
            "home": self.opened.home,
            "manifest": len(packed),
            "is_file": self.source.is_file,
            "repos": self.options.repos,
            "is_of_path": not self.options.repos,
            "force": self.options.force,
            "dry_run": self.options.dry_run or dry_run,
            "quick": quick,
        }

        def on_event(event: Reply) -> None:
            if event.get("event") == "progress":
                self.watch(BytesMoved(host.name, "comparing", event.integer("done"), event.integer_or_none("total")))

        reply = call(
            session,
            "files.push",
            "inspect",
            request,
            label=f"look at {self.options.path}",
            stdin=io.BytesIO(packed),
            on_event=on_event,
            timeout=self.opened.timeout,
        )
        inspected = reply.decode(InspectReply)
        if not set(inspected.need) <= set(self.source.manifest.files):
            raise MalformedReply("it needs files that are not to be sent", str(dict(reply))[:200])
        return inspected

    def _decide(self, host: Host) -> bool:
        """Set the result of a host that gets nothing: it is refused, it has all, or this is a dry run.

        False if the host waits for files.
        """
        inspected, result = self._inspected[host.name], self._result_of(host, "ok")
        if inspected.is_refused:
            if inspected.blocked_count:
                names = _listed(inspected.blocked, inspected.blocked_count, inspected.path)
                reason = f"something of another kind (a directory, link, FIFO or device) is in the place of {names}"
                fix = "nothing was sent to it; look at it there, or name another PATH"
            else:
                names = _listed(inspected.differing, inspected.differing_count, inspected.path)
                here = "there is other content" if inspected.differing == ("",) else f"other content is in {names}"
                reason = f"{inspected.path} is there: {here}"
                fix = "nothing was sent to it; to replace what differs: --force"
            result = replace(result, status="failed", reason=reason, fix=fix, replaced=0, refused=True)
        elif not inspected.is_complete and self.options.dry_run:
            changed = self._result_of(host, "changed")
            result = replace(changed, files_sent=inspected.lacking, would_send=inspected.names)
        elif not inspected.is_complete:
            return False
        self._done[host.name] = result
        return True

    def _result_of(self, host: Host, status: Literal["ok", "changed"]) -> PushResult:
        """Return the result of a host that has answered, as far as its answer tells it."""
        inspected = self._inspected[host.name]
        is_name_only = status == "changed" and bool(self.options.repos) and not inspected.lacking
        return PushResult(
            host,
            status,
            f"the name of a revision: {inspected.path}" if is_name_only else "",
            seconds=self._seconds,
            path=inspected.path,
            same=inspected.same,
            differing=inspected.differing,
            replaced=inspected.differing_count,
        )

    def _send(self, hosts: Sequence[Host]) -> None:
        """Bring the contents to these hosts, and let each give them their names. Then look at failed ones again."""
        needs = {host.name: frozenset(self._inspected[host.name].need) for host in hosts}
        stores = [self._store_of(host) for host in hosts]
        transfer = FileTransfer(stores, needs, self.opened, self.facts, self._on_progress, self.sender)
        arrived = transfer.bring_all(
            self.origin or local_files(self.source.root, self.source.entry_of, in_groups=True), self._fail
        )
        self._each(arrived, lambda host, session: self._place(host, session, transfer))
        failed = {done.host for done in self._done.values() if done.status == "failed"}
        self._each([host for host in hosts if host in failed], self._check_again)

    def _on_progress(self, event: ProgressEvent) -> None:
        if isinstance(event, BytesMoved):
            self._received[event.host] = event
        self.watch(event)

    def _each(self, hosts: Sequence[Host], work: Callable[[Host, Session], PushResult]) -> None:
        """Set the result of each host by what the work returns or raises there."""
        for done in self.opened.only(hosts).each(work):
            self._done[done.host.name] = done.result_or(self._result_of_error)

    def _store_of(self, host: Host) -> StoreLocation:
        """Return the store in the push's own directory on a host."""
        inspected = self._inspected[host.name]
        store, is_of_path = f"{inspected.directory}/{STORE}", not self.options.repos
        return StoreLocation(host, inspected.python, store, is_guarded=True, is_of_path=is_of_path)

    def _place(self, host: Host, session: Session, transfer: FileTransfer) -> PushResult:
        """Let a host that has all contents give them their names."""
        inspected = self._inspected[host.name]
        by = identify_caller(os.environ)
        request: PlaceRequest = {
            "home": self.opened.home,
            "by": by and by._asdict(),
            "path": inspected.path,
            "listed": inspected.listed,
            "force": self.options.force,
            "repos": self.options.repos,
            "is_of_path": not self.options.repos,
            "parcels": list(transfer.parcels),
        }
        reply = call(
            session,
            "files.push",
            "place",
            request,
            AgentPlace(inspected.python),
            label=f"put files into {inspected.path}",
            timeout=self.opened.timeout,
        )
        placed = reply.integer("placed")
        files_sent = inspected.lacking if self.options.repos else placed
        sent_bytes = transfer.sent.get(host.name, 0)
        return replace(self._result_of(host, "changed"), files_sent=files_sent, sent_bytes=sent_bytes)

    def _check_again(self, host: Host, session: Session) -> PushResult:
        """Return a new result for a failed host if another push has written the same files meanwhile, else the old."""
        with contextlib.suppress(HostError):
            if (inspected := self._inspect(host, session, dry_run=True)).is_complete:
                self._inspected[host.name] = inspected
                return self._result_of(host, "ok")
        return self._done[host.name]

    def _follow(self, host: Host, leader: Host, session: Session) -> PushResult:
        """Return the result of a host that shares the directory of another host, after that one has written it.

        Raises a HostError if the other one failed, or if this one does not see the files.
        """
        result = self._done[leader.name]
        if result.status in ("failed", "unreachable"):
            reason = f"{leader.name}, which writes the same directory, failed: {result.reason}"
            raise HostError(reason, result.fix)
        inspected = self._inspect(host, session, quick=True)
        if not inspected.is_complete:
            raise HostError("it sees the same directory as another host, and not the files there", "run it again")
        return PushResult(host, "changed", f"it is the directory of {leader.name}", "", self._seconds, inspected.path)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _fail(self, host: Host, error: HostError) -> None:
        self._done[host.name] = self._result_of_error(host, error)

    def _result_of_error(self, host: Host, error: HostError) -> PushResult:
        """Return the result of a failed host; if the call was stopped, it says how much has arrived."""
        path = self._inspected[host.name].path if host.name in self._inspected else None
        if isinstance(error, Cancelled) and (moved := self._received.get(host.name)):
            reason = "stopped" if isinstance(error, NotStarted) else error.reason
            of_all = f" of {readable(moved.total)}" if moved.total else ""
            error = Cancelled(f"{reason}; {readable(moved.done)}{of_all} have arrived")
        return PushResult.of_error(host, error, seconds=self._seconds, path=path)


def _listed(names: Sequence[str], count: int, path: str) -> str:
    """Return the names as text: `a.bin, b.bin, c.bin and 3 more files`. The empty name of SRC itself becomes `path`.

    `count`: number of names, of which `names` has the first.
    """
    shown = ", ".join(name or path for name in names[:_NAMES_SHOWN])
    return f"{shown} and {format_count(count - _NAMES_SHOWN, 'more file')}" if count > _NAMES_SHOWN else shown

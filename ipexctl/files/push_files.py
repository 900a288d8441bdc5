"""`ipexctl push`: a file or directory to the same path of every host, even hosts without ipexctl.

Each host compares first (`node/files/push.py`); without `force`, one with differing files is refused and gets nothing.
A `FileTransfer` brings what the others lack: local files, or those of a hub that one host downloaded. A cut-off push
keeps what has arrived; the next one resumes it. Files get their names when a host has all. Of hosts that share the
directory, the first writes.
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
_NAMED: Final = 3
_LARGE: Final = 1 << 28
"""Bytes of a SRC that take longer to read than a question to the hosts."""


@dataclass(frozen=True, slots=True)
class PushResult(HostResult):
    """One host. Lists of names are cut at twenty."""

    path: str | None = None
    """None if the host was not asked what it lacks, so that nothing was sent."""
    files_sent: int = 0
    """Files and links written (dry_run: to write). For a hub: files of its repositories."""
    sent_bytes: int = 0
    """From this machine to that host, without transfers between hosts."""
    same: int = 0
    differing: tuple[str, ...] = ()
    """Existing files with other content: refused; or replaced, with --force or because a push had written them."""
    replaced: int = 0
    refused: bool = False
    would_send: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PushReport(Report[PushResult]):
    source: str
    path: str
    files: int
    size: int
    force: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class PushOptions:
    path: str
    """Not in the home on the hosts, where no data may go."""
    force: bool = False
    dry_run: bool = False
    repos: str = ""
    """Set for a hub: the path is its cache's, below the home."""


@dataclass
class Push:
    source: PushSource
    name: str
    """SRC, for the report."""
    opened: OpenHosts
    options: PushOptions
    watch: Watch = ignore_event
    origin: Origin | None = None
    """For a SRC that is on another machine, `sender`."""
    sender: Host | None = None
    facts: dict[str, Facts] = field(default_factory=dict)
    """Known facts."""

    def __post_init__(self) -> None:
        self._found: dict[str, InspectReply] = {}
        self._done: dict[str, PushResult] = {}
        self._received: dict[str, BytesMoved] = {}
        """By host, the last event."""
        self._began = time.monotonic()

    def has_room(self) -> bool:
        """Ask the hosts before a large SRC is read. False if all of them have failed, most for lack of room."""
        if self.source.manifest.size >= _LARGE:
            for done in self.opened.each(lambda host, session: self._inspect(host, session, quick=True)):
                if done.error is not None:
                    self._fail(done.host, done.error)
        return len(self._done) < len(self.opened.hosts)

    def run(self) -> PushReport:
        hosts = [host for host in self.opened.hosts if host.name not in self._done]
        for done in self.opened.only(hosts).each(self._inspect):
            if done.error is not None:
                self._fail(done.host, done.error)
            elif done.result is not None:
                self._found[done.host.name] = done.result
        waiting = [host for host in self.opened.hosts if host.name in self._found and not self._is_decided(host)]
        if waiting and not self.options.dry_run:
            leaders = find_leaders(waiting, lambda host: self._found[host.name].token)
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
        found = reply.decode(InspectReply)
        if not set(found.need) <= set(self.source.manifest.files):
            raise MalformedReply("it needs files that are not to be sent", str(dict(reply))[:200])
        return found

    def _is_decided(self, host: Host) -> bool:
        found, result = self._found[host.name], self._result_of(host, "ok")
        if found.is_refused:
            if found.blocked_count:
                names = _listed(found.blocked, found.blocked_count, found.path)
                reason = f"something of another kind (a directory, link, FIFO or device) is in the place of {names}"
                fix = "nothing was sent to it; look at it there, or name another PATH"
            else:
                names = _listed(found.differing, found.differing_count, found.path)
                here = "there is other content" if found.differing == ("",) else f"other content is in {names}"
                reason = f"{found.path} is there: {here}"
                fix = "nothing was sent to it; to replace what differs: --force"
            result = replace(result, status="failed", reason=reason, fix=fix, replaced=0, refused=True)
        elif not found.is_complete and self.options.dry_run:
            result = replace(self._result_of(host, "changed"), files_sent=found.lacking, would_send=found.names)
        elif not found.is_complete:
            return False
        self._done[host.name] = result
        return True

    def _result_of(self, host: Host, status: Literal["ok", "changed"]) -> PushResult:
        found = self._found[host.name]
        is_name_only = status == "changed" and bool(self.options.repos) and not found.lacking
        return PushResult(
            host,
            status,
            f"the name of a revision: {found.path}" if is_name_only else "",
            seconds=self._seconds,
            path=found.path,
            same=found.same,
            differing=found.differing,
            replaced=found.differing_count,
        )

    def _send(self, hosts: Sequence[Host]) -> None:
        needs = {host.name: frozenset(self._found[host.name].need) for host in hosts}
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
        for done in self.opened.only(hosts).each(work):
            self._done[done.host.name] = done.result_or(self._result_of_error)

    def _store_of(self, host: Host) -> StoreLocation:
        found = self._found[host.name]
        return StoreLocation(
            host, found.python, f"{found.directory}/{STORE}", is_guarded=True, is_of_path=not self.options.repos
        )

    def _place(self, host: Host, session: Session, transfer: FileTransfer) -> PushResult:
        found = self._found[host.name]
        by = identify_caller(os.environ)
        request: PlaceRequest = {
            "home": self.opened.home,
            "by": by and by._asdict(),
            "path": found.path,
            "listed": found.listed,
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
            AgentPlace(found.python),
            label=f"put files into {found.path}",
            timeout=self.opened.timeout,
        )
        placed = reply.integer("placed")
        files_sent = found.lacking if self.options.repos else placed
        sent_bytes = transfer.sent.get(host.name, 0)
        return replace(self._result_of(host, "changed"), files_sent=files_sent, sent_bytes=sent_bytes)

    def _check_again(self, host: Host, session: Session) -> PushResult:
        """A failed host is ok if another push has written the same files to the path meanwhile."""
        with contextlib.suppress(HostError):
            if (found := self._inspect(host, session, dry_run=True)).is_complete:
                self._found[host.name] = found
                return self._result_of(host, "ok")
        return self._done[host.name]

    def _follow(self, host: Host, leader: Host, session: Session) -> PushResult:
        result = self._done[leader.name]
        if result.status in ("failed", "unreachable"):
            reason = f"{leader.name}, which writes the same directory, failed: {result.reason}"
            raise HostError(reason, result.fix)
        found = self._inspect(host, session, quick=True)
        if not found.is_complete:
            raise HostError("it sees the same directory as another host, and not the files there", "run it again")
        return PushResult(host, "changed", f"it is the directory of {leader.name}", "", self._seconds, found.path)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _fail(self, host: Host, error: HostError) -> None:
        self._done[host.name] = self._result_of_error(host, error)

    def _result_of_error(self, host: Host, error: HostError) -> PushResult:
        path = self._found[host.name].path if host.name in self._found else None
        if isinstance(error, Cancelled) and (moved := self._received.get(host.name)):
            reason = "stopped" if isinstance(error, NotStarted) else error.reason
            of_all = f" of {readable(moved.total)}" if moved.total else ""
            error = Cancelled(f"{reason}; {readable(moved.done)}{of_all} have arrived")
        return PushResult.of_error(host, error, seconds=self._seconds, path=path)


def _listed(names: Sequence[str], count: int, path: str) -> str:
    """`a.bin, b.bin and 3 more`; SRC itself has no name."""
    shown = ", ".join(name or path for name in names[:_NAMED])
    return f"{shown} and {format_count(count - _NAMED, 'more file')}" if count > _NAMED else shown

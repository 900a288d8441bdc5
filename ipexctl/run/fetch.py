"""Fetch files of a run or of a host, and resume where an earlier transfer ended.

A lost connection is opened again as long as the connections bring some bytes. After as many failures in a row as there
are intervals between attempts, the call ends.
"""

from __future__ import annotations

import io
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ipexctl.errors import UserError
from ipexctl.files.destination import Destination
from ipexctl.files.receiver import LIMITS, Receiver, rows_of
from ipexctl.files.requested import FetchResult, FetchSource, FileFailure, RequestedPath, read_entry
from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.host import Host, quote
from ipexctl.hosts.nodeset import expand
from ipexctl.limits import PATIENCE
from ipexctl.node.common.fix import Fix
from ipexctl.node.files.file_sender import RunFiles, SendRequest
from ipexctl.remote.cancel import RETRY_INTERVALS, Cancel
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.node_call import AgentPlace, call
from ipexctl.remote.outcome import BytesMoved, Cancelled, Notice, TimedOut, Unreachable, Watch
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import Session, StdinQueue
from ipexctl.sync.path_notes import note_fetched


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """What one host is asked to send, and where the files go."""

    host: Host
    request: SendRequest
    dest: str
    """Path on this machine, as it was typed."""
    agent: AgentPlace
    other_hosts: tuple[str, ...] = ()
    """Other hosts of the run with a home of their own. Empty if the user names a host."""

    @property
    def requested(self) -> RequestedPath:
        """The path that is asked for, and the run whose files are meant; no run if files of a host are meant."""
        run = self.request["run"]
        return RequestedPath(self.request["path"], run["id"] if run is not None else "")


def check_destination(dest: str) -> None:
    """Refuse a DEST that no file can replace."""
    if not dest or "\0" in dest:
        raise UserError(f"DEST is {quote(dest)}, which can't be a path", fix="the current directory is .")
    is_stream = os.path.islink(dest) and os.readlink(dest).startswith("/proc/")  # /dev/stdout
    if is_stream or (os.path.exists(dest) and not os.path.isfile(dest) and not os.path.isdir(dest)):
        raise UserError(f"DEST {quote(dest)} is a FIFO, socket or device", fix="name a file or a directory")


def order_of_run(
    record: RunRecord,
    path: str | None,
    dest: str,
    *,
    rank: int | None,
    host: str | None,
    others: Sequence[Host],
    force: bool = False,
) -> FetchRequest:
    """Return the request for files of a run: from the named host, else from the rank's host, else from node0.

    `path`: None for the files that the record of the run names. `others`: hosts that the call names besides those of
    the run. `force`: also fetch files that a later run has overwritten. Raises a UserError for a rank or host that the
    run does not have.
    """
    check_destination(dest)
    hosts = record.plan.rank_hosts
    if rank is not None:
        if not hosts:
            raise UserError(
                f"the host of rank {rank} of {record.id} is unknown on the control machine", fix="name it: --from HOST"
            )
        if not 0 <= rank < len(hosts):
            raise UserError(f"run {record.id} has no rank {rank}", fix=f"its ranks are 0 to {len(hosts) - 1}")
        host = hosts[rank]
    chosen = record.node0
    if host is not None and host != record.node0.name:
        named_host = next(
            (candidate for candidate in (*record.nodes, *others) if host in (candidate.name, candidate.address)), None
        )
        if named_host is None:
            raise UserError(
                f"run {record.id} was on no host {quote(host)}", fix=f"one of {', '.join(record.hosts) or 'its hosts'}"
            )
        chosen = named_host
    run: RunFiles = {
        "home": record.home,
        "id": record.id,
        "cwd": record.plan.cwd or None,
        "has_record": chosen == record.node0,
        "dest": dest,
        "takes_parts": is_directory(dest),
        "force": force,
    }
    other_hosts = tuple(name for name in record.leaders if name != chosen.name) if host is None else ()
    return FetchRequest(chosen, {"path": path, "run": run}, dest, record.agent, other_hosts)


def is_directory(dest: str) -> bool:
    """True if a single file keeps its name below DEST, by the rules of cp."""
    return os.path.basename(dest) in ("", ".", "..") or os.path.isdir(dest)


def orders_of_all_hosts(
    record: RunRecord, path: str | None, dest: str, *, results: bool, force: bool = False
) -> list[FetchRequest]:
    """Return a request to each home of the run. The files of each come below DEST/HOST.

    `results`: ask for the directory of results in place of `path`; a host may lack it.
    """
    check_destination(dest)
    requests = []
    for name in record.leaders:
        target = os.path.join(dest, name, "")
        request = order_of_run(record, path, target, rank=None, host=name, others=(), force=force)
        if results:
            path_of_results = f"{record.home}/results/{record.id}/"
            of_host: SendRequest = {"path": path_of_results, "run": None, "may_be_missing": True}
            request = replace(request, request=of_host)
        requests.append(request)
    return requests


def has_found_nothing(results: Sequence[FetchResult]) -> bool:
    """True if every host answered, and none has a file to fetch, or one that is here already, or one of another run."""
    return all(result.status == "ok" and not (result.unchanged or result.left_out) for result in results)


def find_hosts_with_path(requests: Sequence[FetchRequest], pool: SessionPool) -> PathOnHosts:
    """Ask all these hosts at once whether they have a file at the path of their request. No file is sent."""
    by_name = {request.host.name: request for request in requests}

    def has_path(host: Host, session: Session) -> bool:
        """Ask one host."""
        request, files = by_name[host.name], list[object]()

        def on_event(event: Reply) -> None:
            """Collect the files that the host has."""
            if event.get("event") == "entries":
                files.extend(entry for entry in map(read_entry, rows_of(event)) if entry.kind == "f")

        call(
            session,
            "files.file_sender",
            "",
            request.request,
            request.agent,
            label="look for the path",
            stdin=io.BytesIO(b'{"wants": []}\n'),
            on_event=on_event,
            limits=LIMITS,
            silence=PATIENCE,
        )
        return bool(files)

    having, unknown = set(), set()
    for done in pool.each([request.host for request in requests], has_path):
        if done.result:
            having.add(done.host.name)
        elif isinstance(done.error, (Unreachable, TimedOut, Cancelled)):  # any other error means that it does not exist
            unknown.add(done.host.name)
    return PathOnHosts(
        tuple(name for name in by_name if name in having), tuple(name for name in by_name if name in unknown)
    )


def from_other_host(request: FetchRequest, other: FetchRequest) -> FetchRequest:
    """Return `request` for the host of `other`. Files that a later run has overwritten are not asked for."""
    run = request.request["run"]
    assert run is not None
    of_host: SendRequest = {"path": request.request["path"], "run": {**run, "has_record": False}}
    return replace(request, host=other.host, request=of_host, agent=other.agent)


class PathOnHosts(NamedTuple):
    """Which of the hosts that were asked have a path."""

    having: tuple[str, ...] = ()
    """Hosts that have a file at the path."""
    unknown: tuple[str, ...] = ()
    """Hosts that did not answer. A host in neither list does not have the path."""


def order_of_host(source: FetchSource, dest: str, hosts: Sequence[Host], home: str) -> FetchRequest:
    """Return the request for files of a host of this call. A relative path starts in the home directory of the account.

    Raises a UserError if the word names no host, or several.
    """
    check_destination(dest)
    for host in hosts:
        if source.word in (host.name, host.address, f"{host.user}@{host.name}", f"{host.user}@{host.address}"):
            return FetchRequest(host, {"path": source.path, "run": None}, dest, AgentPlace("", home))
    if len(names := expand(source.word)) > 1:
        command = ("ipexctl", "fetch", f"{names[0]}:{source.path}", os.path.join(dest, names[0], ""))
        fix = f"one call for each of them: {shlex.join(command)}"
        raise UserError(f"{quote(source.word)} names {len(names)} hosts, and fetch takes one", fix=fix)
    raise UserError(
        f"{quote(source.word)} is neither a run of this machine nor a host of this call",
        fix=Fix(f"`ipexctl ps` shows the runs; a host: --hosts {source.word}, or -H HOSTFILE"),
    )


def fetch(
    fetch_request: FetchRequest,
    open_session: Callable[[], Session],
    watch: Watch,
    cancel: Cancel,
    timeout: float | None = None,
) -> FetchResult:
    """Fetch the files of one request, and return what came.

    Raises a HostError if the host cannot be reached, or sends nothing for PATIENCE seconds. `timeout`: seconds for the
    whole transfer; None for no such limit.
    """

    def on_bytes(done: int, total: int) -> None:
        """Report the progress."""
        watch(BytesMoved(fetch_request.host.name, "receiving", done, total))

    began, failures = time.monotonic(), 0
    before: list[Receiver] = []
    while True:
        receiver = Receiver(
            fetch_request.requested,
            StdinQueue(),
            lambda single: _open_destination(fetch_request, single),
            on_bytes,
        )
        try:
            gone = time.monotonic() - began if before else 0.0
            left = None if timeout is None else max(round(timeout - gone, 1), 0.1)
            _receive_once(fetch_request, open_session, receiver, left)
        except Unreachable as error:
            before.append(receiver)
            failures = 1 if receiver.received else failures + 1
            if not any(part.received for part in before) or failures > len(RETRY_INTERVALS):
                raise
            watch(Notice(f"{fetch_request.host.name}: {error.reason}; connecting again to resume"))
            cancel.sleep(RETRY_INTERVALS[failures - 1])
        else:
            return _fetch_result(fetch_request, [*before, receiver], time.monotonic() - began)


def _open_destination(fetch_request: FetchRequest, single: bool) -> tuple[Destination, str | None]:
    """Return the destination directory, and the name of a single file in it, by the rules of cp.

    The name is None if the file keeps its own, and for several files.
    """
    root, name = fetch_request.dest, None
    if single and not is_directory(root):
        root, name = os.path.split(root)
    return Destination(root or "."), name


def _receive_once(
    fetch_request: FetchRequest,
    open_session: Callable[[], Session],
    receiver: Receiver,
    timeout: float | None,
) -> None:
    """Receive files over one connection."""
    session = open_session()
    try:
        call(
            session,
            "files.file_sender",
            "",
            fetch_request.request,
            fetch_request.agent,
            label=f"send files of {fetch_request.host.name}",
            stdin=receiver.stdin,
            on_event=receiver.on_event,
            limits=LIMITS,
            timeout=timeout,
            silence=PATIENCE,
        )
    finally:
        receiver.stdin.end()
        session.close()
        if receiver.destination is not None:
            receiver.destination.close()
            note_fetched(receiver.destination.created)


def _fetch_result(fetch_request: FetchRequest, parts: Sequence[Receiver], seconds: float) -> FetchResult:
    """Return the result of all connections together."""
    brought = tuple(dict.fromkeys(name for part in parts for name in part.brought))
    resumed = {name: at for part in parts for name, at in part.resumed.items() if name in brought}
    last = parts[-1]
    unsent = [FileFailure(name, "it wasn't sent") for name in last.unsent]
    failed = tuple(dict.fromkeys((*last.failed, *unsent)))
    missing = {failure.name for failure in failed}
    return FetchResult(
        fetch_request.host,
        "failed" if failed else "changed" if brought else "ok",
        seconds=seconds,
        source=last.source,
        dest=fetch_request.dest,
        brought=brought,
        unchanged=len(set(last.unchanged) - set(brought)),
        size=sum(part.size for part in parts),
        received=sum(part.received for part in parts),
        resumed=tuple(resumed),
        kept=sum(resumed.values()),
        failed=failed,
        left_out=tuple(last.left_out),
        older=tuple(name for name in last.older if name not in missing),
    )

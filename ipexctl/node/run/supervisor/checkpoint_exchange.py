"""The supervisor's part of a checkpoint exchange, before the commands of an attempt start.

Each host reports its copies and is told what to serve, fetch and remove; hosts send files to each other directly.
Nothing moves before all hosts have reported. `files/checkpoint.py` describes the messages.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import socket
import threading
from typing import TYPE_CHECKING, Iterable, Iterator, Mapping

from ipexctl.node.common.authenticated_socket import (
    MALFORMED,
    REPLY_TIME,
    AuthenticatingServer,
    ChangedLine,
    ProvenLines,
)
from ipexctl.node.common.checkpoint_layout import directories_above, is_temporary
from ipexctl.node.common.files import format_size
from ipexctl.node.common.json_records import decode_port
from ipexctl.node.common.node_limits import CHECKPOINT_STEP
from ipexctl.node.common.token_proof import CHECKPOINT_EXCHANGE, ready
from ipexctl.node.files.checkpoint_report import HostCopies, read_host_copies
from ipexctl.node.files.checkpoint_units import ExchangePlan, plan_exchange

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.files.manifest import ManifestEntry

_MAX_REASON = 1000


class _HostFailure(Exception):
    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"{host}: {reason}")
        self.host = host


class CheckpointExchange(AuthenticatingServer):
    """Runs in its own thread, so that the supervisor can answer meanwhile. `hosts`: rank → host."""

    def __init__(
        self,
        path: str,
        hosts: Mapping[int, str],
        bind: str,
        token: str,
        addresses: Iterable[str] = (),
        *,
        is_restart: bool = False,
    ) -> None:
        """Raises an OSError if nothing can listen on `bind`. `addresses`: known addresses of the hosts."""
        super().__init__(bind, token, CHECKPOINT_EXCHANGE, len(hosts), addresses)
        self.notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.is_over = False
        self.failure = ""
        self.failed_host = ""
        self.is_changed = False
        self._path, self._hosts, self._is_restart = path, dict(hosts), is_restart
        self._lines: dict[str, ProvenLines] = {}
        self._addresses: dict[str, str] = {}
        self._connected = threading.Condition()
        self._blaming: set[str] = set()
        self._closed = threading.Event()
        stop, self._stop_serving = os.pipe()
        threading.Thread(target=self._serve, args=(stop,), daemon=True).start()
        threading.Thread(target=self._exchange, daemon=True).start()

    def close(self) -> None:
        """Close all connections and stop serving, whether or not the exchange is over. A second call does no harm."""
        if not self._closed.is_set():
            self._closed.set()
            os.close(self._stop_serving)
        with self._connected:
            for lines in self._lines.values():
                with contextlib.suppress(OSError):
                    lines.conn.shutdown(socket.SHUT_RDWR)
            self._connected.notify_all()

    def _serve(self, stop: int) -> None:
        try:
            self.run(stop)
        finally:
            os.close(stop)

    def handle(self, lines: ProvenLines) -> None:
        """Keep the connection open until the exchange is over."""
        rank = lines.receive(REPLY_TIME)["rank"]
        address = lines.conn.getpeername()[0]
        with self._connected:
            host = self._hosts[rank]
            if host in self._lines:
                return
            lines.send({"scan": True, "hosts": list(self._hosts.values())})
            self._lines[host], self._addresses[host] = lines, address
            self._connected.notify_all()
        self._closed.wait()

    def _exchange(self) -> None:
        try:
            with self._connected:
                self._connected.wait_for(lambda: len(self._lines) == len(self._hosts) or self._closed.is_set())
            if not self._closed.is_set():
                self._steps()
        except _HostFailure as failure:
            self.failed_host = failure.host
            self.failure = str(failure)  # other hosts stay connected, because their errors would hide this reason
        self.is_over = True

    def _steps(self) -> None:
        top = self._path.rpartition("/")[2]
        reports = {host: self._read_report(host, top) for host in self._hosts.values()}
        self._check_places(reports)
        plan = plan_exchange(reports)
        for line in describe_exchange(self._path, reports, plan, is_restart=self._is_restart):
            self.notes.put(line)
        name = secrets.token_hex(16)
        for host in reports:
            own = [transfer for transfer in plan.transfers if transfer.source == host]
            copies = {copy.path: copy for transfer in own for copy in transfer.copies}
            order = {
                "exchange": name,
                "serve": list(copies.values()),
                "clients": [self._addresses[transfer.target] for transfer in own],
                "receive": [copy for transfer in plan.transfers if transfer.target == host for copy in transfer.copies],
                "runs": {
                    copy.path: run
                    for transfer in plan.transfers
                    if transfer.target == host
                    for copy in transfer.copies
                    if (run := self._writer_of(copy.path, reports[transfer.source], transfer.tree))
                },
                "remove": plan.removals.get(host, ()),
                "known": plan.known[host],
                "number": plan.number,
                "markers": plan.markers,
                "parts": plan.parts,
            }
            self._send(host, order)
        sources = {transfer.source for transfer in plan.transfers}
        ports = {host: self._read_port(host, serves=host in sources) for host in reports}
        for host in reports:
            fetches = [
                {
                    "address": self._addresses[transfer.source],
                    "port": ports[transfer.source],
                    "copies": transfer.copies,
                }
                for transfer in plan.transfers
                if transfer.target == host
            ]
            self._send(host, {"fetch": fetches})
        places = {host: str(self._receive(host).get("aside") or "") for host in reports}
        for host in reports:
            self._send(host, {"end": True})
        for line in describe_aside(places):
            self.notes.put(line)

    def _writer_of(self, name: str, report: HostCopies, tree: str) -> str:
        holder = next((other for other in report.others if other.place == tree), report) if tree else report
        return holder.runs.get(name, "")

    def _check_places(self, reports: Mapping[str, HostCopies]) -> None:
        """Fail if the path leads to different places, because of a link on some hosts."""
        (first, expected), *others = ((host, report.place) for host, report in reports.items())
        for host, place in others:
            if place != expected:
                base = self._path.rpartition("/")[0]
                there, elsewhere = (os.path.normpath(f"{base}/{target}") for target in (place, expected))
                reason = f"{self._path} leads to {there} there, and to {elsewhere} on {first}"
                raise _HostFailure(host, f"{reason}: name a path that leads to the same place on all hosts")

    def _read_report(self, host: str, top: str) -> HostCopies:
        try:
            return read_host_copies(self._receive(host), top)
        except MALFORMED as error:
            raise _HostFailure(host, f"its list of files can't be read: {error}") from None

    def _read_port(self, host: str, *, serves: bool) -> int | None:
        port = self._receive(host).get("port")
        try:
            return decode_port(port) if serves else None
        except ValueError as error:
            raise _HostFailure(host, str(error)) from None

    def _send(self, host: str, message: Json) -> None:
        try:
            self._lines[host].send(message)
        except OSError as error:
            raise _HostFailure(host, str(error.strerror or error)) from None

    def _receive(self, host: str) -> Json:
        try:
            message = self._lines[host].receive(CHECKPOINT_STEP)
        except (OSError, *MALFORMED) as error:
            self.is_changed = isinstance(error, ChangedLine)
            raise _HostFailure(host, str(getattr(error, "strerror", None) or error)) from None
        if "failed" in message:
            self._check_blamed(host, message)
            fix = f" ({str(message['fix'])[:_MAX_REASON]})" if message.get("fix") else ""
            self.is_changed = message.get("changed") is True
            raise _HostFailure(host, f"{str(message['failed'])[:_MAX_REASON]}{fix}")
        return message

    def _check_blamed(self, host: str, message: Json) -> None:
        """Raise the failure of the host that this one fetched from, if that host has failed: it is the cause."""
        self._blaming.add(host)
        for other, address in self._addresses.items():
            is_blamed = address == message.get("blamed") and other not in self._blaming
            if is_blamed and ready([self._lines[other].conn], [], REPLY_TIME)[0]:
                self._receive(other)


def has_file(path: str) -> bool:
    """Return True if the path is a file with content, or a directory with one below it. Temporary files do not
    count."""
    with contextlib.suppress(OSError):
        if os.path.isfile(path):
            return bool(os.path.getsize(path))
        return any(
            not is_temporary(name) and os.lstat(os.path.join(directory, name)).st_size
            for directory, _, names in os.walk(path)
            for name in names
        )
    return False


def describe_exchange(
    path: str, reports: Mapping[str, HostCopies], plan: ExchangePlan, *, is_restart: bool = False
) -> list[str]:
    """Return the lines that tell the user what an exchange does: files that are not used, with the reason, copies, and
    removed files. Empty if there is nothing to tell.

    With `is_restart`, a line says so if no host has any file of the checkpoint.
    """
    above = path.rpartition("/")[0]
    lines = []
    if is_restart and not any(report.copies or report.half or report.left for report in reports.values()):
        lines.append(
            f"checkpoint {path}: no host has a file there, so none is copied; if the script saves elsewhere, give that "
            "path to --checkpoint"
        )
    for host, report in reports.items():
        if report.damaged:
            lines.append(
                f"checkpoint {path}: what {host} remembered of earlier exchanges can't be read, so its files count as "
                f"new; it is set aside as {_shown('', report.damaged)}"
            )
        for name, reason in sorted(report.left.items()):
            lines.append(f"checkpoint {_shown(above, name)} of {host} is not used: {reason}")
    sources: dict[tuple[str, tuple[ManifestEntry, ...]], list[str]] = {}
    for transfer in plan.transfers:
        source = f"{transfer.source} ({transfer.tree})" if transfer.tree else transfer.source
        sources.setdefault((source, transfer.copies), []).append(transfer.target)
    for (source, copies), targets in sources.items():
        what = _shown(above, copies[0].path) if len(copies) == 1 else f"{path} ({len(copies)} files)"
        size = format_size(sum(copy.size for copy in copies))
        lines.append(f"checkpoint {what}: {size} from {source} to {', '.join(targets)}")
    return [*lines, *_describe_removals(path, reports, plan)]


def _describe_removals(path: str, reports: Mapping[str, HostCopies], plan: ExchangePlan) -> Iterator[str]:
    """Yield lines about removed files: checkpoints with the same reason and hosts, such as those a Trainer rotated
    away, share a line."""
    units = {
        **{marker.rpartition("/")[0]: "" for marker in plan.markers},
        **{unit: f"deleted on {writer}, which wrote it" for unit, writer in plan.deleted.items()},
        **dict.fromkeys(plan.parts, "no copy is complete"),
    }
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for host, names in plan.removals.items():
        for name in names:
            unit = next((above for above in (name, *directories_above(name)) if above in units), name)
            reason = units.get(unit) or reports[host].half.get(name, "replaced by the newest complete copy")
            of_hosts = counts.setdefault((unit, reason), {})
            of_hosts[host] = of_hosts.get(host, 0) + 1
    alike: dict[tuple[str, str], dict[str, int]] = {}
    for (unit, reason), of_hosts in counts.items():
        alike.setdefault((reason, ", ".join(of_hosts)), {})[unit] = sum(of_hosts.values())
    for (reason, hosts), counts_of_units in alike.items():
        first, *others = sorted(counts_of_units, key=lambda name: (len(name), name))
        what, count = _shown(path.rpartition("/")[0], first), sum(counts_of_units.values())
        if others:
            what += f" to {_shown('', others[-1].rpartition('/')[2])} ({len(counts_of_units)} checkpoints)"
        yield f"checkpoint {what}: {reason}; {count} file{'s' * (count > 1)} set aside on {hosts}"


def describe_aside(places: Mapping[str, str]) -> list[str]:
    """Return a line for each directory in which hosts have set replaced files aside. `places`: host → directory, empty
    if the host set nothing aside."""
    hosts: dict[str, list[str]] = {}
    for host, place in places.items():
        if place:
            hosts.setdefault(place, []).append(host)
    return [
        f"checkpoint: files set aside on {', '.join(names)} are in {_shown('', place)} until the next exchange succeeds"
        for place, names in hosts.items()
    ]


def _shown(above: str, name: str) -> str:
    shown = f"{above}/{name}" if above else name
    return shown if shown.isprintable() else ascii(shown)

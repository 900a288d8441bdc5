"""Collects stack dumps of the ranks for a request file, and writes them to a dump file.

SIGUSR1 announces a `RUNDIR/stacks/ask-ID.json {"ranks": [N, …] or null}`. The replies are written to `dump-ID.json`
once all ranks have replied, or when the time for it is over.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ipexctl.node.common.files import read_json, write_json_atomically

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.run.messages import Stacks
    from ipexctl.node.run.rank_connections import RankConnection, RankConnections

WAIT = 8.0
"""Seconds for all ranks to reply."""
KEPT = 20
"""Number of dumps kept with the run."""


class DumpRequest:
    """A request in progress."""

    def __init__(self, id: str, requested: list[RankConnection]) -> None:  # noqa: A002
        self.id = id
        self.until = time.monotonic() + WAIT
        self.rows: dict[int, Json] = {
            peer.rank: {"rank": peer.rank, "host": peer.host, "state": peer.status.state, "processes": None, "why": ""}
            for peer in requested
        }
        self.waiting: set[int] = set()


class StackDumps:
    """All requests of a run."""

    def __init__(self, directory: str, connections: RankConnections) -> None:
        self._directory = directory
        self._connections = connections
        self._open: list[DumpRequest] = []

    def handle_requests(self) -> None:
        """Send each new request to its ranks."""
        for name in self._names("ask-"):
            path = os.path.join(self._directory, name)
            request = read_json(path)
            ranks = request.get("ranks")
            if "ranks" not in request or not (ranks is None or isinstance(ranks, list)):
                continue
            try:
                os.unlink(path)
            except OSError:
                continue
            requested = [peer for peer in self._connections.all.values() if ranks is None or peer.rank in ranks]
            self._send(DumpRequest(name[len("ask-") : -len(".json")], requested))

    def _send(self, dump: DumpRequest) -> None:
        for rank, row in dump.rows.items():
            peer = self._connections.all[rank]
            if row["state"] == "starting":
                row["why"] = "it has not started yet"
            elif row["state"] != "running":
                code = peer.status.exit_code
                row["why"] = "it has ended" + ("" if code is None else f" with exit code {code}")
            elif self._connections.send_message(peer, "dump", id=dump.id):
                dump.waiting.add(rank)
            else:
                row["why"] = "it is reconnecting to the supervisor"
        self._open.append(dump)
        self.check_answers(time.monotonic())

    def on_message(self, peer: RankConnection, message: Stacks) -> None:
        for dump in self._open:
            if dump.id == message.id and peer.rank in dump.waiting:
                dump.waiting.remove(peer.rank)
                dump.rows[peer.rank].update(processes=message.processes, state=peer.status.state)
        self.check_answers(time.monotonic())

    def check_answers(self, now: float) -> None:
        for dump in [dump for dump in self._open if now > dump.until or not dump.waiting]:
            for rank in dump.waiting:
                status = self._connections.all[rank].status
                last = {"process": status.process, "waits_in": status.waits_in}
                dump.rows[rank].update(why=f"its wrapper process didn't answer within {WAIT:g} s", last=last)
            self._open.remove(dump)
            self._write(dump)

    def _write(self, dump: DumpRequest) -> None:
        path = os.path.join(self._directory, f"dump-{dump.id}.json")
        document = {"at": time.time(), "ranks": [row for _, row in sorted(dump.rows.items())]}
        try:
            write_json_atomically(path, document, durable=False)
            for name in self._names("dump-")[:-KEPT]:
                os.unlink(os.path.join(self._directory, name))
        except OSError:
            return

    def _names(self, prefix: str) -> list[str]:
        """From the oldest to the newest: an id begins with the time."""
        try:
            names = os.listdir(self._directory)
        except OSError:
            return []
        return sorted(name for name in names if name.startswith(prefix) and name.endswith(".json"))

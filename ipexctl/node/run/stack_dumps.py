"""Collects stack dumps of the ranks for a request file, and writes them to a dump file.

In: SIGUSR1, which announces a `RUNDIR/stacks/ask-ID.json {"ranks": [N, …] or null}`, or the supervisor's own wish when
a run hangs. The replies are written to `dump-ID.json` once all ranks have replied, or when the time for it is over. The
rules: a rank without stacks has a row with the reason; several requests may be open at once; the newest 20 dumps stay
with the run.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Callable, Iterator

from ipexctl.node.common.files import make_private_directory, read_json, write_json_atomically
from ipexctl.node.common.frames import MAX_FRAME, encode_json
from ipexctl.node.common.limits import DUMP_REPLIES

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.run.messages import Stacks
    from ipexctl.node.run.rank_connections import RankConnection, RankConnections

KEPT = 20
"""Number of dumps kept with the run."""


def new_dump_id() -> str:
    """It begins with the time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}"


def dump_path(directory: str, id: str) -> str:  # noqa: A002
    return os.path.join(directory, f"dump-{id}.json")


def newest_dump(directory: str) -> str:
    """The id of the newest dump; empty if there is none."""
    names = dump_names(directory, "dump-")
    return names[-1][len("dump-") : -len(".json")] if names else ""


def dump_names(directory: str, prefix: str) -> list[str]:
    """From the oldest to the newest: an id begins with the time."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return sorted(name for name in names if name.startswith(prefix) and name.endswith(".json"))


def encode_dump(directory: str, dump_id: str) -> Iterator[bytes]:
    """Frames with a dump, one for each rank: {"stacks": its row, "at", "of": number of rows}."""
    document = read_json(dump_path(directory, dump_id))
    rows = document.get("ranks") or ()
    for row in rows:
        frame = encode_json({"stacks": row, "at": document.get("at"), "of": len(rows)})
        if len(frame) > MAX_FRAME:
            short = {**row, "processes": None, "why": "its stacks are too large to be sent"}
            frame = encode_json({"stacks": short, "at": document.get("at"), "of": len(rows)})
        yield frame


class PendingDump:
    """A dump whose ranks have not all replied."""

    def __init__(self, id: str, requested: list[RankConnection], on_written: Callable[[str], None]) -> None:  # noqa: A002
        self.id = id
        self.on_written = on_written
        self.until = time.monotonic() + DUMP_REPLIES
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
        self._open: list[PendingDump] = []

    @property
    def is_busy(self) -> bool:
        """Whether a dump waits for ranks."""
        return bool(self._open)

    def handle_requests(self) -> None:
        """Send each new request to its ranks."""
        for name in dump_names(self._directory, "ask-"):
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
            self._send(PendingDump(name[len("ask-") : -len(".json")], requested, lambda _: None))

    def take(self, on_written: Callable[[str], None]) -> None:
        """Request the stacks of all ranks; `on_written` gets the id of the dump once it is written."""
        make_private_directory(self._directory)
        self._send(PendingDump(new_dump_id(), list(self._connections.all.values()), on_written))

    def remove(self, id: str) -> None:  # noqa: A002
        """Remove that dump, if there is one."""
        if id:
            with contextlib.suppress(OSError):
                os.unlink(dump_path(self._directory, id))

    def _send(self, dump: PendingDump) -> None:
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
                dump.rows[rank].update(why=f"its wrapper process didn't answer within {DUMP_REPLIES:g} s", last=last)
            self._open.remove(dump)
            self._write(dump)
            dump.on_written(dump.id)

    def _write(self, dump: PendingDump) -> None:
        path = dump_path(self._directory, dump.id)
        document = {"at": time.time(), "ranks": [row for _, row in sorted(dump.rows.items())]}
        with contextlib.suppress(OSError):
            write_json_atomically(path, document, durable=False)
            for name in dump_names(self._directory, "dump-")[:-KEPT]:
                os.unlink(os.path.join(self._directory, name))

"""Where the ranks are, asked on behalf of whoever wants to know: a file in, a word to each rank, a file out.

SIGUSR1 says that there is a `RUNDIR/stacks/ask-ID.json {"ranks": [N, …] or null}`; what the
ranks say is in `dump-ID.json` once all have answered, or those that do have.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, Dict

if TYPE_CHECKING:
    from ipexctl.node.run.rank_connections import RankConnection, RankConnections

WAIT = 8.0
"""Seconds for all ranks to answer."""
KEPT = 20
"""So many answers stay with the run."""
Json = Dict[str, Any]


class Dump:
    """One question that is on its way."""

    def __init__(self, id: str, wanted: list[RankConnection]) -> None:  # noqa: A002
        self.id = id
        self.until = time.monotonic() + WAIT
        self.rows: dict[int, Json] = {
            peer.rank: {"rank": peer.rank, "host": peer.host, "state": peer.status.state, "processes": None, "why": ""}
            for peer in wanted
        }
        self.waiting: set[int] = set()


class StackDumps:
    """All questions of a run."""

    def __init__(self, directory: str, peers: RankConnections) -> None:
        self._directory = directory
        self._peers = peers
        self._open: list[Dump] = []

    def handle_requests(self) -> None:
        """Somebody has asked."""
        for name in self._names("ask-"):
            path = os.path.join(self._directory, name)
            try:
                with open(path, encoding="utf-8") as file:
                    ranks = json.load(file)["ranks"]
                os.unlink(path)
            except (OSError, ValueError, KeyError, TypeError):
                continue
            wanted = [peer for peer in self._peers.all.values() if ranks is None or peer.rank in ranks]
            self._ask(Dump(name[len("ask-") : -len(".json")], wanted))

    def _ask(self, dump: Dump) -> None:
        for rank, row in dump.rows.items():
            peer = self._peers.all[rank]
            if row["state"] == "starting":
                row["why"] = "it has not begun yet"
            elif row["state"] != "running":
                code = peer.status.exit_code
                row["why"] = "it has ended" + ("" if code is None else f" with exit code {code}")
            elif self._peers.send_message(peer, "dump", id=dump.id):
                dump.waiting.add(rank)
            else:
                row["why"] = "its connection is broken, and is being made anew"
        self._open.append(dump)
        self.check_answers(time.monotonic())

    def on_message(self, peer: RankConnection, said: Json) -> None:
        for dump in self._open:
            if dump.id == said.get("id") and peer.rank in dump.waiting:
                dump.waiting.remove(peer.rank)
                dump.rows[peer.rank].update(processes=said.get("processes"), state=peer.status.state)
        self.check_answers(time.monotonic())

    def check_answers(self, now: float) -> None:
        for dump in [dump for dump in self._open if now > dump.until or not dump.waiting]:
            for rank in dump.waiting:
                status = self._peers.all[rank].status
                last = {"process": status.process, "waits_in": status.waits_in}
                dump.rows[rank].update(why=f"what wraps it didn't answer within {WAIT:g} s", last=last)
            self._open.remove(dump)
            self._write(dump)

    def _write(self, dump: Dump) -> None:
        path = os.path.join(self._directory, f"dump-{dump.id}.json")
        answer = {"at": time.time(), "ranks": [row for _, row in sorted(dump.rows.items())]}
        try:
            with open(f"{path}.part", "w", encoding="utf-8", opener=_private) as file:
                json.dump(answer, file)
            os.replace(f"{path}.part", path)
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


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)

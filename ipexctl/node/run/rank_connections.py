"""The ranks as their supervisor sees them: who has proved to be one, what each has said, when it was last heard.

`supervisor.py` decides what follows from it.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Callable, Dict

from ipexctl.node.common.records import RankStatus
from ipexctl.node.run import protocol

if TYPE_CHECKING:
    from ipexctl.node.run.protocol import Link
    from ipexctl.node.run.recorder import OutputFile

STRANGER = 5.0
"""Seconds to prove that one is a rank."""
STRANGERS = 512
SILENT = 25.0
"""Seconds without a word until a rank counts as lost: it says something every two."""
BACK = 3.0
"""Seconds for a rank whose connection has broken to be back."""
LOOK = 1.0
"""Seconds between two looks for room on a full disk."""
CATCH_UP = 5.0
"""Seconds for what was held back to come, once a disk that was full has room."""
UNHEARD = 5.0
"""Seconds we may have been frozen ourselves before silence is held against nobody."""
HUNG_UP = ("the other side hung up", os.strerror(errno.ECONNRESET), os.strerror(errno.EPIPE))
Json = Dict[str, Any]


class RankConnection:
    """One rank."""

    def __init__(self, rank: int, host: str, store: str, sinks: dict[str, OutputFile]) -> None:
        self.rank, self.host, self.store, self.sinks = rank, host, store, sinks
        self.begin()

    def begin(self) -> None:
        """For the first time, or once more."""
        self.link: Link | None = None
        self.life: str | None = None
        self.gone_at: float | None = None
        self.heard_at = time.monotonic()
        self.hung_up = False
        """Its connection was closed from there, which a host that is gone can't do."""
        self.lost_at = 0.0
        self.told: int | None = None
        """The signal that what wraps it got, and not from us."""
        self.printed_at: dict[str, float] = {}
        """When each stream said something last."""
        self.exit: Json | None = None
        self.ends: dict[str, int] = {}
        """How much it had printed when it last said so."""
        self.is_over = False
        """Its exit is known, and all it printed is here."""
        self.is_free = False
        """It was told that it may leave."""
        self.stop_sent = False
        self.status = RankStatus(self.rank, self.host, cpu=0.0, rss=0, out_lines=0, err_lines=0)

    @property
    def is_done(self) -> bool:
        return self.is_over or self.status.state == "lost"

    def quiet_for(self, now: float) -> float:
        return now - (self.link.heard if self.link is not None else self.heard_at)

    def offsets(self) -> dict[str, int]:
        return {name: sink.have for name, sink in self.sinks.items()}

    def count(self) -> None:
        out, err = self.sinks["out"], self.sinks["err"]
        self.status = self.status._replace(out_lines=out.lines, err_lines=err.lines, lost=out.lost + err.lost)


class RankConnections:
    """All of them, and their connections. `on_message(peer, message)` is called with what a proved rank sends."""

    def __init__(self, token: str, listener: socket.socket, on_message: Callable[[RankConnection, Json], None]) -> None:
        self.all: dict[int, RankConnection] = {}
        self.attempt = 0
        self.welcome: Callable[[], Json] = dict
        self.disk_full = False
        self.setup_time = SILENT
        """The same for one whose command has not begun: it may be sourcing a setup file, and says nothing then."""
        self._token = token
        self._listener = listener
        self._on_message = on_message
        self._strangers: dict[Link, str] = {}
        """Link → the nonce it was given."""
        self._of: dict[Link, RankConnection] = {}
        self._fresh: dict[int, RankConnection] = {}
        self._last = time.monotonic()
        self._looked_at = self._full_since = 0.0
        self._room_at = float("-inf")

    def readers(self) -> list[Any]:
        return [self._listener, *self._strangers, *self._of]

    def writers(self) -> list[Any]:
        return [link for link in (*self._strangers, *self._of) if link.pending]

    def work(self, readable: list[Any]) -> bool:
        """Hear who has something to say; True where pieces of output were among it."""
        for each in readable:
            if each is self._listener:
                self._accept()
            elif each in self._of or each in self._strangers:
                self._guarded(each, self._read)
        moved = bool(self._fresh)
        if moved:
            self._full_since = time.monotonic()
        for peer in self._fresh.values():
            if peer.link is not None:
                peer.link.send(protocol.message("ack", **peer.offsets()))
        self._fresh.clear()
        for link in [link for link in (*self._strangers, *self._of) if link.pending]:
            self._guarded(link, lambda link: link.flush())
        return moved

    def send_message(self, peer: RankConnection, t: str, **fields: Any) -> bool:
        if peer.link is None:
            return False
        peer.link.send(protocol.message(t, **fields))
        return True

    def check_timeouts(self, now: float) -> list[RankConnection]:
        """Drop strangers and the silent; returns who is lost."""
        if now - self._last > UNHEARD:
            for peer in self.all.values():
                if peer.link is not None:
                    peer.link.heard = now
                if peer.gone_at is not None:
                    peer.gone_at = now
        self._last = now
        for link in [link for link in self._strangers if now - link.began > STRANGER]:
            self._drop(link)
        lost = []
        for peer in self.all.values():
            if peer.is_done:
                continue
            patience = SILENT if peer.status.pid is not None else self.setup_time
            is_silent = peer.link is not None and now - peer.link.heard > patience
            if is_silent or (peer.gone_at is not None and now - peer.gone_at > BACK):
                if peer.link is not None:
                    self._drop(peer.link)
                peer.lost_at = (peer.gone_at or now) if peer.hung_up else peer.heard_at
                lost.append(peer)
        return lost

    def is_behind(self, now: float) -> bool:
        """The disk is full, or was a moment ago: what ranks have said is still on its way."""
        return self.disk_full or now - self._room_at < CATCH_UP

    def check_disk(self, now: float, has_room: Callable[[], bool], patience: float) -> list[RankConnection]:
        """Where the disk was full: once there is room, what was refused is asked for again. Ranks that have all ended
        wait so many seconds for that; then they are returned, and what they still hold is lost and counted."""
        left = [peer for peer in self.all.values() if not peer.is_done]
        if not left or any(peer.exit is None for peer in left):
            self._full_since = now
        if not self.disk_full:
            return []
        if now - self._looked_at > LOOK:
            self._looked_at = now
            if has_room():
                self.disk_full, self._room_at = False, now
                for peer in self.all.values():
                    if any(sink.full for sink in peer.sinks.values()):
                        self.send_message(peer, "rewind", **peer.offsets())
                return []
        if now - self._full_since <= patience:
            return []
        for peer in left:
            self._take_again(peer)
            for name, sink in peer.sinks.items():
                sink.end(peer.ends.get(name, 0))
        return left

    @staticmethod
    def _take_again(peer: RankConnection) -> None:
        """Only once it has said that it begins again: what was under way before would look like a gap."""
        for sink in peer.sinks.values():
            sink.full = False

    def dismiss(self) -> None:
        """Whoever is still there is to go, and nobody is heard any more."""
        for peer in self.all.values():
            if self.send_message(peer, "forget") and self.send_message(peer, "bye") and peer.link is not None:
                self._guarded(peer.link, lambda link: link.flush())
        for link in (*self._strangers, *self._of):
            link.close()
        self._strangers.clear()
        self._of.clear()
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(64):
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if len(self._strangers) >= STRANGERS:
                sock.close()
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = protocol.Link(sock)
            self._strangers[link] = nonce = os.urandom(16).hex()
            link.send(protocol.message("challenge", nonce=nonce))
            self._guarded(link, lambda link: link.flush())

    def _guarded(self, link: Link, work: Callable[[Link], None]) -> None:
        try:
            work(link)
        except (protocol.ConnectionBroken, ValueError, KeyError, TypeError) as broken:
            self._drop(link, hung_up=str(broken) in HUNG_UP)

    def _read(self, link: Link) -> None:
        for kind, payload in link.receive():
            peer = self._of.get(link)
            if peer is None:
                self._prove(link, protocol.read_message(payload) if kind == b"J" else {})
            elif kind == b"J":
                said = protocol.read_message(payload)
                if said["t"] == "rewound":
                    self._take_again(peer)
                self._on_message(peer, said)
            elif kind in (b"O", b"E"):
                self._take(peer, "out" if kind == b"O" else "err", payload)
            if link not in self._of and link not in self._strangers:
                return

    def _take(self, peer: RankConnection, name: str, payload: bytes) -> None:
        offset, data = protocol.read_chunk(payload)
        was_full = peer.sinks[name].full
        peer.printed_at[name] = time.monotonic()
        if peer.sinks[name].take(offset, data):
            self._fresh[peer.rank] = peer
        elif not was_full:
            self.disk_full = True

    def _prove(self, link: Link, said: Json) -> None:
        """A rank that has the token replaces its own broken connection, and no other's."""
        nonces = (said.get("rank"), self._strangers[link], said.get("nonce"))
        peer = self.all.get(said["rank"]) if isinstance(said.get("rank"), int) else None
        expected = protocol.proof(self._token, "rank", *nonces)
        if peer is None or not protocol.is_proof(said.get("proof"), expected):
            raise protocol.ConnectionBroken("a stranger")
        is_late = said.get("attempt") not in (None, self.attempt)
        if is_late or (peer.life not in (None, said["life"]) and (peer.link is not None or peer.is_done)):
            link.most = protocol.MOST
            self._welcome(link, peer, nonces, stop=True)
            link.flush()
            raise protocol.ConnectionBroken("another has its place")
        if peer.link is not None:
            self._drop(peer.link)
        is_new = peer.life != said["life"]
        peer.is_free = False
        del self._strangers[link]
        self._of[link] = peer
        link.most = protocol.MOST
        peer.link, peer.gone_at, peer.hung_up, peer.life = link, None, False, said["life"]
        peer.status = peer.status._replace(wrapper=said.get("pid"))
        for sink in peer.sinks.values():
            sink.full = sink.full and self.disk_full
        self._welcome(link, peer, nonces)
        self._on_message(peer, {"t": "met" if is_new else "back", "node": said.get("host")})

    def _welcome(self, link: Link, peer: RankConnection, nonces: Any, **more: Any) -> None:
        fields = {"attempt": self.attempt, **peer.offsets(), **self.welcome(), **more}
        proof = protocol.proof(self._token, "supervisor", *nonces)
        link.send(protocol.message("welcome", proof=proof, **fields))

    def _drop(self, link: Link, *, hung_up: bool = False) -> None:
        link.close()
        self._strangers.pop(link, None)
        peer = self._of.pop(link, None)
        if peer is not None and peer.link is link:
            peer.link, peer.gone_at, peer.heard_at, peer.hung_up = None, time.monotonic(), link.heard, hung_up

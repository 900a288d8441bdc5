"""The supervisor's connections to the ranks: messages, output, and connections that break.

Output is acknowledged once it is written. An unreadable message closes only its own connection. `supervisor_machine.py`
decides which wrapper may connect as a rank, and when a rank is lost.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Callable, Mapping, Protocol, Sequence

from ipexctl.node.common.frames import MAX_FRAME, SUFFIXES, Chunk, FrameError, decode_chunk, encode_json
from ipexctl.node.common.listener import Listener
from ipexctl.node.common.token_proof import RANKS, ConnectionBroken, Link, Pollable, message
from ipexctl.node.run.connection import messages
from ipexctl.node.run.decisions.supervisor_state import Disconnected, Happened
from ipexctl.node.run.supervisor.starter_connections import StarterConnections, StarterOwner

if TYPE_CHECKING:
    import socket

    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.token_proof import ServerHandshake
    from ipexctl.node.run.record.recorder import OutputFile, WindowFiles

ACKNOWLEDGE_SIZE = 1 << 18
CLOSED_BY_PEER = ("the other side closed the connection", os.strerror(errno.ECONNRESET), os.strerror(errno.EPIPE))


class RankConnection:
    def __init__(self, rank: int, sinks: dict[str, OutputFile], windows: WindowFiles) -> None:
        self.rank, self.host, self.starvation = rank, "", 1.0
        self.sinks, self.windows = sinks, windows
        self.reset()

    def place(self, host: str) -> None:
        self.host = host
        for sink in self.sinks.values():
            sink.host = host

    def reset(self) -> None:
        self.link: Link | None = None
        self.printed_at: dict[str, float] = {}
        self.has_exited = False
        self.ends: messages.Ends = {}
        self.acknowledged = 0
        self.windows.begin_attempt()

    def offsets(self) -> dict[str, int]:
        return {name: sink.have for name, sink in self.sinks.items()}

    @property
    def is_refused(self) -> bool:
        return any(sink.full for sink in self.sinks.values())

    def accept_output(self) -> None:
        """Accept output again, once the rank has rewound. Chunks sent before that would look like a gap."""
        for sink in self.sinks.values():
            sink.full = False

    def close_files(self) -> dict[str, str]:
        """Close the files; returns stream → why output is lost. NFS may report only now that the disk is full."""
        lost = {}
        for name, sink in self.sinks.items():
            try:
                sink.close()
            except OSError as error:
                lost[name] = error.strerror or str(error)
        self.windows.close()
        return lost

    def end_output(self, ends: messages.Ends) -> None:
        """End both streams. Output missing before `ends` is lost."""
        for name, sink in self.sinks.items():
            sink.end(ends.get(name, 0))


class ConnectionOwner(StarterOwner, Protocol):
    def on_message(self, peer: RankConnection, message: messages.Message) -> None: ...

    def may_connect(self, hello: messages.Hello) -> bool: ...

    def welcome(self) -> Json: ...

    @property
    def is_disk_full(self) -> bool: ...


class RankConnections:
    def __init__(
        self,
        token: str,
        listeners: list[socket.socket],
        owner: ConnectionOwner,
        starters: Mapping[str, frozenset[int]],
    ) -> None:
        self.all: dict[int, RankConnection] = {}
        self.starters = StarterConnections(starters, owner)
        self.listener = Listener(listeners, token, RANKS, self._on_client)
        self.written_at = 0.0
        self._owner = owner
        self._now = 0.0
        self._peers: dict[Link, RankConnection] = {}
        self._with_new_output: dict[int, RankConnection] = {}

    def add(self, peer: RankConnection) -> None:
        self.all[peer.rank] = peer
        self.listener.expected = len(self.all) + len(self.starters)

    def readers(self) -> list[Pollable]:
        return [*self.listener.readers(), *self._peers, *self.starters.readers()]

    def writers(self) -> list[Link]:
        return [*self.listener.writers(), *self._peers_to_write(), *self.starters.writers()]

    def _peers_to_write(self) -> list[Link]:
        return [link for link in self._peers if link.pending]

    def handle_ready(self, readable: Sequence[Pollable], now: float) -> bool:
        self._now = now
        for reader in readable:
            if isinstance(reader, Link) and reader in self._peers:
                self._drop_on_error(reader, self._receive)
        self.starters.handle_ready([reader for reader in readable if isinstance(reader, Link)])
        self.listener.handle_ready(readable)
        has_output = bool(self._with_new_output)
        if has_output:
            self.written_at = now
        for peer in self._with_new_output.values():
            is_much = sum(peer.offsets().values()) - peer.acknowledged >= ACKNOWLEDGE_SIZE
            if is_much or peer.has_exited:  # a rank that has exited waits for the acknowledgement
                self.acknowledge(peer)
        self._with_new_output.clear()
        for link in self._peers_to_write():
            self._drop_on_error(link, self._flush)
        return has_output

    def send_message(self, peer: RankConnection, t: str, **fields: Any) -> bool:
        if peer.link is None:
            return False
        peer.link.send(message(t, **fields))
        return True

    def acknowledge(self, peer: RankConnection) -> None:
        offsets = peer.offsets()
        peer.acknowledged = sum(offsets.values())
        self.send_message(peer, "ack", **offsets)

    def received(self) -> dict[int, float]:
        return {peer.rank: link.last_received for link, peer in self._peers.items()}

    def printed_at(self) -> float:
        return max((at for peer in self.all.values() for at in peer.printed_at.values()), default=0.0)

    def rewind(self, peer: RankConnection) -> None:
        if peer.is_refused:
            self.send_message(peer, "rewind", **peer.offsets())

    def drop(self, peer: RankConnection) -> None:
        if peer.link is not None:
            self._forget(peer.link)

    def drop_all(self) -> None:
        """Drop all connections, so that messages of this attempt can't reach the next."""
        self.listener.drop_all()
        for link in list(self._peers):
            self._forget(link)

    def dismiss(self) -> None:
        for peer in self.all.values():
            if self.send_message(peer, "remove-job") and self.send_message(peer, "release") and peer.link is not None:
                self._drop_on_error(peer.link, Link.flush)
        self.drop_all()
        self.starters.dismiss()
        self.listener.close()

    def _drop_on_error(self, link: Link, action: Callable[[Link], None]) -> None:
        try:
            action(link)
        except ConnectionBroken as broken:
            self._drop(link, closed_by_peer=str(broken) in CLOSED_BY_PEER)
        except FrameError as error:
            peer = self._peers.get(link)
            self._drop(link)
            if peer is not None:
                self._owner.on_message(peer, messages.Complaint("malformed", str(error)))

    def _flush(self, link: Link) -> None:
        try:
            link.flush()
        except ConnectionBroken:
            self._receive(link)  # the rank may have announced that it will reconnect
            raise

    def _receive(self, link: Link) -> None:
        for kind, payload in link.receive():
            peer = self._peers[link]
            if kind == b"J":
                received = messages.read_message(payload)
                if received is messages.BareMessage.REWOUND:
                    peer.accept_output()
                self._owner.on_message(peer, received)
            else:
                self._write_output(peer, decode_chunk(kind, payload))
            if link not in self._peers:
                return

    def _write_output(self, peer: RankConnection, chunk: Chunk) -> None:
        name = SUFFIXES[chunk.stream]
        was_full = peer.sinks[name].full
        peer.printed_at[name] = self._now
        if peer.sinks[name].take(chunk.offset, chunk.data):
            self._with_new_output[peer.rank] = peer
        elif not was_full:
            self._owner.on_event(Happened.OUTPUT_REFUSED)

    def _on_client(self, link: Link, handshake: ServerHandshake, fields: Json) -> None:
        """Take over a rank's connection. It replaces an older one of the same rank."""
        hello = messages.read_hello(fields)
        if isinstance(hello, messages.StarterHello):
            self.starters.accept(link, handshake, hello)
            return
        peer = self.all.get(hello.rank)
        if peer is None:
            raise ConnectionBroken("the run has no such rank")
        link.reader.max_frame = MAX_FRAME
        if not self._owner.may_connect(hello):
            self._send_welcome(link, peer, handshake, stop=True)
            link.flush()
            raise ConnectionBroken("another wrapper process is connected as this rank")
        if peer.link is not None:
            self._drop(peer.link)
        self._peers[link] = peer
        peer.link = link
        for sink in peer.sinks.values():
            sink.full = sink.full and self._owner.is_disk_full
        self._send_welcome(link, peer, handshake)
        self._owner.on_message(peer, hello)

    def _send_welcome(self, link: Link, peer: RankConnection, handshake: ServerHandshake, **more: object) -> None:
        fields = {**peer.offsets(), **self._owner.welcome(), **more}
        link.send(encode_json(handshake.welcome(**fields)))

    def _drop(self, link: Link, *, closed_by_peer: bool = False) -> None:
        peer = self._forget(link)
        if peer is not None:
            self._owner.on_event(Disconnected(peer.rank, link.last_received, closed_by_peer))

    def _forget(self, link: Link) -> RankConnection | None:
        """Close a connection; returns its rank, or None if the rank has a newer connection."""
        link.close()
        peer = self._peers.pop(link, None)
        if peer is None or peer.link is not link:
            return None
        peer.link = None
        return peer

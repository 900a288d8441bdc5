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
from ipexctl.node.common.token_proof import RANKS, ConnectionBroken, MessageSocket, Pollable, message
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
        """Note the host of the rank in this attempt, which a note about lost output names."""
        self.host = host
        for sink in self.sinks.values():
            sink.host = host

    def reset(self) -> None:
        """Forget what belonged to the attempt before. The output files go on."""
        self.conn: MessageSocket | None = None
        self.printed_at: dict[str, float] = {}
        self.has_exited = False
        self.ends: messages.Ends = {}
        self.acknowledged = 0
        self.windows.begin_attempt()

    def offsets(self) -> dict[str, int]:
        """Return stream → how many bytes of it are written, held or known to be lost. The rank sends on from there."""
        return {name: sink.have for name, sink in self.sinks.items()}

    @property
    def is_refused(self) -> bool:
        """True while a stream refuses output, because there was no room for a chunk."""
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
    def on_message(self, peer: RankConnection, message: messages.Message) -> None:
        """Handle a message of a rank, or its hello."""

    def may_connect(self, hello: messages.Hello) -> bool:
        """Return whether the wrapper that says hello may connect as its rank."""

    def welcome(self) -> Json:
        """Return the fields of a rank's welcome that are the same for all ranks."""

    @property
    def is_disk_full(self) -> bool:
        """True while ranks must keep their output."""


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
        self._peers: dict[MessageSocket, RankConnection] = {}
        self._with_new_output: dict[int, RankConnection] = {}

    def add(self, peer: RankConnection) -> None:
        """Add a rank, once for all attempts, and let one more client connect at once."""
        self.all[peer.rank] = peer
        self.listener.expected = len(self.all) + len(self.starters)

    def readers(self) -> list[Pollable]:
        """Return what the loop waits to read from: ports, ranks and host starters."""
        return [*self.listener.readers(), *self._peers, *self.starters.readers()]

    def writers(self) -> list[MessageSocket]:
        """Return the connections with unsent data, which the loop waits to write to."""
        return [*self.listener.writers(), *self._peers_to_write(), *self.starters.writers()]

    def _peers_to_write(self) -> list[MessageSocket]:
        return [conn for conn in self._peers if conn.pending]

    def handle_ready(self, readable: Sequence[Pollable], now: float) -> bool:
        """Read from the connections that are ready, accept new ones, and send what is pending. Return True if output of
        ranks was accepted."""
        self._now = now
        for reader in readable:
            if isinstance(reader, MessageSocket) and reader in self._peers:
                self._drop_on_error(reader, self._receive)
        self.starters.handle_ready([reader for reader in readable if isinstance(reader, MessageSocket)])
        self.listener.handle_ready(readable)
        has_output = bool(self._with_new_output)
        if has_output:
            self.written_at = now
        for peer in self._with_new_output.values():
            is_much = sum(peer.offsets().values()) - peer.acknowledged >= ACKNOWLEDGE_SIZE
            if is_much or peer.has_exited:  # a rank that has exited waits for the acknowledgement
                self.acknowledge(peer)
        self._with_new_output.clear()
        for conn in self._peers_to_write():
            self._drop_on_error(conn, self._flush)
        return has_output

    def send_message(self, peer: RankConnection, t: str, **fields: Any) -> bool:
        """Queue a message to a rank, which `handle_ready` sends. Return False if the rank is not connected: then the
        message is lost."""
        if peer.conn is None:
            return False
        peer.conn.send(message(t, **fields))
        return True

    def acknowledge(self, peer: RankConnection) -> None:
        """Tell a rank how much of its output has arrived, so that it may forget that."""
        offsets = peer.offsets()
        peer.acknowledged = sum(offsets.values())
        self.send_message(peer, "ack", **offsets)

    def received(self) -> dict[int, float]:
        """Return rank → monotonic time of its last bytes. Ranks that are not connected are left out."""
        return {peer.rank: conn.last_received for conn, peer in self._peers.items()}

    def printed_at(self) -> float:
        """Return when any rank last printed in this attempt; 0 if none has."""
        return max((at for peer in self.all.values() for at in peer.printed_at.values()), default=0.0)

    def rewind(self, peer: RankConnection) -> None:
        """Ask a rank to send its refused output again. Does nothing if none was refused."""
        if peer.is_refused:
            self.send_message(peer, "rewind", **peer.offsets())

    def drop(self, peer: RankConnection) -> None:
        """Close a rank's connection without an event. The rank may reconnect."""
        if peer.conn is not None:
            self._forget(peer.conn)

    def drop_all(self) -> None:
        """Drop all connections, so that messages of this attempt can't reach the next."""
        self.listener.drop_all()
        for conn in list(self._peers):
            self._forget(conn)

    def dismiss(self) -> None:
        """End the run for all ranks and starters: let them exit, and close all connections and ports."""
        for peer in self.all.values():
            if self.send_message(peer, "remove-job") and self.send_message(peer, "release") and peer.conn is not None:
                self._drop_on_error(peer.conn, MessageSocket.flush)
        self.drop_all()
        self.starters.dismiss()
        self.listener.close()

    def _drop_on_error(self, conn: MessageSocket, action: Callable[[MessageSocket], None]) -> None:
        try:
            action(conn)
        except ConnectionBroken as broken:
            self._drop(conn, closed_by_peer=str(broken) in CLOSED_BY_PEER)
        except FrameError as error:
            peer = self._peers.get(conn)
            self._drop(conn)
            if peer is not None:
                self._owner.on_message(peer, messages.Complaint("malformed", str(error)))

    def _flush(self, conn: MessageSocket) -> None:
        try:
            conn.flush()
        except ConnectionBroken:
            self._receive(conn)  # the rank may have announced that it will reconnect
            raise

    def _receive(self, conn: MessageSocket) -> None:
        for kind, payload in conn.receive():
            peer = self._peers[conn]
            if kind == b"J":
                received = messages.read_message(payload)
                if received is messages.BareMessage.REWOUND:
                    peer.accept_output()
                self._owner.on_message(peer, received)
            else:
                self._write_output(peer, decode_chunk(kind, payload))
            if conn not in self._peers:
                return

    def _write_output(self, peer: RankConnection, chunk: Chunk) -> None:
        name = SUFFIXES[chunk.stream]
        was_full = peer.sinks[name].full
        peer.printed_at[name] = self._now
        if peer.sinks[name].take(chunk.offset, chunk.data):
            self._with_new_output[peer.rank] = peer
        elif not was_full:
            self._owner.on_event(Happened.OUTPUT_REFUSED)

    def _on_client(self, conn: MessageSocket, handshake: ServerHandshake, fields: Json) -> None:
        """Take over a rank's connection. It replaces an older one of the same rank."""
        hello = messages.read_hello(fields)
        if isinstance(hello, messages.StarterHello):
            self.starters.accept(conn, handshake, hello)
            return
        peer = self.all.get(hello.rank)
        if peer is None:
            raise ConnectionBroken("the run has no such rank")
        conn.reader.max_frame = MAX_FRAME
        if not self._owner.may_connect(hello):
            self._send_welcome(conn, peer, handshake, stop=True)
            conn.flush()
            raise ConnectionBroken("another wrapper process is connected as this rank")
        if peer.conn is not None:
            self._drop(peer.conn)
        self._peers[conn] = peer
        peer.conn = conn
        for sink in peer.sinks.values():
            sink.full = sink.full and self._owner.is_disk_full
        self._send_welcome(conn, peer, handshake)
        self._owner.on_message(peer, hello)

    def _send_welcome(
        self, conn: MessageSocket, peer: RankConnection, handshake: ServerHandshake, **more: object
    ) -> None:
        fields = {**peer.offsets(), **self._owner.welcome(), **more}
        conn.send(encode_json(handshake.welcome(**fields)))

    def _drop(self, conn: MessageSocket, *, closed_by_peer: bool = False) -> None:
        peer = self._forget(conn)
        if peer is not None:
            self._owner.on_event(Disconnected(peer.rank, conn.last_received, closed_by_peer))

    def _forget(self, conn: MessageSocket) -> RankConnection | None:
        """Close a connection; returns its rank, or None if the rank has a newer connection."""
        conn.close()
        peer = self._peers.pop(conn, None)
        if peer is None or peer.conn is not conn:
            return None
        peer.conn = None
        return peer

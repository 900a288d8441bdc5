"""The supervisor's connections to the ranks: which wrapper has a rank, messages, output and lost connections.

In come authenticated connections (`common/listener.py` keeps strangers out) and the time; out go messages to the
supervisor, output to the record, and the ranks that are lost. The rules: a rank has one wrapper at a time, which may
replace its own broken connection and no other; output is acknowledged once it is written; a rank is lost only after a
silence, and not by one of this process. `verdict.py` decides what a loss means for the run, and `supervisor.py` acts.
"""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, Any, Callable, Sequence

from ipexctl.node.common.frames import MAX_FRAME, SUFFIXES, Chunk, FrameError, decode_chunk, encode_json
from ipexctl.node.common.handshake import RANKS
from ipexctl.node.common.limits import RANK_RECONNECT, RANK_SILENCE
from ipexctl.node.common.link import ConnectionBroken, Link, Pollable, message
from ipexctl.node.common.listener import Listener
from ipexctl.node.common.records import RankStatus
from ipexctl.node.run import messages
from ipexctl.node.run.step_windows import RankThroughput

if TYPE_CHECKING:
    import socket

    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.handshake import ServerHandshake
    from ipexctl.node.common.job import RankPlacement
    from ipexctl.node.run.recorder import OutputFile, WindowFiles

SUSPENDED = 5.0
"""Seconds between two checks after which this process was itself suspended: then the ranks do not count as silent."""
DISK_CHECK_INTERVAL = 1.0
"""Seconds between two checks of a full disk for free space."""
CATCH_UP_TIME = 5.0
"""Seconds for held-back output to arrive once a disk that was full has free space."""
ACKNOWLEDGE_SIZE = 1 << 18
"""Bytes of output after which a rank gets an acknowledgement, between those for its messages of every four seconds."""
CLOSED_BY_PEER = ("the other side closed the connection", os.strerror(errno.ECONNRESET), os.strerror(errno.EPIPE))


class RankConnection:
    """One rank: its connection, its output files and its status."""

    def __init__(self, placement: RankPlacement, sinks: dict[str, OutputFile], windows: WindowFiles) -> None:
        self.rank, self.host, self.store = placement
        self.sinks, self.windows = sinks, windows
        self.reset()

    def reset(self) -> None:
        """Reset for an attempt."""
        self.link: Link | None = None
        self.instance: str | None = None
        self.disconnected_at: float | None = None
        self.last_received = time.monotonic()
        self.closed_by_peer = False
        """The host still answers: it closed the connection, so the wrapper ended, not the machine."""
        self.is_leaving = False
        """It has announced that it closes its connection, and connects again."""
        self.lost_at = 0.0
        self.outside_signal: int | None = None
        """A signal that its wrapper got, and that the supervisor did not send."""
        self.is_start_failure_noted = False
        """Its output has the note that its command could not be started."""
        self.printed_at: dict[str, float] = {}
        """When each stream last had output."""
        self.exit: messages.Exit | None = None
        self.ends: messages.Ends = {}
        """As last reported."""
        self.throughput = RankThroughput()
        self.windows.begin_attempt()
        self.acknowledged = 0
        """Bytes of both streams, in the last acknowledgement."""
        self.malformed = 0
        """Messages that could not be read."""
        self.is_over = False
        """Its exit is known and all its output has arrived, or it is lost."""
        self.is_released = False
        """It was told that it may exit."""
        self.status = RankStatus(self.rank, self.host, cpu=0.0, rss=0, out_lines=0, err_lines=0)

    @property
    def is_done(self) -> bool:
        return self.is_over or self.status.state == "lost"

    def seconds_silent(self, now: float) -> float:
        return now - (self.link.last_received if self.link is not None else self.last_received)

    def offsets(self) -> dict[str, int]:
        return {name: sink.have for name, sink in self.sinks.items()}

    def count(self) -> RankStatus:
        """The status with the lines counted until now."""
        out, err = self.sinks["out"], self.sinks["err"]
        throughput = self.throughput.now(is_over=self.exit is not None or self.is_done)
        self.status = self.status._replace(
            out_lines=out.lines, err_lines=err.lines, lost=out.lost + err.lost, throughput=throughput
        )
        return self.status


class RankConnections:
    """All ranks of a run. `on_message(peer, message)` is called for each message of an authenticated rank."""

    def __init__(
        self,
        token: str,
        listeners: list[socket.socket],
        on_message: Callable[[RankConnection, messages.Message], None],
    ) -> None:
        self.all: dict[int, RankConnection] = {}
        self.attempt = 0
        self.welcome: Callable[[], Json] = dict
        self.disk_full = False
        self.setup_time = RANK_SILENCE
        """Like RANK_SILENCE, before the command has started: while a rank sources a setup file it sends nothing."""
        self.listener = Listener(listeners, token, RANKS, self._on_client)
        self._on_message = on_message
        self._peers: dict[Link, RankConnection] = {}
        self._with_new_output: dict[int, RankConnection] = {}
        self._last_check = time.monotonic()
        self._checked_at = self._full_since = 0.0
        self._room_at = float("-inf")

    def add(self, peer: RankConnection) -> None:
        self.all[peer.rank] = peer
        self.listener.expected = len(self.all)

    def readers(self) -> list[Pollable]:
        return [*self.listener.readers(), *self._peers]

    def writers(self) -> list[Link]:
        return [*self.listener.writers(), *self._peers_to_write()]

    def _peers_to_write(self) -> list[Link]:
        return [link for link in self._peers if link.pending]

    def handle_ready(self, readable: Sequence[Pollable]) -> bool:
        """Handle readable connections; True when output has arrived."""
        for reader in readable:
            if isinstance(reader, Link) and reader in self._peers:
                self._drop_on_error(reader, self._receive)
        self.listener.handle_ready(readable)
        has_output = bool(self._with_new_output)
        if has_output:
            self._full_since = time.monotonic()
        for peer in self._with_new_output.values():
            is_much = sum(peer.offsets().values()) - peer.acknowledged >= ACKNOWLEDGE_SIZE
            if is_much or peer.exit is not None:  # an ended rank waits for it
                self.acknowledge(peer)
        self._with_new_output.clear()
        for link in self._peers_to_write():
            self._drop_on_error(link, Link.flush)
        return has_output

    def send_message(self, peer: RankConnection, t: str, **fields: Any) -> bool:
        if peer.link is None:
            return False
        peer.link.send(message(t, **fields))
        return True

    def acknowledge(self, peer: RankConnection) -> None:
        """Tell the rank how much of its output is written."""
        offsets = peer.offsets()
        peer.acknowledged = sum(offsets.values())
        self.send_message(peer, "ack", **offsets)

    def drop_silent(self, now: float) -> list[RankConnection]:
        """Drop connections that do not authenticate or are silent; returns the ranks that are lost."""
        if now - self._last_check > SUSPENDED:
            for peer in self.all.values():
                if peer.link is not None:
                    peer.link.last_received = now
                if peer.disconnected_at is not None:
                    peer.disconnected_at = now
        self._last_check = now
        self.listener.drop_late(now)
        lost = []
        for peer in self.all.values():
            if peer.is_done:
                continue
            patience = RANK_SILENCE if peer.status.pid is not None else self.setup_time
            is_silent = peer.link is not None and now - peer.link.last_received > patience
            limit = RANK_SILENCE if peer.is_leaving else RANK_RECONNECT
            if is_silent or (peer.disconnected_at is not None and now - peer.disconnected_at > limit):
                if peer.link is not None:
                    self._drop(peer.link)
                peer.lost_at = (peer.disconnected_at or now) if peer.closed_by_peer else peer.last_received
                lost.append(peer)
        return lost

    def is_behind(self, now: float) -> bool:
        """Whether the disk is full, or was a moment ago: then output is still to come from the ranks."""
        return self.disk_full or now - self._room_at < CATCH_UP_TIME

    def check_disk(self, now: float, has_room: Callable[[], bool], patience: float) -> list[RankConnection]:
        """After a full disk: once it has free space, request the refused output again.

        Ranks that have all ended wait `patience` seconds for that. Then they are returned, and the output they still
        hold is counted as lost.
        """
        left = [peer for peer in self.all.values() if not peer.is_done]
        if not left or any(peer.exit is None for peer in left):
            self._full_since = now
        if not self.disk_full:
            return []
        if now - self._checked_at > DISK_CHECK_INTERVAL:
            self._checked_at = now
            if has_room():
                self.disk_full, self._room_at = False, now
                for peer in self.all.values():
                    if any(sink.full for sink in peer.sinks.values()):
                        self.send_message(peer, "rewind", **peer.offsets())
                return []
        if now - self._full_since <= patience:
            return []
        for peer in left:
            self._accept_output(peer)
            for name, sink in peer.sinks.items():
                sink.end(peer.ends.get(name, 0))
        return left

    @staticmethod
    def _accept_output(peer: RankConnection) -> None:
        """Accept output again once the rank has rewound: chunks sent before that would look like a gap."""
        for sink in peer.sinks.values():
            sink.full = False

    def drop_all(self) -> None:
        """Drop all connections, so that no message of this attempt counts for the next one."""
        self.listener.drop_all()
        for link in list(self._peers):
            self._drop(link)

    def dismiss(self) -> None:
        """Tell the connected ranks to exit, and close all connections."""
        for peer in self.all.values():
            if self.send_message(peer, "remove-job") and self.send_message(peer, "release") and peer.link is not None:
                self._drop_on_error(peer.link, Link.flush)
        self.drop_all()
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
                peer.malformed += 1
                self._on_message(peer, messages.Malformed(str(error)))

    def _receive(self, link: Link) -> None:
        for kind, payload in link.receive():
            peer = self._peers[link]
            if kind == b"J":
                received = messages.read_message(payload)
                if isinstance(received, messages.Rewound):
                    self._accept_output(peer)
                elif isinstance(received, messages.Reconnecting):
                    peer.is_leaving = True
                self._on_message(peer, received)
            else:
                self._write_output(peer, decode_chunk(kind, payload))
            if link not in self._peers:
                return

    def _write_output(self, peer: RankConnection, chunk: Chunk) -> None:
        name = SUFFIXES[chunk.stream]
        was_full = peer.sinks[name].full
        peer.printed_at[name] = time.monotonic()
        if peer.sinks[name].take(chunk.offset, chunk.data):
            self._with_new_output[peer.rank] = peer
        elif not was_full:
            self.disk_full = True

    def _on_client(self, link: Link, handshake: ServerHandshake, fields: Json) -> None:
        """Take over the connection of a rank. It may replace its own broken one, but not that of another wrapper."""
        hello = messages.read_hello(fields)
        peer = self.all.get(hello.rank)
        if peer is None:
            raise ConnectionBroken("the run has no such rank")
        link.reader.max_frame = MAX_FRAME
        is_late = hello.attempt not in (None, self.attempt)
        if is_late or (peer.instance not in (None, hello.instance) and (peer.link is not None or peer.is_done)):
            self._send_welcome(link, peer, handshake, stop=True)
            link.flush()
            raise ConnectionBroken("another wrapper process has this rank")
        if peer.link is not None:
            self._drop(peer.link)
        is_new = peer.instance != hello.instance
        peer.is_released = False
        self._peers[link] = peer
        peer.link, peer.disconnected_at, peer.closed_by_peer, peer.instance = link, None, False, hello.instance
        peer.is_leaving = False
        peer.status = peer.status._replace(wrapper=hello.pid)
        for sink in peer.sinks.values():
            sink.full = sink.full and self.disk_full
        self._send_welcome(link, peer, handshake)
        self._on_message(peer, messages.Connected(hello.host, is_new))

    def _send_welcome(self, link: Link, peer: RankConnection, handshake: ServerHandshake, **more: object) -> None:
        fields = {"attempt": self.attempt, **peer.offsets(), **self.welcome(), **more}
        link.send(encode_json(handshake.welcome(**fields)))

    def _drop(self, link: Link, *, closed_by_peer: bool = False) -> None:
        link.close()
        peer = self._peers.pop(link, None)
        if peer is not None and peer.link is link:
            peer.link, peer.disconnected_at = None, time.monotonic()
            peer.last_received = link.last_received
            peer.closed_by_peer = closed_by_peer and not peer.is_leaving

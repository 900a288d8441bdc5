"""The supervisor's connections to host starters. Orders to a starter and its answers carry proofs: `OrderProof`.

A second starter of a host is refused while the first is connected. An unreadable or changed answer closes only its own
connection. A host whose answers are changed again and again keeps the connection: its answers are ignored, but orders
and the dismissal still reach it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, Mapping, Protocol, Sequence

from ipexctl.node.common.frames import MAX_FRAME, FrameError, decode_json, encode_json
from ipexctl.node.common.token_proof import ANSWERS, ConnectionBroken, HandshakeError, MessageSocket, OrderProof
from ipexctl.node.run.connection import messages
from ipexctl.node.run.connection.supervisor_client import REFUSALS_KEPT
from ipexctl.node.run.decisions import supervisor_state as m
from ipexctl.node.run.decisions.direct_start import MOST_REFUSED

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.token_proof import Pollable, ServerHandshake


class StarterOwner(Protocol):
    def on_event(self, event: m.Event) -> None:
        """Handle an event, such as a starter that has connected or was lost."""

    def orders_of_starter(self, host: str) -> Iterable[Json]:
        """Return the orders that a starter may have missed before it connected."""

    def on_shell(self, host: str, received: messages.ShellOutput | messages.ShellEnded) -> None:
        """Handle output, or the exit, of a line that the host's starter runs for mpirun."""

    def on_wrappers_gone(self, host: str, ranks: Sequence[int]) -> None:
        """Handle the starter's answer that the wrappers of these ranks have exited."""

    def log_of_wrappers(self, text: str) -> None:
        """Keep what rank wrappers of a host printed themselves."""


class StarterConnections:
    def __init__(self, ranks: Mapping[str, frozenset[int]], owner: StarterOwner) -> None:
        self._ranks, self._owner = ranks, owner
        self._had = dict(ranks)
        """As `_ranks`, with ranks of earlier attempts, because a starter repeats their ends after a reconnect."""
        self._conns: dict[str, MessageSocket] = {}
        self._hosts: dict[MessageSocket, str] = {}
        self._proofs: dict[MessageSocket, OrderProof] = {}
        self._answers: dict[MessageSocket, OrderProof | None] = {}
        """Checks a starter's next answer; None once its answers are ignored."""
        self._changed_at: dict[str, list[float]] = {}
        """Host → when a changed answer arrived, in the last minute."""
        self._instances: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def has(self, host: str) -> bool:
        """Return True if the run has a starter on the host. Node0 has none: the supervisor starts its ranks."""
        return host in self._ranks

    def instance_of(self, host: str) -> str | None:
        """Return the instance of the host's starter; None unless that is connected."""
        return self._instances[host] if host in self._conns else None

    def set_ranks(self, ranks: Mapping[str, frozenset[int]]) -> None:
        """Set host → the ranks of its starter in the attempt that begins."""
        self._ranks = ranks
        self._had = {host: self._had[host] | numbers for host, numbers in ranks.items()}

    def readers(self) -> list[Pollable]:
        """Return the connections of all starters."""
        return list(self._hosts)

    def writers(self) -> list[MessageSocket]:
        """Return the connections with unsent data."""
        return [conn for conn in self._hosts if conn.pending]

    def received(self) -> dict[str, float]:
        """Return host → monotonic time of its starter's last bytes. Starters that are not connected are left out."""
        return {host: conn.last_received for host, conn in self._conns.items()}

    def accept(self, conn: MessageSocket, handshake: ServerHandshake, hello: messages.StarterHello) -> None:
        """Take over a starter's connection. It replaces an older one of the same starter."""
        host = hello.starter
        if host not in self._ranks:
            raise ConnectionBroken("the run has no starter on this host")
        if host in self._conns and self._instances[host] != hello.instance:
            conn.send(encode_json(handshake.welcome(is_taken=True)))
            conn.flush()
            raise ConnectionBroken("another starter is connected for this host")
        conn.reader.max_frame = MAX_FRAME
        if host in self._conns:
            self._close(self._conns[host])
        self._conns[host], self._hosts[conn], self._instances[host] = conn, host, hello.instance
        self._proofs[conn], self._answers[conn] = handshake.order_proof(), handshake.order_proof(ANSWERS)
        conn.send(encode_json(handshake.welcome()))
        for order in self._owner.orders_of_starter(host):
            self._send(conn, order)
        self._owner.on_event(m.StarterChanged(host, refused=hello.refused))

    def handle_ready(self, readable: list[MessageSocket]) -> None:
        """Read from the starters that are ready, and send what is pending. A broken connection becomes an event."""
        for conn in readable:
            if conn in self._hosts:
                try:
                    self._receive(conn, self._hosts[conn])
                except (ConnectionBroken, FrameError):
                    self._lose(conn)
                except HandshakeError:
                    self._on_changed_answer(conn, self._hosts[conn])
        for conn in self.writers():
            try:
                conn.flush()
            except ConnectionBroken:
                self._lose(conn)

    def send_to_all(self, t: str, **fields: Any) -> None:
        """Send an order to all connected starters. Those that are away never get it."""
        for conn in self._conns.values():
            self._send(conn, {"t": t, **fields})

    def send(self, host: str, order: Json) -> None:
        """Send an order to the host's starter. It is lost if the starter is not connected."""
        if (conn := self._conns.get(host)) is not None:
            self._send(conn, order)

    def _send(self, conn: MessageSocket, order: Json) -> None:
        conn.send(encode_json(self._proofs[conn].sign(order)))

    def drop(self, hosts: Iterable[str]) -> None:
        """Close the connections of these hosts' starters without an event."""
        for conn in [self._conns[host] for host in hosts if host in self._conns]:
            self._close(conn)

    def dismiss(self) -> None:
        """Tell all starters that the run is over, and close their connections."""
        self.send_to_all("dismiss")
        self.handle_ready([])
        for conn in list(self._hosts):
            self._close(conn)

    def _receive(self, conn: MessageSocket, host: str) -> None:
        for kind, payload in conn.receive():
            if kind != b"J":
                raise FrameError("a starter sends no output")
            if (proof := self._answers[conn]) is not None:
                proof.check(decode_json(payload))
                self._on_answer(host, messages.read_starter_message(payload))
            self._send(conn, {"t": "ack"})

    def _on_changed_answer(self, conn: MessageSocket, host: str) -> None:
        """Break the connection, or ignore the host's answers from now on after too many of them."""
        kept = [at for at in self._changed_at.get(host, []) if conn.last_received - at < REFUSALS_KEPT]
        self._changed_at[host] = changed = [*kept, conn.last_received][-MOST_REFUSED:]
        if len(changed) < MOST_REFUSED:
            self._lose(conn, len(changed))
        else:
            self._answers[conn] = None
            self._owner.on_event(m.StarterChanged(host, refused=len(changed)))

    def _on_answer(self, host: str, received: messages.StarterMessage) -> None:
        if isinstance(received, messages.WrapperEnded):
            self._on_ended(host, received)
        elif isinstance(received, messages.GoneWrappers):
            self._owner.on_wrappers_gone(host, received.ranks)
        elif isinstance(received, (messages.ShellOutput, messages.ShellEnded)):
            self._owner.on_shell(host, received)

    def _on_ended(self, host: str, ended: messages.WrapperEnded) -> None:
        if ended.rank not in self._had[host]:
            raise FrameError("the host has no such rank")
        if ended.text:
            self._owner.log_of_wrappers(ended.text)
        if ended.rank in self._ranks[host]:
            self._owner.on_event(m.WrapperExited(ended.rank, ended.code, ended.attempt))

    def _lose(self, conn: MessageSocket, refused: int = 0) -> None:
        answers = self._answers.get(conn)
        host = self._close(conn)
        if host is not None:
            self._owner.on_event(m.StarterChanged(host, False, refused, answers is not None and answers.count > 0))

    def _close(self, conn: MessageSocket) -> str | None:
        conn.close()
        self._proofs.pop(conn, None)
        self._answers.pop(conn, None)
        host = self._hosts.pop(conn, None)
        if host is not None:
            del self._conns[host]
        return host

"""Lines that mpirun on node0 runs on other hosts: from `remote_shell.py`, which mpirun calls as its ssh, to starters.

The socket has no address on a network, and its token is in a file that only this account can read. A line is ordered
from one starter: a starter that began later must not start it again.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Mapping, NamedTuple, Protocol, Sequence

from ipexctl.node.common.frames import MAX_FRAME, FrameError, decode_json, encode_json
from ipexctl.node.common.listener import Listener
from ipexctl.node.common.token_proof import SHELL, ConnectionBroken, MessageSocket, Pollable, message
from ipexctl.node.run.connection.messages import ShellOutput

if TYPE_CHECKING:
    import socket

    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.token_proof import ServerHandshake
    from ipexctl.node.run.connection.messages import ShellEnded


class Starters(Protocol):
    def instance_of(self, host: str) -> str | None:
        """Return the instance of the host's connected starter, or None."""

    def send(self, host: str, order: Json) -> None:
        """Send an order to the host's starter. It is lost if the starter is not connected."""


class ShellLine(NamedTuple):
    conn: MessageSocket
    host: str = ""
    order: Json | None = None
    """None until the caller has sent the line."""
    starter: str | None = None
    """Instance of the starter that has the order; None while the line waits for one."""


class ShellConnections:
    def __init__(
        self,
        listening: socket.socket,
        token: str,
        hosts: Mapping[str, str],
        starters: Starters,
        *,
        setup: str | None,
    ) -> None:
        """`hosts`: what mpirun calls a host → its name. `setup`: file that is sourced before each line."""
        self.listener = Listener([listening], token, SHELL, self._on_client, expected=len(set(hosts.values())))
        self._hosts, self._starters, self._setup = hosts, starters, setup
        self._lines: dict[int, ShellLine] = {}
        self._last = 0

    def readers(self) -> list[Pollable]:
        """Return what the loop waits to read from: the port, and the calls of mpirun."""
        return [*self.listener.readers(), *(line.conn for line in self._lines.values())]

    def writers(self) -> list[MessageSocket]:
        """Return the connections with unsent data."""
        return [*self.listener.writers(), *(line.conn for line in self._lines.values() if line.conn.pending)]

    def handle_ready(self, readable: Sequence[Pollable], _now: float = 0.0) -> bool:
        """Read from the calls of mpirun that are ready, and send what is pending. Return False, because nothing of this
        is output of ranks."""
        self.listener.handle_ready(readable)
        for number, line in list(self._lines.items()):
            try:
                for _, payload in line.conn.receive() if line.conn in readable else ():
                    self._begin(number, decode_json(payload))
                line.conn.flush()
            except (ConnectionBroken, FrameError):
                self._forget(number)
        return False

    def orders_of(self, host: str) -> list[Json]:
        """Return orders for a starter that has just connected: lines that wait, and those it may have missed."""
        instance, orders = self._starters.instance_of(host), []
        for number, line in self._lines.items():
            if line.order is not None and line.host == host and line.starter in (None, instance):
                self._lines[number] = line._replace(starter=instance)
                orders.append(line.order)
        return orders

    def on_shell(self, host: str, received: ShellOutput | ShellEnded) -> None:
        """Pass output or exit code of a line on to mpirun. A line whose call is gone, or of another host, is
        ignored."""
        line = self._lines.get(received.id)
        if line is None or line.host != host:
            return
        if isinstance(received, ShellOutput):
            line.conn.send(message("output", stream=received.stream, text=received.text))
        else:
            self._end(line, received.code)

    def end_lost(self) -> None:
        """End lines whose starter is lost: nobody will report their end, and mpirun would wait for it."""
        for line in self._lines.values():
            if line.starter is not None and self._starters.instance_of(line.host) != line.starter:
                self._end(line, 0)

    def end_all(self) -> None:
        """Let mpirun's calls exit at the end of the attempt."""
        for line in self._lines.values():
            self._end(line, 0)
        self.handle_ready([])

    def close(self) -> None:
        """Let all calls of mpirun exit, and close their connections and the port."""
        self.end_all()
        self.listener.close()
        for number in list(self._lines):
            self._forget(number)

    def _end(self, line: ShellLine, code: int, problem: str = "") -> None:
        line.conn.send(message("ended", code=code, text=problem))

    def _on_client(self, conn: MessageSocket, handshake: ServerHandshake, hello: Json) -> None:
        del hello
        conn.reader.max_frame = MAX_FRAME
        conn.send(encode_json(handshake.welcome()))
        self._last += 1
        self._lines[self._last] = ShellLine(conn)

    def _begin(self, number: int, call: Json) -> None:
        word, text, line = call.get("host"), call.get("line"), self._lines[number]
        if not isinstance(word, str) or not isinstance(text, str) or line.order is not None:
            raise FrameError("a malformed message")
        host = self._hosts.get(word, "")
        order, starter = {"t": "shell", "id": number, "line": self._after_setup(text)}, self._starters.instance_of(host)
        self._lines[number] = line = ShellLine(line.conn, host, order, starter)
        if not host:
            self._end(line, 0, f"{word[:80]}: the run has no such host")
        elif starter is not None:
            self._starters.send(host, order)

    def _after_setup(self, line: str) -> str:
        if self._setup is None:
            return line
        script = f'. {shlex.quote(self._setup)} </dev/null 1>&2; exec /bin/sh -c "$1"'
        return shlex.join(["bash", "-c", script, "bash", line])

    def _forget(self, number: int) -> None:
        """Close a connection. Its line must not outlive the mpirun that wanted it."""
        line = self._lines.pop(number)
        line.conn.close()
        if line.starter is not None and self._starters.instance_of(line.host) == line.starter:
            self._starters.send(line.host, {"t": "end-shell", "id": number})

"""Stands in for the ssh that mpirun on node0 calls: `AGENT run.host_starter.remote_shell RUNDIR [-OPTION…] HOST LINE…`.

The supervisor passes LINE to the starter of HOST (`shell_connections.py`). This program prints the line's output and
exits with its code.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

from ipexctl.node.common.clock import starvation, wait_until
from ipexctl.node.common.frames import MAX_FRAME, FrameError, decode_json, encode_json
from ipexctl.node.common.json_records import JsonError, read_json_file
from ipexctl.node.common.listener import resolve
from ipexctl.node.common.node_limits import SUPERVISOR_CONNECT
from ipexctl.node.common.token_proof import (
    SHELL,
    ClientHandshake,
    ConnectionBroken,
    HandshakeError,
    MessageSocket,
    ready,
)

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

NOT_REACHED = 255
"""Exit code of an ssh that can't connect."""
SHELL_FILE = "shell.json"
"""The supervisor's socket and its token, in the run's directory."""
_STREAMS = {"out": 1, "err": 2}
_RETRY_INTERVAL = 0.2


def main(rundir: str) -> int:
    """Have the line run on its host, and return its exit code; NOT_REACHED if the supervisor does not take it.

    A line for node0 itself is run here, in place of this program.
    """
    arguments = sys.argv[3:]
    while arguments and arguments[0].startswith("-"):  # -x of hydra, -q of both
        arguments.pop(0)
    host, *line = arguments or [""]
    try:
        contact = read_json_file(os.path.join(rundir, SHELL_FILE))
    except (OSError, JsonError) as error:
        return fail(f"{host}: the run is over: {error}")
    if host in contact["node0"]:
        os.execv("/bin/sh", ["/bin/sh", "-c", " ".join(line)])  # noqa: S606
    call = ShellCall(contact, host, " ".join(line))
    if wait_until(call.is_over, SUPERVISOR_CONNECT * starvation(), _RETRY_INTERVAL) and call.code is not None:
        return call.code
    return fail(f"{host}: the supervisor of the run does not answer: {call.problem}")


class ShellCall:
    def __init__(self, contact: Json, host: str, line: str) -> None:
        self.code: int | None = None
        """The line's exit code as a shell shows it."""
        self.problem = ""
        self._is_met = False
        """True once the supervisor has the line. The line must not run twice."""
        self._contact, self._call = contact, {"t": "call", "host": host, "line": line}

    def is_over(self) -> bool:
        """Have the line run; returns False if another try may reach the supervisor."""
        try:
            self.code = self._run()
        except (OSError, ConnectionBroken, FrameError, HandshakeError) as error:
            self.problem = str(error)
            return self._is_met
        return True

    def _run(self) -> int:
        family, address = resolve(self._contact["address"], self._contact["port"])
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.connect(address)
            conn, handshake = MessageSocket(sock), ClientHandshake(self._contact["token"], SHELL)
            is_greeted = False
            while True:
                conn.flush()
                ready([conn], [conn] if conn.pending else [], 5.0)
                for _, payload in conn.receive():
                    message = decode_json(payload)
                    if not is_greeted:
                        conn.send(encode_json(handshake.hello(message)))
                        is_greeted = True
                    elif not self._is_met:
                        handshake.check(message)
                        self._is_met, conn.reader.max_frame = True, MAX_FRAME
                        conn.send(encode_json(self._call))
                    elif message["t"] == "output":
                        write_all(_STREAMS[message["stream"]], message["text"].encode("latin-1"))
                    elif message["t"] == "ended":
                        code = int(message["code"])
                        return fail(message["text"]) if message["text"] else code if code >= 0 else 128 - code


def write_all(number: int, data: bytes) -> None:
    """Write all data, however small the pieces that the pipe takes."""
    while data:
        data = data[os.write(number, data) :]


def fail(text: str) -> int:
    """Say on stderr why the line was not run, and return the exit code of an ssh that can't connect."""
    sys.stderr.write(f"ipexctl: {text}\n")
    sys.stderr.flush()
    return NOT_REACHED

"""Detaches the supervisor or a host starter from its caller, which may then exit."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json


def daemonize(program: str, log_path: str) -> Callable[[Json], None] | str:
    """Detach from the caller: a new session, no terminal, stderr to a file.

    It returns twice: in the detached process a function that sends one reply to the original one, and in the original
    process that reply.
    """
    reader, writer = os.pipe()
    if session_leader := os.fork():
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as pipe:
            line = pipe.read()
        os.waitpid(session_leader, 0)
        return line or json.dumps({"event": "failed", "reason": f"the {program} exited while it started"}) + "\n"
    os.setsid()
    if os.fork():
        os._exit(0)

    def send_reply(line: Json) -> None:
        os.write(writer, json.dumps(line).encode() + b"\n")
        os.close(writer)

    try:
        devnull = os.open(os.devnull, os.O_RDWR)
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:  # a full disk or a quota
        send_reply({"event": "failed", "reason": f"{error.filename} can't be opened: {error.strerror or error}"})
        os._exit(1)
    for number, target in ((0, devnull), (1, devnull), (2, log)):
        os.dup2(target, number)
    return send_reply

"""Detaches this process from its caller: a session of its own, no terminal, stderr in a file."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable, Dict

Json = Dict[str, Any]


def daemonize(log_path: str) -> Callable[[Json], None] | None:
    """Returns a function that replies to the caller once, in the detached process.

    Returns None in the original process, after it has printed that reply.
    """
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as pipe:
            line = pipe.read()
        sys.stdout.write(line or json.dumps({"event": "failed", "reason": "the supervisor died at its start"}) + "\n")
        sys.stdout.flush()
        return None
    os.setsid()
    if os.fork():
        os._exit(0)
    devnull = os.open(os.devnull, os.O_RDWR)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, target in ((0, devnull), (1, devnull), (2, log)):
        os.dup2(target, number)

    def send_reply(line: Json) -> None:
        os.write(writer, json.dumps(line).encode() + b"\n")
        os.close(writer)

    return send_reply

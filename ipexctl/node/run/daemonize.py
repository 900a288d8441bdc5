"""Going on without whoever started us: a session of our own, no terminal, complaints in a file."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable, Dict

Json = Dict[str, Any]


def daemonize(complaints: str) -> Callable[[Json], None] | None:
    """In the process that goes on: a way to answer whoever started us, once. In the one that doesn't: None, when the
    answer has been handed on."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as said:
            line = said.read()
        sys.stdout.write(line or json.dumps({"event": "failed", "reason": "the supervisor died at its start"}) + "\n")
        sys.stdout.flush()
        return None
    os.setsid()
    if os.fork():
        os._exit(0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    log = os.open(complaints, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, target in ((0, nowhere), (1, nowhere), (2, log)):
        os.dup2(target, number)

    def answer(line: Json) -> None:
        os.write(writer, json.dumps(line).encode() + b"\n")
        os.close(writer)

    return answer

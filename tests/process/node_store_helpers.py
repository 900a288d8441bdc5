"""The scripts that work on a store, run as a node runs them: a process of its own, isolated, fed by stdin."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from agent_helpers import agent_argv


@dataclass(frozen=True)
class Said:
    events: list[dict[str, Any]]
    rc: int
    stderr: str

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1]

    @property
    def reason(self) -> str:
        assert self.last["event"] == "failed", self
        return str(self.last["reason"])


def file_of(content: bytes, name: str = "a-1.0-py3-none-any.whl", **more: Any) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "name": name, "size": len(content), **more}


def frame(content: bytes, name: str = "a-1.0-py3-none-any.whl", **more: Any) -> bytes:
    return json.dumps({**file_of(content, name), **more}).encode() + b"\n" + content


END = b'{"end": true}\n'


def argv(script: str, action: str, python: str = sys.executable) -> list[str]:
    return agent_argv(python, f"files.{script}", action)


def first_line(script: str, request: dict[str, Any]) -> bytes:
    return json.dumps(request).encode() + b"\n"


def run(
    script: str,
    action: str,
    request: dict[str, Any],
    stdin: bytes = b"",
    *,
    python: str = sys.executable,
    env: dict[str, str] | None = None,
) -> Said:
    done = subprocess.run(
        argv(script, action, python),
        input=first_line(script, request) + stdin,
        capture_output=True,
        env={**_BARE, **(env or {})},
        cwd="/",
        timeout=60,
        check=False,
    )
    stderr = done.stderr.decode()
    assert "Traceback" not in stderr, stderr
    return Said([json.loads(line) for line in done.stdout.splitlines()], done.returncode, stderr)


_SPOILS = re.compile("(?i)proxy|cert|ca_bundle|netrc")
_BARE = {key: value for key, value in os.environ.items() if not _SPOILS.search(key)}


def start(script: str, action: str, request: dict[str, Any], **options: Any) -> subprocess.Popen[bytes]:
    """Begin it with its stdin still open."""
    process = subprocess.Popen(
        argv(script, action), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )
    feed(process, first_line(script, request))
    return process


def feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    stdin: IO[bytes] | None = process.stdin
    assert stdin is not None
    stdin.write(data)
    stdin.flush()


def content_of(store: Path) -> dict[str, bytes]:
    """Every file below the store, by its path in it."""
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}

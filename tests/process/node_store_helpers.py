"""Runs the store commands of the agent as a node does: in an isolated process, with input on stdin."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import env_helpers


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


def receive(store: Path, stream: bytes, **options: Any) -> Said:
    return run("store", "receive", {"store": str(store), "files": None}, stream, **options)


def have(store: Path, files: list[dict[str, Any]], *, verify: bool = False) -> dict[str, Any]:
    return run("store", "have", {"store": str(store), "files": files, "verify": verify}).last


def first_line(request: dict[str, Any]) -> bytes:
    return json.dumps(request).encode() + b"\n"


def run(
    script: str,
    action: str,
    request: dict[str, Any],
    stdin: bytes = b"",
    *,
    env: dict[str, str] | None = None,
    **options: Any,
) -> Said:
    process = start(script, action, request, env={**_BARE, **(env or {})}, cwd="/", **options)
    out, err = process.communicate(stdin, timeout=60)
    stderr = err.decode()
    assert "Traceback" not in stderr, stderr
    return Said([json.loads(line) for line in out.splitlines()], process.returncode, stderr)


_SPOILS = re.compile("(?i)proxy|cert|ca_bundle|netrc")
_BARE = {key: value for key, value in os.environ.items() if not _SPOILS.search(key)}


def start(script: str, action: str, request: dict[str, Any], **options: Any) -> subprocess.Popen[bytes]:
    """Begin it with its stdin still open."""
    return env_helpers.start(f"files.{script}", action, request, is_fed=True, **options)


def feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    stdin: IO[bytes] | None = process.stdin
    assert stdin is not None
    stdin.write(data)
    stdin.flush()


def content_of(store: Path) -> dict[str, bytes]:
    """Every file below the store, by its path in it."""
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}

"""Directories of this machine, one per host, between which checkpoints are exchanged."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from agent_helpers import wait_until
from env_helpers import start
from ipexctl.node.run.supervisor.checkpoint_exchange import CheckpointExchange

TOKEN = "0123456789abcdef" * 4


def saved(text: str) -> bytes:
    """As torch.save writes it."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo("data.pkl"), text * 1000)
    return packed.getvalue()


class Hosts:
    def __init__(self, base: Path, path: str, count: int = 3) -> None:
        self.base, self.path = base, path
        self.names = tuple(f"node{number + 1}" for number in range(count))

    def of(self, name: str, part: str = "") -> Path:
        return self.base / name / "code" / (part or self.path)

    def write(self, name: str, data: bytes, part: str = "", at: float | None = None) -> Path:
        path = self.of(name, part)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if at is not None:
            os.utime(path, (at, at))
        return path

    def content(self, part: str = "") -> list[bytes | None]:
        paths = [self.of(name, part) for name in self.names]
        return [path.read_bytes() if path.exists() else None for path in paths]

    def exchange(self, *, python: str = sys.executable, token: str = TOKEN) -> CheckpointExchange:
        exchange = CheckpointExchange(self.path, dict(enumerate(self.names)), "127.0.0.1", TOKEN)
        clients = {name: self.take_part(rank, exchange.port, python, token) for rank, name in enumerate(self.names)}
        self.errors = {}
        if token == TOKEN:
            wait_until(lambda: exchange.is_over, 60)
            exchange.close()
        for name, client in clients.items():
            self.errors[name] = client.communicate(timeout=30)[1].decode()
        exchange.close()
        self.notes = []
        while not exchange.notes.empty():
            self.notes.append(exchange.notes.get())
        return exchange

    def take_part(self, rank: int, port: int, python: str, token: str) -> subprocess.Popen[bytes]:
        home = self.base / self.names[rank]
        (home / "code").mkdir(parents=True, exist_ok=True)
        request = {"rank": rank, "run": "", "path": str(home / "code" / self.path), "home": str(home)}
        request |= {"address": "127.0.0.1", "port": port, "token": token, "tree": self.path.partition("/")[0]}
        return start("files.checkpoint", "", request, python=python)

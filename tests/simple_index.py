"""A real package index over a directory of wheels, for tests: in HTML or JSON, with the faults that indexes have.

with SimpleIndex(directory) as index:
    index.url        # http://127.0.0.1:PORT/simple
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from hub_server import QuietServer

JSON = "application/vnd.pypi.simple.v1+json"


@dataclass
class Behaviour:
    """How the index behaves; may be changed while it serves. Names are file names or projects."""

    json: bool = True
    """Whether it answers in JSON where that is asked for."""
    sizes: bool = True
    hashes: bool = True
    compressed: bool = False
    heads: bool = True
    """Whether it answers HEAD."""
    login: tuple[str, str] | None = None
    """Name and password without which nothing is had."""
    yanked: set[str] = field(default_factory=set)
    requires_python: dict[str, str] = field(default_factory=dict)
    slow: float = 0.0
    """Seconds before every answer."""
    bytes_per_second: int | None = None
    """Of files, each connection."""
    missing: set[str] = field(default_factory=set)
    """Projects and files answered with 404, though they are listed."""
    hanging: set[str] = field(default_factory=set)
    """Projects and files for which no answer ever comes; `*` is all."""
    errors: dict[str, int] = field(default_factory=dict)
    """Project, file or `*` → the status it is answered with."""


class SimpleIndex:
    """Serves `directory` at `url` from `bind`, on a free port, while the `with` lasts."""

    def __init__(self, directory: Path | str, bind: str = "127.0.0.1", port: int = 0, **behaviour: Any) -> None:
        self.directory = Path(directory)
        self.behaviour = Behaviour(**behaviour)
        self.requests: Counter[str] = Counter()
        """`GET /simple/torch/` → how often."""
        self.bytes: Counter[str] = Counter()
        """Bytes of files that were sent, by file name."""
        self.released = threading.Event()
        self._server = _Server((bind, port), self)
        self._digests: dict[tuple[str, float, int], str] = {}
        self._guard = threading.Lock()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def origin(self) -> str:
        return f"http://{self._server.server_address[0]!s}:{self.port}"

    @property
    def url(self) -> str:
        """The index."""
        return f"{self.origin}/simple"

    @property
    def url_with_login(self) -> str:
        name, password = self.behaviour.login or ("", "")
        return self.url.replace("://", f"://{quote(name, safe='')}:{quote(password, safe='')}@")

    @property
    def links(self) -> str:
        """A page of links to all its files."""
        return f"{self.origin}/links/"

    def file_url(self, name: str) -> str:
        return f"{self.origin}/files/{quote(name)}"

    def asked(self, what: str) -> int:
        """How many requests had this in their path."""
        with self._guard:
            return sum(count for path, count in self.requests.items() if what in path)

    def forget(self) -> None:
        """Count anew."""
        with self._guard:
            self.requests.clear()
            self.bytes.clear()

    def wheels(self, project: str | None = None) -> list[Path]:
        """And the source archives."""
        found = sorted((*self.directory.glob("*.whl"), *self.directory.glob("*.tar.gz")))
        return [file for file in found if project in (None, normal(file.name.partition("-")[0]))]

    def digest(self, file: Path) -> str:
        known = (file.name, file.stat().st_mtime, file.stat().st_size)
        with self._guard:
            if known not in self._digests:
                self._digests[known] = hashlib.sha256(file.read_bytes()).hexdigest()
            return self._digests[known]

    def count(self, counter: Counter[str], what: str, number: int = 1) -> None:
        with self._guard:
            counter[what] += number

    def __enter__(self) -> SimpleIndex:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class _Server(QuietServer):
    def __init__(self, address: tuple[str, int], index: SimpleIndex) -> None:
        self.index = index
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        index, behaviour = self.server.index, self.server.index.behaviour
        path = unquote(urlsplit(self.path).path)
        index.count(index.requests, f"{self.command} {path}")
        word = path.rstrip("/").rpartition("/")[2]
        time.sleep(behaviour.slow)
        if {"*", word} & behaviour.hanging:
            index.released.wait()
            self.close_connection = True
            return
        if behaviour.login and not self._logged_in(behaviour.login):
            self._say(401, b"who are you?", {"WWW-Authenticate": 'Basic realm="index"'})
        elif status := behaviour.errors.get(word) or behaviour.errors.get("*"):
            self._say(status, b"error")
        elif word in behaviour.missing:
            self._say(404, b"not found")
        elif path.startswith("/files/"):
            self._file(word)
        elif path.startswith("/links"):
            self._page(None)
        elif path.startswith("/simple/") and not path.endswith("/"):
            self._say(301, b"", {"Location": f"{path}/"})
        elif path.startswith("/simple/") and index.wheels(word):
            self._page(word)
        else:
            self._say(404, b"not found")

    def do_HEAD(self) -> None:
        if self.server.index.behaviour.heads:
            self.do_GET()
        else:
            self._say(405, b"")

    def log_message(self, *args: Any) -> None:
        """Tests look at `requests`."""

    def _logged_in(self, login: tuple[str, str]) -> bool:
        wanted = base64.b64encode(":".join(login).encode()).decode()
        return self.headers.get("Authorization") == f"Basic {wanted}"

    def _say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _page(self, project: str | None) -> None:
        index, behaviour = self.server.index, self.server.index.behaviour
        files = index.wheels(project)
        if project and behaviour.json and JSON in self.headers.get("Accept", ""):
            kind, text = (
                JSON,
                json.dumps({"meta": {"api-version": "1.1"}, "name": project, "files": self._items(files)}),
            )
        else:
            kind, text = "text/html", self._html(files)
        body, headers = text.encode(), {"Content-Type": kind}
        if behaviour.compressed and "gzip" in self.headers.get("Accept-Encoding", ""):
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        self._say(200, body, headers)

    def _items(self, files: list[Path]) -> list[dict[str, Any]]:
        index, behaviour = self.server.index, self.server.index.behaviour
        return [
            {
                "filename": file.name,
                "url": f"../../files/{quote(file.name)}",
                "hashes": {"sha256": index.digest(file)} if behaviour.hashes else {},
                "yanked": file.name in behaviour.yanked,
                **({"size": file.stat().st_size} if behaviour.sizes else {}),
                **({"requires-python": need} if (need := behaviour.requires_python.get(file.name)) else {}),
            }
            for file in files
        ]

    def _html(self, files: list[Path]) -> str:
        index, behaviour = self.server.index, self.server.index.behaviour
        lines = []
        for file in files:
            fragment = f"#sha256={index.digest(file)}" if behaviour.hashes else ""
            need = behaviour.requires_python.get(file.name)
            more = ' data-yanked="no good"' if file.name in behaviour.yanked else ""
            more += f' data-requires-python="{html.escape(need)}"' if need else ""
            lines.append(f'<a href="/files/{quote(file.name)}{fragment}"{more}>{html.escape(file.name)}</a><br>')
        return "<!DOCTYPE html><html><body>\n" + "\n".join(lines) + "\n</body></html>\n"

    def _file(self, name: str) -> None:
        file = self.server.index.directory / name
        if not file.is_file():
            self._say(404, b"not found")
            return
        data = file.read_bytes()
        size, first = len(data), 0
        last = size - 1
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if asked and any(asked.groups()):
            if not asked[1]:
                first = max(0, size - int(asked[2]))
            else:
                first, last = int(asked[1]), min(last, int(asked[2] or last))
            if first >= size:
                self._say(416, b"", {"Content-Range": f"bytes */{size}"})
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        else:
            self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        if self.command != "HEAD":
            self._send(name, data[first : last + 1])

    def _send(self, name: str, data: bytes) -> None:
        index, rate = self.server.index, self.server.index.behaviour.bytes_per_second
        step = max(1, rate // 20) if rate else 1 << 18
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            index.count(index.bytes, name, len(piece))  # first: a client that has the bytes finds them counted
            self.wfile.write(piece)
            if rate:
                time.sleep(len(piece) / rate)

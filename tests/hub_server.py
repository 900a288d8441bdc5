"""A hub of Hugging Face for tests: the endpoints that huggingface_hub uses to download, at two addresses.

In: repositories as directories of files; out: an address for HF_ENDPOINT. As at the real one, small files come from the
hub, named by git's hash; large ones from another host (the storage), named by their sha256, to which the hub redirects
with a signed address. It refuses what the real one refuses: a repository without the token that may read it (401,
RepoNotFound), a gated one (401 and 403, GatedRepo), a wrong token, unknown revisions and files (404), a login sent to
the storage (400), a storage address without a signature (403), a range behind the end (416).

`Faults` makes it fail as a real one does: 429 with Retry-After, a connection cut in the middle, wrong bytes.
Run as a script on a host of a lab: `python hub_server.py DIRECTORY ADDRESS STORAGE PORT`.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = 1 << 20
"""A file of this size is kept by the storage, as git-lfs does."""
PAGE = 50
"""Entries of one answer about a tree."""
SIGNATURE = "signed"


@dataclass
class Repo:
    """A repository: `kind/org/name` with one commit on `main`."""

    path: Path
    kind: str
    name: str
    token: str = ""
    """Who may read it: everybody, or those with this token."""
    gated: bool = False
    """Its list is open, its files are for those with the token."""

    @property
    def commit(self) -> str:
        return hashlib.sha1("".join(f"{name} {self.blob(name)}\n" for name in self.files()).encode()).hexdigest()

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file())

    def blob(self, name: str) -> str:
        """The name of a file's content: its sha256 in the storage, else git's."""
        path = self.path / name
        stamp = (path.stat().st_size, path.stat().st_mtime_ns)
        known = _hashes.get(str(path))
        if known is None or known[0] != stamp:
            digest = hashlib.sha256() if stamp[0] >= LARGE else hashlib.sha1(b"blob %d\0" % stamp[0])
            with path.open("rb") as file:
                for block in iter(lambda: file.read(1 << 20), b""):
                    digest.update(block)
            _hashes[str(path)] = known = (stamp, digest.hexdigest())
        return known[1]


_hashes: dict[str, tuple[tuple[int, int], str]] = {}


@dataclass
class Faults:
    too_many: int = 0
    """So many requests for files are answered by 429."""
    retry_after: int = 1
    cut_after: int = 0
    """Bytes of a file's body, after which the connection is cut; 0: never."""
    cuts: int = 0
    """So many connections are cut."""
    wrong_bytes: int = 0
    """So many bodies have another first byte."""
    names: list[str] = field(default_factory=list)
    """Further names in the list of each repository."""
    links: dict[str, str] = field(default_factory=dict)
    """Hashes that the list has in place of the right ones, by name."""
    redirect: str = ""
    """Another address, to which all requests are redirected."""
    etags: dict[str, str] = field(default_factory=dict)
    """The same in the answer about a file alone."""


class Hub:
    """Both servers, and what they were asked."""

    def __init__(self, directory: Path, address: str = "127.0.0.1", storage: str = "127.0.0.2", port: int = 0) -> None:
        self.directory = directory
        self.repos: dict[tuple[str, str], Repo] = {}
        self.faults = Faults()
        self.requests: list[tuple[str, str, str]] = []
        """Method, path and login of each request to the hub."""
        self.storage_requests: list[tuple[str, str]] = []
        """Path and range of each request to the storage."""
        self.storage_logins: list[str] = []
        self.lock = threading.Lock()
        self._exit_stack = ExitStack()
        self.hub, self.storage = (
            _Server((bound, port), handler, self)
            for bound, handler in ((address, _HubHandler), (storage, _StorageHandler))
        )

    @property
    def endpoint(self) -> str:
        return self.hub.url

    @property
    def storage_address(self) -> str:
        return self.storage.url

    def add(self, kind: str, name: str, files: dict[str, bytes], *, token: str = "", gated: bool = False) -> Repo:
        repo = Repo(self.directory / f"{kind}s" / name, kind, name, token, gated)
        for path, content in files.items():
            (repo.path / path).parent.mkdir(parents=True, exist_ok=True)
            (repo.path / path).write_bytes(content)
        self.repos[(kind, name)] = repo
        return repo

    def __enter__(self) -> Hub:
        for server in (self.hub, self.storage):
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            self._exit_stack.callback(server.server_close)
            self._exit_stack.callback(server.shutdown)
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def spend(self, name: str) -> bool:
        """Whether a fault that happens a number of times happens now."""
        with self.lock:
            left: int = getattr(self.faults, name)
            setattr(self.faults, name, max(0, left - 1))
            return left > 0


class QuietServer(ThreadingHTTPServer):
    """Clients that leave are no news."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None: ...


class _Server(QuietServer):
    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], hub: Hub) -> None:
        self.of_hub = hub
        super().__init__(address, handler)

    @property
    def url(self) -> str:
        address, port = self.server_address[:2]
        return f"http://{address!s}:{port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    @property
    def hub(self) -> Hub:
        return self.server.of_hub

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        raise NotImplementedError

    def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, code: int, kind: str, message: str, **headers: str) -> None:
        body = json.dumps({"error": message}).encode()
        self.answer(code, body, X_Error_Code=kind, X_Error_Message=message, Content_Type="application/json", **headers)

    def send_file(self, path: Path, **headers: str) -> None:
        """With ranges, and the faults of a body."""
        size, start = path.stat().st_size, 0
        if wanted := self.headers.get("Range"):
            start = int(wanted.partition("=")[2].partition("-")[0])
            if start >= size:
                self.answer(416, Content_Range=f"bytes */{size}")
                return
            headers["Content_Range"] = f"bytes {start}-{size - 1}/{size}"
        self.send_response(206 if wanted else 200)
        for name, value in {"Content-Length": str(size - start), "Accept-Ranges": "bytes", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.flush()
        limit = size - start
        if self.hub.faults.cut_after and size >= LARGE and self.hub.spend("cuts"):
            limit = min(limit, self.hub.faults.cut_after)
        with path.open("rb") as file:
            if self.hub.faults.wrong_bytes and size >= LARGE and self.hub.spend("wrong_bytes"):
                file.seek(start)
                data = file.read(limit)
                self.wfile.write(bytes([data[0] ^ 1]) + data[1:])
            else:
                self.connection.sendfile(file, start, limit)
        self.close_connection = limit < size - start


class _HubHandler(_Handler):
    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        login = self.headers.get("Authorization", "")
        with self.hub.lock:
            self.hub.requests.append((self.command, unquote(parts.path), login))
        if self.hub.faults.redirect:
            self.answer(302, Location=f"{self.hub.faults.redirect}{self.path}")
            return
        words = [unquote(word) for word in parts.path.strip("/").split("/")]
        if words[0] == "api" and len(words) >= 4:
            repo = self._repo(words[1].removesuffix("s"), "/".join(words[2:4]))
            if repo is not None:
                self._api(repo, words[4:], parse_qs(parts.query))
            return
        kind = "dataset" if words[0] == "datasets" else "model"
        words = words[1:] if kind == "dataset" else words
        if len(words) < 5 or words[2] != "resolve":
            self.refuse(404, "EntryNotFound", "Entry not found")
        elif (repo := self._repo(kind, "/".join(words[:2]))) is not None:
            self._resolve(repo, words[3], "/".join(words[4:]))

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _repo(self, kind: str, name: str) -> Repo | None:
        repo = self.hub.repos.get((kind, name))
        tokens = {known.token for known in self.hub.repos.values()}
        if self._token() and self._token() not in tokens:
            self.refuse(401, "", "Invalid credentials in Authorization header")
            return None
        if repo is None or (repo.token and not repo.gated and self._token() != repo.token):
            self.refuse(401 if not self._token() else 404, "RepoNotFound", "Repository not found")
            return None
        return repo

    def _api(self, repo: Repo, words: list[str], query: dict[str, list[str]]) -> None:
        revision = words[1] if len(words) > 1 else "main"
        if revision not in ("main", repo.commit):
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif not words or words[0] == "revision":
            siblings = [{"rfilename": name} for name in repo.files()]
            document = {"_id": "1", "id": repo.name, "modelId": repo.name, "sha": repo.commit, "siblings": siblings}
            self._json({**document, "private": bool(repo.token), "tags": [], "downloads": 0, "likes": 0})
        elif words[0] == "tree":
            self._tree(repo, int(query.get("cursor", ["0"])[0]))
        else:
            self.refuse(404, "EntryNotFound", "Entry not found")

    def _tree(self, repo: Repo, cursor: int) -> None:
        rows: list[dict[str, Any]] = []
        for name in [*repo.files(), *self.hub.faults.names]:
            path = repo.path / name
            blob = self.hub.faults.links.get(name) or (repo.blob(name) if path.is_file() else "a" * 40)
            size = path.stat().st_size if path.is_file() else 3
            row: dict[str, Any] = {"type": "file", "oid": blob, "size": size, "path": name}
            if size >= LARGE:
                row["lfs"] = {"oid": blob, "size": size, "pointerSize": 134}
                row["oid"] = hashlib.sha1(blob.encode()).hexdigest()
            rows.append(row)
        rest = {}
        if len(rows) > cursor + PAGE:
            rest["Link"] = (
                f'<{self.hub.endpoint}{urlsplit(self.path).path}?recursive=True&cursor={cursor + PAGE}>; rel="next"'
            )
        self._json(rows[cursor : cursor + PAGE], **rest)

    def _json(self, document: object, **headers: str) -> None:
        self.answer(200, json.dumps(document).encode(), Content_Type="application/json", **headers)

    def _resolve(self, repo: Repo, revision: str, name: str) -> None:
        if repo.gated and self._token() != repo.token:
            message = (
                f"Access to {repo.kind} {repo.name} is restricted. You must have access to it and be authenticated."
            )
            self.refuse(403 if self._token() else 401, "GatedRepo", message)
        elif revision not in ("main", repo.commit):
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif name not in repo.files():
            self.refuse(404, "EntryNotFound", "Entry not found", X_Repo_Commit=repo.commit)
        elif self.hub.spend("too_many"):
            self.refuse(429, "", "Too many requests", Retry_After=str(self.hub.faults.retry_after))
        else:
            path, blob = repo.path / name, repo.blob(name)
            blob = self.hub.faults.etags.get(name) or self.hub.faults.links.get(name, blob)
            if path.stat().st_size < LARGE:
                self.send_file(path, ETag=f'"{blob}"', X_Repo_Commit=repo.commit)
                return
            self.answer(
                302,
                Location=f"{self.hub.storage_address}/{repo.kind}/{repo.name}/{name}?{SIGNATURE}=1",
                X_Linked_Etag=f'"{blob}"',
                X_Linked_Size=str(path.stat().st_size),
                X_Repo_Commit=repo.commit,
            )


class _StorageHandler(_Handler):
    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        with self.hub.lock:
            self.hub.storage_requests.append((unquote(parts.path), self.headers.get("Range", "")))
            self.hub.storage_logins.append(self.headers.get("Authorization", ""))
        kind, org, name, *path = unquote(parts.path).strip("/").split("/")
        if self.headers.get("Authorization"):
            self.answer(400, b"Only one auth mechanism allowed")
        elif SIGNATURE not in parts.query:
            self.answer(403, b"SignatureDoesNotMatch")
        else:
            self.send_file(self.hub.repos[(kind, f"{org}/{name}")].path / "/".join(path), ETag='"of the storage"')


def serve(directory: Path, address: str, storage: str, port: int) -> None:
    """Serve `DIRECTORY/{models,datasets}/ORG/NAME` until it is killed."""
    with Hub(directory, address, storage, port) as hub:
        for kind in ("model", "dataset"):
            for path in (directory / f"{kind}s").glob("*/*"):
                hub.repos[(kind, f"{path.parent.name}/{path.name}")] = Repo(
                    path, kind, f"{path.parent.name}/{path.name}"
                )
        for repo in hub.repos.values():
            print(repo.name, repo.commit, flush=True)
        print(hub.endpoint, flush=True)
        signal.pause()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))

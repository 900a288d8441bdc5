"""What an index doesn't say of a file: its size, asked for without fetching it, and its hash, for which it is fetched.

What was fetched for its hash is kept in the store under it, so that it is fetched once.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import ssl
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, Callable, Dict
from urllib.parse import unquote, urlsplit

CHUNK = 1 << 20
AT_ONCE = 8
STALLED = 60
BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")
Json = Dict[str, Any]
speaking = threading.Lock()
half_made: set[str] = set()


class Failed(Exception):
    """A file can't be had, and why."""


def say(event: Json) -> None:
    with speaking:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


class Web:
    """Requests with the proxies, certificates and logins that `ask` found."""

    def __init__(self, request: Json) -> None:
        settings = request.get("settings") or {}
        self.logins: dict[str, str] = request.get("logins") or {}
        self.trusted = [word.rpartition("@")[2].partition(":")[0] for word in settings.get("trusted_hosts") or ()]
        proxy = settings.get("proxy")
        self.proxies = {"http": proxy, "https": proxy} if proxy else None
        self.bundle = settings.get("cert") or os.environ.get("SSL_CERT_FILE")
        self.client = settings.get("client_cert")
        self.openers: dict[bool, urllib.request.OpenerDirector] = {}

    def open(self, url: str, timeout: float, **headers: str) -> Any:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise Failed("its address begins with neither http:// nor https:// nor file://")
        method = headers.pop("method", "GET")
        request = urllib.request.Request(url, headers={"User-Agent": "ipexctl", **headers}, method=method)  # noqa: S310
        login = self.logins.get(f"{parts.scheme}://{parts.netloc.lower()}")
        if login:
            request.add_unredirected_header("Authorization", login)
        verify = parts.hostname not in self.trusted
        if verify not in self.openers:
            self.openers[verify] = self.opener(verify)
        return self.openers[verify].open(request, timeout=timeout)

    def opener(self, verify: bool) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context()
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        for path in [self.bundle] if self.bundle else [known for known in BUNDLES if Path(known).exists()]:
            context.load_verify_locations(**{"capath" if Path(path).is_dir() else "cafile": path})
        if self.client:
            context.load_cert_chain(self.client)
        proxies = urllib.request.ProxyHandler(self.proxies)
        return urllib.request.build_opener(proxies, urllib.request.HTTPSHandler(context=context))


def local_path(url: str) -> Path | None:
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def size_of(web: Web, url: str, timeout: float) -> int | None:
    """What HEAD says, else the total that the answer to a request for one byte names."""
    for headers in ({"method": "HEAD", "Accept-Encoding": "identity"}, {"Range": "bytes=0-0"}):
        try:
            path = local_path(url)
            if path is not None:
                return path.stat().st_size
            with web.open(url, timeout, **headers) as answer:
                whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
                length = whole if answer.status == 206 else answer.headers.get("Content-Length")
                if length and length.isdigit():
                    return int(length)
        except (OSError, ValueError, HTTPException, Failed):
            continue  # a size that nobody says is no failure
    return None


def size(request: Json) -> Json:
    web, timeout, urls = Web(request), float(request.get("timeout") or 5), list(request["urls"])
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda url: size_of(web, url, timeout), urls))
    return {"sizes": {url: number for url, number in zip(urls, found) if number is not None}}


class Progress:
    """At most five lines a second."""

    def __init__(self) -> None:
        self.done, self.last = 0, 0.0

    def add(self, count: int, what: str) -> None:
        self.done += count
        if time.monotonic() - self.last >= 0.2:
            self.last = time.monotonic()
            say({"event": "progress", "done": self.done, "total": None, "what": what})


def read_all(source: Any, target: Any, heard: Callable[[int], None]) -> tuple[str, int]:
    digest, length = hashlib.sha256(), 0
    while True:
        block = source.read(CHUNK)
        if not block:
            return digest.hexdigest(), length
        digest.update(block)
        length += len(block)
        if target is not None:
            target.write(block)
        heard(len(block))


def hash_one(web: Web, url: str, name: str, store: Path, heard: Callable[[int], None]) -> Json:
    path = local_path(url)
    if path is not None:
        with path.open("rb") as source:
            sha256, length = read_all(source, None, heard)
        return {"sha256": sha256, "size": length}
    store.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, part = tempfile.mkstemp(suffix=".part", dir=str(store))
    half_made.add(part)
    try:
        with web.open(url, STALLED) as source, os.fdopen(descriptor, "wb") as target:
            sha256, length = read_all(source, target, heard)
            announced = source.headers.get("Content-Length")
        if announced is not None and int(announced) != length:
            raise Failed(f"it broke off after {length} of {announced} bytes")
        (store / sha256).mkdir(exist_ok=True, mode=0o700)
        Path(part).replace(store / sha256 / name)
    finally:
        if Path(part).exists():
            Path(part).unlink()
        half_made.discard(part)
    return {"sha256": sha256, "size": length}


def hash_files(request: Json) -> Json:
    web, store, progress = Web(request), Path(request["store"]), Progress()
    hashed, failed = {}, {}
    for item in request["files"]:
        url, name = item["url"], Path(item["name"]).name
        try:
            hashed[url] = hash_one(web, url, name, store, lambda count, name=name: progress.add(count, name))  # type: ignore[misc]
        except (OSError, ValueError, HTTPException, Failed) as error:
            cause = getattr(error, "reason", error)
            failed[url] = str(getattr(cause, "strerror", None) or cause or type(cause).__name__)
    return {"hashed": hashed, "failed": failed}


def stop(*_: object) -> None:
    for part in list(half_made):
        if Path(part).exists():
            Path(part).unlink()
    os._exit(143)


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)
    request = json.loads(sys.stdin.readline())
    answer = size(request) if sys.argv[1] == "size" else hash_files(request)
    say({"event": "done", **answer})


if __name__ == "__main__":
    main()

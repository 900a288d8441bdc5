"""Downloads into the store, as pip on this machine would make them: proxies, certificates and logins are obeyed.

A download that breaks off goes on where it was. The store's text comes with the request.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import netrc
import os
import queue
import ssl
import sys
import threading
import time
import types
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

_AT_ONCE = 4
_TRIES = 3
_PAUSE = 0.5
_WORTH = 1 << 20
"""Bytes that make a try count as none, however it ended."""


def library(text: str) -> Any:
    """A script beside this one, as a module."""
    module = types.ModuleType("store")
    exec(compile(text, "store", "exec"), module.__dict__)  # noqa: S102
    return module


class _Broken(Exception):
    """A try that came to nothing; another may not."""


class _Refused(Exception):
    """There is no use in trying again."""


def plain(url: str) -> str:
    """An address as it may be shown: without whose it is."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class _Redirect(urllib.request.HTTPRedirectHandler):
    """A login is for the host it was meant for."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> Any:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and _origin(newurl) != _origin(req.full_url):
            for name in [name for name in new.headers if name.lower() in ("authorization", "cookie")]:
                del new.headers[name]
        return new


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


class Web:
    """How this machine reaches the indexes."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.timeout: float = request.get("timeout") or 30
        self._trusted = set(request.get("trusted_hosts") or ())
        proxies = dict(request.get("proxies") or urllib.request.getproxies())
        for scheme in ("http", "https"):
            if scheme not in proxies and "all" in proxies:
                proxies[scheme] = proxies["all"]
        cafile = request.get("cafile") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
        careful = ssl.create_default_context(
            cafile=None if cafile and os.path.isdir(cafile) else cafile or None,  # noqa: PTH112
            capath=cafile if cafile and os.path.isdir(cafile) else None,  # noqa: PTH112
        )
        careless = ssl.create_default_context()
        careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
        if request.get("client_cert"):
            careful.load_cert_chain(request["client_cert"])
            careless.load_cert_chain(request["client_cert"])
        self._careful, self._careless = (
            urllib.request.build_opener(
                urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context), _Redirect()
            )
            for context in (careful, careless)
        )

    def open(self, item: dict[str, Any], start: int) -> Any:
        """The answer to a request for the file from there on."""
        parts = urllib.parse.urlsplit(item["url"])
        if parts.scheme not in ("http", "https", "file"):
            raise _Refused(f"{plain(item['url'])}: only http, https and file addresses can be fetched")
        host = parts.netloc.rpartition("@")[2]
        url = urllib.parse.urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
        headers = {"User-Agent": "ipexctl", "Accept-Encoding": "identity", **(item.get("headers") or {})}
        login = _login(parts)
        if login is not None and "authorization" not in map(str.lower, headers):
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        if start:
            headers["Range"] = f"bytes={start}-"
        careless = parts.hostname in self._trusted or host in self._trusted
        opener = self._careless if careless else self._careful
        return opener.open(urllib.request.Request(url, headers=headers), timeout=self.timeout)  # noqa: S310


def _login(parts: urllib.parse.SplitResult) -> str | None:
    if parts.username is not None:
        return urllib.parse.unquote(f"{parts.username}:{parts.password or ''}")
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        known = netrc.netrc(os.environ.get("NETRC") or None).authenticators(parts.hostname or "")
        if known is not None:
            return f"{known[0]}:{known[2]}"
    return None


class Download:
    """One file on its way from an index into the store."""

    def __init__(self, store: Any, directory: str, item: dict[str, Any], web: Web, progress: Any) -> None:
        self._store = store
        self._directory = directory
        self._item = item
        self._web = web
        self._progress = progress

    def run(self) -> None:
        """Raises the store's Failed where the file can't be had."""
        resumed = self._try_all()
        if resumed is None:
            return
        # What was pieced together may have been of two versions of the file: once more, in one piece.
        again = self._try_all()
        if again is not None:
            raise again

    def _try_all(self) -> Any:
        """None, or a wrong hash that a second go might mend."""
        with self._store.Part(self._directory, self._item) as part:
            pieces = self._fill(part)
            try:
                part.adopt()
            except self._store.WrongHash as wrong:
                if pieces > 1:
                    return wrong
                raise
        return None

    def _fill(self, part: Any) -> int:
        """Until the part is whole; how many pieces that took."""
        tries, pieces = 0, 0
        while True:
            before = part.done
            try:
                self._piece(part)
                return pieces + 1
            except _Refused as error:
                raise self._store.Failed(str(error)) from None
            except (_Broken, OSError, http.client.HTTPException, ValueError) as error:
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                pieces += 1
                tries = 0 if part.done - before >= _WORTH else tries + 1
                if tries >= _TRIES or _is_final(error):
                    raise self._store.Failed(f"{plain(self._item['url'])}: {said(error, self._web.timeout)}") from None
            time.sleep(_PAUSE * tries)

    def _piece(self, part: Any) -> None:
        start = part.done
        with self._web.open(self._item, start) as answer:
            partial = answer.getcode() == 206
            if partial:
                self._check_range(answer, start)
            skip = 0 if partial else start
            expected = _length(answer)
            buffer = memoryview(bytearray(self._store.CHUNK))
            arrived = 0
            while True:
                count = answer.readinto(buffer) if hasattr(answer, "readinto") else 0
                if not count:
                    break
                arrived += count
                fresh = buffer[min(count, skip) : count]
                skip -= count - len(fresh)
                self._take(part, fresh)
        if expected is not None and arrived < expected:
            raise _Broken(f"it broke off after {part.done} bytes")
        if part.size is not None and part.done < part.size:
            raise _Broken(f"it has {part.done} bytes where {part.size} were expected")

    def _take(self, part: Any, fresh: memoryview) -> None:
        if part.size is not None and part.done + len(fresh) > part.size:
            raise _Refused(f"{plain(self._item['url'])}: it has more than the {part.size} bytes that were expected")
        part.write(fresh)
        self._progress.add(len(fresh), self._item["name"])

    @staticmethod
    def _check_range(answer: Any, start: int) -> None:
        said_range = answer.headers.get("Content-Range", "")
        if not said_range.startswith(f"bytes {start}-"):
            raise _Broken(f"asked for the bytes from {start} on, it sent {said_range[:60] or 'others'}")


def _length(answer: Any) -> int | None:
    length = answer.headers.get("Content-Length")
    return int(length) if length and length.isdigit() else None


def _is_final(error: Exception) -> bool:
    """Whether the same request would have the same end."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code < 500 and error.code not in (408, 416, 429)
    reason = getattr(error, "reason", error)
    return isinstance(reason, (ssl.SSLCertVerificationError, FileNotFoundError))


def said(error: Exception, timeout: float) -> str:
    """What went wrong, for a person."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the server says {error.code} {error.reason}"
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate can't be verified ({reason.verify_message}); SSL_CERT_FILE names the authority's"
    if isinstance(reason, TimeoutError) or "timed out" in str(reason):
        return f"silent for {timeout:g} s"
    if isinstance(reason, http.client.IncompleteRead):
        return "the connection broke off"
    return str(getattr(reason, "strerror", None) or reason or type(reason).__name__)


def fetch(store: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Several files at once; one that can't be had doesn't keep the others."""
    files: list[dict[str, Any]] = request["files"]
    store.clear(request["store"])
    try:
        web = Web(request)
    except (OSError, ValueError) as error:
        raise store.Failed(f"the certificates can't be used: {error}", "SSL_CERT_FILE, PIP_CERT name others") from None
    progress = store.Progress(store.total_of(files))
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    # The largest first: it takes longest, and beside it the others are for nothing.
    for item in sorted(files, key=lambda item: -(item.get("size") or 0)):
        waiting.put(item)
    got: list[str] = []
    failed: list[dict[str, str]] = []
    broken: list[BaseException] = []

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while not broken:
                item = waiting.get_nowait()
                try:
                    Download(store, request["store"], item, web, progress).run()
                except store.Failed as error:
                    kind = "hash" if isinstance(error, store.WrongHash) else "other"
                    failed.append({"sha256": item["sha256"], "reason": error.reason, "fix": error.fix, "kind": kind})
                except BaseException as error:  # noqa: BLE001  # carried to the main thread and raised there
                    broken.append(error)
                else:
                    got.append(item["sha256"])
                    store.say("got", sha256=item["sha256"])

    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(_AT_ONCE, len(files)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if broken:
        raise broken[0]
    return {"got": got, "failed": failed}


def main() -> int:
    stdin = sys.stdin.buffer
    request = json.loads(stdin.readline())
    store = library(request.pop("library"))
    code: int = store.run(lambda asked, _: fetch(store, asked), request, stdin)
    return code


if __name__ == "__main__":
    sys.exit(main())

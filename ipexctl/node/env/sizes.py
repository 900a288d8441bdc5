"""How big files are whose size no index gave: asked for without fetching them. No answer is no failure."""

from __future__ import annotations

import os
import ssl
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO, Dict
from urllib.parse import urlsplit

from ipexctl.node.common.answer import answer

AT_ONCE = 8
BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")
Json = Dict[str, Any]


class Web:
    """Requests with the proxies, certificates and logins that asking the indexes found."""

    def __init__(self, request: Json) -> None:
        settings = request.get("settings") or {}
        self.logins: dict[str, str] = request.get("logins") or {}
        self.trusted = [word.rpartition("@")[2].partition(":")[0] for word in settings.get("trusted_hosts") or ()]
        proxy = settings.get("proxy")
        self.proxies = {"http": proxy, "https": proxy} if proxy else None
        self.bundle = settings.get("cert") or os.environ.get("SSL_CERT_FILE")
        self.client = settings.get("client_cert")
        self.openers = {verify: self.opener(verify) for verify in (True, False)}

    def open(self, url: str, timeout: float, method: str, headers: dict[str, str]) -> Any:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ValueError(url)
        request = urllib.request.Request(url, headers={"User-Agent": "ipexctl", **headers}, method=method)  # noqa: S310
        login = self.logins.get(f"{parts.scheme}://{parts.netloc.lower()}")
        if login:
            request.add_unredirected_header("Authorization", login)
        return self.openers[parts.hostname not in self.trusted].open(request, timeout=timeout)

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


def size_of(web: Web, url: str, timeout: float) -> int | None:
    """What HEAD says, else the total that the answer to a request for one byte names."""
    for method, headers in (("HEAD", {"Accept-Encoding": "identity"}), ("GET", {"Range": "bytes=0-0"})):
        try:
            with web.open(url, timeout, method, headers) as answer:
                whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
                length = whole if answer.status == 206 else answer.headers.get("Content-Length")
                if length and length.isdigit():
                    return int(length)
        except (OSError, ValueError, HTTPException):
            continue
    return None


def sizes(request: Json, _: BinaryIO) -> Json:
    timeout = float(request.get("timeout") or 5)
    try:
        web = Web(request)
    except OSError:  # certificates that can't be read: the sizes stay unknown
        return {"sizes": {}}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda url: size_of(web, url, timeout), request["urls"])
        return {"sizes": {url: size for url, size in zip(request["urls"], found) if size is not None}}


def main(action: str) -> int:
    return answer({"read": sizes}[action])

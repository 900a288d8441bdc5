"""Queries the sizes of files for which the index has none, without downloading them. A missing size is no error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import TYPE_CHECKING, BinaryIO

from ipexctl.node.common.answer import AgentError, answer
from ipexctl.node.common.http import HttpClient, read_settings

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

MAX_PARALLEL = 8


def size_of(client: HttpClient, url: str, timeout: float) -> int | None:
    """The size from a HEAD request, else the total from a request for one byte."""
    for method, headers in (("HEAD", {"Accept-Encoding": "identity"}), ("GET", {"Range": "bytes=0-0"})):
        try:
            with client.open(url, timeout=timeout, method=method, headers=headers) as response:
                total = response.headers.get("Content-Range", "").rpartition("/")[2]
                length = total if response.status == 206 else response.headers.get("Content-Length")
                if length and length.isdigit():
                    return int(length)
        except (AgentError, OSError, ValueError, HTTPException):
            continue
    return None


def sizes(request: Json, _: BinaryIO) -> Json:
    timeout = float(request.get("timeout") or 5)
    client = HttpClient(read_settings(request.get("settings") or {}, request.get("logins")))
    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        results = pool.map(lambda url: size_of(client, url, timeout), request["urls"])
        return {"sizes": {url: size for url, size in zip(request["urls"], results) if size is not None}}


def main(action: str) -> int:
    return answer({"read": sizes}[action])

"""Which index has what, as pip on this machine would see it: indexes and pages of links are asked, all at once.

No wheel is fetched here. An answer of `ask` may hold logins for whoever fetches: it goes into no log.
"""

from __future__ import annotations

import gzip
import html
import io
import json
import os
import re
import threading
import time
import urllib.error
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterable
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from ipexctl.node.common.answer import AgentError, answer
from ipexctl.node.common.http import HttpClient, explain, read_settings

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
PAGE = 64 << 20
AT_ONCE = 4
TAG = re.compile(r"<(a|base)\s((?:\"[^\"]*\"|'[^']*'|[^'\">])*)>", re.IGNORECASE)
ATTRIBUTE = re.compile(r"([a-zA-Z-]+)(?:\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s'\"]+)))?")
SHA256 = re.compile(r"(?:^|&)sha256=([0-9a-fA-F]{64})")
Json = Dict[str, Any]


class Silence(Exception):
    """A source is no help, and why."""


class Absent(Exception):
    """A source has nothing of that name. `denied`: it says so with 401 or 403, as some do for what isn't there."""

    def __init__(self, denied: bool = False) -> None:
        super().__init__()
        self.denied = denied


def read_page(
    client: HttpClient, url: str, timeout: float, on_response: Callable[[], None] = lambda: None
) -> tuple[str, str, str]:
    """A page's own address, its type and its text. `on_response` is called as soon as the server answers at all."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise Silence("its address begins with neither http:// nor https:// nor file://")
    try:
        with client.open(url, timeout=timeout, headers={"Accept": ACCEPT, "Accept-Encoding": "gzip"}) as response:
            on_response()
            data = response.read(PAGE)
            if response.headers.get("Content-Encoding", "").lower() == "gzip":
                with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
                    data = packed.read(PAGE)
            kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
            return response.geturl(), kind, data.decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403, 404, 410):
            raise Absent(denied=error.code < 404) from None
        raise Silence(f"it answers with error {error.code} ({error.reason})") from None
    except AgentError as error:
        raise Silence(error.reason) from None
    except (OSError, HTTPException, ValueError, EOFError, zlib.error) as error:
        raise Silence(explain(error)) from None


def links_of(address: str, kind: str, text: str) -> list[Json]:
    """The links of a page of an index, in either form, or of any page."""
    if kind.endswith("json"):
        try:
            return [
                {
                    "url": urljoin(address, item["url"]),
                    "sha256": (item.get("hashes") or {}).get("sha256"),
                    "size": item.get("size"),
                    "yanked": bool(item.get("yanked")),
                    "requires_python": item.get("requires-python"),
                }
                for item in json.loads(text)["files"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Silence("what it answers is no index's JSON") from None
    found = []
    for tag, inner in TAG.findall(text):
        values = {name.lower(): html.unescape(a or b or c) for name, a, b, c in ATTRIBUTE.findall(inner)}
        href = values.get("href", "").strip()
        if tag.lower() == "base":
            address = urljoin(address, href)
        elif ".whl" in href:
            url, fragment = urldefrag(urljoin(address, href))
            hashed = SHA256.search(fragment)
            found.append(
                {
                    "url": url,
                    "sha256": hashed.group(1).lower() if hashed else None,
                    "size": None,
                    "yanked": "data-yanked" in values,
                    "requires_python": values.get("data-requires-python"),
                }
            )
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def wheels(links: Iterable[Json]) -> list[Json]:
    """Those that are wheels for Linux on x86_64, with project and version."""
    found = []
    for link in links:
        filename = unquote(urlsplit(link["url"]).path.rpartition("/")[2])
        parts = filename[:-4].split("-")
        if not filename.endswith(".whl") or len(parts) not in (5, 6):
            continue
        if any(re.fullmatch(r"any|(many)?linux\w*_x86_64", tag) for tag in parts[-1].split(".")):
            found.append(dict(link, filename=filename, project=normal(parts[0]), version=parts[1]))
    return found


def local_path(url: str) -> Path | None:
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in url else Path(url).expanduser()


def on_disk(path: Path) -> list[Json]:
    """A page on disk, or the wheels of a directory, as links."""
    try:
        if path.is_file():
            return links_of(path.absolute().as_uri(), "html", path.read_text(encoding="utf-8", errors="replace"))
        files = [file for file in sorted(path.iterdir()) if file.name.endswith(".whl") and file.is_file()]
    except FileNotFoundError:
        raise Silence("no such directory") from None
    except OSError as error:
        raise Silence(str(error.strerror or error).lower()) from None
    none = {"sha256": None, "yanked": False, "requires_python": None}
    return [dict(none, url=file.absolute().as_uri(), size=file.stat().st_size) for file in files]


class Asking:
    """One source and what it says, as far as it came."""

    def __init__(self, source: Json, projects: list[str], client: HttpClient, timeout: float) -> None:
        self.source = source
        self.projects = projects
        self.client = client
        self.timeout = timeout
        self.found: dict[str, list[Json]] = {}
        self.reason: str | None = None
        self.heard = False
        self.first = threading.Event()
        self.done = threading.Event()

    def run(self) -> None:
        try:
            if self.source["kind"] == "links":
                self.links()
            else:
                self.index()
        except Silence as silence:
            self.reason = str(silence)
        except Absent as absent:
            self.reason = "needs a login" if absent.denied else "no such page (404)"
        except Exception as error:  # noqa: BLE001 - one odd source must not end the rest
            self.reason = f"what it answers can't be read ({type(error).__name__}: {error})"
        self.first.set()
        self.done.set()

    def links(self) -> None:
        path = local_path(self.source["url"])
        found = wheels(
            links_of(*read_page(self.client, self.source["url"], self.timeout)) if path is None else on_disk(path)
        )
        for project in self.projects:
            self.found[project] = [item for item in found if item["project"] == project]

    def index(self) -> None:
        path = local_path(self.source["url"])
        if path is not None and not path.is_dir():
            raise Silence("no such directory")
        denied = 0
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for project, answer in zip(self.projects, pool.map(self.one, self.projects)):
                if isinstance(answer, Silence):
                    raise answer
                denied += isinstance(answer, Absent) and answer.denied
                found = [] if isinstance(answer, Absent) else answer
                self.found[project] = [item for item in found if item["project"] == project]
        # Stores of files say 403 for what they don't have; only where nothing else is heard is it a closed door.
        if self.projects and denied == len(self.projects):
            raise Absent(denied=True)

    def one(self, project: str) -> list[Json] | Silence | Absent:
        if self.reason:
            return Silence(self.reason)
        try:
            path = local_path(self.source["url"])
            if path is None:
                place = f"{self.source['url'].rstrip('/')}/{project}/"
                found = links_of(*read_page(self.client, place, self.timeout, self.first.set))
            else:
                page = path / project / "index.html"
                found = on_disk(page) if page.is_file() else []
            self.heard = True
            return wheels(found)
        except Absent as absent:
            self.heard = True
            return absent
        except Silence as silence:
            if not self.reason:
                self.reason = f"it answers for others, but {project}: {silence}" if self.heard else str(silence)
            return Silence(self.reason)
        finally:
            self.first.set()


def ask(request: Json, _: BinaryIO) -> Json:
    timeout = float(request.get("timeout") or 5)
    client = HttpClient(read_settings(request.get("settings") or {}))
    projects = [normal(project) for project in request["projects"]]
    asked = [Asking(source, projects, client, timeout) for source in request["sources"]]
    began = time.monotonic()
    for asking in asked:
        threading.Thread(target=asking.run, daemon=True).start()
    candidates: dict[str, list[Json]] = {project: [] for project in projects}
    answered, silent = [], []
    for asking in asked:
        label, reason = asking.source["label"], None
        if not asking.first.wait(max(0.0, began + timeout - time.monotonic())):
            reason = f"no answer within {timeout:g} s"
        elif not asking.done.wait(max(0.0, began + 3 * timeout - time.monotonic())):
            reason = f"slow: {len(asking.found)} of {len(projects)} answers within {3 * timeout:g} s"
        reason = reason or asking.reason
        if reason:
            silent.append({"source": label, "reason": reason})
            continue
        answered.append(label)
        for project in projects:
            candidates[project] += [dict(item, source=label) for item in asking.found.get(project, ())]
    return {"candidates": candidates, "answered": answered, "silent": silent, "logins": client.logins}


def main(action: str) -> int:
    code = answer({"ask": ask}[action])
    # Threads that still wait for a source that was given up are not waited for.
    os._exit(code)

"""Asks package indexes and pages of links for wheels, all at once, with this host's pip settings.

A hanging source does not delay the others. Only wheels for Linux on x86_64 count. A reply may contain logins for later
downloads, so it must not be logged.
"""

from __future__ import annotations

import gzip
import html
import io
import os
import re
import threading
import urllib.error
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO, Callable, Iterable, Literal, Mapping, NamedTuple, TypedDict
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from ipexctl.node.common.answer import AgentError, Json, answer
from ipexctl.node.common.clock import Countdown, stretched
from ipexctl.node.common.http import HttpClient, HttpSettings, explain
from ipexctl.node.common.json_records import parse_json
from ipexctl.node.env.check import normalize
from ipexctl.node.env.env_replies import AvailableWheel, QueryReply, SourceFailure
from ipexctl.node.env.environments import HYDRA, intel_mpi_version

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
MAX_PAGE = 64 << 20
MAX_PARALLEL = 4
TAG = re.compile(r"<(a|base)\s((?:\"[^\"]*\"|'[^']*'|[^'\">])*)>", re.IGNORECASE)
ATTRIBUTE = re.compile(r"([a-zA-Z-]+)(?:\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s'\"]+)))?")
ONECCL_LIBRARY = re.compile(r"/libccl\.so[.\d]*$")
SHA256 = re.compile(r"(?:^|&)sha256=([0-9a-fA-F]{64})")
SDIST = re.compile(r"\.(?:tar\.gz|zip)(?:$|#)")
BINDINGS = "oneccl-bind-pt"


class SourceRequest(TypedDict):
    kind: Literal["index", "links", "explicit"]
    """`links`: a directory or a page of links. `explicit`: for uv, an index for named packages alone."""
    url: str
    label: str


class QueryRequest(TypedDict):
    projects: list[str]
    sources: list[SourceRequest]
    settings: HttpSettings
    timeout: float
    sdists: bool


class SizesRequest(TypedDict):
    urls: list[str]
    settings: HttpSettings
    logins: Mapping[str, str]
    timeout: float


class FileLink(NamedTuple):
    url: str
    sha256: str | None = None
    size: int | None = None
    yanked: bool = False
    requires_python: str | None = None
    mpi: str | None = None
    oneccl: bool | None = None


class SourceUnusable(Exception):
    """Raised if a source can't be used; the text is the reason."""


class ProjectMissing(Exception):
    """`denied`: the status is 401 or 403, as some sources send for a missing project."""

    def __init__(self, denied: bool = False) -> None:
        super().__init__()
        self.denied = denied


def read_page(
    client: HttpClient, url: str, timeout: float, on_response: Callable[[], None] = lambda: None
) -> tuple[str, str, str]:
    """Read a page; returns its URL, type and text."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise SourceUnusable("its address begins with neither http:// nor https:// nor file://")
    try:
        client.check_encryption(url)
        with client.open(url, timeout=timeout, headers={"Accept": ACCEPT, "Accept-Encoding": "gzip"}) as response:
            on_response()
            data = response.read(MAX_PAGE)
            if response.headers.get("Content-Encoding", "").lower() == "gzip":
                with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
                    data = packed.read(MAX_PAGE)
            kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
            return response.geturl(), kind, data.decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403, 404, 410):
            raise ProjectMissing(denied=error.code < 404) from None
        raise SourceUnusable(f"it answers with error {error.code} ({error.reason})") from None
    except AgentError as error:
        raise SourceUnusable(error.reason) from None
    except (OSError, HTTPException, ValueError, EOFError, zlib.error) as error:
        proxy = client.proxy_for(url)
        raise SourceUnusable(explain(error) + (f", through the proxy {proxy}" if proxy else "")) from None


def links_of(address: str, kind: str, text: str) -> list[FileLink]:
    if kind.endswith("json"):
        try:
            return [
                FileLink(
                    urljoin(address, item["url"]),
                    sha256=(item.get("hashes") or {}).get("sha256"),
                    size=item.get("size"),
                    yanked=bool(item.get("yanked")),
                    requires_python=item.get("requires-python"),
                )
                for item in parse_json(text)["files"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SourceUnusable("its answer is not an index's JSON") from None
    found_links = []
    for tag, inner in TAG.findall(text):
        values = {name.lower(): html.unescape(a or b or c) for name, a, b, c in ATTRIBUTE.findall(inner)}
        href = values.get("href", "").strip()
        if tag.lower() == "base":
            address = urljoin(address, href)
        elif ".whl" in href or SDIST.search(href):
            url, fragment = urldefrag(urljoin(address, href))
            hashed = SHA256.search(fragment)
            found_links.append(
                FileLink(
                    url,
                    sha256=hashed.group(1).lower() if hashed else None,
                    yanked="data-yanked" in values,
                    requires_python=values.get("data-requires-python"),
                )
            )
    return found_links


def wheels(links: Iterable[FileLink], source: str) -> list[AvailableWheel]:
    found = []
    for link in links:
        filename = unquote(urlsplit(link.url).path.rpartition("/")[2])
        parts = filename[:-4].split("-")
        if not filename.endswith(".whl") or len(parts) not in (5, 6):
            continue
        if any(re.fullmatch(r"any|(many)?linux\w*_x86_64", tag) for tag in parts[-1].split(".")):
            found.append(AvailableWheel(normalize(parts[0]), parts[1], filename, source, **link._asdict()))
    return found


def sdists(links: Iterable[FileLink], source: str) -> list[AvailableWheel]:
    found = []
    for link in links:
        filename = unquote(urlsplit(link.url).path.rpartition("/")[2])
        if SDIST.search(filename):
            project, _, version = SDIST.sub("", filename).rpartition("-")
            found.append(AvailableWheel(normalize(project), version, filename, source, **link._asdict()))
    return found


def local_path(url: str) -> Path | None:
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in url else Path(os.path.expanduser(url))  # noqa: PTH111  # Path.expanduser raises without a home


def local_links(path: Path) -> list[FileLink]:
    try:
        if path.is_file():
            return links_of(path.absolute().as_uri(), "html", path.read_text(encoding="utf-8", errors="replace"))
        files = [file for file in sorted(path.iterdir()) if file.name.endswith(".whl") and file.is_file()]
    except FileNotFoundError:
        raise SourceUnusable("no such directory") from None
    except OSError as error:
        raise SourceUnusable(str(error.strerror or error).lower()) from None
    links = []
    for file in files:
        mpi, oneccl = inside_bindings(file)
        links.append(FileLink(file.absolute().as_uri(), size=file.stat().st_size, mpi=mpi, oneccl=oneccl))
    return links


def inside_bindings(wheel: Path) -> tuple[str | None, bool | None]:
    """Version of the Intel MPI in a bindings wheel (empty without one), and whether it has oneCCL; None if unknown."""
    if normalize(wheel.name.partition("-")[0]) != BINDINGS:
        return None, None
    try:
        with zipfile.ZipFile(str(wheel)) as archive:
            entries = archive.infolist()
            oneccl = any(ONECCL_LIBRARY.search(entry.filename) for entry in entries)
            program = next((entry for entry in entries if entry.filename.endswith(f"/{HYDRA}")), None)
            if program is None:
                return "", oneccl
            with archive.open(program) as file:
                return intel_mpi_version(file), oneccl
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        return None, None


class SourceQuery(threading.Thread):
    def __init__(
        self, source: SourceRequest, projects: list[str], client: HttpClient, timeout: float, sdists: bool
    ) -> None:
        super().__init__(daemon=True)
        self.source = source
        self.projects = projects
        self.client = client
        self.timeout = timeout
        self.sdists = sdists
        self.results: dict[str, list[AvailableWheel]] = {}
        self.reason: str | None = None
        self.has_replied = False
        self.responded = threading.Event()

    def run(self) -> None:
        try:
            if self.source["kind"] == "links":
                self.query_links_page()
            else:
                self.query_index()
        except SourceUnusable as error:
            self.reason = str(error)
        except ProjectMissing as missing:
            self.reason = "needs a login" if missing.denied else "no such page (404)"
        except Exception as error:  # noqa: BLE001 - an error of one source must not end the others
            self.reason = f"its answer can't be read ({type(error).__name__}: {error})"
        self.responded.set()

    def query_links_page(self) -> None:
        url = self.source["url"]
        path = local_path(url)
        links = links_of(*read_page(self.client, url, self.timeout)) if path is None else local_links(path)
        found = wheels(links, self.source["label"])
        for project in self.projects:
            self.results[project] = [item for item in found if item.project == project]

    def query_index(self) -> None:
        path = local_path(self.source["url"])
        if path is not None and not path.is_dir():
            raise SourceUnusable("no such directory")
        denied = 0
        with ThreadPoolExecutor(MAX_PARALLEL) as pool:
            for project, (found, is_denied) in zip(self.projects, pool.map(self.query_project, self.projects)):
                denied += is_denied
                self.results[project] = [item for item in found if item.project == project]
        # File stores send 403 for a missing file. The source needs a login only if all replies are 403.
        if self.projects and denied == len(self.projects):
            raise ProjectMissing(denied=True)

    def query_project(self, project: str) -> tuple[list[AvailableWheel], bool]:
        """Wheels of a project, and whether the source denies access to it."""
        if self.reason:
            raise SourceUnusable(self.reason)
        try:
            path = local_path(self.source["url"])
            if path is None:
                page_url = f"{self.source['url'].rstrip('/')}/{project}/"
                links = links_of(*read_page(self.client, page_url, self.timeout, self.responded.set))
            else:
                page = path / project / "index.html"
                links = local_links(page) if page.is_file() else []
            self.has_replied = True
            label = self.source["label"]
            return wheels(links, label) + (sdists(links, label) if self.sdists else []), False
        except ProjectMissing as missing:
            self.has_replied = True
            return [], missing.denied
        except SourceUnusable as error:
            if not self.reason:
                self.reason = f"it answers, but not for {project}: {error}" if self.has_replied else str(error)
            raise SourceUnusable(self.reason) from None
        finally:
            self.responded.set()


def query_sources(request: QueryRequest, _: BinaryIO) -> QueryReply:
    timeout = stretched(request["timeout"])
    client = HttpClient(request["settings"])
    projects = [normalize(project) for project in request["projects"]]
    queries = [SourceQuery(each, projects, client, timeout, request["sdists"]) for each in request["sources"]]
    first = Countdown(timeout)
    for query in queries:
        query.start()
    candidates: dict[str, list[AvailableWheel]] = {project: [] for project in projects}
    answered, failures = [], []
    for query in queries:
        label, reason = query.source["label"], None
        if not query.responded.wait(first.left):
            reason = f"no answer within {timeout:g} s"
        else:
            count = -1
            while query.is_alive() and len(query.results) > count:
                count = len(query.results)
                query.join(3 * timeout)
            if query.is_alive():
                reason = f"no more than {count} of {len(projects)} answers, and then none for {3 * timeout:g} s"
        reason = reason or query.reason
        if reason:
            failures.append(SourceFailure(label, reason, query.has_replied))
            continue
        answered.append(label)
        for project in projects:
            candidates[project] += query.results.get(project, ())
    found = {project: tuple(items) for project, items in candidates.items()}
    return QueryReply(found, tuple(answered), tuple(failures), client.logins)


def size_of(client: HttpClient, url: str, timeout: float) -> int | None:
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


def sizes(request: SizesRequest, _: BinaryIO) -> Json:
    client = HttpClient(request["settings"], request["logins"])
    with ThreadPoolExecutor(2 * MAX_PARALLEL) as pool:
        results = pool.map(lambda url: size_of(client, url, request["timeout"]), request["urls"])
        return {"sizes": {url: size for url, size in zip(request["urls"], results) if size is not None}}


def main(action: str) -> int:
    code = answer({"ask": query_sources, "sizes": sizes}[action])
    # Do not wait for threads of sources that timed out.
    os._exit(code)

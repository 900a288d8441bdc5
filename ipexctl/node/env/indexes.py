"""Ask package indexes, pages of links and directories for wheels, all at once.

- A source is an index, a page of links or a directory. Each has its own thread, so one that hangs does not delay the
  others; the process does not wait for such a thread when it exits.
- Only wheels for Linux on x86_64, and wheels for any machine, count.
- A reply may contain logins for later downloads, so it must not be logged.
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
"""Bytes read of a page."""
MAX_PARALLEL = 4
"""Requests to one index at once."""
TAG = re.compile(r"<(a|base)\s((?:\"[^\"]*\"|'[^']*'|[^'\">])*)>", re.IGNORECASE)
ATTRIBUTE = re.compile(r"([a-zA-Z-]+)(?:\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s'\"]+)))?")
ONECCL_LIBRARY = re.compile(r"/libccl\.so[.\d]*$")
SHA256 = re.compile(r"(?:^|&)sha256=([0-9a-fA-F]{64})")
SDIST = re.compile(r"\.(?:tar\.gz|zip)(?:$|#)")
BINDINGS = "oneccl-bind-pt"


class SourceRequest(TypedDict):
    """A source to ask: an index, a page of links or a directory."""

    kind: Literal["index", "links", "explicit"]
    """`links`: a directory or a page of links. `explicit`: for uv, an index for named packages alone."""
    url: str
    """URL, or path of a directory."""
    label: str
    """Its name in messages, without a login."""


class QueryRequest(TypedDict):
    """Request to ask sources for packages."""

    projects: list[str]
    """Names of packages."""
    sources: list[SourceRequest]
    settings: HttpSettings
    timeout: float
    """Seconds until a source must have answered for the first time."""
    sdists: bool
    """True to list source archives, too."""


class SizesRequest(TypedDict):
    """Request to ask servers for the sizes of files."""

    urls: list[str]
    settings: HttpSettings
    logins: Mapping[str, str]
    """Origin → value of the Authorization header."""
    timeout: float
    """Seconds for the answer of a server."""


class FileLink(NamedTuple):
    """A file that a page or a directory has. None: the source does not say."""

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
    """Raised if a source has no page for a package. `denied`: it answered 401 or 403, as some do in place of 404."""

    def __init__(self, denied: bool = False) -> None:
        super().__init__()
        self.denied = denied


def read_page(
    client: HttpClient, url: str, timeout: float, on_response: Callable[[], None] = lambda: None
) -> tuple[str, str, str]:
    """Return a page's URL after redirects, its type and its text. `on_response` is called when the answer begins.

    Raises a ProjectMissing if there is no such page, and a SourceUnusable for any other failure.
    """
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
    """Return the files that a page of an index names, as JSON or HTML. Raises a SourceUnusable for other JSON.

    `address`: the page's own, for relative links. `kind`: its Content-Type.
    """
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
    links = []
    for tag, inner in TAG.findall(text):
        attributes = ATTRIBUTE.findall(inner)  # a value is in double quotes, in single quotes, or in none
        values = {name.lower(): html.unescape(double or single or bare) for name, double, single, bare in attributes}
        href = values.get("href", "").strip()
        if tag.lower() == "base":
            address = urljoin(address, href)
        elif ".whl" in href or SDIST.search(href):
            url, fragment = urldefrag(urljoin(address, href))
            hashed = SHA256.search(fragment)
            links.append(
                FileLink(
                    url,
                    sha256=hashed.group(1).lower() if hashed else None,
                    yanked="data-yanked" in values,
                    requires_python=values.get("data-requires-python"),
                )
            )
    return links


def wheels(links: Iterable[FileLink], source: str) -> list[AvailableWheel]:
    """Return the wheels for this kind of machine among the files. `source`: label of the source."""
    usable = []
    for link in links:
        filename = unquote(urlsplit(link.url).path.rpartition("/")[2])
        parts = filename[:-4].split("-")
        if not filename.endswith(".whl") or len(parts) not in (5, 6):
            continue
        if any(re.fullmatch(r"any|(many)?linux\w*_x86_64", tag) for tag in parts[-1].split(".")):
            usable.append(AvailableWheel(normalize(parts[0]), parts[1], filename, source, **link._asdict()))
    return usable


def sdists(links: Iterable[FileLink], source: str) -> list[AvailableWheel]:
    """Return the source archives among the files. `source`: label of the source."""
    archives = []
    for link in links:
        filename = unquote(urlsplit(link.url).path.rpartition("/")[2])
        if SDIST.search(filename):
            project, _, version = SDIST.sub("", filename).rpartition("-")
            archives.append(AvailableWheel(normalize(project), version, filename, source, **link._asdict()))
    return archives


def local_path(url: str) -> Path | None:
    """Return the path of a `file:` URL, or of text that is no URL; None for any other URL."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in url else Path(os.path.expanduser(url))  # noqa: PTH111  # Path.expanduser raises without a home


def local_links(path: Path) -> list[FileLink]:
    """Return the wheels of a directory, or the links of an HTML file. Raises a SourceUnusable if it can't be read."""
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
    """Return the version of the Intel MPI in a wheel of the oneCCL bindings, and whether it contains oneCCL.

    The version is empty if the wheel has no MPI. Both are None for other packages, and for a wheel that can't be read.
    """
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
    """Asks one source for all packages. `query_sources` reads the fields while it runs, and after it."""

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
        """Package → its wheels; complete once the thread has ended."""
        self.reason: str | None = None
        """Why the source can't be used; None if it can."""
        self.has_replied = False
        """True once the source answered for a package, also that it does not have it."""
        self.responded = threading.Event()
        """Set when the first answer begins, and at the end."""

    def run(self) -> None:
        """Ask the source for all packages. Nothing is raised: a source that can't be used has a `reason` then."""
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
        """Read a page of links or a directory once, and keep the wheels of each package. Raises a SourceUnusable or a
        ProjectMissing if it can't be read."""
        url = self.source["url"]
        path = local_path(url)
        links = links_of(*read_page(self.client, url, self.timeout)) if path is None else local_links(path)
        all_wheels = wheels(links, self.source["label"])
        for project in self.projects:
            self.results[project] = [wheel for wheel in all_wheels if wheel.project == project]

    def query_index(self) -> None:
        """Ask an index for each package. Raises a ProjectMissing if it denies access to all of them."""
        path = local_path(self.source["url"])
        if path is not None and not path.is_dir():
            raise SourceUnusable("no such directory")
        denied = 0
        with ThreadPoolExecutor(MAX_PARALLEL) as pool:
            for project, (files, is_denied) in zip(self.projects, pool.map(self.query_project, self.projects)):
                denied += is_denied
                self.results[project] = [file for file in files if file.project == project]
        # File stores send 403 for a missing file. The source needs a login only if all replies are 401 or 403.
        if self.projects and denied == len(self.projects):
            raise ProjectMissing(denied=True)

    def query_project(self, project: str) -> tuple[list[AvailableWheel], bool]:
        """Return the wheels of a package (with `sdists`, its archives, too), and whether the source denies access.

        Raises a SourceUnusable if the source can't be used, also if another request has found this out.
        """
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
    """Ask all sources for all packages.

    A source must begin to answer within the timeout, and afterwards complete a package at least every three timeouts.
    The wheels of a package come in the order of the sources in the request.
    """
    timeout = stretched(request["timeout"])
    client = HttpClient(request["settings"])
    projects = [normalize(project) for project in request["projects"]]
    queries = [SourceQuery(source, projects, client, timeout, request["sdists"]) for source in request["sources"]]
    first_answer = Countdown(timeout)
    for query in queries:
        query.start()
    candidates: dict[str, list[AvailableWheel]] = {project: [] for project in projects}
    answered, failures = [], []
    for query in queries:
        label, reason = query.source["label"], None
        if not query.responded.wait(first_answer.left):
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
    wheels_of = {project: tuple(wheels) for project, wheels in candidates.items()}
    return QueryReply(wheels_of, tuple(answered), tuple(failures), client.logins)


def size_of(client: HttpClient, url: str, timeout: float) -> int | None:
    """Return the bytes of a file on a server; None if the server does not say.

    Some servers do not answer HEAD, so the first byte is requested next.
    """
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
    """Return `sizes`: URL → bytes, without the URLs whose size is unknown."""
    client = HttpClient(request["settings"], request["logins"])
    with ThreadPoolExecutor(2 * MAX_PARALLEL) as pool:
        results = pool.map(lambda url: size_of(client, url, request["timeout"]), request["urls"])
        return {"sizes": {url: size for url, size in zip(request["urls"], results) if size is not None}}


def main(action: str) -> int:
    """Answer a call of `env.indexes`: ask sources for packages, or for sizes of files."""
    code = answer({"ask": query_sources, "sizes": sizes}[action])
    # Do not wait for threads of sources that timed out.
    os._exit(code)

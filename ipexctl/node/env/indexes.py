"""Which index has what, as pip on this machine would see it: indexes and pages of links are asked, all at once.

No wheel is fetched here. An answer of `ask` may hold logins for whoever fetches: it goes into no log.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import netrc
import os
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterable
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

from ipexctl.node.common.answer import answer

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
PAGE = 64 << 20
AT_ONCE = 4
BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")
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


class Redirects(urllib.request.HTTPRedirectHandler):
    """As pip's: the login goes along on the same server only, and https never becomes http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(req.full_url).scheme == "https" and urlsplit(newurl).scheme != "https":
            raise Silence("it redirects from https to something else")
        made = super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)
        login = req.unredirected_hdrs.get("Authorization")
        if made is not None and login and origin(newurl) == origin(req.full_url):
            made.add_unredirected_header("Authorization", login)
        return made

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302


def origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


class Web:
    """Requests with the proxies, certificates and logins that pip would use."""

    def __init__(self, settings: Json) -> None:
        self.settings = settings
        self.logins: dict[str, str] = {}
        self._openers: dict[bool, urllib.request.OpenerDirector] = {}
        self._opening = threading.Lock()

    def login(self, url: str) -> tuple[str, str | None]:
        """The URL without its credentials, and what goes into Authorization."""
        parts = urlsplit(url)
        user, at, place = parts.netloc.rpartition("@")
        bare = urlunsplit(parts._replace(netloc=place))
        if at:
            name, _, password = user.partition(":")
            self.logins[origin(bare)] = basic(unquote(name), unquote(password))
        elif origin(bare) not in self.logins:
            found = from_netrc(parts.hostname or "")
            if found:
                self.logins[origin(bare)] = found
        return bare, self.logins.get(origin(bare))

    def opener(self, host: str) -> urllib.request.OpenerDirector:
        trusted = [word.rpartition("@")[2].partition(":")[0] for word in self.settings.get("trusted_hosts") or ()]
        with self._opening:  # reading all certificates takes a while, and everybody comes at once
            known = self._openers.get(host in trusted)
            if known is None:
                known = self._openers[host in trusted] = self._opener(verify=host not in trusted)
            return known

    def _opener(self, verify: bool) -> urllib.request.OpenerDirector:
        proxy = self.settings.get("proxy")
        proxies = urllib.request.ProxyHandler({"http": proxy, "https": proxy} if proxy else None)
        context = ssl.create_default_context()
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        bundle = self.settings.get("cert") or os.environ.get("SSL_CERT_FILE")
        try:
            for path in [bundle] if bundle else [known for known in BUNDLES if Path(known).exists()]:
                context.load_verify_locations(**{"capath" if Path(path).is_dir() else "cafile": path})
            if self.settings.get("client_cert"):
                context.load_cert_chain(self.settings["client_cert"])
        except OSError as error:
            raise Silence(f"the certificates pip is set to can't be read ({error.strerror or error})") from None
        return urllib.request.build_opener(proxies, urllib.request.HTTPSHandler(context=context), Redirects())

    def page(self, url: str, timeout: float, heard: Callable[[], None] = lambda: None) -> tuple[str, str, str]:
        """A page's own address, its type and its text. `heard` is called as soon as there is an answer at all."""
        bare, login = self.login(url)
        if urlsplit(bare).scheme not in ("http", "https"):
            raise Silence("its address begins with neither http:// nor https:// nor file://")
        headers = {"User-Agent": "ipexctl", "Accept": ACCEPT, "Accept-Encoding": "gzip"}
        request = urllib.request.Request(bare, headers=headers)  # noqa: S310 - looked at two lines above
        if login:
            request.add_unredirected_header("Authorization", login)
        try:
            with self.opener(urlsplit(bare).hostname or "").open(request, timeout=timeout) as answer:
                heard()
                data = answer.read(PAGE)
                if answer.headers.get("Content-Encoding", "").lower() == "gzip":
                    data = gzip.decompress(data)
                kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
                return answer.geturl(), kind, data.decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            if error.code in (401, 403, 404, 410):
                raise Absent(denied=error.code < 404) from None
            raise Silence(f"it answers with error {error.code} ({error.reason})") from None
        except HTTPException as error:
            raise Silence(f"it doesn't answer in HTTP ({type(error).__name__})") from None
        except (OSError, ValueError, EOFError) as error:
            raise Silence(reason_of(error)) from None


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def from_netrc(host: str) -> str | None:
    named = os.environ.get("NETRC")
    for path in [named] if named else ["~/.netrc", "~/_netrc"]:
        try:
            found = netrc.netrc(str(Path(path).expanduser())).authenticators(host)
        except (OSError, netrc.NetrcParseError, RuntimeError, ValueError):
            continue
        if found:
            return basic(found[0] or "", found[2] or "")
    return None


def reason_of(error: BaseException) -> str:
    """A network's error in words."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate can't be verified ({cause.verify_message})"
    if isinstance(cause, ssl.SSLError):
        return f"no TLS connection ({cause.reason or cause})"
    if isinstance(cause, socket.gaierror):
        return "its name can't be resolved"
    if isinstance(cause, socket.timeout):
        return "no answer in time"
    if isinstance(cause, ConnectionRefusedError):
        return "the connection is refused"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return str(cause) or type(cause).__name__


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

    def __init__(self, source: Json, projects: list[str], web: Web, timeout: float) -> None:
        self.source = source
        self.projects = projects
        self.web = web
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
        found = wheels(links_of(*self.web.page(self.source["url"], self.timeout)) if path is None else on_disk(path))
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
                found = links_of(*self.web.page(place, self.timeout, self.first.set))
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
    web = Web(request.get("settings") or {})
    projects = [normal(project) for project in request["projects"]]
    asked = [Asking(source, projects, web, timeout) for source in request["sources"]]
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
    return {"candidates": candidates, "answered": answered, "silent": silent, "logins": web.logins}


def main(action: str) -> int:
    code = answer({"ask": ask}[action])
    # Threads that still wait for a source that was given up are not waited for.
    os._exit(code)

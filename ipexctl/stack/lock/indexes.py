"""Where wheels may come from, and what is there: the sources of a call, pip's settings obeyed, asked on one machine.

Which of what they have is taken is decided elsewhere.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from ipexctl.errors import UserError
from ipexctl.remote.node_call import call
from ipexctl.stack.resolve.model import Availability, Candidate, Silent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.reply import Reply
    from ipexctl.remote.session import Session
    from ipexctl.stack.resolve.model import Sources

PYPI: Final = "https://pypi.org/simple"
TORCH_CPU: Final = "https://download.pytorch.org/whl/cpu"
INTEL_CPU: Final = "https://pytorch-extension.intel.com/release-whl/stable/cpu/us/"
INTEL_LINKS: Final = "https://developer.intel.com/ipex-whl-stable-cpu"
ANSWER_WITHIN: Final = 5.0


@dataclass(frozen=True, slots=True)
class Source:
    """One index, or one directory or page of links."""

    kind: Literal["index", "links"]
    url: str = field(repr=False)
    """May hold credentials: for requests to a node only."""
    label: str
    """What people are told: without credentials."""

    def to_json(self) -> dict[str, str]:
        return {"kind": self.kind, "url": self.url, "label": self.label}

    @property
    def directory(self) -> str | None:
        """Its path where it is on the disk of the machine that asks."""
        return directory_of(self.url)


PYPI_SOURCE: Final = Source("index", PYPI, "PyPI")
BESIDES: Final = (
    Source("index", TORCH_CPU, "PyTorch's CPU index"),
    Source("index", INTEL_CPU, "Intel's index"),
    Source("links", INTEL_LINKS, "Intel's older wheels"),
)
"""Asked besides PyPI or its stand-in, unless the call names the index itself."""


@dataclass(frozen=True, slots=True)
class PipSettings:
    """What pip is set to on one machine."""

    index_url: str | None = field(default=None, repr=False)
    extra_index_urls: tuple[str, ...] = field(default=(), repr=False)
    find_links: tuple[str, ...] = field(default=(), repr=False)
    no_index: bool = False
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = field(default=None, repr=False)
    unread: tuple[str, ...] = ()
    """Sentences: configuration files pip itself couldn't read."""

    def transport(self) -> dict[str, Any]:
        """How that machine gets at an index: for requests to its scripts only."""
        return {
            "trusted_hosts": list(self.trusted_hosts),
            "cert": self.cert,
            "client_cert": self.client_cert,
            "proxy": self.proxy,
        }


@dataclass(frozen=True, slots=True)
class IndexAnswer:
    """The answer of one machine's sources, and what is needed to take from them."""

    obtainable: Availability
    sources: tuple[Source, ...]
    """Those that answered, in their order."""
    settings: PipSettings
    logins: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """`https://host` → what goes into Authorization there. Goes into no log and no argv."""

    def headers_for(self, url: str) -> dict[str, str]:
        """What a request for that file must say besides."""
        login = self.logins.get(origin_of(url))
        return {"Authorization": login} if login else {}


def pip_settings(session: Session, python: str, *, timeout: float = 20, cancel: Cancel | None = None) -> PipSettings:
    """pip's settings of that machine; raises a HostError."""
    said = call(session, "env.pip_settings", "read", {}, python=python, timeout=timeout, cancel=cancel)
    return PipSettings(
        index_url=said.text_or_none("index_url"),
        extra_index_urls=said.optional_texts("extra_index_urls"),
        find_links=said.optional_texts("find_links"),
        no_index=bool(said.get("no_index")),
        trusted_hosts=said.optional_texts("trusted_hosts"),
        cert=said.text_or_none("cert"),
        client_cert=said.text_or_none("client_cert"),
        proxy=said.text_or_none("proxy"),
        unread=tuple(f"{item.text('path')}: {item.text('reason')}" for item in said.records("unread")),
    )


def sources_for(
    sources: Sources, settings: PipSettings, *, here: bool = True, besides: Iterable[Source] = BESIDES
) -> tuple[Source, ...]:
    """Whom to ask on a machine with these pip settings. `here`: it is this one, whose directories the call names."""
    named = (sources.wheelhouse, *sources.find_links) if sources.wheelhouse else sources.find_links
    links = [word for word in named if word and (here or directory_of(word) is None)]
    found = [_links(word) for word in (*links, *settings.find_links)]
    if sources.offline or settings.no_index:
        return _once(source for source in found if not sources.offline or source.directory is not None)
    if sources.index_url:
        indexes = [sources.index_url, *sources.extra_index_urls]
        named_links = [_links(word) for word in links]
        return _once([*(_index(url) for url in indexes), *named_links])
    first = _index(settings.index_url) if settings.index_url else PYPI_SOURCE
    extra = [_index(url) for url in (*sources.extra_index_urls, *settings.extra_index_urls)]
    return _once([first, *extra, *besides, *found])


def ask(
    session: Session,
    python: str,
    sources: Iterable[Source],
    projects: Iterable[str],
    settings: PipSettings,
    *,
    timeout: float = ANSWER_WITHIN,
    cancel: Cancel | None = None,
) -> IndexAnswer:
    """What these sources have of these projects, as that machine sees it; raises a HostError."""
    asked = tuple(sources)
    request = {
        "projects": sorted({normal(project) for project in projects}),
        "sources": [source.to_json() for source in asked],
        "settings": settings.transport(),
        "timeout": timeout,
    }
    said = call(session, "env.indexes", "ask", request, python=python, timeout=8 * timeout + 20, cancel=cancel)
    candidates = said.record("candidates")
    obtainable = Availability(
        {project: tuple(map(_candidate, candidates.records(project))) for project in candidates},
        said.texts("answered"),
        tuple(Silent(item.text("source"), item.text("reason")) for item in said.records("silent")),
    )
    answered = set(said.texts("answered"))
    logins = said.texts_by_name("logins") if said.get("logins") else {}
    return IndexAnswer(obtainable, tuple(s for s in asked if s.label in answered), settings, logins)


def unasked(sources: Sources, settings: PipSettings) -> IndexAnswer:
    """For a host's wheels of an older lock: no index is asked, but the logins of this call are used."""
    logins = {}
    for source in sources_for(sources, settings, here=False):
        user, at, _ = urlsplit(source.url).netloc.rpartition("@")
        if at:
            logins[origin_of(source.url)] = "Basic " + base64.b64encode(unquote(user).encode()).decode()
    return IndexAnswer(Availability({}, ()), (), settings, logins)


def wheelhouse(path: Path) -> Availability:
    """What a directory on this machine has; raises a UserError where it is none."""
    try:
        files = sorted(file for file in path.iterdir() if file.name.endswith(".whl"))
    except OSError as error:
        fix = "name a directory of wheels; `ipexctl install --download-only DIR` makes one"
        raise UserError(f"the wheelhouse {path} can't be read: {error.strerror or error}", fix=fix) from None
    found: dict[str, list[Candidate]] = {}
    for file in files:
        parts = file.name[:-4].split("-")
        if len(parts) in (5, 6) and re.search(r"(^|\.)(any|(many)?linux\w*_x86_64)(\.|$)", parts[-1]):
            project = normal(parts[0])
            made = Candidate(project, parts[1], file.name, str(path), size=file.stat().st_size)
            found.setdefault(project, []).append(made)
    return Availability({project: tuple(items) for project, items in found.items()}, (str(path),))


def joined(*parts: Availability) -> Availability:
    """What several machines or directories have between them, the first's first."""
    projects = dict.fromkeys(project for part in parts for project in part.candidates)
    return Availability(
        {project: tuple(item for part in parts for item in part.of(project)) for project in projects},
        tuple(label for part in parts for label in part.answered),
        tuple(silent for part in parts for silent in part.silent),
    )


def normal(project: str) -> str:
    """A project's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", project).lower()


def shown(url: str) -> str:
    """A URL for people: without credentials, also where they stand in a query."""
    parts = urlsplit(url)
    if not parts.scheme:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


def directory_of(word: str) -> str | None:
    """The path behind a word that names one on disk; None for a URL of the network."""
    if word.startswith("file:"):
        return unquote(urlsplit(word).path)
    return None if "://" in word else word


def _index(url: str) -> Source:
    if shown(url).rstrip("/") == PYPI:
        return Source("index", url, "PyPI")
    return Source("index", url, shown(url))


def _links(word: str) -> Source:
    path = directory_of(word)
    return Source("links", word, shown(word) if path is None else path)


def _once(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Each once, and no two of one name: a name is what an answer is known by."""
    found: dict[str, Source] = {}
    for source in sources:
        if any(source.url.rstrip("/") == other.url.rstrip("/") for other in found.values()):
            continue
        label, number = source.label, 2
        while label in found:
            label, number = f"{source.label} ({number})", number + 1
        found[label] = Source(source.kind, source.url, label)
    return tuple(found.values())


def _candidate(item: Reply) -> Candidate:
    return Candidate(
        project=item.text("project"),
        version=item.text("version"),
        filename=item.text("filename"),
        source=item.text("source"),
        size=item.integer_or_none("size"),
        yanked=bool(item.get("yanked")),
        requires_python=item.text_or_none("requires_python"),
        url=item.text_or_none("url"),
        sha256=item.text_or_none("sha256"),
    )

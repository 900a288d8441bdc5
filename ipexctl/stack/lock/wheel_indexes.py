"""Order the sources of wheels, which are the indexes and directories of a call and of pip's settings, and query them
from one machine.

The order matters, because uv also takes a project from the first index that has it. `--index-url` replaces all of them
but directories; `--offline` leaves only directories. Logins are never part of a URL that is logged or shown.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ipexctl.found_files import cache_directory
from ipexctl.limits import INDEX_ANSWER, INDEX_ANSWER_VALID, PATIENCE
from ipexctl.node.common.files import make_private_directory, read_json, write_json_atomically
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import decode
from ipexctl.node.common.urls import origin_of, strip_login
from ipexctl.node.env.env_replies import AvailableWheel, PipSettings, QueryReply, SourceFailure
from ipexctl.node.env.indexes import QueryRequest, SourceRequest
from ipexctl.remote.node_call import AgentPlace, call
from ipexctl.remote.session import Session
from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.model import Sources, StackPlan
from ipexctl.stack.resolve.reasons import no_intel_mpi

PYPI: Final = "https://pypi.org/simple"
TORCH_CPU: Final = "https://download.pytorch.org/whl/cpu"
INTEL_CPU: Final = "https://pytorch-extension.intel.com/release-whl/stable/cpu/us/"
INTEL_LINKS: Final = "https://developer.intel.com/ipex-whl-stable-cpu"
_STACK_HOSTS: Final = frozenset(urlsplit(url).hostname for url in (TORCH_CPU, INTEL_CPU))


@dataclass(frozen=True, slots=True)
class Source:
    """An index, a page of links or a directory of wheels."""

    kind: Literal["index", "links", "explicit"]
    """`explicit`: an index for the packages that are bound to it."""
    url: str = field(repr=False)
    """May hold credentials; goes to the agent only on stdin."""
    label: str
    """Text for users, without credentials."""

    def to_json(self) -> SourceRequest:
        """Return the source as the agent reads it. The URL may hold credentials, so it goes only to stdin."""
        return {"kind": self.kind, "url": self.url, "label": self.label}

    @property
    def is_of_stacks(self) -> bool:
        """True for the public indexes of PyTorch and Intel."""
        return self.kind == "index" and urlsplit(self.url).hostname in _STACK_HOSTS

    @property
    def directory(self) -> str | None:
        """Return the path if this is a directory of wheels; None if it is a URL."""
        return directory_of(self.url)


PYPI_SOURCE: Final = Source("index", PYPI, "PyPI")
STACK_SOURCES: Final = (
    Source("index", TORCH_CPU, "PyTorch's CPU index"),
    Source("index", INTEL_CPU, "Intel's index"),
    Source("links", INTEL_LINKS, "Intel's older wheels"),
)
"""Sources queried in addition to PyPI or its mirror, unless --index-url is given."""


@dataclass(frozen=True, slots=True)
class IndexAnswer:
    """What one machine learned from the sources."""

    availability: Availability
    sources: tuple[Source, ...]
    """Those that answered for all projects."""
    settings: PipSettings
    """Settings of pip on the machine that asked."""
    logins: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """`https://host` → its Authorization header. A secret: never in a log or argv."""
    is_for_node0: bool = False
    """True for the control machine's answer if an install would take node0's instead of it."""

    @property
    def has_index(self) -> bool:
        """True if an index answered. Directories, pages of links and indexes of single packages do not count."""
        return any(source.kind == "index" for source in self.sources)

    def headers_for(self, url: str) -> dict[str, str]:
        """Return the headers that log in at the server of this URL; empty if no login is known."""
        login = self.logins.get(origin_of(url))
        return {"Authorization": login} if login else {}


def pip_settings(session: Session, python: str) -> PipSettings:
    """Return the settings of pip on the session's machine, from its configuration files and PIP_ variables."""
    return call(session, "env.pip_settings", "read", {}, AgentPlace(python), silence=PATIENCE).decode(PipSettings)


def sources_for(
    sources: Sources, settings: PipSettings, *, here: bool = True, besides: Iterable[Source] = STACK_SOURCES
) -> tuple[Source, ...]:
    """Return the sources to query, each once. Indexes come first, in the order of the call, pip's settings and the
    table, with PyPI as the last of them; then the stacks' public ones; directories and pages come last.

    `--index-url` replaces all but the call's own sources. `here`: True if the machine that asks is the control machine;
    only it can read directories that the call names. `besides`: indexes of the stacks.
    """
    named = (sources.wheelhouse, *sources.find_links) if sources.wheelhouse else sources.find_links
    links = [location for location in named if location and (here or directory_of(location) is None)]
    pages = [_links(location) for location in (*links, *settings.find_links)]
    if sources.offline or settings.no_index:
        return _once(source for source in pages if not sources.offline or source.directory is not None)
    if sources.index_url:
        return _once([*_pypi_last((*sources.extra_index_urls, sources.index_url)), *map(_links, links)])
    extra = (*sources.extra_index_urls, *settings.extra_index_urls)
    of_rows = [source for source in besides if source.kind == "index" and not source.is_of_stacks]
    indexes = _pypi_last((*extra, *(source.url for source in of_rows), settings.index_url or PYPI))
    return _once([*indexes, *(source for source in besides if source not in of_rows), *pages])


def plain_url(url: str) -> str:
    """Return the URL by which indexes are compared and shown: without a login and a trailing slash."""
    return strip_login(url).rstrip("/") if "://" in url else url


def is_for_hosts(marker: str, *pythons: str) -> bool:
    """True if the marker holds on a host, with one of these Pythons or, if none is given, with any. A marker that can't
    be evaluated counts as true."""
    linux = {"platform_machine": "x86_64", "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    versions = pythons or [f"3.{minor}" for minor in range(8, 20)]
    places = ({**linux, "python_version": version, "python_full_version": f"{version}.0"} for version in versions)
    try:
        return not marker or any(map(Marker(marker).evaluate, places))
    except ValueError:  # also of comparisons that make no sense
        return True


def call_labels(sources: Sources) -> frozenset[str]:
    """Return the labels of the indexes that the call names, without PyPI and the public indexes of stacks. The call
    fails if one of them does not answer."""
    urls = (*sources.extra_index_urls, *([sources.index_url] if sources.index_url else ()))
    named = map(_index, urls)
    return frozenset(source.label for source in named if source.label != "PyPI" and not source.is_of_stacks)


def lacks_answer_about_mpi(plan: StackPlan, availability: Availability) -> tuple[str, str] | None:
    """Return problem and fix if hosts lack an MPI, no index that answered has one, and an index did not answer; else
    None. Pure."""
    silent = silent_index(availability)
    notes = [note.fields for note in plan.notes if note.kind is no_intel_mpi]
    lacking = next((fields for fields in notes if not fields["every_host_has_mpi"]), None)
    if silent is None or lacking is None:
        return None
    reason = f"{silent.source} gave no answer ({silent.reason}), and the other indexes have no {lacking['requirement']}"
    fix = Fix(
        "run the same command again; to do without it: --offline with --find-links DIR, then `ipexctl run --mpi PATH`"
    )
    return f"{reason}, which the hosts need for an mpirun", fix


def silent_index(availability: Availability) -> SourceFailure | None:
    """Return an index that did not answer; None if all did. PyTorch's and Intel's indexes do not count, because they
    have only torch and its extensions."""
    of_stacks = {source.label for source in STACK_SOURCES if source.is_of_stacks}
    others = (failure for failure in availability.failures if failure.source not in of_stacks)
    return next((failure for failure in others if urlsplit(failure.source).hostname not in _STACK_HOSTS), None)


def lock_sources(answer: IndexAnswer) -> tuple[Source, ...]:
    """Return the sources for uv, which takes a project from the first index that has it.

    A stack's index is replaced by the pages of the queried projects that it has: uv adds pages to the project's first
    index.
    """
    for_uv: list[Source] = []
    for source in answer.sources:
        if not source.is_of_stacks:
            for_uv.append(source)
            continue
        for project, candidates in answer.availability.candidates.items():
            if any(candidate.source == source.label for candidate in candidates):
                page = f"{source.url.rstrip('/')}/{project}/"
                for_uv.append(Source("links", page, f"{source.label}: {project}"))
    return tuple(for_uv)


def query_indexes(
    session: Session,
    python: str,
    sources: Iterable[Source],
    projects: Iterable[str],
    settings: PipSettings,
    *,
    timeout: float = INDEX_ANSWER,
    sdists: bool = False,
) -> IndexAnswer:
    """Query the sources for these projects, with `sdists` also for source archives. The `sources` of the answer are
    only those that answered for all projects. Raises a HostError."""
    queried = tuple(sources)
    request: QueryRequest = {
        "projects": sorted(set(map(canonicalize_name, projects))),
        "sources": [source.to_json() for source in queried],
        "settings": settings.transport(),
        "timeout": timeout,
        "sdists": sdists,
    }
    done = call(session, "env.indexes", "ask", request, AgentPlace(python))
    reply = done.decode(QueryReply)
    candidates = {
        project: _from_first_index_with_version(wheels, queried) for project, wheels in reply.candidates.items()
    }
    availability = Availability(candidates, reply.answered, reply.failures)
    answered = tuple(source for source in queried if source.label in reply.answered)
    return IndexAnswer(availability, answered, settings, reply.logins)


def unqueried(sources: Sources, settings: PipSettings) -> IndexAnswer:
    """Return an answer for an older lock: it comes without a query, and only has the logins of this call."""
    logins = {}
    for source in sources_for(sources, settings, here=False):
        user, at, _ = urlsplit(source.url).netloc.rpartition("@")
        if at:
            logins[origin_of(source.url)] = "Basic " + base64.b64encode(unquote(user).encode()).decode()
    return IndexAnswer(Availability({}, ()), (), settings, logins)


def directory_of(location: str) -> str | None:
    """Return the path of a directory that is given as such or as a file: URL; None for any other URL."""
    if location.startswith("file:"):
        return unquote(urlsplit(location).path)
    return None if "://" in location else location


def _from_first_index_with_version(
    found: tuple[AvailableWheel, ...], sources: Iterable[Source]
) -> tuple[AvailableWheel, ...]:
    """Drop a version's candidates from later indexes, because uv would not find them. Pure."""
    own = [source.label for source in sources if source.kind == "index" and not source.is_of_stacks]
    first: dict[str, str] = {}
    for label in own:
        for candidate in found:
            if candidate.source == label:
                first.setdefault(candidate.version, label)
    return tuple(
        candidate for candidate in found if candidate.source not in own or first[candidate.version] == candidate.source
    )


def _pypi_last(urls: Iterable[str]) -> list[Source]:
    return sorted(map(_index, urls), key=lambda source: source.label == "PyPI")


def _index(url: str) -> Source:
    if strip_login(url).rstrip("/") == PYPI:
        return PYPI_SOURCE if url == PYPI else Source("index", url, "PyPI")
    return Source("index", url, strip_login(url))


def _links(location: str) -> Source:
    path = directory_of(location)
    return Source("links", location, strip_login(location) if path is None else path)


def _once(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Drop duplicates and make labels unique, because answers are matched by label."""
    by_label: dict[str, Source] = {}
    for source in sources:
        if any(source.url.rstrip("/") == other.url.rstrip("/") for other in by_label.values()):
            continue
        label, number = source.label, 2
        while label in by_label:
            label, number = f"{source.label} ({number})", number + 1
        by_label[label] = Source(source.kind, source.url, label)
    return tuple(by_label.values())


def named_projects(requirements: Iterable[str]) -> tuple[str, ...]:
    """Return the normalized names of the required packages, each once. Lines that name a URL are left out, because no
    index is asked for them."""
    parsed = map(Requirement, requirements)
    return tuple(dict.fromkeys(str(canonicalize_name(line.name)) for line in parsed if line.url is None))


CONTROL_MACHINE: Final = ""
_FIELDS: Final = ("version", "filename", "source", "size", "yanked", "requires_python", "mpi")
"""Cached fields of a wheel. URLs are not cached."""
_SCHEMA: Final = "ipexctl.indexes/1"


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """What the indexes answered earlier."""

    availability: Availability
    at: float
    """Time of the oldest part of the answer, in seconds since the epoch."""


class IndexCache:
    """Answers of the indexes: one file for each machine that asked and each set of `PIP_` variables."""

    def __init__(self, environ: Mapping[str, str], directory: Path | None = None) -> None:
        self._directory = directory or cache_directory() / "indexes"
        self._settings = sorted((name, value) for name, value in environ.items() if name.startswith("PIP_"))

    def save(self, machine: str, availability: Availability) -> None:
        """Keep an answer beside earlier ones about other projects. A failed write is ignored."""
        if not availability.answered:
            return
        now = time.time()
        projects = {
            project: {
                "at": now,
                "wheels": [[getattr(wheel, name) for name in _FIELDS] for wheel in wheels],
            }
            for project, wheels in availability.candidates.items()
        }
        document = {
            "schema": _SCHEMA,
            "answered": list(availability.answered),
            "failures": [[failure.source, failure.reason] for failure in availability.failures],
            "projects": {**self._document_of(machine).get("projects", {}), **projects},
        }
        with contextlib.suppress(OSError):
            make_private_directory(self._directory)
            write_json_atomically(self._path(machine), document, durable=False)

    def load(self, machine: str, projects: Iterable[str]) -> CachedAnswer | None:
        """Return the cached answer; None unless it is from the last day and has each of these projects. `machine`: the
        one that asked."""
        try:
            document = self._document_of(machine)
            parts = {project: document["projects"][project] for project in projects}
            at = min(float(part["at"]) for part in parts.values())
            candidates = {project: tuple(_wheels(project, part["wheels"])) for project, part in parts.items()}
            failures = tuple(SourceFailure(str(source), str(reason)) for source, reason in document["failures"])
            availability = Availability(candidates, tuple(map(str, document["answered"])), failures)
        except (KeyError, TypeError, ValueError):
            return None
        return CachedAnswer(availability, at) if 0 <= time.time() - at < INDEX_ANSWER_VALID else None

    def _document_of(self, machine: str) -> dict[str, Any]:
        document = read_json(self._path(machine))
        is_valid = document.get("schema") == _SCHEMA and isinstance(document.get("projects"), dict)
        return document if is_valid else {}

    def _path(self, machine: str) -> Path:
        key = hashlib.sha256(repr((machine, self._settings)).encode()).hexdigest()[:16]
        return self._directory / f"{key}.json"


def _wheels(project: str, rows: Iterable[Any]) -> Iterator[AvailableWheel]:
    for values in rows:
        yield decode(AvailableWheel, dict(zip(_FIELDS, values, strict=True)), "a wheel", {"project": project})

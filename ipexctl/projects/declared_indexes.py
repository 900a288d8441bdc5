"""Read the package indexes that a project's files name: of uv (`[[tool.uv.index]]`, `[tool.uv.sources]`, uv.toml), of
poetry and of pdm.

A package that a file binds to an index is never taken from another one. URLs may hold credentials.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from ipexctl.errors import UserError
from ipexctl.hosts.host import quote
from ipexctl.node.common.urls import strip_login
from ipexctl.node.env.check import normalize
from ipexctl.projects.declaration import PYPROJECT, table, texts
from ipexctl.projects.layout import NO_LAYOUT, ProjectLayout
from ipexctl.projects.project_files import TextReader

_PYPI: Final = "https://pypi.org/simple"
_IN_TEXT: Final = re.compile(
    r"^(?:\s*(?:-i|-f|--(?:extra-)?index-url|--find-links)[\s=]\s*|source = \{ registry = \")([^\s\"]+)", re.MULTILINE
)
"""URLs in a requirements file or uv.lock."""
_OF_PYTORCH: Final = frozenset({"torch", "torchaudio", "torchtext", "torchvision"})
"""The stack decides which builds of these are installed."""


class IndexBinding(NamedTuple):
    """A package that is taken from one index only."""

    name: str
    """Normalized; one of pdm's `include_packages` may have wildcards."""
    url: str
    """URL of the index; empty if the project does not define the index, or the call does not name it."""
    label: str
    """The index in messages."""
    marker: str = ""


@dataclass(frozen=True, slots=True)
class ProjectIndexes:
    default: str = ""
    """The index in place of PyPI; empty for PyPI."""
    first: tuple[str, ...] = ()
    """Searched before the default index."""
    links: tuple[str, ...] = ()
    """Pages or directories of wheels."""
    bound: tuple[IndexBinding, ...] = ()


def check_url(url: str) -> str:
    """Return the URL. Raises a UserError that shows it without a login."""
    try:
        urlsplit(url)
    except ValueError as error:
        shown = quote(url.rpartition("@")[2])  # without a login
        raise UserError(f"{shown} is no URL: {error}", fix="correct it in the project's files") from None
    return url


def is_of_pytorch(url: str) -> bool:
    """True for an index of PyTorch's own site."""
    return urlsplit(url).hostname == "download.pytorch.org"


def find_indexes(layout: ProjectLayout) -> ProjectIndexes:
    """Return the indexes that files in the project's root, and beside its own packages' declarations, name."""
    directories = (layout.root, *(layout.root / package.directory for package in layout.own))
    return read_indexes(directories if layout is not NO_LAYOUT else ())


def index_for(layout: ProjectLayout, files: Iterable[str], packages: Iterable[str]) -> str:
    """Return the index, without credentials, from which the project may take one of these packages; empty if it is
    PyPI. `files`: of requirements, relative to the project's root."""
    indexes, names = find_indexes(layout), set(map(normalize, packages))
    read = TextReader(layout.root)
    urls = [
        indexes.default,
        *indexes.first,
        *indexes.links,
        *(binding.label for binding in indexes.bound if binding.name in names),
    ]
    urls += [match[1] for file in files for match in _IN_TEXT.finditer(read(file))]
    return next((strip_login(url) for url in urls if url and not (is_of_pytorch(url) or url == _PYPI)), "")


def read_indexes(directories: Iterable[Path], *read_before: tuple[Path, Mapping[str, Any]]) -> ProjectIndexes:
    """Return the indexes that the files in these directories name. A file that is not TOML names none; an install
    reports it. `read_before`: more tables for `indexes_of`."""
    tools = list(read_before)
    for directory in dict.fromkeys(map(Path.absolute, directories)):
        read = TextReader(directory)
        tools += [(directory, table(read(PYPROJECT), "tool")), (directory, {"uv": table(read("uv.toml"))})]
    return indexes_of(tools)


def indexes_of(tools: Iterable[tuple[Path, Mapping[str, Any]]]) -> ProjectIndexes:
    """Return the indexes that these tables name. PyTorch's own indexes are left out, because ipexctl asks its index for
    CPUs anyway. `tools`: `tool` tables, with the directory to which their paths are relative."""
    entries = [entry for directory, tool in tools for entry in _entries(tool, directory)]
    general = [(kind, url) for _, url, kind, _ in entries if url != _PYPI and not is_of_pytorch(url)]
    kinds = ("default", "first", "links")
    default, first, links = (tuple(dict.fromkeys(url for kind, url in general if kind == group)) for group in kinds)
    bound = [IndexBinding(normalize(name), url, strip_login(url)) for _, url, _, names in entries for name in names]
    urls = {name.lower(): url for name, url, _, _ in reversed(entries)}
    for name, source in (pair for _, tool in tools for pair in package_sources(tool)):
        if isinstance(index := source.get("index"), str):
            url = urls.get(index.lower(), "")
            bound.append(IndexBinding(name, url, strip_login(url) or index, str(source.get("marker", ""))))
    general_indexes = ProjectIndexes(next(iter(default), ""), first, links)
    return ProjectIndexes(general_indexes.default, first, links, without_usual(bound, general_indexes))


def without_usual(bound: Iterable[IndexBinding], beside: ProjectIndexes) -> tuple[IndexBinding, ...]:
    """Return the bindings without those that change nothing: of torch to PyTorch's own indexes, and of any package to
    PyPI if no index comes before it."""
    return tuple(
        binding
        for binding in dict.fromkeys(bound)
        if not (binding.name in _OF_PYTORCH and (not binding.url or is_of_pytorch(binding.url)))
        if binding.url != _PYPI or beside.default or beside.first
    )


def package_sources(tool: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the normalized name of a package, and each of its sources, under uv's keys."""
    poetry = table(tool, "poetry")
    groups = [table(poetry, "group", name, "dependencies") for name in table(poetry, "group")]
    for packages in (table(tool, "uv", "sources"), table(poetry, "dependencies"), *groups):
        for name, values in packages.items():
            for source in values if isinstance(values, list) else [values]:
                if isinstance(source, dict):
                    renamed = {"index": source.get("source"), "marker": source.get("markers") or ""}
                    yield normalize(str(name)), {**renamed, **source}


def _entries(tool: Mapping[str, Any], directory: Path) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Yield name, URL and kind of each index, and the packages that are bound to it."""
    entries: list[tuple[Mapping[str, Any], str]] = []
    uv, poetry = table(tool, "uv"), _tables(table(tool, "poetry").get("source"))
    for index in _tables(uv.get("index")):
        kinds = [kind for kind in ("default", "explicit") if index.get(kind) is True]
        entries.append((index, kinds[0] if kinds else "links" if index.get("format") == "flat" else "first"))
    for key, kind in (("index-url", "default"), ("extra-index-url", "first"), ("find-links", "links")):
        entries += [({"url": url}, kind) for url in texts(uv.get(key))]
    primary = [source for source in poetry if source.get("priority", "primary") in ("primary", "default")]
    if not any(str(source.get("name")).lower() == "pypi" for source in primary):
        entries += [(source, "default") for source in primary[-1:]]
    entries += [(source, "explicit" if source.get("priority") == "explicit" else "first") for source in poetry]
    for source in _tables(table(tool, "pdm").get("source")):
        kind = "default" if source.get("name") == "pypi" else "first"
        entries.append((source, "links" if source.get("type") == "find_links" else kind))
    for entry, kind in entries:
        name = str(entry.get("name", ""))
        url = entry.get("url", _PYPI if name.lower() == "pypi" else None)
        if isinstance(url, str) and url:
            url = check_url(url).rstrip("/") if "://" in url else os.path.join(directory, url)
            yield name, url, kind, texts(entry.get("include_packages"))


def _tables(values: Any) -> list[Mapping[str, Any]]:
    return [item for item in values if isinstance(item, dict)] if isinstance(values, list) else []

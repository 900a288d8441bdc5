"""What a call's words about packages and sources come to. Lines of requirements files are read by `requirements`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted
from ipexctl.stack.lock.indexes import directory_of
from ipexctl.stack.lock.requirements import Wanted, added, read_requirements, requirement
from ipexctl.stack.resolve.plan import Refusal
from ipexctl.stack.resolve.request import Sources
from ipexctl.stack.resolve.resolver import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.stack.catalog.table import StackSpec
    from ipexctl.stack.resolve.request import StackRequest


def wanted_packages(packages: Sequence[str], files: Sequence[Path]) -> Wanted:
    """The user's requirement lines, those of --with first, and what requirements files say besides."""
    wanted = Wanted(tuple(requirement(package) for package in packages))
    for file in files:
        read = read_requirements(file)
        wanted = Wanted(
            lines=tuple(dict.fromkeys((*wanted.lines, *read.lines))),
            constraints=tuple(dict.fromkeys((*wanted.constraints, *read.constraints))),
            sources=added(wanted.sources, read),
            origins={**wanted.origins, **read.origins},
        )
    return wanted


def check_request(request: StackRequest, rows: Sequence[StackSpec]) -> None:
    """Refuse what names something that doesn't exist, before any host is touched."""
    decided = resolve(request, {}, None, rows=rows)
    if isinstance(decided, Refusal) and decided.wrong_call:
        raise UserError(decided.reason, fix=decided.fix)


def sources_of(
    more: Sources,
    *,
    index_url: str | None,
    extra_index_urls: Sequence[str],
    find_links: Sequence[str],
    wheelhouse: str | None,
    offline: bool,
) -> Sources:
    """The call's sources, and behind them those its requirements files name. Directories become absolute."""
    for url in (*([index_url] if index_url else []), *extra_index_urls):
        if "://" not in url:
            raise UserError(
                f"{quoted(url)} is no URL of an index", fix="https://host/simple; for a directory: --find-links DIR"
            )
    return Sources(
        index_url=index_url or more.index_url,
        extra_index_urls=(*extra_index_urls, *more.extra_index_urls),
        find_links=(*(_place(word, "--find-links") for word in find_links), *more.find_links),
        wheelhouse=_place(wheelhouse, "--wheelhouse") if wheelhouse is not None else None,
        offline=offline,
    )


def _place(word: str, option: str) -> str:
    path = directory_of(word)
    if path is None:
        return word
    place = Path(path).expanduser().absolute()
    if not place.is_dir():
        what = "is no directory" if place.exists() else "is not there"
        raise UserError(
            f"{option} {quoted(word)} {what}", fix="name a directory of wheels; install --download-only DIR makes one"
        )
    return str(place)

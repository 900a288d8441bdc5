"""Reads uv's pylock.toml and chooses the wheel of each package that fits the target best. Pure."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from ipexctl.stack.lock.indexes import without_credentials
from ipexctl.stack.lock.lock import Wheel
from ipexctl.stack.lock.wheels import OLDEST_GLIBC, glibc_minor, tag_ranks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.tags import Tag

_PLATFORMS: Final = (OLDEST_GLIBC, 28, *range(31, 41))
"""The minor versions of glibc for which uv has a platform name."""


class NoWheel(Exception):
    """No file of a package fits the target."""


def platform_for(glibc: str) -> str:
    """uv's name of the newest platform for that glibc: `x86_64-manylinux_2_28`."""
    known = [number for number in _PLATFORMS if number <= glibc_minor(glibc)]
    return f"x86_64-manylinux_2_{max(known, default=OLDEST_GLIBC)}"


def read(text: str, python: str, glibc: str, on_disk: Mapping[str, Mapping[str, Any]]) -> tuple[Wheel, ...]:
    """The lock's wheels, one a package; an empty sha256 if the lock has none. Raises NoWheel.

    `on_disk`: what is known of those that lie on the machine that made the lock, by URL.
    """
    ranks = tag_ranks(python, glibc)
    made = []
    for package in tomllib.loads(text).get("packages", ()):
        files = package.get("wheels") or [package[kind] for kind in ("archive",) if kind in package]
        fitting = [(fit, file) for file in files if (fit := _fit(file, ranks)) is not None]
        if not fitting:
            raise NoWheel(package["name"])
        made.append(_wheel(package, min(fitting, key=lambda pair: pair[0])[1], on_disk))
    return tuple(sorted(made, key=lambda wheel: wheel.name))


def filename_of(file: Mapping[str, Any]) -> str:
    return str(file.get("name") or unquote(urlsplit(file.get("url") or file.get("path") or "").path.rpartition("/")[2]))


def _fit(file: Mapping[str, Any], ranks: Mapping[Tag, int]) -> tuple[int, tuple[int, str]] | None:
    """A sort key, smallest is best: the rank of its best tag, then the newest build."""
    try:
        _, _, build, named = parse_wheel_filename(filename_of(file))
    except InvalidWheelFilename:
        return None
    rank = min((ranks[tag] for tag in named if tag in ranks), default=None)
    number, rest = build if build else (0, "")
    return None if rank is None else (rank, (-number, rest))


def _wheel(package: Mapping[str, Any], file: Mapping[str, Any], on_disk: Mapping[str, Mapping[str, Any]]) -> Wheel:
    filename = filename_of(file)
    url = str(file.get("url") or "")
    known = on_disk.get(url)
    version = package.get("version") or str(parse_wheel_filename(filename)[1])
    return Wheel(
        name=canonicalize_name(package["name"]),
        version=version,
        filename=filename,
        sha256=(known or {}).get("sha256") or (file.get("hashes") or {}).get("sha256") or "",
        size=(known or {}).get("size") or file.get("size"),
        url=None if known else without_credentials(url),
        path=(known or {}).get("path"),
    )
